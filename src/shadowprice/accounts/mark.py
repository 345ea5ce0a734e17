"""The mark beside a ledger: how far its journal had come, kept outside the database.

SQLite takes a log that was cut or damaged for one that a crash ended early, and opens the shorter journal without a
word. The mark tells the two apart. It has two slots that are written in turn, so that one is whole at every moment; a
write is one `pwrite`, which a killed process cannot lose.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from shadowprice.accounts.lock import beside

_SLOT = 512
_NAME = "shadowprice-mark-1"


class Point(NamedTuple):
    """An entry of the journal, and what was reserved or charged by then."""

    id: int
    digest: bytes
    committed: int


class Mark(NamedTuple):
    """`written` survives the end of the process, `durable` a power cut too."""

    number: int
    boot: str  # of the machine
    durable: Point
    written: Point

    @property
    def owed(self) -> Point:
        """The point that the journal must have reached; after a restart of the machine, the durable one."""
        return self.written if self.boot == boot() != "unknown" else self.durable


def read_mark(path: Path) -> Mark | None:
    """The mark of the ledger at `path`; None if there is none, or none that is whole."""
    try:
        content = beside(path, ".mark").read_bytes()
    except OSError:
        return None
    slots = [_parsed(content[:_SLOT]), _parsed(content[_SLOT : 2 * _SLOT])]
    return max((mark for mark in slots if mark), key=lambda mark: mark.number, default=None)


class MarkFile:
    """The mark of a ledger, to be moved on."""

    @staticmethod
    def create(path: Path, point: Point) -> None:
        """Replaces the mark of the ledger at `path`, durably."""
        place, new = beside(path, ".mark"), beside(path, ".mark.new")
        with open(new, "wb") as file:
            file.write(_line(Mark(1, boot(), point, point)) + _line(Mark(2, boot(), point, point)))
            file.flush()
            os.fsync(file.fileno())
        new.rename(place)

    def __init__(self, path: Path, mark: Mark, reached: Point) -> None:
        self._number, self._durable, self._reached = mark.number, mark.durable, reached
        self._file = os.open(beside(path, ".mark"), os.O_RDWR | os.O_CLOEXEC)

    def move(self, reached: Point, *, durable: bool) -> None:
        self._reached = reached
        if durable:
            self._durable = reached
        self._number += 1
        line = _line(Mark(self._number, boot(), self._durable, reached))
        os.pwrite(self._file, line, self._number % 2 * _SLOT)

    def close(self, *, durable: bool) -> None:
        with suppress(OSError):  # the mark is as it was before: good enough
            self.move(self._reached, durable=durable)
            os.fsync(self._file)
        os.close(self._file)


def _line(mark: Mark) -> bytes:
    number, boot, durable, (id, digest, committed) = mark
    fields = f"{_NAME} {number} {boot} {durable[0]} {durable[1].hex()} {durable[2]} {id} {digest.hex()} {committed}"
    return f"{fields} {crc32(fields.encode()):08x}".ljust(_SLOT - 1).encode() + b"\n"


def _parsed(slot: bytes) -> Mark | None:
    try:
        fields, checksum = slot.decode("ascii").rstrip().rsplit(" ", 1)
        name, number, boot, id, digest, committed, last, latest, total = fields.split(" ")
        if name != _NAME or int(checksum, 16) != crc32(fields.encode()):
            return None
        durable = Point(int(id), bytes.fromhex(digest), int(committed))
        return Mark(int(number), boot, durable, Point(int(last), bytes.fromhex(latest), int(total)))
    except ValueError:
        return None


@cache
def boot() -> str:
    """Which start of the machine this is."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace(" ", "") or "unknown"
    except (OSError, UnicodeDecodeError):
        return "unknown"
