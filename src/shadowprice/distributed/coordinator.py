"""The owner of the ledger: workers take requests from it before they send them, and settle with it afterwards.

One process opens the ledger; all others exchange messages with it, with many requests in each. What a worker took is on
disk before the worker gets its reply. So whatever dies, the ledger counts at least what servers may have generated:

    a worker dies           what it took and did not settle stays reserved, and is charged in full at the end of the
                            job; these requests are never sent again
    the coordinator dies    it is started again on the same ledger. Reservations stay open: the workers that made them
                            are at work, and settle with the new process. A message whose answer was lost is sent again
                            and has the same effect: a settlement counts once, and requests that it took are its own
    the driver dies         the job ends. The next one on the same folder charges what is open, and continues

No network, no Ray: a message is a method call. `distributed.actors` makes a process of it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from shadowprice.accounts.sqlite import Ledger, Settlement
from shadowprice.cost import TOKENS, Rates, show
from shadowprice.formats.results import result_line
from shadowprice.types import Failure, Result, Usage

TAKEN, SHORT = -1, -2  # instead of the number of a reservation: taken before; not affordable


Kind: TypeAlias = Literal["result", "chunk", "note", "none"]


class Settled(NamedTuple):
    """The end of an attempt at a request that was taken; or, with reservation 0, the outcome of a request.

    units    what it cost
    line     its result, a part of its answer, or a note why it has no answer, by `kind`
    exposed  units that were not charged because a server says that it generated nothing
    """

    request: str
    reservation: int
    units: int
    usage: Usage
    line: bytes | None
    kind: Kind
    exposed: int = 0


class Message(NamedTuple):
    """What a worker has settled, and what it wants to send: requests with the most units that each can cost.

    again  the worker, or one before it, may have asked for the same requests and died
    """

    settled: Sequence[Settled]
    wanted: Sequence[tuple[str, int]]
    again: bool = False


class Reply(NamedTuple):
    """The reservation of each request that was wanted, or TAKEN or SHORT; and why nothing more may be sent, if so."""

    taken: list[int]
    stop: str = ""


class Balance(NamedTuple):
    """The ledger in numbers."""

    budget: int
    available: int
    reserved: int
    spent: int
    overspent: int
    beyond_grants: int
    usage: Usage


class Coordinator:
    """
    path      of the ledger, which exists
    since     the number of its entries when the job began: requests that ended before may be sent again if they
              have neither a result nor a cost
    exposure  share of the budget that may be taken on the word of servers
    """

    def __init__(self, path: Path, *, since: int = 0, exposure: float = 0.1, rates: Rates = TOKENS) -> None:
        self._ledger = Ledger.reopen(path, charge_lost=False)
        self._rates, self._exposure, self._stop = rates, exposure, ""
        self._exposed = self._most_reserved = 0
        grants: dict[int, int] = {}
        self._found = self._ledger.open_reservations()  # by an earlier process: their owners may ask again
        self._held: set[str] = set()  # taken from this process
        self._ended: set[str] = set()  # without a result, and not to be sent again
        for entry in self._ledger.entries():
            charged = entry.kind in ("settle", "orphan") and entry.units and not entry.answered
            if entry.request and (charged or (entry.id > since and entry.kind == "note")):
                self._ended.add(entry.request)
            if entry.kind == "reserve":
                grants[entry.id] = entry.units
            elif entry.reservation is not None:
                grant = grants.pop(entry.reservation)
                self._exposed += grant if entry.kind == "free" and entry.id > since else 0

    def exchange(self, messages: Sequence[Message]) -> list[Reply]:
        """Answers messages in order, with one wait for the disk."""
        ledger = self._ledger
        ledger.take_over()  # where each call has a thread of its own, they come one at a time
        for message in messages:
            self._exposed += sum(each.exposed for each in message.settled)
        with ledger.together():
            self._settle([each for message in messages for each in message.settled])
            taken = [self._take(message) for message in messages]
        self._most_reserved = max(self._most_reserved, ledger.reserved)
        if self._exposed > self._exposure * ledger.budget + self._most_reserved:
            believed = show(self._exposed, self._rates)
            self._stop = self._stop or (
                f"servers failed requests worth {believed} and say that they cost nothing: more than --exposure allows"
            )
        return [Reply(each, self._stop) for each in taken]

    def stop(self, reason: str) -> None:
        """Nothing more is sent, anywhere."""
        self._stop = self._stop or reason

    def stopped(self) -> str:
        return self._stop

    def balance(self) -> Balance:
        ledger = self._ledger
        ledger.take_over()
        return Balance(
            ledger.budget,
            ledger.available,
            ledger.reserved,
            ledger.spent,
            ledger.overspent,
            ledger.beyond_grants,
            ledger.usage,
        )

    def parts(self, names: Collection[str]) -> list[tuple[str, bytes, bool]]:
        """Of these requests, what the ledger has: parts of answers and results, oldest first; true for a result."""
        self._ledger.take_over()
        parts = [(name, line, False) for name, line in self._ledger.chunks() if name in names]
        return parts + [(name, line, True) for name, line in self._ledger.results() if name in names]

    def charge_lost(self) -> Balance:
        """Charges what workers took and did not settle; none of them may be at work."""
        self._ledger.take_over()
        lost = self._ledger.open_reservations()
        self._ledger.charge_lost()
        self._ledger.note_many((name, result_line(_lost(name, units))) for name, (_, units) in lost.items())
        self._ended.update(lost)
        self._found.clear()
        return self.balance()

    def close(self) -> None:
        """Writes everything to the disk and releases the ledger."""
        self._ledger.take_over()
        self._ledger.wait()
        self._ledger.close()

    def _settle(self, settled: Sequence[Settled]) -> None:
        ledger, notes = self._ledger, {}
        ends: list[Settlement] = []
        closed: set[int] = set()
        for each in settled:
            name, line = each.request, each.line
            if each.reservation:
                if each.reservation in closed or not ledger.is_open(each.reservation, name):
                    continue  # it was settled before, and the answer was lost
                closed.add(each.reservation)
                self._held.discard(name)
                self._found.pop(name, None)
                ends.append(_end_of(each))
            elif each.kind == "result" and line is not None and not ledger.has_result(name):
                ledger.settle_many(ends)
                ends = []
                ledger.record(name, line)
            if each.kind == "note" and line is not None and not ledger.has_result(name):
                notes[name] = line
                self._ended.add(name)
        ledger.settle_many(ends)
        ledger.note_many(notes.items())

    def _take(self, message: Message) -> list[int]:
        if self._stop:
            return [SHORT] * len(message.wanted)
        available, numbers, new = self._ledger.available, [], []
        for request, units in message.wanted:
            earlier = self._found.get(request)
            if earlier is not None and request not in self._held and not message.again and earlier[1] == units:
                numbers.append(earlier[0])
                self._held.add(request)
            elif (
                earlier is not None
                or request in self._held
                or request in self._ended
                or self._ledger.has_result(request)
            ):
                numbers.append(TAKEN)
            elif units > available:
                numbers.append(SHORT)
            else:
                numbers.append(0)
                new.append((request, units))
                self._held.add(request)
                available -= units
        fresh = iter(self._ledger.reserve_many(new))
        return [number or next(fresh) for number in numbers]

    def _was_taken(self, request: str) -> bool:
        return request in self._held or request in self._ended or self._ledger.has_result(request)


def _end_of(each: Settled) -> Settlement:
    """How an attempt ends in the ledger."""
    if each.kind == "chunk":
        return Settlement("chunk", each.reservation, each.units, each.usage, each.line)
    if each.units or each.kind == "result":
        line = each.line if each.kind == "result" else None
        return Settlement("settle", each.reservation, each.units, each.usage, line)
    return Settlement("free" if each.exposed else "void", each.reservation, 0, None, None)


def _lost(name: str, units: int) -> Result:
    """The result of a request whose worker died: what it generated is unknown, so all of its grant is charged."""
    failure = Failure(
        "worker_lost", "its worker ended while it was in flight; charged in full", {"cause": "worker lost"}
    )
    return Result(name, "failed", cost=units, failure=failure)
