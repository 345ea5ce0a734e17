"""The options of a market of menus: ways to answer, each with its curves and what its tokens cost (`menu`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shadowprice.arrays import Array, checked
from shadowprice.errors import MarketError
from shadowprice.market.curve import Curve

Ints = NDArray[np.int64]

DECLINE = -1  # the option of a query that is not served


class Step(Curve):
    """An answer that is worth nothing unless it is whole: `height` from `threshold` tokens on."""

    threshold: Array
    height: Array

    def __init__(self, threshold: ArrayLike, height: ArrayLike = 1.0, cap: ArrayLike = np.inf) -> None:
        super().__init__(
            threshold=checked("threshold", threshold, open_low=True),
            height=checked("height", height),
            cap=checked("cap", cap, finite=False),
        )

    def value(self, tokens: ArrayLike) -> Array:
        return np.where(np.asarray(tokens, dtype=np.float64) >= self.threshold, self.height, 0.0)

    def marginal(self, tokens: ArrayLike) -> Array:
        return np.zeros(np.broadcast(np.asarray(tokens), self.threshold).shape)

    def start(self) -> Array:
        return np.minimum(self.threshold, self.cap)

    def peak(self) -> Array:
        return np.minimum(self.threshold, self.cap)

    def reservation(self) -> Array:
        return np.where(self.threshold <= self.cap, self.height / self.threshold, 0.0)

    def follow(self, price: ArrayLike) -> Array:
        return np.broadcast_to(self.peak(), np.broadcast(np.asarray(price), self.threshold).shape)


class Option:
    """One way to answer, for every query of a market: its curves, and what tokens cost.

    rate   units that a token costs
    entry  units that are paid before the first token

    A query that does not have this option has a cap of 0.
    """

    def __init__(self, curves: Curve, rate: ArrayLike = 1.0, entry: ArrayLike = 0.0) -> None:
        self.curves = curves
        self.rate = checked("rate", rate, open_low=True)
        self.entry = checked("entry", entry)
        for name, values in (("rate", self.rate), ("entry", self.entry)):
            if values.ndim and values.size != len(curves):
                raise MarketError(f"{name} must be one number or one per query: {values.size} for {len(curves)} curves")

    def __len__(self) -> int:
        return len(self.curves)

    def take(self, queries: slice | NDArray[np.intp]) -> Option:
        rate, entry = (each if each.ndim == 0 else each[queries] for each in (self.rate, self.entry))
        return Option(self.curves.take(queries), rate, entry)

    def within(self, budget: float) -> Option:
        """The same where no query may cost more than `budget`."""
        room = np.maximum(0.0, budget - self.entry) / self.rate
        return Option(self.curves.capped(room), self.rate, self.entry)

    def cost(self, tokens: Array) -> Array:
        return self.entry + self.rate * tokens

    def tokens(self, cost: float | Array) -> Array:
        """What `cost` units buy, at most."""
        return np.minimum(np.maximum(0.0, cost - self.entry) / self.rate, self.curves.peak())


Menu = Sequence[Option]


@dataclass(frozen=True, eq=False)
class Bought:
    """What every query buys at a price: the number of its option, or DECLINE, with tokens, cost and utility."""

    option: Ints
    tokens: Array
    cost: Array
    utility: Array
    surplus: Array

    def row(self, number: int) -> Bought:
        return Bought(*(each[number] for each in vars(self).values()))

    def put(self, which: Any, other: Bought) -> None:
        """Takes over what `other` buys for some of the queries, in place."""
        for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True):
            mine[which] = theirs[which]


def envelope(menu: Menu, price: ArrayLike) -> Bought:
    """The best option of every query at `price`; of options that are equally good, the cheaper one."""
    price = np.asarray(price, dtype=np.float64)
    shape = np.broadcast_shapes(price.shape, (len(menu[0]),))
    best = Bought(np.full(shape, DECLINE), *(np.zeros(shape) for _ in range(4)))
    for number, option in enumerate(menu):
        tokens, cost, utility = at_price(option, price)
        surplus = utility - price * cost
        better = (surplus > best.surplus) | ((surplus == best.surplus) & (surplus > 0) & (cost < best.cost))
        best.put(better, Bought(np.full(shape, number), tokens, cost, utility, surplus))
    return best


def at_price(option: Option, price: Array) -> tuple[Array, Array, Array]:
    """Tokens, cost and utility where the marginal utility of an option is the price."""
    tokens = option.curves.follow(price * option.rate)
    return tokens, option.cost(tokens), option.curves.value(tokens)


def valued(menu: Menu, choice: Ints, tokens: Array) -> Bought:
    """Cost and utility of given options and tokens; the surplus is left out."""
    cost, utility = np.zeros(tokens.shape), np.zeros(tokens.shape)
    for number, option in enumerate(menu):
        if np.any(mine := choice == number):
            cost = np.where(mine, option.cost(tokens), cost)
            utility = np.where(mine, option.curves.value(tokens), utility)
    return Bought(choice, np.where(choice == DECLINE, 0.0, tokens), cost, utility, np.zeros(tokens.shape))


def pick(menu: Menu, chosen: Ints, values: Sequence[Array]) -> Array:
    """Of one array per option, what each query chose; 0 where it declines."""
    picked = np.zeros(chosen.shape)
    for number in range(len(menu)):
        picked = np.where(chosen == number, values[number], picked)
    return picked
