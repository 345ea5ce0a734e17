"""Recorded generations, served again."""

import asyncio

import pytest

from shadowprice.backends.base import joined
from shadowprice.backends.recorded import ReplayBackend
from shadowprice.errors import InputError, Refused
from shadowprice.types import Trace

WORDS = ["One", " and", " one", " is", " two", "."]
ANSWER = "".join(WORDS)


def trace(prompt="1 + 1?", tokens=6, response=ANSWER, **fields):
    return Trace(id="t", prompt=prompt, tokens=tokens, response=response, model="m", **fields)


def exact(**fields):
    return trace(extra={"token_chars": [len(word) for word in WORDS]}, **fields)


def chat(*contents):
    return {"messages": [{"role": "user", "content": content} for content in contents]}


def ask(backend, body, limit=100):
    return asyncio.run(backend.complete(body, limit))


class TestParts:
    @pytest.mark.parametrize("limit", range(1, 7))
    def test_add_up_to_the_answer(self, limit):
        async def all_of_them():
            backend, found, sizes = ReplayBackend([exact(), exact(sample=1)]), None, []
            await backend.complete(chat("1 + 1?"), 100)  # the other sample is begun, and gone on with
            while found is None or found.finish == "length":
                part = await backend.extend(chat("1 + 1?"), found, limit)
                sizes.append(part.tokens)
                found = joined(found, part)
            return found, sizes

        done, sizes = asyncio.run(all_of_them())
        assert (done.text, done.tokens, done.finish) == (ANSWER, 6, "stop")
        assert done.body["choices"][0]["message"]["content"] == ANSWER
        assert done.body["id"].endswith("-1")
        assert done.body["usage"]["completion_tokens"] == sum(sizes) == 6
        assert all(size == limit for size in sizes[:-1])

    def test_a_trace_that_was_cut_has_no_more(self):
        async def beyond():
            backend = ReplayBackend([exact(truncated=True)])
            first = await backend.extend(chat("1 + 1?"), None, 6)
            return first, await backend.extend(chat("1 + 1?"), first, 5)

        first, more = asyncio.run(beyond())
        assert (first.tokens, first.finish, first.flags) == (6, "length", ())
        assert (more.text, more.tokens, more.finish, more.flags) == ("", 0, "length", ("trace_truncated",))


class TestAnAnswer:
    def test_is_whole_where_the_limit_allows_it(self):
        for limit in (6, 7, 1000):
            done = ask(ReplayBackend([trace()]), chat("1 + 1?"), limit)
            assert (done.text, done.tokens, done.finish) == (ANSWER, 6, "stop")
            assert (done.usage_source, done.flags) == ("server", ())

    @pytest.mark.parametrize("limit", range(1, 6))
    def test_is_cut_where_the_model_would_have_been(self, limit):
        done = ask(ReplayBackend([exact()]), chat("1 + 1?"), limit)
        assert (done.text, done.tokens, done.finish) == ("".join(WORDS[:limit]), limit, "length")

    @pytest.mark.parametrize("sizes", [None, "33333", [3, 4], [3, "4", 4, 3]], ids=str)
    def test_is_cut_by_its_share_where_nobody_counted_characters(self, sizes):
        backend = ReplayBackend([trace(response="x" * 60, extra={"token_chars": sizes})])
        done = ask(backend, chat("1 + 1?"), 3)
        assert (done.text, done.tokens, done.finish) == ("x" * 30, 3, "length")

    def test_without_a_text_still_has_its_length(self):
        backend = ReplayBackend([trace(response=None)])
        assert [(d.text, d.tokens) for d in (ask(backend, chat("1 + 1?"), n) for n in (4, 9))] == [("", 4), ("", 6)]

    def test_that_was_cut_when_recorded_ends_there(self):
        backend = ReplayBackend([trace(truncated=True)])
        done = ask(backend, chat("1 + 1?"), 6)
        assert (done.tokens, done.finish, done.flags) == (6, "length", ())
        done = ask(backend, chat("1 + 1?"), 7)
        assert (done.tokens, done.finish, done.flags) == (6, "length", ("trace_truncated",))

    def test_of_several_comes_in_turn(self):
        samples = [trace(response=text, sample=number) for number, text in [(2, "c"), (0, "a"), (1, "b")]]
        backend = ReplayBackend([*samples, trace(prompt="other", response="z")])
        assert [ask(backend, chat("1 + 1?")).text for _ in range(4)] == ["a", "b", "c", "a"]
        assert ask(backend, chat("other")).text == "z"


class TestThePrompt:
    @pytest.mark.parametrize(
        "body",
        [
            {"prompt": "1 + 1?"},
            {"prompt": ["1 + 1?"]},
            chat("1 + 1?"),
            chat("something else", "1 + 1?"),
            chat([{"type": "text", "text": "1 + 1?"}]),
            {"messages": [{"role": "system", "content": "be brief"}, *chat("1 + 1?")["messages"]]},
            {"messages": [*chat("1 + 1?")["messages"], {"role": "assistant", "content": "Well,"}]},
        ],
        ids=str,
    )
    def test_is_the_text_of_the_prompt_or_of_the_last_user_message(self, body):
        assert ask(ReplayBackend([trace()]), body).tokens == 6

    @pytest.mark.parametrize(
        "body",
        [{"prompt": "2 + 2?"}, {"prompt": [1, 2]}, {"messages": [{"role": "system", "content": "1 + 1?"}]}, chat(None)],
        ids=str,
    )
    def test_that_has_no_trace_is_refused(self, body):
        with pytest.raises(Refused) as caught:
            ask(ReplayBackend([trace()]), body)
        assert (caught.value.code, caught.value.tokens) == ("no_trace", 0)


def test_the_model_is_the_traces():
    assert ReplayBackend([trace(), trace(prompt="other")]).model == "m"
    assert ReplayBackend([]).model == ""


def test_traces_of_two_models_are_not_one_backend():
    with pytest.raises(InputError, match="2 models: a, b"):
        ReplayBackend([Trace("1", "p", 3, model="a"), Trace("2", "p", 4, model="b")])
