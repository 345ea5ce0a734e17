"""Streams are mixed as documented, and no question is drawn twice before all of its tier are drawn once."""

import numpy as np
import pytest

from shadowprice.lab.pools import TIERS, recorded
from shadowprice.lab.streams import STREAMS, counts, draw
from shadowprice.types import Trace


def pool_of(*sizes):
    """A pool with so many questions in each tier, by the paper's datasets."""
    names = ("gsm8k", "math500", "olympiadbench", "aime24")
    datasets = [name for name, size in zip(names, sizes, strict=True) for _ in range(size)]
    (pool,) = recorded([Trace(f"q{i}", f"{i}?", 10 + i, True, dataset=name) for i, name in enumerate(datasets)])
    return pool


@pytest.mark.parametrize("stream", STREAMS)
def test_every_stream_is_a_mix_of_all_tiers(stream):
    assert len(STREAMS[stream]) == len(TIERS)
    assert sum(STREAMS[stream]) == pytest.approx(1)


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("n", [1, 7, 100, 333, 500])
def test_the_shares_are_as_documented(stream, n):
    pool = pool_of(300, 300, 300, 300)
    drawn = draw(pool, stream, n, seed=0)
    assert drawn.size == n
    found = np.bincount(pool.tier[drawn], minlength=4)
    assert np.abs(found - n * np.array(STREAMS[stream])).max() <= 1


def test_no_question_twice_where_there_are_enough():
    drawn = draw(pool_of(300, 300, 300, 300), "mostly-hard", 500, seed=3)
    assert np.unique(drawn).size == 500


def test_every_question_once_before_any_twice():
    pool = pool_of(100, 100, 100, 70)
    times = np.bincount(draw(pool, "mostly-hard", 300, seed=0), minlength=len(pool))
    assert counts(pool, "mostly-hard", 300)[3] == 180
    assert set(times[pool.tier == 3]) == {2, 3}
    assert set(times[pool.tier == 0]) == {0, 1}


def test_the_share_of_a_missing_tier_goes_to_the_nearest():
    assert counts(pool_of(0, 300, 300, 300), "u-shaped", 100) == [0, 50, 10, 40]
    assert counts(pool_of(300, 0, 300, 300), "u-shaped", 100) == [50, 0, 10, 40]  # of two, the easier
    assert counts(pool_of(300, 0, 0, 300), "balanced", 100) == [50, 0, 0, 50]


def test_a_seed_is_a_stream():
    pool = pool_of(300, 300, 300, 300)
    assert np.array_equal(draw(pool, "balanced", 200, 1), draw(pool, "balanced", 200, 1))
    assert not np.array_equal(draw(pool, "balanced", 200, 1), draw(pool, "balanced", 200, 2))
    assert not np.array_equal(draw(pool, "balanced", 200, 1), draw(pool, "u-shaped", 200, 1))


def test_every_question_is_drawn_by_some_seed():
    pool = pool_of(50, 50, 50, 50)
    drawn = np.concatenate([draw(pool, "balanced", 40, seed) for seed in range(40)])
    assert np.unique(drawn).size == len(pool)
