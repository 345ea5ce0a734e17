"""What is still expected of answers that have reached an age without ending."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shadowprice.arrays import Array, checked
from shadowprice.errors import MarketError
from shadowprice.market.curves import Expected, length_cdf
from shadowprice.shape import Shape
from shadowprice.types import Forecast

_LAST_QUANTILE = 1 - 1e-9  # beyond it nothing is known about a law's tail
_TOKENS = (1.0, 2.0**40)  # least and most that can be left


def remaining(forecast: Forecast, age: ArrayLike) -> Forecast:
    """The forecast of the tokens that are left, for answers longer than `age` (one each or one for all).

    With the law F of the length, S = 1 - F, and Fs, Ss that of correct answers:

        tokens         F^-1((1 + F(age)) / 2) - age      the median of what is left, given that it is longer
        solved_tokens  the same under Fs
        solve          solve Ss(age) / S(age)            the chance that a correct answer is still to come

    Spread and tail stay as they were. Requests of age 0 keep their forecast exactly.
    """
    n = len(forecast)
    past = checked("age", age)
    if past.ndim == 1 and past.size != n:
        raise MarketError(f"one age per request, or one for all, is needed: got {past.size} for {n} requests")
    begun = np.broadcast_to(past > 0, (n,))
    if not begun.any():
        return forecast
    part, past = forecast.take(begun), np.broadcast_to(past, (n,))[begun]
    if part.shape is not None:
        return _remaining_of_shape(forecast, part, part.shape, past, begun)
    return Forecast(
        _replaced(forecast.tokens, begun, _median_left(past, part.tokens, part.spread, part.tail)),
        forecast.spread,
        _replaced(forecast.solve, begun, chance_left(part, past)),
        forecast.tail,
        _replaced(forecast.solved_tokens, begun, _median_left(past, part.solved_tokens, part.solved_spread, part.tail)),
        forecast.solved_spread,
    )


def chance_left(forecast: Forecast, age: Array) -> Array:
    """The chance that a correct answer is still to come, of requests that have come to these ages."""
    if forecast.shape is not None:
        z = (np.log(np.maximum(age, 1e-9)) - np.log(forecast.solved_tokens)) / forecast.solved_spread
        to_come = forecast.solve * forecast.shape.survival(z)[0]
        alive = forecast.shape.longer(z, forecast.solve)
    else:
        alive = _survival(age, forecast.tokens, forecast.spread, forecast.tail)
        to_come = forecast.solve * _survival(age, forecast.solved_tokens, forecast.solved_spread, forecast.tail)
    with np.errstate(divide="ignore", invalid="ignore"):  # 0 / 0: older than any answer, so that nothing is known
        return np.clip(np.where(alive > 0, to_come / alive, forecast.solve), 0.0, 1.0)


def _remaining_of_shape(
    forecast: Forecast, some: Forecast, shape: Shape, past: Array, begun: NDArray[np.bool_]
) -> Forecast:
    """The same by the tables of a shape. What is left does not have that shape any more."""
    z = (np.log(past) - np.log(some.solved_tokens)) / some.solved_spread
    correct, _ = shape.survival(z)
    alive = shape.longer(z, some.solve)

    def median_left(survival: Array, solve: Array) -> Array:
        middle = np.minimum(1 - survival / 2, _LAST_QUANTILE)
        most = (np.log(_TOKENS[1]) - np.log(some.solved_tokens)) / some.solved_spread
        ends = some.solved_tokens * np.exp(some.solved_spread * shape.quantile(middle, solve, most))
        return np.clip(ends - past, *_TOKENS)

    return Forecast(
        _replaced(forecast.tokens, begun, median_left(alive, some.solve)),
        forecast.spread,
        _replaced(forecast.solve, begun, chance_left(some, past)),
        forecast.tail,
        _replaced(forecast.solved_tokens, begun, median_left(correct, np.ones_like(past))),
        forecast.solved_spread,
    )


def _survival(age: Array, median: Array, spread: Array, tail: Array | None) -> Array:
    """S(age), with all its digits where it is small."""
    return length_cdf((np.log(age) - np.log(median)) / spread, tail, above=True)


def _median_left(age: Array, median: Array, spread: Array, tail: Array | None) -> Array:
    law = Expected(median, spread, tail=tail)
    middle = np.minimum((1 + law.value(age)) / 2, _LAST_QUANTILE)
    return np.clip(law.quantile(middle) - age, *_TOKENS)


def _replaced(values: Array, where: NDArray[np.bool_], new: Array) -> Array:
    merged = np.broadcast_to(values, where.shape).copy()
    merged[where] = new
    return merged
