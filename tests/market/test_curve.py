"""What holds for every curve: its demand is the best it can do at a price."""

import numpy as np
import pytest

from shadowprice.market import Quadratic, Surge

from .markets import KINDS, mixed_market

GRID = np.unique(np.concatenate([np.linspace(0, 20_000, 20_001), np.geomspace(1e-3, 20_000, 5_001)]))[:, None]


@pytest.mark.parametrize("capped", [False, True])
@pytest.mark.parametrize("kind", KINDS)
class TestEveryCurve:
    @pytest.fixture
    def curves(self, kind, capped):
        return mixed_market(kind, 30, np.random.default_rng(1), capped=capped)

    def test_no_grant_on_a_grid_leaves_more_surplus_than_demand(self, curves):
        value = np.where(curves.cap >= GRID, curves.value(GRID), 0.0)
        for price in np.geomspace(1e-6, 10, 40):
            demand = curves.demand(price)
            surplus = curves.value(demand) - price * demand
            best = (value - price * GRID).max(axis=0)
            assert np.all(surplus >= best - 1e-9 * value.max(axis=0))

    def test_demand_is_zero_exactly_from_the_reservation_price_on(self, curves):
        reservation = curves.reservation()
        pays = reservation > 0
        assert np.all(curves.demand(reservation) == 0)
        assert np.all(curves.demand(reservation * (1 - 1e-9))[pays] > 0)

    def test_at_the_reservation_price_the_surplus_is_zero(self, curves):
        reservation = curves.reservation()
        bought = curves.follow(reservation)
        assert np.allclose(curves.value(bought), reservation * bought, rtol=1e-7, atol=1e-12)

    def test_demand_falls_with_the_price_and_never_exceeds_the_cap(self, curves):
        demands = np.array([curves.demand(price) for price in np.geomspace(1e-300, 10, 60)])
        assert np.all(np.isfinite(demands) | np.isinf(curves.cap))
        assert np.all(np.diff(demands, axis=0) <= 1e-9 * demands[:-1])
        assert np.all(demands <= curves.cap)

    def test_marginal_is_the_derivative_of_value(self, curves):
        tokens, h = GRID[GRID[:, 0] > 1], 1e-5
        slope = (curves.value(tokens * (1 + h)) - curves.value(tokens * (1 - h))) / (2 * h * tokens)
        error = np.abs(curves.marginal(tokens) - slope) / np.abs(slope).max(axis=0)
        assert np.quantile(error, 0.995) < 1e-4  # kinks aside

    def test_nothing_beats_the_peak(self, curves):
        height = curves.value(np.minimum(curves.peak(), 1e9))
        reachable = np.where(curves.cap >= GRID, curves.value(GRID), 0.0)
        assert np.all(reachable.max(axis=0) <= height * (1 + 1e-9))

    def test_choosing_queries_commutes_with_everything(self, curves):
        some = np.array([4, 17, 2])
        assert curves.take(some).demand(1e-3) == pytest.approx(curves.demand(1e-3)[some], rel=1e-12)
        assert curves.take(some).reservation() == pytest.approx(curves.reservation()[some], rel=1e-12)


def test_a_cap_below_the_tangent_makes_the_cap_the_only_purchase():
    curve = Surge(100.0, 2.0, 1 / 50, cap=110.0)
    price = float(curve.reservation()[0])
    assert price == pytest.approx(curve.value(110.0)[0] / 110)
    assert curve.demand(price * 0.999).tolist() == [110.0]
    assert curve.demand(price).tolist() == [0.0]


def test_which_curves_share_a_shape():
    assert Surge([1.0, 2.0], 2.0, 0.1).shares_shape()
    assert Surge([1.0, 2.0], [2.0, 2.0], [0.1, 0.1], [9.0, 9.0]).shares_shape()
    assert not Surge([1.0, 2.0], [2.0, 2.1], 0.1).shares_shape()
    assert not Surge([1.0, 2.0], 2.0, 0.1, cap=[8.0, 9.0]).shares_shape()
    assert Surge([1.2, 2.0], 2.0, 0.1).whole().threshold.tolist() == [2.0, 2.0]


@pytest.mark.parametrize("threshold", [0.0, 1e-308, 1e-300])
def test_a_vanishing_threshold_is_worth_what_none_is(threshold):
    for curve in (Surge(threshold, 2.0, 0.1), Quadratic(threshold, 20.0, 3.0)):
        assert float(curve.reservation()[0]) == pytest.approx(float(curve.slope(0.0)))
        assert curve.demand(0.5 * float(curve.slope(0.0))) > 0
