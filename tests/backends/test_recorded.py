"""Recorded answers, served again."""

import asyncio

import pytest

from shadowprice.backends.base import LANDING, join, prefix
from shadowprice.backends.recorded import RecordedBackend
from shadowprice.errors import InputError, Refused
from shadowprice.types import Trace

WORDS = ["One", " and", " one", " is", " two", "."]
ANSWER = "".join(WORDS)


def trace(prompt="1 + 1?", tokens=6, response=ANSWER, **fields):
    return Trace(id="t", prompt=prompt, tokens=tokens, response=response, model="m", **fields)


def exact(extra=None, **fields):
    return trace(extra={"token_chars": [len(word) for word in WORDS], **(extra or {})}, **fields)


def chat(*contents):
    return {"messages": [{"role": "user", "content": content} for content in contents]}


def ask(backend, body, limit=100):
    return asyncio.run(backend.complete(body, limit))


class TestParts:
    @pytest.mark.parametrize("limit", range(1, 7))
    def test_add_up_to_the_answer(self, limit):
        async def all_of_them():
            backend, found, sizes = RecordedBackend([exact(), exact(sample=1)]), None, []
            await backend.complete(chat("1 + 1?"), 100)  # sample 1 is started, and continued
            while found is None or found.finish == "length":
                part = await backend.complete(chat("1 + 1?"), limit, continue_from=found)
                sizes.append(part.tokens)
                found = join(found, part)
            return found, sizes

        done, sizes = asyncio.run(all_of_them())
        assert (done.text, done.tokens, done.finish) == (ANSWER, 6, "stop")
        assert done.body["choices"][0]["message"]["content"] == ANSWER
        assert done.body["id"].endswith("-1")
        assert done.body["usage"]["completion_tokens"] == sum(sizes) == 6
        assert all(size == limit for size in sizes[:-1])

    def test_a_trace_that_was_cut_has_no_more(self):
        async def beyond():
            backend = RecordedBackend([exact(truncated=True)])
            first = await backend.complete(chat("1 + 1?"), 6)
            return first, await backend.complete(chat("1 + 1?"), 5, continue_from=first)

        first, more = asyncio.run(beyond())
        assert (first.tokens, first.finish, first.flags) == (6, "length", ())
        assert (more.text, more.tokens, more.finish, more.flags) == ("", 0, "length", ("trace_truncated",))


class TestAnAnswer:
    def test_is_complete_if_the_limit_allows_it(self):
        for limit in (6, 7, 1000):
            done = ask(RecordedBackend([trace()]), chat("1 + 1?"), limit)
            assert (done.text, done.tokens, done.finish) == (ANSWER, 6, "stop")
            assert (done.usage_source, done.flags) == ("server", ())

    @pytest.mark.parametrize("limit", range(1, 6))
    def test_is_cut_where_the_model_would_have_been_cut(self, limit):
        done = ask(RecordedBackend([exact()]), chat("1 + 1?"), limit)
        assert (done.text, done.tokens, done.finish) == ("".join(WORDS[:limit]), limit, "length")

    @pytest.mark.parametrize("sizes", [None, "33333", [3, 4], [3, "4", 4, 3]], ids=str)
    def test_is_cut_in_proportion_without_character_counts(self, sizes):
        backend = RecordedBackend([trace(response="x" * 60, extra={"token_chars": sizes})])
        done = ask(backend, chat("1 + 1?"), 3)
        assert (done.text, done.tokens, done.finish) == ("x" * 30, 3, "length")

    def test_without_a_text_has_its_length(self):
        backend = RecordedBackend([trace(response=None)])
        assert [(d.text, d.tokens) for d in (ask(backend, chat("1 + 1?"), n) for n in (4, 9))] == [("", 4), ("", 6)]

    def test_that_was_cut_when_recorded_ends_there(self):
        backend = RecordedBackend([trace(truncated=True)])
        done = ask(backend, chat("1 + 1?"), 6)
        assert (done.tokens, done.finish, done.flags) == (6, "length", ())
        done = ask(backend, chat("1 + 1?"), 7)
        assert (done.tokens, done.finish, done.flags) == (6, "length", ("trace_truncated",))

    def test_samples_are_served_in_turn(self):
        samples = [trace(response=text, sample=number) for number, text in [(2, "c"), (0, "a"), (1, "b")]]
        backend = RecordedBackend([*samples, trace(prompt="other", response="z")])
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
        assert ask(RecordedBackend([trace()]), body).tokens == 6

    @pytest.mark.parametrize(
        "body",
        [{"prompt": "2 + 2?"}, {"prompt": [1, 2]}, {"messages": [{"role": "system", "content": "1 + 1?"}]}, chat(None)],
        ids=str,
    )
    def test_without_a_trace_is_refused(self, body):
        with pytest.raises(Refused) as caught:
            ask(RecordedBackend([trace()]), body)
        assert (caught.value.code, caught.value.tokens) == ("no_trace", 0)


def test_the_model_is_that_of_the_traces():
    assert RecordedBackend([trace(), trace(prompt="other")]).model == "m"
    assert RecordedBackend([]).model == ""


def test_traces_of_two_models_are_an_error():
    with pytest.raises(InputError, match="2 models: a, b"):
        RecordedBackend([Trace("1", "p", 3, model="a"), Trace("2", "p", 4, model="b")])


class TestALanding:
    LANDED = {"0": [False, 3, "7"], "4": [True, 2, "2"], "5": [False, 16, None]}  # noqa: RUF012

    def land(self, age, *, limit=20, suffix=LANDING, landed=LANDED):
        async def both():
            backend = RecordedBackend([exact(extra={"landed": landed} if landed else {})])
            first = prefix(await backend.complete(chat("1 + 1?"), 6), age)
            return await backend.complete(chat("1 + 1?"), limit, continue_from=first, suffix=suffix)

        return asyncio.run(both())

    @pytest.mark.parametrize(("age", "text", "tokens"), [(0, "7}", 3), (3, "7}", 3), (4, "2}", 2)])
    def test_is_the_nearest_that_was_recorded_before(self, age, text, tokens):
        done = self.land(age)
        assert (done.text, done.tokens, done.finish, done.flags) == (text, tokens, "stop", ())
        assert (done.input_tokens, done.cached_tokens) == (0, 0)

    def test_whose_box_was_not_closed_has_no_text(self):
        done = self.land(5)
        assert (done.text, done.tokens, done.finish) == ("", 16, "length")

    def test_above_the_limit_is_cut(self):
        done = self.land(0, limit=2)
        assert (done.text, done.tokens, done.finish) == ("", 2, "length")

    @pytest.mark.parametrize(
        "options",
        [{"landed": None}, {"landed": {"4": [True, 2, "2"]}}, {"landed": "no"}, {"suffix": "So it is"}],
        ids=str,
    )
    def test_that_was_not_recorded_is_refused(self, options):
        with pytest.raises(Refused) as caught:
            self.land(2, **options)
        assert (caught.value.code, caught.value.tokens) == ("not_recorded", 0)

    def test_without_an_answer_before_it_takes_a_sample_in_turn(self):
        samples = [trace(sample=n, extra={"landed": {"0": [None, 1, str(n)]}}) for n in range(2)]
        backend = RecordedBackend(samples)

        async def thrice():
            return [(await backend.complete(chat("1 + 1?"), 9, suffix=LANDING)).text for _ in range(3)]

        assert asyncio.run(thrice()) == ["0}", "1}", "0}"]
