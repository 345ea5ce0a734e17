r"""How far the differences between the forecasts of several models can be believed.

Each model's chance of a correct answer is forecast for itself, and is right on average. The market looks for the model
with the highest one, so it finds those that are too high: with many models, and forecasts that hardly tell them apart,
it pays for noise. So what is forecast of model a on question i, as log odds z_ia less their mean over questions, is
divided into a level, the same for all models, and what is left:

    level_i = mean_a z_ia
    logit p_ia = base_a + (slope + slope_a) level_i + own_a (z_ia - level_i)

Everything is fitted to graded answers to questions that no forecast was trained on. `slope_a` and `own_a` have normal
priors around 0; their standard deviations are those that predict differences between the grades of two models best, on
questions that were left out. Where forecasts say nothing, what remains are the means of the models, and the market buys
the best mix of them.

Where money is not scarce the model with the best mean, b, answers everything. That another one is better at some of the
questions must be shown, because the largest of many differences is mostly noise: if on the left-out questions with
p_a > p_b the grades of a are not better than those of b by two standard errors, p_a is at most 0.99 p_b.

    differences = Differences.fit(forecasts, correct)  # a forecast per model; grades by question and model
    differences.apply(forecasts)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from shadowprice.arrays import Array
from shadowprice.errors import InputError
from shadowprice.forecast.calibration import log_odds
from shadowprice.forecast.splits import folds
from shadowprice.types import Forecast

__all__ = ["Differences"]

FEWEST = 30  # questions with a grade
_BASE_SD, _SLOPE_SD = 2.0, 1.0  # of the priors: of `base_a` around 0, of `slope` around 1
_SCALES = ((0.05, 0.1), (0.1, 0.2), (0.2, 0.4), (0.5, 1.0), (1.0, 2.0))  # of `slope_a` and `own_a`: one is chosen
_ERRORS = 2.0  # standard errors by which a model must have been better than the best one
_LESS = 0.99  # times the chance of the best: more than what forecast lengths say of answers that the cap cuts
_FOLDS = 5
_STEPS = 30
_EDGE = 8.0  # log odds


@dataclass(frozen=True, eq=False)
class Differences:
    """Made by `fit`, with one entry per model.

    mean, base, slopes, own   as above; `slopes` are slope + slope_a
    graded                    share of correct answers
    better                    row a, column b: a was shown to be better than b on the questions where it seemed so
    """

    mean: Array
    base: Array
    slopes: Array
    own: Array
    graded: Array
    better: NDArray[np.bool_]

    @classmethod
    def fit(cls, forecasts: Sequence[Forecast], correct: Array) -> Self:
        """From out-of-sample forecasts of every model for the same questions, and grades: 1, 0, or NaN for none."""
        z = _stacked(forecasts)
        if z.shape != np.shape(correct):
            raise InputError(
                f"forecasts for {z.shape[0]} questions by {z.shape[1]} models, and grades of another shape"
            )
        asked = np.asarray(np.isfinite(correct).any(1), dtype=bool)
        if (found := int(asked.sum())) < FEWEST:
            raise InputError(f"{found} questions are graded, {FEWEST} are needed")
        mean = z.mean(0)
        sample = _Sample(*_divided(z - mean), np.asarray(correct, dtype=np.float64)).take(asked)
        fold = folds(np.arange(found, dtype=np.intp), _FOLDS)
        left_out = [_left_out(sample, fold, scale) for scale in _SCALES]
        best = int(np.argmin([_error_of_differences(sample.correct - chance) for chance in left_out]))
        every = [_mean(grades) for grades in sample.correct.T]
        return cls(mean, *_fitted(sample, _SCALES[best]), np.array(every), _better(left_out[best], sample.correct))

    def apply(self, forecasts: Sequence[Forecast], models: Sequence[int] | None = None) -> list[Forecast]:
        """The forecasts with other chances. `models`: which ones are given, if not all; the level is that of these."""
        some = np.arange(self.mean.size) if models is None else np.asarray(models)
        level, own = _divided(_stacked(forecasts) - self.mean[some])
        chance = _chance(level, own, self.base[some], self.slopes[some], self.own[some])
        best = int(self.graded[some].argmax())
        bound = (~self.better[some, some[best]]) & (some != some[best])
        chance = np.where(bound, np.minimum(chance, _LESS * chance[:, [best]]), chance)
        return [replace(forecast, solve=chance[:, at]) for at, forecast in enumerate(forecasts)]

    def to_dict(self) -> dict[str, Any]:
        return {name: values.tolist() for name, values in vars(self).items()}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Self:
        """What `to_dict` gave; raises ValueError for anything else."""
        arrays = [np.asarray(record[name], dtype=np.float64) for name in cls.__dataclass_fields__]
        shapes = [arrays[0].shape] * (len(arrays) - 1) + [arrays[0].shape * 2]
        if arrays[0].ndim != 1 or [each.shape for each in arrays] != shapes:
            raise ValueError("not differences of models")
        if not all(np.isfinite(each).all() for each in arrays):
            raise ValueError("not differences of models")
        mean, base, slopes, own, graded, better = arrays
        return cls(mean, base, slopes, own, graded, better > 0)


@dataclass(frozen=True, eq=False)
class _Sample:
    """Questions by their level, what is left of each model, and their grades."""

    level: Array
    own: Array
    correct: Array  # NaN: none

    def take(self, who: NDArray[np.bool_]) -> _Sample:
        return _Sample(self.level[who], self.own[who], self.correct[who])


def _stacked(forecasts: Sequence[Forecast]) -> Array:
    """Log odds: a row per question, a column per model."""
    return np.column_stack([np.broadcast_to(log_odds(forecast.solve), len(forecast)) for forecast in forecasts])


def _divided(z: Array) -> tuple[Array, Array]:
    """The common level, and what is left of each model."""
    level = z.mean(1)
    return level, z - level[:, None]


def _chance(level: Array, own: Array, base: Array, slopes: Array, weights: Array) -> Array:
    chance: Array = expit(np.clip(base + slopes * level[:, None] + weights * own, -_EDGE, _EDGE))
    return chance


def _left_out(sample: _Sample, fold: NDArray[np.intp], scale: tuple[float, float]) -> Array:
    """The chances of every question by a fit to the other folds."""
    chances = np.zeros(sample.own.shape)
    for each in range(_FOLDS):
        out = fold == each
        chances[out] = _chance(sample.level[out], sample.own[out], *_fitted(sample.take(~out), scale))
    return chances


def _error_of_differences(error: Array) -> float:
    """Mean squared error of the differences between the models of a question: the variance of its errors."""
    known = np.isfinite(error)
    count = known.sum(1)
    mean = np.where(known, error, 0.0).sum(1) / count
    return float((np.where(known, error - mean[:, None], 0.0) ** 2).sum() / count.sum())


def _better(chance: Array, correct: Array) -> NDArray[np.bool_]:
    """Which models were better than which others on the questions where they were expected to be."""
    models = chance.shape[1]
    better = np.zeros((models, models), dtype=bool)
    for other in range(models):
        gain = np.where(chance > chance[:, [other]], correct - correct[:, [other]], 0.0)
        known = np.isfinite(gain)
        total, squares = (np.where(known, each, 0.0).sum(0) for each in (gain, gain**2))
        variance = squares - total**2 / np.maximum(1, known.sum(0))
        better[:, other] = total > _ERRORS * np.sqrt(np.maximum(0.0, variance))
    return better


def _mean(grades: Array) -> float:
    known = np.isfinite(grades)
    return float(grades[known].mean()) if known.any() else 0.0


def _fitted(sample: _Sample, scale: tuple[float, float]) -> tuple[Array, Array, Array]:
    """Newton's method. Unknown are three numbers per model (base, slope_a, own_a), and the slope, the last of all."""
    level, models = sample.level, sample.own.shape[1]
    graded = np.isfinite(sample.correct)
    at = [slice(3 * model, 3 * model + 3) for model in range(models)]
    x = [np.column_stack([np.ones_like(level), level, sample.own[:, model]]) for model in range(models)]
    precision = np.array([*[_BASE_SD**-2, scale[0] ** -2, scale[1] ** -2] * models, _SLOPE_SD**-2])
    prior = np.array([*[0.0] * (3 * models), 1.0])
    weights = prior.copy()
    for _ in range(_STEPS):
        gradient, curvature = -precision * (weights - prior), np.diag(precision)
        for model, (own_part, design) in enumerate(zip(at, x, strict=True)):
            known = graded[:, model]
            p = expit(np.clip(design @ weights[own_part] + weights[-1] * level, -30.0, 30.0))
            error = np.where(known, sample.correct[:, model] - p, 0.0)
            weight = np.where(known, p * (1 - p), 0.0)
            gradient[own_part] += design.T @ error
            gradient[-1] += level @ error
            curvature[own_part, own_part] += (design.T * weight) @ design
            crossed = design.T @ (weight * level)
            curvature[own_part, -1] += crossed
            curvature[-1, own_part] += crossed
            curvature[-1, -1] += level @ (weight * level)
        step = np.clip(np.linalg.solve(curvature, gradient), -1.0, 1.0)
        weights += step
        if np.abs(step).max() < 1e-8:
            break
    by_model = weights[:-1].reshape(models, 3)
    return by_model[:, 0], weights[-1] + by_model[:, 1], by_model[:, 2]
