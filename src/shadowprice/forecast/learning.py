"""Learning as it goes: forecasts corrected by what a run has shown so far.

Known are the ages that all begun answers have reached, and which of them ended there. Answers that still run count as
well: a run serves the most promising requests first, so that those which ended would look too short by themselves. In
order:

    level, slope       all log lengths x become center + slope (x - center) + shift, and their spread is multiplied by
    and spread         one factor: the likeliest, where an answer that ended at age t counts with the density of its
                       length there, and any other with the chance of a longer one; all three have a prior, around no
                       change. Forecasts that say nothing about this model end up alike
    shape              the rates of ending by age (`hazards.bent`), shrunk towards the shape there was

The chance of a correct answer stays as it is: a run does not see grades.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

import numpy as np
from numpy.typing import NDArray

from shadowprice.arrays import Array
from shadowprice.forecast.hazards import Mask, bent, shape_of
from shadowprice.shape import STEP, Shape, places
from shadowprice.types import Forecast

_MOST = 2000  # answers that are looked at
# Standard deviations of the priors: of the shift, of the log of the factor, of the slope.
_SHIFT_SD, _SPREAD_SD, _SLOPE_SD = 0.2, 0.1, 0.2
_STRENGTH = 20.0  # answers that the earlier shape counts as
_SHIFTS, _FACTORS, _SLOPES = np.arange(-3.0, 3.1, 0.5), (0.2, 0.45, 1.0, 2.2), (0.0, 0.5, 1.0)
# Of the search around the best so far: a shift, a ratio of factors, a difference of slopes.
_STEPS = ((0.25, 1.4, 0.25), (0.12, 1.2, 0.12), (0.06, 1.1, 0.06), (0.03, 1.05, 0.03))
_SPREADS = (0.02, 8.0)
_AT_ONCE = 2**14  # numbers
_LONGEST = 16.0  # log tokens


def recalibrate(forecast: Forecast, age: NDArray[np.int64], ended: Mask) -> Forecast:
    """The forecast, corrected by the age that each answer has reached (0: not begun) and by which ended there."""
    begun = np.flatnonzero(age > 0)
    begun = begun[:: -(-begun.size // _MOST)] if begun.size else begun
    center = float(np.log(forecast.solved_tokens).mean())
    seen = _Seen(forecast.take(begun), shape_of(forecast), age[begun], ended[begun], center)
    shift, factor, slope = seen.likeliest()
    shape = bent(seen.shape, seen.z(shift, factor, slope), seen.ended, seen.forecast.solve, _STRENGTH)

    def moved(tokens: Array, center: float) -> Array:
        return np.exp(np.clip(center + slope * (np.log(tokens) - center) + shift, 0.0, _LONGEST))

    return Forecast(
        moved(forecast.tokens, float(np.log(forecast.tokens).mean())),
        np.clip(forecast.spread * factor, *_SPREADS),
        forecast.solve,
        forecast.tail,
        moved(forecast.solved_tokens, center),
        np.clip(forecast.solved_spread * factor, *_SPREADS),
        shape,
    )


class _Seen:
    """Answers that have begun."""

    def __init__(self, forecast: Forecast, shape: Shape, age: NDArray[np.int64], ended: Mask, center: float) -> None:
        self.forecast, self.shape, self.ended = forecast, shape, ended
        self._reached, self._expected = np.log(age) - center, np.log(forecast.solved_tokens) - center
        steps = (np.diff(hazard) for hazard in (shape.correct, shape.wrong))
        self._rates = [np.append(each, each[-1]) / STEP + 1e-6 for each in steps]

    def z(self, shift: float | Array, factor: float | Array, slope: float | Array) -> Array:
        error: Array = self._reached - slope * self._expected - shift
        return error / np.clip(self.forecast.solved_spread * factor, *_SPREADS)

    def likelihood(self, points: Array) -> Array:
        """Its logarithm, with the priors, at several points (shift, factor, slope) at a time."""
        shift, factor, slope = points.T
        z, solve = self.z(*points.T[:, :, None]), self.forecast.solve
        knot, part = places(z)
        correct, wrong = (np.exp(-(start[knot] + part * step[knot])) for start, step in self.shape.tables)
        correct *= solve
        wrong *= 1 - solve
        density = correct * self._rates[0][knot] + wrong * self._rates[1][knot]
        seen = np.log(np.maximum(np.where(self.ended, density, correct + wrong), 1e-300)).sum(axis=1)
        log_factor = np.log(factor)
        return np.asarray(
            seen
            - np.count_nonzero(self.ended) * log_factor  # the density is per unit of z
            - (shift / _SHIFT_SD) ** 2 / 2
            - (log_factor / _SPREAD_SD) ** 2 / 2
            - ((slope - 1) / _SLOPE_SD) ** 2 / 2
        )

    def likeliest(self) -> tuple[float, float, float]:
        """Shift, factor and slope, by a search that closes in on its best point."""
        best = self._best(product(_SHIFTS.tolist(), _FACTORS, _SLOPES))
        for step, ratio, turn in _STEPS:
            shift, factor, slope = best
            best = self._best(
                product(
                    (shift, shift - step, shift + step),
                    (factor, factor / ratio, factor * ratio),
                    (slope, max(0.0, slope - turn), slope + turn),
                )
            )
        return best

    def _best(self, points: Iterable[tuple[float, float, float]]) -> tuple[float, float, float]:
        """The likeliest of these points; as many at a time as fit into the processor's cache."""
        every = np.array([*points])
        parts = np.array_split(every, -(-every.shape[0] * self._reached.size // _AT_ONCE) or 1)
        shift, factor, slope = every[np.argmax(np.concatenate([self.likelihood(part) for part in parts]))].tolist()
        return shift, factor, slope
