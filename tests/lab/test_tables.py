"""Best of K, and the statistics of datasets."""

import numpy as np
import pytest

from shadowprice.lab.config import Lab, NotPossible
from shadowprice.lab.pools import recorded
from shadowprice.lab.simulations import PRACTICAL
from shadowprice.lab.tables import best_of_k, code_best_of_k, datasets
from shadowprice.types import Trace


def attempts(question, *outcomes, **fields):
    """(tokens, correct) for every attempt."""
    return [
        Trace(f"q{question}", f"Write program {question} of a kind.", tokens, correct, sample=i, model="m", **fields)
        for i, (tokens, correct) in enumerate(outcomes)
    ]


class TestBestOfK:
    def pool(self, *outcomes, cap=1024):
        """40 questions with the same four attempts, in whatever order a seed takes them."""
        traces = [t for q in range(40) for t in attempts(q, *outcomes)]
        (model,) = recorded(traces, cap=cap)
        return best_of_k(model, model.questions, seed=0)

    def test_the_first_correct_attempt_stops_the_others(self):
        pool = self.pool((10, True), (10, True), (10, True), (10, True))
        assert pool.length.tolist() == [10] * 40
        assert pool.correct.all()

    def test_wrong_attempts_before_it_are_paid(self):
        pool = self.pool((100, False), (100, False), (100, False), (7, True))
        assert set(pool.length) == {7, 107, 207, 307}  # depending on where the correct one is
        assert pool.correct.all()

    def test_all_are_paid_where_none_is_correct(self):
        pool = self.pool((1, False), (2, False), (3, False), (4, False))
        assert set(pool.length) == {10}
        assert not pool.correct.any()

    def test_no_attempt_costs_more_than_its_cap_or_is_correct_beyond_it(self):
        pool = self.pool((3000, True), (5000, False), (2000, True), (1500, True), cap=8192)
        assert set(pool.length) == {4 * 1024}
        assert not pool.correct.any()

    def test_a_truncated_attempt_costs_its_cap_and_the_next_one_is_made(self):
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
        models = recorded(traces, cap=2048)
        rows = code_best_of_k(Lab([], models, seeds=2))
        ours = [row for row in rows if row["source"] == "ours"]
        assert {row["k"] for row in ours} == {4}
        assert {row["stream"] for row in ours} == {"code"}
        for row in ours:
            charged = row["tokens_granted"] if row["accounting"] == "reserved" else row["tokens_spent"]
            assert charged <= row["budget"]
            assert ("--samples 4 --max-tokens 1024" in row["command"]) == (row["policy"] in PRACTICAL)
        at_most = {row["policy"]: row["solved"] for row in ours if row["budget"] == 4 * 1024}
        assert len(set(at_most.values())) == 1  # four whole attempts for everyone: nothing left to decide

    def test_not_possible_without_such_traces(self, pool):
        with pytest.raises(NotPossible, match="4 answers each"):
            code_best_of_k(Lab([pool], [pool]))


def test_dataset_statistics(pool):
    ours = [row for row in datasets(Lab([pool], [pool])) if row["source"] == "ours"]
    assert sum(row["questions"] for row in ours) == len(pool)
    assert sum(row["correct"] for row in ours) == pool.correct.sum()
    assert sum(row["mean_tokens"] * row["questions"] for row in ours) == pytest.approx(pool.length.sum())
