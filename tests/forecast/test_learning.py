"""Forecasts corrected by what a run has shown."""

import numpy as np
import pytest

from shadowprice import Forecast
from shadowprice.forecast.intervals import chance_within
from shadowprice.forecast.learning import recalibrate


def running(seed=1, shift=0.5, spread=0.8, n=3000):
    """Forecasts, and answers of which some still run at a random age."""
    rng = np.random.default_rng(seed)
    median = rng.lognormal(5, 1, n)
    length = median * np.exp(shift + spread * rng.normal(size=n))
    seen = median * rng.lognormal(1.8, 0.7, n)
    return median, np.ceil(np.minimum(length, seen)).astype(np.int64), length <= seen


def test_it_finds_level_and_spread_from_answers_that_ended_and_others_that_still_run():
    median, age, ended = running()
    forecast = Forecast(median, 0.4, 0.7, tail=np.inf)
    found = recalibrate(forecast, age, ended)
    assert np.median(np.log(found.tokens / median)) == pytest.approx(0.5, abs=0.08)
    assert float(np.median(found.spread)) == pytest.approx(0.8, rel=0.12)
    assert np.all(found.solve == forecast.solve)


def test_requests_keep_their_order():
    median, age, ended = running()
    found = recalibrate(Forecast(median, 0.4, 0.7), age, ended)
    assert np.all(np.diff(found.tokens[np.argsort(median)]) >= 0)


@pytest.mark.parametrize("slope", [0.0, 0.5, 1.0])
def test_forecasts_are_trusted_as_far_as_answers_follow_them(slope):
    """Lengths that rise with the forecast by the power `slope`; at 0 the forecasts say nothing, and end up alike."""
    rng = np.random.default_rng(4)
    median = rng.lognormal(5, 1, 3000)
    length = np.exp(5 + slope * (np.log(median) - 5) + 0.5 * rng.normal(size=3000))
    found = recalibrate(Forecast(median, 0.5, 0.7), np.ceil(length).astype(np.int64), np.ones(3000, dtype=bool))
    assert np.std(np.log(found.tokens)) / np.std(np.log(median)) == pytest.approx(slope, abs=0.06)


def test_requests_that_have_not_begun_are_corrected_by_the_others():
    age = np.array([200] * 40 + [0] * 10)
    found = recalibrate(Forecast(np.full(50, 100.0), 0.5), age, age > 0)
    assert found.tokens[45] == pytest.approx(200.0, rel=0.1)


def test_a_few_answers_change_little_and_many_change_much():
    age = np.full(1000, 200)
    tokens = [
        recalibrate(Forecast(np.full(n, 100.0), 0.5), age[:n], np.ones(n, dtype=bool)).tokens[0] for n in (2, 20, 1000)
    ]
    assert tokens[0] < tokens[1] < tokens[2]
    assert tokens[0] < 150 < tokens[2]


def test_serving_the_shortest_first_does_not_make_answers_look_short():
    """All answers are served up to 120 tokens, so that only the shorter ones have ended."""
    rng = np.random.default_rng(2)
    length = 200 * np.exp(0.6 * rng.normal(size=2000))
    age = np.minimum(np.ceil(length), 120).astype(np.int64)
    found = recalibrate(Forecast(np.full(2000, 200.0), 0.6, 0.5), age, length <= 120)
    assert found.tokens[0] == pytest.approx(200, rel=0.1)


def test_two_humps_are_found():
    """Answers of about 10 or about 500 tokens, where one law of 70 was expected."""
    rng = np.random.default_rng(3)
    length = np.where(rng.random(1000) < 0.5, 10.0, 500.0) * np.exp(0.2 * rng.normal(size=1000))
    age = np.ceil(length).astype(np.int64)
    found = recalibrate(Forecast(np.full(1000, 70.0), 1.0, 0.5), age, np.ones(1000, dtype=bool))
    assert chance_within(found, 25)[0] == pytest.approx(0.5, abs=0.07)
    assert chance_within(found, 250)[0] == pytest.approx(0.5, abs=0.07)


def test_a_batch_of_which_nothing_has_begun_stays_as_it_is():
    forecast = Forecast([50.0, 80.0], 0.5, 0.5)
    found = recalibrate(forecast, np.zeros(2, dtype=np.int64), np.zeros(2, dtype=bool))
    np.testing.assert_allclose(found.tokens, forecast.tokens)
