"""An OpenAI-compatible server: requests, answers, usage and limits."""

import asyncio
import importlib
import json
import subprocess
import sys
import time

import pytest

from shadowprice.backends.openai import OpenAIBackend
from shadowprice.errors import InputError, LimitViolated, MissingExtra, Refused

from . import hostile
from .asking import CHAT, SHORT, TEXT, ask, meet
from .hostile import WORDS, Server, deltas, fails, says

pytestmark = pytest.mark.usefixtures("no_proxy")


async def names_the_field_only(request, reply):
    if "stream_options" in request.body:
        await reply.json(400, {"error": {"message": "Unknown parameter", "param": "stream_options"}})
    else:
        await hostile.well_behaved(request, reply)


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
        printed = "".join(WORDS[:10])
        assert chat == {
            "id": "x-1",
            "object": "chat.completion",
            "created": 17,
            "model": "served",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": printed},
                    "logprobs": None,
                    "finish_reason": "length",
                }
            ],
            "usage": {"prompt_tokens": 5, "completion_tokens": 10, "total_tokens": 15},
        }
        choices = [{"index": 0, "text": printed, "logprobs": None, "finish_reason": "length"}]
        assert text == {**chat, "object": "text_completion", "choices": choices}

    def test_of_a_server_that_does_not_stream(self):
        for body in (CHAT, TEXT):
            done = meet(hostile.does_not_stream, body)
            assert (done.text, done.tokens, done.finish, done.usage_source) == ("w0 w1 w2 ", 3, "stop", "server")

    @pytest.mark.parametrize("behaviour", [hostile.knows_no_stream_options, names_the_field_only])
    def test_of_a_server_that_does_not_know_stream_options(self, behaviour):
        async def twice(url):
            backend = OpenAIBackend(url, "m", **SHORT)
            done = [await backend.complete(CHAT, 10) for _ in range(2)]
            await backend.close()
            return done

        with Server(behaviour) as server:
            first, second = asyncio.run(twice(server.url))
        assert first.text == second.text == "".join(WORDS[:10])
        assert first.usage_source == "assumed"
        assert ["stream_options" in request.body for request in server.requests] == [True, False, False]

    def test_is_refused_for_good_if_stream_options_are_not_the_reason(self):
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

    def test_is_sent_if_it_asks_for_one_answer_explicitly(self):
        for body in ({**CHAT, "n": 1}, {**CHAT, "n": None}, {"prompt": ["one"]}, {"prompt": [1, 2, 3]}):
            assert self.sent(body).limit == 10

    def test_without_a_question_is_refused(self):
        assert isinstance(ask("http://127.0.0.1:1", {"input": "a response's"}), Refused)


class TestUsage:
    @pytest.mark.parametrize("usage", [(), ({"prompt_tokens": 5},), ({},)], ids=str)
    @pytest.mark.parametrize("finish", ["stop", "length"])
    def test_that_is_missing_is_the_whole_limit(self, usage, finish):
        done = meet(says(3, *usage, finish=finish))
        assert (done.text, done.finish) == ("w0 w1 w2 ", finish)
        assert (done.tokens, done.usage_source, done.flags) == (10, "assumed", ())
        assert done.body["usage"]["completion_tokens"] == 10

    @pytest.mark.parametrize("count", [0, -3, 3.0, "3", True, 10**30, [], 2])
    def test_that_is_impossible_is_the_whole_limit(self, count):
        done = meet(says(3, {"prompt_tokens": 5, "completion_tokens": count}))
        assert (done.tokens, done.usage_source, done.flags) == (10, "assumed", ("usage_wrong",))
        assert done.body["usage"]["completion_tokens"] == 10

    @pytest.mark.parametrize("usage", [17, "many", [3]])
    def test_of_another_type_is_the_whole_limit(self, usage):
        done = meet(says(3, usage))
        assert (done.tokens, done.flags) == (10, ("usage_wrong",))

    def test_of_zero_is_accepted_for_an_empty_answer(self):
        done = meet(says(0, {"completion_tokens": 0}))
        assert (done.text, done.tokens, done.flags) == ("", 0, ())

    def test_of_zero_is_wrong_for_an_empty_answer_that_was_cut(self):
        done = meet(says(0, {"completion_tokens": 0}, finish="length"))
        assert (done.tokens, done.flags) == (10, ("usage_wrong",))

    def test_above_the_limit_is_believed_and_reported(self):
        done = meet(says(3, {"completion_tokens": 11}))
        assert (done.tokens, done.usage_source, done.flags) == (11, "server", ("limit_ignored",))

    def test_that_is_a_running_count_is_the_highest(self):
        done = meet(says(3, *({"completion_tokens": n} for n in (0, 5, 9, 4))))
        assert (done.tokens, done.flags) == (9, ())

    def test_is_compared_with_the_limit_that_was_sent(self):
        done = meet(says(3), {**CHAT, "max_tokens": 4})
        assert done.tokens == 4


class TestALimitThatIsIgnored:
    def test_is_enforced_by_closing_the_stream(self):
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

    def test_ends_all_requests_to_the_server(self):
        async def thrice(url):
            backend = OpenAIBackend(url, "m", **SHORT)
            done = await asyncio.gather(*(backend.complete(CHAT, 10) for _ in range(2)))  # both are running by then
            with pytest.raises(LimitViolated, match=rf"{url}/? ignored a limit of 10 tokens: 11") as caught:
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

    def test_counts_reasoning(self):
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
        assert done.tokens == 2_500  # of 4 characters each
        assert done.text == ""

    def test_counts_answers_that_were_not_requested(self):
        async def behave(request, reply):
            await reply.head()
            for _ in range(6):
                await reply.event(reply.chunk([{**reply.choice("a"), "index": i} for i in (0, 1)]))
                reply.server.generated += 2
            await reply.finish()

        done = meet(behave, limit=12)
        assert (done.text, done.tokens) == ("aaaaaa", 12)
        assert meet(behave, limit=11).flags == ("limit_ignored",)


class TestBugsOfTheCaller:
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

    def test_a_missing_package_is_named(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "aiohttp", None)
        for name in ("openai", "_http", "_failures", "_connections", "_tokenizer"):
            monkeypatch.delitem(sys.modules, f"shadowprice.backends.{name}")
        with pytest.raises(MissingExtra, match=r"pip install 'shadowprice\[openai\]'"):
            importlib.import_module("shadowprice.backends.openai")

    def test_the_protocol_loads_no_http_client(self):
        code = "import sys, shadowprice.backends.base; sys.exit('aiohttp' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
