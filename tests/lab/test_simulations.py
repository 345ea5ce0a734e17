"""Simulations: budgets are held in every accounting, hindsight is never exceeded, and rows say what can be run."""

import shlex
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.cli import _parser
from shadowprice.cli.run import _settings
from shadowprice.engine import HINDSIGHT, Settings
from shadowprice.forecast.conditional import remaining
from shadowprice.forecast.intervals import quantile
from shadowprice.formats.traces import read_traces
from shadowprice.lab.pools import make_pool, recorded
from shadowprice.lab.simulations import ACCOUNTINGS, PRACTICAL, Attempts, Queries, Setup, outcome_of
from shadowprice.lab.streams import STREAMS, draw
from shadowprice.market.policies import allocate
from shadowprice.types import Forecast

from ..conftest import shared_traces

SETUPS = [Setup(policy, accounting) for policy, accountings in ACCOUNTINGS.items() for accounting in accountings]


def queries_of(lengths, correct=None, forecast=None, cap=1000, truncated=None):
    n = len(lengths)
    cut = np.zeros(n, dtype=bool) if truncated is None else np.array(truncated)
    good = np.ones(n, dtype=bool) if correct is None else np.array(correct)
    return Queries(Forecast(forecast or lengths), np.where(cut, cap, lengths), good & ~cut, cut, cap)


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
    correct = (rng.random(n) < draw(st.sampled_from([0.0, 0.5, 1.0]))) & ~truncated
    return Queries(forecast, np.where(truncated, cap, length), correct, truncated, cap)


def check_ways(queries: Queries, budget: int) -> None:
    found = {(setup.policy, setup.accounting): outcome_of(setup, queries, budget) for setup in SETUPS}
    for (policy, accounting), outcome in found.items():
        where = f"{policy}, {accounting}"
        assert outcome.spent.sum() <= budget, where
        if accounting == "reserved":
            assert outcome.granted.sum() <= budget, where
        assert np.all(outcome.spent <= outcome.granted), where
        assert np.all(outcome.granted <= queries.cap), where
        assert np.all(outcome.spent <= queries.length), where
        assert np.array_equal(outcome.finished, (outcome.granted >= queries.length) & ~queries.truncated), where
        assert np.array_equal(outcome.correct, outcome.finished & queries.correct), where
        assert outcome.finished.sum() <= found["oracle", "reserved"].finished.sum(), where
        assert outcome.correct.sum() <= found["clairvoyant", "reserved"].correct.sum(), where
        if accounting != "reserved" and policy in PRACTICAL and (policy, "reserved") in found:
            # More rounds lose nothing that was bought. What one clearing leaves goes to others, as far as it suffices.
            bought = allocate(queries.forecast, budget, policy, max_tokens=queries.cap).tokens > 0
            assert np.all((found[policy, "reserved"].finished & bought) <= outcome.finished), where


@settings(max_examples=60, deadline=None)
@given(any_queries(), st.floats(0, 3))
def test_budgets_are_held_and_hindsight_is_never_exceeded(queries, share):
    check_ways(queries, int(share * queries.length.sum()))


@pytest.mark.parametrize("stream", STREAMS)
def test_the_same_on_recorded_answers(pool, stream):
    queries = Queries.of(pool, draw(pool, stream, 200, seed=0))
    for times in (0.1, 0.5, 1, 2, 5):
        check_ways(queries, int(times * pool.median) * len(queries))


class TestReserved:
    def test_an_answer_finishes_if_its_grant_is_long_enough(self):
        outcome = outcome_of(Setup("uniform", "reserved"), queries_of([10, 30, 31, 50], [True, True, True, False]), 120)
        assert outcome.granted.tolist() == [30, 30, 30, 30]
        assert outcome.spent.tolist() == [10, 30, 30, 30]
        assert outcome.finished.tolist() == outcome.correct.tolist() == [True, True, False, False]

    def test_an_answer_that_never_ends_does_not_finish_at_the_cap(self):
        queries = queries_of([10, 100], truncated=[False, True], cap=100)
        outcome = outcome_of(Setup("uniform", "reserved"), queries, 200)
        assert outcome.finished.tolist() == [True, False]
        assert outcome.spent.tolist() == [10, 100]

    def test_hindsight_grants_nothing_to_answers_that_never_end(self):
        queries = queries_of([10, 100], truncated=[False, True], cap=100)
        assert outcome_of(Setup("oracle", "reserved"), queries, 1000).granted.tolist() == [10, 0]


