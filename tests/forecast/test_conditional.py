"""What is left of an answer, given how long it is already."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowprice import Forecast, MarketError
from shadowprice.forecast.conditional import remaining
from shadowprice.forecast.intervals import quantile

NAMES = ("tokens", "spread", "solve", "tail", "solved_tokens", "solved_spread")


def some(n=6, tail=None):
    rng = np.random.default_rng(0)
    return Forecast(
        rng.lognormal(5, 1, n), rng.uniform(0.3, 0.9, n), rng.uniform(0.1, 0.9, n), tail, rng.lognormal(4.8, 1, n), 0.5
    )


@pytest.mark.parametrize("tail", [None, 3.0])
def test_the_median_is_that_of_simulated_answers(tail):
    rng = np.random.default_rng(1)
    for age in (50, 200, 900):
        length = quantile(Forecast([200.0], 0.7, tail=tail), rng.random(400_000))
        left = length[length > age] - age
        found = remaining(Forecast([200.0], 0.7, tail=tail), age)
        assert found.tokens[0] == pytest.approx(np.median(left), rel=0.03)


def test_the_chance_is_that_of_simulated_answers():
    """Correct answers are short, wrong ones long: the longer an answer, the less likely it is correct."""
    rng = np.random.default_rng(2)
    correct = rng.random(400_000) < 0.6
    length = np.where(correct, 100.0, 300.0) * rng.lognormal(0, 0.5, correct.size)
    every = np.log(length)
    forecast = Forecast([np.exp(np.median(every))], np.std(every), 0.6, None, [100.0], 0.5)
    for age in (60, 150):  # ages at which the log-normal describes the mixture well
        alive = length > age
        assert remaining(forecast, age).solve[0] == pytest.approx(correct[alive].mean(), abs=0.05)


def test_age_0_changes_nothing():
    forecast = some(tail=4.0)
    found = remaining(forecast, [0, 100, 0, 5, 0, 0])
    for name in NAMES:
        before, after = (np.broadcast_to(getattr(f, name), 6) for f in (forecast, found))
        assert np.array_equal(before[[0, 2, 4, 5]], after[[0, 2, 4, 5]])
    assert found.tokens[1] != forecast.tokens[1]
    assert remaining(forecast, 0) is forecast


def test_spread_and_tail_stay():
    forecast = some(tail=2.5)
    found = remaining(forecast, 100)
    assert np.array_equal(found.spread, forecast.spread)
    assert np.array_equal(found.solved_spread, forecast.solved_spread)
    assert found.tail == forecast.tail


def test_requests_do_not_affect_each_other():
    forecast, age = some(), np.array([3, 0, 50, 700, 10, 5000])
    together = remaining(forecast, age)
    for i in range(6):
        alone = remaining(forecast.take([i]), age[i])
        assert together.tokens[i] == alone.tokens[0]
        assert together.solve[i] == alone.solve[0]
        assert together.solved_tokens[i] == alone.solved_tokens[0]


@given(
    tokens=st.floats(1, 1e6), spread=st.floats(0.02, 5), solve=st.floats(0, 1), age=st.integers(0, 10**7),
    tail=st.one_of(st.none(), st.floats(1, 100)), ratio=st.floats(0.1, 2),
)  # fmt: skip
def test_any_forecast_and_age_give_a_forecast(tokens, spread, solve, age, tail, ratio):
    found = remaining(Forecast([tokens], spread, solve, tail, [max(1, tokens * ratio)], spread), age)
    assert found.tokens[0] >= 1
    assert found.solved_tokens[0] >= 1
    assert 0 <= found.solve.item() <= 1


@pytest.mark.parametrize("age", [-1, np.nan, [1, 2]])
def test_an_invalid_age(age):
    with pytest.raises(MarketError, match="age"):
        remaining(some(), age)
