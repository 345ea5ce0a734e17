"""Rows of results, as plain dicts: grouping, filtering and text that can be shown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from shadowprice.lab.compare import Row

Rows: TypeAlias = Sequence[Row]

_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def printable(text: str) -> str:
    """The text, with a replacement character for each character that HTML and SVG cannot contain."""
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def grouped(rows: Iterable[Row], *fields: str) -> dict[tuple[Any, ...], list[Row]]:
    """Rows by the values of some fields, in the order they come."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(field) for field in fields), []).append(row)
    return groups


def known(rows: Iterable[Row], *fields: str) -> list[Row]:
    """The rows that have a value in all of the fields."""
    return [row for row in rows if all(row.get(field) is not None for field in fields)]


def from_paper(row: Row) -> bool:
    return row.get("source") == "paper"


def words(name: Any) -> str:
    """`queries_are_of` as words."""
    return str(name).replace("_", " ")


def shorten(text: Any, limit: int = 34) -> str:
    text = str(text)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def describe(stream: Any, budget: Any) -> str:
    """`balanced, 256 tokens per query`, or as much of it as is known."""
    parts = [words(stream)] if stream else []
    return ", ".join(parts + ([f"{budget:,g} tokens per query"] if budget is not None else []))
