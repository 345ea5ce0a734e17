"""Where the journal of a ledger is kept: in memory, or in an SQLite file that has one writer."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from time import monotonic
from typing import Protocol, TypeAlias

from shadowprice.accounts.journal import INSERT, SCHEMA, Entry, OldJournal, read_balances, read_entries
from shadowprice.accounts.lock import Lock, beside
from shadowprice.errors import LedgerError

# A write that waits for the disk (synchronous=FULL) took 0.2 to 3 ms on a virtual disk, one that does not 0.03 ms,
# 0.05 ms with a result of 2 kB. A reservation must wait: if it were lost, what was used since would be forgotten.
# So must a settlement above its grant. If a power cut loses any other settlement, the ledger errs on the safe side;
# so those wait only if nothing has waited for this many seconds.
_PATIENCE = 1.0
_UNREADABLE = (sqlite3.Error, UnicodeDecodeError)  # the latter where damage has reached SQLite's own message

Row: TypeAlias = tuple[Entry, bytes | None]  # an entry and its result, chunk or note


class Store(Protocol):
    @property
    def path(self) -> Path | None: ...

    def append(self, rows: Sequence[Row], *, wait: bool) -> None:
        """Adds all rows or none; `wait`: they survive a power cut when this returns."""

    def wait(self) -> None:
        """Everything that was added before survives a power cut when this returns."""

    def entries(self) -> Iterator[Entry]: ...

    def lines(self, *kinds: str) -> Iterator[tuple[int, str, bytes]]:
        """Number, request and line of the entries of these kinds that have one."""

    def close(self) -> None: ...


class MemoryStore:
    """A journal in a list."""

    path = None

    def __init__(self, budget: int) -> None:
        self._rows: list[Row] = [(Entry(1, "budget", None, None, budget), None)]

    def append(self, rows: Sequence[Row], *, wait: bool) -> None:
        self._rows += rows

    def wait(self) -> None:
        """Nothing to wait for."""

    def entries(self) -> Iterator[Entry]:
        return (entry for entry, _ in self._rows)

    def lines(self, *kinds: str) -> Iterator[tuple[int, str, bytes]]:
        for entry, line in self._rows:
            if entry.kind in kinds and line is not None and entry.request is not None:
                yield entry.id, entry.request, line

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

    def __init__(self, path: Path) -> None:
        if not os.path.isfile(path):
            raise LedgerError(f"{path}: no such ledger")
        self.path = path
        self._waiting: bool | None = None  # for the disk; None: not decided yet
        self._waited = 0.0
        with ExitStack() as resources:
            resources.callback(Lock(path).release)
            try:
                # mode=rw: a file that vanished a moment ago is an error, not a new and empty database
                # Which thread may use it is the ledger's to check: it can be handed to another.
                self._db = sqlite3.connect(
                    f"{path.resolve().as_uri()}?mode=rw", uri=True, isolation_level=None, check_same_thread=False
                )
                resources.callback(self._db.close)
                self.balances = read_balances(self._db)
                self._db.execute("PRAGMA journal_mode = WAL")
            except OldJournal as error:
                raise LedgerError(f"{path}: {error}") from None
            except sqlite3.OperationalError as error:
                raise LedgerError(f"{path}: cannot be opened: {error}") from None
            except (*_UNREADABLE, LedgerError) as error:
                raise LedgerError(f"{path}: not a valid ledger: {error}") from None
            self._resources = resources.pop_all()

    def append(self, rows: Sequence[Row], *, wait: bool) -> None:
        try:
            # One wait covers everything written before it, and what a power cut loses is always the latest, so that
            # no reservation can outlive the settlement whose units it was given.
            wait = wait or monotonic() - self._waited > _PATIENCE
            if wait != self._waiting:
                self._db.execute(f"PRAGMA synchronous = {'FULL' if wait else 'NORMAL'}")
                self._waiting = wait
            if len(rows) == 1:
                entry, line = rows[0]
                self._db.execute(INSERT, entry.row(line))
            else:
                self._db.execute("BEGIN IMMEDIATE")
                self._db.executemany(INSERT, (entry.row(line) for entry, line in rows))
                self._db.execute("COMMIT")
        except sqlite3.Error as error:
            raise LedgerError(f"{self}: cannot be written: {error} (fix that and reopen it)") from None
        if wait:
            self._waited = monotonic()

    def wait(self) -> None:
        try:
            with open(beside(self.path, "-wal"), "rb") as log:  # a checkpoint would wait for readers
                os.fsync(log.fileno())
        except FileNotFoundError:
            pass  # nothing was added
        except OSError as error:
            raise LedgerError(f"{self}: cannot be written: {error.strerror} (fix that and reopen it)") from None

    def entries(self) -> Iterator[Entry]:
        try:
            yield from read_entries(self._db)
        except _UNREADABLE as error:
            raise LedgerError(f"{self}: cannot be read: {error}") from None

    def lines(self, *kinds: str) -> Iterator[tuple[int, str, bytes]]:
        places = ", ".join("?" * len(kinds))
        sql = f"SELECT id, request, result FROM journal WHERE result IS NOT NULL AND kind IN ({places}) ORDER BY id"
        try:
            yield from self._db.execute(sql, kinds)
        except _UNREADABLE as error:
            raise LedgerError(f"{self}: cannot be read: {error}") from None

    def close(self) -> None:
        self._resources.close()

    def __str__(self) -> str:
        return str(self.path)


def _write_new(path: Path, budget: int) -> None:
    """The file appears whole or, after a crash, not at all."""
    new = beside(path, ".new")
    try:
        # Left by a crash, or by a ledger that was deleted: SQLite would replay its log into the new one.
        for stale in (new, *(beside(path, suffix) for suffix in ("-wal", "-shm", "-journal"))):
            stale.unlink(missing_ok=True)
        with closing(sqlite3.connect(new, isolation_level=None)) as db:
            db.execute("PRAGMA journal_mode = MEMORY")
            db.execute("BEGIN")
            for statement in SCHEMA:
                db.execute(statement)
            db.execute(INSERT, Entry(1, "budget", None, None, budget).row(None))
            db.execute("COMMIT")
        new.rename(path)  # made durable with the first reservation: SQLite syncs the folder of a new -wal
    except (OSError, sqlite3.Error) as error:
        raise LedgerError(f"{path}: cannot be written: {error}") from None
