"""Roots are where the function changes its sign, and brackets hold it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowprice.market.roots import falling_root, rising_root


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=8), st.floats(0.1, 5))
def test_a_rising_root_is_the_inverse_of_the_function(targets, scale):
    y = np.array(targets)

    def function(z):
        return scale * np.sinh(z) - y, scale * np.cosh(z)

    found = rising_root(function, np.full(y.size, -20.0), np.full(y.size, 20.0))
    assert found == pytest.approx(np.arcsinh(y / scale), abs=1e-9)


def test_a_rising_root_where_newton_alone_diverges():
    """From the middle of the bracket, Newton's steps on arctan grow without end."""
    found = rising_root(lambda z: (np.arctan(z - 3.0), 1 / (1 + (z - 3.0) ** 2)), np.array([-50.0]), np.array([90.0]))
    assert found == pytest.approx([3.0])


@pytest.mark.parametrize("guess", [-300.0, -5.0, 0.0, 4.0, 300.0])
def test_a_falling_root_is_found_from_any_guess(guess):
    roots = np.array([-7.0, 0.0, 2.5, 40.0])
    found = falling_root(lambda x: np.tanh((roots - x) / 3), np.full(4, guess), reach=0.01, tolerance=1e-13)
    assert np.all((found.low <= roots + 1e-9) & (roots - 1e-9 <= found.high))
    exact = np.where(found.at_low <= 1e-13, found.low, found.high)
    assert exact == pytest.approx(roots, abs=1e-9)


@pytest.mark.parametrize("guess", [-3.0, 0.9, 8.0])
def test_at_a_jump_the_bracket_closes_around_it(guess):
    jump = np.array([0.3, 1.0, 2.0])
    found = falling_root(lambda x: np.where(x < jump, 5.0, -1.0), np.full(3, guess), reach=0.5, tolerance=1e-9)
    assert np.all(found.high - found.low <= 1e-12)
    assert np.all((found.low <= jump) & (jump <= found.high))
    assert found.at_low.tolist() == [5.0] * 3
    assert found.at_high.tolist() == [-1.0] * 3


def test_few_evaluations_suffice():
    calls = 0

    def function(x):
        nonlocal calls
        calls += 1
        return np.exp(-x) - 0.2

    found = falling_root(function, np.array([1.0]), reach=1.0, tolerance=1e-12)
    assert min(abs(found.at_low[0]), abs(found.at_high[0])) <= 1e-12
    assert calls < 15
