"""Questions whose answers are known, as JSON lines."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import orjson

from shadowprice.errors import InputError

# Names of the graders of `shadowprice.grading`.
GRADERS = ("math", "exact", "numeric", "code")


@dataclass(frozen=True)
class Question:
    """What is asked, and what would be right. `grader` is a name in `GRADERS`, `options` are its own."""

    id: str
    problem: str
    gold: str
    dataset: str = ""
    grader: str = "math"
    options: Mapping[str, Any] = field(default_factory=dict)


# custom_id -> what would be right, and by which grader.
Gold: TypeAlias = Mapping[str, tuple[str, str]]


def read_questions(path: str | os.PathLike[str], grader: str | None = None) -> list[Question]:
    """Questions from JSON lines `{id, problem, gold}`, optionally with `dataset` and `grader`."""
    return [
        Question(r["id"], r["problem"], r["gold"], r["dataset"], r["grader"])
        for r in _records(path, ("id", "problem", "gold"), grader)
    ]


def read_gold(path: str | os.PathLike[str]) -> Gold:
    """What is right, by query, from JSON lines `{custom_id, gold}`, optionally with `grader`."""
    return {r["custom_id"]: (r["gold"], r["grader"]) for r in _records(path, ("custom_id", "gold"), None)}


def _records(path: str | os.PathLike[str], needed: tuple[str, ...], grader: str | None) -> Iterator[dict[str, str]]:
    """JSON objects that have the `needed` strings, the first of them unlike in every line, and a known grader."""
    form = "{" + ", ".join(f'"{name}": ...' for name in needed) + "}"
    seen: set[str] = set()
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                record = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                raise InputError(f"not JSON: {error.msg}", path=path, line=number, fix="mend the line") from None
            if not isinstance(record, dict):
                raise InputError("not a JSON object", path=path, line=number, fix=f"write {form}")
            if missing := [name for name in needed if not isinstance(record.get(name), str) or not record[name]]:
                raise InputError(f"no {missing[0]}", path=path, line=number, fix=f"write {form}, all as strings")
            chosen = grader or record.get("grader") or "math"
            if chosen not in GRADERS:
                known = ", ".join(GRADERS)
                raise InputError(f"unknown grader {chosen!r}", path=path, line=number, fix=f"choose one of {known}")
            if record[needed[0]] in seen:
                raise InputError(
                    f"{needed[0]} {record[needed[0]]!r} was used before", path=path, line=number, fix="keep one"
                )
            seen.add(record[needed[0]])
            yield {**record, "grader": chosen, "dataset": str(record.get("dataset") or "")}
    if not seen:
        raise InputError("has no lines", path=path, fix=f"write lines {form}")


def sha256_of_questions(questions: Sequence[Question]) -> str:
    return hashlib.sha256(orjson.dumps(questions, option=orjson.OPT_SORT_KEYS)).hexdigest()
