"""One way to write a budget, everywhere: 200000, 200k, 1.5M, 256/query."""

from __future__ import annotations

import re
from fractions import Fraction

from shadowprice.errors import InputError

_SYNTAX = re.compile(r"(\d+(?:[_,]\d{3})*(?:\.\d+)?|\.\d+)\s*([kKmMgG]?)\s*(/\s*query)?")
_SCALE = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
# Below this, sums of tokens are exact in the float64 arithmetic of the market.
LARGEST = 2**50


def parse_budget(budget: int | float | str, queries: int) -> int:
    """The budget in whole tokens, rounded down; `256/query` is multiplied by the number of queries."""
    if isinstance(budget, str):
        match = _SYNTAX.fullmatch(budget.strip()) if len(budget) < 100 else None
        if match is None:
            raise InputError(
                f"budget {budget!r:.100} is not an amount of tokens", fix="write it as 200000, 200k, 1.5M or 256/query"
            )
        number, suffix, per_query = match.groups()
        amount = Fraction(re.sub("[_,]", "", number)) * _SCALE[suffix.lower()] * (queries if per_query else 1)
    else:
        try:
            amount = Fraction(budget)
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(f"budget {budget!r} is not an amount of tokens", fix="give a finite number") from error
    if amount < 0:
        raise InputError(f"budget {budget!r} is negative", fix="give 0 or more tokens")
    if amount > LARGEST:
        raise InputError(f"budget {budget!r} is above {LARGEST} tokens", fix="nothing generates that many")
    return int(amount)
