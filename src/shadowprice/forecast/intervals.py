"""The distribution of the length behind a forecast: quantiles, chances, intervals.

It is the law that the market plans with: the shape of the forecast (`shadowprice.shape`) if it has one; else that of
`market.Expected`, log-normal with the forecast's spread, above the median with the heavier tail where there is one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from shadowprice.arrays import Array, checked, checked_scalar
from shadowprice.market import Expected
from shadowprice.types import Forecast

_LONGEST = 53 * np.log(2)  # log tokens


def quantile(forecast: Forecast, p: ArrayLike) -> Array:
    """The length that a share `p` of the answers does not exceed; `p` may broadcast with the requests."""
    checked("p", np.ravel(p), high=1.0)
    if forecast.shape is None:
        return _law(forecast).quantile(p)
    place = np.log(forecast.solved_tokens)
    most = (_LONGEST - place) / forecast.solved_spread
    z = forecast.shape.quantile(np.asarray(p, dtype=np.float64), forecast.solve, most)
    return np.exp(place + forecast.solved_spread * z)


def chance_within(forecast: Forecast, tokens: ArrayLike) -> Array:
    """The chance that an answer has at most this many tokens: the inverse of `quantile`."""
    if forecast.shape is None:
        return _law(forecast).value(tokens)
    with np.errstate(divide="ignore"):  # 0 tokens: no answer
        z = (np.log(tokens) - np.log(forecast.solved_tokens)) / forecast.solved_spread
    return 1 - forecast.shape.longer(z, forecast.solve)


def interval(forecast: Forecast, coverage: float) -> tuple[Array, Array]:
    """Lower and upper end of the central interval: the same share of answers is outside on either side."""
    outside = (1 - checked_scalar("coverage", coverage, high=1.0)) / 2
    return quantile(forecast, outside), quantile(forecast, 1 - outside)


def _law(forecast: Forecast) -> Expected:
    return Expected(forecast.tokens, forecast.spread, tail=forecast.tail)
