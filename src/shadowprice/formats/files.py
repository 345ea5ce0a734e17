"""Writes files completely or not at all, and identifies them by their hash."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from secrets import token_hex
from typing import IO, TypeAlias

from shadowprice.errors import InputError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_LITTLE = 2**16  # bytes: with less space, SQLite may report a full disk as an input/output error

Target: TypeAlias = "str | os.PathLike[str] | IO[bytes]"


def sha256_of(path: str | os.PathLike[str]) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_regular(path: str | os.PathLike[str]) -> bytes:
    """The content of a regular file. InputError for anything else, such as a pipe, which could block forever."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise InputError("is not a file but a folder, a pipe or a device", path=path, fix="remove it")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)


@contextmanager
def replacing(targets: Sequence[Target]) -> Iterator[list[IO[bytes]]]:
    """Files to write to, which replace `targets` only if no error occurs.

    A target that cannot be replaced (an open stream, a pipe, a device) is written at the end, before the first file is
    replaced. Links are followed, and an existing file keeps its mode. A full disk is an InputError that names the file.
    """
    try:
        with _replacing(targets) as files:
            yield files
    except OSError as error:
        names = [os.fspath(target) for target in targets if isinstance(target, str | os.PathLike)]
        if error.errno not in _FULL or error.filename is not None or not names:
            raise
        fullest = min(names, key=_space)
        problem = f"cannot be written: {write_problem(fullest, error)}"
        raise InputError(problem, path=fullest, fix="make room, or choose another place") from None


@contextmanager
def _replacing(targets: Sequence[Target]) -> Iterator[list[IO[bytes]]]:
    with ExitStack() as stack:
        files: list[IO[bytes]] = []
        streams: list[tuple[IO[bytes], Target]] = []
        replacements: list[tuple[IO[bytes], str, str, int]] = []
        for target in targets:
            path = os.fspath(target) if isinstance(target, str | os.PathLike) else None
            mode = None if path is None else _mode(path)
            if path is None or mode is None:
                files.append(stack.enter_context(tempfile.TemporaryFile()))
                streams.append((files[-1], target))
                continue
            place = os.path.realpath(path)
            if any(place == other for _, _, other, _ in replacements):
                raise InputError("cannot be written twice", path=path, fix="name another file")
            name = os.path.join(os.path.dirname(place), f".shadowprice-{token_hex(8)}")
            stack.callback(_remove, name)  # before it exists: a signal may arrive at any moment
            try:
                files.append(stack.enter_context(open(name, "xb")))
            except OSError as error:
                raise _unwritable(path, error) from None
            replacements.append((files[-1], name, place, mode))
        with _naming(replacements[-1][2] if replacements else "output"):
            yield files
        for file, target in streams:
            file.seek(0)
            _copy(file, target)
        for file, _, place, _ in replacements:
            with _naming(place):
                file.flush()
                os.fsync(file.fileno())
        for _, name, place, mode in replacements:
            os.chmod(name, mode)
            os.replace(name, place)


def _copy(file: IO[bytes], target: Target) -> None:
    if not isinstance(target, str | os.PathLike):
        with _naming("output"):
            shutil.copyfileobj(file, target)
            target.flush()
        return
    with _naming(os.fspath(target)), open(target, "wb") as stream:
        shutil.copyfileobj(file, stream)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raises InputError if a file cannot be written there. Call it before the work that produces the file."""
    path = os.fspath(path)
    if _mode(path) is None:
        return  # a pipe or a device
    try:
        with tempfile.TemporaryFile(dir=os.path.dirname(os.path.realpath(path))) as file, _naming(path):
            file.write(bytes(4096))
            file.flush()
    except OSError as error:
        raise _unwritable(path, error) from None


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """Turns an error about a full disk into an InputError that names the file."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise _unwritable(path, error) from None
        raise


def _mode(target: str) -> int | None:
    """The mode for a file at `target`; None if what exists there is not a regular file."""
    if os.path.isdir(target) or target.endswith(os.sep) or not target:
        raise InputError("is a folder", path=target, fix="name a file to write")
    try:
        mode = os.stat(target).st_mode
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask
    except OSError as error:
        raise _unwritable(target, error) from None
    return stat.S_IMODE(mode) if stat.S_ISREG(mode) else None


def _unwritable(target: str, error: OSError) -> InputError:
    return InputError(f"cannot be written: {write_problem(target, error)}", path=target, fix="choose another place")


def write_problem(path: str | os.PathLike[str], error: Exception) -> str:
    """Why a file could not be written; if the disk is full, how much space is left."""
    full = getattr(error, "errno", None) in _FULL
    full |= getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
    uncertain = str(getattr(error, "sqlite_errorname", "")).startswith("SQLITE_IOERR")
    if full or uncertain:
        with suppress(OSError):
            left = _space(path)
            if full or left < _LITTLE:
                return f"no space left: {left:,} bytes free on the device of {os.fspath(path)}"
    return " ".join(str(getattr(error, "strerror", None) or error).split())


def _space(path: str | os.PathLike[str]) -> int:
    """The bytes that are free on the disk of a file."""
    disk = os.statvfs(os.path.dirname(os.path.realpath(path)))
    return disk.f_bavail * disk.f_frsize


def sync_folder(path: str | os.PathLike[str]) -> None:
    """Makes the creation or renaming of a file survive a power cut."""
    folder = os.open(os.path.dirname(os.path.realpath(path)), os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _remove(path: str) -> None:
    with suppress(OSError):  # never created, or already moved
        os.unlink(path)
