"""A common level: against its definition, and beside the index."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import lognorm

from shadowprice import Forecast
from shadowprice.market.gittins import chunks
from shadowprice.market.level import level_of, steps_to

CAP = 4096.0


def market(n, seed=0):
    rng = np.random.default_rng(seed)
    return Forecast(rng.lognormal(5, 0.8, n), rng.uniform(0.2, 0.9, n), rng.uniform(0.05, 0.95, n))


def of(forecast, budget, age=0.0, entry=0.0):
    n = len(forecast)
    return forecast, np.full(n, CAP), np.full(n, age), np.full(n, entry), budget


@pytest.mark.parametrize("age", [0.0, 60.0])
def test_at_the_level_the_expected_tokens_are_the_budget(age):
    forecast, budget = market(20), 1500.0
    level = level_of(*of(forecast, budget, age))
    laws = [lognorm(s, scale=m) for m, s in zip(forecast.tokens, forecast.spread, strict=True)]
    cost = sum(quad(law.sf, age, level.age)[0] / law.sf(age) for law in laws)
    gain = sum(
        p * (law.cdf(level.age) - law.cdf(age)) / law.sf(age) for p, law in zip(forecast.solve, laws, strict=True)
    )
    assert cost == pytest.approx(budget, rel=0.03)
    assert level.value == pytest.approx(gain, rel=0.03)
    assert level.index == pytest.approx(level.value / budget)


@given(st.integers(0, 10**6), st.floats(10.0, 50_000.0))
@settings(max_examples=30, deadline=None)
def test_by_the_same_forecasts_the_index_is_never_worse(seed, budget):
    forecast = market(40, seed)
    assert level_of(*of(forecast, budget)).value <= 1.03 * chunks(forecast, CAP).value(budget)


def test_an_ample_budget_takes_everybody_to_the_cap():
    forecast = market(10)
    level = level_of(*of(forecast, 1e9))
    assert level.age == pytest.approx(CAP)
    assert level.value <= forecast.solve.sum()


@pytest.mark.parametrize("age", [0.0, 100.0])
def test_lower_steps_come_first_and_the_budget_is_met_at_the_level(age):
    forecast, cap, ages, entry, budget = of(market(30), 2000.0, age)
    level = level_of(forecast, cap, ages, entry, budget)
    steps = steps_to(level, forecast, cap, ages, entry)
    for i in range(30):
        mine = slice(steps.first[i], steps.first[i + 1])
        assert np.all(np.diff(steps.stop[mine], prepend=age) > 0)
        assert np.all(np.diff(steps.index[mine]) < 0)
        assert steps.stop[mine][-1] == CAP
    order = np.argsort(-steps.index, kind="stable")
    assert np.all(np.diff(steps.stop[order]) >= 0)
    assert steps.price(budget) == pytest.approx(level.index, rel=0.15)


def test_answers_above_the_level_have_no_step_up_to_it():
    forecast, cap, _, entry, budget = of(market(4), 100.0)
    ages = np.array([0.0, 0.0, 0.0, 1000.0])
    level = level_of(forecast, cap, ages, entry, budget)
    steps = steps_to(level, forecast, cap, ages, entry)
    assert level.age < 200
    assert steps.stop[steps.first[3]] > 1000


def test_every_step_is_entered_anew():
    forecast = market(10)
    free, dear = (steps_to(level_of(*of(forecast, 1000.0)), *of(forecast, 0.0, entry=e)[:4]) for e in (0.0, 50.0))
    alive = 1 - lognorm.cdf(dear.start, forecast.spread[dear.query], scale=forecast.tokens[dear.query])
    assert dear.cost - free.cost == pytest.approx(50 * alive, rel=0.01, abs=1e-6)
    assert level_of(*of(forecast, 1000.0, entry=50.0)).value < level_of(*of(forecast, 1000.0)).value
