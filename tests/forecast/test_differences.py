"""Differences between forecasts of several models: noise is not believed, and what was shown is."""

import json

import numpy as np
import pytest
from scipy.special import expit, logit

from shadowprice.errors import InputError
from shadowprice.forecast import differences as module
from shadowprice.forecast.differences import FEWEST, Differences
from shadowprice.types import Forecast

MEANS = np.array([0.5, 0.7, 0.8, 0.78, 0.77])  # of the models


def forecasts(odds: np.ndarray) -> list[Forecast]:
    return [Forecast(np.full(len(odds), 100.0), 0.5, expit(each)) for each in odds.T]


def chances(found: list[Forecast]) -> np.ndarray:
    return np.column_stack([each.solve for each in found])


def graded(odds: np.ndarray, seed: int) -> np.ndarray:
    return (np.random.default_rng(seed).random(odds.shape) < expit(odds)).astype(float)


def test_noise_does_not_choose_a_model():
    rng = np.random.default_rng(0)
    base = np.broadcast_to(logit(MEANS), (1500, 5))
    noise = base + 0.5 * rng.normal(size=base.shape)
    correct = graded(base, 1)
    differences = Differences.fit(forecasts(noise), correct)
    later = forecasts(base + 0.5 * rng.normal(size=base.shape))
    believed = chances(differences.apply(later))
    best = int(correct.mean(0).argmax())
    assert (chances(later).argmax(1) == best).mean() < 0.5
    assert (believed.argmax(1) == best).all()
    np.testing.assert_allclose(believed.mean(0), correct.mean(0), atol=0.01)


def test_models_that_are_good_at_other_questions_are_told_apart():
    rng = np.random.default_rng(2)
    kind = np.where(rng.random(1500) < 0.5, 1.0, -1.0)
    odds = np.column_stack([0.5 + kind, 0.5 - kind])
    differences = Differences.fit(forecasts(odds), graded(odds, 3))
    believed = chances(differences.apply(forecasts(odds)))
    assert ((believed[:, 0] > believed[:, 1]) == (kind > 0)).mean() > 0.99
    np.testing.assert_allclose(believed, expit(odds), atol=0.08)


def test_a_common_level_is_believed_and_costs_no_differences():
    rng = np.random.default_rng(4)
    odds = rng.normal(size=(1500, 1)) + logit(MEANS)
    believed = chances(Differences.fit(forecasts(odds), graded(odds, 5)).apply(forecasts(odds)))
    assert np.corrcoef(logit(believed[:, 2]), odds[:, 2])[0, 1] > 0.99
    np.testing.assert_allclose(believed, expit(odds), atol=0.06)


def test_the_fit_is_where_the_penalised_likelihood_is_highest(monkeypatch):
    monkeypatch.setattr(module, "_SCALES", ((0.2, 0.4),))
    rng = np.random.default_rng(6)
    odds = rng.normal(size=(200, 3)) + np.array([0.0, 1.0, -1.0])
    correct = graded(odds, 7)
    correct[rng.random(correct.shape) < 0.3] = np.nan
    found = Differences.fit(forecasts(odds), correct)
    z = odds - odds.mean(0)
    level = z.mean(1)
    slopes_sd, own_sd = 0.2, 0.4

    def objective(base, slopes, own):
        p = expit(base + slopes * level[:, None] + own * (z - level[:, None]))
        fit = np.nansum(correct * np.log(p) + (1 - correct) * np.log(1 - p))
        # The best slope, around which those of the models have their prior, in closed form.
        slope = (slopes.sum() / slopes_sd**2 + 1.0) / (3 / slopes_sd**2 + 1.0)
        away = ((slopes - slope) ** 2).sum() / slopes_sd**2 + (slope - 1) ** 2
        return fit - (away + (base**2).sum() / 2.0**2 + (own**2).sum() / own_sd**2) / 2

    parts = [found.base, found.slopes, found.own]
    best = objective(*parts)
    for part in range(3):
        for model in range(3):
            for step in (-1e-3, 1e-3):
                moved = [each.copy() for each in parts]
                moved[part][model] += step
                assert objective(*moved) < best


def test_that_a_model_is_better_than_the_best_on_some_questions_must_be_shown():
    rng = np.random.default_rng(10)
    kind = np.where(rng.random(1500) < 0.2, 1.0, -1.0)
    odds = np.column_stack([1.0 - kind, 0.4 + 1.5 * kind])  # the second is better on a fifth of the questions
    shown = Differences.fit(forecasts(odds), graded(odds, 11))
    assert shown.better[1, 0]
    believed = chances(shown.apply(forecasts(odds)))
    assert ((believed[:, 1] > believed[:, 0]) == (kind > 0)).all()
    few = Differences.fit(forecasts(odds[:40]), np.where(kind[:40, None] > 0, 1.0, graded(odds[:40], 12)))
    believed = chances(few.apply(forecasts(odds)))
    assert (believed[:, 1] < believed[:, 0]).all()


def test_some_of_the_models_can_be_asked():
    odds = np.random.default_rng(8).normal(size=(300, 3))
    differences = Differences.fit(forecasts(odds), graded(odds, 9))
    first, last = differences.apply([forecasts(odds)[0], forecasts(odds)[2]], [0, 2])
    assert len(first) == len(last) == 300
    assert first.solve.mean() != last.solve.mean()
    np.testing.assert_array_equal(first.tokens, 100.0)


def test_it_is_saved_as_numbers():
    odds = np.random.default_rng(8).normal(size=(300, 3))
    differences = Differences.fit(forecasts(odds), graded(odds, 9))
    again = Differences.from_dict(json.loads(json.dumps(differences.to_dict())))
    np.testing.assert_array_equal(chances(again.apply(forecasts(odds))), chances(differences.apply(forecasts(odds))))
    record = differences.to_dict()
    for damaged in (
        {**record, "own": [1.0]},
        {**record, "better": [True] * 3},
        {**record, "base": [[1.0]] * 3},
        {**record, "mean": [None, 1, 2]},
    ):
        with pytest.raises(ValueError, match="differences"):
            Differences.from_dict(damaged)


def test_too_few_grades_are_refused():
    odds = np.zeros((60, 2))
    few = np.full(odds.shape, np.nan)
    few[: FEWEST - 1, 0] = 1.0
    with pytest.raises(InputError, match=r"29 questions are graded, 30 are needed"):
        Differences.fit(forecasts(odds), few)
    with pytest.raises(InputError, match="grades of another shape"):
        Differences.fit(forecasts(odds), few.T)
