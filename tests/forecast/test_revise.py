"""Evidence: another model's answer improves a forecast, says how sure it is, and leaves the rest alone."""

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import spearmanr

from shadowprice.errors import InputError
from shadowprice.forecast.revise import FEWEST, Evidence, Reviser, revisers_of
from shadowprice.types import Forecast, Trace


def world(n: int, seed: int = 0, *, noise: float = 0.3) -> tuple[list[Trace], list[Trace]]:
    """Traces of a cheap and a dear model: both take longer on hard questions, and fail more often."""
    rng = np.random.default_rng(seed)
    hard = rng.normal(0, 1, n)
    cheap_length = np.exp(5.0 + 0.5 * hard + noise * rng.normal(0, 1, n))
    dear_length = np.exp(5.5 + 0.6 * hard + noise * rng.normal(0, 1, n))
    dear_correct = rng.random(n) < expit(1.0 - 2.0 * hard)
    cheap_correct = rng.random(n) < expit(-2.0 * hard)

    def traces(model, length, correct):
        return [
            Trace(f"q{i}", f"question {i}", int(length[i]), bool(correct[i]), model=model, max_tokens=4096)
            for i in range(n)
        ]

    return traces("cheap", cheap_length, cheap_correct), traces("dear", dear_length, dear_correct)


def split(n: int = 800) -> tuple[Evidence, list[Trace], Evidence, list[Trace]]:
    cheap, dear = world(n)
    evidence = Evidence.from_traces([trace.prompt for trace in dear], cheap)
    half = n // 2
    return evidence.take(range(half)), dear[:half], evidence.take(range(half, n)), dear[half:]


def test_an_answer_of_a_cheap_model_improves_the_forecast_of_a_dear_one():
    known, traces, evidence, later = split()
    same = Forecast(np.full(len(traces), 250.0), 0.7, 0.6)
    found = Reviser.fit(same, known, traces).revise(Forecast(np.full(len(later), 250.0), 0.7, 0.6), evidence)
    length = np.array([trace.tokens for trace in later])
    correct = np.array([trace.correct for trace in later])
    assert spearmanr(found.tokens, length)[0] > 0.6
    assert found.solve[correct].mean() > found.solve[~correct].mean() + 0.2
    inside = np.abs(np.log(length / found.tokens)) < 1.2816 * found.spread
    assert 0.74 < inside.mean() < 0.86, "the 80% interval"
    bands = np.digitize(found.solve, [0.3, 0.5, 0.7])
    for band in range(4):
        assert correct[bands == band].mean() == pytest.approx(found.solve[bands == band].mean(), abs=0.12)


def test_requests_without_evidence_keep_their_forecast():
    known, traces, evidence, later = split()
    reviser = Reviser.fit(Forecast(np.full(len(traces), 250.0), 0.7, 0.6), known, traces)
    partly = Evidence(np.where(np.arange(len(later)) % 2, evidence.tokens, np.nan))
    before = Forecast(np.linspace(100, 300, len(later)), 0.5, 0.5)
    after = reviser.revise(before, partly)
    even = np.arange(len(later)) % 2 == 0
    np.testing.assert_array_equal(after.tokens[even], before.tokens[even])
    np.testing.assert_array_equal(after.solve[even], 0.5)
    assert np.all(after.tokens[~even] != before.tokens[~even])
    assert reviser.revise(before, Evidence(np.full(len(later), np.nan))) is before


def test_evidence_that_says_nothing_changes_little():
    _, traces, _, later = split()
    rng = np.random.default_rng(1)
    noise = [Evidence(rng.lognormal(5, 0.5, len(each))) for each in (traces, later)]
    good = [Forecast([trace.tokens * 1.0 for trace in each], 0.2, 0.6) for each in (traces, later)]
    found = Reviser.fit(good[0], noise[0], traces).revise(good[1], noise[1])
    assert spearmanr(found.tokens, [trace.tokens for trace in later])[0] > 0.99


def test_a_cascade_learns_which_answers_are_correct():
    cheap, _ = world(1000, noise=0.1)
    own = Evidence.from_traces([trace.prompt for trace in cheap], cheap)
    forecast = Forecast(np.full(1000, 150.0), 0.6, 0.5)
    first, rest = range(500), range(500, 1000)
    reviser = Reviser.fit(forecast.take(first), own.take(first), cheap[:500])
    chance = reviser.chance(forecast.take(rest), own.take(rest))
    correct = np.array([trace.correct for trace in cheap[500:]])
    sure = chance > np.quantile(chance, 0.75)
    assert correct[sure].mean() > correct.mean() + 0.25
    assert correct[sure].mean() == pytest.approx(chance[sure].mean(), abs=0.08)


def test_lengths_that_were_cut_are_at_least_as_long():
    cheap, dear = world(800)
    cut = [
        Trace(t.id, t.prompt, min(t.tokens, 250), t.correct if t.tokens <= 250 else False, t.tokens > 250) for t in dear
    ]
    evidence = Evidence.from_traces([trace.prompt for trace in dear], cheap)
    forecast = Forecast(np.full(800, 250.0), 0.7, 0.6)
    whole, censored = (Reviser.fit(forecast, evidence, each).revise(forecast, evidence) for each in (dear, cut))
    assert np.median(censored.tokens) == pytest.approx(np.median(whole.tokens), rel=0.1)


def test_a_reviser_is_saved_and_loaded():
    known, traces, evidence, _ = split()
    forecast = Forecast(np.full(len(traces), 250.0), 0.7, 0.6)
    reviser = Reviser.fit(forecast, known, traces)
    record = reviser.to_dict()
    again = Reviser.from_dict(record)
    np.testing.assert_allclose(again.revise(forecast, evidence).tokens, reviser.revise(forecast, evidence).tokens)
    with pytest.raises(ValueError, match="not a"):
        Reviser.from_dict({**record, "ended": {**record["ended"], "scale": [0.0] * len(record["ended"]["scale"])}})


