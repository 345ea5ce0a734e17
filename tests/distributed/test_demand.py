"""Grants for blocks of rows."""

import numpy as np

from shadowprice.cost import TOKENS
from shadowprice.distributed.demand import Gathered, find_twice
from shadowprice.distributed.tables import forecast_columns
from shadowprice.market.policies import allocate
from shadowprice.types import Forecast


def gathered(forecast, cap, sizes):
    """Numbers of blocks, as they arrive from other processes."""
    made = object.__new__(Gathered)
    made.sizes, made._rates = sizes, TOKENS
    made._numbers = {**forecast_columns(forecast), "cap": cap, "prompt": np.zeros(len(forecast))}
    return made


def test_blocks_are_granted_what_one_market_grants():
    rng = np.random.default_rng(0)
    forecast = Forecast(rng.uniform(20, 400, 60), 0.4, rng.uniform(0.2, 1, 60))
    cap = np.full(60, 500.0)
    nobody = [np.zeros(size, dtype=bool) for size in (10, 25, 25)]
    grants, cleared = gathered(forecast, cap, [10, 25, 25]).divide(6000, "expected", {}, nobody)
    one = allocate(forecast, 6000, "expected", max_tokens=cap)
    assert np.concatenate(grants).tolist() == one.tokens.tolist()
    assert [len(block) for block in grants] == [10, 25, 25]
    assert (cleared.price, cleared.admitted) == (one.price, np.count_nonzero(one.tokens))


def test_what_has_ended_is_granted_nothing_more():
    forecast = Forecast(np.full(6, 50.0))
    ended = [np.array([True, False, True]), np.array([False, False, True])]
    grants, cleared = gathered(forecast, np.full(6, 100.0), [3, 3]).divide(1000, "expected", {}, ended)
    assert [(block > 0).tolist() for block in grants] == [[False, True, False], [True, True, False]]
    assert cleared.queries == 3


def test_names_that_are_used_twice_are_found():
    names = np.array([5, 9, 5, 7, 9, 9, 1], dtype=np.uint64)
    assert find_twice(names).tolist() == [5, 9]
    assert find_twice(names[:2]).size == 0
