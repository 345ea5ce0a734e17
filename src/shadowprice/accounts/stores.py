"""Where the journal of a ledger is kept: in memory, or in an SQLite file that has one writer."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from time import monotonic
from typing import Protocol, TypeAlias

from shadowprice.accounts.damage import LOGS, UNREADABLE, Damaged, Journal, new_database, one_line, salvage
from shadowprice.accounts.journal import (
    INSERT,
    NO_DIGEST,
    Entry,
    OldJournal,
    Value,
    check_tables,
    read_entries,
    read_line,
)
from shadowprice.accounts.lock import Lock, beside
from shadowprice.accounts.mark import MarkFile, Point, read_mark
from shadowprice.errors import LedgerError
from shadowprice.formats.files import sync_folder, write_problem

# A write that waits for the disk (synchronous=FULL) took 0.2 to 3 ms on a virtual disk, one that does not 0.03 ms,
# 0.05 ms with a result of 2 kB. A reservation must wait: if it were lost, what was used since would be forgotten.
# So must a settlement above its grant. If a power cut loses any other settlement, the ledger errs on the safe side;
# so those wait only if nothing has waited for this many seconds.
_PATIENCE = 1.0
_PAGES = 250  # of 4 kB in the log before they are moved into the database: as many as damage to the log can lose

Row: TypeAlias = tuple[Entry, bytes | None]  # an entry and its result, chunk or note


class Store(Protocol):
    @property
    def path(self) -> Path | None: ...

    def append(self, rows: Sequence[Row], *, wait: bool) -> None:
        """Adds all rows or none; `wait`: they survive a power cut when this returns."""

    def confirm(self, committed: int) -> None:
        """Marks the rows as written, before anyone relies on them; `committed` is all units charged or reserved."""

    def wait(self) -> None:
        """Everything that was added before survives a power cut when this returns."""

    def entries(self) -> Iterator[Entry]: ...

    def lines(self, *kinds: str) -> Iterator[tuple[int, str, bytes]]:
        """Number, request and line of the entries of these kinds that have one."""

    def line(self, number: int) -> bytes:
        """The line of an entry that has one."""

    def close(self) -> None: ...


class MemoryStore:
    """A journal in a list."""

    path = None

    def __init__(self, budget: int) -> None:
        self._rows: list[Row] = [(Entry(1, "budget", None, None, budget), None)]

    def append(self, rows: Sequence[Row], *, wait: bool) -> None:
        self._rows += rows

    def confirm(self, committed: int) -> None:
        pass

    def wait(self) -> None:
        """Nothing to wait for."""

    def entries(self) -> Iterator[Entry]:
        return (entry for entry, _ in self._rows)

    def lines(self, *kinds: str) -> Iterator[tuple[int, str, bytes]]:
        for entry, line in self._rows:
            if entry.kind in kinds and line is not None and entry.request is not None:
                yield entry.id, entry.request, line

    def line(self, number: int) -> bytes:
        return self._rows[number - 1][1] or b""

    def close(self) -> None:
        self._rows = []

    def __str__(self) -> str:
        return "ledger in memory"


class FileStore:
    """A journal in an SQLite file, locked; `balances` are what it had added up to when it was opened."""

    @classmethod
    def create(cls, path: Path, budget: int) -> None:
        """Writes the file, which must not exist."""
        lock = Lock(path)
        try:
            if os.path.lexists(path):
                raise LedgerError(f"{path}: exists (resume that run, or choose another path)")
            _write_new(path, budget)
        finally:
            lock.release()

    def __init__(self, path: Path, *, accept_loss: bool = False) -> None:
        if not os.path.isfile(path):
            raise LedgerError(f"{path}: no such ledger ({_advice(path)})")
        self.path = path
        self._waiting: bool | None = None  # for the disk; None: not decided yet
        self._waited = 0.0
        with ExitStack() as resources:
            resources.callback(Lock(path).release)
            try:
                self._db, journal = _open(path, accept_loss=accept_loss)
                resources.callback(self._db.close)
                mark = read_mark(path)
                assert mark is not None  # it was read a moment ago
                self._mark = MarkFile(path, mark, journal.reached)
                self._db.execute("PRAGMA journal_mode = WAL")
                self._db.execute(f"PRAGMA wal_autocheckpoint = {_PAGES}")
            except (OldJournal, Damaged) as error:
                raise LedgerError(f"{path}: {error}") from None
            except (OSError, sqlite3.OperationalError) as error:
                raise LedgerError(f"{path}: cannot be opened: {write_problem(path, error)}") from None
            except (*UNREADABLE, LedgerError) as error:
                raise LedgerError(f"{path}: not a valid ledger: {one_line(error)} ({_advice(path)})") from None
            resources.callback(self._close_mark)
            self.balances, self._last, self._digest = journal.balances, journal.reached.id, journal.reached.digest
            self._resources = resources.pop_all()

    def append(self, rows: Sequence[Row], *, wait: bool) -> None:
        try:
            # One wait covers everything written before it, and what a power cut loses is always the latest, so that
            # no reservation can outlive the settlement whose units it was given.
            wait = wait or monotonic() - self._waited > _PATIENCE
            if wait != self._waiting:
                self._db.execute(f"PRAGMA synchronous = {'FULL' if wait else 'NORMAL'}")
                self._waiting = wait
            values = self._chained(rows)
            if len(rows) == 1:
                self._db.execute(INSERT, values[0])
            else:
                self._db.execute("BEGIN IMMEDIATE")
                self._db.executemany(INSERT, values)
                self._db.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._unwritable(error) from None
        if wait:
            self._waited = monotonic()

    def _chained(self, rows: Sequence[Row]) -> list[tuple[Value, ...]]:
        digest, chained = self._digest, []
        for entry, line in rows:
            digest, values = entry.row(digest, line)
            chained.append(values)
        self._last, self._digest = rows[-1][0].id, digest
        return chained

    def confirm(self, committed: int) -> None:
        try:
            self._mark.move(Point(self._last, self._digest, committed), durable=bool(self._waiting))
        except OSError as error:
            raise self._unwritable(error) from None

    def _unwritable(self, error: Exception) -> LedgerError:
        return LedgerError(f"{self}: cannot be written: {write_problem(self.path, error)} (fix that and reopen it)")

    def _close_mark(self) -> None:
        """Before the database is closed."""
        try:
            busy, logged, moved = self._db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except sqlite3.Error:
            busy, logged, moved = 1, 0, 0
        self._mark.close(durable=not busy and logged == moved)

    def wait(self) -> None:
        try:
            with open(beside(self.path, "-wal"), "rb") as log:  # a checkpoint would wait for readers
                os.fsync(log.fileno())
        except FileNotFoundError:
            pass  # nothing was added
        except OSError as error:
            raise self._unwritable(error) from None

    def entries(self) -> Iterator[Entry]:
        try:
            yield from read_entries(self._db)
        except UNREADABLE as error:
            raise LedgerError(f"{self}: cannot be read: {one_line(error)}") from None

    def lines(self, *kinds: str) -> Iterator[tuple[int, str, bytes]]:
        places = ", ".join("?" * len(kinds))
        sql = f"SELECT id, request, result FROM journal WHERE result IS NOT NULL AND kind IN ({places}) ORDER BY id"
        try:
            yield from self._db.execute(sql, kinds)
        except UNREADABLE as error:
            raise LedgerError(f"{self}: cannot be read: {one_line(error)}") from None

    def line(self, number: int) -> bytes:
        try:
            return read_line(self._db, number)
        except UNREADABLE as error:
            raise LedgerError(f"{self}: cannot be read: {one_line(error)}") from None

    def close(self) -> None:
        self._resources.close()

    def __str__(self) -> str:
        return str(self.path)


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    """Never creates the file. The ledger itself checks the thread, because it can be taken over by another."""
    address = f"{path.resolve().as_uri()}?mode={mode}"
    return sqlite3.connect(address, uri=True, isolation_level=None, check_same_thread=False)


def _open(path: Path, *, accept_loss: bool) -> tuple[sqlite3.Connection, Journal]:
    """The database and its journal, if that is whole or its loss is accepted."""
    mark = read_mark(path)
    with closing(_connect(path, "ro")) as guard, ExitStack() as stack:
        # When its last connection is closed, SQLite cleans up. This one stays open, so that damage is left as it is.
        guard.execute("SELECT count(*) FROM sqlite_master").fetchone()
        db = stack.enter_context(closing(_connect(path, "rw")))
        check_tables(db)
        journal = Journal(db, mark)
        if journal.problem is None:
            stack.pop_all()
            return db, journal
        if not accept_loss:
            raise Damaged(journal.refusal())
        salvage(path, db, journal)
    return _open(path, accept_loss=False)


def _advice(path: Path) -> str:
    """What to do about a ledger that cannot be continued; its mark may still know what is left."""
    advice, mark = "start a new run with what is left of the budget", read_mark(path)
    return f"{advice}: by its mark, {mark.written.committed:,} units were spent or reserved" if mark else advice


def _write_new(path: Path, budget: int) -> None:
    """The file appears whole or, after a crash, not at all."""
    new, entry = beside(path, ".new"), Entry(1, "budget", None, None, budget)
    digest, values = entry.row(NO_DIGEST, None)
    try:
        # Left by a ledger that was deleted: SQLite would replay its log into the new one.
        for suffix in LOGS:
            beside(path, suffix).unlink(missing_ok=True)
        with closing(new_database(new)) as db:
            db.execute(INSERT, values)
        MarkFile.create(path, Point(1, digest, 0))
        new.rename(path)
        sync_folder(path)
    except (OSError, sqlite3.Error) as error:
        raise LedgerError(f"{path}: cannot be written: {write_problem(path, error)}") from None
