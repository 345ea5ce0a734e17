r"""Metered accounting: tokens are paid for when they are generated, so a query can be tried and left.

What a query is worth at age t (tokens generated so far) follows from its forecast, by competing risks:

    A(t) = solve Fs(t)                the chance that a correct answer has ended by t
    F(t)                              the chance that any answer has, right or wrong; wrong ones run longer
    C(t) = int_0^t (1 - F(u)) du      the tokens it is expected to have cost by t: E[min(L, t)]

**The index.** At age t the best deal that a query offers is

    g(t) = max_{u > t}  (A(u) - A(t)) / (C(u) - C(t)),

correct answers per expected token over the best of all stopping ages u (Gittins). The chance 1 - F(t) of
having come this far divides both and drops out. Parity, which in reserved accounting reads marginal
utility = price, becomes hazard(t) * solve(t) = price: generate while the index is above the price, stop
when it falls below, admit if g(0) is above it.

**Why the index is the right order.** Queries are independent, a query that waits does not change, and
tokens are the only thing that passes: a multi-armed bandit, and there serving the highest index first
gains the most by any total of tokens spent at which a stretch ends (the expected gain as a function of
the expected cost is the sum of concave functions, one per query, and is maximised by equal slopes).

**Stretches.** g is constant along the least concave majorant of the curve (C(t), A(t)): from each of
its corners the best u is the next corner. So a query is a short list of stretches with falling index,
and a batch is one sorted list. The price is the index at which the expected cost of what is above it
meets the budget.

**At the end** the budget cuts a stretch. Its first part is worth less than the whole promises, at most
by one query's chance; nothing better is known before it is tried, so the last tokens go to the next in
line, and what it leaves to the one after it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shadowprice.arrays import Array
from shadowprice.errors import MarketError
from shadowprice.market.curves import Expected
from shadowprice.types import Forecast

_AGES = 64  # at which a query may be left; they are spaced evenly in log tokens
_EARLIEST = 3.2  # spreads below the median: nobody ends before

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Schedule:
    """Stretches of generation in the order in which they are worth their tokens, the best first.

    Stretch k takes `query[k]` from age `start[k]` to `stop[k]`; `index[k]` is the chance of a correct
    answer that it buys per token, and `cost[k]` the tokens it is expected to need, seen from now.
    """

    query: NDArray[np.intp]
    start: Ints
    stop: Ints
    index: Array
    cost: Array

    def __len__(self) -> int:
        return self.query.size

    def price(self, budget: float) -> float:
        """The index of the last stretch that the budget is expected to reach; 0 if it is ample."""
        if len(self) == 0:
            return 0.0
        reached = int(np.searchsorted(np.cumsum(self.cost), budget))
        return float(self.index[reached]) if reached < len(self) else 0.0


def schedule(forecast: Forecast, cap: ArrayLike, age: ArrayLike = 0) -> Schedule:
    """The stretches of all queries, from their present `age` up to their `cap`, one each or one for all.

    Of a query that has generated `age` tokens without ending, only what comes after counts.
    """
    n = len(forecast)
    most = np.floor(np.broadcast_to(np.asarray(cap, dtype=np.float64), (n,)))
    now = np.broadcast_to(np.asarray(age, dtype=np.float64), (n,))
    if np.any(now < 0) or np.any(np.isnan(most)):
        raise MarketError("ages start at 0, and caps are numbers")
    rows = np.flatnonzero(now < most)
    some = forecast.take(rows)
    ages = _ages(some, now[rows], most[rows])
    gained, ended = _chances(some, ages)
    survived = np.maximum(1 - ended[:, :1], 1e-12)
    width = np.diff(ages, axis=1)
    cost = np.cumsum(width * (1 - (ended[:, 1:] + ended[:, :-1]) / 2), axis=1, out=np.empty_like(width))
    cost = np.hstack([np.zeros((len(rows), 1)), cost]) / survived
    row, first, last, index = _majorant(gained / survived, cost)
    order = np.argsort(-index, kind="stable")
    row, first, last = row[order], first[order], last[order]
    return Schedule(
        rows[row],
        ages[row, first].astype(np.int64),
        ages[row, last].astype(np.int64),
        index[order],
        cost[row, last] - cost[row, first],
    )


def indices(forecast: Forecast, cap: float, ages: ArrayLike) -> Array:
    """The index of every query (rows) at every one of these ages (columns), for a picture of it."""
    at = np.asarray(ages, dtype=np.float64)
    found = np.zeros((len(forecast), at.size))
    for column, age in enumerate(at):
        plan = schedule(forecast, cap, age)
        np.maximum.at(found[:, column], plan.query, plan.index)
    return found


def _ages(forecast: Forecast, now: Array, most: Array) -> Array:
    """For each query its present age and then whole tokens, evenly spaced in the logarithm, up to its cap."""
    spread = np.maximum(forecast.spread, forecast.solved_spread)
    median = np.minimum(forecast.tokens, forecast.solved_tokens)
    ceiling = np.minimum(most, np.maximum(forecast.tokens, forecast.solved_tokens) * np.exp(12 * spread))
    ceiling = np.where(np.isfinite(most), most, np.maximum(ceiling, now + 1))
    low = np.clip(np.log(median) - _EARLIEST * spread, np.log(now + 1), np.log(ceiling))
    share = np.linspace(0.0, 1.0, _AGES)
    ages = np.ceil(np.exp(low[:, None] + (np.log(ceiling) - low)[:, None] * share) - 1e-9)
    ages = np.clip(ages, (now + 1)[:, None], ceiling[:, None])
    return np.hstack([now[:, None], ages])


def _chances(forecast: Forecast, ages: Array) -> tuple[Array, Array]:
    """A and F at the ages. Where the forecast contradicts itself (F < A), correct answers are believed."""

    def cdf(median: Array, spread: Array) -> Array:
        times = ages.shape[1]
        tail = None if forecast.tail is None else np.repeat(forecast.tail, times)
        law = Expected(np.repeat(median, times), np.repeat(spread, times), tail=tail)
        return law.value(ages.ravel()).reshape(ages.shape)

    gained = forecast.solve[:, None] * cdf(forecast.solved_tokens, forecast.solved_spread)
    ended = np.maximum(cdf(forecast.tokens, forecast.spread), gained)
    return gained, ended


def _majorant(gained: Array, cost: Array) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp], Array]:
    """Row, first and last column and slope of every edge of the least concave majorant of each row.

    All rows walk at once from corner to corner: the next one is where the slope is steepest, the
    farthest of several.
    """
    n, width = cost.shape
    at = np.zeros(n, dtype=np.intp)
    rows = np.arange(n)
    edges: list[tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp], Array]] = []
    while rows.size:
        here = at[rows]
        rise = gained[rows] - gained[rows, here][:, None]
        run = cost[rows] - cost[rows, here][:, None]
        ahead = (np.arange(width) > here[:, None]) & (run > 0)
        slope = np.divide(rise, run, out=np.full_like(rise, -1.0), where=ahead)
        farthest = width - 1 - np.argmax(slope[:, ::-1], axis=1)
        steepest = slope[np.arange(rows.size), farthest]
        worth = steepest > 0
        rows, here, farthest = rows[worth], here[worth], farthest[worth]
        edges.append((rows, here, farthest, steepest[worth]))
        at[rows] = farthest
        rows = rows[farthest < width - 1]
    if not edges:
        empty = np.zeros(0, dtype=np.intp)
        return empty, empty, empty, np.zeros(0)
    row, first, last, index = (np.concatenate(each) for each in zip(*edges, strict=True))
    return row, first, last, index
