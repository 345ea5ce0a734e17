"""Budgets in which prompts cost something: money, or tokens of every kind."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shadowprice.arrays import Array
from shadowprice.cost import Rates
from shadowprice.market.policies import allocate
from shadowprice.types import Allocation, Forecast


def allocate_units(
    forecast: Forecast, units: int, policy: str, cap: Array, entry: Array, rates: Rates, **options: Any
) -> tuple[Allocation, NDArray[np.int64]]:
    """What a policy decides about a budget in units, and the tokens that each query may generate.

    Units are divided as output tokens, from which those are subtracted that reading the prompt costs. `entry` is that
    cost, in output tokens: `Rates.entry`.
    """
    if not rates.priced:
        decided = allocate(forecast, units, policy, max_tokens=cap, **options)
        return decided, decided.tokens
    first = np.ceil(entry)
    exact = not any(rate % 10**6 for rate in (rates.input, rates.cached, rates.output))
    rounding = 0 if exact else len(forecast)  # every cost is rounded up by less than 1
    tokens = max(0, units - rounding) * 10**6 // rates.output
    decided = allocate(forecast.shifted(first), tokens, policy, max_tokens=cap + first, **options)
    return decided, np.maximum(0, decided.tokens - first.astype(np.int64))
