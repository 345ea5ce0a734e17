"""Continuing an answer on an OpenAI-compatible server: those that can, and those that start over."""

import asyncio

import pytest

from shadowprice.backends.base import LANDING, join
from shadowprice.backends.openai import OpenAIBackend
from shadowprice.errors import LimitViolated, Refused

from . import hostile
from .hostile import WORDS, Server, continues

CHAT = {"messages": [{"role": "user", "content": "hello"}]}
TEXT = {"prompt": "hello"}

pytestmark = pytest.mark.usefixtures("no_proxy")


def using(behaviour, function, **options):
    """Run an async function with a backend on a server of this behaviour; the requests, and what it returns."""

    async def closing(url):
        backend = OpenAIBackend(url, "m", timeout=5, **options)
        try:
            return await function(backend)
        finally:
            await backend.close()

    with Server(behaviour) as server:
        found = asyncio.run(closing(server.url))
    return server.requests, found


class TestAServerThatContinues:
    @pytest.mark.parametrize("trims", [False, True])
    @pytest.mark.parametrize("body", [CHAT, TEXT], ids=["chat", "text"])
    def test_is_sent_the_text(self, body, trims):
        async def in_parts(backend):
            first = await backend.complete(body, 8)
            return join(first, await backend.complete(body, 50, continue_from=first))

        requests, whole = using(continues(trims=trims and body is CHAT), in_parts)
        assert (whole.text, whole.finish, whole.flags) == ("".join(WORDS), "stop", ())
        sent = requests[1].body
        if body is CHAT:
            assert sent["messages"] == [
                *CHAT["messages"],
                {"role": "assistant", "content": "".join(WORDS[:8]).rstrip()},
            ]
            assert (sent["continue_final_message"], sent["add_generation_prompt"]) == (True, False)
        else:
            assert sent["prompt"] == "hello" + "".join(WORDS[:8])
            assert "continue_final_message" not in sent

    def test_shows_it_in_the_first_continuation(self):
        async def known(backend):
            before = backend.can_continue(CHAT), backend.can_continue(TEXT)
            first = await backend.complete(CHAT, 8)
            await backend.complete(CHAT, 8, continue_from=first)
            return before, backend.can_continue(CHAT)

        assert using(continues(), known)[1] == ((None, True), True)

    def test_counts_what_it_read_and_what_was_cached(self):
        async def usage(backend):
            first = await backend.complete(CHAT, 8)
            return first, await backend.complete(CHAT, 8, continue_from=first)

        first, more = using(continues(), usage)[1]
        assert (first.input_tokens, first.cached_tokens) == (5, 0)
        assert (more.input_tokens, more.cached_tokens) == (5, 8)

    @pytest.mark.parametrize(
        "body",
        [
            {**CHAT, "stop": ["x"]},
            {**CHAT, "response_format": {"type": "json_object"}},
            {"messages": [*CHAT["messages"], {"role": "assistant", "content": "Well,"}]},
            {"messages": []},
            {"prompt": ["hello"]},
            {"prompt": [1, 2]},
        ],
        ids=str,
    )
    def test_is_not_asked_to_continue_what_cannot_be_continued(self, body):
        async def refused(backend):
            first = await backend.complete(CHAT, 8)
            assert backend.can_continue(body) is False
            with pytest.raises(Refused) as caught:
                await backend.complete(body, 8, continue_from=first)
            return caught.value, backend.can_continue(CHAT)

        requests, (error, others) = using(continues(), refused)
        assert (error.code, error.tokens, others) == ("not_continued", 0, None)
        assert len(requests) == 1


