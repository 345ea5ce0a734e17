"""The index on recorded answers: how much of the gap between CLEAR and the oracle it closes.

benchmarks/metered.py prints the cells behind these tests, and has all models.
"""

import numpy as np
import pytest
from benchmarks.metered import SCARCE, alike, cells, gap, known

from shadowprice.formats.traces import read_traces
from shadowprice.lab.pools import make_pool, recorded, trained_without

from ..conftest import shared_traces

METERED = ("uniform metered", "clear metered")
BOTH = (*METERED, "uniform", "clear")


def gaps(found):
    return np.array([gap(cell) for cell in found.values()])


def behind(found, policies=BOTH):
    """Points below the best of these policies, in every cell; negative: ahead of all of them."""
    return np.array([max(cell[name] for name in policies) - cell["index"] for cell in found.values()])


@pytest.fixture(scope="module")
def large():
    return recorded(read_traces(shared_traces("qwen2.5-14b-instruct.math")), 4096)


@pytest.fixture(scope="module")
def cross_fitted(large):
    return make_pool(large[0])


class TestALargeModel:
    def test_with_a_forecaster_trained_elsewhere_and_a_hundred_traces(self, large):
        names = ("llama-3.1-8b-instruct.math-train", "zeroeval-12-models.gsm8k-mathl5")
        train = [trace for name in names for trace in read_traces(shared_traces(name))]
        elsewhere, _ = trained_without(train, large)
        found = cells(make_pool(large[0], elsewhere, calibrate=100, about="trained elsewhere"), SCARCE)
        assert gaps(found).mean() >= 0.6
        assert gaps(found).min() >= 0.35
        assert behind(found).max() <= 0.5

    def test_cross_fitted(self, cross_fitted):
        found = cells(cross_fitted, SCARCE)
        assert gaps(found).mean() >= 0.8
        assert gaps(found).min() >= 0.6

    def test_at_no_budget_it_is_below_uniform_and_clear(self, cross_fitted):
        assert behind(cells(cross_fitted, (0.15, *SCARCE, 1.5, 2.0, 3.0, 4.0))).max() <= 0.5

    def test_with_all_questions_alike_it_is_no_worse_than_metered_uniform(self, cross_fitted):
        assert behind(cells(alike(cross_fitted), SCARCE), ["uniform metered"]).max() <= 0.5


def test_heavy_tails_of_other_models():
    models = recorded(read_traces(shared_traces("zeroeval-12-models.gsm8k-mathl5")))
    short = np.concatenate([behind(cells(make_pool(model), SCARCE, seeds=3), METERED) for model in models[::4]])
    assert np.mean(short <= 1e-9) >= 0.9
    assert short.max() <= 2


class TestTheShippedModel:
    def test_it_closes_most_of_the_gap(self, pool):
        found = cells(pool, SCARCE)
        assert gaps(found).mean() >= 0.6
        assert behind(found).max() <= 0.5

    def test_with_lengths_known_it_is_the_oracle(self, pool):
        for cell in cells(known(pool), SCARCE).values():
            assert cell["index"] == pytest.approx(cell["oracle"], abs=0.5)
