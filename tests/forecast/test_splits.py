"""No forecaster is evaluated on a question it was trained on, however that question is written."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowprice.datasets.shipped import shipped_traces
from shadowprice.forecast.splits import folds, held_out, question_key, questions_of
from shadowprice.types import Trace

SPACES = st.text(st.sampled_from(" \t\n\r\u00a0\u2003"), max_size=3)
CASES = st.sampled_from([str, str.upper, str.lower, str.title, str.swapcase])


@st.composite
def variants(draw, text):
    """The same question: other white space, other case."""
    words = draw(CASES)(text).split()
    return draw(SPACES) + "".join(word + draw(SPACES) + " " for word in words) + draw(SPACES)


@st.composite
def traces_with_variants(draw):
    """Traces, and the number of the question that each asks, known by construction."""
    questions = draw(
        st.lists(st.text(st.sampled_from("abcdeXYZ12?é "), min_size=1, max_size=20), min_size=1, max_size=12, unique_by=
                 lambda text: "".join(text.lower().split()))
    )  # fmt: skip
    asked = draw(st.lists(st.integers(0, len(questions) - 1), min_size=1, max_size=40))
    return [Trace(str(i), draw(variants(questions[q])), 10) for i, q in enumerate(asked)], np.array(asked)


def on_one_side(sides, question):
    """Every question with all its traces on one side."""
    return all(len(set(sides[question == q].tolist())) == 1 for q in np.unique(question))


@given(drawn=traces_with_variants(), share=st.floats(0, 1), seed=st.integers(0, 5))
def test_no_question_is_on_both_sides_of_a_split(drawn, share, seed):
    traces, question = drawn
    assert on_one_side(held_out(traces, share, seed), question)


@given(drawn=traces_with_variants(), count=st.integers(1, 6), seed=st.integers(0, 5))
def test_no_question_is_in_two_folds(drawn, count, seed):
    traces, question = drawn
    found = folds(questions_of(traces), count, seed)
    assert on_one_side(found, question)
    assert set(found.tolist()) <= set(range(count))


@given(drawn=traces_with_variants())
def test_variants_of_a_question_are_one_and_different_questions_are_not(drawn):
    traces, question = drawn
    numbers = questions_of(traces)
    assert np.array_equal(numbers[:, None] == numbers, question[:, None] == question)


def test_what_counts_as_the_same_question():
    assert question_key("What is  2+3?") == question_key("  what IS 2 + 3 ?\n")
    assert question_key("Straße") == question_key("STRASSE")
    assert question_key("What is 2+3?") != question_key("What is 2-3?")


def test_a_question_stays_on_its_side_when_others_are_added():
    traces = shipped_traces("train", "smollm2")
    assert np.array_equal(held_out(traces, 0.2)[:100], held_out(traces[:100], 0.2))


def test_about_the_share_that_was_asked_for_is_held_out():
    traces = [Trace(str(i), f"question {i}", 10) for i in range(4000)]
    for share in (0.0, 0.1, 0.5, 1.0):
        assert held_out(traces, share).mean() == pytest.approx(share, abs=0.03)
    assert not np.array_equal(held_out(traces, 0.5, seed=0), held_out(traces, 0.5, seed=1))


def test_folds_are_equal_in_questions():
    traces = [Trace(str(i), f"question {i // 3}", 10) for i in range(300)]
    sizes = np.bincount(folds(questions_of(traces), 7), minlength=7)
    assert sizes.sum() == 300
    assert sizes.max() - sizes.min() <= 3


def test_the_shipped_splits_share_no_question():
    train, evaluation = (
        {question_key(t.prompt) for t in shipped_traces(split, "smollm2")} for split in ("train", "eval")
    )
    assert not train & evaluation