class TestAServerThatDoesNotContinue:
    @pytest.mark.parametrize(
        ("behaviour", "cost"),
        [
            (continues(starts_over=True), 8),
            (continues(usage=False), 8),  # without counts it cannot be verified
            (continues(refuses=True), 0),
        ],
        ids=["starts_over", "no_usage", "refuses"],
    )
    def test_is_noticed_at_the_first_attempt(self, behaviour, cost):
        async def attempt(backend):
            first = await backend.complete(CHAT, 8)
            errors = []
            for _ in range(2):
                with pytest.raises(Refused) as caught:
                    await backend.complete(CHAT, 8, continue_from=first)
                errors.append(caught.value)
            assert backend.can_continue(CHAT) is False
            assert (await backend.complete(CHAT, 8)).tokens == 8
            return errors

        requests, (first, second) = using(behaviour, attempt)
        assert (first.tokens, second.tokens, second.code) == (cost, 0, "not_continued")
        assert len(requests) == 3

    def test_is_believed_if_the_caller_says_that_it_continues(self):
        async def attempt(backend):
            first = await backend.complete(CHAT, 8)
            await backend.complete(CHAT, 8, continue_from=first)
            return backend.can_continue(CHAT)

        assert using(continues(starts_over=True), attempt, continues=True)[1] is True

    def test_reasoning_cannot_be_sent_back(self):
        async def attempt(backend):
            first = await backend.complete(CHAT, 2)
            with pytest.raises(Refused) as caught:
                await backend.complete(CHAT, 8, continue_from=first)
            return caught.value, backend.can_continue(CHAT)

        thinks = hostile.deltas({"reasoning_content": "hm "}, {"content": "so"}, finish="length")
        requests, (error, known) = using(thinks, attempt)
        assert (error.code, error.tokens, known) == ("not_continued", 0, False)
        assert len(requests) == 1

    def test_that_ignores_a_limit_is_not_asked_again(self):
        async def attempt(backend):
            first = await backend.complete(CHAT, 8)
            assert "limit_ignored" in first.flags
            with pytest.raises(LimitViolated):
                await backend.complete(CHAT, 8, continue_from=first)

        assert len(using(hostile.says(9, {"completion_tokens": 9}), attempt)[0]) == 1


class TestASuffix:
    @pytest.mark.parametrize("body", [CHAT, TEXT], ids=["chat", "text"])
    @pytest.mark.parametrize("tokens", [0, 8])
    def test_is_sent_after_the_text(self, body, tokens):
        async def land(backend):
            first = await backend.complete(body, tokens) if tokens else None
            return await backend.complete(body, 30, continue_from=first, suffix=LANDING)

        requests, landed = using(continues(), land, continues=True)
        assert (landed.text, landed.tokens, landed.finish, landed.flags) == ("42}", 2, "stop", ())
        sent = "".join(WORDS[:tokens]) + LANDING
        last = requests[-1].body
        assert (last["messages"][-1]["content"] if body is CHAT else last["prompt"].removeprefix("hello")) == sent
        assert len(last["stop"]) == 4

    def test_of_another_kind_ends_with_its_line(self):
        async def land(backend):
            return await backend.complete(TEXT, 3, suffix="w0 w1 ")

        requests, landed = using(continues(), land)
        assert (landed.text, landed.finish) == ("w2 w3 w4 ", "length")
        assert requests[0].body["stop"] == ["\n"]

    @pytest.mark.parametrize(
        ("printed", "text"),
        [
            (["4", "2"], "42}"),
            (["4", "2", "}"], "42}"),
            (["\\frac{1}", "{2}"], "\\frac{1}{2}}"),
            (["\\{1, 2\\}"], "\\{1, 2\\}}"),
        ],
        ids=str,
    )
    def test_that_opens_a_box_gets_the_closing_brace_back(self, printed, text):
        async def land(backend):
            return (await backend.complete(CHAT, 30, suffix=LANDING)).text

        server = hostile.deltas(*({"content": piece} for piece in printed))
        assert using(server, land, continues=True)[1] == text

    def test_cut_at_the_limit_stays_open(self):
        async def land(backend):
            return await backend.complete(CHAT, 1, suffix=LANDING)

        landed = using(continues(), land, continues=True)[1]
        assert (landed.text, landed.tokens, landed.finish) == ("4", 1, "length")

    def test_does_not_show_whether_a_server_continues(self):
        async def land(backend):
            first = await backend.complete(CHAT, 8)
            landed = await backend.complete(CHAT, 30, continue_from=first, suffix=LANDING)
            return landed.flags, backend.can_continue(CHAT)

        assert using(continues(), land)[1] == (("continuation_unverified",), None)

    def test_that_is_refused_is_not_sent_again(self):
        async def land(backend):
            first = await backend.complete(CHAT, 8)
            for _ in range(2):
                with pytest.raises(Refused):
                    await backend.complete(CHAT, 30, continue_from=first, suffix=LANDING)
            return backend.can_continue(CHAT)

        requests, known = using(continues(refuses=True), land)
        assert (known, len(requests)) == (False, 2)