class TestReclaimed:
    QUERIES = queries_of([10, 10, 50], forecast=[40.0, 40.0, 50.0])

    def test_unused_tokens_go_to_those_that_were_declined(self):
        once, again = (outcome_of(Setup("auction", each), self.QUERIES, 100) for each in ("reserved", "reclaimed"))
        assert once.finished.tolist() == [True, True, False]
        assert again.finished.tolist() == [True, True, True]
        assert again.spent.sum() <= 100

    def test_a_truncated_answer_stays_truncated(self):
        queries = queries_of([10, 60], forecast=[50.0, 50.0])
        assert outcome_of(Setup("uniform", "reclaimed"), queries, 100).spent.tolist() == [10, 50]

    def test_uniform_has_nothing_to_reclaim(self, pool):
        queries = Queries.of(pool, draw(pool, "balanced", 200, seed=0))
        reserved, reclaimed = (outcome_of(Setup("uniform", each), queries, 4000) for each in ("reserved", "reclaimed"))
        assert np.array_equal(reserved.granted, reclaimed.granted)


class TestMetered:
    def test_unused_tokens_go_to_answers_that_were_truncated(self):
        # 40 each; the first returns 30, which are divided among the two others, who continue at 40.
        outcome = outcome_of(Setup("uniform", "metered"), queries_of([10, 55, 100]), 120)
        assert outcome.spent.tolist() == [10, 55, 55]
        assert outcome.correct.tolist() == [True, True, False]

    def test_the_whole_budget_is_spent_before_an_answer_stays_truncated(self):
        queries = queries_of([10, 55, 100])
        assert outcome_of(Setup("uniform", "metered"), queries, 165).correct.all()
        assert outcome_of(Setup("uniform", "metered"), queries, 164).correct.sum() == 2

    def test_an_answer_that_continues_needs_only_the_rest(self):
        """Of two equal forecasts, the answer that was truncated costs less than another one from its start."""
        queries = queries_of([20, 45, 300], forecast=[40.0, 40.0, 300.0])
        outcome = outcome_of(Setup("clear", "metered"), queries, 80)
        assert outcome.correct.tolist() == [True, True, False]

    @pytest.mark.parametrize("tail", [None, 3.0])
    def test_half_of_those_that_continue_end_within_what_is_expected(self, tail):
        forecast = Forecast(100.0, 0.8, tail=tail)
        lengths = quantile(forecast, np.linspace(0.0005, 0.9995, 1000))
        for age in (1, 50, 100, 400):
            left = remaining(forecast, np.array([age])).tokens
            longer = lengths[lengths > age]
            assert np.mean(longer <= age + left) == pytest.approx(0.5, abs=2 / longer.size + 1e-9)
        assert remaining(forecast, np.array([0])).tokens == 100

    def test_useless_forecasts_do_not_stop_it(self):
        queries = queries_of([100, 200, 300], forecast=[1.0, 1.0, 1.0])
        assert outcome_of(Setup("clear", "metered"), queries, 600).correct.all()

    @pytest.mark.parametrize("policy", ["uniform", "index"])
    def test_no_budget_no_answers(self, policy):
        outcome = outcome_of(Setup(policy, "metered"), queries_of([10, 20]), 0)
        assert outcome.spent.sum() == outcome.granted.sum() == 0
        assert not outcome.correct.any()


def with_attempts(*outcomes, cap=100):
    """Queries with attempts of (tokens, correct) each."""
    length = np.array([[min(tokens, cap) for tokens, _ in each] for each in outcomes])
    ended = np.array([[tokens <= cap for tokens, _ in each] for each in outcomes])
    correct = ended & np.array([[good for _, good in each] for each in outcomes])
    attempts = Attempts(length, ended, correct, cap)
    whole = queries_of(attempts.tokens.tolist(), correct.any(axis=1), cap=length.shape[1] * cap)
    return replace(whole, attempts=attempts)


