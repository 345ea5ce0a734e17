"""Replaying grants: budgets are kept in their own accounting, and hindsight is never beaten."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.forecast.intervals import quantile
from shadowprice.lab.replay import REPLAYS, Outcome, Queries, metered, remaining, reserved
from shadowprice.lab.streams import STREAMS, draw
from shadowprice.types import Forecast

CELLS = [(policy, accounting) for policy, replays in REPLAYS.items() for accounting in replays]


def queries_of(lengths, correct=None, forecast=None, cap=1000, truncated=None):
    n = len(lengths)
    cut = np.zeros(n, dtype=bool) if truncated is None else np.array(truncated)
    right = np.ones(n, dtype=bool) if correct is None else np.array(correct)
    return Queries(Forecast(forecast or lengths), np.where(cut, cap, lengths), right & ~cut, cut, cap)


@st.composite
def any_queries(draw):
    n = draw(st.integers(1, 30))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    cap = draw(st.sampled_from([1, 7, 300, 5000]))
    length = np.clip(rng.lognormal(4, draw(st.sampled_from([0.0, 0.5, 2.0])), n), 1, None).astype(np.int64)
    truncated = (length > cap) | (rng.random(n) < draw(st.sampled_from([0.0, 0.3, 1.0])))
    forecast = Forecast(
        np.clip(length * rng.lognormal(0, draw(st.sampled_from([0.0, 0.7])), n), 1, None),
        rng.uniform(0.1, 1.5, n),
        rng.uniform(0, 1, n),
        tail=draw(st.sampled_from([None, 2.0])),
    )
    right = (rng.random(n) < draw(st.sampled_from([0.0, 0.5, 1.0]))) & ~truncated
    return Queries(forecast, np.where(truncated, cap, length), right, truncated, cap)


def check_cells(queries: Queries, budget: int) -> dict[tuple[str, str], Outcome]:
    found = {(policy, accounting): REPLAYS[policy][accounting](queries, budget, policy) for policy, accounting in CELLS}
    for (policy, accounting), outcome in found.items():
        where = f"{policy}, {accounting}"
        charged = outcome.granted if accounting == "reserved" else outcome.spent
        assert charged.sum() <= budget, where
        assert np.all(outcome.spent <= outcome.granted), where
        assert np.all(outcome.granted <= queries.cap), where
        assert np.all(outcome.spent <= queries.length), where
        assert np.array_equal(outcome.finished, (outcome.granted >= queries.length) & ~queries.truncated), where
        assert np.array_equal(outcome.solved, outcome.finished & queries.correct), where
        assert outcome.finished.sum() <= found["oracle", accounting].finished.sum(), where
        assert outcome.solved.sum() <= found["clairvoyant", accounting].solved.sum(), where
        if accounting == "metered" and (policy, "reserved") in found and policy not in ("oracle", "clairvoyant"):
            assert np.all(found[policy, "reserved"].finished <= outcome.finished), where  # nothing is lost by metering
    return found


@settings(max_examples=60, deadline=None)
@given(any_queries(), st.floats(0, 3))
def test_budgets_are_kept_and_hindsight_dominates(queries, share):
    check_cells(queries, int(share * queries.length.sum()))


@pytest.mark.parametrize("stream", STREAMS)
def test_the_same_on_recorded_answers(pool, stream):
    queries = Queries.of(pool, draw(pool, stream, 200, seed=0))
    for times in (0.1, 0.5, 1, 2, 5):
        check_cells(queries, int(times * pool.median) * len(queries))


class TestReserved:
    def test_an_answer_is_complete_if_its_grant_reaches_it(self):
        outcome = reserved(queries_of([10, 30, 31, 50], [True, True, True, False]), 120, "uniform")
        assert outcome.granted.tolist() == [30, 30, 30, 30]
        assert outcome.spent.tolist() == [10, 30, 30, 30]
        assert outcome.finished.tolist() == outcome.solved.tolist() == [True, True, False, False]

    def test_an_answer_that_never_ends_is_not_complete_at_the_cap(self):
        outcome = reserved(queries_of([10, 100], truncated=[False, True], cap=100), 200, "uniform")
        assert outcome.finished.tolist() == [True, False]
        assert outcome.spent.tolist() == [10, 100]

    def test_hindsight_gives_nothing_to_answers_that_never_end(self):
        queries = queries_of([10, 100], truncated=[False, True], cap=100)
        assert reserved(queries, 1000, "oracle").granted.tolist() == [10, 0]


class TestMetered:
    def test_what_is_not_used_goes_to_those_who_were_cut(self):
        # 40 each; 30 come back from the first and are divided among the two others, who go on at 40.
        outcome = metered(queries_of([10, 55, 100]), 120, "uniform")
        assert outcome.spent.tolist() == [10, 55, 55]
        assert outcome.solved.tolist() == [True, True, False]

    def test_everything_is_spent_before_anyone_is_left_without(self):
        queries = queries_of([10, 55, 100])
        assert metered(queries, 165, "uniform").solved.all()
        assert metered(queries, 164, "uniform").solved.sum() == 2

    def test_answers_that_run_on_are_expected_to_run_on(self):
        """Of two who were forecast alike, the one that was cut is not begun again: it needs only what is left."""
        queries = queries_of([20, 45, 300], forecast=[40.0, 40.0, 300.0])
        outcome = metered(queries, 80, "clear")
        assert outcome.solved.tolist() == [True, True, False]
        assert outcome.spent.sum() <= 80

    @pytest.mark.parametrize("tail", [None, 3.0])
    def test_half_of_those_who_run_on_end_within_what_is_expected(self, tail):
        forecast = Forecast(100.0, 0.8, tail=tail)
        lengths = quantile(forecast, np.linspace(0.0005, 0.9995, 1000))
        for age in (1, 50, 100, 400):
            left = remaining(forecast, np.array([age])).tokens
            longer = lengths[lengths > age]
            assert np.mean(longer <= age + left) == pytest.approx(0.5, abs=2 / longer.size + 1e-9)
        assert remaining(forecast, np.array([0])).tokens == 100

    def test_useless_forecasts_do_not_stop_it(self):
        queries = queries_of([100, 200, 300], forecast=[1.0, 1.0, 1.0])
        assert metered(queries, 600, "clear").solved.all()

    def test_no_budget_no_answers(self):
        outcome = metered(queries_of([10, 20]), 0, "uniform")
        assert outcome.spent.sum() == outcome.granted.sum() == 0
        assert not outcome.solved.any()
