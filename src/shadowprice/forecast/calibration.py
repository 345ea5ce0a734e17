"""Correcting a forecast to a model from a few of its traces: a hundred will do.

What is corrected, with m the log of the forecast median and p the forecast chance of success:

    length    m' = centre + shift + slope (m - centre)
    spread    one factor, such that the 80% interval holds 80% of the traces (split-conformal:
              the ceil(0.8 (n + 1))-th smallest of the factors that the traces would have needed)
    tail      the degrees of freedom under which the traces are most likely
    success   logit p' = shift + slope logit p
    solved    wrong answers run longer, the more so the likelier they are: the median of correct
              answers is m' - gap (1 - p'), with a spread of its own

Slopes start from 1, shifts of the odds and the gap from what is usual, and give way as evidence
comes in: with few traces a forecast is shifted and scaled, with many it is also bent. A truncated
trace is a censored one: its answer is longer than what was recorded. Medians and quantiles are
Kaplan and Meier's, which such traces do not bias.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, logit, ndtr

from shadowprice.arrays import Array, checked_scalar
from shadowprice.errors import InputError
from shadowprice.market import Expected
from shadowprice.types import Forecast, Trace

__all__ = ["Calibration", "beyond", "learnt"]

_FEWEST = 10
_SPREADS = (0.02, 8.0)
_LONGEST = 16.0  # log tokens
_TAILS = (np.inf, 10.0, 5.0, 3.0, 2.0)
_USUAL_GAP = 0.3  # of the log length; the priors' standard deviations follow
_SLOPE_SD, _ODDS_SHIFT_SD, _ODDS_SLOPE_SD, _GAP_SD = 0.3, 2.0, 0.2, 0.3


@dataclass(frozen=True)
class Calibration:
    """Made by `fit`; the defaults leave a forecast as it is, but for the length of correct answers."""

    centre: float = 0.0
    shift: float = 0.0
    slope: float = 1.0
    spread: float = 1.0
    tail: float | None = None
    odds_shift: float = 0.0
    odds_slope: float = 1.0
    gap: float = 0.0
    solved_spread: float = 1.0

    @classmethod
    def fit(cls, forecast: Forecast, traces: Sequence[Trace]) -> Self:
        """From forecasts for `traces`, one each and made without having seen them."""
        n = len(traces)
        if n < _FEWEST:
            raise InputError(f"{n} traces are too few to calibrate with", fix=f"give {_FEWEST} or more")
        y = np.log([max(1.0, trace.tokens) for trace in traces])
        truncated = np.array([trace.truncated for trace in traces], dtype=bool)
        right = np.array([np.nan if trace.correct is None else float(trace.correct) for trace in traces])
        m, width = np.log(forecast.tokens), np.broadcast_to(forecast.spread, n)

        centre, slope = _line(m, beyond(y, m, float(np.std(y - m)), truncated))
        missed = y - (centre + slope * (m - centre))
        shift = _quantile(missed, truncated, 0.5)
        tail, factor = _law((missed - shift) / width, truncated)

        median = centre + shift + slope * (m - centre)
        graded, solved = ~np.isnan(right), right == 1
        solve = np.broadcast_to(forecast.solve, n)
        odds_shift, odds_slope = _logistic(_logit(solve[graded]), solved[graded])
        gap, solved_factor = _solved(
            (y - median)[solved],
            expit(odds_shift + odds_slope * _logit(solve))[solved],
            (factor * width)[solved],
            truncated[solved],
        )
        return cls(centre, shift, slope, factor, tail, odds_shift, odds_slope, gap, solved_factor)

    def apply(self, forecast: Forecast) -> Forecast:
        median = self.centre + self.shift + self.slope * (np.log(forecast.tokens) - self.centre)
        spread = np.clip(forecast.spread * self.spread, *_SPREADS)
        solve = expit(self.odds_shift + self.odds_slope * _logit(forecast.solve))
        return Forecast(
            _tokens(median),
            spread,
            solve,
            self.tail,
            _tokens(median - self.gap * (1 - solve)),
            np.clip(spread * self.solved_spread, *_SPREADS),
        )

    def to_dict(self) -> dict[str, float | None]:
        return asdict(self)

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Self:
        """What `to_dict` gave; raises ValueError for anything else."""
        if not isinstance(record, Mapping) or set(record) != set(cls.__dataclass_fields__):
            raise ValueError("not a calibration")
        tail = record["tail"]
        rest = {name: checked_scalar(name, v, low=-1e6, high=1e6) for name, v in record.items() if name != "tail"}
        return cls(**rest, tail=None if tail is None else checked_scalar("tail", tail, low=1e-3, high=1e6))


def learnt(forecast: Forecast, age: NDArray[np.int64], ended: NDArray[np.bool_]) -> Forecast:
    """The forecast, corrected by a run in which answers have this age, and some have ended there.

    By one shift of all log lengths, one factor on their spread, and a tail if the forecast has none: no more
    than a run can tell. It serves the most promising first: from them nothing can be learnt of how the others
    differ, and little of how long the longest are.
    """
    begun, cut = forecast.take(age > 0), ~ended[age > 0]
    missed = np.log(age[age > 0]) - np.log(begun.tokens)
    shift = _quantile(missed, cut, 0.5)
    z = (missed - shift) / begun.spread
    tail: ArrayLike | None = forecast.tail
    if begun.tail is None:
        tail, factor = _law(z, cut)
    else:
        factor = _factor(z, cut, begun.tail)
    return Forecast(
        _tokens(np.log(forecast.tokens) + shift),
        np.clip(forecast.spread * factor, *_SPREADS),
        forecast.solve,
        tail,
        _tokens(np.log(forecast.solved_tokens) + shift),
        np.clip(forecast.solved_spread * factor, *_SPREADS),
    )


def beyond(y: Array, mean: Array, spread: float, censored: NDArray[np.bool_]) -> Array:
    """`y`, with each censored value replaced by what a normal law expects beyond it.

    E[Y | Y > y] = mean + spread phi(z) / (1 - Phi(z)), z = (y - mean) / spread.
    """
    z = np.clip((y - mean) / max(spread, 1e-6), -8.0, 8.0)
    density = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    return np.where(censored, np.maximum(y, mean + spread * density / ndtr(-z)), y)


def _line(m: Array, y: Array) -> tuple[float, float]:
    """Centre of m and slope of y on it, with a normal prior around 1."""
    centre = float(m.mean())
    x, target = m - centre, y - y.mean()
    noise = float(np.mean((target - x) ** 2)) / _SLOPE_SD**2 + 1e-12  # where all are alike, the prior it is
    return centre, float(np.clip((x @ target + noise) / (x @ x + noise), 0.1, 3.0))


def _law(z: Array, censored: NDArray[np.bool_]) -> tuple[float | None, float]:
    """The tail and the factor on the spread; z are residuals in units of it."""

    def likelihood(tail: float) -> float:
        factor = _factor(z, censored, tail)
        scaled = np.clip(z / factor, -30.0, 30.0)
        law = Expected(1.0, 1.0, tail=tail)
        density = law.marginal(np.exp(scaled)) * np.exp(scaled) / factor
        survival = 1 - law.value(np.exp(scaled))
        return float(np.log(np.maximum(np.where(censored, survival, density), 1e-300)).sum())

    best = max(_TAILS, key=likelihood)
    return (None if best == np.inf else best), _factor(z, censored, best)


def _factor(z: Array, censored: NDArray[np.bool_], tail: ArrayLike) -> float:
    """On the spread, so that eight in ten residuals are within what a law with this tail says of eight in ten."""
    upper = np.log(Expected(1.0, 1.0, tail=tail).quantile(0.9))
    needed = np.where(z < 0, z / -_Z90, z / upper)
    # What is below the median is no longer in doubt for a truncated answer, what is above it is.
    rank = min(1.0, np.ceil(0.8 * (z.size + 1)) / z.size)
    return max(1e-3, _quantile(needed, censored & (z > 0), rank))


_Z90 = 1.2815515655446004  # 90% of a normal law are below it


def _solved(missed: Array, solve: Array, spread: Array, censored: NDArray[np.bool_]) -> tuple[float, float]:
    """The gap and the factor on the spread of correct answers, from the residuals of correct traces."""
    doubt = 1 - solve
    noise = float(np.mean(spread**2)) / _GAP_SD**2 if spread.size else 1.0
    gap = float(np.clip((noise * _USUAL_GAP - doubt @ missed) / (noise + doubt @ doubt), 0.0, 2.0))
    if missed.size < _FEWEST:
        return gap, 1.0
    z = np.abs(missed + gap * doubt) / spread
    return gap, float(np.clip(_quantile(z, censored, 0.8) / _Z90, 0.3, 1.5))


def _logistic(x: Array, right: NDArray[np.bool_]) -> tuple[float, float]:
    """Shift and slope of the log odds, with normal priors around 0 and 1: Newton's method."""
    design = np.column_stack([np.ones_like(x), x])
    prior, precision = np.array([0.0, 1.0]), np.diag([_ODDS_SHIFT_SD**-2, _ODDS_SLOPE_SD**-2])
    found = prior.copy()
    for _ in range(25):
        p = expit(design @ found)
        gradient = design.T @ (right - p) - precision @ (found - prior)
        found += np.clip(np.linalg.solve((design.T * (p * (1 - p))) @ design + precision, gradient), -1.0, 1.0)
    return float(found[0]), float(np.clip(found[1], 0.0, 3.0))


def _quantile(values: Array, censored: NDArray[np.bool_], p: float) -> float:
    """Kaplan and Meier's quantile; the largest value where too much is censored to tell."""
    order = np.lexsort((censored, values))  # at ties, what was seen comes before what was cut
    left = np.arange(values.size, 0, -1)
    survival = np.cumprod(1 - ~censored[order] / left)
    reached = np.flatnonzero(survival <= 1 - p + 1e-12)
    return float(values[order[reached[0] if reached.size else -1]])


def _logit(p: Array) -> Array:
    return np.asarray(logit(np.clip(p, 0.005, 0.995)))


def _tokens(log: Array) -> Array:
    return np.exp(np.clip(log, 0.0, _LONGEST))
