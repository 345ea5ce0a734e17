"""Who generates next, in metered accounting: the live form of `market.metered`, with learning as it goes.

A `Meter` holds the queries of a run that are neither finished nor being served, best index first, and
hands out stretches of generation; whoever serves one tells it how far it came.

Forecasts are corrected by what the run itself shows: when a number of answers have ended (the first time 32,
then four times as many each time) the level and the spread of all lengths, and their tail where the forecast has
none, are estimated anew (`forecast.calibration.recalibrate`) from what is known: lengths of answers that ended, and
that the others are longer than what they have generated. Whether answers are right is not known to a run, so
the chance of success stays as forecast.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shadowprice.forecast.calibration import recalibrate
from shadowprice.market.gittins import Schedule, schedule
from shadowprice.types import Forecast

_FIRST_LESSON = 32  # answers that have ended


@dataclass(frozen=True)
class Stretch:
    """A query may generate from age `start` up to `stop`, if its index is still worth it."""

    query: int
    start: int
    stop: int
    index: float


class Meter:
    """`cap` limits each query; `age` is what it has generated already; stretches are `quantum` tokens or longer."""

    def __init__(self, forecast: Forecast, cap: ArrayLike, age: ArrayLike = 0, *, quantum: int = 1) -> None:
        n = len(forecast)
        self.forecast, self.quantum = forecast, quantum
        self.cap = np.broadcast_to(np.asarray(cap, dtype=np.float64), (n,))
        self.ended = np.zeros(n, dtype=bool)
        self.corrected, self._lesson, self._endings = forecast, _FIRST_LESSON, 0
        self.age: NDArray[np.int64] = np.broadcast_to(np.asarray(age, dtype=np.int64), (n,)).copy()
        self.waiting = np.ones(n, dtype=bool)  # neither finished nor being served
        self._lay_out(schedule(forecast, self.cap, self.age))

    def next(self) -> Stretch | None:
        """The best stretch that waits, in O(log n); its query is out until `told`. None: nothing waits."""
        while self._heap:
            _, _, stretch = heapq.heappop(self._heap)
            if self.waiting[stretch.query]:
                self.waiting[stretch.query] = False
                return stretch
        return None

    def told(self, query: int, age: int, *, ended: bool) -> None:
        """How far a query came. One that neither ended nor reached its cap waits for its next stretch."""
        self.age[query], self.ended[query] = age, ended
        self._endings += ended
        if ended and self._endings >= self._lesson:
            self._lesson *= 4
            self.corrected = recalibrate(self.forecast, self.age, self.ended)
            self._lay_out(schedule(self.corrected, self.cap, self.age))
        if not ended and age < self.cap[query]:
            self.waiting[query] = True
            self._push(query)

    def _lay_out(self, plan: Schedule) -> None:
        """Sorts the stretches of each query by age, and the first of each into the heap."""
        order = np.lexsort((plan.start, plan.query))
        self._plan = [plan.query[order], plan.start[order], plan.stop[order], plan.index[order]]
        self._first = np.searchsorted(self._plan[0], np.arange(len(self.forecast) + 1))
        self._heap: list[tuple[float, int, Stretch]] = []
        for query in np.flatnonzero(self.waiting):
            self._push(int(query))

    def _push(self, query: int) -> None:
        _, _, stops, index = self._plan
        low, high = self._first[query], self._first[query + 1]
        at = low + int(np.searchsorted(stops[low:high], self.age[query], side="right"))
        if at == high:
            return
        last = at + int(np.searchsorted(stops[at:high], self.age[query] + self.quantum))
        stop = int(stops[min(last, high - 1)])
        stretch = Stretch(query, int(self.age[query]), stop, float(index[at]))
        heapq.heappush(self._heap, (-stretch.index, query, stretch))


def replayed(
    forecast: Forecast, budget: int, cap: ArrayLike, lengths: ArrayLike, *, learn: bool = True
) -> NDArray[np.int64]:
    """The age that each query reaches under the budget if its answer ends at `lengths`: a `Meter`, all at once.

    One query is served at a time; an answer has ended if its length is not above its age. Their sum is the
    tokens spent, and never above the budget.
    """
    n = len(forecast)
    length = np.asarray(lengths, dtype=np.int64)
    age, ended = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=bool)
    left, lesson, believed = int(budget), _FIRST_LESSON, forecast
    while left > 0 and not ended.all():
        rows = np.flatnonzero(~ended)
        limit = np.broadcast_to(np.asarray(cap, dtype=np.float64), (n,))[rows]
        plan = schedule(believed.take(rows), limit, age[rows])
        query = rows[plan.query]
        reached = np.minimum(plan.stop, length[query])
        spent = np.cumsum(np.maximum(0, reached - plan.start))
        ends = np.cumsum((plan.start < length[query]) & (length[query] <= plan.stop))
        afford = int(np.searchsorted(spent, left, side="right"))
        wait = int(np.searchsorted(ends, lesson - np.count_nonzero(ended))) + 1 if learn else len(plan)
        served = slice(0, min(afford, wait))
        np.maximum.at(age, query[served], reached[served])
        ended = age >= length
        if wait <= afford and wait < len(plan):
            left -= int(spent[wait - 1])
            lesson *= 4
            believed = recalibrate(forecast, age, ended)
            continue
        left -= int(spent[afford - 1]) if afford else 0
        if afford < len(plan):  # the budget ends within this stretch
            age[query[afford]] = plan.start[afford] + left
        break
    return age
