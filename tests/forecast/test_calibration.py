"""Forecasts corrected by traces."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import CensoredData, ecdf, truncnorm

from shadowprice import Forecast, InputError
from shadowprice.errors import MarketError
from shadowprice.forecast.calibration import Calibration, _quantile, impute_censored
from shadowprice.forecast.intervals import chance_within

from .stories import stories


def law(n, seed=0, spread=0.4, shift=0.0, cap=None):
    rng = np.random.default_rng(seed)
    median, solve = np.exp(rng.normal(5, 1, n)), rng.uniform(0.05, 0.95, n)
    length = median * np.exp(shift + spread * rng.normal(size=n))
    cut = np.zeros(n, bool) if cap is None else length > cap
    tokens = np.where(cut, cap or 0, np.ceil(length)).astype(int)
    correct = rng.random(n) < solve
    traces = [
        replace(story, tokens=int(t), truncated=bool(c), correct=bool(r))
        for story, t, c, r in zip(stories(n), tokens, cut, correct, strict=True)
    ]
    return Forecast(median, 0.4, solve), traces


def test_a_correct_forecast_stays_as_it_is():
    forecast, traces = law(4000)
    found = Calibration.fit(forecast, traces)
    assert abs(found.shift) < 0.05
    assert abs(found.slope - 1) < 0.05
    assert abs(found.spread - 1) < 0.07
    assert abs(found.odds_shift) < 0.15
    assert abs(found.odds_slope - 1) < 0.15


def test_a_more_verbose_model_shifts_the_length():
    forecast, traces = law(1000, shift=0.7)
    assert abs(Calibration.fit(forecast, traces).shift - 0.7) < 0.08


def test_truncated_answers_do_not_shorten_it():
    forecast, traces = law(4000, cap=400)
    assert sum(trace.truncated for trace in traces) > 400
    found = Calibration.fit(forecast, traces)
    assert abs(found.shift) < 0.06
    assert abs(found.spread - 1) < 0.12


def test_scaling_all_tokens_scales_the_forecast():
    forecast, traces = law(300)
    longer = [replace(trace, tokens=10 * trace.tokens) for trace in traces]
    one = Calibration.fit(forecast, traces).apply(forecast)
    ten = Calibration.fit(Forecast(forecast.tokens * 10, 0.4, forecast.solve), longer)
    ten = ten.apply(Forecast(forecast.tokens * 10, 0.4, forecast.solve))
    np.testing.assert_allclose(ten.tokens, 10 * one.tokens, rtol=1e-6)
    np.testing.assert_allclose(ten.spread, one.spread, rtol=1e-6)


def test_it_is_saved_as_json():
    found = Calibration.fit(*law(100))
    assert Calibration.from_dict(found.to_dict()) == found
    for wrong in ({}, [], None, {**found.to_dict(), "slope": None}, {**found.to_dict(), "extra": 1}):
        with pytest.raises((ValueError, MarketError)):
            Calibration.from_dict(wrong)


def test_wrong_answers_run_longer():
    """Where they do, the length of correct answers is forecast as shorter than that of all."""
    rng = np.random.default_rng(0)
    correct = rng.random(2000) < 0.5
    tokens = (100 * np.exp(0.8 * ~correct + 0.2 * rng.normal(size=2000))).astype(int)
    traces = [
        replace(t, tokens=int(n), correct=bool(c)) for t, n, c in zip(stories(2000), tokens, correct, strict=True)
    ]
    flat = Forecast(np.full(2000, 150.0), 0.5, 0.5)
    found = Calibration.fit(flat, traces).apply(flat)
    assert 90 < found.solved_tokens[0] < 120
    assert found.tokens[0] > 1.2 * found.solved_tokens[0]
    assert found.solved_spread < found.spread


def test_older_calibrations_have_no_shape():
    record = Calibration.fit(*law(100)).to_dict()
    del record["shape"]
    assert Calibration.from_dict(record).shape is None


def test_answers_that_never_end_are_in_the_shape():
    """Three in ten wrong answers loop; the law of the others is narrow."""
    rng = np.random.default_rng(0)
    correct, loops = rng.random(1000) < 0.5, rng.random(1000) < 0.6
    tokens = np.where(~correct & loops, 4096, 100 * np.exp(0.3 * rng.normal(size=1000))).astype(int)
    traces = [
        replace(t, tokens=int(n), correct=bool(c), truncated=bool(n == 4096))
        for t, n, c in zip(stories(1000), tokens, correct, strict=True)
    ]
    flat = Forecast(np.full(1000, 100.0), 0.5, 0.5)
    found = Calibration.fit(flat, traces).apply(flat)
    share = np.mean(tokens > 1000)
    assert chance_within(found, 1000)[0] == pytest.approx(1 - share, abs=0.05)
    assert chance_within(found, 4000)[0] == pytest.approx(1 - share, abs=0.08)


def test_too_few_traces():
    with pytest.raises(InputError, match="9 traces are too few"):
        Calibration.fit(Forecast(np.full(9, 50.0)), stories(9))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
def test_quantiles_are_scipys_kaplan_meier(p):
    rng = np.random.default_rng(3)
    for _ in range(20):
        values, censored = np.round(rng.normal(size=60), 1), rng.random(60) < 0.3  # with ties
        survival = ecdf(CensoredData(values[~censored], right=values[censored])).sf
        reached = survival.quantiles[survival.probabilities <= 1 - p + 1e-12]
        assert _quantile(values, censored, p) == (reached[0] if reached.size else values.max())


def test_censored_values_are_replaced_by_their_expectation():
    y, mean, censored = np.array([1.0, 2.0, 3.0]), np.array([2.0, 2.0, 1.0]), np.array([True, True, False])
    found = impute_censored(y, mean, 0.7, censored)
    wanted = [truncnorm.mean((a - m) / 0.7, np.inf, loc=m, scale=0.7) for a, m in ((1.0, 2.0), (2.0, 2.0))]
    assert found == pytest.approx([*wanted, 3.0])
