"""An OpenAI-compatible server in trouble: never charged too little, and nothing hangs."""

import asyncio
import socket

import pytest

from shadowprice.backends.openai import OpenAIBackend
from shadowprice.errors import Refused, Unavailable

from . import hostile
from .asking import CHAT, ask, meet
from .hostile import Server, fails, in_seconds, says, streams

pytestmark = pytest.mark.usefixtures("no_proxy")


class TestAServerInTrouble:
    @pytest.mark.parametrize("status", [408, 409, 500, 502, 504, 529])
    def test_may_have_worked(self, status):
        outcome = meet(fails(status, "too\nbad", work=10))
        assert isinstance(outcome, Unavailable)
        assert (str(outcome), outcome.tokens, outcome.delay) == (f"{status}: too bad", None, None)

    def test_is_asked_once(self):
        with Server(fails(500)) as server:
            ask(server.url)
        assert len(server.requests) == 1

    @pytest.mark.parametrize(
        ("headers", "delay"),
        [
            ({"retry_after": "7"}, 7),
            ({"retry_after": "0.5"}, 0.5),
            ({"retry_after_ms": "1500", "retry_after": "9"}, 1.5),
            ({"retry_after": "86400"}, 300),
            ({"retry_after": "inf"}, 300),
            ({"retry_after": in_seconds(-60)}, 0),
            ({"retry_after": in_seconds(86400)}, 300),
            ({"retry_after": "soon"}, None),
            ({"retry_after": "-3"}, None),
            ({"retry_after": "nan"}, None),
            ({}, None),
        ],
        ids=range(11),  # a date is another one in every process, and workers must collect the same names
    )
    def test_that_is_busy_names_its_delay(self, headers, delay):
        outcome = meet(fails(429, "slow down", **headers))
        assert isinstance(outcome, Unavailable)
        assert (outcome.tokens, outcome.delay) == (0, delay)

    def test_that_is_busy_names_its_delay_as_a_date(self):
        assert 50 < meet(fails(429, retry_after=in_seconds(60))).delay <= 60

    def test_names_its_delay_with_other_statuses_too(self):
        outcome = meet(fails(500, retry_after="2"))
        assert (outcome.tokens, outcome.delay) == (None, 2)

    def test_that_is_not_there_yet_has_generated_nothing(self):
        outcome = meet(fails(503, "loading model", retry_after="2"))
        assert isinstance(outcome, Unavailable)
        assert (outcome.tokens, outcome.delay) == (0, 2)

    def test_reports_errors_in_the_stream(self):
        outcome = meet(hostile.error_in_the_stream)
        assert isinstance(outcome, Unavailable)
        assert (str(outcome), outcome.tokens) == ("the server reported an error: out of memory", None)

    @pytest.mark.parametrize("reason", ["abort", "error"])
    def test_stops_on_its_own(self, reason):
        outcome = meet(says(3, {"completion_tokens": 3}, finish=reason))
        assert isinstance(outcome, Unavailable)
        assert outcome.tokens is None


class TestARefusal:
    @pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
    def test_costs_nothing_and_says_why_in_one_line(self, status):
        outcome = meet(fails(status, "the model\n  does not exist"))
        assert isinstance(outcome, Refused)
        assert (str(outcome), outcome.tokens) == (f"{status}: the model does not exist", 0)

    def test_is_asked_once(self):
        for status in (400, 401):
            with Server(fails(status)) as server:
                ask(server.url)
            assert len(server.requests) == 1

    @pytest.mark.parametrize(
        "content", [{"detail": "not here"}, {"message": "not here"}, "not here", {"error": "not here"}]
    )
    def test_is_understood_in_many_forms(self, content):
        async def behave(request, reply):
            await reply.json(404, content)

        assert str(meet(behave)) == "404: not here"

    def test_may_be_a_long_page_or_nothing(self):
        async def page(request, reply):
            await reply.head(404, "text/html")
            await reply.send("<html>\n" + "<p>no</p>\n" * 10_000)

        async def nothing(request, reply):
            await reply.head(404)

        assert len(str(meet(page))) < 320
        assert "\n" not in str(meet(page))
        assert str(meet(nothing)) == "404: no reason given"

    def test_for_an_empty_account_is_not_retried(self):
        async def behave(request, reply):
            await reply.json(429, {"error": {"message": "quota", "code": "insufficient_quota"}})

        assert isinstance(meet(behave), Refused)


