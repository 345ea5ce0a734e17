"""Shapes of lengths (`shadowprice.shape`) from answers: rates of ending by age, shrunk towards a simpler law.

Within a step of z the rate of ending is events over exposure. The simpler law counts as so many answers at risk in
every step, so that it decides where few answers have come:

    rate = (ended + strength * rate of the simpler law) / (at risk + strength)

An answer that was cut, or still runs, is at risk up to there and never counts as ended (censoring).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shadowprice.arrays import Array
from shadowprice.market.curves import length_cdf
from shadowprice.shape import COUNT, FIRST, KNOTS, STEP, Shape, of_survival
from shadowprice.types import Forecast

_STRENGTH = 20.0  # answers
_USUAL_TAIL = 5.0  # degrees of freedom, where a forecast has no tail: a law without one never gives up

Mask = NDArray[np.bool_]


def parametric(tail: float | None, width: float, gap: float) -> Shape:
    """The shape of a log-normal law with a tail, for correct answers; wrong ones are `gap` spreads longer.

    width  spread of correct answers, as a share of the spread of all
    """
    return of_survival(*(length_cdf(z, tail, above=True) for z in (KNOTS, KNOTS * width - gap)))


def shape_of(forecast: Forecast) -> Shape:
    """The shape of a forecast, or the one that comes nearest to its other fields."""
    if forecast.shape is not None:
        return forecast.shape
    width = float(np.mean(forecast.solved_spread / forecast.spread))
    gap = float(np.mean(np.log(forecast.tokens / forecast.solved_tokens) / forecast.spread))
    return parametric(_USUAL_TAIL if forecast.tail is None else float(np.median(forecast.tail)), width, gap)


def fit_shape(z: Array, cut: Mask, correct: Array, prior: Shape, strength: float = _STRENGTH) -> Shape:
    """From answers that ended, or were cut, at z; `correct` is the chance that each is correct."""
    return Shape(
        *(
            _cumulative(_rates(z, cut, weight, np.diff(hazard), strength))
            for weight, hazard in ((correct, prior.correct), (1 - correct, prior.wrong))
        )
    )


def bent(shape: Shape, z: Array, ended: Mask, solve: Array, strength: float) -> Shape:
    """The shape after answers were seen that ended at z, or still run there; which of them are correct is unknown.

    So both rates of a step are multiplied by the same number: the rate of ending that was seen, over the one that the
    shape expected of the answers at risk.
    """
    place = np.clip((z - FIRST) / STEP, 0.0, COUNT - 1 - 1e-9)
    at_risk = np.clip(place[:, None] - np.arange(COUNT - 1), 0.0, 1.0)
    steps = np.diff(shape.correct), np.diff(shape.wrong)
    survival = np.exp(-np.array(shape.correct[:-1])), np.exp(-np.array(shape.wrong[:-1]))
    correct, wrong = solve[:, None] * survival[0], (1 - solve)[:, None] * survival[1]
    expected = (at_risk * (correct * steps[0] + wrong * steps[1]) / np.maximum(correct + wrong, 1e-300)).sum(axis=0)
    seen = at_risk.sum(axis=0)
    usual = expected / np.maximum(seen, 1e-12)
    endings = np.bincount(place.astype(np.intp)[ended], minlength=COUNT - 1)
    known = usual > 1e-12
    ratio = np.where(known, (endings + strength * usual) / ((seen + strength) * np.where(known, usual, 1.0)), 1.0)
    return Shape(_cumulative(steps[0] * ratio), _cumulative(steps[1] * ratio))


def _rates(z: Array, cut: Mask, weight: Array, usual: Array, strength: float) -> Array:
    """The hazards by step, of weighted answers."""
    place = np.clip((z - FIRST) / STEP, 0.0, COUNT - 1 - 1e-9)
    step = place.astype(np.intp)
    ended = np.bincount(step[~cut], weight[~cut], minlength=COUNT - 1)
    within = np.bincount(step, weight * (place - step), minlength=COUNT - 1)
    beyond = weight.sum() - np.cumsum(np.bincount(step, weight, minlength=COUNT - 1))
    return np.asarray((ended + strength * usual) / (np.maximum(0.0, beyond) + within + strength))


def _cumulative(rates: Array) -> tuple[float, ...]:
    return (0.0, *np.cumsum(rates).tolist())
