"""Results as a table for spreadsheets: CSV by RFC 4180, in UTF-8, with lines that end in CR LF.

A spreadsheet reads text that begins with `=`, `+`, `-` or `@` as a formula, and a formula in a model's answer can send
the content of the sheet to someone else. So an apostrophe is put before such text, which is how spreadsheets themselves
mark it as text; plain numbers such as `-5` stay as they are. Programs that need every character read the JSON lines
instead.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from shadowprice.cost import TOKENS, Rates

# Their wide forms count too, and so do tabs and line ends, which some programs skip.
_FORMULA = re.compile(r"[=+\-@\t\r\n＝＋－＠]")
_NUMBER = re.compile(r"[+-]?(\d+(,\d{3})*(\.\d*)?|\.\d+)([eE][+-]?\d+)?%?")
_NANO = 10**9


class ResultRow(NamedTuple):
    """A result in a table. `reason` is why it has this outcome, `tokens` were generated, `cost` is in units."""

    id: str
    question: str
    answer: str
    gold: str
    correct: bool | None
    outcome: str
    reason: str
    tokens: int
    cost: int


def csv_lines(rows: Iterable[ResultRow], rates: Rates = TOKENS) -> Iterator[bytes]:
    """The table with its header. `correct` is true, false or empty; `cost` is in dollars if `rates` are, or tokens."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\r\n")
    writer.writerow(ResultRow._fields)
    for row in rows:
        yield _taken(buffer)
        correct = "" if row.correct is None else str(row.correct).lower()
        cost = _dollars(row.cost) if rates.money else row.cost
        texts = map(_cell, (row.id, row.question, row.answer, row.gold))
        writer.writerow([*texts, correct, _cell(row.outcome), _cell(row.reason), row.tokens, cost])
    yield _taken(buffer)


def _taken(buffer: io.StringIO) -> bytes:
    text = buffer.getvalue()
    buffer.seek(0)
    buffer.truncate()
    return text.encode(errors="replace")  # half a character cannot be written


def _cell(text: str) -> str:
    text = text.replace("\0", "\N{REPLACEMENT CHARACTER}")
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def _dollars(nano: int) -> str:
    """Exact, without an exponent."""
    whole, part = divmod(nano, _NANO)
    return f"{whole}.{part:09d}".rstrip("0").rstrip(".")
