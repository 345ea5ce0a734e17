"""Finds damage of a journal; says what is still valid, and what is charged for the rest.

`shadowprice.accounts.sqlite` says which damage is noticed.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from shadowprice.accounts.journal import INSERT, NO_DIGEST, SCHEMA, Changed, Entry, Row, first_balances, read_rows
from shadowprice.accounts.lock import beside
from shadowprice.accounts.mark import Mark, MarkFile, Point
from shadowprice.errors import LedgerError

UNREADABLE = (sqlite3.Error, UnicodeDecodeError)  # the latter where damage has reached SQLite's own message
LOGS = ("-wal", "-shm", "-journal")


class Damaged(LedgerError):
    """The journal is not whole, but its beginning is valid."""


class Watch:
    """Compares the rows of a journal with its mark: is the entry that the mark names among them?"""

    def __init__(self, mark: Mark | None) -> None:
        self.required = mark.required if mark else None
        self.last = 0
        self.digest = b""
        self._at_required: bytes | None = None

    def see(self, row: Row) -> None:
        self.last, self.digest = row.entry.id, row.digest
        if self.required is not None and self.last == self.required.id:
            self._at_required = row.digest

    @property
    def contradicts(self) -> bool:
        """Whether mark and journal contradict each other, so that the mark does not say what is lost."""
        return self.required is None or (self.last >= self.required.id and self._at_required != self.required.digest)

    def problem(self) -> str | None:
        """What is wrong with the end of the journal; None if nothing is."""
        if self.required is None:
            return "its mark is missing or damaged, so it is unknown whether entries are lost"
        if self.last < self.required.id:
            return (
                f"the journal ends at entry {self.last:,}, but {self.required.id:,} had been confirmed: "
                f"the last {self.required.id - self.last:,} entries are lost"
            )
        return f"entry {self.required.id:,} is not the one that had been confirmed" if self.contradicts else None


class Journal:
    """The valid part of the journal in a database."""

    def __init__(self, db: sqlite3.Connection, mark: Mark | None) -> None:
        """Raises LedgerError, or an error of UNREADABLE, if not even the budget is valid.

        Also if its digests are right and its entries are not: that is not damage.
        """
        rows, watch = read_rows(db), Watch(mark)
        first = next(rows, None)
        self.balances = balances = first_balances(first.entry if first else None)
        damage = None
        try:
            (checked,) = db.execute("PRAGMA quick_check(1)").fetchone()
            if checked != "ok":
                damage = one_line(checked)
            if first is not None:
                watch.see(first)
            for row in rows:
                balances.add(row.entry)
                watch.see(row)
        except (*UNREADABLE, Changed) as error:
            damage = damage or one_line(error)
        except (LedgerError, TypeError) as error:  # not damage: the digest is right
            raise LedgerError(damage or one_line(error)) from None
        self.reached = Point(watch.last, watch.digest, balances.committed)
        self.problem = watch.problem() if damage is None else f"not a valid ledger: {damage}"
        all_is_said = mark is not None and mark.whole and not watch.contradicts
        if watch.required is None or not all_is_said or (damage is not None and watch.required.id <= watch.last):
            self.loss = max(0, balances.budget - balances.committed)  # the mark cannot say: all that is left
        else:
            self.loss = max(0, watch.required.committed - balances.committed)

    def refusal(self) -> str:
        orphans = self.balances.reserved
        return (
            f"{self.problem} (--accept-loss keeps the first {self.reached.id:,} entries, and charges {self.loss:,} "
            f"units for the others" + (f" and {orphans:,} for open reservations)" if orphans else ")")
        )


def salvage(path: Path, db: sqlite3.Connection, journal: Journal) -> None:
    """Replaces a damaged ledger by its valid part, and charges what may have been used.

    The damaged files are kept beside it. If this is interrupted, the ledger is refused as before.
    """
    new, balances = beside(path, ".new"), journal.balances
    lost = [Entry(0, "orphan", name, number, grant) for number, (name, grant) in balances.open.items()]
    with closing(new_database(new)) as copy:
        copy.execute("BEGIN")
        before = NO_DIGEST
        for entry, line, digest in read_rows(db):
            copy.execute(INSERT, entry.row(before, line)[1])
            before = digest
            if entry.id == journal.reached.id:
                break
        for number, entry in enumerate([*lost, Entry(0, "loss", None, None, journal.loss)], start=balances.last + 1):
            before, values = entry._replace(id=number).row(before, None)
            copy.execute(INSERT, values)
            balances.add(entry._replace(id=number))
        copy.execute("COMMIT")
    kept_as = _free_name(beside(path, ".damaged"))
    for suffix in ("", *LOGS):
        if os.path.lexists(f"{path}{suffix}"):
            os.link(f"{path}{suffix}", f"{kept_as}{suffix}")
    for suffix in LOGS:  # SQLite would replay them into the new file
        beside(path, suffix).unlink(missing_ok=True)
    new.replace(path)
    MarkFile.create(path, Point(balances.last, before, balances.committed))


def new_database(path: Path) -> sqlite3.Connection:
    """A database with an empty journal, in place of what a crash left there; it is in one file once it is closed."""
    for stale in (path, *(beside(path, suffix) for suffix in LOGS)):
        stale.unlink(missing_ok=True)
    db = sqlite3.connect(path, isolation_level=None)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        for statement in SCHEMA:
            db.execute(statement)
    except BaseException:
        db.close()
        raise
    return db


def one_line(error: object) -> str:
    return " ".join(str(error).split())


def _free_name(path: Path) -> Path:
    names = (path if n == 1 else path.with_name(f"{path.name}-{n}") for n in range(1, 1000))
    return next(name for name in names if not os.path.lexists(name))
