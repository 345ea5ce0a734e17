"""A posted price on recorded answers that arrive one by one. benchmarks/pacing.py has all patterns and intervals."""

import numpy as np
import pytest
from benchmarks.pacing import window

from shadowprice.lab.arrivals import PATTERNS, FirstCome, Posted, Static, Traffic, best_static, serve, worth
from shadowprice.lab.streams import STREAMS
from shadowprice.market.pacing import Pacer


@pytest.mark.parametrize("pattern", PATTERNS)
def test_arrivals_are_in_order_within_the_window_and_reproducible(pattern):
    times = PATTERNS[pattern](1000, np.random.default_rng(1))
    assert np.all(np.diff(times) >= 0)
    assert 0 <= times[0] <= times[-1] <= 1
    assert 850 < times.size < 1150
    assert times.tolist() == PATTERNS[pattern](1000, np.random.default_rng(1)).tolist()


@pytest.mark.parametrize("times", [0.05, 0.5, 2.0])
def test_nobody_spends_more_than_the_budget(pool, times):
    traffic = Traffic.drawn(pool, "balanced", "bursts", 300, 0)
    budget = round(300 * times * pool.median)
    for seller in (FirstCome(traffic), Static(traffic, 1e-3), Posted(traffic, Pacer(budget, 60.0), 60.0)):
        outcome = serve(traffic, seller, budget)
        assert outcome.spent.sum() <= budget
        assert np.all(outcome.spent <= outcome.granted)


def test_first_come_serves_everyone_in_turn_until_the_budget_ends(pool):
    traffic = Traffic.drawn(pool, "balanced", "poisson", 300, 0)
    served = serve(traffic, FirstCome(traffic), round(150 * pool.median)).granted > 0
    assert served[:20].all()
    assert not served[-20:].any()


def test_more_budget_is_worth_more_at_the_best_static_price(pool):
    traffic = Traffic.drawn(pool, "balanced", "poisson", 300, 0)
    got = [worth(traffic, best_static(traffic, round(300 * times * pool.median))[1]) for times in (0.25, 0.5, 1.0)]
    assert got == sorted(got)


def test_requests_of_a_higher_value_are_served_first(pool):
    value = np.where(np.arange(len(pool)) % 2 == 0, 1.0, 5.0)
    traffic = Traffic.drawn(pool, "balanced", "poisson", 500, 0, value)
    budget = round(500 * 0.25 * pool.median)
    outcome = serve(traffic, Posted(traffic, Pacer(budget, 3600.0), 3600.0), budget)
    dear = traffic.value > 1
    assert outcome.granted[dear].astype(bool).mean() > 2 * outcome.granted[~dear].astype(bool).mean()
    assert worth(traffic, outcome) >= 0.9 * worth(traffic, best_static(traffic, budget)[1])


@pytest.mark.parametrize("pattern", PATTERNS)
def test_after_three_windows_it_is_near_the_best_static_price(pool, pattern):
    found = np.array([window(pool, stream, pattern, 0.5, 0, 3) for stream in STREAMS])
    posted, static, first, spent = found.T
    assert posted.sum() >= 0.9 * static.sum()
    assert posted.sum() >= first.sum()
    assert np.nanmin(spent) >= 0.97
