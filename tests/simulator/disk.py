"""A virtual disk, and one that is real: what survives a killed process, and what survives a power cut."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

from shadowprice.accounts.journal import Balances, Entry, read_rows
from shadowprice.accounts.sqlite import Ledger
from shadowprice.accounts.stores import MemoryStore, Row, Store
from shadowprice.errors import LedgerError

from .audit import Audit
from .process import Process


class Platter:
    """The rows that have reached the system, and how many of them a power cut cannot take.

    Transactions are whole, and a power cut loses the latest of them, never one before another that survives.
    """

    def __init__(self, budget: int) -> None:
        self._first = MemoryStore(budget)
        self.rows: list[Row] = self._first._rows
        self.ends = [1]  # of transactions
        self.durable = 1

    def lose_power(self, rng: random.Random) -> None:
        left = rng.choice([end for end in self.ends if end >= self.durable])
        self.ends = [end for end in self.ends if end <= left]
        self.rows = self.rows[:left]
        self.durable = left

    def reopen(self, process: Process, audit: Audit, error_rate: float) -> Ledger:
        """As `FileStore` and `Ledger.reopen` do: all entries are checked and added up, and what was lost is charged."""
        (first, _), *others = self.rows
        balances = Balances(first.units)
        for entry, _ in others:
            balances.add(entry)
        ledger = Ledger(Watched(_Drive(self), process, audit, error_rate), balances)
        ledger.charge_lost()
        return ledger


class _Drive(MemoryStore):
    """The store of one process on a platter."""

    def __init__(self, platter: Platter) -> None:
        self._platter = platter
        self._rows = platter.rows

    def append(self, rows: Sequence[Row], *, wait: bool) -> None:
        self._platter.rows += rows
        self._platter.ends.append(len(self._platter.rows))
        if wait:
            self.wait()

    def wait(self) -> None:
        self._platter.durable = len(self._platter.rows)


class Watched:
    """A store whose writes are audited, and may fail or be the last thing that a process does."""

    def __init__(
        self,
        inner: Store,
        process: Process,
        audit: Audit,
        error_rate: float,
        on_wait: Callable[[], None] = lambda: None,
    ) -> None:
        self._inner, self._process, self._audit, self._error_rate = inner, process, audit, error_rate
        self._on_wait = on_wait

    @property
    def path(self) -> Path | None:
        return self._inner.path

    def append(self, rows: Sequence[Row], *, wait: bool) -> None:
        self._process.step()
        fails = self._process.rng.random() < self._error_rate
        if fails and self._process.rng.random() < 0.5:
            raise LedgerError("the disk is full (virtually)")
        self._inner.append(rows, wait=wait)
        waited = (wait or getattr(self._inner, "_waiting", False)) and not fails  # a FileStore may wait unasked
        if waited:
            self._on_wait()
        self._audit.written(rows, durable=waited)
        if fails:
            raise LedgerError("the disk failed after it had written (virtually)")
        self._process.step()

    def confirm(self, committed: int) -> None:
        self._process.step()
        self._inner.confirm(committed)

    def wait(self) -> None:
        self._process.step()
        self._inner.wait()
        self._on_wait()
        self._audit.waited()

    def entries(self) -> Iterator[Entry]:
        return self._inner.entries()

    def lines(self, *kinds: str) -> Iterator[tuple[int, str, bytes]]:
        return self._inner.lines(*kinds)

    def line(self, number: int) -> bytes:
        return self._inner.line(number)

    def close(self) -> None:
        if self._process.alive:  # a killed process closes nothing
            self._inner.close()

    def __str__(self) -> str:
        return str(self._inner)


class Folder:
    """A folder on a real disk. A crash leaves a copy of its files as they are, so nothing is closed properly.

    A power cut also loses any number of bytes of the log that were written since the last wait for the disk.
    """

    def __init__(self, root: Path) -> None:
        self._root, self._copies = root, 0
        self.path = root / "run"
        self._durable = 0
        self._starts = 0  # of the machine

    def boot(self) -> bytes:
        """Which start of the machine this is."""
        return b"%036d" % self._starts

    @property
    def ledger(self) -> Path:
        return self.path / "ledger.sqlite"

    @property
    def _log(self) -> Path:
        return self.path / "ledger.sqlite-wal"

    def waited(self) -> None:
        self._durable = self._log.stat().st_size if self._log.exists() else 0

    def crash(self, rng: random.Random, *, power: bool) -> None:
        self._copies += 1
        copy = self._root / f"run after {self._copies}"
        if self.path.exists():
            shutil.copytree(self.path, copy, ignore=shutil.ignore_patterns("*-shm", "*.lock"))
        self.path = copy
        self._starts += power
        if power and self._log.exists():
            size = self._log.stat().st_size
            os.truncate(self._log, rng.randint(min(self._durable, size), size))
        self.waited()

    def rows(self) -> list[tuple[Entry, bytes | None]]:
        """The journal, read from a copy: whoever opens it repairs it."""
        copy = self._root / "to read"
        shutil.copytree(self.path, copy)
        try:
            with closing(sqlite3.connect(copy / "ledger.sqlite")) as db:
                return [(row.entry, row.line) for row in read_rows(db)]
        finally:
            shutil.rmtree(copy)
