"""The index rule on recorded answers: how much of the way to perfect knowledge it goes.

benchmarks/metered.py prints the cells behind these tests, and counts all of the models.
"""

from dataclasses import replace

import numpy as np
import pytest

from shadowprice.forecast.calibration import Calibration
from shadowprice.lab.compare import compare
from shadowprice.lab.pool import make_pool, recorded, trained_without
from shadowprice.lab.streams import STREAMS
from shadowprice.tracefile import read_traces
from shadowprice.types import Forecast

from ..conftest import shared_traces

BOTH, METERED = ["reserved", "metered"], ["metered"]
POLICIES = {"uniform": BOTH, "clear": BOTH, "metered": METERED, "oracle": METERED}
SCARCE = (0.25, 0.5, 1.0)  # times the median length


def cells(pool, times=SCARCE, seeds=5, policies=POLICIES):
    """Percent solved, for every stream and budget: {("clear", "reserved"): .., ..}."""
    found = {}
    budgets = [max(1, round(each * pool.median)) for each in times]
    for row in compare("", pool, streams=list(STREAMS), budgets=budgets, policies=policies, seeds=seeds, queries=500):
        cell = found.setdefault((row["stream"], row["budget"]), {})
        cell[row["policy"], row["accounting"]] = row["solved"]
    return list(found.values())


def gaps(found):
    """Of the way from CLEAR to the oracle, the share that the index goes."""
    clear, index, oracle = (np.array([cell[key] for cell in found]) for key in KEYS)
    return (index - clear) / (oracle - clear)


KEYS = [("clear", "reserved"), ("metered", "metered"), ("oracle", "metered")]


def behind(cell, *policies, accountings=("reserved", "metered")):
    """Points below the best of these policies; negative: ahead of all of them."""
    best = max(cell[policy, accounting] for policy in policies for accounting in accountings)
    return best - cell["metered", "metered"]


@pytest.fixture(scope="module")
def large():
    return recorded(read_traces(shared_traces("qwen2.5-14b-instruct.math")), 4096)


@pytest.fixture(scope="module")
def cross_fitted(large):
    return make_pool(large[0])


class TestALargeModel:
    def test_with_a_forecaster_from_elsewhere_and_a_hundred_traces(self, large):
        names = ("llama-3.1-8b-instruct.math-train", "zeroeval-12-models.gsm8k-mathl5")
        train = [trace for name in names for trace in read_traces(shared_traces(name))]
        elsewhere, _ = trained_without(train, large)
        found = cells(make_pool(large[0], elsewhere, calibrate=100, about="trained elsewhere"))
        assert gaps(found).mean() >= 0.6
        assert gaps(found).min() >= 0.35
        assert max(behind(cell, "uniform", "clear") for cell in found) <= 0.5

    def test_cross_fitted(self, cross_fitted):
        found = cells(cross_fitted)
        assert gaps(found).mean() >= 0.8
        assert gaps(found).min() >= 0.6

    def test_at_no_budget_it_is_below_uniform_and_clear(self, cross_fitted):
        for cell in cells(cross_fitted, (0.15, *SCARCE, 1.5, 2.0, 3.0, 4.0)):
            assert behind(cell, "uniform", "clear") <= 0.5

    def test_with_all_questions_alike_it_is_no_worse_than_metered_uniform(self, cross_fitted):
        pool = cross_fitted
        traces = [
            replace(trace, tokens=int(length), truncated=bool(cut), correct=bool(right))
            for trace, length, cut, right in zip(pool.first, pool.length, pool.truncated, pool.correct, strict=True)
        ]
        alike = Forecast(pool.median, 0.5, 0.5).take(np.zeros(len(pool), dtype=np.intp))
        for cell in cells(replace(pool, forecast=Calibration.fit(alike, traces).apply(alike))):
            assert behind(cell, "uniform", accountings=METERED) <= 0.5


def test_heavy_tails_of_other_models():
    models = recorded(read_traces(shared_traces("zeroeval-12-models.gsm8k-mathl5")))
    policies = dict.fromkeys(("uniform", "clear", "metered"), METERED)
    short = [
        behind(cell, "uniform", "clear", accountings=METERED)
        for model in models[::4]
        for cell in cells(make_pool(model), seeds=3, policies=policies)
    ]
    assert np.mean(np.array(short) <= 1e-9) >= 0.9
    assert max(short) <= 2


class TestTheShippedModel:
    def test_it_closes_most_of_the_gap(self, pool):
        found = cells(pool)
        assert gaps(found).mean() >= 0.6
        assert max(behind(cell, "uniform", "clear") for cell in found) <= 0.5

    def test_with_lengths_known_it_is_the_oracle(self, pool):
        ends = np.where(pool.truncated, 8 * pool.cap, pool.length).astype(float)
        for cell in cells(replace(pool, forecast=Forecast(ends, 0.02, 0.5))):
            assert cell["metered", "metered"] == pytest.approx(cell["oracle", "metered"], abs=0.5)
