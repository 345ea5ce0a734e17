"""Menus: one price for all options is optimal, certifies it, and is the old market where there is one option."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from shadowprice.errors import MarketError
from shadowprice.market import Expected, clear
from shadowprice.market.menu import clear_menu, whole_grants
from shadowprice.market.options import DECLINE, Menu, Option, Step, envelope
from shadowprice.market.samples import sampled

from .markets import KINDS, mixed_market, random_menu


def steps(
    rng: np.random.Generator, n: int, routes: int, largest: int = 20
) -> tuple[list[Option], np.ndarray, np.ndarray]:
    """Options that cost a whole number of units: a multiple-choice knapsack problem, its costs and its values."""
    cost, value = rng.integers(1, largest, (routes, n)), rng.uniform(0, 1, (routes, n))
    return [Option(Step(c, v)) for c, v in zip(cost.astype(float), value, strict=True)], cost, value


def knapsack(cost: np.ndarray, value: np.ndarray, budget: int) -> float:
    """The optimum, by dynamic programming over the budget."""
    best = np.zeros(budget + 1)
    for query in range(cost.shape[1]):
        options = [best]
        for c, v in zip(cost[:, query], value[:, query], strict=True):
            options.append(np.concatenate([np.full(min(c, budget + 1), -np.inf), best[: max(0, budget + 1 - c)] + v]))
        best = np.max(options, axis=0)
    return float(best[-1])


def relaxation(cost: np.ndarray, value: np.ndarray, budget: int) -> float:
    """The optimum if options could be bought in parts, by linear programming."""
    routes, n = cost.shape
    one_each = np.tile(np.eye(n), routes)
    found = linprog(
        -value.ravel(), np.vstack([cost.ravel(), one_each]), [budget, *[1.0] * n], bounds=(0, 1), method="highs"
    )
    return float(-found.fun)


def best_on_grid(menu: Menu, budget: float, cells: int = 400) -> float:
    """Dynamic programming over a grid of costs: a lower bound on the optimum, without prices."""
    grid = np.linspace(0, budget, cells + 1)[:, None]
    gains = [np.where(grid >= option.entry, option.curves.value(option.tokens(grid)), 0.0) for option in menu]
    value = np.maximum.accumulate(np.max(gains, axis=0), axis=0)
    best = value[:, 0]
    shift = np.arange(cells + 1)[:, None] - np.arange(cells + 1)[None, :]
    for query in range(1, value.shape[1]):
        best = np.where(shift >= 0, best[np.maximum(shift, 0)] + value[:, query], -np.inf).max(axis=1)
    return float(best[-1])


def assert_sound(menu: Menu, budget: float, found) -> None:
    """What holds for every clearing: within the budget, worth what it says, certified."""
    assert found.cost.sum() <= budget * (1 + 1e-12)
    utility, largest = 0.0, 0.0
    for number, option in enumerate(menu):
        mine = found.option == number
        tokens = np.where(mine, found.tokens, 0.0)
        assert np.all(tokens <= option.curves.cap * (1 + 1e-12))
        assert np.where(mine, option.cost(tokens), 0.0) == pytest.approx(np.where(mine, found.cost, 0.0))
        utility += float(option.curves.value(tokens)[mine].sum())
        largest = max(largest, float(option.curves.value(np.minimum(option.curves.peak(), 1e12)).max(initial=0.0)))
    assert found.utility == pytest.approx(utility, rel=1e-9, abs=1e-12)
    assert np.all((found.tokens > 0) <= found.admitted)
    dual = found.price * budget + envelope([option.within(budget) for option in menu], found.price).surplus.sum()
    assert found.utility <= dual * (1 + 1e-9)
    if found.status != "starved":
        assert found.bound == pytest.approx(max(dual, found.utility), rel=1e-9)
    assert found.gap <= largest * (1 + 1e-9)


class TestOneRoute:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("rate", [1.0, 600.0])
    def test_is_the_market_of_tokens(self, kind, rate):
        rng = np.random.default_rng(3)
        for _ in range(20):
            curves = mixed_market(kind, int(rng.integers(1, 60)), rng, capped=bool(rng.random() < 0.5))
            budget = float(rng.uniform(0.05, 1.5) * 200 * len(curves))
            old, new = clear(curves, budget), clear_menu([Option(curves, rate)], rate * budget)
            assert new.utility == pytest.approx(old.utility, rel=1e-9, abs=1e-12)
            assert new.price * rate == pytest.approx(old.price, rel=1e-9)
            np.testing.assert_allclose(new.tokens, old.tokens, rtol=1e-9, atol=1e-9)
            assert new.status == old.status

    @pytest.mark.slow
    @pytest.mark.parametrize("kind", KINDS)
    def test_twice_is_one_route(self, kind):
        """Two copies are solved as a menu; nothing but the search at a jump may differ, and that within the gap."""
        rng = np.random.default_rng(4)
        cleared = 0
        for _ in range(30):
            curves = mixed_market(kind, int(rng.integers(1, 80)), rng)
            budget = float(rng.uniform(0.05, 1.0) * 200 * len(curves))
            old, new = clear(curves, budget), clear_menu([Option(curves), Option(curves)], budget)
            assert_sound([Option(curves)] * 2, budget, new)
            if old.status == "cleared":
                cleared += 1
                assert new.utility == pytest.approx(old.utility, rel=1e-9)
            else:
                assert abs(new.utility - old.utility) <= max(old.gap, new.gap) + 1e-9
        assert cleared > 1 or kind not in ("surge", "expected", "heavy-tailed")


class TestSteps:
    def test_are_within_one_query_of_the_knapsack_and_certified_by_the_relaxation(self):
        rng = np.random.default_rng(5)
        exact, losses = 0, []
        for _ in range(150):
            menu, cost, value = steps(rng, int(rng.integers(1, 12)), int(rng.integers(1, 5)))
            budget = int(rng.integers(1, 80))
            found = clear_menu(menu, budget)
            best = knapsack(cost, value, budget)
            assert_sound(menu, budget, found)
            assert found.utility <= best + 1e-9 <= found.bound + 2e-9
            exact += found.utility >= best - 1e-9
            losses.append(1 - found.utility / best if best else 0.0)
            affordable = np.where(cost <= budget, value, 0.0)  # an option above the budget is none
            if found.status == "jump" and len(menu) > 1:
                assert found.bound == pytest.approx(relaxation(cost, affordable, budget), rel=1e-6)
        assert exact >= 135
        assert np.mean(losses) < 0.005

    def test_equal_queries_divide_a_jump(self):
        """All change their option at one price: some of them get the dearer one, as many as the budget allows."""
        n = 1000
        menu = [Option(Step(np.full(n, 1.0), 0.4)), Option(Step(np.full(n, 10.0), 0.9))]
        found = clear_menu(menu, 4600.0)
        assert np.bincount(found.option, minlength=2).tolist() == [600, 400]
        assert found.utility == pytest.approx(600 * 0.4 + 400 * 0.9)
        assert found.gap <= 1e-9

    def test_that_no_budget_pays_are_declined(self):
        found = clear_menu([Option(Step([5.0, 6.0])), Option(Step([7.0, 8.0]))], 4.0)
        assert found.status == "starved"
        assert found.option.tolist() == [DECLINE, DECLINE]
        assert found.price > 0

    def test_an_ample_budget_buys_the_best_and_of_equals_the_cheaper(self):
        menu = [Option(Step([5.0, 6.0], [0.5, 0.9])), Option(Step([7.0, 4.0], [0.8, 0.9]))]
        found = clear_menu(menu, 100.0)
        assert (found.status, found.price) == ("ample", 0.0)
        assert found.option.tolist() == [1, 1]


class TestCurves:
    def test_are_as_good_as_a_division_on_a_grid(self):
        rng = np.random.default_rng(6)
        losses = []
        for _ in range(25):
            menu = random_menu(rng, int(rng.integers(1, 8)), int(rng.integers(2, 4)))
            budget = float(rng.uniform(0.05, 4) * 1000 * len(menu[0]))
            found = clear_menu(menu, budget)
            assert_sound(menu, budget, found)
            losses.append(best_on_grid(menu, budget) - found.utility)
        assert np.max(losses) < 0.02, "a division on a grid is better"

    def test_a_route_more_never_hurts(self):
        rng = np.random.default_rng(9)
        menu = random_menu(rng, 300, 4)
        for share in (0.1, 1.0, 10.0):
            budget = share * 300 * 300
            utilities = [clear_menu(menu[: k + 1], budget) for k in range(4)]
            for fewer, more in itertools.pairwise(utilities):
                assert more.utility >= fewer.utility - fewer.gap - more.gap - 1e-9

    @pytest.mark.slow
    def test_a_large_market_is_within_one_query(self):
        rng = np.random.default_rng(10)
        menu = random_menu(rng, 20_000, 5)
        for share in (0.2, 2.0, 20.0):
            budget = share * 20_000 * 300
            found = clear_menu(menu, budget)
            assert_sound(menu, budget, found)
            assert found.gap < 1.0

    def test_a_dearer_route_gets_the_queries_that_need_it(self):
        cheap = Option(Expected([100.0, 100.0], 0.2, [0.9, 0.1], None, 1000.0), 1.0)
        dear = Option(Expected([100.0, 100.0], 0.2, [0.95, 0.9], None, 1000.0), 10.0)
        found = clear_menu([cheap, dear], 2000.0)
        assert found.option.tolist() == [0, 1]

    def test_samples_are_options(self):
        one = Option(Expected(np.full(4, 100.0), 0.1, [0.05, 0.3, 0.5, 0.99], None, 1000.0))
        menu = [one, *(sampled(one, k, 0.1, verified=True) for k in (2, 4, 8))]
        found = clear_menu(menu, 1200.0)
        assert_sound(menu, 1200.0, found)
        assert found.option[3] == 0
        assert found.option[1] > 0


class TestWholeGrants:
    @settings(max_examples=60, deadline=None)
    @given(seed=st.integers(0, 10**6), share=st.floats(0.01, 5), n=st.integers(1, 60))
    def test_are_whole_within_the_budget_and_lose_little(self, seed, share, n):
        rng = np.random.default_rng(seed)
        menu = random_menu(rng, n, 3)
        budget = int(share * 2000 * n)
        found = clear_menu(menu, budget)
        grants, cost = whole_grants([option.within(budget) for option in menu], found, budget)
        assert cost.sum() <= budget
        utility = 0.0
        for number, option in enumerate(menu):
            mine = (found.option == number) & (grants > 0)
            exact = option.cost(grants.astype(float))
            assert np.all(cost[mine] >= exact[mine] - 1e-6)
            assert np.all(cost[mine] < exact[mine] + 1)
            assert np.all(grants[mine] <= option.curves.cap)
            utility += float(option.curves.value(grants)[mine].sum())
        assert utility >= found.utility - 0.02 - 0.01 * found.utility

    def test_declined_queries_get_nothing(self):
        menu = random_menu(np.random.default_rng(11), 30, 2)
        found = clear_menu(menu, 1500.0)
        grants, cost = whole_grants(menu, found, 1500)
        assert np.all((grants > 0) <= found.admitted)
        assert np.all(cost[~found.admitted] == 0)

    def test_nothing_stays_idle_while_caps_allow_more(self):
        menu = random_menu(np.random.default_rng(12), 50, 3)
        found = clear_menu(menu, 20_000.0)
        _, cost = whole_grants(menu, found, 20_000)
        assert 20_000 - cost.sum() < 100  # one token of the dearest route


def test_bad_menus_are_refused():
    curves = Expected([1.0, 2.0])
    with pytest.raises(MarketError, match="at least one option"):
        clear_menu([], 10)
    with pytest.raises(MarketError, match="different markets"):
        clear_menu([Option(curves), Option(Expected([1.0]))], 10)


def test_an_empty_market_clears():
    assert clear_menu([Option(Expected([])), Option(Expected([]))], 10).status == "ample"
