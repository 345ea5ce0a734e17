"""An answer that repeats itself is noticed, and one that does not is left alone."""

import pytest

from shadowprice.datasets.shipped import shipped_traces
from shadowprice.forecast.loops import is_looping

START = "First we note that the sum of the angles is 180 degrees, so that x is 40. "


@pytest.mark.parametrize("part", [" ", "0, ", "Wait, let me check that again. ", "\\frac{1}{2} + ", "x" * 200])
def test_a_text_that_ends_in_the_same_part_again_and_again(part):
    assert is_looping(START + part * (700 // len(part) + 1))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Wait. " * 20,  # too short to tell
        "".join(f"Step {n}: we add {n} to the sum. " for n in range(40)),
        "no no no " * 100 + "but then it ends in something else",
        ("x" * 250) * 4 + "y" + "x" * 250,
    ],
)
def test_other_texts(text):
    assert not is_looping(text)


def test_no_recorded_answer_that_ended_correctly_is_taken_for_one():
    for trace in shipped_traces("eval") + shipped_traces("train"):
        if trace.correct and trace.response:
            ends = range(256, len(trace.response) + 256, 256)
            assert not any(is_looping(trace.response[:end]) for end in ends)
