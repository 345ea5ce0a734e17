import asyncio

import pytest
from aiohttp import web

from shadowprice.accounts.owner import SqliteOwner
from shadowprice.errors import InputError, LedgerError, MarketError
from shadowprice.gateway.once import Answered, once

WHOSE = ("alice", "/chat/completions", "key-1")


def asked(tmp_path, work):
    owner = SqliteOwner(tmp_path / "accounts.sqlite")
    calls = []

    def answer(status=200, charged=True, body=b"{}"):
        async def answered():
            calls.append(status)
            await asyncio.sleep(0.02)
            headers = {"Content-Type": "application/json", "x-shadowprice-grant": "7", "Date": "today"}
            return Answered(web.Response(status=status, body=body, headers=headers), charged, None)

        return answered

    async def ask(answered, whose=WHOSE, content=b"q"):
        return await once(owner, "w", whose, content, answered, lambda: 7)

    try:
        asyncio.run(work(ask, answer))
    finally:
        owner.close()
    return calls


def test_all_get_the_first_answer(tmp_path):
    async def work(ask, answer):
        replies = await asyncio.gather(*(ask(answer(body=b"%d" % i)) for i in range(5)))
        assert len({reply.body for reply in replies}) == 1

    assert asked(tmp_path, work) == [200]


def test_a_repeated_answer_says_what_was_decided(tmp_path):
    async def work(ask, answer):
        await ask(answer())
        again = await ask(answer())
        assert again.headers["x-shadowprice-grant"] == "7"
        assert again.content_type == "application/json"
        assert "Date" not in again.headers  # that of the first answer would be wrong

    assert asked(tmp_path, work) == [200]


def test_another_tenant_endpoint_or_key_has_its_own_answer(tmp_path):
    async def work(ask, answer):
        for whose in (WHOSE, ("bob", *WHOSE[1:]), ("alice", "/completions", "key-1"), (*WHOSE[:2], "key-2")):
            await ask(answer(), whose)

    assert len(asked(tmp_path, work)) == 4


def test_another_request_with_the_same_key_is_refused(tmp_path):
    async def work(ask, answer):
        await ask(answer())
        assert (await ask(answer(), content=b"other")).status == 422

    assert asked(tmp_path, work) == [200]


def test_what_generated_nothing_can_be_repeated_and_what_may_have_cannot(tmp_path):
    async def work(ask, answer):
        await ask(answer(402, charged=False))
        await ask(answer(502, charged=True))
        assert (await ask(answer())).status == 409

    assert asked(tmp_path, work) == [402, 502]


@pytest.mark.parametrize("error", [InputError, LedgerError, MarketError])
def test_a_request_of_which_nothing_was_sent_can_be_repeated(tmp_path, error):
    async def work(ask, answer):
        async def fails():
            raise error("no")

        try:
            await ask(fails)
        except error:
            assert (await ask(answer())).status == 200

    assert asked(tmp_path, work) == [200]
