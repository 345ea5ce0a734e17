"""The policy `auto`: the best one for what the server can do.

    the server continues answers      metered accounting with the index
    it does not                       reserved accounting with `expected`, cleared again with what was not used

Some servers have to be tried first: one answer is generated in two short pieces. If the server starts over instead of
continuing, all requests are served by `expected`, and that answer is generated again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from shadowprice.engine.metered import Metered
from shadowprice.engine.reserved import Reserved
from shadowprice.engine.scheduler import Batch, CanContinue, Report, Round, Work
from shadowprice.types import Completion, Forecast, Request, Result


class Auto:
    """Starts as the index, and becomes `expected` if no answer can be continued."""

    def __init__(self, metered: Metered, reserved: Reserved, can_continue: CanContinue) -> None:
        self._now: Metered | Reserved = metered
        self.rounds: list[Round] = metered.rounds  # of both
        self._metered, self._reserved, self._can_continue = metered, reserved, can_continue
        self._requests: list[Request] = []
        self._running = 0
        self._decided = False

    @property
    def policy(self) -> str:
        return "index" if self._now is self._metered else "expected"

    @property
    def index(self) -> Metered | None:
        return self._metered if self._now is self._metered else None

    @property
    def batch(self) -> Batch:
        return self._now.batch

    @property
    def price(self) -> float | None:
        return self._now.price

    def add(self, requests: Sequence[Request], forecast: Forecast) -> None:
        self._requests += requests
        self._now.add(requests, forecast)

    def restore(self, place: int, state: Result | Completion, *, sample: int = 0, landing: bool = False) -> None:
        self._now.restore(place, state, sample=sample, landing=landing)

    def dropped(self, place: int, part: Completion) -> None:
        self._now.dropped(place, part)

    def charged(self, costs: Mapping[int, int]) -> None:
        self._now.charged(costs)

    def next(self, available: int, avoid: Collection[int] = ()) -> Work | None:
        if not self._decided and not self._running:
            self._decide()
        work = self._now.next(available, avoid)
        self._running += work is not None
        return work

    def done(self, report: Report) -> Result | None:
        self._running -= 1
        return self._now.done(report)

    def close(self, stopped: str = "") -> Iterable[Result]:
        return self._now.close(stopped)

    def _decide(self) -> None:
        """Decides once it is known for every request whether its answer can be continued."""
        known = {self._can_continue(request) for request in self._requests}
        self._decided = True in known or None not in known
        if known == {False}:
            self._reserved.adopt(self._metered)
            self._now = self._reserved
