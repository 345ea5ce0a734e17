"""What attempts are charged that were under way when their run crashed."""

import asyncio
from contextlib import suppress

import pytest

from shadowprice import Forecast, Run
from shadowprice.accounts.sqlite import Ledger
from shadowprice.backends.base import ATTEMPT
from shadowprice.backends.openai import OpenAIBackend
from shadowprice.engine.lost import settle_lost
from shadowprice.errors import Unavailable

from ..backends.hostile import Server, well_behaved
from ..gateway.upstream import gateway

CHAT = {"messages": [{"role": "user", "content": "Why?"}]}


class Knowing:
    """A backend whose server keeps account of attempts."""

    def __init__(self, **costs):
        self.costs = costs

    async def cost_of(self, body, attempt):
        return self.costs.get(attempt.replace("-", ""))


@pytest.mark.parametrize(
    ("priced", "entries"),
    [
        (False, [("free", 0), ("settle", 7), ("orphan", 30), ("orphan", 40)]),
        (True, [("free", 0), ("orphan", 20), ("orphan", 30), ("orphan", 40)]),
    ],
)
def test_they_cost_what_the_server_says_and_else_their_reservation(priced, entries):
    ledger = Ledger.in_memory(100)
    numbers = ledger.reserve_many([("a", 10), ("b", 20), ("c", 30), ("not of this run", 40)])
    backend = Knowing(**{f"run{numbers[0]}": 0, f"run{numbers[1]}": 7, f"run{numbers[3]}": 1})
    asyncio.run(settle_lost(ledger, backend, "run", dict.fromkeys("abc", CHAT), priced=priced))
    assert [(entry.kind, entry.units) for entry in ledger.entries() if entry.reservation] == entries
    assert ledger.reserved == 0


async def slow(request, reply):
    await reply.head()
    for number in range(request.limit):
        await reply.piece(f"w{number} ")
        await asyncio.sleep(0.02)
    await reply.finish("length")
    await reply.usage(request.limit)
    await reply.end()


class Long:
    def predict(self, requests):
        return Forecast([200.0] * len(requests))


@pytest.mark.slow
def test_a_run_through_the_gateway_is_charged_what_was_generated(tmp_path):
    async def execute(url, seconds, stop=""):
        async with OpenAIBackend(url, "m") as backend:
            options = {"backend": backend, "folder": tmp_path / "run", "forecaster": Long(), "policy": "uniform"}
            with Run([f"Question {i}?" for i in range(4)], budget=800, **options) as run:
                reserved = run.ledger.reserved
                run.progress.stopped = stop
                with suppress(TimeoutError):
                    await asyncio.wait_for(run.execute(), seconds)
                return reserved, run.spent, [entry.kind for entry in run.ledger.entries() if entry.reservation]

    with Server(slow) as upstream, gateway(upstream.url, tmp_path / "ledger", budget="5000") as (url, _):
        asyncio.run(execute(url, 1))
        reserved, spent, kinds = asyncio.run(execute(url, 60, stop="enough was seen"))
        assert (reserved, kinds) == (800, ["settle"] * 4)
        assert upstream.generated <= spent < 400


@pytest.mark.slow
def test_the_gateway_tells_what_it_knows_of_an_attempt(tmp_path):
    async def work(url):
        async with OpenAIBackend(url, "m") as backend:
            assert await backend.cost_of(CHAT, "unknown") is None
            ATTEMPT.set("known")
            assert (await backend.complete(CHAT, 10)).tokens == 10
            assert await backend.cost_of(CHAT, "known") == 10
            assert await backend.cost_of({"prompt": "Why?"}, "known") is None
        async with OpenAIBackend(url, "m", api_key="of somebody else") as other:
            assert await other.cost_of(CHAT, "known") is None

    with Server(well_behaved) as upstream, gateway(upstream.url, tmp_path, budget="5000") as (url, _):
        asyncio.run(work(url))
        assert upstream.generated == 10


@pytest.mark.slow
def test_an_answer_that_stops_costs_what_the_gateway_has_charged(tmp_path):
    async def work(url):
        async with OpenAIBackend(url, "m", stall_timeout=0.5) as backend:
            ATTEMPT.set("broken")
            with pytest.raises(Unavailable) as caught:
                await backend.complete(CHAT, 1000)
            return caught.value.tokens

    async def stalls(request, reply):
        await reply.head()
        await reply.say(3)
        await asyncio.sleep(60)

    with Server(stalls) as upstream, gateway(upstream.url, tmp_path, budget="5000") as (url, _):
        assert upstream.generated <= asyncio.run(work(url)) < 100


def test_other_servers_are_asked_once():
    async def work(url):
        async with OpenAIBackend(url, "m") as backend:
            return [await backend.cost_of(CHAT, f"attempt-{i}") for i in range(3)]

    async def unaware(request, reply):
        await reply.error(405, "no such method")

    with Server(unaware) as server:
        assert asyncio.run(work(server.url)) == [None] * 3
        assert len(server.requests) == 1
