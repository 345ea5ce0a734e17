"""Forecasters: what they learn, and what they say of what they have not seen."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from shadowprice import InputError, Query
from shadowprice.forecast import PromptLength, Words
from shadowprice.types import Trace


def test_the_forecast_of_last_resort_grows_with_the_prompt():
    forecast = PromptLength().predict([Query("a", "x" * 100), Query("b", "x" * 1000), Query("c", "")])
    assert np.round(forecast.tokens).tolist() == [316, 562, 100]


def stories(count, seed):
    """Three kinds of questions of different length and difficulty."""
    rng = np.random.default_rng(seed)
    kinds = {
        "Add {} and {}.": (20, 0.9),
        "Explain at length why {} is not {}.": (300, 0.2),
        "Name {} of {}.": (60, 0.6),
    }
    for i in range(count):
        text, (median, chance) = list(kinds.items())[rng.integers(3)]
        tokens = int(median * rng.lognormal(0, 0.3)) + 1
        yield Trace(f"t{i}", text.format(*rng.integers(1, 9999, 2)), tokens, bool(rng.random() < chance))


class TestWords:
    def test_tells_kinds_of_questions_apart(self):
        unseen = list(stories(300, 2))
        forecast = Words().fit(stories(300, 1)).predict([Query(t.id, t.prompt) for t in unseen])
        assert spearmanr(forecast.tokens, [t.tokens for t in unseen]).statistic > 0.8
        easy = np.array([t.prompt.startswith("Add") for t in unseen])
        assert forecast.solve[easy].mean() > 0.75
        assert forecast.solve[~easy].mean() < 0.6

    def test_knows_how_far_off_it_is(self):
        forecast = Words().fit(stories(300, 1)).predict([Query("a", "Add 1 and 2.")])
        assert float(forecast.spread) == pytest.approx(0.3, abs=0.12)

    def test_is_the_same_every_time(self):
        queries = [Query("a", "Add 1 and 2."), Query("b", "Something never seen before")]
        one, two = (Words().fit(stories(100, 1)).predict(queries) for _ in range(2))
        assert np.array_equal(one.tokens, two.tokens)

    def test_needs_something_to_learn_from(self):
        with pytest.raises(InputError, match="too few"):
            Words().fit(stories(5, 1))
