"""The durable account of a run, and its results, in one SQLite file.

Tokens are reserved before an attempt starts and settled, or voided, when it ends:

    available + reserved + spent == budget        after every operation, and after every crash

The account is a journal: rows are added, never changed, and the balances are what they add up to.

    kind      reservation  tokens                              result
    budget    -            the budget; the first row           -
    reserve   -            the grant, at least 1               -
    settle    its row      what was really generated           perhaps
    pause     its row      what was really generated           a part of it: the answer goes on from there
    orphan    its row      the grant: a crash hid the truth    -
    void      its row      0: nothing was generated            -
    record    -            0                                   always

**Overspending.** A server may generate more than it was granted. The journal keeps the true count.
The excess comes out of `available`, as far as that goes; what is left over is `overspent`, a debt
that tokens coming back from other reservations pay first, so that nothing can be reserved before
it is paid. `spent + overspent` is therefore always what was really generated, and once nothing is
reserved any more, `overspent` is by how much the budget was exceeded.

**What survives what.** A killed process loses nothing that a method returned from. Before `reserve`
returns, the disk has confirmed it. Settling does not wait for the disk each time (see `_PATIENCE`):
a power cut can lose the latest settlements, which are then charged in full, never less.

**One writer.** A second process, or a second `Ledger` in this one, is refused at once; reading the
file with other tools is always possible. A `Ledger` belongs to the thread that opened it (asyncio
tasks of one loop are fine, no method awaits) and must not be used in a forked child.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from operator import index
from pathlib import Path
from threading import get_ident
from time import monotonic
from typing import Any, NamedTuple, TypeAlias

from shadowprice.errors import LedgerError, Overdrawn

# A write that waits for the disk (synchronous=FULL) took 1 to 3 ms on a virtual disk, one that does
# not 0.06 ms, 0.08 ms with a result of 2 kB. A reservation must wait: were it lost, tokens generated
# since would be forgotten. So must a settlement above its grant. If a power cut loses any other
# settlement, the account errs on the safe side; so those wait only if nothing has for so many seconds.
_PATIENCE = 1.0
_MOST, _MOST_BYTES = 2**63 - 1, 2**29  # what SQLite can hold, the latter rounded down

_TABLE = """CREATE TABLE journal (
    id INTEGER PRIMARY KEY,
    kind TEXT NOT NULL CHECK (kind IN ('budget', 'reserve', 'settle', 'pause', 'orphan', 'void', 'record')),
    query TEXT CHECK (typeof(query) IN ('text', 'null')),
    reservation INTEGER UNIQUE CHECK (typeof(reservation) IN ('integer', 'null')),
    tokens INTEGER NOT NULL CHECK (typeof(tokens) = 'integer' AND tokens >= 0),
    result BLOB CHECK (typeof(result) IN ('blob', 'null')),
    CHECK ((kind = 'budget') = (id = 1)),
    CHECK ((kind = 'budget') = (query IS NULL)),
    CHECK ((kind IN ('settle', 'pause', 'orphan', 'void')) = (reservation IS NOT NULL)),
    CHECK (kind <> 'reserve' OR tokens > 0),
    CHECK (kind NOT IN ('void', 'record') OR tokens = 0),
    CHECK (kind = 'settle' OR (kind IN ('pause', 'record')) = (result IS NOT NULL))
)"""

# INSERT OR REPLACE deletes what it conflicts with and fires no DELETE trigger; hence the third one.
_SCHEMA = (
    _TABLE,
    "CREATE UNIQUE INDEX one_result ON journal (query) WHERE result IS NOT NULL AND kind <> 'pause'",
    "CREATE TRIGGER no_update BEFORE UPDATE ON journal BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END",
    "CREATE TRIGGER no_delete BEFORE DELETE ON journal BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END",
    """CREATE TRIGGER no_replace BEFORE INSERT ON journal
    WHEN NEW.id IS NOT (SELECT coalesce(max(id), 0) + 1 FROM journal)
        OR EXISTS (SELECT 1 FROM journal WHERE reservation = NEW.reservation)
        OR NEW.result IS NOT NULL
            AND EXISTS (SELECT 1 FROM journal WHERE query = NEW.query AND result IS NOT NULL AND kind <> 'pause')
    BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END""",
)
_INSERT = "INSERT INTO journal VALUES (?, ?, ?, ?, ?, ?)"
_ANSWERED = "result IS NOT NULL AND kind <> 'pause'"
_ENTRIES = f"SELECT id, kind, query, reservation, tokens, {_ANSWERED} FROM journal ORDER BY id"

_Row: TypeAlias = tuple[str, str | None, int | None, int, bytes | None]  # all but the number
_UNREADABLE = (sqlite3.Error, UnicodeDecodeError)  # the latter where a damaged file spoils SQLite's own message
PathName: TypeAlias = "str | os.PathLike[str]"


class Entry(NamedTuple):
    """A row of the journal; the table in the module's docstring tells what is in it."""

    id: int  # counts from 1; that of a `reserve` is the number of the reservation
    kind: str
    query: str | None
    reservation: int | None
    tokens: int
    answered: bool  # came with a result


