"""What a part of an answer says about the rest, in made-up answers of which it is known what they say."""

import time
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowprice import Forecast, InputError
from shadowprice.forecast.reading import AGES, TRAITS, Reader, next_age, text_at, traits
from shadowprice.forecast.text import TextForecaster
from shadowprice.types import Trace
from tests.forecast.stories import stories


def answers(count, seed=0, model="m", telling=True):
    """Answers of one median length. `telling`: long ones are full of doubts from the start, and these are wrong."""
    rng = np.random.default_rng(seed)
    found = []
    for i in range(count):
        long = rng.random() < 0.5
        tokens = int((1200 if long else 200) * rng.lognormal(0, 0.3))
        words = "Wait, let me check. " if long and telling else "So x = 2 plus three. "
        text = (words * tokens)[: 4 * tokens]
        found.append(Trace(f"{i}", f"What is {i}?", tokens, not long, model=model, response=text))
    return found


def alike(traces):
    return Forecast(np.full(len(traces), 500.0), 1.0, 0.5)


def read(reader, traces, age):
    longer = [trace for trace in traces if trace.tokens > age]
    some = np.array([traits(text_at(trace, age)) for trace in longer])
    at = np.full(len(longer), float(age))
    return longer, reader.revise(range(len(longer)), alike(longer), at, some)


class TestTraits:
    @given(text=st.text(st.characters(), max_size=2000))  # surrogates, too: servers may send halves of characters
    def test_of_any_text_are_finite(self, text):
        found = traits(text)
        assert len(found) == TRAITS
        assert np.all(np.isfinite(found))

    @pytest.mark.parametrize("part", ["\n", " ", "#", "1", "step ", "\ud83d", "a"])
    def test_of_long_texts_take_time_in_proportion(self, part):
        def seconds(length):
            text = part * length
            start = time.process_time()
            traits(text)
            return time.process_time() - start

        short, long = (min(seconds(length) for _ in range(3)) for length in (20_000, 200_000))
        assert long < 40 * short + 0.05

    def test_do_not_depend_on_case(self):
        assert traits("Wait, so THE Answer Is 4.") == traits("wait, so the answer is 4.")

    def test_ages_ascend_and_the_next_one_is_later(self):
        assert list(AGES) == sorted(set(AGES))
        assert next_age(0) == AGES[0]
        assert all(next_age(age) == later for age, later in pairwise(AGES))
        assert next_age(AGES[-1]) is None

    def test_a_recorded_text_is_cut_in_proportion(self):
        assert text_at(Trace("1", "?", 10, response="abcdefghij" * 2), 3) == "abcdef"
        assert text_at(Trace("1", "?", 10), 3) == ""


