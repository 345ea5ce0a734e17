"""An OpenAI-compatible server, well-behaved or not: never under-charged, and nothing hangs."""

import asyncio
import importlib
import json
import socket
import subprocess
import sys
import time

import pytest

from shadowprice.backends.openai import OpenAIBackend
from shadowprice.errors import BackendError, Distrusted, InputError, MissingExtra, Refused, Unavailable

from . import hostile
from .hostile import WORDS, Server, deltas, fails, in_seconds, says, streams

CHAT = {"messages": [{"role": "user", "content": "hello"}]}
TEXT = {"prompt": "hello"}
SHORT = {"timeout": 0.6, "stall_timeout": 0.3}


@pytest.fixture(autouse=True)
def _no_detours(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def ask(url, body=CHAT, limit=10, model="m", **options):
    """The completion, or the error raised in its place; 5 seconds are a hang."""

    async def complete():
        backend = OpenAIBackend(url, model, **{**SHORT, **options})
        try:
            return await asyncio.wait_for(backend.complete(body, limit), 5)
        except BackendError as error:
            return error
        finally:
            await backend.close()

    return asyncio.run(complete())


def meet(behaviour, body=CHAT, limit=10, **options):
    """Ask a server of this behaviour; whatever it does, it must not have generated more than is charged."""
    with Server(behaviour) as server:
        outcome = ask(server.url, body, limit, **options)
    assert charged(outcome, limit) >= server.generated
    return outcome


def charged(outcome, limit):
    """What the account is charged: an unknown cost is the whole limit."""
    return limit if outcome.tokens is None else outcome.tokens


class TestAnAnswer:
    @pytest.mark.parametrize("body", [CHAT, TEXT], ids=["chat", "text"])
    def test_that_ends(self, body):
        done = meet(hostile.well_behaved, body, limit=100)
        assert (done.text, done.tokens, done.finish) == ("".join(WORDS), 20, "stop")
        assert (done.usage_source, done.flags) == ("server", ())

    @pytest.mark.parametrize("body", [CHAT, TEXT], ids=["chat", "text"])
    def test_that_is_cut_at_the_limit(self, body):
        done = meet(hostile.well_behaved, body, limit=7)
        assert (done.text, done.tokens, done.finish, done.flags) == ("".join(WORDS[:7]), 7, "length", ())

    def test_in_openai_form(self):
        chat, text = meet(hostile.well_behaved, CHAT).body, meet(hostile.well_behaved, TEXT).body
        said = "".join(WORDS[:10])
        assert chat == {
            "id": "x-1",
            "object": "chat.completion",
            "created": 17,
            "model": "served",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": said},
                    "logprobs": None,
                    "finish_reason": "length",
                }
            ],
            "usage": {"prompt_tokens": 5, "completion_tokens": 10, "total_tokens": 15},
        }
        choices = [{"index": 0, "text": said, "logprobs": None, "finish_reason": "length"}]
        assert text == {**chat, "object": "text_completion", "choices": choices}

    def test_of_a_server_that_does_not_stream(self):
        for body in (CHAT, TEXT):
            done = meet(hostile.does_not_stream, body)
            assert (done.text, done.tokens, done.finish, done.usage_source) == ("w0 w1 w2 ", 3, "stop", "server")

    def test_of_a_server_that_does_not_know_stream_options(self):
        async def twice(url):
            backend = OpenAIBackend(url, "m", **SHORT)
            done = [await backend.complete(CHAT, 10) for _ in range(2)]
            await backend.close()
            return done

        with Server(hostile.knows_no_stream_options) as server:
            first, second = asyncio.run(twice(server.url))
        assert first.text == second.text == "".join(WORDS[:10])
        assert first.usage_source == "assumed"
        assert ["stream_options" in request.body for request in server.requests] == [True, False, False]

    def test_is_not_asked_for_forever(self):
        async def twice(url):
            backend = OpenAIBackend(url, "m", **SHORT)
            for _ in range(2):
                with pytest.raises(Refused, match="stream_options"):
                    await backend.complete(CHAT, 10)
            await backend.close()

        with Server(fails(400, "stream_options, or something")) as server:
            asyncio.run(twice(server.url))
        assert ["stream_options" in request.body for request in server.requests] == [True, False, False]

    def test_with_reasoning(self):
        think = [{"reasoning_content": "hm "}] * 4
        done = meet(deltas({"role": "assistant", "content": ""}, *think, {"content": "42"}))
        assert done.text == "42"
        assert done.body["choices"][0]["message"]["reasoning_content"] == "hm hm hm hm "

    def test_whose_reasoning_is_only_in_the_total(self):
        done = meet(says(3, {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 14}))
        assert (done.tokens, done.flags) == (9, ())

    def test_with_tool_calls(self):
        def call(index, function, **fields):
            return {"tool_calls": [{"index": index, "function": function, **fields}]}

        done = meet(
            deltas(
                call(0, {"name": "add", "arguments": ""}, id="c0", type="function"),
                call(0, {"arguments": '{"a": '}),
                call(0, {"arguments": "1}"}),
                call(1, {"name": "stop", "arguments": "{}"}, id="c1"),
                finish="tool_calls",
            )
        )
        choice = done.body["choices"][0]
        assert (done.finish, choice["finish_reason"]) == ("stop", "tool_calls")
        assert choice["message"]["tool_calls"] == [
            {"id": "c0", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}},
            {"id": "c1", "type": "function", "function": {"name": "stop", "arguments": "{}"}},
        ]

    def test_with_logprobs(self):
        async def behave(request, reply):
            await reply.head()
            for word in WORDS[:2]:
                choice = {**reply.choice(word), "logprobs": {"content": [{"token": word}], "refusal": None}}
                await reply.event(reply.chunk([choice]))
            await reply.finish()
            await reply.usage(2)

        logprobs = meet(behave).body["choices"][0]["logprobs"]
        assert logprobs == {"content": [{"token": "w0 "}, {"token": "w1 "}]}


