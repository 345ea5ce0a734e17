"""Selects the requests of a large run that its page shows, and how much of their texts, so that it stays usable."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shadowprice.formats.asked import Asked

MOST_ROWS = 3000
MOST_TEXT = 12_000_000  # characters of questions and answers


@dataclass(frozen=True)
class Shown:
    """The rows of a page, with their texts.

    counts     of every outcome, where not all are shown: its name, how many are shown, and of how many
    texts_cut  how many texts are cut
    """

    rows: Sequence[Mapping[str, Any]]
    counts: Sequence[tuple[str, int, int]]
    texts_cut: int


def shown(
    rows: Sequence[Mapping[str, Any]],
    asked: Mapping[str, Asked],
    answer: Callable[[str], str],
    *,
    most_rows: int = MOST_ROWS,
    most_text: int = MOST_TEXT,
) -> Shown:
    """At most `most_rows` rows: the first of every outcome, rare outcomes in full. The longest texts are cut first."""
    chosen = _chosen(rows, most_rows)
    texts = [(*asked.get(row["id"], Asked()), answer(row["id"])) for row in chosen]
    most = level([len(text) for three in texts for text in three], most_text)
    found, texts_cut = [], 0
    for row, (question, gold, text) in zip(chosen, texts, strict=True):
        rest = {"question": len(question) - most, "gold": len(gold) - most, "answer": len(text) - most}
        texts_cut += sum(left > 0 for left in rest.values())
        whole = {"question": question, "gold": gold, "answer": text}
        found.append({**row, **{name: (value[:most], max(0, rest[name])) for name, value in whole.items()}})
    return Shown(found, _counts(rows, chosen), texts_cut)


def level(amounts: Sequence[int], total: int) -> int:
    """The largest limit for which the amounts, each cut at it, add up to at most `total`."""
    left, waiting = total, sorted(amounts)
    for place, amount in enumerate(waiting):
        if amount * (len(waiting) - place) > left:
            return left // (len(waiting) - place)
        left -= amount
    return max(waiting, default=0)


def _kind(row: Mapping[str, Any]) -> tuple[Any, Any]:
    return row["outcome"], row.get("correct")


def _chosen(rows: Sequence[Mapping[str, Any]], most: int) -> list[Mapping[str, Any]]:
    sizes: dict[Any, int] = {}
    for row in rows:
        sizes[_kind(row)] = sizes.get(_kind(row), 0) + 1
    share = level(list(sizes.values()), most)
    taken: dict[Any, int] = dict.fromkeys(sizes, 0)
    chosen = []
    for row in rows:
        if taken[_kind(row)] < share:
            taken[_kind(row)] += 1
            chosen.append(row)
    return chosen


def _counts(rows: Sequence[Mapping[str, Any]], chosen: Sequence[Mapping[str, Any]]) -> list[tuple[str, int, int]]:
    if len(chosen) == len(rows):
        return []
    counts: dict[str, list[int]] = {}
    for place, some in enumerate((chosen, rows)):
        for row in some:
            counts.setdefault(row["outcome"], [0, 0])[place] += 1
    return [(name, part, whole) for name, (part, whole) in counts.items()]
