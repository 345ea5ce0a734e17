"""Trace files: recorded generations as JSON lines, gzipped or not."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any

import orjson

from shadowprice.errors import InputError
from shadowprice.formats.jsonl import Skip, read_objects, write_lines
from shadowprice.types import Trace

_KNOWN = {field.name for field in fields(Trace)} - {"extra"}
_REQUIRED = ("id", "prompt", "tokens")
_TEXT, _NUMBER, _FLAG = "a text", "a whole number", "true or false"
_TYPES: dict[str, tuple[type | tuple[type, ...], str]] = {
    "id": (str, _TEXT), "prompt": (str, _TEXT), "tokens": (int, _NUMBER), "correct": (bool, _FLAG),
    "truncated": (bool, _FLAG), "dataset": (str, _TEXT), "gold": (str, _TEXT), "model": (str, _TEXT),
    "sample": (int, _NUMBER), "temperature": ((int, float), "a number"), "max_tokens": (int, _NUMBER),
    "response": (str, _TEXT),
}  # fmt: skip
_INTEGERS = ("tokens", "sample", "max_tokens")
_FLAGS = ("correct", "truncated")
_MOST = 2**31  # tokens in an answer; more is a mistake
_FORM = '{"id": ..., "prompt": ..., "tokens": ...}'


def read_traces(path: str | os.PathLike[str], *, skip: Skip | None = None) -> Iterator[Trace]:
    """The traces of a file, in order. An invalid line is an InputError with its place.

    With `skip`, the error goes there and the line is left out.
    """
    return (trace for _, trace in numbered_traces(path, skip=skip))


def numbered_traces(path: str | os.PathLike[str], *, skip: Skip | None = None) -> Iterator[tuple[int, Trace]]:
    """The same, each with the number of its line."""
    for number, record in read_objects(path, skip=skip, form=_FORM):
        _restore_types(record)
        if problem := _problem(record):
            error = InputError(problem, path=path, line=number, fix=f"fix or remove the line: {_FORM}")
            if skip is None:
                raise error
            skip(error)
        else:
            yield number, _trace(record)


def write_traces(path: str | os.PathLike[str], traces: Iterable[Trace]) -> int:
    """Write all traces, or no file at all; returns how many. Gzipped if the name ends in `.gz`."""
    return write_lines(path, (orjson.dumps(_record(trace)) for trace in traces))


def _restore_types(record: dict[str, Any]) -> None:
    """What other programs write, without loss: ids that are numbers, 5.0 for 5, 1 for true."""
    for name in ("id", "gold"):
        if type(record.get(name)) is int:
            record[name] = str(record[name])
    for name in _INTEGERS:
        value = record.get(name)
        if isinstance(value, float) and abs(value) <= _MOST and value.is_integer():
            record[name] = int(value)
    for name in _FLAGS:
        if type(record.get(name)) in (int, float) and record[name] in (0, 1):
            record[name] = bool(record[name])


def _problem(record: dict[str, Any]) -> str | None:
    for name in _REQUIRED:
        if name not in record:
            return f"no {name}"
    for name, (expected, words) in _TYPES.items():
        value = record.get(name)
        if value is None and name not in _REQUIRED:
            continue
        if not isinstance(value, expected) or (isinstance(value, bool) and name not in _FLAGS):
            return f"{name} is {value!r:.40}, not {words}"
    if record["tokens"] > _MOST:
        return f"tokens is {record['tokens']:,}: no model generates that many"
    return f"tokens is {record['tokens']:,}" if record["tokens"] < 0 else None


def _trace(record: dict[str, Any]) -> Trace:
    """A null in an optional field counts as a missing field."""
    known = {name: value for name, value in record.items() if name in _KNOWN and value is not None}
    return Trace(**known, extra={name: value for name, value in record.items() if name not in _KNOWN})


def _record(trace: Trace) -> dict[str, Any]:
    known = {name: getattr(trace, name) for name in sorted(_KNOWN)}
    return {**{name: value for name, value in known.items() if value is not None}, **trace.extra}