class TestABrokenStream:
    @pytest.mark.parametrize(
        "events",
        [
            (),
            ("\x00\x01 garbage\n\n", "more: of it\n\n"),
            ("data: {not json}\n\n",),
            ('data: {"choices": [{"delta": {"content": "cut of',),
            ("data: 17\n\n",),
            ("data: null\n\n",),
            ('data: {"choices": 5}\n\n',),
            ('data: {"choices": [5]}\n\n',),
            ('data: {"choices": [{"delta": 5}]}\n\n',),
            ('data: {"choices": [{"delta": {"content": 5}}]}\n\n',),
            ('data: {"choices": [{"delta": {"tool_calls": 5}}]}\n\n',),
            ('data: {"choices": [{"delta": {"tool_calls": [{"index": {}, "function": {}}]}}]}\n\n',),
            ("data: " + "[" * 100_000 + "\n\n",),
        ],
        ids=lambda events: str(events)[:60],
    )
    def test_may_have_cost_anything(self, events):
        outcome = meet(streams(*events))
        assert isinstance(outcome, Unavailable)
        assert outcome.tokens is None
        assert "\n" not in str(outcome)

    def test_that_is_not_text(self):
        async def behave(request, reply):
            await reply.head()
            await reply.send(b"data: \xff\xfe\n\n")

        assert meet(behave).tokens is None

    def test_that_is_json_but_incomplete(self):
        async def cut(request, reply):
            await reply.head(200, "application/json")
            await reply.send('{"choices": [')

        outcome = meet(cut)
        assert isinstance(outcome, Unavailable)
        assert outcome.tokens is None

    @pytest.mark.parametrize(
        "behaviour",
        [hostile.hangs_up, hostile.hangs_up_in_mid_stream, hostile.a_chunk_cut_off, hostile.a_body_cut_off],
        ids=lambda b: b.__name__,
    )
    def test_by_a_lost_connection(self, behaviour):
        outcome = meet(behaviour)
        assert isinstance(outcome, Unavailable)
        assert outcome.tokens is None

    def test_after_the_last_word_does_not_matter(self):
        async def behave(request, reply):
            await says(3, ending=False)(request, reply)
            await reply.send("data: {not json}\n\n")

        done = meet(behave)
        assert (done.text, done.tokens, done.usage_source) == ("w0 w1 w2 ", 10, "assumed")

    @pytest.mark.parametrize("said", [0, 3])
    def test_a_stream_that_is_cut_within_an_event_has_no_end(self, said):
        async def behave(request, reply):
            await reply.head()
            await reply.say(said)
            await reply.send('data: {"choices": [{"del')

        outcome = meet(behave)
        assert isinstance(outcome, Unavailable)
        assert (outcome.tokens, outcome.cause) == (None, "a stream without an end")


class TestNothingHangs:
    @pytest.mark.parametrize(
        ("behaviour", "limits"),
        [
            (hostile.silence, {"timeout": 0.4, "stall_timeout": 30}),
            (hostile.silence_after_headers, {"timeout": 0.4, "stall_timeout": 30}),
            (hostile.slow_but_steady, {"timeout": 0.4, "stall_timeout": 0.3}),
            (hostile.silence_in_mid_stream, {"timeout": 30, "stall_timeout": 0.4}),
            (hostile.only_keep_alives, {"timeout": 30, "stall_timeout": 0.4}),
        ],
        ids=lambda b: getattr(b, "__name__", ""),
    )
    def test_on_a_server_that_stops_sending(self, behaviour, limits):
        """The limits that are not reached are longer than `ask` waits."""
        outcome = meet(behaviour, limit=50, **limits)
        assert isinstance(outcome, Unavailable)
        assert outcome.tokens is None

    def test_and_a_server_may_think_before_its_first_word(self):
        async def behave(request, reply):
            await reply.head()
            await reply.event(reply.chunk([{"index": 0, "delta": {"role": "assistant", "content": ""}}]))
            await asyncio.sleep(0.4)
            await reply.say(3)
            await reply.finish()
            await reply.usage(3)

        assert meet(behave, timeout=5, stall_timeout=0.2).tokens == 3

    def test_on_a_server_that_keeps_a_finished_stream_open(self):
        done = meet(hostile.silence_after_the_end)
        assert (done.text, done.tokens, done.usage_source) == ("w0 w1 w2 ", 10, "assumed")

    def test_on_a_closed_port(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        outcome = ask(f"http://127.0.0.1:{port}/v1")
        assert isinstance(outcome, Unavailable)
        assert outcome.tokens == 0
        assert str(outcome) == f"connection refused (127.0.0.1:{port})"

    def test_on_a_name_that_does_not_exist(self):
        outcome = ask("http://no-such-host.invalid/v1", timeout=4)
        assert isinstance(outcome, Unavailable)
        assert outcome.tokens == 0

    def test_when_it_is_cancelled(self):
        async def cancelled(url):
            backend = OpenAIBackend(url, "m", timeout=30, stall_timeout=30)
            task = asyncio.create_task(backend.complete(CHAT, 10_000))
            await asyncio.sleep(0.3)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            hung_up = await asyncio.to_thread(server.saw_hang_up, 2)
            await backend.close()
            return hung_up

        for behaviour in (hostile.never_ending, hostile.silence, hostile.silence_in_mid_stream):
            with Server(behaviour) as server:
                assert asyncio.run(cancelled(server.url))

    def test_with_many_at_once(self):
        async def crowd(url):
            backend = OpenAIBackend(url, "m", timeout=20)
            done = await asyncio.gather(*(backend.complete(CHAT, 5) for _ in range(50)))
            await backend.close()
            return done

        with Server(hostile.well_behaved) as server:
            done = asyncio.run(crowd(server.url))
        assert sum(completion.tokens for completion in done) == server.generated == 250
