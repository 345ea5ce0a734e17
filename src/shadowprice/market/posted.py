r"""A posted price: what each request buys when it arrives, without a batch to clear.

A request that is granted t tokens is charged what it uses, so a grant has an expected gain and an expected cost
(`market.gittins`):

    value A(t)          the chance of a correct answer within t tokens, times what one is worth to its sender
    entry + C(t)        reading the prompt, and E[min(L, t)] of the answer

At price p it buys the grant with the best surplus, value A(t) - p (entry + C(t)), over t up to its cap, and nothing
if no surplus is positive. The highest price at which it still buys is its reservation price, max_t of gain over cost.
At price 0 it buys its cap.

This is the demand of the index: the best grants at all prices are the corners of the least concave majorant of gain
over cost, and a request buys all of its chunks whose index, times its value, is above the price. Compared by index, a
higher price never buys more; compared by surplus it would, where grants differ by less than rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shadowprice.arrays import Array, checked, checked_scalar
from shadowprice.market.anytime import Anytime
from shadowprice.market.gittins import majorant, paths
from shadowprice.types import Forecast


@dataclass(frozen=True, eq=False)
class Purchase:
    """What requests buy at a price: the tokens each may use (0: declined), and the gain and the cost it expects."""

    grant: NDArray[np.int64]
    gain: Array
    cost: Array


class Offers:
    """The grants that requests can buy, a row per request: tokens, and the expected gain and cost of each.

    cap    the most tokens that each may be granted: its own limit, and what is left of the budget
    value  what a correct answer is worth to its sender
    entry  the cost of reading the prompt, in output tokens (`Rates.entry`)
    rate   units of the budget per output token
    """

    tokens: Array
    gain: Array
    cost: Array
    index: Array  # of the chunk that ends at each of these grants; 0 where none does

    def __init__(
        self,
        forecast: Forecast,
        cap: ArrayLike,
        *,
        value: ArrayLike = 1.0,
        entry: ArrayLike = 0.0,
        rate: ArrayLike = 1.0,
        anytime: Anytime | None = None,
    ) -> None:
        n = len(forecast)
        most = np.floor(np.broadcast_to(checked("cap", cap, finite=False), (n,)))
        worth = np.broadcast_to(checked("value", value), (n,))
        to_enter = np.broadcast_to(checked("entry", entry), (n,))
        tokens, gained, _, cost = paths(
            forecast.take(np.arange(n)), np.zeros(n), np.maximum(most, 1), to_enter, anytime
        )
        self.tokens = np.minimum(tokens, most[:, None])
        self.gain = worth[:, None] * (gained - gained[:, :1])
        self.cost = np.broadcast_to(checked("rate", rate, open_low=True), (n,))[:, None] * cost
        self.index = np.zeros_like(self.cost)
        row, _, last, slope = majorant(worth[:, None] * gained, self.cost)
        self.index[row, last] = slope

    def __len__(self) -> int:
        return len(self.tokens)

    def take(self, requests: slice | NDArray[np.intp]) -> Offers:
        """The offers to some of the requests."""
        some = object.__new__(Offers)
        some.tokens, some.gain = self.tokens[requests], self.gain[requests]
        some.cost, some.index = self.cost[requests], self.index[requests]
        return some

    def up_to(self, grant: ArrayLike) -> Offers:
        """The offers to requests that may buy no more than this grant, one of those that they were offered."""
        last = (self.tokens <= np.broadcast_to(grant, (len(self),))[:, None]).sum(axis=1) - 1
        column = np.minimum(np.arange(self.tokens.shape[1]), last[:, None])
        some = object.__new__(Offers)
        some.tokens, some.gain, some.cost = (
            np.take_along_axis(each, column, axis=1) for each in (self.tokens, self.gain, self.cost)
        )
        some.index = np.where(column == np.arange(self.tokens.shape[1]), self.index, 0.0)
        return some

    def at(self, price: float) -> Purchase:
        """What each request buys at this price."""
        wanted = self.index > checked_scalar("price", price)
        wanted[:, 0] = True  # nothing
        if price == 0:
            wanted[:, -1] = True
        best = wanted.shape[1] - 1 - wanted[:, ::-1].argmax(axis=1)
        row = np.arange(len(self))
        grant = self.tokens[row, best].astype(np.int64)
        bought = grant > 0
        return Purchase(grant, self.gain[row, best] * bought, self.cost[row, best] * bought)

    def reservation(self) -> Array:
        """The price from which each request is declined."""
        return np.where(self.tokens[:, -1] > 0, self.index.max(axis=1), 0.0)
