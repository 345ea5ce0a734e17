"""The value of an answer that is stopped and asked for its final answer: a *landing*.

A model that is cut off has not answered. Asked for its final answer instead, it is sometimes right long before it
would have ended by itself, and sometimes without any reasoning. For a request with the forecasts `tokens` and `solve`

    W(t) = A(t) + R(t / tokens) (solve - A(t))

is the chance that its answer is correct if it is stopped at age t. A(t) is the chance that a correct answer has ended
by then (`market.gittins`), and solve - A(t) the chance that one is still to come. R is the share of those that a
landing gets: R(0) without any reasoning, more the longer the model has reasoned. It is estimated from recorded answers
that were probed (`forecast.landing`). R = 0 everywhere is a world without landings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from shadowprice.arrays import Array
from shadowprice.market.evidence import Evidence
from shadowprice.types import Forecast


@dataclass(frozen=True)
class Anytime:
    """R at some ages, linear in between, and the tokens that stating a final answer takes on average.

    ages      in units of the forecast length, from 0 on, ascending
    shares    R at these ages, from 0 to 1 and not falling; after the last age it stays
    evidence  what probes during a run say; None: nothing, so that none are sent
    """

    ages: tuple[float, ...]
    shares: tuple[float, ...]
    tokens: float
    evidence: Evidence | None = None

    def __post_init__(self) -> None:
        ages, shares = np.array(self.ages), np.array(self.shares)
        if not ages.size or ages.shape != shares.shape or ages[0] != 0 or not np.all(np.diff(ages) > 0):
            raise ValueError("ages must ascend from 0, with a share for each")
        if not np.all(np.diff(shares) >= 0) or not 0 <= shares[0] <= shares[-1] <= 1 or not self.tokens > 0:
            raise ValueError("shares must rise from 0 or more to at most 1, and tokens must be positive")

    def share(self, forecast: Forecast, age: ArrayLike) -> Array:
        """R of every request at its age, or at each of its ages, a row per request."""
        age = np.asarray(age, dtype=np.float64)
        tokens = forecast.tokens if age.ndim < 2 else forecast.tokens[:, None]
        return np.interp(age / tokens, self.ages, self.shares)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Self:
        """What `to_dict` gave; raises ValueError for anything else."""
        try:
            ages, shares = (tuple(map(float, record[name])) for name in ("ages", "shares"))
            evidence = Evidence.from_dict(record["evidence"]) if record.get("evidence") else None
            return cls(ages, shares, float(record["tokens"]), evidence)
        except (KeyError, TypeError):
            raise ValueError("not a curve of landings") from None
