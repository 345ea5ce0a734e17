"""The part of the ledger that a worker holds: requests that it took from the coordinator and has not settled.

It stands between a scheduler and the executor. To the executor it is three things: the scheduler, whose work already
has its units; the ledger, where reserving and settling only touch memory; and the feed. A separate task exchanges
messages with the coordinator, one at a time. Each message settles what has ended since the last one, and takes the
units for as much work as there is room for. So messages grow with the load.

A worker never holds more than it may have in flight: if it dies, no more than that is lost.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from shadowprice.accounts.sqlite import Settlement
from shadowprice.distributed.coordinator import TAKEN, Kind, Message, Reply, Settled
from shadowprice.engine.progress import Progress
from shadowprice.engine.scheduler import Report, Round, Scheduler, Work
from shadowprice.errors import Overdrawn, Refused, Unavailable
from shadowprice.types import Completion, Forecast, Request, Result, Usage


@dataclass
class _Held:
    """A request that was taken, and what its attempts have cost so far."""

    reservation: int
    units: int
    usage: Usage = field(default_factory=Usage)
    exposed: int = 0


class Leases:
    """
    progress   of the execution, which is stopped when the coordinator says so; with the budget of the whole job
    exchange   sends a message to the coordinator, and waits for its answer
    inner      decides what is sent
    most       requests that are held at the same time
    allowance  units that may be spent; None: all
    again      an earlier process may have taken some of these requests, and died
    """

    def __init__(
        self,
        progress: Progress,
        exchange: Callable[[Message], Awaitable[Reply]],
        inner: Scheduler,
        *,
        most: int,
        allowance: int | None = None,
        again: bool = False,
    ) -> None:
        self.budget, self.spent, self.usage = progress.budget, 0, Usage()
        self.wake = asyncio.Event()
        self.ended: set[str] = set()  # requests with a result or a note, written now or by another process before
        self._progress, self._exchange, self._inner = progress, exchange, inner
        self._most, self._again = most, again
        self._allowance = progress.budget if allowance is None else allowance
        self._ready: deque[Work] = deque()  # may be sent
        self._held: dict[str, _Held] = {}
        self._attempts: dict[int, tuple[str, int]] = {}  # by number: request and units
        self._number = 0
        self._settled: list[Settled] = []
        self._changed = asyncio.Event()
        self._unasked = True  # the scheduler may have more work
        self._asking = self._finished = False
        self.reserved = self._leased = 0

    # --- what a scheduler is -------------------------------------------------------------------

    @property
    def rounds(self) -> list[Round]:
        return self._inner.rounds

    @rounds.setter
    def rounds(self, rounds: list[Round]) -> None:
        self._inner.rounds = rounds

    @property
    def price(self) -> float | None:
        return self._inner.price

    def add(self, requests: Sequence[Request], forecast: Forecast) -> None:
        self._inner.add(requests, forecast)

    def restore(self, place: int, state: Result | Completion, *, sample: int = 0, landing: bool = False) -> None:
        self._inner.restore(place, state, sample=sample, landing=landing)

    def dropped(self, place: int, part: Completion) -> None:
        self._inner.dropped(place, part)

    def charged(self, costs: Mapping[int, int]) -> None:
        self._inner.charged(costs)

    def next(self, available: int, avoid: Collection[int] = ()) -> Work | None:
        if avoid:
            self._ready = deque(sorted(self._ready, key=lambda work: work.place in avoid))
        if not self._ready or self._ready[0].bound > available:
            return None
        return self._ready.popleft()

    def done(self, report: Report) -> Result | None:
        self._unasked = True
        self._changed.set()
        return self._inner.done(report)

    def close(self, stopped: str = "") -> Iterable[Result]:
        return self._inner.close(stopped)

    # --- what a feed is ------------------------------------------------------------------------

    @property
    def open(self) -> bool:
        return self._unasked or self._asking

    async def supply(self) -> None:
        """Exchanges messages until everything is settled."""
        while True:
            wanted = self._next_work()
            if wanted or self._settled:
                await self._ask(wanted)
            elif self._finished:
                return
            else:
                await self._changed.wait()
                self._changed.clear()

    def _next_work(self) -> list[Work]:
        """Work of the scheduler whose units have to be taken; what is held already is ready."""
        wanted: list[Work] = []
        while not (self._progress.stopped or self._finished) and len(self._held) + len(wanted) < self._most:
            asked = sum(work.bound for work in wanted)
            work = self._inner.next(self._allowance - self.spent - self._leased - asked)
            if work is None:
                break
            held = self._held.get(work.request.id)
            if held is not None and held.units >= work.bound:  # it generated nothing, and is sent again
                self._ready.append(work)
                continue
            if held is not None:
                self._end(work.request.id, None, "none", 0)
            wanted.append(work)
        self._unasked = False
        self.wake.set()
        return wanted

    async def _ask(self, works: Sequence[Work]) -> None:
        settled, self._settled = self._settled, []
        self._asking = True
        message = Message(settled, [(work.request.id, work.bound) for work in works], self._again)
        reply = await self._exchange(message)
        for work, number in zip(works, reply.taken, strict=True):
            if number > 0:
                self._held[work.request.id] = _Held(number, work.bound)
                self._leased += work.bound
                self._ready.append(work)
            elif number == TAKEN:
                self.ended.add(work.request.id)
                self._inner.done(Report(work, 0, error=Refused("another process has taken it", sent=False)))
                self._unasked = True
            else:  # nothing is left; the scheduler keeps it
                self._allowance = 0
                error = Unavailable("not affordable", tokens=0, sent=False)
                self._inner.done(Report(work, 0, error=error, attempts=0, postponed=True))
        if reply.stop:
            self._progress.stop(reply.stop)
        self._unasked |= bool(settled)  # there is room again
        self._asking = False
        self.wake.set()

    def finish(self) -> None:
        """Gives back what was taken and not sent; call it when the execution has ended."""
        for name in [*self._held]:
            self._end(name, None, "none", 0)
        for work in self._ready:
            error = Unavailable("not sent", tokens=0, sent=False)
            self._inner.done(Report(work, 0, error=error, attempts=0, postponed=True))
        self._ready.clear()
        self._finished = True
        self._changed.set()

    # --- what a ledger is ----------------------------------------------------------------------

    @property
    def available(self) -> int:
        return self._leased - self.reserved

    @contextmanager
    def together(self) -> Iterator[None]:
        yield

    def reserve_many(self, items: Iterable[tuple[str, int]]) -> list[int]:
        wanted = [*items]
        if sum(units for _, units in wanted) > self.available:
            raise Overdrawn(f"{len(wanted)} requests need more than was taken for them")
        numbers = []
        for name, units in wanted:
            self._number += 1
            self._attempts[self._number] = name, units
            self.reserved += units
            numbers.append(self._number)
        return numbers

    def settle_many(self, settlements: Iterable[Settlement]) -> None:
        for kind, number, units, usage, line in settlements:
            name, reserved = self._attempts.pop(number)
            self.reserved -= reserved
            self.spent += units
            self.usage += usage or Usage()
            held = self._held[name]
            held.usage += usage or Usage()
            if kind == "free":
                held.exposed = reserved
            if line is not None:
                self._end(name, line, "chunk" if kind == "chunk" else "result", units)
            elif units:  # its grant is spent; a note may follow
                self._end(name, None, "none", units)

    def record(self, request: str, result: bytes) -> None:
        self._end(request, result, "result", 0)

    def note(self, request: str, line: bytes) -> None:
        self._end(request, line, "note", 0)

    def note_many(self, items: Iterable[tuple[str, bytes]]) -> None:
        for request, line in items:
            self.note(request, line)

    def _end(self, name: str, line: bytes | None, kind: Kind, units: int) -> None:
        held = self._held.pop(name, None) or _Held(0, 0)
        self._leased -= held.units
        self._settled.append(Settled(name, held.reservation, units, held.usage, line, kind, held.exposed))
        if kind in ("result", "note"):
            self.ended.add(name)
        self._changed.set()