class TestAttempts:
    def test_share_the_grant_until_one_is_correct(self):
        queries = with_attempts([(10, False), (20, True), (30, True)], [(10, False), (20, False), (30, False)])
        outcome = outcome_of(Setup("uniform", "reserved"), queries, 200)
        assert outcome.spent.tolist() == queries.length.tolist() == [30, 60]
        assert outcome.correct.tolist() == [True, False]
        assert outcome.finished.all()

    def test_one_that_is_truncated_by_the_grant_is_not_correct(self):
        queries = with_attempts([(30, False), (30, True)])
        outcome = outcome_of(Setup("uniform", "reserved"), queries, 59)
        assert (outcome.spent.item(), outcome.finished.item(), outcome.correct.item()) == (59, True, False)

    def test_one_that_is_truncated_by_its_cap_is_paid_and_the_next_one_is_made(self):
        queries = with_attempts([(500, True), (30, True)], cap=100)
        outcome = outcome_of(Setup("uniform", "reserved"), queries, 200)
        assert (outcome.spent.item(), outcome.correct.item()) == (130, True)

    @given(st.integers(0, 2**32), st.floats(0, 2))
    @settings(max_examples=30, deadline=None)
    def test_hold_the_budget(self, seed, share):
        rng = np.random.default_rng(seed)
        outcomes = [[(int(rng.integers(1, 150)), bool(rng.random() < 0.4)) for _ in range(3)] for _ in range(12)]
        queries = with_attempts(*outcomes)
        budget = int(share * queries.length.sum())
        for setup in SETUPS:
            if setup.accounting != "metered":
                outcome = outcome_of(setup, queries, budget)
                assert outcome.spent.sum() <= budget
                assert np.all(outcome.spent <= queries.length)
                assert not np.any(outcome.correct & ~queries.correct)


def settings_from(command: str) -> Settings:
    """The settings of a command line, read by the command itself."""
    program, *arguments = shlex.split(command)
    assert program == "shadowprice"
    return Settings(**_settings(_parser().parse_args(arguments), []))


class TestCommands:
    @pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: f"{setup.policy} {setup.accounting}")
    def test_run_the_settings_of_their_setup(self, setup):
        queries = queries_of([10, 20], cap=300)
        command = setup.command(queries, 128)
        if setup.policy in HINDSIGHT:
            assert command == ""
            return
        assert settings_from(command) == replace(setup.settings(queries), concurrency=Settings.concurrency)
        assert "--budget 128/query" in command
        assert "--max-tokens 300" in command

    def test_carry_the_options_of_the_policy(self):
        setup = Setup("clear", "reserved", {"beta": 0.00234, "alpha": 200.0})
        assert settings_from(setup.command(queries_of([10]), 5)).options == setup.options

    def test_of_attempts_name_their_number_and_their_cap(self):
        queries = with_attempts([(10, False), (20, True), (30, True), (30, True)], cap=1024)
        command = Setup("clear", "reserved").command(queries, 512)
        assert "--samples 4 --max-tokens 1024" in command
        assert "--gold" in command  # without it no attempt is known to be correct
        assert settings_from(command).samples == 4


REFERENCE = {  # percent correct at 128, 256, 512 and 1024 tokens per query
    ("uniform", "reserved"): (0.00, 2.87, 31.67, 58.47),
    ("clear", "reserved"): (13.20, 22.20, 32.93, 59.13),
    ("clear", "metered"): (20.87, 34.53, 51.47, 62.87),
    ("expected", "reserved"): (16.73, 29.40, 45.67, 58.87),
    ("index", "metered"): (25.13, 41.20, 57.93, 62.87),
    ("oracle", "reserved"): (28.73, 44.27, 59.00, 62.87),
}


@pytest.fixture(scope="module")
def streams() -> list[Queries]:
    """The balanced streams of three seeds, of Qwen2.5-14B-Instruct, with cross-fitted forecasts."""
    pool = make_pool(recorded(read_traces(shared_traces("qwen2.5-14b-instruct.math")), 4096)[0])
    return [Queries.of(pool, draw(pool, "balanced", 500, seed)) for seed in range(3)]


@pytest.mark.parametrize(("policy", "accounting"), REFERENCE)
def test_results_on_a_large_model_are_those_known(streams, policy, accounting):
    for budget, known in zip((128, 256, 512, 1024), REFERENCE[policy, accounting], strict=True):
        found = [outcome_of(Setup(policy, accounting), some, 500 * budget) for some in streams]
        assert all(outcome.spent.sum() <= 500 * budget for outcome in found)
        assert 100 * np.mean([outcome.correct for outcome in found]) == pytest.approx(known, abs=0.2)
