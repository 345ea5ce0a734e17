"""What a probe is worth: it is sent where one of its answers would change what is done, and that pays for it."""

from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowprice.market.evidence import Evidence

FINAL = Evidence((0.5, 1.0), (0.0, 0.4), (1.0, 0.0))  # an answer that is stated twice stays
INDEX, COST = np.array([0.004, 0.002, 0.001]), np.array([100.0, 100.0, 200.0])


@given(
    agree=st.floats(0.0, 1.0),
    left=st.floats(0.0, 1.0),
    index=st.lists(st.floats(0.0, 0.1), min_size=1),
    price=st.floats(0.0, 0.1),
)
def test_it_is_never_worth_more_than_all_tokens_of_continuing_where_it_agrees(agree, left, index, price):
    evidence = Evidence((0.5,), (agree,), (left,))
    worth = evidence.worth(0, np.array(index), np.full(len(index), 50.0), price)
    assert 0 <= worth <= agree * price * 50 * len(index) + 1e-12


@pytest.mark.parametrize("price", [0.0, 1.0])
def test_it_is_worth_nothing_if_everything_or_nothing_is_continued_anyway(price):
    assert FINAL.worth(1, INDEX, COST, price) == pytest.approx(0.0)


def test_it_is_worth_nothing_if_it_says_nothing():
    assert Evidence((1.0,), (0.4,), (1.0,)).worth(0, INDEX, COST, 0.0015) == 0


def test_what_is_saved_are_the_tokens_of_what_would_be_continued():
    """At this price two chunks are continued. Their tokens are saved with the chance 0.4, that the answer is final."""
    price = 0.0015
    assert FINAL.worth(1, INDEX, COST, price) == pytest.approx(0.4 * 200 * price)
    half = Evidence((0.5, 1.0), (0.0, 0.4), (1.0, 0.5))  # the first chunk is continued anyway
    assert half.worth(1, INDEX, COST, price) == pytest.approx(0.4 * 100 * (price - 0.5 * 0.002))


def test_steps_begin_at_their_ages():
    assert [FINAL.step(age) for age in (0.0, 0.49, 0.5, 0.99, 1.0, 9.0)] == [-1, -1, 0, 0, 1, 1]


def test_it_is_saved_and_read_again():
    assert Evidence.from_dict(asdict(FINAL)) == FINAL
    damaged = [{}, {"ages": [1], "agree": None, "left": [1]}, {"ages": [1, 1], "agree": [0, 0], "left": [1, 1]}]
    damaged += [{"ages": [1], "agree": [2], "left": [1]}, {"ages": [0], "agree": [0], "left": [1]}]
    damaged += [{"ages": [1], "agree": [0], "left": [float("nan")]}, {"ages": [], "agree": [], "left": []}]
    for record in damaged:
        with pytest.raises(ValueError):
            Evidence.from_dict(record)
