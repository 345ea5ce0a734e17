"""The default forecaster: its features, its files, and how good it is on answers of real models."""

import hashlib
import pickle
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice import InputError, allocate
from shadowprice.errors import MarketError
from shadowprice.forecast.calibration import Calibration
from shadowprice.forecast.evaluation import evaluate
from shadowprice.forecast.features import COLUMNS, features
from shadowprice.forecast.splits import question_key
from shadowprice.forecast.text import Text
from shadowprice.formats.traces import read_traces
from shadowprice.types import Forecast

from ..conftest import shared_traces
from .stories import queries, stories


class TestFeatures:
    def test_words_are_what_a_regular_expression_finds(self):
        """Rows are equal where the words are, and (but for collisions) only there."""
        word = re.compile(r"\\?[a-z]+|\d+|[^\sa-z\d]")
        texts = ["Find $x^2 + \\frac{1}{20}$.", "find $x^2+\\frac{1}{37}$ .", "find $x^3 + \\frac{1}{2}$."]
        words = [["#" * len(w) if w.isdigit() else w for w in word.findall(text.lower())] for text in texts]
        rows = features(texts)[0].toarray()
        for i in range(3):
            for j in range(3):
                assert (words[i] == words[j]) == np.array_equal(rows[i], rows[j])

    @settings(deadline=None)
    @given(st.lists(st.text(max_size=60), min_size=1, max_size=6))
    def test_a_row_hangs_on_its_own_text_alone(self, texts):
        words, structure = features(texts)
        for i, text in enumerate(texts):
            alone, about = features([text])
            np.testing.assert_allclose(words[[i]].toarray(), alone.toarray())
            np.testing.assert_allclose(structure[[i]], about)
        assert words.shape == (len(texts), COLUMNS)
        lengths = np.sqrt((words.toarray() ** 2).sum(axis=1))
        assert np.all(np.isclose(lengths, 1) | (lengths == 0))

    def test_case_and_the_digits_of_a_number_do_not_matter(self):
        one, other = features(["What is 12 + 345?", "WHAT IS 98 + 765?"])[0].toarray()
        assert np.array_equal(one, other)


class TestCalibration:
    def law(self, n, seed=0, spread=0.4, shift=0.0, cap=None):
        rng = np.random.default_rng(seed)
        median, solve = np.exp(rng.normal(5, 1, n)), rng.uniform(0.05, 0.95, n)
        length = median * np.exp(shift + spread * rng.normal(size=n))
        cut = np.zeros(n, bool) if cap is None else length > cap
        tokens = np.where(cut, cap or 0, np.ceil(length)).astype(int)
        right = rng.random(n) < solve
        traces = [
            replace(story, tokens=int(t), truncated=bool(c), correct=bool(r))
            for story, t, c, r in zip(stories(n), tokens, cut, right, strict=True)
        ]
        return Forecast(median, 0.4, solve), traces

    def test_a_forecast_that_is_right_stays_as_it_is(self):
        forecast, traces = self.law(4000)
        found = Calibration.fit(forecast, traces)
        assert abs(found.shift) < 0.05
        assert abs(found.slope - 1) < 0.05
        assert abs(found.spread - 1) < 0.07
        assert abs(found.odds_shift) < 0.15
        assert abs(found.odds_slope - 1) < 0.15

    def test_a_wordier_model_shifts_the_length(self):
        forecast, traces = self.law(1000, shift=0.7)
        assert abs(Calibration.fit(forecast, traces).shift - 0.7) < 0.08

    def test_answers_that_were_cut_do_not_shorten_it(self):
        forecast, traces = self.law(4000, cap=400)
        assert sum(trace.truncated for trace in traces) > 400
        found = Calibration.fit(forecast, traces)
        assert abs(found.shift) < 0.06
        assert abs(found.spread - 1) < 0.12

    def test_scaling_all_tokens_scales_the_forecast(self):
        forecast, traces = self.law(300)
        longer = [replace(trace, tokens=10 * trace.tokens) for trace in traces]
        one = Calibration.fit(forecast, traces).apply(forecast)
        ten = Calibration.fit(Forecast(forecast.tokens * 10, 0.4, forecast.solve), longer)
        ten = ten.apply(Forecast(forecast.tokens * 10, 0.4, forecast.solve))
        np.testing.assert_allclose(ten.tokens, 10 * one.tokens, rtol=1e-6)
        np.testing.assert_allclose(ten.spread, one.spread, rtol=1e-6)

    def test_it_is_kept_as_json(self):
        found = Calibration.fit(*self.law(100))
        assert Calibration.from_dict(found.to_dict()) == found
        for wrong in ({}, [], None, {**found.to_dict(), "slope": None}, {**found.to_dict(), "extra": 1}):
            with pytest.raises((ValueError, MarketError)):
                Calibration.from_dict(wrong)

    def test_wrong_answers_run_longer(self):
        """Where they do, the length of correct answers is forecast as shorter than that of all."""
        rng = np.random.default_rng(0)
        right = rng.random(2000) < 0.5
        tokens = (100 * np.exp(0.8 * ~right + 0.2 * rng.normal(size=2000))).astype(int)
        traces = [
            replace(t, tokens=int(n), correct=bool(c)) for t, n, c in zip(stories(2000), tokens, right, strict=True)
        ]
        flat = Forecast(np.full(2000, 150.0), 0.5, 0.5)
        found = Calibration.fit(flat, traces).apply(flat)
        assert 90 < found.solved_tokens[0] < 120
        assert found.tokens[0] > 1.2 * found.solved_tokens[0]
        assert found.solved_spread < found.spread


