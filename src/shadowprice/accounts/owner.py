"""The owner of all accounts: the one database from which processes lease blocks of units.

    used    account, slot, units                       what is not available: spent, or leased to a process
    leases  worker, account, slot, cell, units, boot   what of it a process holds; `cell` counts what it has used
    wanted  account, at                                a process needed units that other processes hold
    answers name, digest, worker, answer, at           answers kept for their Idempotency-Key

Available in an account: its limit minus the units of the slots that count. A lease is on the disk before a unit of it
can be spent, so a power cut loses units, and never lends one twice. Nothing expires by time.

The statements are the same for every database; `SqliteOwner` here and `PostgresOwner` in `postgres` differ in how they
run them. All methods may be called from any thread.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from shadowprice.accounts.mark import boot
from shadowprice.errors import LedgerError, Overdrawn

__all__ = ["Lease", "Owner", "Shortage", "SqliteOwner", "Want"]

_KEPT_SLOTS = 200  # of every account, for reports
_WANTED = 2.0  # seconds for which other processes return what they do not use
_KEPT_ANSWERS = 86_400.0  # seconds
TABLES = (
    "CREATE TABLE IF NOT EXISTS used (account TEXT NOT NULL, slot BIGINT NOT NULL, units BIGINT NOT NULL,"
    " PRIMARY KEY (account, slot))",
    "CREATE TABLE IF NOT EXISTS leases (worker TEXT NOT NULL, account TEXT NOT NULL, slot BIGINT NOT NULL,"
    " cell BIGINT NOT NULL, units BIGINT NOT NULL, boot TEXT NOT NULL, PRIMARY KEY (worker, account, slot))",
    "CREATE TABLE IF NOT EXISTS wanted (account TEXT NOT NULL PRIMARY KEY, at DOUBLE PRECISION NOT NULL)",
    "CREATE TABLE IF NOT EXISTS answers (name TEXT NOT NULL PRIMARY KEY, digest TEXT NOT NULL, worker TEXT NOT NULL,"
    " answer TEXT, at DOUBLE PRECISION NOT NULL)",
)


class Want(NamedTuple):
    """A block that a process asks for: at least `need` units, and `like` units if that many are available."""

    account: str
    limit: int
    slot: int
    first: int  # the earliest slot that counts
    need: int
    like: int
    cell: int


class Granted(NamedTuple):
    """A granted block: its `units`, and those that are `free` in the account after it."""

    units: int
    free: int


class Lease(NamedTuple):
    """What a process holds."""

    account: str
    slot: int
    cell: int
    units: int
    boot: str


class Kept(NamedTuple):
    """What is known about an Idempotency-Key: `answer` is None while its first request is in flight."""

    digest: str
    worker: str
    answer: str | None


class Shortage(Overdrawn):
    """An account has too little. `elsewhere`: units that other processes hold, some of which may come back."""

    def __init__(self, account: str, free: int, elsewhere: int) -> None:
        super().__init__(f"account {account!r} has {free} units available")
        self.account, self.free, self.elsewhere = account, free, elsewhere


class Owner(ABC):
    """Made by a subclass, which runs the statements."""

    shared = False  # whether processes of other machines use it, whose files are elsewhere

    @abstractmethod
    @contextmanager
    def transaction(self) -> Iterator[None]:
        """One transaction at a time, of all processes; durable at its end. An error leaves nothing of it."""
        yield

    @abstractmethod
    def run(self, statement: str, *values: Any) -> list[Any]:
        """The rows that a statement returns; `?` stands for a value."""

    @abstractmethod
    def run_many(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        """The same statement for the values of every row, within a transaction."""

    @abstractmethod
    def close(self) -> None: ...

    # --- blocks --------------------------------------------------------------------------------

    def lease(self, worker: str, wants: Sequence[Want]) -> list[Granted]:
        """Leases all blocks or none: raises Shortage if an account has less than is needed."""
        granted = []
        short: tuple[Want, int, int] | None = None
        with self.transaction():
            workers = self.run("SELECT COUNT(DISTINCT worker) FROM leases WHERE worker <> ?", worker)[0][0] + 1
            frees = [want.limit - self.used(want.account, want.first, want.slot) for want in wants]
            for want, free in zip(wants, frees, strict=True):
                if free < want.need:
                    held = "SELECT SUM(units) FROM leases WHERE account = ? AND slot BETWEEN ? AND ? AND worker <> ?"
                    others = int(self.run(held, want.account, want.first, want.slot, worker)[0][0] or 0)
                    short = want, free, others
                    if others:
                        self.run(
                            "INSERT INTO wanted VALUES (?, ?) ON CONFLICT (account) DO UPDATE SET at = excluded.at",
                            want.account,
                            time.time(),
                        )
                    break
            else:
                for want, free in zip(wants, frees, strict=True):
                    # The less is left, the smaller the blocks: what one process holds, another cannot use.
                    units = max(want.need, min(want.like, free // (2 * workers) if workers > 1 else free))
                    self._add(worker, want.account, want.slot, want.cell, units)
                    granted.append(Granted(units, free - units))
        if short:
            raise Shortage(short[0].account, *short[1:])
        return granted

    def force(self, worker: str, account: str, slot: int, cell: int, units: int) -> None:
        """Leases units that were used already, whether they are available or not."""
        with self.transaction():
            self._add(worker, account, slot, cell, units)

    def give_back(self, worker: str, parts: Sequence[tuple[str, int, int, bool]]) -> None:
        """Returns (account, slot, units, last); `last`: the process holds no more of this slot."""
        with self.transaction():
            for account, slot, units, last in parts:
                self._subtract(worker, account, slot, units)
                if last:
                    self.run("DELETE FROM leases WHERE worker = ? AND account = ? AND slot = ?", worker, account, slot)
                    self.run("DELETE FROM used WHERE account = ? AND slot < ?", account, slot - _KEPT_SLOTS)

    def recover(self, worker: str, used: dict[int, int] | None) -> None:
        """Ends the leases of a process that has ended: `used`, by cell, is charged, the rest is available again.

        None: what it used is unknown, and all that it held is charged.
        """
        with self.transaction():
            for lease in self.leases(worker):
                known = used is not None and lease.boot == boot().decode().strip() != ""
                rest = lease.units - min(lease.units, (used or {}).get(lease.cell, 0)) if known else 0
                self._subtract(worker, lease.account, lease.slot, rest)
            self.run("DELETE FROM leases WHERE worker = ?", worker)

    def _add(self, worker: str, account: str, slot: int, cell: int, units: int) -> None:
        self.run(
            "INSERT INTO used VALUES (?, ?, ?) ON CONFLICT (account, slot)"
            " DO UPDATE SET units = used.units + excluded.units",
            *(account, slot, units),
        )
        self.run(
            "INSERT INTO leases VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (worker, account, slot)"
            " DO UPDATE SET units = leases.units + excluded.units",
            *(worker, account, slot, cell, units, boot().decode().strip()),
        )

    def _subtract(self, worker: str, account: str, slot: int, units: int) -> None:
        if units:
            self.run("UPDATE used SET units = units - ? WHERE account = ? AND slot = ?", units, account, slot)
            self.run(
                "UPDATE leases SET units = units - ? WHERE worker = ? AND account = ? AND slot = ?",
                *(units, worker, account, slot),
            )

    def used(self, account: str, first: int, last: int) -> int:
        """Units of these slots that are spent or leased."""
        rows = self.run("SELECT SUM(units) FROM used WHERE account = ? AND slot BETWEEN ? AND ?", account, first, last)
        return int(rows[0][0] or 0)

    def leases(self, worker: str) -> list[Lease]:
        rows = self.run("SELECT account, slot, cell, units, boot FROM leases WHERE worker = ?", worker)
        return [Lease(*row) for row in rows]

    def workers(self) -> list[str]:
        """Processes that hold leases."""
        return [row[0] for row in self.run("SELECT DISTINCT worker FROM leases ORDER BY worker")]

    def wanted(self) -> set[str]:
        """Accounts in which another process needs more units than are left."""
        return {row[0] for row in self.run("SELECT account FROM wanted WHERE at > ?", time.time() - _WANTED)}

    # --- answers that are kept -----------------------------------------------------------------

    def keep(self, name: str, digest: str, worker: str) -> Kept | None:
        """Claims a name for a request, which gets None; every later one gets what is kept."""
        with self.transaction():
            if found := self.kept(name):
                return found
            self.run("DELETE FROM answers WHERE at < ?", time.time() - _KEPT_ANSWERS)
            self.run("INSERT INTO answers VALUES (?, ?, ?, NULL, ?)", name, digest, worker, time.time())
        return None

    def kept(self, name: str) -> Kept | None:
        """What is kept under a name, which is not claimed."""
        rows = self.run("SELECT digest, worker, answer FROM answers WHERE name = ?", name)
        return Kept(*rows[0]) if rows else None

    def answered(self, name: str, answer: str | None) -> None:
        """Stores the answer. None: the request got no answer, and the key can be used again."""
        with self.transaction():
            if answer is None:
                self.run("DELETE FROM answers WHERE name = ?", name)
            else:
                self.run("UPDATE answers SET answer = ?, at = ? WHERE name = ?", answer, time.time(), name)


class SqliteOwner(Owner):
    """All processes of one machine, through one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._guard = threading.RLock()
        with self._errors():
            self._connection = sqlite3.connect(path, timeout=30.0, isolation_level=None, check_same_thread=False)
            # The log is written to the disk at every commit: a lease must survive a power cut.
            for statement in ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL", *TABLES):
                self._connection.execute(statement)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self._guard, self._errors():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def run(self, statement: str, *values: Any) -> list[Any]:
        with self._guard, self._errors():
            return self._connection.execute(statement, values).fetchall()

    def run_many(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        with self._guard, self._errors():
            self._connection.executemany(statement, rows)

    def close(self) -> None:
        with self._guard:
            self._connection.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise LedgerError(f"{self.path}: cannot be used: {error}") from None
