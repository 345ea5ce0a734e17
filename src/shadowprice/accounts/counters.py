"""Numbers that survive the end of a process: a memory-mapped file of 64-bit cells.

Writing a cell costs as much as writing to memory. The page cache keeps it when the process is killed. A power cut may
lose it, so cells must not be trusted after a restart of the machine.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from shadowprice.accounts.lock import Lock, beside
from shadowprice.errors import LedgerError

CELLS = 2**16  # the file is sparse: cells that were never written take no space


class Counters:
    """The cells of one process, all 0 at first. Locked by that process until it closes them or ends."""

    def __init__(self, path: Path, *, create: bool) -> None:
        self.path = path
        self._lock = Lock(path)
        try:
            flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else 0)
            file = os.open(path, flags, 0o600)
            try:
                if create:
                    os.ftruncate(file, 8 * CELLS)
                self._map = mmap.mmap(file, 8 * CELLS)
            finally:
                os.close(file)
        except (OSError, ValueError) as error:
            self._lock.release()
            raise LedgerError(f"{path}: cannot be used: {error}") from None
        # A cell is written in one step: a process that is killed meanwhile leaves the old or the new number.
        self._cells = memoryview(self._map).cast("q")

    def __getitem__(self, cell: int) -> int:
        return self._cells[cell]

    def __setitem__(self, cell: int, value: int) -> None:
        self._cells[cell] = value

    def close(self) -> None:
        """Lets other processes read the file."""
        self._cells.release()
        self._map.close()
        self._lock.release()

    def remove(self) -> None:
        """Deletes the file; its numbers must be recorded elsewhere by then."""
        self.path.unlink(missing_ok=True)
        beside(self.path, ".lock").unlink(missing_ok=True)
        self.close()