def test_an_answer_that_was_cut_says_more_trouble_than_one_that_ended_there():
    """No trace was cut, but a market cuts: at 150 tokens the question is harder than one that was answered in 150."""
    known, traces, evidence, later = split()
    forecast = Forecast(np.full(len(traces), 250.0), 0.7, 0.6)
    reviser = Reviser.fit(forecast, known, traces)
    longer = np.flatnonzero(evidence.tokens > 150)
    cut = Evidence(np.full(longer.size, 150.0), 1.0)
    found = reviser.revise(forecast.take(longer), cut).solve
    correct = np.array([trace.correct for trace in later])[longer]
    assert found.mean() == pytest.approx(correct.mean(), abs=0.06)
    ended = reviser.revise(forecast.take(longer), Evidence(cut.tokens)).solve
    assert (ended > found + 0.1).all()


def test_answers_of_one_length_teach_nothing_about_cuts():
    _, traces, _, _ = split()
    forecast = Forecast(np.full(len(traces), 250.0), 0.7, 0.6)
    reviser = Reviser.fit(forecast, Evidence(np.full(len(traces), 100.0)), traces)
    found = reviser.revise(forecast, Evidence(np.full(len(traces), 50.0), 1.0))
    np.testing.assert_allclose(found.solve, 0.6)


def test_too_little_in_common_is_refused():
    cheap, dear = world(FEWEST - 1)
    evidence = Evidence.from_traces([trace.prompt for trace in dear], cheap)
    with pytest.raises(InputError, match="have answers of both models, 30 are needed"):
        Reviser.fit(Forecast(np.full(len(dear), 250.0)), evidence, dear)
    with pytest.raises(InputError, match="one of each per request"):
        Reviser.fit(Forecast([1.0]), evidence, dear)
    with pytest.raises(InputError, match="evidence cut has 2 values for 3 requests"):
        Evidence([1, 2, 3], [0, 1])


def test_questions_are_matched_by_their_words():
    traces = [
        Trace("x", "What is  2 + 2?", 17, True, extra={"log_prob": -0.25}),
        Trace("y", "what is 2 + 2?", 99, True),
    ]
    evidence = Evidence.from_traces(["WHAT is 2 + 2?", "Something else"], traces)
    assert evidence.tokens[0] == 17
    assert evidence.log_prob[0] == -0.25
    assert evidence.known.tolist() == [True, False]


def fair(n: int, seed: int, *, dear: float) -> tuple[list[Forecast], list[list[Trace]]]:
    """Two models whose grades say nothing but their means, and forecasts of them that are noise."""
    rng = np.random.default_rng(seed)
    means = 0.6, 0.6 + dear
    answers = [
        [
            Trace(f"q{i}", f"question {i}", int(rng.lognormal(5, 0.5)), bool(rng.random() < mean), model=name)
            for i in range(n)
        ]
        for name, mean in zip(("cheap", "dear"), means, strict=True)
    ]
    noise = rng.normal(0, 0.5, (2, n))
    odds = [np.log(mean / (1 - mean)) + each for mean, each in zip(means, noise, strict=True)]
    return [Forecast(np.full(n, 150.0), 0.5, expit(each)) for each in odds], answers


def test_a_gain_of_a_second_answer_is_believed_as_far_as_there_was_one():
    nothing = revisers_of(*fair(600, 1, dear=0.0))
    assert set(nothing) == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert nothing[0, 1].trust < 0.5
    real = revisers_of(*fair(600, 2, dear=0.3))
    assert real[0, 1].trust > 0.8
    assert real[0, 0].trust == 1.0
    forecast, evidence = Forecast([150.0], 0.5, 0.9), Evidence([150])
    revised = float(nothing[0, 1].revise(forecast, evidence).solve[0])
    believed = float(nothing[0, 1].second(forecast, evidence, 0.3).solve[0])
    assert believed == pytest.approx(0.3 + nothing[0, 1].trust * (revised - 0.3))
    assert nothing[0, 1].second(forecast, evidence, 0.99).solve[0] == pytest.approx(revised)
    assert nothing[0, 1].second(forecast, evidence, 0.0).solve[0] == pytest.approx(revised), "a wrong one is no rival"


def test_that_an_answer_was_cut_never_makes_another_one_likelier():
    forecasts, answers = fair(600, 3, dear=0.3)
    reviser = revisers_of(forecasts, answers)[0, 1]
    low = Forecast(np.full(50, 150.0), 0.5, np.linspace(0.01, 0.99, 50))
    cut = Evidence(np.full(50, 400.0), np.ones(50))
    assert (reviser.revise(low, cut).solve > low.solve).any()
    assert (reviser.second(low, cut, 0.0).solve <= low.solve).all()


def test_models_that_share_too_few_questions_have_no_reviser():
    forecasts, answers = fair(100, 4, dear=0.1)
    answers[1][FEWEST - 1 :] = [None] * (100 - FEWEST + 1)
    assert set(revisers_of(forecasts, answers)) == {(0, 0)}


def test_trust_is_saved():
    reviser = revisers_of(*fair(200, 5, dear=0.1))[0, 1]
    assert Reviser.from_dict(reviser.to_dict()).trust == reviser.trust
    for damaged in (1.5, "x", None):
        with pytest.raises((ValueError, TypeError)):
            Reviser.from_dict({**reviser.to_dict(), "trust": damaged})
