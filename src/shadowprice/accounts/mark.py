"""The mark beside a ledger: the latest entry of its journal, kept outside the database.

SQLite treats a log that was cut or damaged like one that a crash ended early, and opens the shorter journal without an
error. The mark shows the difference. It has two slots that are written alternately, so one is valid at every moment. A
write is one `pwrite`, which a killed process cannot lose.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from pathlib import Path
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from shadowprice.accounts.lock import beside
from shadowprice.errors import InputError
from shadowprice.formats.files import read_regular

_SLOT = 512  # bytes, most of them unused: a disk writes no less at once
_NAME = b"spmark 1"
_CONTENT = Struct("<8sQ36sQ16s16sQ16s16s")  # then its checksum
_UNKNOWN = b" " * 36


class Point(NamedTuple):
    """An entry of the journal, and the units reserved or charged up to it."""

    id: int
    digest: bytes
    committed: int


class Mark(NamedTuple):
    """`written` survives the end of the process, `durable` a power cut too; `whole`: both slots are valid."""

    number: int
    boot: bytes  # of the machine
    durable: Point
    written: Point
    whole: bool = True

    @property
    def required(self) -> Point:
        """The point that the journal must have reached; after a restart of the machine, the durable one."""
        return self.written if self.boot == boot() != _UNKNOWN else self.durable


def read_mark(path: Path) -> Mark | None:
    """The mark of the ledger at `path`; None if it is missing or invalid."""
    try:
        content = read_regular(beside(path, ".mark"))
    except (OSError, InputError):
        return None
    slots = [_parsed(content[:_SLOT]), _parsed(content[_SLOT : 2 * _SLOT])]
    latest = max((mark for mark in slots if mark), key=lambda mark: mark.number, default=None)
    return latest._replace(whole=None not in slots) if latest else None


class MarkFile:
    """The mark of an open ledger, which moves with every entry."""

    @staticmethod
    def create(path: Path, point: Point) -> None:
        """Replaces the mark of the ledger at `path`, durably."""
        place, new = beside(path, ".mark"), beside(path, ".mark.new")
        with open(new, "wb") as file:
            file.write(b"".join(_packed(number, point, point).ljust(_SLOT, b"\0") for number in (2, 1)))
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
        slot = _packed(self._number, self._durable, reached)
        os.pwrite(self._file, slot, self._number % 2 * _SLOT)

    def close(self, *, durable: bool) -> None:
        with suppress(OSError):  # the mark is as it was before: good enough
            self.move(self._reached, durable=durable)
            os.fsync(self._file)
        os.close(self._file)


def _packed(number: int, durable: Point, written: Point) -> bytes:
    points: list[int | bytes] = []
    for id, digest, committed in (durable, written):
        points += [id, digest, committed.to_bytes(16, "little")]  # sums are not limited to 64 bits
    content = _CONTENT.pack(_NAME, number, boot(), *points)
    return content + crc32(content).to_bytes(4, "little")


def _parsed(slot: bytes) -> Mark | None:
    content, checksum = slot[: _CONTENT.size], slot[_CONTENT.size : _CONTENT.size + 4]
    if len(checksum) < 4 or crc32(content) != int.from_bytes(checksum, "little"):
        return None
    name, number, boot, id, digest, committed, last, latest, total = _CONTENT.unpack(content)
    if name != _NAME:
        return None
    durable = Point(id, digest, int.from_bytes(committed, "little"))
    return Mark(number, boot, durable, Point(last, latest, int.from_bytes(total, "little")))


@cache
def boot() -> bytes:
    """Identifies the current boot of the machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()[:36].ljust(36)
    except OSError:
        return _UNKNOWN
