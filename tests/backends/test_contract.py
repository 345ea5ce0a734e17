"""What every backend keeps to.

To add one, write a fixture that gives a ready backend, a user's message and a plain prompt, both of which
it answers in more than 8 tokens but less than 400 and the same each time, and add its name to BACKENDS.
"""

import asyncio

import pytest

from shadowprice.backends import llamacpp as local_module
from shadowprice.backends.llamacpp import LocalBackend, LocalServer
from shadowprice.backends.openai import OpenAIBackend
from shadowprice.backends.recorded import ReplayBackend
from shadowprice.errors import Refused
from shadowprice.types import Trace

from .hostile import WORDS, Server, well_behaved


@pytest.fixture
def openai():
    with Server(well_behaved) as server:
        yield OpenAIBackend(server.url, "m", timeout=10), "hello", "hello"


@pytest.fixture
def replay():
    extra = {"token_chars": [len(word) for word in WORDS]}
    return ReplayBackend([Trace("t", "hello", len(WORDS), response="".join(WORDS), extra=extra)]), "hello", "hello"


@pytest.fixture(scope="module")
def running(gguf):
    with LocalServer(gguf, slots=1) as server:
        yield server


@pytest.fixture
def local(running, monkeypatch):
    """On a server that outlives it. A plain prompt must be in the model's own form: others it continues forever."""
    monkeypatch.setattr(local_module, "LocalServer", lambda path, **options: running)
    monkeypatch.setattr(running, "close", lambda: None)
    question = "What is the capital of the United Kingdom?"
    plain = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    return LocalBackend(running.path), question, plain


BACKENDS = ["openai", "replay", "local"]


@pytest.fixture(params=BACKENDS)
def served(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(params=["chat", "text"])
def ask(request, served):
    """Asks in one of the two forms, several limits after one another."""
    backend, message, prompt = served
    question = {"messages": [{"role": "user", "content": message}]} if request.param == "chat" else {"prompt": prompt}

    def complete(*limits, **fields):
        async def all_of_them():
            try:
                return [await backend.complete({**question, "temperature": 0, **fields}, limit) for limit in limits]
            finally:
                await backend.close()

        return asyncio.run(all_of_them())

    complete.form = request.param
    return complete


def test_it_has_a_model(served):
    assert isinstance(served[0].model, str)
    asyncio.run(served[0].close())


def test_an_answer_is_never_longer_than_its_limit(ask):
    for limit, done in zip((1, 2, 8), ask(1, 2, 8), strict=True):
        assert 1 <= done.tokens <= limit
        assert done.finish == "length"
        assert done.flags == ()


def test_an_answer_that_ends_costs_what_it_used(ask):
    (done,) = ask(400)
    assert 8 < done.tokens < 400
    assert done.finish == "stop"
    assert done.usage_source == "server"
    assert done.text


def test_a_cut_answer_is_the_beginning_of_the_whole_one(ask):
    part, whole = ask(8, 400)
    assert part.text
    assert part.text != whole.text
    assert whole.text.startswith(part.text)


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_the_callers_smaller_limit_holds(ask, field):
    (done,) = ask(400, **{field: 3})
    assert done.tokens <= 3
    assert done.finish == "length"


def test_the_callers_larger_limit_does_not(ask):
    (done,) = ask(3, max_tokens=400, max_completion_tokens=400)
    assert done.tokens <= 3
    assert done.finish == "length"


def test_the_body_is_an_openai_response(ask):
    for done in ask(4, 400):
        body = done.body
        (choice,) = body["choices"]
        if ask.form == "chat":
            assert body["object"] == "chat.completion"
            assert choice["message"]["role"] == "assistant"
            assert choice["message"]["content"] == done.text
        else:
            assert body["object"] == "text_completion"
            assert choice["text"] == done.text
        assert choice["index"] == 0
        assert choice["finish_reason"] == done.finish
        assert body["usage"]["completion_tokens"] == done.tokens
        assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + done.tokens
        assert isinstance(body["id"], str)
        assert isinstance(body["created"], int)
        assert isinstance(body["model"], str)


def test_several_answers_are_refused(ask):
    with pytest.raises(Refused) as caught:
        ask(10, n=2)
    assert caught.value.tokens == 0


@pytest.mark.parametrize("limit", [0, -5])
def test_a_limit_below_1_is_a_mistake_of_the_program(ask, limit):
    with pytest.raises(ValueError, match="without a grant"):
        ask(limit)
