"""Clears a market that is distributed over processes: the price, admitted queries and certificate of `clearing.clear`.

The queries are in shards (`market.shards`), each sorted once. Shards are asked for sums, at one price or at many
thresholds, which are added up here. The result is not approximate: a search ends when no query is left between its two
ends, so the admitted queries are those of one market with all queries, and its price differs only by rounding.

One shape for all: the search is over levels of thresholds instead of the number of admitted queries (see `clearing`).
All that it needs is the count and the sum of all thresholds up to a level, because

    sum_{i<=k} min(tau_i + d, cap) = budget

is concave and piecewise linear in d, so Newton's method from below ends in a few steps, exactly.

Any mix: total demand at a price, by all who can pay it, falls with the price. The clearing price is bracketed from a
sample, by regula falsi, until no reservation price is left in the bracket.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shadowprice.arrays import Array, checked_scalar
from shadowprice.market.clearing import (
    EXACT,
    FINE,
    OFFERS,
    WIDEST,
    WINDOW,
    Status,
    best_at_jump,
    count_admitted,
    share_of_high,
)
from shadowprice.market.curve import Curve, ThresholdCurve
from shadowprice.market.roots import falling_root
from shadowprice.market.shards import Part, Shards, Some

_FEW = 4096  # reservation prices that are fetched, so that they can be tried themselves


@dataclass(frozen=True)
class Cleared:
    """A solved market, as in `clearing.Clearing`; the tokens are in the shards."""

    price: float
    queries: int
    admitted: int
    granted: float
    utility: float
    bound: float
    status: Status
    rounds: int

    @property
    def gap(self) -> float:
        return self.bound - self.utility


def clear_shards(shards: Shards, budget: float) -> Cleared:
    """Divide `budget` tokens among the queries of all shards so that total utility is highest."""
    supply = checked_scalar("budget", budget)
    counted = _Counted(shards)
    parts: list[Part] = counted.all("describe")
    size = sum(part.size for part in parts)
    if size == 0:
        return Cleared(0.0, 0, 0, 0.0, 0.0, 0.0, "ample", counted.rounds)
    if supply == 0:
        return Cleared(max(counted.all("highest")), size, 0, 0.0, 0.0, 0.0, "starved", counted.rounds)
    shape = _common_shape([part for part in parts if part.size])
    price, utility, bound, status = (
        _Mixed(counted, supply).clear() if shape is None else _Shared(counted, supply, shape).clear()
    )
    outcomes = counted.all("outcome")
    granted, admitted = sum(tokens for tokens, _ in outcomes), sum(count for _, count in outcomes)
    if granted > supply:  # by rounding errors
        factor = supply / granted * (1 - 4e-15)
        counted.all("scale", factor)
        granted *= factor
    return Cleared(price, size, admitted, granted, utility, max(bound, utility), status, counted.rounds)


def allocate_shards(shards: Shards, budget: int) -> Cleared:
    """The same in whole tokens, whose sum is within the budget.

    What rounding saves is shared equally among the admitted, where one node gives it to those who gain most: no grant
    differs by more than that share. What is left after that serves declined queries up to their caps, the lowest first
    (`policies.serve_rest`).
    """
    cleared = clear_shards(shards, budget)
    counted = _Counted(shards, cleared.rounds)
    if any(counted.all("is_below_threshold")):
        counted.all("round_thresholds")
        cleared = clear_shards(shards, budget)
        counted.rounds += cleared.rounds
    rest = budget - int(sum(counted.all("floor")))
    while rest > 0 and cleared.status != "ample" and (able := sum(own := counted.all("able"))):
        first = np.minimum(own, np.maximum(0, rest - np.concatenate([[0], np.cumsum(own)[:-1]])))
        more = max(1, rest // able)  # if there is not one token for each, the first get one
        rest -= int(sum(counted.each("raise_by", [(more, int(count)) for count in first])))
    if rest > 0:
        counted.all("sort_caps")
        best, _ = _largest(counted, np.inf, lambda some: some.spent <= rest)
        counted.each("serve_caps", [(best.level, ties) for ties in _quota(counted, best)])
    outcomes = counted.all("outcome")
    granted, admitted = sum(tokens for tokens, _ in outcomes), sum(count for _, count in outcomes)
    return replace(cleared, granted=granted, admitted=admitted, rounds=counted.rounds)


@dataclass
class _Counted:
    """Counts how often the shards are asked."""

    shards: Shards
    rounds: int = 0

    def all(self, method: str, *arguments: Any) -> list[Any]:
        self.rounds += 1
        return self.shards.all(method, *arguments)

    def each(self, method: str, arguments: list[tuple[Any, ...]]) -> list[Any]:
        self.rounds += 1
        return self.shards.each(method, arguments)

    def total(self, method: str, *arguments: Any) -> float:
        return float(sum(self.all(method, *arguments)))


def _common_shape(parts: list[Part]) -> ThresholdCurve | None:
    """The shape and cap of all queries, if they differ by their thresholds alone."""
    shapes = [part.shape for part in parts if part.shape is not None]
    if len(shapes) < len(parts) or any(type(shape) is not type(shapes[0]) for shape in shapes):
        return None
    joined = type(shapes[0]).joined(shapes)
    return shapes[0] if joined.shares_shape() else None


# --- one shape for all -------------------------------------------------------------------------


@dataclass(frozen=True)
class _Set:
    """The k queries with the smallest thresholds: all below `level`, and `ties` that are equal to it."""

    level: float
    k: int
    ties: int
    spent: float  # the sum of their thresholds


def _below(shards: _Counted, level: float) -> _Set:
    counts, sums = _levels(shards, np.array([level]), "left")
    return _Set(float(level), int(counts[0]), 0, float(sums[0]))


def _plus(some: _Set, ties: int) -> _Set:
    return _Set(some.level, some.k + ties, ties, some.spent + ties * some.level)


def _levels(shards: _Counted, values: Array, side: str) -> tuple[Array, Array]:
    answers = shards.all("levels", values, side)
    return np.sum([count for count, _ in answers], axis=0), np.sum([total for _, total in answers], axis=0)


def _largest(shards: _Counted, end: float, pays: Callable[[_Set], bool]) -> tuple[_Set, _Set | None]:
    """The largest set that pays, and the one with one query more; sets that are larger than one that does not, do not.

    `end` is above all sorted numbers.
    """
    low, high = -np.inf, end  # the first query at `low` pays, that at `high` does not
    while (knots := np.unique(np.concatenate(shards.all("knots", low, high)))).size:
        counts, sums = _levels(shards, knots, "left")
        first, last = 0, knots.size  # of those that are undecided
        while first < last:
            at = (first + last) // 2
            one = _plus(_Set(float(knots[at]), int(counts[at]), 0, float(sums[at])), 1)
            if pays(one):
                low, first = one.level, at + 1
            else:
                high, last = one.level, at
    then = _plus(_below(shards, high), 1) if high < end else None
    if low == -np.inf:
        return _Set(0.0, 0, 0, 0.0), then
    below = _below(shards, low)
    ties = int(_levels(shards, np.array([low]), "right")[0][0]) - below.k
    least, most = 1, ties
    while least < most:  # among equals only the number matters
        middle = (least + most + 1) // 2
        least, most = (middle, most) if pays(_plus(below, middle)) else (least, middle - 1)
    return _plus(below, least), _plus(below, least + 1) if least < ties else then


def _quota(shards: _Counted, some: _Set) -> list[int]:
    """How many of the queries at the level of a set each shard may admit: the first ones."""
    below, upto = (shards.all("levels", np.array([some.level]), side) for side in ("left", "right"))
    own = [int(high[0][0] - low[0][0]) for low, high in zip(below, upto, strict=True)]
    left = np.maximum(0, some.ties - np.concatenate([[0], np.cumsum(own)[:-1]]))
    return [int(each) for each in np.minimum(own, left)]


class _Shared:
    def __init__(self, shards: _Counted, budget: float, shape: ThresholdCurve) -> None:
        self.shards, self.budget, self.shape = shards, budget, shape
        self.cap, self.reach = float(shape.cap.flat[0]), float(shape.extent().flat[0])

    def clear(self) -> tuple[float, float, float, Status]:
        size = sum(self.shards.all("sort", self.cap))
        best, then = _largest(self.shards, self.cap, self._pays)
        price = self._price(best)
        utility = bound = self._total(best, self._extension(best), 0.0)
        status: Status = "cleared" if price > 0 else "ample"
        if then is not None and self._surplus(best, then.level) > 0:  # a part of the next query would pay: a jump
            price = float(self.shape.with_threshold(then.level).reservation()[0])
            bound = price * self.budget + self._total(
                _below(self.shards, then.level), float(self.shape.extension(np.asarray(price)).flat[0]), price
            )
            status = "jump"
            if then.spent <= self.budget and (more := self._total(then, self._extension(then), 0.0)) > utility:
                best, utility = then, more
        if size == 0 or best.k == 0:
            status = "starved"
        past = self._extension(best)
        self.shards.each("extend", [(best.level, ties, past, self.cap) for ties in _quota(self.shards, best)])
        return price, utility, bound, status

    def _pays(self, some: _Set) -> bool:
        return some.spent <= self.budget and self._surplus(some, some.level) >= 0

    def _extension(self, some: _Set) -> float:
        """How far beyond its threshold each of the set goes, where the cap allows it."""
        if some.k == 0:
            return self.reach
        past = min(self.reach, (self.budget - some.spent) / some.k)
        while some.level + past > self.cap and past < self.reach:  # some sit at the cap, and leave more for the others
            counts, sums = _levels(self.shards, np.array([self.cap - past]), "right")
            free = int(counts[0])
            if free == 0:
                return self.reach
            more = min(self.reach, (self.budget - float(sums[0]) - (some.k - free) * self.cap) / free)
            if more <= past:
                break
            past = more
        return past

    def _price(self, some: _Set) -> float:
        past = self._extension(some)
        return float(self.shape.slope(past).flat[0]) if past < self.reach else 0.0

    def _surplus(self, some: _Set, threshold: float) -> float:
        past = self._extension(some)
        price = float(self.shape.slope(past).flat[0]) if past < self.reach else 0.0
        past = min(past, self.cap - threshold)
        return float(self.shape.shape(past).flat[0]) - price * (threshold + past)

    def _total(self, some: _Set, past: float, price: float) -> float:
        """Surplus at `price` of the set, each `past` its threshold or at the cap."""
        below, spent, at_cap = some.k, some.spent, 0.0
        if some.k and some.level + past > self.cap:
            counts, sums = _levels(self.shards, np.array([self.cap - past]), "right")
            below, spent = int(counts[0]), float(sums[0])
            answers = self.shards.all("at_cap", self.cap - past, some.level, self.shape, self.cap, "left")
            at_cap = sum(value - count * price * self.cap for count, value in answers)
            at_cap += some.ties * (float(self.shape.shape(self.cap - some.level).flat[0]) - price * self.cap)
        return below * (float(self.shape.shape(past).flat[0]) - price * past) - price * spent + at_cap


# --- any mix of curves -------------------------------------------------------------------------


class _Mixed:
    def __init__(self, shards: _Counted, budget: float) -> None:
        self.shards, self.budget = shards, budget

    def clear(self) -> tuple[float, float, float, Status]:
        ranked = self.shards.all("rank", self.budget)
        paying = sum(count for count, _ in ranked)
        if paying == 0:
            price = max(self.shards.all("highest"))
            return price, 0.0, price * self.budget, "starved"
        if sum(peaks for _, peaks in ranked) <= self.budget:
            self.shards.all("cut", 0.0, 0)
            utility = sum(value for _, value in self.shards.all("spend_peaks"))
            return 0.0, utility, utility, "ample"
        low, high = self._bracket(paying)
        tied = self.shards.all("ties", low)
        room = self.budget - sum(demand for _, demand, _ in tied)
        quota = self._ties_that_fit(low, [demand for _, _, demand in tied], room)
        k = sum(self.shards.each("cut", [(low, ties) for ties in quota]))
        rest = self.budget - self.shards.total("admitted_demand", low) if k else self.budget
        if rest <= 0:  # it clears between two reservation prices
            price, utility = self._spend(low, high)
            return price, utility, self._bound(price), "cleared"
        if WINDOW // (k + 1) > 1:
            utility, status = self._few_at_jump(k, low, rest, FINE if paying <= FINE else k + 2 * WIDEST)
            return low, utility, self._bound(low), status
        utility = self._spend(0.0, low)[1] + self._offer_rest()
        return low, utility, self._bound(low), "jump"

    def _bracket(self, paying: int) -> tuple[float, float]:
        """Two prices: at the first total demand is above the budget, at the second not; no reservation price between.

        The first is 0 if all reservation prices are at the second or above it.
        """
        low, high, guess = 0.0, np.inf, self._guess(paying)
        over = under = 0.0  # by how much demand is above the budget at `low`, below it at `high`
        tried: Array | None = None
        step, probes, low_moved = 1e-3, 0, None
        while between := int(self.shards.total("between", low, high)):
            if tried is None and between <= _FEW:
                tried = np.sort(np.concatenate(self.shards.all("prices", low, high)))
            if low == 0.0 or high == np.inf:
                price = guess if probes == 0 else high / (1 + step) if low == 0.0 else low * (1 + step)
                step *= 8 if probes else 1
            else:
                share = 0.5 if probes % 6 == 5 else over / (over + under)
                price = float(low * (high / low) ** share)
            if tried is not None:
                inside = tried[np.searchsorted(tried, low, "right") : np.searchsorted(tried, high, "left")]
                at = int(np.clip(np.searchsorted(inside, price), 0, inside.size - 1))
                price = float(inside[at])
            elif not low < price < high:
                price = float((low + high) / 2)
            excess = self.shards.total("demand", price) - self.budget
            probes += 1
            # An end that stays twice in a row counts with half its value, as in `roots.falling_root`.
            if excess > 0:
                low, over, under = price, excess, under / 2 if low_moved is True else under
            else:
                high, under, over = price, max(-excess, 1e-300), over / 2 if low_moved is False else over
            low_moved = excess > 0
        return low, high

    def _guess(self, paying: int) -> float:
        """The clearing price of a small market of every n-th query."""
        stride = max(1, paying // FINE)
        curves, reservation, _, _ = self._gathered(self.shards.all("sample", stride))
        if not len(reservation):
            return 1.0
        k, _ = count_admitted(curves, reservation, self.budget / stride)
        return float(reservation[min(k, len(reservation) - 1)])

    def _gathered(self, some: list[Some]) -> tuple[Curve, Array, Array, Array]:
        """Queries of all shards, ranked; with their reservation prices, their shards and their ranks there."""
        reservation = np.concatenate([each.reservation for each in some])
        order = np.argsort(-reservation, kind="stable")
        shard = np.concatenate([np.full(len(each.reservation), at) for at, each in enumerate(some)])
        rank = np.concatenate([each.place for each in some])
        curves = type(some[0].curves).joined([each.curves for each in some])
        return curves.take(order), reservation[order], shard[order], rank[order]

    def _ties_that_fit(self, price: float, demands: list[float], room: float) -> list[int]:
        """How many of the queries with this reservation price each shard may admit, in order, until they do not fit."""
        fit: list[int] = []
        for at, demand in enumerate(demands):
            asked = [(price, room if each == at else -1.0) for each in range(len(demands))]
            fit.append(self.shards.each("ties_that_fit", asked)[at] if demand > 0 and room >= 0 else 0)
            room = room - demand if demand <= room else -1.0
        return fit

    def _spend(self, low: float, high: float) -> tuple[float, float]:
        """Spends the budget among the admitted at a price between two others; returns price and utility."""
        if self.shards.total("ends") <= self.budget:
            return low, sum(value for _, value in self.shards.all("spend_peaks"))
        tolerance = EXACT * self.budget
        reach = np.log(high / low) / 2 if low > 0 and high < np.inf else 16 / FINE
        centre = np.log(low) + reach if low > 0 and high < np.inf else np.log(high if high < np.inf else low)

        def excess(log_price: Array) -> Array:
            return np.array([self.shards.total("admitted_demand", float(np.exp(log_price[0]))) - self.budget])

        bracket = falling_root(excess, np.array([centre]), reach=max(float(reach), 1e-9), tolerance=tolerance)
        share = float(share_of_high(bracket, tolerance)[0])
        first, last = float(bracket.low[0]), float(bracket.high[0])
        spent = self.shards.all("spend", float(np.exp(first)), float(np.exp(last)), share)
        price = float(np.clip(np.exp(first + share * (last - first)), low, high))
        return price, sum(value for _, value in spent)

    def _bound(self, price: float) -> float:
        return price * self.budget + self.shards.total("surplus", price)

    def _offer_rest(self) -> float:
        """Offers what is left over to the query that gains most from it, while any gains; returns what they gain."""
        gained = 0.0
        for _ in range(OFFERS):
            rest = self.budget - sum(tokens for tokens, _ in self.shards.all("outcome"))
            if rest <= EXACT * self.budget:
                break
            gains = self.shards.all("best_offer", rest)
            winner = int(np.argmax(gains))
            if gains[winner] <= 0:
                break
            gained += gains[winner]
            self.shards.each("take_offer", [(rest if at == winner else 0.0,) for at in range(len(gains))])
        return gained

    def _few_at_jump(self, k: int, price: float, rest: float, count: int) -> tuple[float, Status]:
        """Few are admitted, so that each of them matters: sets of them are compared here, as on one node.

        In a large market not everyone is asked whether they want what is left over: the first `count` of each shard
        in the ranking are, and those who gain most from the rest.
        """
        parts = [self.shards.all("top", count), self.shards.all("gainers", rest, OFFERS)]
        some = []
        for top, gainers in zip(*parts, strict=True):
            new = ~np.isin(gainers.place, top.place)
            curves = type(top.curves).joined([top.curves, gainers.curves.take(np.flatnonzero(new))])
            reservation = np.concatenate([top.reservation, gainers.reservation[new]])
            some.append(Some(curves, reservation, np.concatenate([top.place, gainers.place[new]])))
        ranked, _, shard, rank = self._gathered(some)
        tokens, admitted, _ = best_at_jump(ranked, self.budget, k, price)
        owned = [(shard == at) & admitted for at in range(len(some))]
        self.shards.each("give", [(rank[mine], tokens[mine]) for mine in owned])
        utility = float((ranked.value(tokens) * admitted).sum())
        return utility, "jump" if admitted.any() else "starved"
