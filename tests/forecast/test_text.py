"""The text forecaster: what its files may contain, and how good it is on answers of real models."""

import hashlib
import pickle
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice import Forecast, InputError, TextForecaster, allocate
from shadowprice.forecast import default
from shadowprice.forecast.evaluation import evaluate
from shadowprice.forecast.splits import question_key
from shadowprice.formats.traces import read_traces

from ..conftest import shared_traces
from .stories import queries, stories

SHIPPED = default()


def test_pickled_arrays_are_never_unpickled(tmp_path):
    """Even where the hashes are correct, as an attacker would make them, nothing is executed."""
    TextForecaster().fit(stories(100)).save(tmp_path / "f")
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
            TextForecaster.load(tmp_path / "f")
    assert not canary.exists()


@settings(deadline=None)
@given(st.text(max_size=80) | st.text(st.sampled_from("ab\\10 $=?\n.é界"), max_size=200))
def test_a_text_alone_has_the_forecast_that_it_has_among_others(text):
    """Alone and among few it is read word by word, among many along arrays."""
    alone = SHIPPED.predict([text])
    for others in (1, 20):
        among = SHIPPED.predict([text, *["What is 2 + 3?"] * others]).take([0])
        for name in ("tokens", "spread", "solve", "solved_tokens", "solved_spread"):
            np.testing.assert_allclose(getattr(alone, name), getattr(among, name), rtol=1e-12, err_msg=name)
        assert (alone.shape, alone.tail) == (among.shape, among.tail)


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
    return TextForecaster().fit(traces)


def split(pool, seed):
    order = np.random.default_rng(seed).permutation(len(pool))
    return [pool[i] for i in order[:100]], [pool[i] for i in order[100:]]


def test_out_of_distribution(elsewhere, pool):
    scores = elsewhere.evaluate(pool, resamples=10).overall
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
    """On average over eight draws of a hundred: a single draw leaves five points of doubt."""
    scores = []
    for seed in range(8):
        few, rest = split(pool, seed)
        scores.append(elsewhere.adapt(few).evaluate(rest, resamples=2).overall)
    assert 0.75 <= np.mean([s.coverage["80%"] for s in scores]) <= 0.85
    assert np.mean([s.calibration_error for s in scores]) <= 0.06


def test_expected_beats_clear_with_it_and_keeps_up_with_uniform(elsewhere, pool):
    few, rest = split(pool, 100)
    forecast = elsewhere.adapt(few).predict(queries(rest))
    length, correct = np.array([t.tokens for t in rest]), np.array([bool(t.correct) for t in rest])

    def percent_correct(policy, share):
        budget = int(share * np.median(length) * len(rest))
        grants = allocate(forecast, budget, policy, max_tokens=4096).tokens
        return 100 * np.mean(correct & (length <= grants))

    for share in (0.25, 0.5, 1):
        assert percent_correct("expected", share) > percent_correct("clear", share)
    for share in (0.125, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 3, 4):
        assert percent_correct("expected", share) > percent_correct("uniform", share) - 1.5
