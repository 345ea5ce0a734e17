import json

import pytest

from shadowprice.errors import InputError
from shadowprice.gateway.bodies import limited, parse_ask

CHAT = {"model": "m", "messages": [{"role": "user", "content": "Why?"}]}


def ask(endpoint="/chat/completions", **fields):
    return parse_ask(json.dumps({**CHAT, **fields}).encode(), endpoint)


def test_a_limit_is_written_where_there_is_none():
    assert limited(ask(), 50) == {**CHAT, "max_completion_tokens": 50}
    assert limited(ask("/responses", input="Why?"), 50)["max_output_tokens"] == 50


def test_every_limit_is_lowered_and_nothing_else_changes():
    body = limited(ask(max_tokens=100, n_predict=900, odd={"x": [1.5, None]}), 50)
    assert body == {**CHAT, "max_tokens": 50, "n_predict": 50, "odd": {"x": [1.5, None]}}


@pytest.mark.parametrize(
    ("endpoint", "given", "kept"),
    [
        ("/chat/completions", "max_output_tokens", "max_completion_tokens"),
        ("/chat/completions", "n_predict", "max_completion_tokens"),
        ("/completions", "max_completion_tokens", "max_tokens"),
        ("/responses", "max_tokens", "max_output_tokens"),
    ],
)
def test_a_limit_that_a_server_would_ignore_is_not_the_only_one(endpoint, given, kept):
    asked = parse_ask(json.dumps({"prompt": "Why?", given: 900}).encode(), endpoint)
    assert limited(asked, 50) == {"prompt": "Why?", given: 50, kept: 50}


@pytest.mark.parametrize("given", [{}, {"max_tokens": 100}, {"max_completion_tokens": 100}])
def test_a_server_that_knows_one_field_gets_the_limit_of_a_chat_in_it(given):
    assert limited(ask(**given), 50, "max_tokens") == {**CHAT, "max_tokens": 50}
    assert limited(ask("/completions", prompt="Why?"), 50, "max_completion_tokens")["max_tokens"] == 50


def test_a_stream_is_asked_for_its_usage():
    assert limited(ask(stream=True), 5)["stream_options"] == {"include_usage": True}
    assert ask(stream=True, stream_options={"include_usage": True}).usage


def test_all_answers_count():
    assert ask(n=3).answers == 3
    assert ask("/completions", prompt=["a", "b"], best_of=4).answers == 8
    assert ask("/completions", prompt=[1, 2, 3]).answers == 1
    assert ask(n=2, n_cmpl=3).answers == 3  # llama.cpp's own name for n overrides it there


@pytest.mark.parametrize(("endpoint", "field"), [("/completions", "prompt"), ("/embeddings", "input")])
def test_each_prompt_counts(endpoint, field):
    for question, prompts in (("a", 1), (["a", "b"], 2), ([1, 2, 3], 1), ([[1, 2], [3]], 2), ([], 1)):
        assert ask(endpoint, **{field: question}).prompts == prompts


def test_a_whole_number_may_be_written_with_a_point():
    assert (ask(n=3.0).answers, ask(max_tokens=5.0).own) == (3, 5)


def test_the_smallest_of_its_own_limits_counts():
    assert ask(max_tokens=100, max_completion_tokens=30).own == 30


@pytest.mark.parametrize("fields", [{"max_tokens": 0}, {"max_tokens": "9"}, {"n": True}, {"n": 1.5}, {"echo": True}])
def test_what_cannot_be_bounded_is_refused(fields):
    with pytest.raises(InputError):
        ask(**fields)


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"a": "\xc3"}'])
def test_a_body_that_is_no_object_is_refused(content):
    with pytest.raises(InputError):
        parse_ask(content, "/chat/completions")
