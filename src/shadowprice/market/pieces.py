"""Curves of straight pieces: what tokens gain where they are paid for as they are generated.

The chunks of a query (`gittins`) have falling indexes, so the chance of a correct answer as a function of the
*expected* cost is concave, and made of straight pieces: one per chunk, with the index as its slope. In this form the
options of a menu are compared by what they are expected to cost, not by what they may cost at most.
"""

from __future__ import annotations

from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shadowprice.arrays import Array, checked
from shadowprice.market.curve import Curve
from shadowprice.market.gittins import Chunks


class Pieces(Curve):
    """Row i has the pieces of query i, the steepest first; rows are padded with pieces of no length.

    Tokens are those that an answer is expected to take, what is paid before the first included.
    """

    def __init__(self, slope: Array, length: Array, stop: NDArray[np.int64], cap: ArrayLike = np.inf) -> None:
        self.slope, self.length, self.stop = slope, length, stop
        self.cap = np.broadcast_to(checked("cap", cap, finite=False), (len(slope),))
        self._begin = np.cumsum(length, axis=1) - length

    @classmethod
    def of(cls, plan: Chunks) -> Self:
        count = np.diff(plan.first)
        width = max(1, int(count.max(initial=0)))
        inside = np.arange(width) < count[:, None]
        slope, length = np.zeros(inside.shape), np.zeros(inside.shape)
        stop = np.zeros(inside.shape, dtype=np.int64)
        slope[inside], length[inside], stop[inside] = plan.index, plan.cost, plan.stop
        return cls(slope, length, stop)

    def whole(self) -> Self:
        """The same where a query buys everything or nothing: one piece each."""
        length = self.length.sum(1, keepdims=True)
        slope = (self.slope * self.length).sum(1, keepdims=True) / np.maximum(length, 1e-300)
        return type(self)(slope, length, self.stop.max(1, keepdims=True), self.cap)

    def repeated(self, share: Array, reach: Array) -> Self:
        """The same for several samples, one after the other: column k of row i is for the k-th that query i may have.

        share  what it gains, as a multiple of what the pieces say
        reach  the chance that it is bought, because all before it were wrong
        """
        rows = len(self)
        slope = (self.slope[:, :, None] * share[:, None, :]).reshape(rows, -1)
        length = (self.length[:, :, None] * reach[:, None, :]).reshape(rows, -1)
        stop = np.repeat(self.stop, share.shape[1], axis=1)
        slope = np.where(length > 0, slope, 0.0)
        order = np.argsort(-slope, axis=1, kind="stable")
        rows_in_order = np.arange(rows)[:, None], order
        return type(self)(slope[rows_in_order], length[rows_in_order], stop[rows_in_order], self.cap)

    def __len__(self) -> int:
        return len(self.slope)

    def take(self, queries: slice | NDArray[np.intp]) -> Self:
        return type(self)(self.slope[queries], self.length[queries], self.stop[queries], self.cap[queries])

    def capped(self, cap: ArrayLike) -> Self:
        return type(self)(
            self.slope, self.length, self.stop, np.minimum(self.cap, checked("max_tokens", cap, finite=False))
        )

    def value(self, tokens: ArrayLike) -> Array:
        spent = np.asarray(tokens, dtype=np.float64)[..., None] - self._begin
        gained: Array = (np.clip(spent, 0.0, self.length) * self.slope).sum(-1)
        return gained

    def marginal(self, tokens: ArrayLike) -> Array:
        at = np.asarray(tokens, dtype=np.float64)[..., None]
        inside = (at >= self._begin) & (at < self._begin + self.length)
        steepest: Array = np.where(inside, self.slope, 0.0).max(-1)
        return steepest

    def start(self) -> Array:
        return np.zeros(len(self))

    def peak(self) -> Array:
        highest: Array = np.minimum(self.length.sum(-1), self.cap)
        return highest

    def reservation(self) -> Array:
        return np.where(self.cap > 0, self.slope[:, 0], 0.0)

    def follow(self, price: ArrayLike) -> Array:
        above = self.slope > np.asarray(price, dtype=np.float64)[..., None]
        bought: Array = np.minimum(np.where(above, self.length, 0.0).sum(-1), self.cap)
        return bought

    def limit(self, price: float) -> NDArray[np.int64]:
        """The age at which an answer is stopped: where its slope falls below the price; at least the first piece."""
        worth = self.slope > price
        worth[:, 0] = True
        stops: NDArray[np.int64] = np.where(worth, self.stop, 0).max(-1)
        return stops
