"""Shapes of lengths from answers."""

import numpy as np
import pytest
from scipy.stats import CensoredData, ecdf

from shadowprice import Forecast
from shadowprice.forecast.hazards import bent, fit_shape, parametric, shape_of
from shadowprice.market.curves import length_cdf
from shadowprice.shape import KNOTS


def test_without_answers_the_shape_is_the_parametric_law():
    prior = parametric(3.0, 1.0, 0.4)
    nothing = np.zeros(0)
    found = fit_shape(nothing, nothing.astype(bool), nothing, prior)
    np.testing.assert_allclose(found.correct, prior.correct)
    np.testing.assert_allclose(found.wrong, prior.wrong)
    correct, _ = prior.survival(KNOTS)
    np.testing.assert_allclose(correct[1:], length_cdf(KNOTS, 3.0, above=True)[1:], rtol=1e-9)


def test_with_many_answers_it_is_the_kaplan_meier_estimate():
    rng = np.random.default_rng(0)
    z = np.where(rng.random(20_000) < 0.5, rng.normal(-2, 0.3, 20_000), rng.normal(2, 0.5, 20_000))
    limit = rng.normal(3, 1, 20_000)
    seen, cut = np.minimum(z, limit), z > limit
    found = fit_shape(seen, cut, np.ones(20_000), parametric(None, 1.0, 0.0))
    exact = ecdf(CensoredData(seen[~cut], right=seen[cut])).sf.evaluate(KNOTS)
    correct, _ = found.survival(KNOTS)
    some = exact > 0.02
    np.testing.assert_allclose(correct[some], exact[some], atol=0.02)


def test_grades_tell_correct_answers_from_wrong_ones():
    rng = np.random.default_rng(0)
    right = rng.random(4000) < 0.4
    z = rng.normal(size=4000) + 2.0 * ~right
    found = fit_shape(z, np.zeros(4000, dtype=bool), right.astype(float), parametric(None, 1.0, 0.0))
    correct, wrong = found.survival(np.array([1.0]))
    assert correct[0] == pytest.approx(0.16, abs=0.04)
    assert wrong[0] == pytest.approx(0.84, abs=0.04)


def test_what_a_run_shows_changes_both_rates_alike():
    shape = parametric(3.0, 1.0, 0.5)
    rng = np.random.default_rng(0)
    z = rng.normal(1.0, 0.3, 2000)
    found = bent(shape, z, np.ones(2000, dtype=bool), np.full(2000, 0.5), 30.0)
    ratio = np.diff(found.correct)[1:] / np.diff(shape.correct)[1:]
    np.testing.assert_allclose(ratio, np.diff(found.wrong)[1:] / np.diff(shape.wrong)[1:])
    alive = found.longer(np.array([0.0, 2.0]), np.array(0.5))
    assert alive[0] > 0.9
    assert alive[1] < 0.1


def test_a_forecast_without_a_shape_has_the_one_of_its_fields():
    forecast = Forecast([100.0, 200.0], 0.5, 0.5, 4.0, [80.0, 160.0], 0.25)
    shape = shape_of(forecast)
    assert shape_of(Forecast([1.0], shape=shape)) is shape
    assert shape == parametric(4.0, 0.5, np.log(100 / 80) / 0.5)
