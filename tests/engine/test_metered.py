"""A meter serves the best index first, learns as it goes, and never spends a token too many."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice import Forecast
from shadowprice.engine.metered import Meter, replayed
from shadowprice.forecast.calibration import recalibrate

CAP = 4096


def batch(n, seed=0, factor=1.0, spread=0.5):
    """Forecasts, and lengths drawn from them; `factor` makes the forecasts wrong."""
    rng = np.random.default_rng(seed)
    median, solve = rng.lognormal(5, 0.8, n), rng.uniform(0.1, 0.9, n)
    lengths = np.clip(median * rng.lognormal(0, spread, n), 1, CAP).astype(int)
    return Forecast(median * factor, spread, solve), lengths, rng.random(n) < solve


def served(forecast, lengths, budget, **options):
    """What `replayed` says, done one stretch at a time by a meter."""
    meter, left = Meter(forecast, CAP, **options), budget
    while left > 0 and (stretch := meter.next()):
        age = min(stretch.stop, int(lengths[stretch.query]), stretch.start + left)
        left -= age - stretch.start
        meter.told(stretch.query, age, ended=age >= lengths[stretch.query])
    return meter


@given(st.integers(0, 10**6), st.integers(1, 40_000))
@settings(max_examples=25, deadline=None)
def test_the_budget_is_never_passed(seed, budget):
    forecast, lengths, _ = batch(80, seed)
    for learn in (True, False):
        age = replayed(forecast, budget, CAP, lengths, learn=learn)
        assert age.sum() <= budget
        assert np.all(age <= lengths)
        if age.sum() < budget:  # then nobody is left who could have used it
            assert np.all((age == lengths) | (age == CAP))


def test_the_replay_is_a_meter_all_at_once():
    forecast, lengths, _ = batch(300)
    for budget in (1, 500, 10_000, 30_000, 10**7):
        meter = served(forecast, lengths, budget)
        np.testing.assert_array_equal(meter.age, replayed(forecast, budget, CAP, lengths))


def test_longer_stretches_leave_the_budget_alone():
    forecast, lengths, _ = batch(100)
    meter = Meter(forecast, CAP, quantum=64)
    stretch = meter.next()
    assert stretch.stop - stretch.start >= 64
    assert served(forecast, lengths, 5000, quantum=64).age.sum() == 5000


def test_a_query_being_served_is_not_handed_out_again():
    forecast, _, _ = batch(20)
    meter = Meter(forecast, CAP)
    out = [meter.next().query for _ in range(20)]
    assert sorted(out) == list(range(20))
    assert meter.next() is None
    meter.told(out[0], 3, ended=False)
    assert meter.next().query == out[0]
    meter.told(out[0], 9, ended=True)
    assert meter.next() is None


def test_a_meter_goes_on_from_the_ages_it_is_given():
    forecast, lengths, _ = batch(50)
    meter = served(forecast, lengths, 2000)
    again = Meter(meter.corrected, CAP, meter.age)
    assert (stretch := again.next()).start == meter.age[stretch.query]


@pytest.mark.parametrize(("factor", "sure"), [(0.25, 1.0), (4.0, 1.0), (0.25, 0.2), (1.0, 0.2)])
def test_a_forecast_that_is_wrong_is_found_out(factor, sure):
    """By a factor, or much too sure of itself, or both."""
    honest, lengths, right = batch(500)
    wrong = Forecast(honest.tokens * factor, honest.spread * sure, honest.solve)
    budget = int(np.median(lengths) * 500)

    def solved(forecast, **options):
        return np.count_nonzero(right & (replayed(forecast, budget, CAP, lengths, **options) >= lengths))

    assert solved(wrong) >= 0.97 * solved(honest, learn=False)


def test_what_is_learnt_is_level_and_spread_and_the_tail_only_where_there_is_none():
    forecast, lengths, _ = batch(400, factor=3.0, spread=0.5)
    sure = Forecast(forecast.tokens, 0.1, forecast.solve, tail=4.0)
    age, ended = np.where(lengths < 400, lengths, 400), lengths < 400
    found = recalibrate(sure, age, ended)
    assert np.ptp(found.tokens / sure.tokens) < 1e-9
    assert np.median(found.tokens / sure.tokens) == pytest.approx(1 / 3, rel=0.15)
    assert float(np.median(found.spread)) == pytest.approx(0.5, rel=0.25)
    assert np.array_equal(found.solve, sure.solve)
    assert found.tail == 4.0

    rng = np.random.default_rng(1)
    off = np.where(rng.random(400) < 0.5, -np.abs(rng.normal(size=400)), np.abs(rng.standard_t(2, 400)))
    heavy = np.clip(forecast.tokens * np.exp(0.5 * off), 1, 10**6).astype(int)
    assert recalibrate(forecast, heavy, np.ones(400, dtype=bool)).tail <= 3


def test_without_learning_a_forecast_that_is_too_short_and_too_sure_would_cost_dearly():
    """Everyone seems overdue at once, and the batch is served as if nothing were known of it."""
    honest, lengths, right = batch(500)
    wrong = Forecast(honest.tokens / 4, honest.spread / 4, honest.solve, tail=2.0)
    budget = int(0.5 * np.median(lengths) * 500)
    with_it, without = (
        np.count_nonzero(right & (replayed(wrong, budget, CAP, lengths, learn=learn) >= lengths))
        for learn in (True, False)
    )
    assert with_it > 1.1 * without


def test_learning_costs_little_where_there_is_nothing_to_learn():
    forecast, lengths, right = batch(500)
    budget = int(0.5 * np.median(lengths) * 500)
    with_it, without = (
        np.count_nonzero(right & (replayed(forecast, budget, CAP, lengths, learn=learn) >= lengths))
        for learn in (True, False)
    )
    assert with_it >= 0.97 * without


def test_with_lengths_known_it_is_the_oracle():
    _, lengths, right = batch(500)
    known = Forecast(lengths.astype(float), 0.02, 0.5)
    for share in (0.25, 0.5, 1.0):
        budget = int(share * np.median(lengths) * 500)
        order = np.argsort(lengths, kind="stable")
        best = np.count_nonzero(right[order[np.cumsum(lengths[order]) <= budget]])
        found = np.count_nonzero(right & (replayed(known, budget, CAP, lengths) >= lengths))
        assert abs(found - best) <= 0.005 * 500
