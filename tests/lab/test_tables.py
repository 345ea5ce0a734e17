"""The paper's own figures, and best of K."""

import numpy as np
import pytest

from shadowprice.lab import paper
from shadowprice.lab.config import Lab, LeftOut
from shadowprice.lab.pools import recorded
from shadowprice.lab.tables import best_of_k, code_best_of_k, datasets
from shadowprice.types import Trace


class TestThePapersFigures:
    def test_are_marked_as_such(self):
        rows = paper.main() + paper.second_model() + paper.variants() + paper.code_best_of_k() + paper.datasets()
        assert {row["source"] for row in rows} == {"paper"}

    def test_gains_are_those_printed(self):
        """The bottom row of table 1, which was not typed in."""
        solved = {(r["stream"], r["budget"], r["policy"]): r["solved"] for r in paper.main()}
        printed = {
            "balanced": (11.6, 4.0, 1.4, 1.2),
            "mostly-easy": (24.0, 6.6, 2.0, 0.0),
            "mostly-hard": (5.2, 1.8, 1.4, 1.4),
            "u-shaped": (14.2, 4.8, 1.4, 0.4),
        }
        for stream, gains in printed.items():
            for budget, gain in zip((256, 512, 1024, 2048), gains, strict=True):
                assert solved[stream, budget, "clear"] - solved[stream, budget, "uniform"] == pytest.approx(gain)

    def test_those_of_the_second_model_too(self):
        solved = {(r["stream"], r["budget"], r["policy"]): r["solved"] for r in paper.second_model()}
        gains = [
            round(solved[stream, budget, "clear"] - solved[stream, budget, "uniform"], 1)
            for stream in ("balanced", "mostly-easy", "mostly-hard", "u-shaped")
            for budget in (1024, 4096)
        ]
        assert gains == [2.4, 0.4, 0.8, 0.2, 2.2, 0.6, 0.6, 0.6]

    def test_pass_rates_are_those_printed(self):
        printed = {"MATH 500": 70.8, "OlympiadBench": 13.0, "AMC-23": 47.5, "AIME 2024": 26.7, "Minerva": 12.9}
        for row in paper.datasets():
            if row["model"] == paper.SMALL and row["dataset"] in printed:
                assert row["solved"] == pytest.approx(printed[row["dataset"]], abs=0.06)


def attempts(question, *outcomes, **fields):
    """(tokens, right) for every attempt."""
    return [
        Trace(f"q{question}", f"Write program {question} of a kind.", tokens, right, sample=i, model="m", **fields)
        for i, (tokens, right) in enumerate(outcomes)
    ]


class TestBestOfK:
    def pool(self, *outcomes, cap=1024):
        """40 questions with the same four attempts, in whatever order a seed takes them."""
        traces = [t for q in range(40) for t in attempts(q, *outcomes)]
        (model,) = recorded(traces, cap=cap)
        return best_of_k(model, model.questions, seed=0)

    def test_the_first_attempt_that_passes_stops_the_rest(self):
        pool = self.pool((10, True), (10, True), (10, True), (10, True))
        assert pool.length.tolist() == [10] * 40
        assert pool.correct.all()

    def test_attempts_that_fail_are_paid_before_it(self):
        pool = self.pool((100, False), (100, False), (100, False), (7, True))
        assert set(pool.length) == {7, 107, 207, 307}  # wherever the right one stands
        assert pool.correct.all()

    def test_all_are_paid_where_none_passes(self):
        pool = self.pool((1, False), (2, False), (3, False), (4, False))
        assert set(pool.length) == {10}
        assert not pool.correct.any()

    def test_no_attempt_costs_more_than_its_cap_or_passes_beyond_it(self):
        pool = self.pool((3000, True), (5000, False), (2000, True), (1500, True), cap=8192)
        assert set(pool.length) == {4 * 1024}
        assert not pool.correct.any()

    def test_an_attempt_that_is_cut_costs_its_cap_and_the_next_one_is_made(self):
        pool = self.pool((5000, True), (7, True), (7, True), (7, True), cap=8192)
        assert set(pool.length) == {7, 1024 + 7}
        assert pool.correct.all()

    def test_four_of_many_are_taken(self):
        traces = [t for q in range(40) for t in attempts(q, *[(10, False)] * 30)]
        (model,) = recorded(traces)
        assert set(best_of_k(model, model.questions, seed=0).length) == {40}

    def test_the_table(self):
        rng = np.random.default_rng(0)
        traces = []
        for q in range(60):
            need = 20 + 10 * (q % 6)
            outcomes = [(int(need * rng.lognormal(0, 0.2)), bool(rng.random() < 0.6)) for _ in range(6)]
            kind = "short list sorted" if q % 6 < 3 else "long graph shortest path tree balanced"
            traces += [
                Trace(f"q{q}", f"Program {q}: {kind} {need}", t, ok, sample=i, dataset="code")
                for i, (t, ok) in enumerate(outcomes)
            ]
        models = recorded(traces)
        rows = code_best_of_k(Lab([], models, seeds=2))
        ours = [row for row in rows if row["source"] == "ours"]
        assert {row["k"] for row in ours} == {4}
        assert {row["stream"] for row in ours} == {"code"}
        for row in ours:
            charged = row["tokens_granted"] if row["accounting"] == "reserved" else row["tokens_spent"]
            assert charged <= row["budget"]
        at_most = {row["policy"]: row["solved"] for row in ours if row["budget"] == 4 * 1024}
        assert len(set(at_most.values())) == 1  # four whole attempts for everyone: nothing left to decide

    def test_left_out_where_there_are_no_such_traces(self, pool):
        with pytest.raises(LeftOut, match="4 answers each"):
            code_best_of_k(Lab([pool], [pool]))


def test_dataset_statistics(pool):
    ours = [row for row in datasets(Lab([pool], [pool])) if row["source"] == "ours"]
    assert sum(row["questions"] for row in ours) == len(pool)
    assert sum(row["correct"] for row in ours) == pool.correct.sum()
    assert sum(row["mean_tokens"] * row["questions"] for row in ours) == pytest.approx(pool.length.sum())
