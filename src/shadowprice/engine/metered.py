"""Serving by index: the next tokens go where they are worth the most (`market.gittins` has the mathematics).

The request with the highest index generates the next chunk of its answer; when it has done so its index is another
one, and it may have to wait while others generate.

**Learning as it goes.** Forecasts are corrected by what the run itself shows: when a number of answers have ended
(the first time 32, then four times as many each time) the level and the spread of all lengths, and their tail where
the forecast has none, are estimated again (`forecast.calibration.recalibrate`) from what is known: lengths of answers
that ended, and that the others are longer than what they have generated. Whether answers are correct is not known to
a run, so the chance of success stays as forecast.

**Two ways of pausing.** Where an answer can be continued from a part of it, a request waits between its chunks, and
others go first. Where it cannot, a request is answered in one go, with a limit at the age where its index falls below
the price. The limit does the cutting: of a stream that is hung up on nobody knows what its server generated until it
noticed, so that the whole grant would have to be charged. Which of the two it is, some servers have to show: the
first answer is then generated in two short pieces before anything else is sent.

**At the end of the budget** the next in line takes what is left. As long as work is under way it waits for what that
gives back. Answers that were begun and not finished are results, cut where they are.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadowprice.backends.base import join
from shadowprice.cost import TOKENS, Rates
from shadowprice.engine.scheduler import (
    TRIAL,
    Batch,
    CanContinue,
    Report,
    Round,
    Work,
    flagged,
    is_over,
    start_over,
)
from shadowprice.forecast.calibration import recalibrate
from shadowprice.market.gittins import Schedule, schedule
from shadowprice.types import Completion, Forecast, Request, Result

_FIRST_LESSON = 32  # answers that have ended


class _Chunk(NamedTuple):
    """The next chunk of a request: sorts by index, the highest first, then in the order of the requests."""

    minus_index: float
    request: int
    age: int  # at which it was scheduled; it is outdated once the request has another
    stop: int


class Metered:
    """Serves the highest index first.

    chunk         tokens of a chunk, at least
    concurrency   pieces of work under way at the same time: none of them takes all that is left
    can_continue  which answers can be continued from a part of them; None: all
    learn         correct the forecasts by what the run shows
    """

    def __init__(
        self,
        *,
        max_tokens: int | None = None,
        chunk: int = 64,
        concurrency: int = 8,
        can_continue: CanContinue | None = None,
        learn: bool = True,
        attempts: int = 4,
        rates: Rates = TOKENS,
    ) -> None:
        self.chunk, self.concurrency, self.learn = chunk, concurrency, learn
        self.rounds: list[Round] = []
        self._can_continue: CanContinue = can_continue or (lambda request: True)
        self._batch = Batch(max_tokens, attempts, rates)
        self._lesson = _FIRST_LESSON
        self._corrected = self._batch.forecast
        self._age: NDArray[np.int64] = np.zeros(0, dtype=np.int64)  # tokens generated; 0 where nobody counted them
        self._stopped: NDArray[np.bool_] = np.zeros(0, dtype=bool)  # the model ended its answer at that age
        self._waiting: NDArray[np.bool_] = np.zeros(0, dtype=bool)  # neither ended nor under way
        self._heap: list[_Chunk] = []
        self._outdated = True  # the heap, because forecasts changed or requests came
        self._running: dict[int, int] = {}  # request: units reserved
        self._trial: int | None = None  # the request that shows whether the server continues
        self._counts = True  # the server counts its tokens, so that they can be metered

    @property
    def price(self) -> float | None:
        return self.rounds[-1].price if self.rounds else None

    def add(self, requests: Sequence[Request], forecast: Forecast) -> None:
        self._batch.add(requests, forecast)
        more = len(requests)
        self._age = np.concatenate([self._age, np.zeros(more, dtype=np.int64)])
        self._stopped = np.concatenate([self._stopped, np.zeros(more, dtype=bool)])
        self._waiting = np.concatenate([self._waiting, np.ones(more, dtype=bool)])
        self._corrected = self._batch.forecast
        self.recalibrate(self._age, self._stopped)
        self._outdated = True

    def restore(self, index: int, state: Result | Completion, *, sample: int = 0, landing: bool = False) -> None:
        self._batch.restore(index, state)
        if isinstance(state, Completion):
            self._age[index] = self._batch.age(index)
        else:
            self._waiting[index] = False
            if state.completion is not None:
                self._learn_length(index, state.completion)
        self._outdated = True

    def next(self, available: int) -> Work | None:
        if available <= 0 or not self._waiting.any():
            return None
        if self._outdated:
            self._clear(available)
        while chunk := self._best():
            if chunk.age and self._can_continue(self._batch.requests[chunk.request]) is False:
                self._waiting[chunk.request] = False  # a part that the server of now cannot continue: it ends so
                continue
            return self._work(chunk, available)
        return None

    def done(self, report: Report) -> Result | None:
        index, batch = report.work.place, self._batch
        del self._running[index]
        if self._trial == index:
            self._trial = None
        batch.charge(report)
        if report.completion is None:
            return self._unanswered(index, report)
        part = report.completion
        if part.usage_source == "assumed":
            self._counts = False
            part = flagged(part, "not_counted")
        answer = join(report.work.so_far, part)
        over = is_over(part, report.work.grant, answer.tokens, batch.cap[index])
        if over or self._can_continue(batch.requests[index]) is False:
            self._learn_length(index, answer)
            return batch.answered(index, answer, report.correct)
        batch.so_far[index] = answer
        self._age[index] = answer.tokens
        self._push(index)
        return None

    def close(self, stopped: str = "") -> Iterable[Result]:
        return self._batch.left(self.price, stopped)

    # --- what came of it -----------------------------------------------------------------------

    def _unanswered(self, index: int, report: Report) -> Result | None:
        batch = self._batch
        if start_over(report.error, batch.so_far.get(index)):
            del batch.so_far[index], batch.error[index]
            self._age[index] = 0
        elif batch.gives_up(index):
            return batch.failed(index)
        self._push(index)
        return None

    def _learn_length(self, index: int, answer: Completion) -> None:
        """How long an answer is that does not wait for more."""
        if answer.usage_source == "assumed":  # what was charged for it says nothing of its length
            self._age[index] = 0
            return
        self._age[index] = answer.tokens
        if answer.finish == "stop":
            self._stopped[index] = True
            self._outdated |= self.recalibrate(self._age, self._stopped)

    def lesson(self) -> int | None:
        """How many answers must have ended before forecasts are corrected; None: they never are."""
        return self._lesson if self.learn else None

    def recalibrate(self, age: NDArray[np.int64], stopped: NDArray[np.bool_]) -> bool:
        """Corrects all forecasts, where enough answers have ended; says whether it did."""
        ended = int(np.count_nonzero(stopped))
        if not self.learn or ended < self._lesson:
            return False
        while self._lesson <= ended:
            self._lesson *= 4
        self._corrected = recalibrate(self._batch.forecast, age, stopped)
        return True

    # --- who is next ---------------------------------------------------------------------------

    def _clear(self, available: int) -> None:
        """Finds the price, and the next chunk of everyone who waits."""
        active = np.flatnonzero(self._waiting)
        plan = self.plan(active, self._age[active], available)
        # The chunks of each request by age, and the first of each into the heap.
        request = active[plan.query]
        order = np.lexsort((plan.start, request))
        self._stops, self._index = plan.stop[order], plan.index[order]
        self._first = np.searchsorted(request[order], np.arange(len(self._batch) + 1))
        self._heap = [chunk for i in active.tolist() if (chunk := self._next_chunk(i))]
        heapq.heapify(self._heap)
        self._outdated = False

    def plan(self, active: NDArray[np.intp], age: NDArray[np.int64], available: int) -> Schedule:
        """The schedule of those who are `active`, having generated `age` tokens; its price is that of a new round."""
        batch, rates = self._batch, self._batch.rates
        entry = batch.entry(active.tolist()) if rates.money else 0.0
        plan = schedule(self._corrected.take(active), batch.cap[active], age, entry)
        tokens = available if not rates.money else available * 10**6 // rates.output
        price = plan.price(tokens)
        worth = plan.index >= price
        expected = min(tokens, round(float(plan.cost[worth].sum())))
        granted = expected if not rates.money else expected * rates.output // 10**6
        admitted = int(np.unique(plan.query[worth]).size)
        self.rounds.append(Round(available, active.size, admitted, granted, price, "metered"))
        return plan

    def _next_chunk(self, index: int) -> _Chunk | None:
        """From the present age to where the index falls, and at least `chunk` tokens further."""
        low, high, age = self._first[index], self._first[index + 1], int(self._age[index])
        stops = self._stops[low:high]
        at = int(np.searchsorted(stops, age, side="right"))
        if at == stops.size:
            return None
        last = at + int(np.searchsorted(stops[at:], age + self.chunk))
        return _Chunk(-float(self._index[low + at]), index, age, int(stops[min(last, stops.size - 1)]))

    def _push(self, index: int) -> None:
        self._waiting[index] = True
        if not self._outdated and (chunk := self._next_chunk(index)):
            heapq.heappush(self._heap, chunk)

    def _best(self) -> _Chunk | None:
        """The best chunk of those that wait, in O(log n)."""
        while self._heap:
            chunk = self._heap[0]
            if self._waiting[chunk.request] and chunk.age == self._age[chunk.request]:
                return chunk
            heapq.heappop(self._heap)
        return self._beyond_forecast()

    def _beyond_forecast(self) -> _Chunk | None:
        """An answer that is longer than its forecast held possible continues when nobody else wants the tokens."""
        for index, part in self._batch.so_far.items():
            if self._waiting[index]:
                cap = self._batch.cap[index]
                return _Chunk(0.0, index, part.tokens, int(min(part.tokens + self.chunk, cap)))
        return None

    def _work(self, chunk: _Chunk, available: int) -> Work | None:
        """The work of a chunk; None where it has to wait for what others give back."""
        index, batch = chunk.request, self._batch
        continues = self._can_continue(batch.requests[index])
        if continues is None and self._trial is not None:
            return None
        grant = self._grant(chunk, available, continues)
        so_far = batch.so_far.get(index)
        work = batch.work(index, grant, so_far=so_far)
        if work.bound > available:
            if self._running:
                return None
            affordable = batch.affordable(index, available)
            if affordable < 1:
                self._waiting[index] = False  # its prompt alone costs more than what is left
                return self.next(available)
            work = batch.work(index, min(grant, affordable), so_far=so_far)
        if self._heap and self._heap[0] == chunk:
            heapq.heappop(self._heap)
        self._waiting[index] = False
        self._running[index] = work.bound
        if continues is None:
            self._trial = index
        return work

    def _grant(self, chunk: _Chunk, available: int, continues: bool | None) -> int:
        """The tokens of a chunk, or of the whole answer where it cannot be paused.

        No more than a share of what is not spent, so that others can be served at the same time.
        """
        length = chunk.stop - chunk.age
        if continues is None:
            return min(length, TRIAL)
        batch = self._batch
        units = (available + sum(self._running.values())) // min(self.concurrency, batch.unanswered)
        share = batch.affordable(chunk.request, units)
        if continues:
            return min(length, max(self.chunk, share))
        if not self._counts:  # whatever is granted will be charged
            return length
        one, cap = self._corrected.take([chunk.request]), batch.cap[[chunk.request]]
        plan = schedule(one, cap, 0, batch.entry([chunk.request]))
        worth = (plan.index >= (self.price or 0.0)) & (plan.stop <= share)
        return int(np.max(plan.stop[worth], initial=chunk.stop))
