"""The journal of a ledger: its entries, the balances they add up to, and its table in SQLite.

`shadowprice.accounts.sqlite` says what the entries mean.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from hashlib import sha256
from typing import NamedTuple, TypeAlias

from shadowprice.errors import LedgerError
from shadowprice.types import Usage


def _is(*kinds: str) -> str:
    """Not `kind IN (...)`, for which SQLite builds a table on every insertion: that takes three times as long."""
    return "(" + " OR ".join(f"kind = '{kind}'" for kind in kinds) + ")"


_TABLE = f"""CREATE TABLE journal (
    id INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    request TEXT CHECK (request IS NULL OR typeof(request) = 'text'),
    reservation INTEGER CHECK (reservation IS NULL OR typeof(reservation) = 'integer'),
    units INTEGER NOT NULL CHECK (typeof(units) = 'integer' AND units >= 0),
    output INTEGER CHECK (output IS NULL OR typeof(output) = 'integer' AND output >= 0),
    input INTEGER CHECK (input IS NULL OR typeof(input) = 'integer' AND input >= 0),
    cached INTEGER CHECK (cached IS NULL OR typeof(cached) = 'integer' AND cached >= 0),
    digest BLOB NOT NULL CHECK (typeof(digest) = 'blob' AND length(digest) = 16),
    result BLOB CHECK (result IS NULL OR typeof(result) = 'blob'),
    CHECK {_is("budget", "reserve", "settle", "chunk", "orphan", "void", "free", "record", "note", "loss")},
    CHECK ((kind = 'budget') = (id = 1)),
    CHECK ({_is("budget", "loss")} = (request IS NULL)),
    CHECK ({_is("settle", "chunk", "orphan", "void", "free")} = (reservation IS NOT NULL)),
    CHECK (kind <> 'reserve' OR units > 0),
    CHECK (NOT {_is("void", "free", "record", "note")} OR units = 0),
    CHECK ({_is("settle", "chunk")} = (output IS NOT NULL)),
    CHECK ((output IS NULL) = (input IS NULL) AND (output IS NULL) = (cached IS NULL)),
    CHECK (kind = 'settle' OR {_is("chunk", "record", "note")} = (result IS NOT NULL))
)"""

# INSERT OR REPLACE deletes what it conflicts with and fires no DELETE trigger; hence the third one. That a reservation
# ends once and a request has one result is not a matter of indexes: `Balances` sees to it, and a row that this
# program did not write has no place in the chain of digests.
SCHEMA = (
    _TABLE,
    "CREATE TRIGGER no_update BEFORE UPDATE ON journal BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END",
    "CREATE TRIGGER no_delete BEFORE DELETE ON journal BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END",
    """CREATE TRIGGER no_replace BEFORE INSERT ON journal
    WHEN NEW.id IS NOT (SELECT coalesce(max(id), 0) + 1 FROM journal)
    BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END""",
)
INSERT = "INSERT INTO journal VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_ROWS = "SELECT id, kind, request, reservation, units, output, input, cached, digest, result FROM journal ORDER BY id"
NO_DIGEST = bytes(16)

Value: TypeAlias = int | str | bytes | None


class Entry(NamedTuple):
    """A row of the journal, without its result."""

    id: int  # counts from 1; that of a `reserve` is the number of the reservation
    kind: str
    request: str | None
    reservation: int | None
    units: int
    usage: Usage | None = None
    answered: bool = False  # has the result of its request

    def row(self, before: bytes, line: bytes | None) -> tuple[bytes, tuple[Value, ...]]:
        """The digest of the entry, which depends on the one before it, and the values to insert."""
        number, kind, request, reservation, units, usage, _ = self
        values: tuple[Value, ...]
        if usage is None:
            values = number, kind, request, reservation, units, None, None, None
        else:
            values = number, kind, request, reservation, units, usage.output, usage.input, usage.cached
        digest = _digest(before, values, line)
        return digest, (*values, digest, line)


def _digest(before: bytes, values: tuple[Value, ...], line: bytes | None) -> bytes:
    """The digest of everything in a row and, through the digest before it, of all rows before it.

    The first half of SHA-256, for which most processors have instructions. `ascii` of a tuple tells types apart and
    shows where it ends; what follows has the length that it names.
    """
    if line is None:
        return sha256(before + ascii(values).encode()).digest()[:16]
    return sha256(b"%b%b%d:%b" % (before, ascii(values).encode(), len(line), line)).digest()[:16]


class Changed(LedgerError):
    """A row is not as it was written, or does not follow the one before it."""


class Row(NamedTuple):
    """An entry with its result, chunk or note and its digest, which fits the rows before it."""

    entry: Entry
    line: bytes | None
    digest: bytes


def read_rows(db: sqlite3.Connection) -> Iterator[Row]:
    """The journal in a database, oldest entry first. Raises Changed at the first row with a wrong digest."""
    before = NO_DIGEST
    for *values, digest, line in db.execute(_ROWS):
        if digest != _digest(before, tuple(values), line):
            raise Changed(f"entry {values[0]} was changed")
        before = digest
        yield Row(_entry(*values, has_line=line is not None), line, digest)


def read_entries(db: sqlite3.Connection) -> Iterator[Entry]:
    """The same without results and digests, unchecked: for a ledger that was checked when it was opened."""
    for *values, answered in db.execute(_ROWS.replace("digest, result", "result IS NOT NULL")):
        yield _entry(*values, has_line=answered)


def find_results(db: sqlite3.Connection) -> dict[str, int]:
    """The number of the entry with the result of each request that has one."""
    sql = f"SELECT request, id FROM journal WHERE result IS NOT NULL AND {_is('settle', 'record')}"
    return dict(db.execute(sql).fetchall())


def read_line(db: sqlite3.Connection, number: int) -> bytes:
    """The result, chunk or note of an entry."""
    (line,) = db.execute("SELECT result FROM journal WHERE id = ?", (number,)).fetchone()
    return bytes(line)


def read_chunks(db: sqlite3.Connection) -> Iterator[tuple[str, bytes]]:
    """All chunks with their requests, oldest first."""
    return db.execute("SELECT request, result FROM journal WHERE kind = 'chunk' ORDER BY id")


def _entry(
    number: int,
    kind: str,
    request: str | None,
    reservation: int | None,
    units: int,
    output: int | None,
    input: int,
    cached: int,
    *,
    has_line: bool,
) -> Entry:
    usage = None if output is None else Usage(output, input, cached)
    return Entry(number, kind, request, reservation, units, usage, bool(has_line) and kind in ("settle", "record"))


class Balances:
    """What a journal adds up to. Refuses entries that a ledger would not have written."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.reserved = 0
        self.charged = 0  # as settled, whether the budget covers it or not
        self.beyond_grants = 0
        self.lost = 0  # charged for entries that were lost
        self.exposed = 0  # grants of `free` entries
        self.output = self.input = self.cached = 0
        self.last = 1  # number of the latest entry
        self.open: dict[int, tuple[str, int]] = {}  # reservation: request, grant
        self.answered: dict[str, int] = {}  # request with a result: the entry that has it
        self.noted: dict[str, int] = {}  # request without a result: its latest note

    @property
    def spent(self) -> int:
        return min(self.charged, self.budget - self.reserved)

    @property
    def committed(self) -> int:
        """Units charged or reserved, even if the budget does not cover them."""
        return self.charged + self.reserved

    @property
    def available(self) -> int:
        return self.budget - self.reserved - self.spent

    def opened(self, reservation: int) -> tuple[str, int]:
        """Request and grant of an open reservation."""
        # NumPy's integers would be found as well, but SQLite would not store them as such.
        if not isinstance(reservation, int) or reservation not in self.open:
            raise LedgerError(f"there is no open reservation {reservation!r:.80}")
        return self.open[reservation]

    def add(self, entry: Entry) -> None:
        number, kind, request, reservation, units, usage, answered = entry
        if number != self.last + 1:
            raise LedgerError(f"entry {self.last + 1} is missing")
        if request is None:
            if kind != "loss":
                raise LedgerError(f"entry {number} is about no request")
            self.charged += units
            self.lost += units
            self.last = number
            return
        if kind == "reserve":
            if units > self.available:
                raise LedgerError(f"entry {number} reserves more than was available")
            self.open[number] = request, units
            self.reserved += units
        elif reservation is not None:
            owner, grant = self.opened(reservation)
            if owner != request or (kind == "orphan" and units != grant):
                raise LedgerError(f"entry {number} does not fit its reservation")
            del self.open[reservation]
            self.reserved -= grant
            self.charged += units
            if units > grant:
                self.beyond_grants += units - grant
            if kind == "free":
                self.exposed += grant
            if usage is not None:
                self.output += usage.output
                self.input += usage.input
                self.cached += usage.cached
        elif kind == "note":
            self.noted[request] = number
        if kind in ("chunk", "note") and request in self.answered:
            raise LedgerError(f"entry {number} follows the result of request {request!r}")
        if answered:
            if request in self.answered:
                raise LedgerError(f"entry {number} is a second result of request {request!r}")
            self.answered[request] = number
            self.noted.pop(request, None)
        self.last = number


class OldJournal(LedgerError):
    """The journal has the columns of an older version."""

    def __init__(self) -> None:
        super().__init__("was written by an older version of shadowprice (start a new run)")


def check_tables(db: sqlite3.Connection) -> None:
    """Refuses a database that is not a ledger of this version."""
    schema = {sql for (sql,) in db.execute("SELECT sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'")}
    if schema != set(SCHEMA):
        columns = {name for _, name, *_ in db.execute("PRAGMA table_info(journal)")}
        if {"query", "tokens"} <= columns or ({"request", "units"} <= columns and "digest" not in columns):
            raise OldJournal
        raise LedgerError("its tables are not those of a ledger")


def first_balances(entry: Entry | None) -> Balances:
    """The balances after the first entry of a journal."""
    if entry is None or entry.kind != "budget":
        raise LedgerError("it has no budget")
    return Balances(entry.units)
