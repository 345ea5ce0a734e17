"""Curves of straight pieces say the same as the chunks that they are made of."""

import numpy as np
import pytest

from shadowprice.market import clear
from shadowprice.market.gittins import chunks
from shadowprice.market.menu import clear_menu
from shadowprice.market.options import Option
from shadowprice.market.pieces import Pieces
from shadowprice.types import Forecast


def plan(n=40, seed=0, cap=4096.0):
    rng = np.random.default_rng(seed)
    forecast = Forecast(rng.lognormal(5, 0.7, n), rng.uniform(0.2, 0.9, n), rng.uniform(0.1, 0.95, n))
    return chunks(forecast, cap, 0, 20.0)


def test_gain_and_cost_are_those_of_the_chunks():
    found = plan()
    curves = Pieces.of(found)
    np.testing.assert_allclose(curves.peak(), np.bincount(found.query, found.cost))
    np.testing.assert_allclose(curves.value(curves.peak()), np.bincount(found.query, found.cost * found.index))
    np.testing.assert_allclose(curves.reservation(), found.index[found.first[:-1]])


def test_what_is_bought_at_a_price_is_every_chunk_above_it():
    found = plan()
    curves = Pieces.of(found)
    for price in np.quantile(found.index, [0.1, 0.5, 0.9]):
        above = found.index > price
        np.testing.assert_allclose(curves.follow(price), np.bincount(found.query[above], found.cost[above], 40))
        stops = np.zeros(40, dtype=np.int64)
        np.maximum.at(stops, found.query[above], found.stop[above])
        np.testing.assert_array_equal(curves.limit(price), np.maximum(stops, found.stop[found.first[:-1]]))


def test_many_prices_at_once_are_one_price_at_a_time():
    curves = Pieces.of(plan())
    prices = np.array([[1e-4], [1e-3]])
    both = curves.follow(prices)
    np.testing.assert_array_equal(both[0], curves.follow(1e-4))
    np.testing.assert_array_equal(curves.value(both)[1], curves.value(curves.follow(1e-3)))


def test_the_market_of_pieces_has_the_price_of_the_index():
    """Serving by index and clearing in expected cost are one thing."""
    found = plan(400)
    curves = Pieces.of(found)
    budget = 0.3 * float(found.cost.sum())
    cleared = clear_menu([Option(curves), Option(curves)], budget)
    assert cleared.price == pytest.approx(found.price(budget), rel=1e-6)
    assert cleared.utility == pytest.approx(clear(curves, budget).utility, rel=1e-6)
    assert cleared.gap <= float(curves.value(curves.peak()).max())


def test_the_slope_is_that_of_the_piece():
    curves = Pieces(np.array([[0.5, 0.1]]), np.array([[10.0, 20.0]]), np.array([[12, 50]]))
    assert curves.marginal([5.0]) == 0.5
    assert curves.marginal([10.0]) == 0.1
    assert curves.marginal([30.0]) == 0.0
    assert curves.take(slice(0, 1)).capped(15.0).peak() == 15.0
    assert curves.limit(0.05) == 50
    assert curves.limit(0.3) == 12
    assert curves.limit(0.9) == 12


def test_whole_answers_are_one_piece_with_the_same_gain_and_cost():
    curves = Pieces.of(plan())
    whole = curves.whole()
    assert whole.slope.shape == (40, 1)
    np.testing.assert_allclose(whole.peak(), curves.peak())
    np.testing.assert_allclose(whole.value(whole.peak()), curves.value(curves.peak()))
    np.testing.assert_array_equal(whole.limit(1.0), curves.stop.max(1))
