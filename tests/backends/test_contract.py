"""What every backend guarantees.

To add one, write a fixture that gives a ready backend, a user message and a plain prompt, both of which
it answers in more than 8 tokens but fewer than 400 and the same each time, and add its name to BACKENDS.
"""

import asyncio
import sys

import pytest

from shadowprice.backends.base import LANDING, join, prefix
from shadowprice.backends.llamacpp import LlamaCppServer
from shadowprice.backends.openai import OpenAIBackend
from shadowprice.backends.recorded import RecordedBackend
from shadowprice.backends.vllm_offline import VllmOfflineBackend
from shadowprice.errors import Refused
from shadowprice.types import Trace

from . import fake_vllm
from .asking import client_of
from .hostile import WORDS, Server, continues


@pytest.fixture
def openai(no_proxy):
    with Server(continues()) as server:
        yield OpenAIBackend(server.url, "m", timeout=10), "hello", "hello"


@pytest.fixture
def recorded():
    extra = {"token_chars": [len(word) for word in WORDS], "landed": {"0": [False, 2, "7"], "4": [True, 3, "42"]}}
    return RecordedBackend([Trace("t", "hello", len(WORDS), response="".join(WORDS), extra=extra)]), "hello", "hello"


@pytest.fixture(scope="module")
def running(gguf):
    with LlamaCppServer(gguf, slots=1) as server:
        yield server


@pytest.fixture
def llamacpp(running, monkeypatch):
    """A plain prompt must be in the model's own form: others it continues forever."""
    question = "What is the capital of the United Kingdom?"
    plain = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    return client_of(running, monkeypatch), question, plain


