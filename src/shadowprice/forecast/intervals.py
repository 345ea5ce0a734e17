"""The law of the length that a forecast stands for: how long an answer is with a given chance.

It is the law the market plans with (`market.Expected`): log-normal with the forecast's spread, above the
median with the heavier tail where the forecast has one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from shadowprice.arrays import Array, checked, checked_scalar
from shadowprice.market import Expected
from shadowprice.types import Forecast


def quantile(forecast: Forecast, p: ArrayLike) -> Array:
    """The length that a share `p` of the answers does not exceed; one `p`, or what broadcasts with the queries."""
    checked("p", np.ravel(p), high=1.0)
    return _law(forecast).quantile(p)


def chance_within(forecast: Forecast, tokens: ArrayLike) -> Array:
    """The chance that an answer is no longer than so many tokens: the inverse of `quantile`."""
    return _law(forecast).value(tokens)


def interval(forecast: Forecast, coverage: float) -> tuple[Array, Array]:
    """Lower and upper ends of the interval that leaves out the same share of answers on either side."""
    outside = (1 - checked_scalar("coverage", coverage, high=1.0)) / 2
    return quantile(forecast, outside), quantile(forecast, 1 - outside)


def _law(forecast: Forecast) -> Expected:
    return Expected(forecast.tokens, forecast.spread, tail=forecast.tail)
