"""Trace files: recorded generations as JSON lines, one each, optionally gzipped (.gz)."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any

import orjson

from shadowprice.batchfile import replacing
from shadowprice.errors import InputError
from shadowprice.types import Trace

_KNOWN = {field.name for field in fields(Trace)} - {"extra"}
_TYPES: dict[str, type | tuple[type, ...]] = {
    "id": str, "prompt": str, "tokens": int, "correct": (bool, type(None)), "truncated": bool, "dataset": str,
    "gold": str, "model": str, "sample": int, "temperature": (int, float), "max_tokens": (int, type(None)),
    "response": (str, type(None)),
}  # fmt: skip


def read_traces(path: str | os.PathLike[str]) -> Iterator[Trace]:
    """The traces of a file, in order. A line that is none is an error that names it."""
    with gzip.open(path, "rb") if os.fspath(path).endswith(".gz") else open(path, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                yield _trace(orjson.loads(line))
            except orjson.JSONDecodeError as error:
                raise InputError(f"not JSON: {error.msg}", path=path, line=number, fix="mend the line") from None
            except (TypeError, ValueError) as error:
                raise InputError(str(error), path=path, line=number, fix="mend the line") from None


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
    for name in ("id", "prompt", "tokens"):
        if name not in record:
            raise ValueError(f"no {name}")
    known = {name: value for name, value in record.items() if name in _KNOWN}
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
