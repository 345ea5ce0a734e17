"""The part of the ledger that a worker holds: requests that it took from the coordinator and has not settled.

For `execute` it is a ledger, and the feed of its scheduler. Reserving and settling touch memory alone. Beside the
execution a task exchanges messages with the coordinator, one at a time: whatever has ended since the last message is
settled by the next, which also takes as many requests as there is room for. So messages grow with the load.

A worker never holds more requests than it may have under way: when it dies, that is all that is lost.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from shadowprice.accounts.sqlite import Settlement
from shadowprice.distributed.coordinator import Message, Reply, Settled
from shadowprice.engine.executor import Progress
from shadowprice.engine.granted import Granted
from shadowprice.errors import Overdrawn
from shadowprice.types import Usage


@dataclass
class _Held:
    """A request that was taken; and what its attempts cost so far."""

    reservation: int
    units: int
    cost: int = 0
    usage: Usage = field(default_factory=Usage)
    exposed: int = 0


class Leases:
    """
    progress    of the execution, which is stopped when the coordinator says so; with the budget of the whole job
    exchange    sends a message to the coordinator, and waits for its answer
    scheduler   has the requests; `places` are those to take, in order
    names       of all its requests
    most        requests that are held at the same time
    """

    def __init__(
        self,
        progress: Progress,
        exchange: Callable[[Message], Awaitable[Reply]],
        scheduler: Granted,
        names: Sequence[str],
        places: Iterable[int],
        *,
        most: int,
        again: bool = False,
    ) -> None:
        self.budget, self.spent, self.usage = progress.budget, 0, Usage()
        self.wake = asyncio.Event()
        self._progress = progress
        self.skipped: dict[int, int] = {}  # by place: TAKEN or SHORT
        self.ended: set[str] = set()  # requests with a result or a note
        self._exchange, self._scheduler, self._names = exchange, scheduler, names
        self._most, self._again = most, again
        self._todo = deque(places)
        self._held: dict[str, _Held] = {}
        self._attempts: dict[int, tuple[str, int]] = {}  # by number: request and units
        self._number = 0
        self._settled: list[Settled] = []
        self._changed = asyncio.Event()
        self._asking = False
        self.reserved = self._leased = 0

    # --- what a feed is ------------------------------------------------------------------------

    @property
    def open(self) -> bool:
        return bool(self._todo or self._asking)

    async def supply(self) -> None:
        """Exchanges messages until everything is settled."""
        while self._todo or self._held or self._settled:
            room = 0 if self._progress.stopped else self._most - len(self._held)
            places = [self._todo.popleft() for _ in range(min(room, len(self._todo)))]
            if not places and not self._settled:
                if self._progress.stopped and not self._held:
                    return
                await self._changed.wait()
                self._changed.clear()
                continue
            await self._ask(places)

    async def _ask(self, places: Sequence[int]) -> None:
        settled, self._settled = self._settled, []
        wanted = [(self._names[place], self._scheduler.bound(place)) for place in places]
        self._asking = True
        reply = await self._exchange(Message(settled, wanted, self._again))
        self._asking = False
        for place, (name, units), number in zip(places, wanted, reply.taken, strict=True):
            if number > 0:
                self._held[name] = _Held(number, units)
                self._leased += units
                self._scheduler.release(place)
            else:
                self.skipped[place] = number
        if reply.stop:
            self._progress.stop(reply.stop)
        self.wake.set()

    def finish(self) -> None:
        """The execution has ended: what was taken and not sent is given back."""
        for name in [*self._held]:
            self._end(name, None, answered=False)
        self._todo.clear()
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
            held = self._held[name]
            held.cost += units
            held.usage += usage or Usage()
            self.usage += usage or Usage()
            if kind == "free":
                held.exposed = reserved
            if line is not None:
                self._end(name, line, answered=True)

    def record(self, request: str, result: bytes) -> None:
        self._end(request, result, answered=True)

    def note(self, request: str, line: bytes) -> None:
        self._end(request, line, answered=False)

    def note_many(self, items: Iterable[tuple[str, bytes]]) -> None:
        for request, line in items:
            self.note(request, line)

    def _end(self, name: str, line: bytes | None, *, answered: bool) -> None:
        held = self._held.pop(name, None)
        if held is None:
            return
        self._leased -= held.units
        self._settled.append(Settled(name, held.reservation, held.cost, held.usage, line, answered, held.exposed))
        if line is not None:
            self.ended.add(name)
        self._changed.set()
