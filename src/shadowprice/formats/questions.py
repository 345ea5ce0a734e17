"""Questions with known answers, as JSON lines."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import orjson

from shadowprice.errors import InputError
from shadowprice.formats.jsonl import located, read_objects

# Names of the graders of `shadowprice.grading`.
GRADERS = ("math", "exact", "numeric", "code")


@dataclass(frozen=True)
class Question:
    """A problem and its correct answer. `grader` is a name in `GRADERS`, `options` are the grader's."""

    id: str
    problem: str
    gold: str
    dataset: str = ""
    grader: str = "math"
    options: Mapping[str, Any] = field(default_factory=dict)


# custom_id -> the correct answer and the name of its grader.
Gold: TypeAlias = Mapping[str, tuple[str, str]]


def read_questions(path: str | os.PathLike[str], grader: str | None = None) -> list[Question]:
    """Questions from JSON lines `{id, problem, gold}`, optionally with `dataset` and `grader`.

    `grader` replaces the grader that the lines name.
    """
    return [
        Question(r["id"], r["problem"], r["gold"], str(r.get("dataset") or ""), r["grader"])
        for r in _read(path, ("id", "problem", "gold"), grader)
    ]


def read_gold(path: str | os.PathLike[str]) -> Gold:
    """Correct answers by request, from JSON lines `{custom_id, gold}`, optionally with `grader`."""
    return {r["custom_id"]: (r["gold"], r["grader"]) for r in _read(path, ("custom_id", "gold"), None)}


def _read(path: str | os.PathLike[str], required: tuple[str, ...], grader: str | None) -> Iterator[dict[str, Any]]:
    """Records with the `required` texts, of which the first is unique, and a known grader."""
    form = "{" + ", ".join(f'"{name}": ...' for name in required) + "}"
    key, seen = required[0], set[str]()
    for number, record in read_objects(path, form=form):
        record["grader"] = grader or record.get("grader") or "math"
        if problem := _problem(record, required, form):
            raise located(problem, path, number)
        if record[key] in seen:
            raise InputError(f"{key} {record[key]!r} was used before", path=path, line=number, fix="keep one")
        seen.add(record[key])
        yield record
    if not seen:
        raise InputError("has no lines", path=path, fix=f"write lines {form}")


def _problem(record: dict[str, Any], required: tuple[str, ...], form: str) -> InputError | None:
    for name in required:
        if not isinstance(record.get(name), str) or not record[name]:
            return InputError(f"no {name}", fix=f"write {form}, all as strings")
    if record["grader"] not in GRADERS:
        return InputError(f"unknown grader {record['grader']!r:.40}", fix=f"choose one of {', '.join(GRADERS)}")
    return None


def sha256_of_questions(questions: Sequence[Question]) -> str:
    return hashlib.sha256(orjson.dumps(questions, option=orjson.OPT_SORT_KEYS)).hexdigest()
