"""Grants that were decided elsewhere: requests are sent in order, and none gets a second grant.

The executor retries attempts that generated nothing. An attempt with an unknown outcome has spent the grant, and its
request fails.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence

from shadowprice.cost import TOKENS, Rates
from shadowprice.engine.scheduler import Batch, Report, Round, Work
from shadowprice.types import Completion, Forecast, Request, Result


class Granted:
    """The grant of a request is its `max_tokens`."""

    price: float | None = None

    def __init__(self, *, attempts: int = 4, rates: Rates = TOKENS) -> None:
        self.rounds: list[Round] = []
        self._batch = Batch(None, attempts, rates)
        self._queue: deque[int] = deque()  # places

    def add(self, requests: Sequence[Request], forecast: Forecast | None = None) -> None:
        first = len(self._batch)
        self._batch.add(requests, forecast or Forecast([1.0] * len(requests)))
        self._queue.extend(range(first, len(self._batch)))

    def restore(self, place: int, state: Result | Completion, *, sample: int = 0, landing: bool = False) -> None:
        self._batch.restore(place, state)

    def dropped(self, place: int, part: Completion) -> None:
        self._batch.dropped(place, part)

    def charged(self, costs: Mapping[int, int]) -> None:
        self._batch.charged(costs)

    def next(self, available: int, avoid: Collection[int] = ()) -> Work | None:
        if avoid:
            self._queue = deque(sorted(self._queue, key=lambda place: place in avoid))
        if not self._queue:
            return None
        place = self._queue[0]
        work = self._batch.work(place, int(self._batch.cap[place]))
        if work.bound > available:
            return None
        self._queue.popleft()
        return work

    def done(self, report: Report) -> Result | None:
        batch, place = self._batch, report.work.place
        batch.charge(report)
        if batch.is_postponed(report):
            self._queue.append(place)
            return None
        if report.completion is not None:
            return batch.answered(place, report.completion, report.correct)
        batch.tries[place] = batch.attempts  # its grant may be spent
        return batch.after_error(place)

    def close(self, stopped: str = "") -> Iterable[Result]:
        return self._batch.left(None, stopped)
