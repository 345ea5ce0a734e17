"""One shard answers questions about its own queries."""

import numpy as np

from shadowprice.market import Expected, Surge
from shadowprice.market.shards import LocalShards, Shard


def test_levels_count_and_add_up_thresholds():
    shard = Shard(Surge([30.0, 10.0, 20.0, 20.0, 500.0]))
    assert shard.sort(cap=400.0) == 4
    counts, sums = shard.levels(np.array([5.0, 20.0, 100.0]))
    assert (counts.tolist(), sums.tolist()) == ([0, 3, 4], [0.0, 50.0, 80.0])
    counts, _ = shard.levels(np.array([20.0]), "left")
    assert counts.tolist() == [1]


def test_knots_are_strictly_between():
    shard = Shard(Surge(np.arange(1.0, 1001.0)))
    shard.sort(np.inf)
    knots = shard.knots(10.0, 500.0)
    assert knots.min() > 10
    assert knots.max() < 500
    assert 2 < knots.size < 100
    assert shard.knots(10.0, 11.0).size == 0


def test_demand_at_a_price_is_that_of_those_who_can_pay_it():
    curves = Expected([100.0, 200.0, 400.0], 0.4, [0.9, 0.5, 0.1])
    shard = Shard(curves)
    shard.rank(1e9)
    price = float(np.sort(curves.reservation())[1])
    can_pay = curves.reservation() >= price
    assert np.isclose(shard.demand(price), (curves.follow(price) * can_pay).sum())
    assert shard.between(0.0, price) == 1


def test_shards_answer_in_their_order():
    shards = LocalShards([Shard(Surge([1.0])), Shard(Surge([1.0, 2.0]))])
    assert [part.size for part in shards.all("describe")] == [1, 2]
    shards.each("extend", [(5.0, 0, 1.0, 9.0), (2.0, 0, 1.0, 9.0)])
    assert [tokens for tokens, _ in shards.all("outcome")] == [2.0, 2.0]
