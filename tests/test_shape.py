"""Shapes: the law of lengths as tables."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice import Forecast
from shadowprice.shape import COUNT, FIRST, KNOTS, Shape, of_survival

STEADY = Shape(tuple(0.1 * np.arange(COUNT)), tuple(0.02 * np.arange(COUNT)))


def test_survival_is_exponential_between_knots_and_continues_beyond_them():
    between = (KNOTS[9] + KNOTS[10]) / 2
    correct, wrong = STEADY.survival(np.array([FIRST - 3, KNOTS[10], between, KNOTS[-1] + 25.0]))
    np.testing.assert_allclose(correct, np.exp([0.0, -1.0, -0.95, -(6.0 + 10.0)]))
    np.testing.assert_allclose(wrong, np.exp([0.0, -0.2, -0.19, -(1.2 + 2.0)]))


def test_an_answer_may_always_end():
    endless = Shape((0.0,) * COUNT, (0.0,) * COUNT)
    correct, _ = endless.survival(np.array([10.0, 1000.0, 100000.0]))
    assert pytest.approx(correct[0]) == 1
    assert np.all(np.diff(correct) < 0)


def test_the_quantile_is_the_inverse():
    p, solve = np.array([0.1, 0.5, 0.9]), np.array([0.2, 0.5, 1.0])
    z = STEADY.quantile(p, solve, np.full(3, 1000.0))
    np.testing.assert_allclose(1 - STEADY.longer(z, solve), p, atol=1e-9)


steps = st.lists(st.floats(0, 3) | st.just(0.0), min_size=COUNT - 1, max_size=COUNT - 1)


@settings(deadline=None)
@given(steps, steps, st.floats(0, 1), st.floats(0, 1 - 1e-6))
def test_no_shorter_answer_is_the_quantile_of_any_shape(correct, wrong, solve, p):
    shape = Shape((0.0, *np.cumsum(correct).tolist()), (0.0, *np.cumsum(wrong).tolist()))
    (z,) = shape.quantile(np.array([p]), np.array([solve]), np.array([1e9]))
    at, below = shape.longer(np.array([z, z - 1e-6]), np.array([solve]))
    assert at <= (1 - p) * (1 + 1e-9)
    assert below >= (1 - p) * (1 - 1e-9) or z == FIRST


def test_it_is_saved_as_json():
    assert Shape.from_dict(STEADY.to_dict()) == STEADY
    falling = {"correct": list(range(COUNT))[::-1], "wrong": list(range(COUNT))}
    for damaged in ({}, {"correct": [0.0], "wrong": [0.0]}, {"correct": None, "wrong": None}, falling):
        with pytest.raises(ValueError):
            Shape.from_dict(damaged)


def test_a_forecast_keeps_it_where_requests_are_chosen_or_joined():
    forecast = Forecast([10.0, 20.0], shape=STEADY)
    assert forecast.take([1]).shape is STEADY
    assert Forecast.joined([forecast, forecast]).shape is STEADY
    assert Forecast.joined([forecast, Forecast([5.0])]).shape is None


def test_survival_functions_become_a_shape():
    falling = np.exp(-0.1 * np.arange(COUNT))
    correct, wrong = of_survival(falling, np.ones(COUNT)).survival(KNOTS)
    np.testing.assert_allclose(correct, falling)
    np.testing.assert_allclose(wrong[:-1], 1.0)
