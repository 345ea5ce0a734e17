"""The ledger of a run: its budget, what was spent, and its results, in one SQLite file or in memory.

A budget is a whole number of units: output tokens or nano-dollars. Units are reserved before an attempt starts and
settled, or voided, when it ends:

    available + reserved + spent == budget        after every operation, and after every crash

The ledger is a journal: rows are added and never changed, and the balances are what they add up to.

    kind      reservation  units                               usage  result
    budget    -            the budget; the first row           -      -
    reserve   -            the grant, at least 1               -      -
    settle    its row      the true cost                       yes    the result, if there is one
    chunk     its row      the true cost                       yes    a chunk of the answer, to continue from
    orphan    its row      the grant: a crash hid the cost     -      -
    void      its row      0: nothing was used                 -      -
    free      its row      0: sent, and the server says that   -      -
                           it generated nothing
    loss      -            what lost entries may have cost     -      -
    record    -            0                                   -      a result that cost nothing
    note      -            0                                   -      why there is no result

Usage is three columns, `output`, `input` and `cached`: tokens by kind. A request has one result at most, and no
chunks or notes after it. It may have any number of notes before it; a note is not a result, and a run that is
resumed tries the request again. Notes under the name `ROUTES`, which no request has, are on the routes of reservations.

**Overspending.** A server may use more than it was granted. The journal keeps the true cost. The excess is taken
from `available`, as far as that goes; the remainder is `overspent`, a debt that units coming back from other
reservations pay first, so that nothing can be reserved before it is paid. `spent + overspent` is therefore always the
true cost, and once nothing is reserved, `overspent` is the amount by which the budget was exceeded.

**Durability.** A killed process loses nothing that a method returned from. Before `reserve` returns, the disk has
confirmed it. Settling does not wait for the disk each time (`shadowprice.accounts.stores` says when): a power cut can
lose the latest settlements, which are then charged in full, never less. A write that fails (a full disk) closes the
ledger: nothing of that operation was acknowledged, and all before it is there when it is reopened. `Ledger.in_memory`
has no file, and nothing survives it.

**Damage.** Each row has a digest of everything in it and of the digest before it. A second file, the mark
(`ledger.sqlite.mark`), has the number and digest of the latest row and what was committed by then: reserved or charged.
It is written before a method returns. Opening checks all rows, and that the row of the mark is among them (after a
restart of the machine: the latest row that had waited for the disk). So a killed run whose database, log (-wal) or mark
was cut, changed, deleted or exchanged for an older one is refused, even if SQLite opens it; its index (-shm) is
rebuilt. Not noticed: log and mark exchanged for older ones together, with the database if it has changed since then;
files that are forged together; and damage to the latest rows that comes together with a power cut or with damage to the
mark.

A refused ledger is left unchanged. `accept_loss` continues with the rows before the damage: open
reservations are charged in full, and `loss` is what the mark says was committed beyond that; all that is left, if the
mark is missing, damaged, or contradicts the journal. The damaged files are kept, as `ledger.sqlite.damaged`. If not
even the budget can be read, the run cannot be continued.

**One writer.** A second process, or a second `Ledger` in the same process, is refused at once; reading the file with
other tools is always possible. A `Ledger` belongs to the thread that opened it (asyncio tasks of one loop are fine, no
method awaits) and must not be used in a forked child.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import index
from pathlib import Path
from threading import get_ident
from typing import NamedTuple, TypeAlias

from shadowprice.accounts.journal import Balances, Entry
from shadowprice.accounts.stores import FileStore, MemoryStore, Row, Store
from shadowprice.errors import LedgerError, Overdrawn
from shadowprice.types import Usage

_MOST, _MOST_BYTES = 2**63 - 1, 2**29  # what SQLite can hold, the latter rounded down
_NO_USAGE = Usage()

_Draft: TypeAlias = tuple[str, str, int | None, int, Usage | None, bytes | None]  # all of a row but its number
PathName: TypeAlias = "str | os.PathLike[str]"


class Settlement(NamedTuple):
    """How an attempt ends: kind is settle (`line` is its result, if any), chunk (a part of an answer), void or free."""

    kind: str
    reservation: int
    units: int
    usage: Usage | None
    line: bytes | None


class Ledger:
    """The ledger of a run. Made by `create`, `reopen` or `in_memory`; close it, or use it in a `with`.

    An operation that is not allowed raises LedgerError and changes nothing. If the file cannot be written (a full
    disk), the ledger is closed as well: only reopening shows what had reached the disk.
    """

    @classmethod
    def create(cls, path: PathName, budget: int) -> Ledger:
        """A new ledger, with everything available. The file must not exist."""
        FileStore.create(Path(path), _count(budget, "a budget", least=0))
        return cls._open(Path(path))

    @classmethod
    def reopen(cls, path: PathName, *, accept_loss: bool = False, charge_lost: bool = True) -> Ledger:
        """The ledger of a run that ended or crashed.

        A reservation that is still open is charged in full, because its outcome is unknown; unless `charge_lost` is
        false, because other processes made the attempts, and have not ended. A damaged ledger is refused;
        `accept_loss` continues with the valid part of it (see above).
        """
        ledger = cls._open(Path(path), accept_loss=accept_loss)
        if charge_lost:
            ledger.charge_lost()
        return ledger

    @classmethod
    def in_memory(cls, budget: int) -> Ledger:
        """A new ledger without a file, for a run without a folder."""
        budget = _count(budget, "a budget", least=0)
        return cls(MemoryStore(budget), Balances(budget))

    @classmethod
    def _open(cls, path: Path, *, accept_loss: bool = False) -> Ledger:
        store = FileStore(path, accept_loss=accept_loss)
        return cls(store, store.balances)

    def __init__(self, store: Store, balances: Balances) -> None:
        """Not for callers: use `create`, `reopen` or `in_memory`."""
        self._store, self._balances = store, balances
        self._thread = get_ident()
        self._closed = False
        self._group: list[Row] | None = None  # rows that are written together, at the end of `together`
        self._group_waits = False

    def charge_lost(self) -> None:
        """Charges every open reservation in full: its attempt was lost, and its outcome is unknown."""
        lost = self._balances.open.items()
        drafts: list[_Draft] = [("orphan", name, number, grant, None, None) for number, (name, grant) in lost]
        self._append(drafts, wait=True)

    def open_reservations(self) -> dict[str, tuple[int, int]]:
        """By request: number and units of its attempt that has not ended; the latest, if there are several."""
        return {request: (number, units) for number, (request, units) in self._balances.open.items()}

    def is_open(self, reservation: int, request: str) -> bool:
        """Whether this is an attempt at the request that has not ended."""
        return self._balances.open.get(reservation, ("", 0))[0] == request

    @property
    def last(self) -> int:
        """The number of the latest entry of the journal."""
        return self._balances.last

    def take_over(self) -> None:
        """Makes this thread the owner of the ledger; the earlier owner must not use it until it takes over again."""
        self._thread = get_ident()

    @property
    def path(self) -> Path | None:
        """Where the file is; None in memory."""
        return self._store.path

    @property
    def budget(self) -> int:
        return self._balances.budget

    @property
    def available(self) -> int:
        """Units that can be reserved."""
        return self._balances.available

    @property
    def reserved(self) -> int:
        """Granted to attempts that have not ended."""
        return self._balances.reserved

    @property
    def spent(self) -> int:
        """Charged, and paid from the budget."""
        return self._balances.spent

    @property
    def overspent(self) -> int:
        """Charged, and not covered by the budget: servers exceeded their limits. 0 if none did."""
        return self._balances.charged - self._balances.spent

    @property
    def beyond_grants(self) -> int:
        """Units settled above their reservations, whether the budget covers them or not."""
        return self._balances.beyond_grants

    @property
    def lost(self) -> int:
        """Charged for entries of the journal that were lost to damage, and whose loss was accepted."""
        return self._balances.lost

    @property
    def exposed(self) -> int:
        """Grants of attempts that ended as free: not charged, because servers said that they generated nothing."""
        return self._balances.exposed

    @property
    def usage(self) -> Usage:
        """Tokens by kind, of all attempts together."""
        return Usage(self._balances.output, self._balances.input, self._balances.cached)

    def reserve(self, request: str, units: int) -> int:
        """Sets units aside for an attempt and returns the number to settle or void it by.

        Safe on the disk when it returns. Overdrawn if there are not enough available.
        """
        return self.reserve_many([(request, units)])[0]

    def reserve_many(self, items: Iterable[tuple[str, int]]) -> list[int]:
        """Reserves for many requests, all or none, with one wait for the disk."""
        drafts: list[_Draft] = [
            ("reserve", _text(request), None, _count(units, "a reservation", least=1), None, None)
            for request, units in items
        ]
        total = sum(draft[3] for draft in drafts)
        if total > self.available:
            who = f"request {drafts[0][1]!r} needs" if len(drafts) == 1 else f"{len(drafts)} requests need"
            raise Overdrawn(f"{who} {total} units, {self.available} of {self.budget} are available")
        return self._append(drafts, wait=True)

    def settle(self, reservation: int, units: int, usage: Usage = _NO_USAGE, result: bytes | None = None) -> None:
        """Ends an attempt: its true cost, its tokens by kind, and its result if it has one.

        All are stored or none is. A cost above the grant is charged too; see `overspent`. What is left of the
        grant is available again.
        """
        self._end("settle", reservation, units, usage, result)

    def settle_chunk(self, reservation: int, units: int, usage: Usage, chunk: bytes) -> None:
        """Ends an attempt that generated a chunk; its request has no result yet and can continue from there."""
        self._end("chunk", reservation, units, usage, chunk)

    def void(self, reservation: int) -> None:
        """Ends an attempt that is known to have used nothing."""
        self._end("void", reservation, 0, None, None)

    def free(self, reservation: int) -> None:
        """Ends an attempt that was sent, and of which the server says that it generated nothing; see `exposed`."""
        self._end("free", reservation, 0, None, None)

    def settle_many(self, settlements: Iterable[Settlement]) -> None:
        """Ends several attempts, all or none."""
        ended = [self._checked_end(*settlement) for settlement in settlements]
        self._append([draft for draft, _ in ended], wait=any(above for _, above in ended))

    @contextmanager
    def together(self) -> Iterator[None]:
        """Writes everything inside at the end, all or none, with one wait for the disk at most.

        Balances are up to date at once; what they say is on the disk only after the end, so nothing may be sent
        before it, and the journal cannot be read. An exception closes the ledger: nothing inside was written.
        """
        self._checked()
        if self._group is not None:
            raise LedgerError(f"{self._store}: already writing together")
        self._group, self._group_waits = [], False
        try:
            yield
            rows, self._group = self._group, None
            if rows:
                self._checked().append(rows, wait=self._group_waits)
                self._store.confirm(self._balances.committed)
        except BaseException:
            self._group = None
            self.close()
            raise

    def record(self, request: str, result: bytes) -> None:
        """Adds a result that cost nothing."""
        self._check_line(_text(request), result)
        self._append([("record", request, None, 0, None, result)], wait=False)

    def note(self, request: str, line: bytes) -> None:
        """Adds what is known of a request without an answer: it was declined, failed or was not sent."""
        self.note_many([(request, line)])

    def note_many(self, items: Iterable[tuple[str, bytes]]) -> None:
        """Adds notes on many requests, all or none."""
        drafts: list[_Draft] = []
        for request, line in items:
            self._check_line(_text(request), line)
            drafts.append(("note", request, None, 0, None, line))
        self._append(drafts, wait=False)

    def wait(self) -> None:
        """Waits for the disk: when it returns, a power cut loses nothing that was written before."""
        try:
            self._readable().wait()
        except BaseException:
            self.close()
            raise

    def has_result(self, request: str) -> bool:
        return request in self._balances.answered

    def line(self, request: str) -> bytes | None:
        """The result of a request, or its latest note; None if it has neither."""
        number = self._balances.answered.get(request) or self._balances.noted.get(request)
        return None if number is None else self._readable().line(number)

    def results(self) -> Iterator[tuple[str, bytes]]:
        """Request and result, in the order of their arrival; a request has one at most."""
        return ((request, line) for _, request, line in self._lines("settle", "record"))

    def chunks(self) -> Iterator[tuple[str, bytes]]:
        """Request and chunk, in the order of their arrival; those of requests with a result too."""
        return ((request, line) for _, request, line in self._lines("chunk"))

    def notes(self) -> Iterator[tuple[str, bytes]]:
        """Request and latest note of every request that has notes and no result."""
        latest = self._balances.noted
        return ((request, line) for number, request, line in self._lines("note") if latest.get(request) == number)

    def notes_on(self, request: str) -> Iterator[bytes]:
        """All notes on a request, oldest first."""
        return (line for _, name, line in self._lines("note") if name == request)

    def entries(self) -> Iterator[Entry]:
        """The journal, oldest entry first."""
        yield from self._readable().entries()

    def close(self) -> None:
        """Releases the file. Open reservations stay open, and are charged in full on reopening."""
        if not self._closed:
            self._checked().close()
            self._closed = True

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _end(self, kind: str, reservation: int, units: int, usage: Usage | None, line: bytes | None) -> None:
        draft, above = self._checked_end(kind, reservation, units, usage, line)
        self._append([draft], wait=above)

    def _checked_end(
        self, kind: str, reservation: int, units: int, usage: Usage | None, line: bytes | None
    ) -> tuple[_Draft, bool]:
        """The row that ends an attempt, and whether it cost more than its grant."""
        request, grant = self._balances.opened(reservation)
        if line is not None or kind == "chunk":
            self._check_line(request, line)
        units = _count(units, "a cost", least=0)
        if kind not in ("void", "free"):
            usage = _tokens(usage)
        return (kind, request, reservation, units, usage, line), units > grant

    def _check_line(self, request: str, line: bytes | None) -> None:
        if not isinstance(line, bytes) or len(line) > _MOST_BYTES:
            raise LedgerError(f"request {request!r}: a result, chunk or note must be bytes, {_MOST_BYTES} at most")
        if request in self._balances.answered:
            raise LedgerError(f"request {request!r} already has a result")

    def _append(self, drafts: Sequence[_Draft], *, wait: bool) -> list[int]:
        """Adds rows, which were checked, to the journal and to the balances; returns their numbers."""
        store, first = self._checked(), self._balances.last + 1
        if not drafts:
            return []
        rows: list[Row] = []
        for number, (kind, request, reservation, units, usage, line) in enumerate(drafts, start=first):
            answered = line is not None and kind in ("settle", "record")
            rows.append((Entry(number, kind, request, reservation, units, usage, answered), line))
        try:
            if self._group is None:
                store.append(rows, wait=wait)
            else:
                self._group += rows
                self._group_waits |= wait
            for entry, _ in rows:
                self._balances.add(entry)
            if self._group is None:
                store.confirm(self._balances.committed)
        except BaseException:  # an interrupt too: balances and journal may differ by now
            self.close()
            raise
        return list(range(first, first + len(rows)))

    def _lines(self, *kinds: str) -> Iterator[tuple[int, str, bytes]]:
        yield from self._readable().lines(*kinds)

    def _readable(self) -> Store:
        if self._group is not None:
            raise LedgerError(f"{self._store}: cannot be read while it is written")
        return self._checked()

    def _checked(self) -> Store:
        if get_ident() != self._thread:
            raise LedgerError(f"{self._store}: belongs to the thread that opened it")
        if self._closed:
            raise LedgerError(f"{self._store}: closed")
        return self._store


def _text(request: str) -> str:
    try:
        request.encode()
    except (AttributeError, UnicodeEncodeError):
        raise LedgerError(f"a request's id must be valid text, not {request!r:.80}") from None
    return request


def _tokens(usage: Usage | None) -> Usage:
    if not isinstance(usage, Usage):
        raise LedgerError(f"usage must be a Usage, not {usage!r:.80}")
    numbers = output, input, cached = usage.output, usage.input, usage.cached
    if type(output) is type(input) is type(cached) is int and min(numbers) >= 0 and max(numbers) <= _MOST:
        return usage
    return Usage(*(_count(number, "usage", least=0) for number in numbers))


def _count(value: int, what: str, *, least: int) -> int:
    """A plain integer, from NumPy's too."""
    if type(value) is int and least <= value <= _MOST:
        return value
    try:
        number = least - 1 if isinstance(value, bool) else index(value)
    except TypeError:
        number = least - 1
    if not least <= number <= _MOST:
        shown = f"{value!r:.80}" if abs(number) <= _MOST else "a longer one"  # Python refuses to print very long ones
        raise LedgerError(f"{what} must be a whole number from {least} to {_MOST}, not {shown}")
    return number
