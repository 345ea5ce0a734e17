"""JSON lines: the only reader and the only writer.

A file may be plain or gzipped (its content decides, not its name), with or without a byte order mark, with Unix or
Windows line ends. It may be a pipe: it is read once, from start to end, one line at a time.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import orjson

from shadowprice.errors import InputError
from shadowprice.formats.files import replacing

Path: TypeAlias = "str | os.PathLike[str]"
Skip: TypeAlias = "Callable[[InputError], None]"

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_GZIP = b"\x1f"  # the first byte of a gzip file, which no JSON starts with
_UNPACK = "unpack it, or pack it with gzip"
# The first bytes of files that users give by mistake, what these files are, and what to do.
_KINDS = {
    b"PK\x03\x04": ("a spreadsheet or a zip file", "save it as CSV, or unpack it"),
    b"\xd0\xcf\x11\xe0": ("an old spreadsheet or document", "save it as CSV"),
    b"PAR1": ("a Parquet file", "save it as JSON lines, e.g. with pandas: to_json(NEW, orient='records', lines=True)"),
    b"%PDF-": ("a PDF", "copy its questions into a text file, one a line"),
    b"BZh": ("packed with bzip2", _UNPACK),
    b"\x28\xb5\x2f\xfd": ("packed with zstd", _UNPACK),
    b"\xfd7zXZ": ("packed with xz", _UNPACK),
    b"\xff\xfe\0\0": ("UTF-32, not UTF-8", "convert it: iconv -f UTF-32 -t UTF-8 OLD > NEW"),
}
_WEB_PAGE = re.compile(rb"\s*<(!doctype html|html\b)", re.IGNORECASE)


def read_lines(path: Path, label: str | None = None) -> Iterator[tuple[int, bytes]]:
    """The lines of a file that are not blank, stripped, each with its number.

    Errors name the file by `label` if it is given.
    """
    number = 0
    with open(path, "rb") as file:
        lines: Iterable[bytes] = file
        if file.peek(1)[:1] == _GZIP:
            lines = io.BufferedReader(gzip.GzipFile(fileobj=file))
        try:
            for number, line in enumerate(lines, start=1):
                if number == 1:
                    line = line.removeprefix(_BYTE_ORDER_MARK)
                if line := line.strip():
                    yield number, line
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InputError(
                f"damaged gzip: {error}",
                path=label or path,
                line=number + 1,
                fix="download it or write it again",
            ) from None


def read_objects(
    path: Path, label: str | None = None, skip: Skip | None = None, *, form: str = "{...}"
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The JSON objects of a file, one per line, each with the number of its line.

    A line that is not one is an InputError; with `skip`, the error goes there and the line is left out. `form` is
    what a line should look like, for the error.
    """
    for number, line in read_lines(path, label):
        try:
            record = parse_object(line, form=form)
        except InputError as error:
            problem = located(error, label or path, number)
            if skip is None:
                raise problem from None
            skip(problem)
            continue
        yield number, record


def parse_object(line: bytes, *, form: str = "{...}") -> dict[str, Any]:
    """The JSON object in a line; anything else is an InputError without a place."""
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise _not_json(line, error) from None
    if not isinstance(record, dict):
        raise InputError("not a JSON object", fix=f"write {form}")
    return record


def decoded(text: bytes, path: Path) -> str:
    """The text in UTF-8, without its byte order mark; otherwise an InputError with the likely encoding."""
    try:
        return text.removeprefix(_BYTE_ORDER_MARK).decode()
    except UnicodeDecodeError as invalid:
        start = text.rfind(b"\n", 0, invalid.start) + 1
        line = text.count(b"\n", 0, start) + 1
        raise located(_not_utf8(text[start:], invalid.start - start), path, line) from None


def not_text(head: bytes) -> InputError | None:
    """An error if a file that begins like this cannot be text in UTF-8."""
    for start, (what, fix) in _KINDS.items():
        if head.startswith(start):
            return InputError(f"is {what}", fix=fix)
    if _WEB_PAGE.match(head):
        return InputError("is a web page", fix="download the file itself; the site may want a login")
    if head[:2] in (b"\xff\xfe", b"\xfe\xff") or max(head[0:200:2].count(0), head[1:200:2].count(0)) > 20:
        return InputError("looks like UTF-16, not UTF-8", fix="convert it: iconv -f UTF-16 -t UTF-8 OLD > NEW")
    if b"\0" in head:
        return InputError("is binary, not text", fix="give a text file in UTF-8")
    return None


def _not_utf8(text: bytes, place: int) -> InputError:
    return not_text(text) or InputError(
        f"invalid UTF-8 at byte {place + 1}: it looks like Latin-1 or Windows-1252",
        fix="save the file as UTF-8: iconv -f WINDOWS-1252 -t UTF-8 OLD > NEW",
    )


def _not_json(line: bytes, error: orjson.JSONDecodeError) -> InputError:
    try:
        line.decode()
    except UnicodeDecodeError as invalid:
        return _not_utf8(line, invalid.start)
    if "depth" in error.msg or "ecursion" in error.msg:  # the wording depends on orjson's version
        return too_deep()
    if line.decode()[error.pos :].startswith(("NaN", "Infinity")):  # as Python's json module writes it
        return InputError(f"not JSON: NaN or infinity at column {error.colno}", fix="write null")
    return InputError(f"not JSON: {error.msg} at column {error.colno}", fix="fix or remove the line")


def located(error: InputError, path: Path, line: int) -> InputError:
    """The same error with its place."""
    return InputError(error.problem, fix=error.fix, path=path, line=line)


def too_deep() -> InputError:
    """The error for JSON that is nested more deeply than we can follow."""
    return InputError("nested too deeply", fix="fix or remove the line")


def write_lines(path: Path, lines: Iterable[bytes]) -> int:
    """Writes all lines, or no file at all; returns how many. The file is gzipped if its name ends in `.gz`.

    The same lines give the same bytes.
    """
    count = 0
    with replacing([path]) as (file,):
        packed = gzip.GzipFile(fileobj=file, mode="wb", filename="", mtime=0) if _wants_gzip(path) else file
        for line in lines:
            packed.write(line + b"\n")
            count += 1
        if packed is not file:
            packed.close()
    return count


def _wants_gzip(path: Path) -> bool:
    return os.fspath(path).endswith(".gz")
