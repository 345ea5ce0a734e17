"""The invariants. The audit keeps books of its own, from what reaches the disk and what the server does.

conservation   available + reserved + spent == budget, and the ledger's balances are those of its journal
budget         charged + reserved never exceeds it
sending        nothing is sent without a durable reservation of its request that covers its bound, nor after a
               stop, nor beyond the concurrency, nor for a request that has its result
truth          a reservation ends with at least what the server generated on it; an answer with exactly that
results        every request has one at most; what was acknowledged stays, unless a power cut took it
parts          what was paid for is continued from, not generated again
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from shadowprice.accounts.sqlite import Ledger
from shadowprice.accounts.stores import Row
from shadowprice.formats.results import ESTIMATE, parse_chunk, result_line
from shadowprice.types import Completion, Result

from .process import Violation
from .story import Story


@dataclass
class Attempt:
    """What a server was sent, and the cost of what it generated, in units."""

    reservation: int
    name: str
    most: int  # it can cost
    cost: int = 0
    exact: int | None = None  # what an answer that arrived must be charged
    under_way: bool = True


@dataclass
class Books:
    """What the rows of a journal add up to."""

    rows: list[tuple[Any, ...]] = field(default_factory=list)
    open: dict[int, tuple[str, int]] = field(default_factory=dict)  # reservation: request, units
    charged: int = 0
    results: dict[str, bytes] = field(default_factory=dict)
    notes: dict[str, bytes] = field(default_factory=dict)
    chunks: dict[str, list[bytes]] = field(default_factory=dict)

    @property
    def reserved(self) -> int:
        return sum(units for _, units in self.open.values())


class Audit:
    def __init__(self, story: Story) -> None:
        self.story = story
        self.books = Books()
        self.durable = 1
        self.attempts: dict[int, list[Attempt]] = {}  # by reservation
        self.acknowledged: dict[str, bytes] = {}
        self.answered_now: set[str] = set()  # acknowledged in this execution
        self.not_continued: set[str] = set()  # the server refused to continue their answers
        self.within_model = True  # until a server exceeds a limit
        self.violation = ""
        self.stopped: Callable[[], str] = lambda: ""  # why the execution stops
        self.events: list[str] = []
        self._hash = hashlib.sha256()
        self._row(_budget_row(story.budget))

    # --- events --------------------------------------------------------------------------------

    def event(self, *what: object) -> None:
        line = " ".join(map(str, what))
        self.events.append(line)
        self._hash.update(line.encode() + b"\n")

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def require(self, holds: bool, problem: str) -> None:
        if not holds:
            self.violation = self.violation or problem  # whoever catches what follows, the life has failed
            raise Violation(problem)

    # --- the disk ------------------------------------------------------------------------------

    def written(self, rows: Sequence[Row], *, durable: bool) -> None:
        """These rows have reached the system; a kill does not lose them any more."""
        for row in rows:
            self._row(_plain(row))
        if durable:
            self.waited()

    def waited(self) -> None:
        """A power cut does not lose what has been written so far."""
        self.durable = len(self.books.rows)
        self.event("disk waits")

    def _row(self, row: tuple[Any, ...]) -> None:
        number, kind, name, reservation, units, line = row
        books = self.books
        self.require(number == len(books.rows) + 1, f"row {number} follows row {len(books.rows)}")
        books.rows.append(row)
        self.event("row", number, kind, name, reservation, units)
        if kind == "budget":
            return
        if kind == "reserve":
            self._reserved(number, name, units)
        elif reservation is not None:
            self._ended(name, reservation, units, lost=kind == "orphan")
        if line is None:
            return
        self.require(name not in books.results, f"{name} has a result, and then another {kind}")
        if kind in ("settle", "record"):
            books.results[name] = line
            books.notes.pop(name, None)
        elif kind == "chunk":
            books.chunks.setdefault(name, []).append(line)
        elif kind == "note":
            books.notes[name] = line

    def _reserved(self, number: int, name: str, units: int) -> None:
        books = self.books
        self.require(units > 0, f"{name} reserves {units}")
        self.require(self.stopped() == "", f"{name} reserves after the stop: {self.stopped()}")
        self.require(name not in books.results, f"{name} has a result and reserves again")
        self.require(name not in {who for who, _ in books.open.values()}, f"{name} has two reservations")
        self.require(
            books.charged + books.reserved + units <= self.story.budget,
            f"{books.charged} charged, {books.reserved} reserved, {units} more: above {self.story.budget}",
        )
        books.open[number] = name, units

    def _ended(self, name: str, reservation: int, units: int, *, lost: bool) -> None:
        books = self.books
        self.require(reservation in books.open, f"{name}: reservation {reservation} ends twice")
        owner, grant = books.open.pop(reservation)
        self.require(owner == name, f"{name} ends a reservation of {owner}")
        attempts = self.attempts.get(reservation, [])
        self.require(not any(a.under_way for a in attempts), f"{name} is settled while it is under way")
        if lost:  # if a server exceeded its limit, and nobody learned of it, no ledger can know
            for attempt in attempts:
                attempt.cost = min(attempt.cost, attempt.most)
        true = sum(attempt.cost for attempt in attempts)
        self.require(units >= true, f"{name} is charged {units} for what cost {true}")
        if self.within_model:
            self.require(units <= grant, f"{name} is charged {units} of {grant} reserved")
        if attempts and attempts[-1].exact is not None:
            self.require(units in (attempts[-1].exact, grant), f"{name} is charged {units}, not {attempts[-1].exact}")
        books.charged += units

    def begins(self) -> None:
        """Another execution, by the same process or by the next."""
        self.answered_now.clear()

    def restarted(self, rows: Sequence[Row], *, power: bool) -> None:
        """A process begins with these rows, after whatever ended the one before it."""
        self.begins()
        before, now = self.books.rows, [_plain(row) for row in rows]
        least = self.durable if power else len(before)
        self.require(len(now) >= least, f"{len(before) - len(now)} rows are lost, {least} were safe")
        self.require(now == before[: len(now)], "the journal has changed")
        for attempts in self.attempts.values():
            for attempt in attempts:  # it may have been generated to its limit, whatever became of the client
                if attempt.under_way:
                    attempt.under_way, attempt.cost, attempt.exact = False, attempt.most, None
        if len(now) == len(before):
            return
        for number, attempts in self.attempts.items():
            true = sum(attempt.cost for attempt in attempts)
            self.require(number <= len(now) or not true, f"reservation {number} is lost, and {true} was generated")
        self.attempts = {number: attempts for number, attempts in self.attempts.items() if number <= len(now)}
        self.event("power cut loses", len(before) - len(now))
        self._rebuild(now)
        self.acknowledged = {name: line for name, line in self.acknowledged.items() if name in self.books.results}

    def _rebuild(self, rows: list[tuple[Any, ...]]) -> None:
        stopped, self.stopped = self.stopped, lambda: ""
        self.books = Books()
        for row in rows:
            self._row(row)
        self.durable, self.stopped = len(rows), stopped

    # --- the server ----------------------------------------------------------------------------

    def sent(self, name: str, most: int, prompt: dict[str, Any], part: Completion | None, suffix: str) -> Attempt:
        """Something is sent to the server that may cost `most` units."""
        books = self.books
        number, units = next(((n, units) for n, (who, units) in books.open.items() if who == name), (0, 0))
        self.event("sent", name, most, "on", number)
        self.require(number > 0, f"{name} is sent without a reservation")
        self.require(number <= self.durable, f"{name} is sent before its reservation is on the disk")
        earlier = self.attempts.setdefault(number, [])
        self.require(not any(a.under_way for a in earlier), f"{name} is sent twice at the same time")
        spent = sum(attempt.cost for attempt in earlier)
        self.require(most <= units - spent, f"{name} may cost {most}, {spent} of {units} reserved were used before")
        self.require(self.stopped() == "" or not earlier, f"{name} is sent again after the stop: {self.stopped()}")
        under_way = sum(a.under_way for each in self.attempts.values() for a in each)
        self.require(under_way < self.story.concurrency, f"{under_way} are under way, and {name} is sent")
        self._continues(name, prompt, part, suffix)
        attempt = Attempt(number, name, most)
        earlier.append(attempt)
        return attempt

    def _continues(self, name: str, body: dict[str, Any], part: Completion | None, suffix: str) -> None:
        """What an earlier attempt or process was paid for is used."""
        kept = [parse_chunk(line) for line in self.books.chunks.get(name, [])]
        parts = [(each.part, each.sample) for each in kept if not each.landing]
        settings = self.story.settings
        if name.startswith(ESTIMATE) or name in self.not_continued:
            return
        if settings is None:
            self.require(bool(suffix) or not parts, f"{name} is answered again")
        elif settings.samples > 1:
            again = body.get("seed") in {sample for _, sample in parts}
            self.require(not again, f"sample {body.get('seed')} of {name} is generated again")
        elif self.story.continues:
            text = "".join(completion.text for completion, _ in parts)
            found = part.text if part else ""
            self.require(found == text, f"{name} continues from {found[-50:]!r}, and has {text[-50:]!r}")

    # --- results -------------------------------------------------------------------------------

    def result(self, result: Result) -> None:
        """A result was passed on."""
        name = result.id
        self.event("result", name, result.outcome, result.cost)
        self.require(name not in self.answered_now, f"{name} is reported twice")
        self.require(name not in self.acknowledged, f"{name} is reported again")
        self.answered_now.add(name)
        if result.completion is not None:
            self.require(name in self.books.results, f"{name} is reported before its result is written")
            self.require(self.books.results[name] == result_line(result), f"{name} is reported and written differently")
            self.acknowledged[name] = self.books.results[name]

    # --- at any time ---------------------------------------------------------------------------

    def check(self, ledger: Ledger) -> None:
        """Between any two steps."""
        books, budget = self.books, self.story.budget
        self.require(ledger.available + ledger.reserved + ledger.spent == budget, "the balances do not add up")
        self.require(ledger.reserved == books.reserved, f"{ledger.reserved} reserved, {books.reserved} in the journal")
        charged = ledger.spent + ledger.overspent
        self.require(charged == books.charged, f"{charged} charged, {books.charged} in the journal")
        if self.within_model:
            self.require(ledger.overspent == ledger.beyond_grants == 0, "overspent, though servers kept their limits")

    @property
    def generated(self) -> int:
        """The cost of everything that the server has generated."""
        return sum(attempt.cost for attempts in self.attempts.values() for attempt in attempts)


def _plain(row: Row) -> tuple[Any, ...]:
    entry, line = row[0], row[1]
    return entry.id, entry.kind, entry.request, entry.reservation, entry.units, line


def _budget_row(budget: int) -> tuple[Any, ...]:
    return 1, "budget", None, None, budget, None
