"""The worth of a *probe*: asking a request for its final answer while it may still be continued.

Two probes in a row that state the same answer say something about what is still to be gained by continuing, the chance
that the whole answer is correct less the chance that a landing now is. Of requests that have come to an age,

    agree     the chance that the two probes agree
    left      the share of that gain which is left where they do. 0: an answer that is stated twice is final;
              1: it says nothing

Both are estimated from recorded answers that were probed (`forecast.landing`). Where probes agree the index of the
request, chances per token (`market.gittins`), is reduced to left times what it was. Where they differ it stays.

At a price, the chunks of a request with an index above it are continued. If its probes agree, those that are then worth
less than the price are not: what is saved is their tokens at the price, less what they would have gained. A probe is
worth

    agree * sum of cost (price - left index) over the chunks with index > price > left index

and is sent if that is more than its own tokens at the price. At the price 0 it is worth nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from shadowprice.arrays import Array


@dataclass(frozen=True)
class Evidence:
    """What two probes in a row say, by the age of the second; the first is of an earlier step.

    ages   of the steps, in units of the forecast length, ascending; a step ends where the next begins
    agree  the chance that the two agree
    left   the share of the gain from continuing that is left if they do, from 0 to 1
    """

    ages: tuple[float, ...]
    agree: tuple[float, ...]
    left: tuple[float, ...]

    def __post_init__(self) -> None:
        ages, chances = np.array(self.ages), np.array([self.agree, self.left])
        if not ages.size or chances.shape != (2, ages.size) or not np.all(np.diff(ages, prepend=0.0) > 0):
            raise ValueError("ages must ascend, with a chance and a share for each")
        if not np.all((chances >= 0) & (chances <= 1)):
            raise ValueError("chances and shares must be from 0 to 1")

    def step(self, age: float) -> int:
        """The step of an age in units of the forecast length; -1 before the first."""
        return int(np.searchsorted(self.ages, age, side="right")) - 1

    def worth(self, step: int, index: Array, cost: Array, price: float) -> float:
        """What it is worth to know whether the probes of a request agree, by `index` and `cost` of its chunks."""
        saved = cost * np.maximum(price - self.left[step] * index, 0.0)
        return self.agree[step] * float(saved[index > price].sum())

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Self:
        """What `dataclasses.asdict` gave; raises ValueError for anything else."""
        try:
            return cls(*(tuple(map(float, record[name])) for name in ("ages", "agree", "left")))
        except (KeyError, TypeError):
            raise ValueError("not what probes say") from None
