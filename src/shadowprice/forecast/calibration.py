"""Correcting the forecasts for a model by a few of its traces: a hundred are enough.

What is corrected, with m the log of the forecast median and p the forecast chance of a correct answer:

    length    m' = centre + shift + slope (m - centre)
    spread    one factor, such that the 80% interval holds 80% of the traces (split-conformal:
              the ceil(0.8 (n + 1))-th smallest of the factors that the traces would have needed)
    tail      the degrees of freedom under which the traces are most likely
    correct   logit p' = shift + slope logit p
    solved    wrong answers are longer, above all where they are likely: the median of correct
              answers is m' - gap (1 - p'), with a spread of its own
    shape     rates of ending by age, for correct answers and for wrong ones (`hazards`), shrunk towards
              the law that all of the above describes

Slopes have a prior around 1, the shift of the odds one around 0, and the gap one around a usual value:
few traces shift and scale a forecast, many change its slope as well. A truncated trace is censored:
its answer is longer than what was recorded. Medians and quantiles are Kaplan-Meier estimates, which
such traces do not bias.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, logit, ndtr

from shadowprice.arrays import Array, checked_scalar
from shadowprice.errors import InputError
from shadowprice.forecast.hazards import fit_shape, parametric
from shadowprice.market import Expected
from shadowprice.shape import Shape
from shadowprice.types import Forecast, Trace

__all__ = ["Calibration", "impute_censored", "log_odds"]

_FEWEST = 10
_SPREADS = (0.02, 8.0)
_LONGEST = 16.0  # log tokens
_TAILS = (np.inf, 10.0, 5.0, 3.0, 2.0)  # degrees of freedom to choose from
_USUAL_GAP = 0.3  # in log tokens
_SLOPE_SD, _ODDS_SHIFT_SD, _ODDS_SLOPE_SD, _GAP_SD = 0.3, 2.0, 0.2, 0.3  # standard deviations of the priors
_Z90 = 1.2815515655446004  # the 90% quantile of a normal law


@dataclass(frozen=True)
class Calibration:
    """A correction made by `fit`. The defaults leave a forecast unchanged, except for the length of correct answers."""

    centre: float = 0.0
    shift: float = 0.0
    slope: float = 1.0
    spread: float = 1.0
    tail: float | None = None
    odds_shift: float = 0.0
    odds_slope: float = 1.0
    gap: float = 0.0
    solved_spread: float = 1.0
    shape: Shape | None = None

    @classmethod
    def fit(cls, forecast: Forecast, traces: Sequence[Trace]) -> Self:
        """From forecasts for `traces`, one each, by a forecaster that was not trained on them."""
        n = len(traces)
        if n < _FEWEST:
            raise InputError(f"{n} traces are too few to calibrate with", fix=f"give {_FEWEST} or more")
        length = np.log([max(1.0, trace.tokens) for trace in traces])
        truncated = np.array([trace.truncated for trace in traces], dtype=bool)
        correct = np.array([trace.correct is True for trace in traces], dtype=bool)
        graded = np.array([trace.correct is not None for trace in traces], dtype=bool)
        m, width, solve = np.log(forecast.tokens), *(np.broadcast_to(v, n) for v in (forecast.spread, forecast.solve))

        centre, slope = _line(m, impute_censored(length, m, float(np.std(length - m)), truncated))
        error = length - (centre + slope * (m - centre))
        shift = _quantile(error, truncated, 0.5)
        tail, factor = _law((error - shift) / width, truncated)

        odds_shift, odds_slope = _logistic(log_odds(solve[graded]), correct[graded])
        median = centre + shift + slope * (m - centre)
        gap, solved_factor = _solved(
            (length - median)[correct],
            expit(odds_shift + odds_slope * log_odds(solve))[correct],
            (factor * width)[correct],
            truncated[correct],
        )
        chance = expit(odds_shift + odds_slope * log_odds(solve))
        spread = factor * width
        shape = fit_shape(
            (length - (median - gap * (1 - chance))) / (spread * solved_factor),
            truncated,
            np.where(graded, correct, chance),
            parametric(tail, solved_factor, gap / float(np.mean(spread))),
        )
        return cls(centre, shift, slope, factor, tail, odds_shift, odds_slope, gap, solved_factor, shape)

    def apply(self, forecast: Forecast) -> Forecast:
        median = self.centre + self.shift + self.slope * (np.log(forecast.tokens) - self.centre)
        spread = np.clip(forecast.spread * self.spread, *_SPREADS)
        solve = expit(self.odds_shift + self.odds_slope * log_odds(forecast.solve))
        return Forecast(
            _tokens(median),
            spread,
            solve,
            self.tail,
            _tokens(median - self.gap * (1 - solve)),
            np.clip(spread * self.solved_spread, *_SPREADS),
            self.shape,
        )

    def apply_to_one(self, length: float, spread: float, solve: float) -> tuple[float | None, ...]:
        """The same for one request, from the log of its median: a row for `Forecast.of_rows`."""
        median = self.centre + self.shift + self.slope * (length - self.centre)
        wide = min(max(spread * self.spread, _SPREADS[0]), _SPREADS[1])
        chance = min(max(solve, 0.005), 0.995)
        chance = 1 / (1 + math.exp(-(self.odds_shift + self.odds_slope * math.log(chance / (1 - chance)))))
        shorter = median - self.gap * (1 - chance)
        return (
            math.exp(min(max(median, 0.0), _LONGEST)),
            wide,
            chance,
            self.tail,
            math.exp(min(max(shorter, 0.0), _LONGEST)),
            min(max(wide * self.solved_spread, _SPREADS[0]), _SPREADS[1]),
        )

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "shape": self.shape and self.shape.to_dict()}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Self:
        """What `to_dict` gave; raises ValueError for anything else."""
        if not isinstance(record, Mapping) or {*record, "shape"} != set(cls.__dataclass_fields__):
            raise ValueError("not a calibration")
        tail, shape = record["tail"], record.get("shape")  # older ones have no shape
        rest = {
            name: checked_scalar(name, value, low=-1e6, high=1e6)
            for name, value in record.items()
            if name not in ("tail", "shape")
        }
        return cls(
            **rest,
            tail=None if tail is None else checked_scalar("tail", tail, low=1e-3, high=1e6),
            shape=None if shape is None else Shape.from_dict(shape),
        )


def impute_censored(y: Array, mean: Array, spread: float, censored: NDArray[np.bool_]) -> Array:
    """`y`, with each censored value replaced by what a normal law expects beyond it.

    E[Y | Y > y] = mean + spread phi(z) / (1 - Phi(z)), z = (y - mean) / spread.
    """
    z = np.clip((y - mean) / max(spread, 1e-6), -8.0, 8.0)
    density = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    return np.where(censored, np.maximum(y, mean + spread * density / ndtr(-z)), y)


def _line(m: Array, y: Array) -> tuple[float, float]:
    """Centre of m, and the slope of y on m by least squares with a normal prior around 1."""
    centre = float(m.mean())
    x, target = m - centre, y - y.mean()
    noise = float(np.mean((target - x) ** 2)) / _SLOPE_SD**2 + 1e-12  # where all m are equal, the prior decides
    return centre, float(np.clip((x @ target + noise) / (x @ x + noise), 0.1, 3.0))


def _law(z: Array, censored: NDArray[np.bool_]) -> tuple[float | None, float]:
    """The likeliest tail and its factor on the spread; z are errors in units of the spread.

    A length that is known counts with the density of its z, a censored one with the chance of anything longer.
    """

    def log_likelihood(tail: float) -> float:
        factor = _factor(z, censored, tail)
        scaled = np.clip(z / factor, -30.0, 30.0)
        law = Expected(1.0, 1.0, tail=tail)
        density = law.marginal(np.exp(scaled)) * np.exp(scaled) / factor
        survival = 1 - law.value(np.exp(scaled))
        return float(np.log(np.maximum(np.where(censored, survival, density), 1e-300)).sum())

    best = max(_TAILS, key=log_likelihood)
    return (None if best == np.inf else best), _factor(z, censored, best)


def _factor(z: Array, censored: NDArray[np.bool_], tail: ArrayLike) -> float:
    """The factor on the spread with which the 80% interval of a law with this tail holds 80% of the errors z.

    Split-conformal: each z would have needed a factor of its own to be just inside; the result is the
    ceil(0.8 (n + 1))-th smallest of these.
    """
    upper = np.log(Expected(1.0, 1.0, tail=tail).quantile(0.9))
    needed = np.where(z < 0, z / -_Z90, z / upper)
    # An answer that was cut above the median needs this factor or a larger one; one that was cut below it counts as
    # if it had ended there.
    rank = min(1.0, np.ceil(0.8 * (z.size + 1)) / z.size)
    return max(1e-3, _quantile(needed, censored & (z > 0), rank))


def _solved(error: Array, solve: Array, spread: Array, censored: NDArray[np.bool_]) -> tuple[float, float]:
    """The gap and the factor on the spread of correct answers, from the errors of correct traces.

    The gap is the slope of -error on 1 - solve by least squares, with a normal prior around the usual one.
    """
    doubt = 1 - solve
    noise = float(np.mean(spread**2)) / _GAP_SD**2 if spread.size else 1.0
    gap = float(np.clip((noise * _USUAL_GAP - doubt @ error) / (noise + doubt @ doubt), 0.0, 2.0))
    if error.size < _FEWEST:
        return gap, 1.0
    z = np.abs(error + gap * doubt) / spread
    return gap, float(np.clip(_quantile(z, censored, 0.8) / _Z90, 0.3, 1.5))


def _logistic(x: Array, correct: NDArray[np.bool_]) -> tuple[float, float]:
    """Shift and slope of the log odds, with normal priors around 0 and 1: Newton's method."""
    design = np.column_stack([np.ones_like(x), x])
    prior, precision = np.array([0.0, 1.0]), np.diag([_ODDS_SHIFT_SD**-2, _ODDS_SLOPE_SD**-2])
    weights = prior.copy()
    for _ in range(25):
        p = expit(design @ weights)
        gradient = design.T @ (correct - p) - precision @ (weights - prior)
        weights += np.clip(np.linalg.solve((design.T * (p * (1 - p))) @ design + precision, gradient), -1.0, 1.0)
    return float(weights[0]), float(np.clip(weights[1], 0.0, 3.0))


def _quantile(values: Array, censored: NDArray[np.bool_], p: float) -> float:
    """The Kaplan-Meier quantile; the largest value if too many are censored to know it.

    S = prod (1 - ended_i / at_risk_i) over the sorted values, where ended_i is 0 if value i is censored.
    """
    order = np.lexsort((censored, values))  # at ties, known values come before censored ones
    at_risk = np.arange(values.size, 0, -1)
    survival = np.cumprod(1 - ~censored[order] / at_risk)
    reached = np.flatnonzero(survival <= 1 - p + 1e-12)
    return float(values[order[reached[0] if reached.size else -1]])


def log_odds(p: Array) -> Array:
    """Of a chance, which is never quite 0 or 1."""
    return np.asarray(logit(np.clip(p, 0.005, 0.995)))


def _tokens(log: Array) -> Array:
    return np.exp(np.clip(log, 0.0, _LONGEST))
