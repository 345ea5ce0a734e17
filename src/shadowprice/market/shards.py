"""A part of a market, sorted once: what `market.sharded` asks of it.

A shard may be an object in this process or in another one on another machine: what is passed are a few numbers, and at
a jump a few curves. Queries of equal rank count in the order of the shards, then of their places in the shard, as in
one market of all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from shadowprice.arrays import Array
from shadowprice.market.curve import Curve, ThresholdCurve

_KNOTS = 32  # thresholds that a shard offers as the next ones to try


class Shards(Protocol):
    """All shards of a market, in order."""

    def all(self, method: str, *arguments: Any) -> list[Any]:
        """What each shard answers to the same question."""
        ...

    def each(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """The same, where each shard has arguments of its own."""
        ...


class LocalShards:
    """Shards in this process."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self.shards = shards

    def all(self, method: str, *arguments: Any) -> list[Any]:
        return [getattr(shard, method)(*arguments) for shard in self.shards]

    def each(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        return [getattr(shard, method)(*own) for shard, own in zip(self.shards, arguments, strict=True)]


class Part(NamedTuple):
    """What a shard holds; `shape` is that of all its queries if they differ by their thresholds alone."""

    size: int
    shape: ThresholdCurve | None


class Some(NamedTuple):
    """Some queries of a shard, with their reservation prices and places in it."""

    curves: Curve
    reservation: Array
    place: NDArray[np.intp]


class Shard:
    """Some of the queries of a market. `tokens` and `admitted` are the clearing, in the order of the queries."""

    def __init__(self, curves: Curve) -> None:
        self.curves = curves
        self.tokens: Array = np.zeros(len(curves))
        self.admitted: NDArray[np.bool_] = np.zeros(len(curves), dtype=bool)

    def describe(self) -> Part:
        curves = self.curves
        shares = len(curves) > 0 and isinstance(curves, ThresholdCurve) and curves.shares_shape()
        shape = curves.with_threshold(0.0) if isinstance(curves, ThresholdCurve) and shares else None
        return Part(len(curves), shape)

    def highest(self) -> float:
        """The highest reservation price, with the queries' own caps."""
        return float(np.max(self.curves.reservation(), initial=0.0))

    def outcome(self) -> tuple[float, int]:
        """Tokens in all, and the queries admitted."""
        return float(self.tokens.sum()), int(np.count_nonzero(self.admitted))

    def scale(self, factor: float) -> None:
        self.tokens *= factor

    # --- whole tokens --------------------------------------------------------------------------

    def is_below_threshold(self) -> bool:
        """Whether rounding down would leave a query less than it needs."""
        curves = self.curves
        short = isinstance(curves, ThresholdCurve) and self.admitted & (np.floor(self.tokens) < curves.threshold)
        return bool(np.any(short))

    def round_thresholds(self) -> None:
        assert isinstance(self.curves, ThresholdCurve)
        self.curves = self.curves.whole()

    def floor(self) -> float:
        """Rounds down, not below the threshold; returns what is granted."""
        least = self.curves.threshold if isinstance(self.curves, ThresholdCurve) else 0.0
        self.tokens = np.where(self.admitted, np.maximum(np.floor(self.tokens), np.floor(least)), 0.0)
        return float(self.tokens.sum())

    def able(self) -> int:
        """How many of the admitted are below their caps."""
        return int(np.count_nonzero(self._able()))

    def raise_by(self, more: int, count: int) -> float:
        """Raises the first `count` of the able, up to their caps; returns by how much in all."""
        some = np.flatnonzero(self._able())[:count]
        before = self.tokens[some]
        self.tokens[some] = np.minimum(before + more, self._cap()[some])
        return float((self.tokens[some] - before).sum())

    def sort_caps(self) -> None:
        """Sorts the caps of those that have nothing, for `levels` and `knots`."""
        self._sorted(np.sort(self._cap()[self._waits()]))

    def serve_caps(self, level: float, ties: int) -> None:
        """Gives those their caps that have nothing, where the cap is below `level`; and to the first equal to it."""
        waits, cap = self._waits(), self._cap()
        served = waits & (cap < level)
        served[np.flatnonzero(waits & (cap == level))[:ties]] = True
        self.tokens[served], self.admitted[served] = cap[served], True

    def _cap(self) -> Array:
        return np.floor(np.broadcast_to(self.curves.cap, (len(self.curves),)))

    def _able(self) -> NDArray[np.bool_]:
        able: NDArray[np.bool_] = (self.tokens > 0) & (self.tokens < self._cap())
        return able

    def _waits(self) -> NDArray[np.bool_]:
        cap = self._cap()
        waits: NDArray[np.bool_] = (self.tokens == 0) & (cap >= 1) & np.isfinite(cap)
        return waits

    # --- one shape for all: sorted thresholds and their sums ---------------------------------------

    def sort(self, cap: float) -> int:
        """Sorts the thresholds below the cap; those at it or above never pay. Returns how many there are."""
        assert isinstance(self.curves, ThresholdCurve)
        tau = np.sort(self.curves.threshold)
        self._sorted(tau[: np.searchsorted(tau, cap)])
        return self._tau.size

    def _sorted(self, values: Array) -> None:
        self._tau, self._sums = values, np.zeros(values.size + 1)
        np.cumsum(values, out=self._sums[1:])

    def levels(self, values: Array, side: str = "right") -> tuple[NDArray[np.int64], Array]:
        """How many thresholds are at most each of these (`left`: below it), and their sum."""
        count = np.searchsorted(self._tau, values, side="left" if side == "left" else "right")
        return count, self._sums[count]

    def knots(self, low: float, high: float) -> Array:
        """Some of the thresholds strictly between `low` and `high`, spread evenly; all if there are few."""
        first = int(np.searchsorted(self._tau, low, side="right"))
        end = max(first, int(np.searchsorted(self._tau, high, side="left")))
        at = np.unique(np.linspace(first, max(first, end - 1), _KNOTS).astype(np.intp)) if end > first else slice(0, 0)
        return np.unique(self._tau[at])

    def at_cap(self, low: float, high: float, shape: ThresholdCurve, cap: float, side: str) -> tuple[int, float]:
        """The thresholds above `low` up to `high` (`left`: below it): how many, and their utility at the cap."""
        first = int(np.searchsorted(self._tau, low, side="right"))
        end = max(first, int(np.searchsorted(self._tau, high, side="left" if side == "left" else "right")))
        return end - first, float(shape.shape(cap - self._tau[first:end]).sum())

    def extend(self, level: float, ties: int, past: float, cap: float) -> None:
        """Admits thresholds below `level` and the first `ties` equal to it; each gets `past` more, up to the cap."""
        assert isinstance(self.curves, ThresholdCurve)
        tau = self.curves.threshold
        self.admitted = tau < level
        self.admitted[np.flatnonzero(tau == level)[:ties]] = True
        self.tokens = np.minimum(tau + past, cap) * self.admitted

    # --- any mix of curves: ranked by reservation price --------------------------------------------

    def rank(self, budget: float) -> tuple[int, float]:
        """Sorts by reservation price; returns how many can pay any, and the sum of their peaks."""
        curves = self.curves.capped(budget)  # a query that needs more than the budget must not set the price
        reservation = curves.reservation()
        self._order = np.argsort(-reservation, kind="stable")[: np.count_nonzero(reservation > 0)]
        self._ranked, self._prices = curves.take(self._order), reservation[self._order]
        self._falling = -self._prices  # ascending, to search in
        self._k = 0  # the first k are admitted
        return self._order.size, float(self._ranked.peak().sum())

    def sample(self, stride: int) -> Some:
        every = slice(stride // 2, None, stride)
        return Some(self._ranked.take(every), self._prices[every], self._order[every])

    def demand(self, price: float) -> float:
        """What those demand at a price whose reservation price is not below it."""
        return self._demand(self._count(price), price)

    def between(self, low: float, high: float) -> int:
        """How many reservation prices are strictly between."""
        return max(0, self._count_above(low) - self._count(high))

    def prices(self, low: float, high: float) -> Array:
        """The reservation prices strictly between."""
        return self._prices[self._count(high) : max(self._count(high), self._count_above(low))]

    def ties(self, price: float) -> tuple[int, float, float]:
        """What is demanded at `price` by those above it, and by those for whom it is the reservation price.

        Returns how many the former are, and both demands.
        """
        above = self._count_above(price)
        tied = self._ranked.take(slice(above, self._count(price))).follow(price)
        return above, self._demand(above, price), float(tied.sum())

    def ties_that_fit(self, price: float, room: float) -> int:
        tied = self._ranked.take(slice(self._count_above(price), self._count(price))).follow(price)
        return int(np.searchsorted(np.cumsum(tied), room, side="right"))

    def cut(self, price: float, ties: int) -> int:
        """Admits those above `price`, and the first `ties` of those for whom it is the reservation price."""
        self._k = self._count_above(price) + ties
        return self._k

    def ends(self) -> float:
        """The peaks of the admitted, in all."""
        return float(self._ranked.take(slice(0, self._k)).peak().sum())

    def admitted_demand(self, price: float) -> float:
        """What the admitted take at a price, whether they can pay it or not."""
        return self._demand(self._k, price)

    def spend(self, low: float, high: float, share: float) -> tuple[float, float]:
        """Gives the admitted what lies between their demands at two prices; returns tokens and utility in all."""
        some = self._ranked.take(slice(0, self._k))
        tokens = some.follow(low if share < 1 else high)
        if 0 < share < 1:
            tokens += share * (some.follow(high) - tokens)
        return self._keep(np.arange(self._k), tokens, float(some.value(tokens).sum()))

    def spend_peaks(self) -> tuple[float, float]:
        some = self._ranked.take(slice(0, self._k))
        return self._keep(np.arange(self._k), some.peak(), float(some.value(some.peak()).sum()))

    def surplus(self, price: float) -> float:
        """What those gain beyond their cost at a price that can pay it."""
        paying = self._ranked.take(slice(0, self._count_above(price)))
        bought = paying.follow(price)
        return float((paying.value(bought) - price * bought).sum())

    def top(self, count: int) -> Some:
        """The first in the ranking."""
        return Some(self._ranked.take(slice(0, count)), self._prices[:count], np.arange(self._order.size)[:count])

    def gainers(self, offer: float, count: int) -> Some:
        """The `count` queries that gain most from `offer` tokens."""
        gain = self._ranked.value(np.minimum(offer, self._ranked.peak()))
        place = np.sort(np.argsort(-gain, kind="stable")[:count])
        return Some(self._ranked.take(place), self._prices[place], place)

    def best_offer(self, offer: float) -> float:
        """The most that a query that was not admitted gains from `offer` tokens."""
        return float(np.max(self._gains(offer), initial=0.0))

    def take_offer(self, offer: float) -> None:
        """Admits the query that gains most."""
        if offer > 0:
            winner = int(np.argmax(self._gains(offer)))
            place = self._order[winner]
            self.tokens[place], self.admitted[place] = min(offer, self._ranked.peak()[winner]), True

    def _gains(self, offer: float) -> Array:
        worth = self._ranked.value(np.minimum(offer, self._ranked.peak()))
        return np.where(self.admitted[self._order], 0.0, worth)

    def give(self, rank: NDArray[np.intp], tokens: Array) -> None:
        """Admits the queries at these ranks of the shard, and no others."""
        self._keep(rank, tokens, 0.0)

    def _keep(self, rank: NDArray[np.intp], tokens: Array, utility: float) -> tuple[float, float]:
        self.tokens, self.admitted = np.zeros(len(self.curves)), np.zeros(len(self.curves), dtype=bool)
        self.tokens[self._order[rank]], self.admitted[self._order[rank]] = tokens, True
        return float(tokens.sum()), utility

    def _demand(self, count: int, price: float) -> float:
        return float(self._ranked.take(slice(0, count)).follow(price).sum())

    def _count(self, price: float) -> int:
        """How many reservation prices are at least this."""
        return int(np.searchsorted(self._falling, -price, side="right"))

    def _count_above(self, price: float) -> int:
        return int(np.searchsorted(self._falling, -price, side="left"))