class TestReader:
    def test_an_answer_full_of_doubts_is_longer_and_less_likely_to_be_correct(self):
        traces = answers(200)
        reader = Reader.fit(alike(traces), traces)
        unseen, revised = read(reader, answers(200, seed=1), 128)
        long = np.array([not trace.correct for trace in unseen])
        assert revised.stretch[long].min() > 1.2 > 0.8 > revised.stretch[~long].max()
        assert revised.odds[long].max() < 0 < revised.odds[~long].min()
        assert set(revised.since) == {128.0}

    def test_what_is_not_in_the_text_is_not_believed(self):
        traces = answers(200, telling=False)
        reader = Reader.fit(alike(traces), traces)
        _, revised = read(reader, answers(200, seed=1, telling=False), 128)
        assert np.abs(np.log(revised.stretch)).max() < 0.2
        assert np.abs(revised.odds).max() < 0.3

    def test_of_several_models_it_has_to_be_adapted_first(self):
        traces = [*answers(100, model="a"), *answers(100, seed=1, model="b")]
        reader = Reader.fit(alike(traces), traces)
        assert not reader.own
        own = answers(100, seed=2, model="c")
        assert reader.adapt(alike(own), own).own
        silent = [replace(trace, response=None) for trace in own]
        assert not reader.adapt(alike(own), silent).own

    def test_of_another_model_is_not_used(self):
        traces = answers(100, model="a")
        reader = Reader.fit(alike(traces), traces)
        other = answers(100, seed=1, model="b")
        assert reader.own
        assert reader.adapt(alike(other), other).own
        assert not reader.adapt(alike(other), [replace(trace, response=None) for trace in other]).own
        assert not reader.adapt(alike(other[:20]), other[:20]).own
        both = [*traces, *other]
        assert not reader.adapt(alike(both), both).own
        assert not Reader.fit(alike(traces + other[:20]), traces + other[:20]).own

    def test_several_answers_to_a_question_show_no_more_than_one(self):
        rng = np.random.default_rng(0)
        marks = ["wait", "hmm", "check", "=", "?", "thus", "step "]
        traces = []
        for question in range(40):
            habit = " ".join(rng.choice(marks, 6))  # of the question, and it says nothing
            solved = rng.random() < 0.5
            for sample in range(8):
                text = (f"{habit} x{sample} " * 600)[:2400]
                traces.append(
                    Trace(f"{question}", f"What is {question}?", 600, solved, model="m", sample=sample, response=text)
                )
        reader = Reader.fit(alike(traces), traces)
        _, revised = read(reader, traces, 128)
        assert np.abs(revised.odds).max() < 0.5

    def test_hidden_reasoning_is_not_read(self):
        short = [replace(trace, response=trace.response[: trace.tokens // 3]) for trace in answers(100)]
        assert Reader.fit(alike(short), short) is None

    def test_a_model_that_says_the_opposite_is_not_read_like_the_others(self):
        traces = [trace for seed in range(3) for trace in answers(100, seed, model=f"m{seed}")]
        own = [
            replace(trace, response=trace.response.replace("Wait, let me check", "-").replace("So x =", "Wait, hmm"))
            for trace in answers(150, seed=5)
        ]
        adapted = Reader.fit(alike(traces), traces).adapt(alike(own), own)
        longer = [trace for trace in own if trace.tokens > 128]
        some = np.array([traits(text_at(trace, 128)) for trace in longer])
        revised = adapted.revise(range(len(longer)), alike(longer), np.full(len(longer), 128.0), some)
        long = np.array([not trace.correct for trace in longer])
        assert revised.stretch[long].mean() > revised.stretch[~long].mean()

    def test_nothing_is_read_without_texts(self):
        traces = [replace(trace, response=None) for trace in answers(100)]
        assert Reader.fit(alike(traces), traces) is None
        assert Reader.fit(alike(traces[:10]), answers(10)) is None

    def test_a_truncated_answer_counts_as_longer_than_it_is(self):
        traces = answers(200)
        limited = {"tokens": 400, "truncated": True, "correct": False}
        cut = [replace(t, **limited, response=text_at(t, 400)) if t.tokens > 400 else t for t in traces]
        _, whole = read(Reader.fit(alike(traces), traces), traces, 64)
        _, some = read(Reader.fit(alike(traces), cut), traces, 64)
        long = whole.stretch > 1
        assert some.stretch[long].mean() > 1.1


class TestInAForecaster:
    def test_it_is_saved_and_read_again(self, tmp_path):
        forecaster = TextForecaster().fit(answers(100))
        forecaster.save(tmp_path / "f")
        again = TextForecaster.load(tmp_path / "f")
        _, before = read(forecaster.reader, answers(50, seed=1), 128)
        _, after = read(again.reader, answers(50, seed=1), 128)
        for one, other in zip(before, after, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3)

    def test_of_several_models_is_kept_but_not_used(self, tmp_path):
        TextForecaster().fit([*answers(60, model="a"), *answers(60, seed=1, model="b")]).save(tmp_path / "f")
        loaded = TextForecaster.load(tmp_path / "f")
        assert loaded.reader is None
        assert loaded.adapt(answers(60, seed=2, model="c")).reader is not None

    def test_without_texts_there_is_none(self):
        assert TextForecaster().fit(stories(100)).reader is None

    @pytest.mark.parametrize("change", ["shape", "value", "bytes"])
    def test_a_damaged_one_is_refused(self, tmp_path, change):
        from shadowprice.forecast.folder import written

        forecaster = TextForecaster().fit(answers(60))

        def save(place, arrays):
            with written(place, "text", forecaster._about()) as scratch:
                forecaster._save_weights(scratch)
                arrays(scratch / "reader.npz")

        def damage(file):
            with np.load(file) as stored:
                found = dict(stored)
            if change == "bytes":
                file.write_bytes(b"no arrays")
                return
            found["centre"] = found["centre"][1:] if change == "shape" else np.full_like(found["centre"], np.nan)
            np.savez(file, **found)

        save(tmp_path / "f", damage)
        with pytest.raises(InputError, match="damaged"):
            TextForecaster.load(tmp_path / "f")