class TestTheRequest:
    def sent(self, body, limit=10, **options):
        with Server(hostile.well_behaved) as server:
            ask(server.url, body, limit, **options)
        (request,) = server.requests
        return request

    def test_carries_one_limit(self):
        asked = {**CHAT, "max_tokens": 500, "max_completion_tokens": 300, "n_predict": 900}
        body = self.sent(asked).body
        assert body["max_completion_tokens"] == 10
        assert not {"max_tokens", "n_predict"} & body.keys()
        body = self.sent(asked, limit_field="max_tokens").body
        assert body["max_tokens"] == 10
        assert not {"max_completion_tokens", "n_predict"} & body.keys()
        body = self.sent({**TEXT, "max_completion_tokens": 300}).body
        assert body["max_tokens"] == 10
        assert "max_completion_tokens" not in body

    @pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens", "n_predict"])
    def test_never_raises_the_callers_limit(self, field):
        assert self.sent({**CHAT, field: 4}).body["max_completion_tokens"] == 4

    def test_keeps_every_other_field(self):
        odd = {"temperature": 0, "seed": 7, "guided_regex": "a+", "metadata": {"a": [1, None]}}
        body = self.sent({**CHAT, **odd, "stream": False, "stream_options": {"x": 1}}).body
        assert body == {
            **CHAT,
            **odd,
            "model": "m",
            "max_completion_tokens": 10,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    def test_names_the_backends_model_or_the_callers(self):
        assert self.sent({**CHAT, "model": "theirs"}).body["model"] == "m"
        assert self.sent({**CHAT, "model": "theirs"}, model="").body["model"] == "theirs"

    def test_goes_to_the_endpoint_of_its_kind(self):
        assert self.sent(CHAT).path == "/v1/chat/completions"
        assert self.sent(TEXT).path == "/v1/completions"

    def test_has_the_key_of_the_argument_or_the_environment(self, monkeypatch):
        assert self.sent(CHAT).headers["authorization"] == "Bearer none"
        monkeypatch.setenv("OPENAI_API_KEY", "from-env")
        assert self.sent(CHAT).headers["authorization"] == "Bearer from-env"
        assert self.sent(CHAT, api_key="given").headers["authorization"] == "Bearer given"

    @pytest.mark.parametrize(
        "wrong",
        [
            {"n": 2},
            {"best_of": 3},
            {"prompt": ["a", "b"]},
            {"echo": True},
            {"max_tokens": 0},
            {"max_tokens": "9"},
            {"max_completion_tokens": True},
        ],
        ids=str,
    )
    def test_is_not_sent_if_a_grant_cannot_limit_it(self, wrong):
        with Server(hostile.well_behaved) as server:
            outcome = ask(server.url, {**TEXT, **wrong})
        assert isinstance(outcome, Refused)
        assert outcome.tokens == 0
        assert next(iter(wrong)) in str(outcome)
        assert server.requests == []

    def test_is_sent_if_it_says_one_answer_in_so_many_words(self):
        for body in ({**CHAT, "n": 1}, {**CHAT, "n": None}, {"prompt": ["one"]}, {"prompt": [1, 2, 3]}):
            assert self.sent(body).limit == 10

    def test_needs_a_question(self):
        assert isinstance(ask("http://127.0.0.1:1", {"input": "a response's"}), Refused)


class TestAProxy:
    """Of the environment, as curl and others take it."""

    @pytest.fixture(params=["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
    def proxy(self, request, monkeypatch):
        for name in ("NO_PROXY", "no_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.delenv(name, raising=False)
        with Server(hostile.well_behaved) as server:
            monkeypatch.setenv(request.param, server.url.removesuffix("/v1"))
            yield server

    def test_is_not_asked_for_this_machine(self, proxy):
        with Server(hostile.well_behaved) as server:
            for host in ("127.0.0.1", "localhost", "0.0.0.0"):
                assert ask(server.url.replace("127.0.0.1", host)).tokens == 10
            assert len(server.requests) == 3
            assert ask(server.url.replace("127.0.0.1", "[::1]")).tokens == 0  # where nobody listens
        assert proxy.requests == []

    def test_is_asked_for_others(self, proxy):
        assert ask("http://model.invalid/v1").tokens == 10
        assert [request.path for request in proxy.requests] == ["http://model.invalid/v1/chat/completions"]


class TestUsage:
    @pytest.mark.parametrize("usage", [(), ({"prompt_tokens": 5},), ({},)], ids=str)
    @pytest.mark.parametrize("finish", ["stop", "length"])
    def test_missing_is_the_whole_limit(self, usage, finish):
        done = meet(says(3, *usage, finish=finish))
        assert (done.text, done.finish) == ("w0 w1 w2 ", finish)
        assert (done.tokens, done.usage_source, done.flags) == (10, "assumed", ())
        assert done.body["usage"]["completion_tokens"] == 10

    @pytest.mark.parametrize("count", [0, -3, 3.0, "3", True, 10**30, [], 2])
    def test_that_cannot_be_is_the_whole_limit(self, count):
        done = meet(says(3, {"prompt_tokens": 5, "completion_tokens": count}))
        assert (done.tokens, done.usage_source, done.flags) == (10, "assumed", ("usage_wrong",))
        assert done.body["usage"]["completion_tokens"] == 10

    @pytest.mark.parametrize("usage", [17, "many", [3]])
    def test_of_another_type_is_the_whole_limit(self, usage):
        done = meet(says(3, usage))
        assert (done.tokens, done.flags) == (10, ("usage_wrong",))

    def test_of_zero_is_right_for_nothing(self):
        done = meet(says(0, {"completion_tokens": 0}))
        assert (done.text, done.tokens, done.flags) == ("", 0, ())

    def test_of_zero_is_wrong_for_nothing_that_was_cut(self):
        done = meet(says(0, {"completion_tokens": 0}, finish="length"))
        assert (done.tokens, done.flags) == (10, ("usage_wrong",))

    def test_above_the_limit_is_believed_and_reported(self):
        done = meet(says(3, {"completion_tokens": 11}))
        assert (done.tokens, done.usage_source, done.flags) == (11, "server", ("limit_ignored",))

    def test_that_counts_along_is_the_highest_count(self):
        done = meet(says(3, *({"completion_tokens": n} for n in (0, 5, 9, 4))))
        assert (done.tokens, done.flags) == (9, ())

    def test_is_measured_against_the_callers_limit_where_that_was_sent(self):
        done = meet(says(3), {**CHAT, "max_tokens": 4})
        assert done.tokens == 4


class TestALimitThatIsIgnored:
    def test_is_enforced_by_hanging_up(self):
        with Server(hostile.never_ending) as server:
            done = ask(server.url, timeout=30, stall_timeout=30)
            assert server.saw_hang_up(within=2)
            time.sleep(0.05)
            written = server.generated
        assert (done.text, done.finish) == ("on and " * 10, "length")
        assert 11 <= done.tokens <= written < 100
        assert (done.usage_source, done.flags) == ("counted", ("limit_ignored",))
        assert done.body["choices"][0]["finish_reason"] == "length"
        assert done.body["usage"]["completion_tokens"] == done.tokens

    def test_is_the_last_thing_the_server_is_asked(self):
        async def thrice(url):
            backend = OpenAIBackend(url, "m", **SHORT)
            done = await asyncio.gather(*(backend.complete(CHAT, 10) for _ in range(2)))  # both under way by then
            with pytest.raises(Distrusted, match=rf"{url}/? ignored a limit of 10 tokens: 11") as caught:
                await backend.complete(CHAT, 10)
            await backend.close()
            return done, caught.value

        with Server(says(3, {"completion_tokens": 11})) as server:
            done, caught = asyncio.run(thrice(server.url))
        assert [each.flags for each in done] == [("limit_ignored",)] * 2
        assert (len(server.requests), caught.tokens) == (2, 0)

    def test_is_charged_for_all_that_arrived_by_then(self):
        async def behave(request, reply):
            await reply.head()
            reply.server.generated += 50
            await reply.send(f"data: {json.dumps(reply.chunk([reply.choice('a')]))}\n\n" * 50)
            await asyncio.sleep(60)

        done = meet(behave, timeout=30, stall_timeout=30)
        assert (done.text, done.tokens, done.flags) == ("a" * 10, 50, ("limit_ignored",))

    def test_counts_for_reasoning_as_well(self):
        done = meet(deltas(*[{"reasoning_content": "hm "}] * 11))
        assert (done.tokens, done.flags) == (11, ("limit_ignored",))
        assert done.body["choices"][0]["message"]["reasoning_content"] == "hm " * 10

    def test_in_large_pieces_shows_in_the_usage(self):
        done = meet(hostile.ten_tokens_a_piece)
        assert (done.tokens, done.flags) == (20, ("limit_ignored",))

    def test_in_one_enormous_piece_shows_in_its_length(self):
        with Server(hostile.a_book_in_one_piece) as server:
            done = ask(server.url)
        assert done.flags == ("limit_ignored",)
        assert done.tokens == 79  # of 128 characters: what it must have been at the least
        assert done.text == ""

    def test_by_answers_nobody_asked_for_is_noticed(self):
        async def behave(request, reply):
            await reply.head()
            for _ in range(6):
                await reply.event(reply.chunk([{**reply.choice("a"), "index": i} for i in (0, 1)]))
                reply.server.generated += 2
            await reply.finish()

        done = meet(behave, limit=12)
        assert (done.text, done.tokens) == ("aaaaaa", 12)
        assert meet(behave, limit=11).flags == ("limit_ignored",)


class TestAServerInTrouble:
    @pytest.mark.parametrize("status", [408, 409, 500, 502, 503, 529])
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
        ids=str,
    )
    def test_that_is_busy_names_its_delay(self, headers, delay):
        outcome = meet(fails(429, "slow down", **headers))
        assert isinstance(outcome, Unavailable)
        assert (outcome.tokens, outcome.delay) == (0, delay)

    def test_that_is_busy_names_its_delay_as_a_date(self):
        assert 50 < meet(fails(429, retry_after=in_seconds(60))).delay <= 60

    def test_names_its_delay_with_other_statuses_too(self):
        outcome = meet(fails(503, retry_after="2"))
        assert (outcome.tokens, outcome.delay) == (None, 2)

    def test_says_so_in_the_stream(self):
        outcome = meet(hostile.error_in_the_stream)
        assert isinstance(outcome, Unavailable)
        assert (str(outcome), outcome.tokens) == ("the server reported an error: out of memory", None)

    @pytest.mark.parametrize("reason", ["abort", "error"])
    def test_gives_up(self, reason):
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
    def test_is_read_in_many_forms(self, content):
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

    def test_of_an_account_that_is_empty_is_not_a_matter_of_waiting(self):
        async def behave(request, reply):
            await reply.json(429, {"error": {"message": "quota", "code": "insufficient_quota"}})

        assert isinstance(meet(behave), Refused)


class TestABrokenStream:
    @pytest.mark.parametrize(
        "events",
        [
            (),
            ("data: [DONE]\n\n",),
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
            ('data: {"choices": [{"delta": {}, "finish_reason": 5}]}\n\n',),
            ("data: " + "[" * 100_000 + "\n\n",),
        ],
        ids=lambda events: str(events)[:60],
    )
    def test_may_have_cost_anything(self, events):
        outcome = meet(streams(*events))
        assert isinstance(outcome, Unavailable)
        assert outcome.tokens is None
        assert "\n" not in str(outcome)

    def test_that_is_not_even_text(self):
        async def behave(request, reply):
            await reply.head()
            await reply.send(b"data: \xff\xfe\n\n")

        assert meet(behave).tokens is None

    def test_that_is_a_web_page(self):
        async def behave(request, reply):
            await reply.head(200, "text/html")
            await reply.send("<html>Sign in first</html>")

        assert isinstance(meet(behave), Unavailable)

    def test_that_is_json_but_no_answer(self):
        async def behave(request, reply):
            await reply.json(200, {"status": "ok"})

        async def cut(request, reply):
            await reply.head(200, "application/json")
            await reply.send('{"choices": [')

        for server in (behave, cut):
            outcome = meet(server)
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

    def test_after_the_last_word_breaks_nothing(self):
        async def behave(request, reply):
            await says(3, ending=False)(request, reply)
            await reply.send("data: {not json}\n\n")

        done = meet(behave)
        assert (done.text, done.tokens, done.usage_source) == ("w0 w1 w2 ", 10, "assumed")


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
    def test_on_a_server_that_does_not_go_on(self, behaviour, limits):
        start = time.monotonic()
        outcome = meet(behaviour, limit=50, **limits)
        assert 0.39 <= time.monotonic() - start < 2
        assert isinstance(outcome, Unavailable)
        assert outcome.tokens is None

    def test_but_a_server_may_think_before_its_first_word(self):
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
        assert "no connection" in str(outcome)

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


class TestMistakesOfTheProgram:
    @pytest.mark.parametrize("limit", [0, -1])
    def test_a_limit_below_1(self, limit):
        with pytest.raises(ValueError, match="without a grant"):
            ask("http://127.0.0.1:1", limit=limit)

    def test_an_address_without_a_scheme(self):
        with pytest.raises(InputError, match="http://"):
            OpenAIBackend("localhost:8000/v1", "m")

    def test_an_unknown_limit_field(self):
        with pytest.raises(InputError, match="max_completion_tokens or max_tokens"):
            OpenAIBackend("http://localhost:8000/v1", "m", limit_field="tokens")

    def test_the_client_is_not_installed(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "aiohttp", None)
        for name in ("openai", "_http"):
            monkeypatch.delitem(sys.modules, f"shadowprice.backends.{name}")
        with pytest.raises(MissingExtra, match=r"pip install 'shadowprice\[openai\]'"):
            importlib.import_module("shadowprice.backends.openai")

    def test_the_package_loads_no_client(self):
        code = "import sys, shadowprice.backends.base; sys.exit('aiohttp' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
