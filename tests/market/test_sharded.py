"""A market in shards clears as it does on one node: the same price, the same admitted queries, the same certificate."""

from itertools import pairwise

import numpy as np
import pytest

from shadowprice.market import Expected, Surge, clear
from shadowprice.market.sharded import allocate_shards, clear_shards
from shadowprice.market.shards import LocalShards, Shard

from .markets import KINDS, SHARED_KINDS, mixed_market, shared_market, whole_demand

SHARDS = [1, 7, 64]


def cut(curves, parts, seed=0):
    """The market in parts of very different sizes; some may be empty."""
    edges = np.sort(np.random.default_rng(seed).integers(0, len(curves) + 1, parts - 1))
    ends = [0, *edges, len(curves)]
    return [Shard(curves.take(slice(low, high))) for low, high in pairwise(ends)]


def assert_same(curves, budget, parts):
    one = clear(curves, budget)
    shards = cut(curves, parts)
    cleared = clear_shards(LocalShards(shards), budget)
    tokens = np.concatenate([shard.tokens for shard in shards])
    admitted = np.concatenate([shard.admitted for shard in shards])
    assert cleared.status == one.status
    assert cleared.price == pytest.approx(one.price, rel=1e-9)
    assert np.array_equal(admitted, one.admitted)
    assert cleared.admitted == np.count_nonzero(one.admitted)
    assert np.allclose(tokens, one.tokens, rtol=1e-6, atol=1e-9 * budget)
    assert tokens.sum() <= budget * (1 + 1e-14)
    assert (cleared.utility, cleared.bound) == pytest.approx((one.utility, one.bound), rel=1e-9)
    return cleared


@pytest.fixture(scope="module")
def million():
    """Forecasts of a million requests with caps, and one node's clearing of them."""
    rng = np.random.default_rng(1)
    n = 1_000_000
    curves = Expected(rng.lognormal(6, 0.8, n), rng.uniform(0.2, 1, n), rng.uniform(0.05, 1, n), cap=4096.0)
    budget = 3e8
    return curves, budget, clear(curves, budget)


@pytest.mark.parametrize("parts", SHARDS)
def test_a_million_curves_of_their_own_shape(million, parts):
    curves, budget, one = million
    shards = cut(curves, parts)
    cleared = clear_shards(LocalShards(shards), budget)
    assert (cleared.status, cleared.price) == (one.status, pytest.approx(one.price, rel=1e-9))
    assert np.array_equal(np.concatenate([shard.admitted for shard in shards]), one.admitted)
    assert (cleared.utility, cleared.bound) == pytest.approx((one.utility, one.bound), rel=1e-9)
    assert cleared.gap <= one.gap + 1e-6
    assert cleared.rounds < 60  # each is one question to all shards


@pytest.mark.parametrize("parts", SHARDS)
@pytest.mark.parametrize("cap", [np.inf, 900.0])
def test_a_million_thresholds_of_one_shape(parts, cap):
    tau = np.random.default_rng(2).lognormal(6, 0.8, 1_000_000)
    assert_same(shared_market("surge", tau, 120.0, cap), 0.3 * tau.sum(), parts)


@pytest.mark.parametrize("share", [1e-4, 0.01, 0.3, 0.7, 1.2])
@pytest.mark.parametrize("kind", KINDS)
def test_any_mix_of_curves(kind, share):
    for size, capped in [(1, False), (3, True), (40, False), (1500, True)]:
        curves = mixed_market(kind, size, np.random.default_rng([size, round(1e4 * share)]), capped=capped)
        assert_same(curves, share * whole_demand(curves), 5)


@pytest.mark.parametrize("share", [1e-4, 0.01, 0.3, 0.7, 1.2])
@pytest.mark.parametrize("kind", SHARED_KINDS)
def test_any_shape_for_all(kind, share):
    for size, cap in [(1, np.inf), (3, 150.0), (40, 400.0), (1500, np.inf)]:
        tau = np.random.default_rng([size, round(1e4 * share)]).lognormal(5, 1, size)
        curves = shared_market(kind, tau, 70.0, cap)
        assert_same(curves, share * whole_demand(curves), 5)


@pytest.mark.parametrize("parts", SHARDS)
def test_equal_queries_are_admitted_in_order(parts):
    rng = np.random.default_rng(3)
    tau = rng.integers(1, 20, 5000) * 10.0
    assert_same(Surge(tau, 2.0, 0.02), 0.35 * tau.sum(), parts)
    same = Expected(np.full(5000, 200.0), 0.5, 0.8)
    shards = cut(same, parts)
    cleared = clear_shards(LocalShards(shards), 1e5)
    admitted = np.concatenate([shard.admitted for shard in shards])
    assert cleared.admitted == np.count_nonzero(clear(same, 1e5).admitted)
    assert np.array_equal(admitted, np.arange(5000) < cleared.admitted)


def test_nobody_and_nothing():
    empty = Surge(np.zeros(0))
    assert clear_shards(LocalShards([Shard(empty)]), 5.0).status == "ample"
    some = [Shard(empty), Shard(Surge([3.0, 4.0])), Shard(empty)]
    assert clear_shards(LocalShards(some), 0.0).status == "starved"
    assert clear_shards(LocalShards(some), 1.0).status == clear(Surge([3.0, 4.0]), 1.0).status == "starved"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [0.05, 0.4, 0.9, 2.0])
def test_whole_tokens_keep_to_the_budget_and_leave_nothing_idle(kind, share):
    curves = mixed_market(kind, 2000, np.random.default_rng(4)).capped(np.random.default_rng(5).integers(1, 900, 2000))
    budget = int(share * curves.cap.sum())
    shards = cut(curves, 7)
    allocated = allocate_shards(LocalShards(shards), budget)
    tokens = np.concatenate([shard.tokens for shard in shards])
    assert np.array_equal(tokens, np.floor(tokens))
    assert (tokens <= curves.cap).all()
    assert allocated.granted == tokens.sum() <= budget
    idle, waiting = budget - tokens.sum(), curves.cap[tokens == 0]
    assert not waiting.size or idle < waiting.min()


def test_a_whole_grant_reaches_the_threshold():
    tau = np.random.default_rng(6).uniform(20, 90, 500)
    shards = cut(Surge(tau, 2.0, 0.5, 200.0), 3)
    allocate_shards(LocalShards(shards), 12_000)
    tokens = np.concatenate([shard.tokens for shard in shards])
    assert (tokens[tokens > 0] >= tau[tokens > 0]).all()