class Ledger:
    """The account of a run. Made by `create` or `reopen`; close it, or use it in a `with`.

    What cannot be done is a LedgerError and changes nothing. If the file cannot be written (a full
    disk), the ledger is closed as well: only reopening can tell what had reached the disk.
    """

    @classmethod
    def create(cls, path: PathName, budget: int) -> Ledger:
        """A new account, with everything available. The file must not exist yet."""
        budget = _count(budget, "a budget", least=0)
        path = Path(path)
        lock = _Lock(path)
        try:
            if os.path.lexists(path):
                raise LedgerError(f"{path}: exists already (resume that run, or choose another place)")
            _write_new(path, budget)
        finally:
            lock.release()
        return cls(path)

    @classmethod
    def reopen(cls, path: PathName) -> Ledger:
        """The account of a run that ended or crashed.

        A reservation left open is charged in full, because nobody knows what became of it.
        """
        ledger = cls(Path(path))
        orphans = ledger._account.open.items()
        ledger._append([("orphan", query, number, grant, None) for number, (query, grant) in orphans], wait=True)
        return ledger

    def __init__(self, path: Path) -> None:
        """Not for callers: use `create` or `reopen`."""
        if not os.path.isfile(path):
            raise LedgerError(f"{path}: no such ledger")
        self.path = path
        self._thread = get_ident()
        self._waiting: bool | None = None  # for the disk; None: not decided yet
        self._waited = 0.0
        self._db: sqlite3.Connection | None = None
        self._lock = _Lock(path)
        try:
            # mode=rw: a file that vanished a moment ago is an error, not a new and empty database
            self._db = sqlite3.connect(f"{path.resolve().as_uri()}?mode=rw", uri=True, isolation_level=None)
            self._account = _read_account(self._db)
            self._db.execute("PRAGMA journal_mode = WAL")
        except BaseException as error:
            self.close()
            if isinstance(error, sqlite3.OperationalError):
                raise LedgerError(f"{path}: cannot be opened: {error}") from None
            if isinstance(error, (*_UNREADABLE, LedgerError)):
                raise LedgerError(f"{path}: not a sound ledger: {error}") from None
            raise

    @property
    def budget(self) -> int:
        return self._account.budget

    @property
    def available(self) -> int:
        """Tokens that can be reserved."""
        return self._account.available

    @property
    def reserved(self) -> int:
        """Granted to attempts that have not ended."""
        return self._account.reserved

    @property
    def spent(self) -> int:
        """Generated, and paid from the budget."""
        return self._account.spent

    @property
    def overspent(self) -> int:
        """Generated, and not covered: by servers that did not keep to their grants. 0 if all did."""
        return self._account.generated - self._account.spent

    def reserve(self, query: str, tokens: int) -> int:
        """Sets tokens aside for an attempt; gives the number to settle or void it by.

        Safe on the disk when it returns. Overdrawn if there are not enough available.
        """
        return self.reserve_many([(query, tokens)])[0]

    def reserve_many(self, items: Iterable[tuple[str, int]]) -> list[int]:
        """Reserves for many queries, all or none, at the cost of one wait for the disk."""
        rows: list[_Row] = [
            ("reserve", _text(query), None, _count(tokens, "a reservation", least=1), None) for query, tokens in items
        ]
        total = sum(row[3] for row in rows)
        if total > self.available:
            what = f"query {rows[0][1]!r} asks" if len(rows) == 1 else f"{len(rows)} queries ask"
            raise Overdrawn(f"{what} for {total} tokens, {self.available} of {self.budget} are available")
        return self._append(rows, wait=True)

    def settle(self, reservation: int, spent: int, result: bytes | None = None) -> None:
        """Ends an attempt: what it really generated, and its result if it has one.

        Both are stored or neither is. More than the grant is charged too; see `overspent`. The rest
        of the grant is available again.
        """
        self._end("settle", reservation, spent, result)

    def pause(self, reservation: int, spent: int, part: bytes) -> None:
        """Ends an attempt that came so far; its query has no result yet, and can go on from this part."""
        self._end("pause", reservation, spent, part)

    def void(self, reservation: int) -> None:
        """Ends an attempt that is known to have generated nothing."""
        self._end("void", reservation, 0, None)

    def record(self, query: str, result: bytes) -> None:
        """A result that cost nothing: the query was abandoned or refused."""
        self._check_result(_text(query), result)
        self._append([("record", query, None, 0, result)], wait=False)

    def has_result(self, query: str) -> bool:
        return query in self._account.answered

    def results(self) -> Iterator[tuple[str, bytes]]:
        """Request and result, each query once at most, in the order they came in."""
        return self._select(f"SELECT query, result FROM journal WHERE {_ANSWERED} ORDER BY id")

    def parts(self) -> Iterator[tuple[str, bytes]]:
        """Request and part, in the order they came in; those of queries with a result too."""
        return self._select("SELECT query, result FROM journal WHERE kind = 'pause' ORDER BY id")

    def entries(self) -> Iterator[Entry]:
        """The journal, oldest first."""
        return (Entry(*row) for row in self._select(_ENTRIES))

    def close(self) -> None:
        """Gives up the file. Open reservations stay open, and are charged in full on reopening."""
        if self._db is not None:
            self._connection().close()
            self._db = None
        self._lock.release()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _end(self, kind: str, reservation: int, spent: int, result: bytes | None) -> None:
        query, grant = self._account.opened(reservation)
        if result is not None:
            self._check_result(query, result)
        tokens = _count(spent, "what was spent", least=0)
        self._append([(kind, query, reservation, tokens, result)], wait=tokens > grant)

    def _check_result(self, query: str, result: bytes) -> None:
        if not isinstance(result, bytes) or len(result) > _MOST_BYTES:
            raise LedgerError(f"query {query!r}: a result is bytes, up to {_MOST_BYTES} of them")
        if query in self._account.answered:
            raise LedgerError(f"query {query!r} has a result already")

    def _append(self, rows: list[_Row], *, wait: bool) -> list[int]:
        """Adds rows, which were checked, to the journal and to the balances; gives their numbers."""
        db = self._connection()
        first = self._account.last + 1
        numbers = list(range(first, first + len(rows)))
        if not rows:
            return numbers
        try:
            # One wait covers everything written before it, and what a power cut loses is always the
            # latest, so that no reservation can outlive the settlement whose tokens it was given.
            wait = wait or monotonic() - self._waited > _PATIENCE
            if wait != self._waiting:
                db.execute(f"PRAGMA synchronous = {'FULL' if wait else 'NORMAL'}")
                self._waiting = wait
            if len(rows) == 1:
                db.execute(_INSERT, (first, *rows[0]))
            else:
                db.execute("BEGIN IMMEDIATE")
                db.executemany(_INSERT, ((number, *row) for number, row in zip(numbers, rows, strict=True)))
                db.execute("COMMIT")
            for number, (kind, query, reservation, tokens, result) in zip(numbers, rows, strict=True):
                answered = result is not None and kind != "pause"
                self._account.add(Entry(number, kind, query, reservation, tokens, answered))
        except BaseException as error:  # an interrupt too: balances and journal may differ by now
            self.close()
            if isinstance(error, sqlite3.Error):
                raise LedgerError(f"{self.path}: cannot be written: {error} (mend that and reopen it)") from None
            raise
        if wait:
            self._waited = monotonic()
        return numbers

    def _select(self, sql: str) -> Iterator[tuple[Any, ...]]:
        try:
            yield from self._connection().execute(sql)
        except _UNREADABLE as error:
            raise LedgerError(f"{self.path}: cannot be read: {error}") from None

    def _connection(self) -> sqlite3.Connection:
        if get_ident() != self._thread:
            raise LedgerError(f"{self.path}: belongs to the thread that opened it")
        if self._db is None:
            raise LedgerError(f"{self.path}: closed")
        return self._db