def test_arrays_that_would_be_unpickled_are_not(tmp_path):
    """Hashes are right, as whoever writes such a file would see to; still nothing is executed."""
    Text().fit(stories(100)).save(tmp_path / "f")
    canary = tmp_path / "canary"

    class Hostile:
        def __reduce__(self):
            return (canary.write_text, ("executed",))

    arrays = dict(np.load(tmp_path / "f" / "weights.npz"))
    arrays["linear"] = np.array([Hostile()], dtype=object)
    np.savez(tmp_path / "hostile.npz", allow_pickle=True, **arrays)
    evil = (tmp_path / "hostile.npz").read_bytes()
    assert not canary.exists()
    for content in (evil, pickle.dumps(Hostile())):
        (tmp_path / "f" / "weights.npz").write_bytes(content)
        described = tmp_path / "f" / "forecaster.json"
        digest = hashlib.sha256(content).hexdigest()
        described.write_text(re.sub(r'(?<="weights.npz": ")[0-9a-f]+', digest, described.read_text()))
        with pytest.raises(InputError, match="damaged"):
            Text.load(tmp_path / "f")
    assert not canary.exists()


# --- real models -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pool():
    """Qwen2.5-14B-Instruct on five benchmarks, cut at 4,096 tokens."""
    traces = read_traces(shared_traces("qwen2.5-14b-instruct.math"))
    return [replace(t, tokens=4096, correct=False, truncated=True) if t.tokens > 4096 else t for t in traces]


@pytest.fixture(scope="module")
def elsewhere(pool):
    """Trained on other models' answers to other questions."""
    names = ("llama-3.1-8b-instruct.math-train", "zeroeval-12-models.gsm8k-mathl5")
    traces = [trace for name in names for trace in read_traces(shared_traces(name))]
    assert not {question_key(t.prompt) for t in traces} & {question_key(t.prompt) for t in pool}
    return Text().fit(traces)


def parted(pool, seed):
    order = np.random.default_rng(seed).permutation(len(pool))
    return [pool[i] for i in order[:100]], [pool[i] for i in order[100:]]


def test_out_of_distribution(elsewhere, pool):
    scores = evaluate(elsewhere.predict(queries(pool)), pool, resamples=10).overall
    assert scores.spearman >= 0.50
    assert scores.auc >= 0.74


def test_cross_fitted_within_the_pool(elsewhere, pool):
    order = np.random.default_rng(0).permutation(len(pool))
    found = {"tokens": np.empty(len(pool)), "solve": np.empty(len(pool))}
    for fold in range(5):
        out, rest = order[fold::5], np.setdiff1d(order, order[fold::5])
        forecast = elsewhere.adapt([pool[i] for i in rest]).predict(queries([pool[i] for i in out]))
        for name, values in found.items():
            values[out] = getattr(forecast, name)
    scores = evaluate(Forecast(**found), pool, resamples=10).overall
    assert scores.spearman >= 0.57
    assert scores.auc >= 0.79


def test_a_hundred_traces_calibrate_it(elsewhere, pool):
    """On average over which hundred they are: one hundred alone leave five points of doubt in either."""
    scores = []
    for seed in range(8):
        few, rest = parted(pool, seed)
        scores.append(evaluate(elsewhere.adapt(few).predict(queries(rest)), rest, resamples=2).overall)
    assert 0.75 <= np.mean([s.coverage["80%"] for s in scores]) <= 0.85
    assert np.mean([s.calibration_error for s in scores]) <= 0.06


def test_expected_beats_clear_with_it_and_keeps_up_with_uniform(elsewhere, pool):
    few, rest = parted(pool, 100)
    forecast = elsewhere.adapt(few).predict(queries(rest))
    length, right = np.array([t.tokens for t in rest]), np.array([bool(t.correct) for t in rest])

    def solved(policy, share):
        budget = int(share * np.median(length) * len(rest))
        grants = allocate(forecast, budget, policy, max_tokens=4096).tokens
        assert grants.sum() <= budget
        return 100 * np.mean(right & (length <= grants))

    for share in (0.25, 0.5, 1):
        assert solved("expected", share) > solved("clear", share)
    for share in (0.125, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 3, 4):
        assert solved("expected", share) > solved("uniform", share) - 1.5
