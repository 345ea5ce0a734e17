r"""The index: which query to continue next, where tokens are paid for as they are generated.

In metered accounting a query can be started and left. What it is worth at age t (tokens generated so far)
follows from its forecast, by competing risks:

    A(t) = solve Fs(t)                the chance that a correct answer has ended by t
    F(t)                              the chance that any answer has, correct or not; wrong ones run longer
    C(t) = int_0^t (1 - F(u)) du      the tokens it is expected to have cost by t: E[min(L, t)]

**The index.** At age t the best deal that a query offers is

    g(t) = max_{u > t}  (A(u) - A(t)) / (C(u) - C(t) + entry (1 - F(t))),

correct answers per expected token over the best of all stopping ages u (Gittins). `entry` is a fixed cost
that is paid before the first further token, in output tokens: reading the prompt, or reading it again. The
chance 1 - F(t) of having come this far divides everything and drops out. The paper's shadow price parity,
marginal utility = price (eq. 3), becomes hazard(t) * solve(t) = price: generate while the index is above the
price, stop when it falls below, admit if g(0) is above it.

**Why the index is the right order.** Queries are independent, a query that waits does not change, and
tokens are the only thing that is spent: a multi-armed bandit, and there serving the highest index first
gains the most at any total of tokens at which a chunk ends (the expected gain as a function of the
expected cost is the sum of concave functions, one per query, and is maximised by equal slopes).

**Chunks.** g is constant along the least concave majorant of the curve (C(t), A(t)): from each of
its corners the best u is the next corner. So a query is a short list of chunks with falling index,
and a batch is one sorted list. The price is the index at which the expected cost of all chunks above it
meets the budget.

**Readings.** An answer that was read at age r (`Readings`) is expected to have `stretch` times as much left as others
of its age, and its chance of being correct differs by `odds` in the log odds. With the survival functions S of correct
and of wrong answers each

    S'(t) = S'(r) S(r + (t - r) / stretch) / S(r)        t > r

where S'(r) is the revised chance of either kind, of those that have come to r.

**At the end** the budget cuts a chunk, and its first part may be worth less per token than the whole. The
loss is at most one query's chance of a correct answer. So the last tokens go to the next query in line,
and what it does not use goes to the one after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shadowprice.arrays import Array, checked
from shadowprice.errors import MarketError
from shadowprice.market.anytime import Anytime
from shadowprice.market.curves import length_cdf
from shadowprice.types import Forecast

_AGES = 40  # at which a query may be left; they are spaced evenly in log tokens
_EARLIEST = 3.2  # spreads below the median: the first age after the present one
BLOCK = 4096  # queries at a time, so that their curves fit into the processor's cache
_LONGEST = 2.0**53  # tokens: every whole number up to it is a float

Ints = NDArray[np.int64]


class Readings(NamedTuple):
    """What was read in the answers so far, one each; see above. An answer that was not read: 0, 1 and 0.

    since    age at which it was read
    stretch  what is left is so many times as long as the forecast says
    odds     log odds that it is correct, more than the forecast says
    """

    since: Array
    stretch: Array
    odds: Array

    def take(self, who: NDArray[np.intp]) -> Readings:
        return Readings(*(each[who] for each in self))


@dataclass(frozen=True, eq=False)
class Chunks:
    """Chunks of generation by query, and those of a query by age: from `first[i]` to `first[i + 1]` those of query i.

    A query's first chunk begins at its `age`, every other where the one before it stops. `stop`, `index` and `cost`
    are those of `Schedule`. Of a hundred thousand queries there are millions of chunks, so nothing is kept that can
    be computed.
    """

    first: Ints
    age: Ints
    stop: Ints
    index: Array
    cost: Array

    def __len__(self) -> int:
        return self.stop.size

    @property
    def query(self) -> NDArray[np.intp]:
        return np.repeat(np.arange(self.age.size), np.diff(self.first))

    @property
    def start(self) -> Ints:
        start = np.concatenate([self.age[:1], self.stop[:-1]])
        some = np.diff(self.first) > 0
        start[self.first[:-1][some]] = self.age[some]
        return start[: len(self)]

    def price(self, budget: float) -> float:
        """The index of the last chunk that the budget is expected to reach, the best first; 0 if it is ample."""
        order = np.argsort(-self.index)  # a stable sort takes longer, and of equal indexes any is the price
        total = self.cost[order]
        np.cumsum(total, out=total)
        reached = int(np.searchsorted(total, budget))
        return float(self.index[order[reached]]) if reached < len(self) else 0.0

    def take(self, who: NDArray[np.intp]) -> Chunks:
        """The chunks of some of the queries, in ascending order."""
        count = np.diff(self.first)
        kept = np.zeros(count.size, dtype=bool)
        kept[who] = True
        some = np.repeat(kept, count)
        first = np.append(0, np.cumsum(count[who]))
        return Chunks(first, self.age[who], self.stop[some], self.index[some], self.cost[some])

    def value(self, budget: float) -> float:
        """The correct answers that the budget is expected to buy, the best chunks first."""
        order = np.argsort(-self.index, kind="stable")
        total = np.cumsum(self.cost[order])
        gained = np.cumsum(self.index[order] * self.cost[order])
        return float(np.interp(budget, np.append(0.0, total), np.append(0.0, gained)))


@dataclass(frozen=True, eq=False)
class Schedule:
    """Chunks of generation in the order in which they are worth their tokens, the best first.

    Chunk k takes `query[k]` from age `start[k]` to `stop[k]`; `index[k]` is the chance of a correct answer
    that it buys per token, and `cost[k]` the tokens it is expected to need, seen from now; that of a
    query's first chunk includes its entry cost.
    """

    query: NDArray[np.intp]
    start: Ints
    stop: Ints
    index: Array
    cost: Array

    def __len__(self) -> int:
        return self.query.size

    def price(self, budget: float) -> float:
        """The index of the last chunk that the budget is expected to reach; 0 if it is ample."""
        if len(self) == 0:
            return 0.0
        reached = int(np.searchsorted(np.cumsum(self.cost), budget))
        return float(self.index[reached]) if reached < len(self) else 0.0


def schedule(forecast: Forecast, cap: ArrayLike, age: ArrayLike = 0, entry: ArrayLike = 0.0) -> Schedule:
    """The chunks of all queries in the order of their index; see `chunks`."""
    unordered = chunks(forecast, cap, age, entry)
    order = np.argsort(-unordered.index, kind="stable")
    return Schedule(
        unordered.query[order],
        unordered.start[order],
        unordered.stop[order],
        unordered.index[order],
        unordered.cost[order],
    )


def chunks(
    forecast: Forecast,
    cap: ArrayLike,
    age: ArrayLike = 0,
    entry: ArrayLike = 0.0,
    anytime: Anytime | None = None,
    read: Readings | None = None,
) -> Chunks:
    """The chunks of all queries, from their present `age` up to their `cap`, one each or one for all.

    Of a query that has generated `age` tokens without ending, only what comes after counts. `entry`, one
    each or one for all, is what a query costs before its first further token, in output tokens. With `anytime`,
    an answer that is stopped is asked for, and A is the chance W that it is correct then (`market.anytime`). `read`:
    what was read in the answers so far, at their present ages or before.
    """
    n = len(forecast)
    most = np.floor(np.broadcast_to(np.asarray(cap, dtype=np.float64), (n,)))
    now = np.broadcast_to(np.asarray(age, dtype=np.float64), (n,))
    to_enter = np.broadcast_to(checked("entry", entry), (n,))
    if np.any(now < 0) or np.any(np.isnan(most)):
        raise MarketError("ages must be >= 0 and caps must be numbers")
    rows = np.flatnonzero(now < most)
    blocks = [rows[first : first + BLOCK] for first in range(0, rows.size, BLOCK)]
    count = np.zeros(n + 1, dtype=np.int64)
    stops, indexes, costs = [np.zeros(0, dtype=np.int64)], [np.zeros(0)], [np.zeros(0)]
    for some in blocks:
        own = None if read is None else read.take(some)
        row, stop, index, cost = _chunks(forecast.take(some), now[some], most[some], to_enter[some], anytime, own)
        count[some + 1] = np.bincount(row, minlength=some.size)
        stops.append(stop)
        indexes.append(index)
        costs.append(cost)
    return Chunks(np.cumsum(count), now.astype(np.int64), _joined(stops), _joined(indexes), _joined(costs))


def _joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """Empties `parts`: both together would take twice the memory."""
    whole = np.concatenate(parts)
    parts.clear()
    return whole


def _chunks(
    forecast: Forecast, now: Array, most: Array, to_enter: Array, anytime: Anytime | None, read: Readings | None
) -> tuple[NDArray[np.intp], Ints, Array, Array]:
    """Query, stop, index and cost of the chunks of some queries, by query and age."""
    ages, gained, alive, cost = paths(forecast, now, most, to_enter, anytime, read)
    row, first, last, index = majorant(gained, cost)
    return (
        row,
        ages[row, last].astype(np.int64),
        index,
        (cost[row, last] - cost[row, first]) / alive[row, 0],
    )


def paths(
    forecast: Forecast,
    now: Array,
    most: Array,
    to_enter: Array,
    anytime: Anytime | None = None,
    read: Readings | None = None,
) -> tuple[Array, Array, Array, Array]:
    """Ages from the present one up to the cap, a row per query; and at each of them A, less a constant, 1 - F and C.

    C counts from the present age on, and every age beyond it has paid the entry as well.
    """
    ages = _ages(forecast, now, most)
    gained, alive, cost = along(forecast, ages, anytime, read)
    cost[:, 1:] += (to_enter * alive[:, 0])[:, None]
    return ages, gained, alive, cost


def along(
    forecast: Forecast, ages: Array, anytime: Anytime | None = None, read: Readings | None = None
) -> tuple[Array, Array, Array]:
    """A, less a constant, 1 - F and C at ascending ages, a row per query; C counts from the first of them on."""
    gained, alive = _chances(forecast, ages)
    if read is not None and (rows := np.flatnonzero(read.since > 0)).size:
        gained[rows], alive[rows] = _chances_after(read.take(rows), forecast.take(rows), ages[rows])
    if anytime is not None:
        gained *= 1 - anytime.share(forecast, ages)  # W - solve
    cost = np.zeros_like(ages)  # by the trapezoidal rule
    np.cumsum(np.diff(ages, axis=1) * (alive[:, 1:] + alive[:, :-1]) / 2, axis=1, out=cost[:, 1:])
    return gained, alive, cost


def indices(forecast: Forecast, cap: float, ages: ArrayLike) -> Array:
    """The index of every query (rows) at each of these ages (columns), for a figure."""
    at = np.asarray(ages, dtype=np.float64)
    index = np.zeros((len(forecast), at.size))
    for column, age in enumerate(at):
        plan = schedule(forecast, cap, age)
        np.maximum.at(index[:, column], plan.query, plan.index)
    return index


def _ages(forecast: Forecast, now: Array, most: Array) -> Array:
    """For each query its present age and then whole tokens, evenly spaced in the logarithm, up to its cap."""
    spread = np.maximum(forecast.spread, forecast.solved_spread)
    median = np.minimum(forecast.tokens, forecast.solved_tokens)
    ceiling = last_ages(forecast, now, most)
    low = np.clip(np.log(median) - _EARLIEST * spread, np.log(now + 1), np.log(ceiling))
    share = np.linspace(0.0, 1.0, _AGES)
    ages = np.ceil(np.exp(low[:, None] + (np.log(ceiling) - low)[:, None] * share) - 1e-9)
    ages = np.clip(ages, (now + 1)[:, None], ceiling[:, None])
    return np.hstack([now[:, None], ages])


def last_ages(forecast: Forecast, now: Array, most: Array) -> Array:
    """The caps; for queries without one, an age that no answer is expected to reach."""
    spread = np.maximum(forecast.spread, forecast.solved_spread)
    longest = np.maximum(forecast.tokens, forecast.solved_tokens) * np.exp(12 * spread)
    return np.minimum(np.where(np.isfinite(most), most, np.maximum(longest, now + 1)), _LONGEST)


def _chances(forecast: Forecast, ages: Array) -> tuple[Array, Array]:
    """A - solve and 1 - F at the ages; these differences stay precise where A is near solve and F is near 1.

    Where the forecast contradicts itself (F < A), the chance of a correct answer takes precedence. 1 - F is kept
    above 0, so that an answer which is longer than its forecast allows still has a chunk.
    """
    log_ages = np.log(np.maximum(ages, 1e-9))
    solve = forecast.solve[:, None]
    if forecast.shape is not None:
        z = (log_ages - np.log(forecast.solved_tokens)[:, None]) / forecast.solved_spread[:, None]
        correct, wrong = forecast.shape.survival(z)
        correct *= solve
        wrong *= 1 - solve
        wrong += correct
        return -correct, np.maximum(wrong, np.maximum(1e-12 * wrong[:, :1], 1e-300))
    tail = None if forecast.tail is None else np.broadcast_to(forecast.tail, len(forecast))[:, None]

    def survival(median: Array, spread: Array) -> Array:
        return length_cdf((log_ages - np.log(median)[:, None]) / spread[:, None], tail, above=True)

    every = survival(forecast.tokens, forecast.spread)
    alike = np.array_equal(forecast.tokens, forecast.solved_tokens) and np.array_equal(
        forecast.spread, forecast.solved_spread
    )
    to_come = solve * (every if alike else survival(forecast.solved_tokens, forecast.solved_spread))
    alive = np.minimum(every, 1 - solve + to_come)
    return -to_come, np.maximum(alive, np.maximum(1e-12 * alive[:, :1], 1e-300))


def _chances_after(read: Readings, forecast: Forecast, ages: Array) -> tuple[Array, Array]:
    """A, less a constant, and 1 - F of answers that were read and have come to that age."""
    since = read.since[:, None]
    gained, alive = _chances(forecast, np.hstack([since, since + (ages - since) / read.stretch[:, None]]))
    correct, wrong = -gained, np.maximum(alive + gained, 0.0)
    there = np.clip(correct[:, 0] / alive[:, 0], 0.0, 1.0)
    odds = np.exp(read.odds)
    chance = there * odds / (1 - there + there * odds)
    correct *= (chance / np.maximum(correct[:, 0], 1e-300))[:, None]
    wrong *= ((1 - chance) / np.maximum(wrong[:, 0], 1e-300))[:, None]
    return -correct[:, 1:], np.maximum(wrong + correct, 1e-300)[:, 1:]


def majorant(gained: Array, cost: Array) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp], Array]:
    """Row, first and last column and slope of every edge of the least concave majorant of each row.

    A point that is not above the line through its neighbours is not a corner. All such points are removed
    at once, in all rows, until none is left. Rows without a gain have no edges; columns that add no cost
    are skipped. Every row begins at a cost of 0.
    """
    width = cost.shape[1]
    candidate = np.diff(cost, axis=1, prepend=-1.0) > 0
    candidate[gained[:, -1] <= gained[:, 0]] = False
    # All rows as one list of points; two neighbours are joined if they are of the same row, where costs rise.
    at = np.flatnonzero(candidate)
    value, paid = gained.ravel(), cost.ravel()
    while True:
        step = np.diff(paid[at])
        joined = step > 0
        with np.errstate(divide="ignore", invalid="ignore"):  # between two rows, where there is no slope
            slope = np.diff(value[at]) / step
        corner = np.ones(at.size, dtype=bool)
        corner[1:-1] = (slope[:-1] > slope[1:]) | ~(joined[1:] & joined[:-1])
        if corner.all():
            break
        at = at[corner]
    first, last = at[:-1][joined], at[1:][joined]
    return first // width, first % width, last % width, slope[joined]
