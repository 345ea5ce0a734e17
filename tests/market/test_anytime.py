"""What an answer is worth that is stopped and asked for, and what the index makes of it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowprice import Forecast
from shadowprice.market.anytime import Anytime
from shadowprice.market.gittins import chunks

CURVE = Anytime((0.0, 0.5, 1.0, 2.0), (0.2, 0.3, 0.8, 0.9), 4.0)


def test_the_share_is_linear_between_its_ages_and_stays_after_the_last():
    forecast = Forecast([100.0, 200.0])
    assert CURVE.share(forecast, [25.0, 100.0]).tolist() == [0.25, 0.3]
    assert CURVE.share(forecast, [[0.0, 150.0], [0.0, 800.0]]) == pytest.approx(np.array([[0.2, 0.85], [0.2, 0.9]]))


@pytest.mark.parametrize(
    ("ages", "shares", "tokens"),
    [
        ((), (), 4.0),
        ((0.0, 1.0), (0.5,), 4.0),
        ((0.5, 1.0), (0.1, 0.2), 4.0),
        ((0.0, 1.0, 1.0), (0.1, 0.2, 0.3), 4.0),
        ((0.0, 1.0), (0.5, 0.4), 4.0),
        ((0.0, 1.0), (-0.1, 0.4), 4.0),
        ((0.0, 1.0), (0.1, 1.1), 4.0),
        ((0.0, 1.0), (0.1, 0.4), 0.0),
        ((0.0, float("nan")), (0.1, 0.4), 4.0),
    ],
)
def test_what_is_not_a_rising_curve_is_refused(ages, shares, tokens):
    with pytest.raises(ValueError, match="must"):
        Anytime(ages, shares, tokens)


def test_it_is_saved_and_read_again():
    assert Anytime.from_dict(CURVE.to_dict()) == CURVE
    for damaged in ({}, {"ages": [0], "shares": None, "tokens": 1}, {"ages": ["x"], "shares": [0], "tokens": 1}):
        with pytest.raises(ValueError):
            Anytime.from_dict(damaged)


@given(
    tokens=st.floats(20, 2000),
    spread=st.floats(0.1, 1.5),
    solve=st.floats(0.05, 1.0),
    age=st.integers(0, 1000),
)
def test_continuing_gains_something_but_less_than_where_a_stopped_answer_is_worth_nothing(tokens, spread, solve, age):
    """Index times cost, summed up, is what the chunks of a request gain, given that it has not ended."""
    forecast = Forecast([tokens], spread, [solve])

    def gained(**more):
        plan = chunks(forecast, 4000.0, age, **more)
        assert np.all(np.diff(plan.index) <= 1e-9 * np.max(plan.index, initial=0.0))
        return float((plan.index * plan.cost).sum())

    with_landing, without = gained(anytime=CURVE), gained()
    most = CURVE.shares[-1]
    assert (1 - most) * without * 0.999 - 1e-12 <= with_landing <= without + most * (1 - without) + 0.01
    if age == 0 and tokens * np.exp(3 * spread) < 4000:  # practically every answer ends before its cap
        assert with_landing == pytest.approx(without - CURVE.shares[0] * solve, rel=0.05, abs=0.01)


def test_a_model_that_knows_the_answer_early_is_stopped_early():
    """Almost everything is known at half of the length: the first chunk ends there, where without landings it goes on
    to where answers end."""
    forecast, early = Forecast([400.0], 0.2, [0.8]), Anytime((0.0, 0.4, 0.5), (0.05, 0.05, 0.95), 4.0)
    with_landing, without = chunks(forecast, 2000, anytime=early), chunks(forecast, 2000)
    assert 190 <= with_landing.stop[0] <= 260
    assert without.stop[0] >= 380
    assert with_landing.index[0] > 1.4 * without.index[0]
