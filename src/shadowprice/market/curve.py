"""The base of all utility curves: what a query gains from the tokens it is granted.

A curve object holds the curves of all queries of a market; a parameter is one number for all or
an array with one per query. Every curve here has the same silhouette:

    utility
      |            peak
      |          .-'''-.         start    the curve is concave from here on
      |        .'                tangent  where utility per token, u(t)/t, is highest:
      |      /  tangent                   a ray from the origin touches the curve
      |    .'                    peak     more tokens than this gain nothing
      +---'----------------- tokens
        start

What a query buys at price p is the t that maximises its surplus u(t) - p*t over 0 <= t <= cap:

    reservation price   r = max_t u(t)/t = u(tangent)/tangent
    demand(p)           0 if p >= r (the query cannot pay: rational abandonment),
                        else the t >= tangent at which the marginal utility u'(t) equals p

Demand never lies between 0 and the tangent point, where utility per token is still rising. A cap
below the tangent makes the cap itself the best place, with r = u(cap)/cap.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shadowprice.arrays import Array, checked, common_length
from shadowprice.errors import MarketError

_FAR = 1e150  # tokens: as good as infinity, and its product with exp(-infinity) is 0


class Curve(ABC):
    """What the solver asks of a curve. Arguments broadcast against the queries (last axis)."""

    cap: Array

    def __init__(self, **parameters: Array) -> None:
        size = common_length(**parameters)
        place = next(iter(parameters))  # threshold or median: always one per query, the rest may be shared
        parameters[place] = np.broadcast_to(parameters[place], (1 if size is None else size,))
        self._parameters = parameters
        self._place = place
        vars(self).update(parameters)

    def __len__(self) -> int:
        return self._parameters[self._place].size

    def take(self, queries: slice | NDArray[np.intp]) -> Self:
        """The market of these queries only; shared parameters stay shared."""
        return self._with({name: p if p.ndim == 0 else p[queries] for name, p in self._parameters.items()})

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """The market of all queries of `parts`, in order; there must be one."""
        first = parts[0]
        if len(parts) == 1:
            return first
        every = {
            name: np.concatenate([np.broadcast_to(part._parameters[name], (len(part),)) for part in parts])
            for name in first._parameters
        }
        return first._with(every)

    def capped(self, cap: ArrayLike) -> Self:
        """The same curves where no query may be granted more than `cap`."""
        limit = checked("max_tokens", cap, finite=False)
        return self._with({**self._parameters, "cap": np.minimum(self.cap, limit)})

    def _with(self, parameters: dict[str, Array]) -> Self:
        copy = object.__new__(type(self))
        Curve.__init__(copy, **parameters)
        return copy

    def demand(self, price: ArrayLike) -> Array:
        """The tokens each query buys at `price`; 0 where no grant leaves it a positive surplus."""
        price = np.asarray(price, dtype=np.float64)
        if not np.all(price >= 0):
            raise MarketError("price must be >= 0")
        return np.where(price < self.reservation(), self.follow(price), 0.0)

    def _under_cap(self, tangent: Array, best: Array) -> Array:
        """The best utility per token: `best` where the cap allows `tangent`, else the utility per token at the cap."""
        if not np.any(tangent > self.cap):
            return best
        with np.errstate(divide="ignore", invalid="ignore"):
            at_cap = np.where(self.cap > 0, self.value(self.cap) / self.cap, 0.0)
        return np.where(tangent > self.cap, at_cap, best)

    @abstractmethod
    def value(self, tokens: ArrayLike) -> Array:
        """Utility u(t)."""

    @abstractmethod
    def marginal(self, tokens: ArrayLike) -> Array:
        """du/dt, as seen from the right at a kink."""

    @abstractmethod
    def start(self) -> Array:
        """The tokens from which the curve is concave, at most the cap."""

    @abstractmethod
    def peak(self) -> Array:
        """The tokens at which utility is highest, at most the cap; infinity if it always rises."""

    @abstractmethod
    def reservation(self) -> Array:
        """The price from which the query is declined: its best utility per token."""

    @abstractmethod
    def follow(self, price: ArrayLike) -> Array:
        """The t in [start, peak] with the best surplus at `price`, whether the query can pay or not."""


class ThresholdCurve(Curve):
    """A curve that is 0 up to its threshold, and a concave shape of t - threshold after it.

    Subclasses describe the shape. If all queries share it and differ only by their thresholds,
    their market can be solved exactly (see `clearing`).
    """

    threshold: Array

    def shares_shape(self) -> bool:
        """True if the queries differ by their thresholds alone: one shape, one cap."""
        return all(
            p.ndim == 0 or p.size == 0 or p.min() == p.max()
            for name, p in self._parameters.items()
            if name != "threshold"
        )

    def with_threshold(self, threshold: ArrayLike) -> Self:
        """The shape the queries share (see `shares_shape`), at other thresholds."""
        shape = {name: p if p.ndim == 0 else p[0] for name, p in self._parameters.items()}
        return self._with({**shape, "threshold": np.asarray(threshold, dtype=np.float64)})

    def whole(self) -> Self:
        """The same curves with their thresholds rounded up to whole tokens."""
        return self._with({**self._parameters, "threshold": np.ceil(self.threshold)})

    def value(self, tokens: ArrayLike) -> Array:
        past = np.asarray(tokens, dtype=np.float64) - self.threshold
        return np.where(past > 0, self.shape(np.clip(past, 0.0, _FAR)), 0.0)

    def marginal(self, tokens: ArrayLike) -> Array:
        past = np.asarray(tokens, dtype=np.float64) - self.threshold
        return np.where(past >= 0, self.slope(np.clip(past, 0.0, _FAR)), 0.0)

    def start(self) -> Array:
        return np.minimum(self.threshold, self.cap)

    def peak(self) -> Array:
        return np.minimum(self.threshold + self.extent(), self.cap)

    def follow(self, price: ArrayLike) -> Array:
        price = np.asarray(price, dtype=np.float64)
        return np.minimum(self.threshold + self.extension(price), self.cap)

    def reservation(self) -> Array:
        # Taken from `past`, not from threshold + past: the shape may be far narrower than one ulp of
        # the threshold (the paper's beta is 1e6 in a scarce market).
        past = self.tangent_extension()
        with np.errstate(invalid="ignore"):
            best = self.shape(past) / (self.threshold + past)
        # A threshold of 0, or so small that the tangent is: utility per token is highest at the first token.
        return self._under_cap(self.threshold + past, np.where(past > 0, best, self.slope(0.0)))

    @abstractmethod
    def shape(self, past: Array | float) -> Array:
        """Utility of `past` tokens beyond the threshold."""

    @abstractmethod
    def slope(self, past: Array | float) -> Array:
        """Derivative of `shape`."""

    @abstractmethod
    def extent(self) -> Array:
        """Where `shape` peaks."""

    @abstractmethod
    def extension(self, price: Array) -> Array:
        """The `past` in [0, extent] where slope meets price."""

    @abstractmethod
    def tangent_extension(self) -> Array:
        """The `past` at which shape / (threshold + past) is highest."""
