"""What was computed before is not computed again, and nothing else is returned in its place."""

import numpy as np
import pytest

from shadowprice import Forecast, Request
from shadowprice.engine import Settings, make_scheduler
from shadowprice.engine.bulk import simulate_lengths
from shadowprice.engine.recall import Recall, call


def test_the_same_arguments_are_computed_once():
    calls = []

    def total(numbers, factor):
        calls.append(factor)
        return factor * numbers.sum()

    recall = Recall()
    assert [recall(total, np.arange(4), 2), recall(total, np.arange(4), 2)] == [12, 12]
    assert calls == [2]
    assert recall(total, np.arange(5), 2) == 20
    assert recall(total, np.arange(4), 3) == 18
    assert call(total, np.arange(4), 3) == 18
    assert calls == [2, 2, 3, 3]


def test_functions_are_told_apart():
    recall = Recall()
    assert recall(np.sum, np.arange(4)) == 6
    assert recall(np.max, np.arange(4)) == 3


@pytest.mark.parametrize("alike", [False, True], ids=["by index", "to a level"])
def test_runs_that_share_what_they_compute_are_those_that_do_not(alike):
    random = np.random.default_rng(3)
    n, cap = 200, 4000
    tokens = random.lognormal(5, 1, n)
    forecast = Forecast(np.full(n, 150.0), 0.8, 0.5) if alike else Forecast(tokens, 0.5, random.uniform(0, 1, n))
    ends = np.ceil(np.minimum(tokens * np.exp(0.5 * random.standard_normal(n)), cap + 1)).astype(np.int64)

    def run(budget, recall):
        scheduler = make_scheduler(Settings("index", "metered", concurrency=1, max_tokens=cap))
        scheduler.add([Request("", "")] * n, forecast)
        scheduler.recall = recall
        return simulate_lengths(scheduler, ends, budget, cap).generated.tolist(), scheduler.rounds

    shared = Recall()
    for budget in (5_000, 80_000, 20_000, 40_000):
        assert run(budget, shared) == run(budget, call)


def test_what_is_given_is_passed_on_and_not_compared():
    recall, calls = Recall(), []

    def add(number, more):
        calls.append(more)
        return number + len(more)

    assert recall(add, 1, given=(["a"],)) == recall(add, 1, given=(["a"],)) == call(add, 1, given=(["a"],)) == 2
    assert len(calls) == 2
