"""Options: what each query buys at a price, by its own count and by trying everything."""

import numpy as np
import pytest

from shadowprice.errors import MarketError
from shadowprice.market import Expected, clear
from shadowprice.market.options import DECLINE, Option, Step, envelope

from .markets import random_menu


def test_the_envelope_is_the_best_of_all_options_and_grants():
    rng = np.random.default_rng(7)
    menu = random_menu(rng, 12, 3)
    tokens = np.concatenate([[0.0], np.geomspace(0.1, 4096, 4000)])[:, None]
    for price in (1e-6, 1e-5, 1e-4, 1e-3):
        found = envelope(menu, price)
        best = np.max([option.curves.value(tokens) - price * option.cost(tokens) for option in menu], axis=(0, 1))
        np.testing.assert_allclose(found.surplus, np.maximum(best, 0.0), atol=1e-5)
        assert np.all((found.surplus > 0) == (found.option != DECLINE))


def test_demand_falls_with_the_price():
    menu = random_menu(np.random.default_rng(8), 200, 4)
    costs = [envelope(menu, price).cost.sum() for price in np.geomspace(1e-7, 1e-2, 60)]
    assert all(np.diff(costs) <= 1e-9 * costs[0])


def test_a_step_is_worth_its_height_from_its_threshold_on():
    curves = Step([10.0, 20.0], [0.5, 1.0], cap=15.0)
    np.testing.assert_array_equal(curves.value([9.9, 20.0]), [0.0, 1.0])
    np.testing.assert_array_equal(curves.value([10.0, 19.9]), [0.5, 0.0])
    np.testing.assert_allclose(curves.reservation(), [0.05, 0.0])  # the cap is below the second threshold
    np.testing.assert_array_equal(curves.demand(0.04), [10.0, 0.0])


def test_steps_are_a_market_of_their_own():
    found = clear(Step([3.0, 4.0, 5.0], [1.0, 1.0, 1.0]), 8.0)
    assert found.utility == 2.0
    assert found.tokens.sum() <= 8.0


def test_what_a_cost_buys_is_what_it_costs():
    option = Option(Expected([100.0, 200.0], cap=500.0), [2.0, 3.0], [10.0, 20.0])
    tokens = np.array([50.0, 60.0])
    np.testing.assert_allclose(option.tokens(option.cost(tokens)), tokens)
    np.testing.assert_array_equal(option.tokens(5.0), [0.0, 0.0])
    np.testing.assert_array_equal(option.tokens(1e9), [500.0, 500.0])


def test_bad_options_are_refused():
    curves = Expected([1.0, 2.0])
    with pytest.raises(MarketError, match="rate must be"):
        Option(curves, [1.0, 2.0, 3.0])
    with pytest.raises(MarketError, match="rate must be"):
        Option(curves, 0.0)
    with pytest.raises(MarketError, match="entry must be"):
        Option(curves, 1.0, -1.0)