class _Account:
    """What a journal adds up to. Refuses, on reopening, entries that a ledger would not have written."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.reserved = 0
        self.generated = 0  # as settled, whether the budget covers it or not
        self.last = 1  # number of the latest entry
        self.open: dict[int, tuple[str, int]] = {}  # reservation: query, grant
        self.answered: set[str] = set()

    @property
    def spent(self) -> int:
        return min(self.generated, self.budget - self.reserved)

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
        query = entry.query
        if query is None or entry.id != self.last + 1:
            raise LedgerError(f"entry {self.last + 1} is missing")
        if entry.kind == "reserve":
            if entry.tokens > self.available:
                raise LedgerError(f"entry {entry.id} reserves more than was available")
            self.open[entry.id] = query, entry.tokens
            self.reserved += entry.tokens
        elif entry.reservation is not None:
            asked, grant = self.opened(entry.reservation)
            if asked != query or (entry.kind == "orphan" and entry.tokens != grant):
                raise LedgerError(f"entry {entry.id} does not fit its reservation")
            del self.open[entry.reservation]
            self.reserved -= grant
            self.generated += entry.tokens
        if entry.answered:
            if query in self.answered:
                raise LedgerError(f"entry {entry.id} is a second result of query {query!r}")
            self.answered.add(query)
        self.last = entry.id


def _read_account(db: sqlite3.Connection) -> _Account:
    schema = {sql for (sql,) in db.execute("SELECT sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'")}
    if schema != set(_SCHEMA):
        raise LedgerError("its tables are others than those of this version")
    (found,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise LedgerError(" ".join(found.split()))
    entries = (Entry(*row) for row in db.execute(_ENTRIES))
    first = next(entries, None)
    if first is None or first.kind != "budget":
        raise LedgerError("it has no budget")
    account = _Account(first.tokens)
    for entry in entries:
        account.add(entry)
    return account


def _write_new(path: Path, budget: int) -> None:
    """The file appears whole or, after a crash, not at all."""
    new = _beside(path, ".new")
    try:
        # Left by a crash, or of a ledger that was deleted: SQLite would replay its log into the new one.
        for stale in (new, *(_beside(path, suffix) for suffix in ("-wal", "-shm", "-journal"))):
            stale.unlink(missing_ok=True)
        with closing(sqlite3.connect(new, isolation_level=None)) as db:
            db.execute("PRAGMA journal_mode = MEMORY")
            db.execute("BEGIN")
            for statement in _SCHEMA:
                db.execute(statement)
            db.execute(_INSERT, (1, "budget", None, None, budget, None))
            db.execute("COMMIT")
        new.rename(path)  # made durable with the first reservation: SQLite syncs the folder of a new -wal
    except (OSError, sqlite3.Error) as error:
        raise LedgerError(f"{path}: cannot be written: {error}") from None


class _Lock:
    """Held by one writer until released or until its process is gone, however it went.

    A POSIX lock, because a forked child does not inherit it: with flock, a worker that outlives a
    killed run would keep the ledger locked. But it knows processes, not files opened: a second
    opening by this process would succeed, and closing it would free the first. Hence `_HELD`.
    It is beside the database, since SQLite keeps locks of the same kind in there.
    """

    def __init__(self, path: Path) -> None:
        self._name = os.path.realpath(_beside(path, ".lock"))
        if self._name in _HELD:
            raise LedgerError(f"{path}: in use by this process already")
        try:
            self._file = open(self._name, "ab")  # noqa: SIM115
        except OSError as error:
            raise LedgerError(f"{path}: cannot be locked: {error.strerror}") from None
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            taken = isinstance(error, BlockingIOError)
            problem = "in use by another process" if taken else f"cannot be locked: {error.strerror}"
            raise LedgerError(f"{path}: {problem}") from None
        _HELD.add(self._name)

    def release(self) -> None:
        if not self._file.closed:
            _HELD.discard(self._name)
            self._file.close()


_HELD: set[str] = set()


def _beside(path: Path, suffix: str) -> Path:
    real = Path(os.path.realpath(path))
    return real.with_name(real.name + suffix)


def _text(query: str) -> str:
    try:
        query.encode()
    except (AttributeError, UnicodeEncodeError):
        raise LedgerError(f"a query is named by a text, not by {query!r:.80}") from None
    return query


def _count(value: int, what: str, *, least: int) -> int:
    """A plain integer, from NumPy's too."""
    try:
        number = least - 1 if isinstance(value, bool) else index(value)
    except TypeError:
        number = least - 1
    if not least <= number <= _MOST:
        shown = f"{value!r:.80}" if abs(number) <= _MOST else "so long a one"  # Python refuses to print those
        raise LedgerError(f"{what} is a whole number of tokens from {least} to {_MOST}, not {shown}")
    return number
