"""Trace files: recorded generations as JSON lines, one each, optionally gzipped (.gz)."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from typing import Any

import orjson

from shadowprice.errors import InputError
from shadowprice.formats.files import replacing
from shadowprice.types import Trace

_KNOWN = {field.name for field in fields(Trace)} - {"extra"}
_TYPES: dict[str, type | tuple[type, ...]] = {
    "id": str, "prompt": str, "tokens": int, "correct": (bool, type(None)), "truncated": bool, "dataset": str,
    "gold": str, "model": str, "sample": int, "temperature": (int, float), "max_tokens": (int, type(None)),
    "response": (str, type(None)),
}  # fmt: skip


def read_traces(path: str | os.PathLike[str], *, skip: Callable[[InputError], None] | None = None) -> Iterator[Trace]:
    """The traces of a file, in order. A line that is none is an error that names it.

    With `skip`, such lines are left out, and each error is told to it instead.
    """
    return (trace for _, trace in numbered_traces(path, skip=skip))


def numbered_traces(
    path: str | os.PathLike[str], *, skip: Callable[[InputError], None] | None = None
) -> Iterator[tuple[int, Trace]]:
    """The same, each with the number of its line."""
    with gzip.open(path, "rb") if os.fspath(path).endswith(".gz") else open(path, "rb") as lines:
        for number, line in _lines(lines, path):
            if not line.strip():
                continue
            try:
                trace = _trace(orjson.loads(line))
            except (TypeError, ValueError) as error:  # JSONDecodeError is a ValueError
                said = f"not JSON: {error.msg}" if isinstance(error, orjson.JSONDecodeError) else str(error)
                problem = InputError(said, path=path, line=number, fix="mend the line")
                if skip is None:
                    raise problem from None
                skip(problem)
                continue
            yield number, trace


def _lines(file: Iterable[bytes], path: str | os.PathLike[str]) -> Iterator[tuple[int, bytes]]:
    number = 0
    try:
        for number, line in enumerate(file, start=1):
            yield number, line
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        fix = "fetch or write the file again"
        raise InputError(f"damaged: {error}", path=path, line=number + 1, fix=fix) from None


def write_traces(path: str | os.PathLike[str], traces: Iterable[Trace]) -> int:
    """Writes all or nothing; returns how many. The same traces give the same bytes."""
    count = 0
    with replacing([path]) as (file,):
        packed = (
            gzip.GzipFile(fileobj=file, mode="wb", filename="", mtime=0) if os.fspath(path).endswith(".gz") else file
        )
        for trace in traces:
            packed.write(orjson.dumps(_record(trace)) + b"\n")
            count += 1
        if packed is not file:
            packed.close()
    return count


def _trace(record: Any) -> Trace:
    if not isinstance(record, dict):
        raise TypeError("not a JSON object")
    needed = ("id", "prompt", "tokens")
    for name in needed:
        if name not in record:
            raise ValueError(f"no {name}")
    # An optional field that is null is one that is missing.
    known = {name: v for name, v in record.items() if name in _KNOWN and (v is not None or name in needed)}
    for name, value in known.items():
        if not isinstance(value, _TYPES[name]) or (
            isinstance(value, bool) and name in ("tokens", "sample", "max_tokens")
        ):
            raise TypeError(f"{name} is {value!r:.40}")
    if known["tokens"] < 0:
        raise ValueError(f"tokens is {known['tokens']}")
    return Trace(**known, extra={name: value for name, value in record.items() if name not in _KNOWN})


def _record(trace: Trace) -> dict[str, Any]:
    known = {name: getattr(trace, name) for name in sorted(_KNOWN)}
    return {**{name: value for name, value in known.items() if value is not None}, **trace.extra}
