"""Rows of results, as plain dicts: by group, and those that have what is asked for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from shadowprice.lab.compare import Row

Rows: TypeAlias = Sequence[Row]


_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def printable(text: str) -> str:
    """The text, with a mark in the place of what neither a page nor a picture can hold."""
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def grouped(rows: Iterable[Row], *fields: str) -> dict[tuple[Any, ...], list[Row]]:
    """Rows by the values of some fields, in the order they come."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(field) for field in fields), []).append(row)
    return groups


def known(rows: Iterable[Row], *fields: str) -> list[Row]:
    """Those rows that have a value in all of the fields."""
    return [row for row in rows if all(row.get(field) is not None for field in fields)]


def words(name: Any) -> str:
    """`mostly-easy` as it stands in a title."""
    return str(name).replace("_", " ")


def short(text: Any, most: int = 34) -> str:
    text = str(text)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def at(stream: Any, budget: Any) -> str:
    """`balanced, 256 tokens per query`, or as much of it as there is."""
    parts = [words(stream)] if stream else []
    return ", ".join(parts + ([f"{budget:,g} tokens per query"] if budget is not None else []))
