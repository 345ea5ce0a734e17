"""The clearing is optimal, certifies it, and does not depend on how a market is written."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.errors import MarketError
from shadowprice.market import Curve, Expected, Quadratic, Surge, Triangular, clear

from .markets import (
    KINDS,
    SHARED_KINDS,
    best_on_grid,
    best_over_subsets,
    mixed_market,
    shared_market,
    whole_demand,
)


def dual(curves: Curve, price: float, budget: float) -> float:
    """The Lagrangian bound at a price, from first principles."""
    bought = curves.capped(budget).demand(price)
    return float(price * budget + (curves.value(bought) - price * bought).sum())


def assert_sound(curves: Curve, budget: float, result) -> None:
    """What holds for every clearing of every market."""
    assert result.price >= 0
    assert np.all(result.tokens >= 0)
    assert np.all(result.tokens <= curves.cap)
    assert result.tokens.sum() <= budget
    assert np.all((result.tokens > 0) <= result.admitted)
    # Were the tokens scaled down to fit the budget, they would not have this utility.
    assert curves.value(result.tokens).sum() == pytest.approx(result.utility, rel=1e-9, abs=1e-300)
    # The clearing raises its bound to its utility; the dual does not.
    assert result.utility <= dual(curves, result.price, budget) * (1 + 1e-9)
    largest = curves.value(np.minimum(curves.peak(), 1e12)).max(initial=0.0)
    assert result.gap <= largest * (1 + 1e-9)


class TestOneShape:
    @pytest.mark.parametrize("kind", SHARED_KINDS)
    @pytest.mark.parametrize("capped", [False, True])
    def test_equals_the_best_of_all_subsets(self, kind, capped):
        rng = np.random.default_rng(2)
        for _ in range(30):
            n = int(rng.integers(1, 9))
            tau = rng.lognormal(5, 1.5, n)
            if rng.random() < 0.3:
                tau = np.round(tau, -2)  # ties, and thresholds of 0
            cap = tau.max() * rng.uniform(0.3, 1.5) + 1 if capped else np.inf
            curves = shared_market(kind, tau, rng.lognormal(4, 1.5), cap)
            budget = rng.uniform(0.02, 1.5) * tau.sum() + 1
            result = clear(curves, budget)
            assert_sound(curves, budget, result)
            assert result.utility == pytest.approx(best_over_subsets(curves, budget), rel=1e-9)

    @pytest.mark.parametrize("n", [10, 12])
    def test_equals_the_best_of_all_subsets_of_twelve(self, n):
        rng = np.random.default_rng(n)
        curves = shared_market("surge", rng.lognormal(5, 1, n), 80.0)
        budget = 0.4 * whole_demand(curves)
        assert clear(curves, budget).utility == pytest.approx(best_over_subsets(curves, budget), rel=1e-9)

    def test_agrees_with_the_solver_for_mixed_curves(self):
        """The same market, written so that the general solver must take it."""
        rng = np.random.default_rng(3)
        for _ in range(20):
            tau = rng.lognormal(5, 1, 300)
            budget, caps = rng.uniform(0.05, 1.3) * tau.sum(), np.full(300, 1e7)
            caps[0] = 2e7
            exact = clear(Surge(tau, 2.0, 1 / 90), budget)
            general = clear(Surge(tau, 2.0, 1 / 90), budget, max_tokens=caps)
            assert general.utility == pytest.approx(exact.utility, rel=1e-6)
            assert general.price == pytest.approx(exact.price, rel=1e-6)
            assert general.bound == pytest.approx(exact.bound, rel=1e-9)

    def test_needs_no_iterations(self):
        assert clear(Surge(np.arange(1.0, 100), 2.0, 0.1), 2000).iterations == 0


@pytest.mark.parametrize("kind", KINDS)
class TestMixedCurves:
    def test_eight_queries_against_dynamic_programming(self, kind):
        """200 markets of each of the five kinds."""
        rng = np.random.default_rng(4)
        ratios = []
        for trial in range(200):
            curves = mixed_market(kind, 8, rng, capped=trial % 2 == 1)
            budget = rng.uniform(0.03, 1) * whole_demand(curves)
            result = clear(curves, budget)
            assert_sound(curves, budget, result)
            best = best_on_grid(curves, budget, 400)
            ratios.append(result.utility / best if best > 0 else 1.0)
        assert np.mean(ratios) >= 0.998
        assert np.min(ratios) >= 0.97

    def test_the_bound_is_the_dual_at_the_price(self, kind):
        rng = np.random.default_rng(5)
        for n in (1, 3, 40):
            curves = mixed_market(kind, n, rng)
            budget = 0.3 * whole_demand(curves)
            result = clear(curves, budget)
            assert result.bound == pytest.approx(dual(curves, result.price, budget), rel=1e-9)

    def test_a_market_of_500_is_cleared_to_a_thousandth(self, kind):
        rng = np.random.default_rng(6)
        gaps = []
        for trial in range(10):
            curves = mixed_market(kind, 500, rng, capped=trial % 2 == 1)
            budget = rng.uniform(0.03, 1) * whole_demand(curves)
            result = clear(curves, budget)
            assert_sound(curves, budget, result)
            gaps.append(result.gap / result.bound)
        assert np.median(gaps) < 1e-3

    @pytest.mark.parametrize("n", [2, 20, 500, 70_000])
    def test_karush_kuhn_tucker(self, kind, n):
        rng = np.random.default_rng(7)
        curves = mixed_market(kind, n, rng)
        budget = 0.3 * whole_demand(curves)
        result = clear(curves, budget)
        # Equal marginals at interior grants (a tent has none: its grants sit at the kinks).
        inner = result.admitted & (result.tokens > curves.start() * 1.001) & (result.tokens < curves.peak() * 0.999)
        if kind != "triangular" and np.count_nonzero(inner) > 1:
            marginal = curves.marginal(result.tokens)[inner]
            assert np.ptp(marginal) <= 1e-6 * marginal.mean()
            if result.status == "cleared":
                assert marginal.mean() == pytest.approx(result.price, rel=1e-6)
        # Nobody abandoned could pay the price.
        surplus = np.maximum(
            curves.capped(budget).value(d := curves.capped(budget).demand(result.price)) - result.price * d, 0
        )
        left_out = surplus[~result.admitted]
        if n >= 500:
            assert left_out.sum() <= result.gap + 1e-9 * result.bound
        # Complementary slackness: what has a price is used up, but for a jump.
        if result.status == "cleared":
            assert result.tokens.sum() == pytest.approx(budget, rel=1e-9)
            assert np.all(left_out <= 1e-12 * surplus.max())


class TestEdges:
    def test_no_queries(self):
        result = clear(Surge([]), 100)
        assert (result.tokens.size, result.utility, result.price, result.status) == (0, 0.0, 0.0, "ample")

    def test_no_budget(self):
        for curves in (Surge([10.0, 20.0]), Surge([0.0, 20.0]), Expected([10.0, 20.0], [0.5, 0.6])):
            result = clear(curves, 0)
            assert result.status == "starved"
            assert not result.admitted.any()
            assert (result.utility, result.bound) == (0.0, 0.0)

    @pytest.mark.parametrize("alpha", [2.0, [2.0, 2.1]])
    def test_budget_below_the_cheapest_query(self, alpha):
        result = clear(Surge([100.0, 200.0], alpha, 1 / 50), 99)
        assert result.status == "starved"
        assert result.tokens.sum() == 0
        assert result.price > 0  # a token would have buyers if it came with enough others

    @pytest.mark.parametrize("alpha", [2.0, [2.0, 2.1]])
    def test_budget_beyond_all_peaks_leaves_the_rest_unspent(self, alpha):
        result = clear(Surge([100.0, 200.0], alpha, 1 / 50), 10_000)
        assert result.status == "ample"
        assert result.price == 0
        assert np.allclose(result.tokens, [150, 250])
        assert result.gap == pytest.approx(0, abs=1e-12)

    @pytest.mark.parametrize("alpha", [2.0, [2.0, 2.1]])
    def test_caps_below_every_threshold(self, alpha):
        result = clear(Surge([100.0, 200.0], alpha, 1 / 50), 10_000, max_tokens=100)
        assert result.status == "starved"
        assert result.tokens.sum() == 0
        assert result.bound == 0

    def test_one_query(self):
        assert clear(Surge(100.0, 2.0, 1 / 50), 120).tokens.tolist() == [120]
        assert clear(Expected(100.0, 0.5), 30).tokens.tolist() == [30]  # below its inflection, but all there is

    def test_identical_queries_are_admitted_while_the_budget_lasts(self):
        for alpha in (2.0, np.full(100, 2.0) * (1 + 1e-12 * np.arange(100))):  # shared and mixed
            result = clear(Surge(np.full(100, 100.0), alpha, 1 / 50), 1000)
            best = max(k * 2 * (1000 / k - 100) * np.exp(-(1000 / k - 100) / 50) for k in range(1, 10))
            assert result.utility == pytest.approx(best, rel=1e-6)

    @pytest.mark.parametrize("budget", [-1, np.nan, np.inf, "much"])
    def test_an_invalid_budget(self, budget):
        with pytest.raises(MarketError, match="budget"):
            clear(Surge([1.0]), budget)

    def test_a_query_that_needs_more_than_the_whole_budget_does_not_stop_the_market(self):
        curves = Surge([1e6, *np.full(50, 100.0)], alpha=[1e9, *np.linspace(1, 2, 50)], beta=1 / 50)
        result = clear(curves, 2000)
        assert result.admitted.sum() > 10
        assert not result.admitted[0]


class TestOddMarkets:
    """Markets that an earlier version solved wrongly."""

    def test_a_tail_so_thin_that_no_float_price_spends_the_budget(self):
        result = clear(Expected([100.0, 100.0], spread=0.01, tail=1e5), 1500)
        assert result.tokens.sum() == pytest.approx(1500)

    def test_a_budget_for_a_few_of_very_many(self):
        rng = np.random.default_rng(2)
        n = 300_000
        curves = Surge(rng.lognormal(6, 1, n), rng.lognormal(0, 1, n), 1 / rng.lognormal(5, 0.5, n))
        best = curves.take(np.argsort(-curves.reservation())[:3000])
        for budget in (2000, 6424, 50_000):
            assert clear(curves, budget).utility == pytest.approx(clear(best, budget).utility, rel=1e-3)

    def test_what_is_left_at_a_jump_is_spent_on_those_below_their_peak(self):
        cap = [620.0, 560, 530, 470, 260, 450, 690, 250, 160]
        curves = Surge([480.0, 300, 420, 410, 250, 180, 470, 40, 30], 2.0, 0.01, cap)
        result = clear(curves, 1170)
        below = result.admitted & (result.tokens < curves.peak() * 0.999)
        assert not below.any() or result.tokens.sum() == pytest.approx(1170)

    def test_a_price_stays_between_the_reservation_prices_around_it(self):
        curves = Quadratic([100.0, 0.0], width=[50.0, 285.0], height=[9.0, 1.2])
        result = clear(curves, 110)
        assert result.bound == pytest.approx(result.utility)

    @pytest.mark.parametrize("alpha", [2.0, [2.0, 1.9]])
    def test_curves_narrower_than_one_ulp_of_their_threshold(self, alpha):
        result = clear(Surge([1e10, 1.5e10], alpha, 1e6), 1.2e10)
        assert result.admitted.tolist() == [True, False]


class TestScarcity:
    """Mean budgets from one token to ten times the mean threshold, thresholds over six decades."""

    @pytest.mark.parametrize("mean_budget", [1, 0.1, 0.5, 1.0, 1.001, 2, 10])
    @pytest.mark.parametrize("n", [1, 7, 500])
    def test_adaptive_decay(self, mean_budget, n):
        rng = np.random.default_rng(8)
        tau = 10 ** rng.uniform(0, 6, n)
        budget = float(n if mean_budget == 1 else mean_budget * tau.sum())
        beta = 1 / max(1e-6, budget / n - tau.mean())
        for alpha in (2.0, rng.uniform(1, 3, n)):
            curves = Surge(tau, alpha, beta)
            result = clear(curves, budget)
            assert np.isfinite([result.price, result.utility, result.bound]).all()
            assert result.tokens.sum() <= budget
            assert result.utility <= dual(curves, result.price, budget) * (1 + 1e-9)
            assert result.gap <= np.max(alpha) / (beta * np.e) * (1 + 1e-9)


class TestInvariances:
    @pytest.fixture(params=["shared", "mixed"])
    def market(self, request):
        rng = np.random.default_rng(9)
        tau, n = rng.lognormal(5, 1, 200), 200
        alpha = 2.0 if request.param == "shared" else rng.uniform(1, 3, n)
        width = 80.0 if request.param == "shared" else rng.uniform(30, 300, n)
        return tau, alpha, width, 0.4 * tau.sum()

    def test_permuting_queries_permutes_grants(self, market):
        tau, alpha, width, budget = market
        order = np.random.default_rng(1).permutation(tau.size)
        pick = lambda p: p if np.ndim(p) == 0 else p[order]  # noqa: E731
        one = clear(Surge(tau, alpha, 1 / width), budget)
        two = clear(Surge(tau[order], pick(alpha), 1 / pick(width)), budget)
        assert np.allclose(one.tokens[order], two.tokens)
        assert one.price == pytest.approx(two.price)

    @pytest.mark.parametrize("scale", [1e-12, 1e-6, 1e6, 1e12])
    def test_alpha_scales_the_price_and_leaves_the_grants(self, market, scale):
        tau, alpha, width, budget = market
        one = clear(Surge(tau, alpha, 1 / width), budget)
        two = clear(Surge(tau, alpha * scale, 1 / width), budget)
        assert np.allclose(one.tokens, two.tokens, rtol=1e-9)
        assert two.price == pytest.approx(one.price * scale, rel=1e-9)
        assert two.bound == pytest.approx(one.bound * scale, rel=1e-9)

    @pytest.mark.parametrize("scale", [1e-3, 7.0, 1e6])
    def test_rescaling_tokens_rescales_grants(self, market, scale):
        tau, alpha, width, budget = market
        one = clear(Surge(tau, alpha, 1 / width), budget)
        two = clear(Surge(tau * scale, alpha, 1 / (width * scale)), budget * scale)
        assert np.allclose(one.tokens * scale, two.tokens, rtol=1e-7)
        assert two.price == pytest.approx(one.price, rel=1e-7)

    def test_doubling_the_market_keeps_the_price_and_at_least_doubles_the_utility(self, market):
        tau, alpha, width, budget = market
        twice = lambda p: p if np.ndim(p) == 0 else np.tile(p, 2)  # noqa: E731
        one = clear(Surge(tau, alpha, 1 / width), budget)
        two = clear(Surge(np.tile(tau, 2), twice(alpha), 1 / twice(width)), 2 * budget)
        assert two.bound == pytest.approx(2 * one.bound, rel=1e-9)
        assert two.utility >= 2 * one.utility * (1 - 1e-9)

    def test_more_budget_never_hurts_and_never_raises_the_price(self, market):
        tau, alpha, width, budget = market
        results = [clear(Surge(tau, alpha, 1 / width), budget * f) for f in np.linspace(0.1, 4, 25)]
        assert np.all(np.diff([r.utility for r in results]) >= -1e-9)
        assert np.all(np.diff([r.price for r in results]) <= 1e-12)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_market_is_sound(data):
    n = data.draw(st.integers(1, 12))
    numbers = lambda low, high: st.lists(st.floats(low, high), min_size=n, max_size=n)  # noqa: E731
    tau = np.array(data.draw(numbers(0.0, 1e6)))
    shared = data.draw(st.booleans())
    alpha = 2.0 if shared else np.array(data.draw(numbers(1e-3, 1e3)))
    beta = data.draw(st.floats(1e-6, 1e3)) if shared else np.array(data.draw(numbers(1e-6, 1e3)))
    cap = data.draw(st.one_of(st.just(np.inf), st.floats(0.0, 1e6)))
    budget = data.draw(st.floats(0.0, 1e7))
    curves = Surge(tau, alpha, beta, cap)
    result = clear(curves, budget)
    assert np.all(result.tokens <= cap)
    assert result.tokens.sum() <= budget
    assert 0 <= result.utility <= dual(curves, result.price, budget) * (1 + 1e-9)
    assert result.gap <= np.max(alpha / beta / np.e * np.ones(n)) * (1 + 1e-9)


def test_a_tents_slope_at_the_price_is_divided():
    """Two tents of one slope and room for one and a half: the half is used, not thrown away."""
    curves = Triangular([10.0, 10.0], [100.0, 100.0 + 1e-9], [200.0, 200.0], [1.0, 1.0])
    result = clear(curves, 170)
    assert result.utility == pytest.approx(1.5, rel=1e-6)
