"""Ledgers for tests, and what is done to their files."""

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing, contextmanager
from pathlib import Path
from secrets import token_hex

import pytest

from shadowprice.accounts.journal import NO_DIGEST, _digest
from shadowprice.accounts.mark import MarkFile, Point
from shadowprice.accounts.sqlite import Ledger
from shadowprice.errors import LedgerError

MOST = 2**63 - 1
# A ledger spends its time waiting for the disk, so most tests keep theirs in memory.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@pytest.fixture
def path():
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        yield Path(folder, "ledger.db")


def balances(ledger) -> tuple[int, int, int, int]:
    assert ledger.available + ledger.reserved + ledger.spent == ledger.budget
    assert min(ledger.available, ledger.reserved, ledger.spent, ledger.overspent) >= 0
    return ledger.available, ledger.reserved, ledger.spent, ledger.overspent


def state(ledger):
    lines = list(ledger.results()), list(ledger.chunks()), list(ledger.notes())
    return balances(ledger), ledger.usage, (ledger.beyond_grants, ledger.exposed), list(ledger.entries()), *lines


def crash(path, folder) -> Path:
    """What a killed process leaves, in another folder: the files as they are now."""
    folder.mkdir(exist_ok=True)
    for suffix in ("", "-wal", ".mark"):
        if os.path.exists(f"{path}{suffix}"):
            shutil.copy(f"{path}{suffix}", folder)
    return folder / path.name


def restart_the_machine(monkeypatch):
    """As far as the mark of a ledger can see."""
    name = token_hex(18).encode()
    monkeypatch.setattr("shadowprice.accounts.mark.boot", lambda: name)


def tamper(path, *statements):
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for statement in statements:
            db.execute(statement)


def forge(path, statement, *, chained):
    """Changes the journal in spite of its checks; `chained`: with digests and a mark that fit."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        triggers = db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        db.execute("PRAGMA ignore_check_constraints = 1")
        for name, _ in triggers:
            db.execute(f"DROP TRIGGER {name}")
        db.execute(statement)
        if chained:
            before = NO_DIGEST
            for *values, _, line in db.execute("SELECT * FROM journal ORDER BY id").fetchall():
                before = _digest(before, tuple(values), line)
                db.execute("UPDATE journal SET digest = ? WHERE id = ?", (before, values[0]))
                MarkFile.create(path, Point(values[0], before, 0))
        for _, sql in triggers:
            db.execute(sql)


def refused(path) -> str:
    """The message with which a file is refused, without its path."""
    with pytest.raises(LedgerError) as caught:
        Ledger.reopen(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message.removeprefix(f"{path}: ")


def start(script: str, *arguments) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


@contextmanager
def interrupted_write(monkeypatch):
    """Ctrl-C inside, right after a row was written."""

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("shadowprice.accounts.journal.Balances.add", interrupted)
        with pytest.raises(KeyboardInterrupt):
            yield
