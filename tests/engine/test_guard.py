"""Where forecasts say nothing, all answers grow to one level; where they say something, the index is followed."""

import numpy as np
import pytest

from shadowprice import Forecast, Request
from shadowprice.engine.bulk import simulate_lengths
from shadowprice.engine.guard import Guard
from shadowprice.engine.metered import Metered
from shadowprice.engine.simulate import simulate
from shadowprice.market.gittins import chunks
from shadowprice.market.level import level_of
from shadowprice.types import Completion

CAP = 4096


def decided(forecast, budget, lessons=2, age=0.0, leveled=False):
    n = len(forecast)
    known = forecast.take(np.arange(n)), np.full(n, float(CAP)), np.full(n, age), np.zeros(n)
    made = Guard()
    made.level = level_of(*known, budget) if leveled else None
    made.decide(lessons, forecast, chunks(*known), known, budget)
    return made.level


def alike(n=200):
    return Forecast(np.full(n, 300.0), 0.8, 0.5)


def served(forecast, ends, budget):
    made = Metered(max_tokens=CAP, concurrency=1)
    made.add([Request(f"q{i}", "?") for i in range(len(forecast))], forecast)
    return simulate_lengths(made, ends, budget, CAP).generated


def test_one_forecast_for_all_and_enough_for_most_is_a_level():
    assert decided(alike(), 200 * 300.0) is not None


def test_where_a_level_would_end_few_answers_the_index_is_followed():
    assert decided(alike(), 200 * 60.0) is None


def test_what_is_known_about_each_request_is_used():
    rng = np.random.default_rng(0)
    assert decided(Forecast(rng.lognormal(5.7, 0.8, 200), 0.1, 0.5), 200 * 300.0) is None


def test_chances_that_differ_are_used_as_well():
    assert decided(Forecast(np.full(200, 300.0), 0.8, np.repeat([0.02, 0.98], 100)), 200 * 200.0) is None


def test_nothing_is_decided_before_answers_have_shown_how_long_they_are():
    assert decided(alike(), 200 * 300.0, lessons=1) is None


def test_a_level_is_not_left_for_a_small_gain():
    budget = 200 * 200.0
    assert decided(alike(), budget) is None
    assert decided(alike(), budget, leveled=True) is not None


def test_of_many_requests_some_decide_for_all():
    few, many = decided(alike(1000), 1000 * 300.0), decided(alike(9500), 9500 * 300.0)
    assert many.age == pytest.approx(few.age)


@pytest.mark.parametrize("seed", range(3))
def test_a_law_that_misses_what_most_tokens_buy_costs_little_against_dividing_equally(seed):
    """Half of the answers end at 100 tokens, half at 2,000; the forecast has one hump, in between."""
    rng = np.random.default_rng(seed)
    ends = (np.where(rng.random(500) < 0.5, 100, 2000) * rng.lognormal(0, 0.1, 500)).astype(np.int64)
    budget = 500 * 150
    ordered = np.sort(ends)
    equal = ordered[np.searchsorted(np.cumsum(ordered) + ordered * np.arange(500)[::-1], budget)]
    assert np.mean(served(alike(500), ends, budget) >= ends) >= np.mean(ends <= equal) - 0.005


def test_in_one_process_a_level_is_reached_as_in_the_simulation_of_lengths():
    rng = np.random.default_rng(0)
    ends = (np.where(rng.random(120) < 0.5, 100, 2000) * rng.lognormal(0, 0.1, 120)).astype(np.int64)
    made = Metered(max_tokens=CAP, concurrency=1)
    made.add([Request(f"q{i}", "?") for i in range(120)], alike(120))

    def answer(work):
        left = int(ends[work.place]) - (work.so_far.tokens if work.so_far else 0)
        return Completion("", min(left, work.grant), "stop" if left <= work.grant else "length", "server")

    done, generated = simulate(made, answer, 120 * 150), np.zeros(120, dtype=np.int64)
    for work, found in zip(done.work, done.found, strict=True):
        generated[work.place] += found.tokens
    assert generated.tolist() == served(alike(120), ends, 120 * 150).tolist()


def test_where_answers_cannot_be_continued_each_may_grow_to_the_level():
    forecast, rng = alike(200), np.random.default_rng(0)
    ends = (np.where(rng.random(200) < 0.5, 100, 2000) * rng.lognormal(0, 0.1, 200)).astype(np.int64)
    made = Metered(max_tokens=CAP, concurrency=1, can_continue=lambda request: False)
    made.add([Request(f"q{i}", "?") for i in range(200)], forecast)

    def answer(work):
        left = int(ends[work.place])
        return Completion("", min(left, work.grant), "stop" if left <= work.grant else "length", "server")

    done = simulate(made, answer, 200 * 150)
    assert done.spent <= 200 * 150
    assert sum(found.finish == "stop" for found in done.found) >= 0.8 * np.count_nonzero(ends < 150)
