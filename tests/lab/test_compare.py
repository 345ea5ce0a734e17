"""Comparisons are paired, their intervals cover the truth, and the same seeds give the same rows."""

import numpy as np
import pytest

from shadowprice.lab.compare import Drawn, compare, compare_drawn
from shadowprice.lab.pools import Pool
from shadowprice.lab.simulations import ACCOUNTINGS, PRACTICAL, Attempts, Queries, Setup
from shadowprice.lab.streams import STREAMS
from shadowprice.types import Forecast, Trace

EVERYTHING = {policy: list(accountings) for policy, accountings in ACCOUNTINGS.items()}
FEW = {"uniform": ["reserved", "metered"], "clear": ["reserved", "reclaimed", "metered"], "oracle": ["reserved"]}


def rows_of(pool, policies=None, budgets=(18, 37), seeds=2, streams=("balanced",)):
    policies = policies or FEW
    return compare("t", pool, streams=streams, budgets=budgets, policies=policies, seeds=seeds, queries=200)


class TestRows:
    def test_one_for_every_cell_of_the_main_table(self, pool):
        rows = rows_of(pool, EVERYTHING, streams=tuple(STREAMS), budgets=(9, 18, 36, 73, 146), seeds=1)
        cells = {(row["stream"], row["budget"], row["policy"], row["accounting"]) for row in rows}
        assert len(cells) == len(rows) == len(STREAMS) * 5 * sum(map(len, ACCOUNTINGS.values()))
        for row in rows:
            charged = row["tokens_granted"] if row["accounting"] == "reserved" else row["tokens_spent"]
            assert charged <= row["budget"] + 1e-9
            assert row["ci_low"] - 1e-9 <= row["solved"] <= row["ci_high"] + 1e-9
            assert row["solved"] <= row["finished"] + 1e-9
            assert row["finished"] + row["cut"] + row["abandoned"] == pytest.approx(100)
            assert 0 <= row["tokens_cut"] + row["tokens_wrong"] <= row["tokens_spent"] + 1e-9

    def test_no_policy_is_above_hindsight_in_any_cell(self, pool):
        rows = rows_of(pool, EVERYTHING, streams=tuple(STREAMS), budgets=(9, 36, 146))
        best = {(r["stream"], r["budget"], r["policy"]): r for r in rows}
        for row in rows:
            cell = (row["stream"], row["budget"])
            assert row["solved"] <= best[(*cell, "clairvoyant")]["solved"] + 1e-9
            assert row["finished"] <= best[(*cell, "oracle")]["finished"] + 1e-9

    def test_a_gain_is_over_uniform_in_the_same_accounting(self, pool):
        rows = rows_of(pool)
        for row in rows:
            accounting = "reserved" if row["accounting"] == "reclaimed" else row["accounting"]
            uniform = next(
                r for r in rows if (r["policy"], r["accounting"], r["budget"]) == ("uniform", accounting, row["budget"])
            )
            assert row["gain"] == pytest.approx(row["solved"] - uniform["solved"])
            if row is uniform:
                assert row["gain_low"] == row["gain_high"] == 0

    def test_every_practical_row_has_the_command_of_its_way(self, pool):
        for row in rows_of(pool, EVERYTHING, seeds=1):
            queries = Queries.of(pool, np.arange(1))
            assert row["command"] == Setup(row["policy"], row["accounting"]).command(queries, row["budget"])
            assert bool(row["command"]) == (row["policy"] in PRACTICAL)
            assert row["reclaim"] == (row["accounting"] == "reclaimed")

    def test_tokens_of_finished_answers_that_are_not_correct_are_wrong(self):
        """Also of a query whose grant ends between a wrong attempt and a correct one."""
        length, correct = np.array([[30, 30]]), np.array([[False, True]])
        attempts = Attempts(length, np.ones((1, 2), dtype=bool), correct, 100)
        no, yes = np.array([False]), np.array([True])
        queries = Queries(Forecast([60.0]), attempts.tokens, yes, no, 200, attempts)
        drawn = Drawn([np.array([0])], [queries], np.zeros(1, dtype=np.intp))
        (row,) = compare_drawn({}, drawn, 60.0, budgets=[40], policies={"uniform": ["reserved"]})
        assert (row["solved"], row["tokens_spent"], row["tokens_wrong"]) == (0, 40, 40)

    def test_the_same_seeds_give_the_same_rows(self, pool):
        assert rows_of(pool) == rows_of(pool)
        assert rows_of(pool) != rows_of(pool, seeds=3)

    def test_a_seed_more_changes_no_seed_before_it(self, pool):
        one, two = (rows_of(pool, {"uniform": ["reserved"]}, seeds=seeds)[0]["solved"] for seeds in (1, 2))
        second = 2 * two - one
        assert 0 <= second <= 100
        assert second * 2 == pytest.approx(round(second * 2))  # of 200 queries: a whole number of halves


class TestIntervals:
    """Against what is known of repeated samples."""

    def drawn_from(self, rng, questions, seeds, share=0.4):
        """Streams of `questions` out of 1,000, of which a share is answered correctly with one token."""
        truth = rng.random(1000) < share
        places = [rng.permutation(1000)[:questions] for _ in range(seeds)]
        ones = np.ones(questions, dtype=np.int64)
        cut = np.zeros(questions, dtype=bool)
        queries = [Queries(Forecast(ones), ones, truth[each], cut, 1) for each in places]
        return Drawn(places, queries, np.zeros(1000, dtype=np.intp))

    def test_about_95_of_100_hold_the_truth(self):
        rng = np.random.default_rng(0)
        held = 0
        for _ in range(100):
            drawn = self.drawn_from(rng, 100, 1)
            (row,) = compare_drawn({}, drawn, 1.0, budgets=[1], policies={"uniform": ["reserved"]})
            held += row["ci_low"] <= 40 <= row["ci_high"]
        assert 88 <= held <= 99

    def test_a_question_asked_by_every_seed_is_no_further_evidence(self):
        rng = np.random.default_rng(1)
        one = self.drawn_from(rng, 200, 1)
        often = Drawn(one.places * 20, one.queries * 20, one.tier)
        widths = []
        for drawn in (one, often):
            (row,) = compare_drawn({}, drawn, 1.0, budgets=[1], policies={"uniform": ["reserved"]})
            widths.append(row["ci_high"] - row["ci_low"])
        assert widths[1] == pytest.approx(widths[0], rel=0.15)

    def test_a_paired_difference_has_a_narrower_interval_than_two_results(self):
        rng = np.random.default_rng(2)
        length = rng.integers(1, 21, 300)
        traces = [[Trace(f"{i}", f"{i}?", int(tokens), bool(i % 2))] for i, tokens in enumerate(length)]
        forecast = Forecast(length * np.exp(0.3 * rng.standard_normal(300)))
        uniform, oracle = rows_of(
            Pool("m", 20, traces, forecast, "made up"),
            {"uniform": ["reserved"], "oracle": ["reserved"]},
            budgets=[8],
        )
        apart = np.hypot(*(row["ci_high"] - row["ci_low"] for row in (uniform, oracle)))
        assert oracle["gain_low"] > 0
        assert oracle["gain_high"] - oracle["gain_low"] < 0.8 * apart
