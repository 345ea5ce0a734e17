"""The distribution of the length behind a forecast: quantiles, chances, intervals.

It is the law that the market plans with (`market.Expected`): log-normal with the forecast's spread, above the
median with the heavier tail where the forecast has one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from shadowprice.arrays import Array, checked, checked_scalar
from shadowprice.market import Expected
from shadowprice.types import Forecast


def quantile(forecast: Forecast, p: ArrayLike) -> Array:
    """The length that a share `p` of the answers does not exceed; `p` may broadcast with the requests."""
    checked("p", np.ravel(p), high=1.0)
    return _law(forecast).quantile(p)


def chance_within(forecast: Forecast, tokens: ArrayLike) -> Array:
    """The chance that an answer has at most so many tokens: the inverse of `quantile`."""
    return _law(forecast).value(tokens)


def interval(forecast: Forecast, coverage: float) -> tuple[Array, Array]:
    """Lower and upper end of the central interval: the same share of answers is outside on either side."""
    outside = (1 - checked_scalar("coverage", coverage, high=1.0)) / 2
    return quantile(forecast, outside), quantile(forecast, 1 - outside)


def _law(forecast: Forecast) -> Expected:
    return Expected(forecast.tokens, forecast.spread, tail=forecast.tail)