@pytest.fixture
def vllm(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", fake_vllm)
    return VllmOfflineBackend(fake_vllm.LLM()), "hello", "hello "


BACKENDS = ["openai", "recorded", "llamacpp", "vllm"]


@pytest.fixture(params=BACKENDS)
def served(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(params=["chat", "text"])
def body(request, served):
    _, message, prompt = served
    question = {"messages": [{"role": "user", "content": message}]} if request.param == "chat" else {"prompt": prompt}
    return {**question, "temperature": 0}


@pytest.fixture
def using(served, body):
    """Runs an async function of the backend and a body, and closes the backend."""
    backend = served[0]

    def use(function, **fields):
        async def closing():
            try:
                return await function(backend, {**body, **fields})
            finally:
                await backend.close()

        return asyncio.run(closing())

    return use


@pytest.fixture
def ask(using):
    """Answers with several limits, one after another."""

    def complete(*limits, **fields):
        async def all_of_them(backend, body):
            return [await backend.complete(body, limit) for limit in limits]

        return using(all_of_them, **fields)

    return complete


def test_it_has_a_model(served):
    assert isinstance(served[0].model, str)
    asyncio.run(served[0].close())


class TestLimits:
    def test_an_answer_is_never_longer_than_its_limit(self, ask):
        for limit, done in zip((1, 2, 8), ask(1, 2, 8), strict=True):
            assert 1 <= done.tokens <= limit
            assert done.finish == "length"
            assert done.flags == ()

    def test_an_answer_that_ends_costs_what_it_used(self, ask):
        (done,) = ask(400)
        assert 8 < done.tokens < 400
        assert done.finish == "stop"
        assert done.usage_source == "server"
        assert done.text

    def test_a_cut_answer_is_a_prefix_of_the_whole_one(self, ask):
        part, whole = ask(8, 400)
        assert part.text
        assert part.text != whole.text
        assert whole.text.startswith(part.text)

    @pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
    def test_the_callers_smaller_limit_holds(self, ask, field):
        (done,) = ask(400, **{field: 3})
        assert done.tokens <= 3
        assert done.finish == "length"

    def test_the_callers_larger_limit_does_not(self, ask):
        (done,) = ask(3, max_tokens=400, max_completion_tokens=400)
        assert done.tokens <= 3
        assert done.finish == "length"

    def test_several_answers_are_refused(self, ask):
        with pytest.raises(Refused) as caught:
            ask(10, n=2)
        assert caught.value.tokens == 0

    @pytest.mark.parametrize("limit", [0, -5])
    def test_a_limit_below_1_is_a_bug_of_the_caller(self, ask, limit):
        with pytest.raises(ValueError, match="without a grant"):
            ask(limit)


def has_openai_form(done, body):
    (choice,) = done.body["choices"]
    if "messages" in body:
        assert done.body["object"] == "chat.completion"
        assert choice["message"]["role"] == "assistant"
        assert choice["message"]["content"] == done.text
    else:
        assert done.body["object"] == "text_completion"
        assert choice["text"] == done.text
    assert choice["index"] == 0
    assert choice["finish_reason"] == done.finish
    usage = done.body["usage"]
    assert usage["completion_tokens"] == done.tokens
    assert usage["total_tokens"] == usage["prompt_tokens"] + done.tokens
    assert isinstance(done.body["id"], str)
    assert isinstance(done.body["created"], int)
    assert isinstance(done.body["model"], str)


def test_the_body_is_an_openai_response(ask, body):
    for done in ask(4, 400):
        has_openai_form(done, body)


def test_the_tokens_of_the_prompt_are_counted_once(ask, served):
    for done in ask(4, 4):
        assert min(done.input_tokens, done.cached_tokens) >= 0
        assert done.usage.input + done.usage.cached == done.body["usage"]["prompt_tokens"]
        assert (done.usage.input + done.usage.cached > 0) == (not isinstance(served[0], RecordedBackend))


class TestContinuing:
    @pytest.mark.parametrize("limit", [3, 8])
    def test_parts_add_up_to_the_whole_answer(self, using, body, limit):
        async def in_parts(backend, body):
            whole, found, parts = await backend.complete(body, 400), None, []
            while found is None or found.finish == "length":
                parts.append(await backend.complete(body, limit, continue_from=found))
                found = join(found, parts[-1])
            assert backend.can_continue(body) is True
            return whole, found, parts

        whole, found, parts = using(in_parts)
        assert (found.text, found.finish, found.flags) == (whole.text, "stop", ())
        assert all(1 <= part.tokens <= limit for part in parts)
        assert found.tokens == sum(part.tokens for part in parts) >= whole.tokens
        for part in (*parts, found):
            has_openai_form(part, body)

    def test_a_prefix_can_be_continued(self, using):
        async def from_prefix(backend, body):
            whole = await backend.complete(body, 400)
            await backend.complete(body, 2, continue_from=await backend.complete(body, 8))  # now it is known to work
            return whole, await backend.complete(body, 400, continue_from=prefix(whole, 8))

        whole, rest = using(from_prefix)
        assert rest.finish == "stop"
        assert 0 < rest.tokens < whole.tokens
        assert whole.text.endswith(rest.text[-8:])

    def test_nothing_to_continue_from_is_the_start(self, using):
        async def from_nothing(backend, body):
            whole = await backend.complete(body, 400)
            return whole, await backend.complete(body, 400, continue_from=prefix(whole, 0))

        whole, again = using(from_nothing)
        assert (again.text, again.tokens) == (whole.text, whole.tokens)

    def test_what_cannot_be_continued_is_refused(self, using):
        async def with_stop(backend, body):
            if backend.can_continue(body):
                pytest.skip("every answer can be continued")
            first = await backend.complete(body, 3)
            assert first.tokens == 3
            for more in ({"continue_from": first}, {"suffix": LANDING}):
                with pytest.raises(Refused) as caught:
                    await backend.complete(body, 3, **more)
                assert (caught.value.code, caught.value.tokens) == ("not_continued", 0)

        using(with_stop, stop=["never"])


class TestASuffix:
    @pytest.mark.parametrize("age", [0, 4, 6])
    def test_asks_for_the_final_answer(self, using, body, age):
        async def land(backend, body):
            first = await backend.complete(body, 8)
            await backend.complete(body, 2, continue_from=first)
            return first, await backend.complete(body, 30, continue_from=prefix(first, age), suffix=LANDING)

        first, landed = using(land)
        assert 1 <= landed.tokens <= 30
        assert landed.text
        assert LANDING not in landed.text
        assert landed.flags == ()
        if landed.finish == "stop":
            assert landed.text.endswith("}")
        has_openai_form(landed, body)
        whole = join(prefix(first, age), landed, LANDING)
        assert whole.text == prefix(first, age).text + LANDING + landed.text
        assert whole.tokens == age + landed.tokens

    def test_may_follow_the_prompt(self, using, body):
        async def land(backend, body):
            await backend.complete(body, 2, continue_from=await backend.complete(body, 8))
            return await backend.complete(body, 30, suffix=LANDING)

        landed = using(land)
        assert 1 <= landed.tokens <= 30
        assert landed.flags == ()
        has_openai_form(landed, body)

    def test_keeps_to_the_limit(self, using):
        async def land(backend, body):
            await backend.complete(body, 2, continue_from=await backend.complete(body, 8))
            return await backend.complete(body, 1, suffix=LANDING)

        landed = using(land)
        assert (landed.tokens, landed.finish) == (1, "length")
