"""The lock that gives a file one writer."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from shadowprice.errors import LedgerError


class Lock:
    """A lock that one writer holds until it releases it or its process ends, even by kill -9.

    A POSIX lock, because a forked child does not inherit it: with flock, a worker that outlives a killed run would
    keep the ledger locked. But a POSIX lock belongs to a process, not to an open file: a second opening by the same
    process would succeed, and closing it would free the first. Hence `_HELD`. The lock is a file of its own, since
    SQLite has locks of the same kind on the database.
    """

    def __init__(self, path: Path) -> None:
        self._name = os.path.realpath(beside(path, ".lock"))
        if self._name in _HELD:
            raise LedgerError(f"{path}: in use by this process")
        try:
            descriptor = os.open(self._name, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
            self._file = open(descriptor, "ab")  # noqa: SIM115
        except OSError as error:
            raise LedgerError(f"{path}: cannot be locked: {error.strerror}") from None
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            in_use = isinstance(error, BlockingIOError)
            problem = "in use by another process" if in_use else f"cannot be locked: {error.strerror}"
            raise LedgerError(f"{path}: {problem}") from None
        _HELD.add(self._name)

    def release(self) -> None:
        if not self._file.closed:
            _HELD.discard(self._name)
            self._file.close()


_HELD: set[str] = set()


def beside(path: Path, suffix: str) -> Path:
    """The file in the same folder whose name has this suffix, links resolved."""
    real = Path(os.path.realpath(path))
    return real.with_name(real.name + suffix)
