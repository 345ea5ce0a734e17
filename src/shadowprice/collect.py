"""Questions whose answers are known: collecting traces, the paper's data generation, and verifying a run."""

from __future__ import annotations

import ast
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import orjson

from shadowprice.batchfile import Request
from shadowprice.errors import InputError
from shadowprice.grading import GRADERS, grade
from shadowprice.ledger import Ledger
from shadowprice.tale import ESTIMATE
from shadowprice.types import Forecast, Query, Trace


@dataclass(frozen=True)
class Question:
    """What is asked, and what would be right. `grader` is a name in `grading.GRADERS`, `options` are its own."""

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


def is_right(gold: Gold, name: str, answer: str, truncated: bool) -> bool:
    """False also for a query whose gold is not known."""
    right, grader = gold.get(name, ("", ""))
    return bool(grader) and bool(grade(grader, answer, right, truncated=truncated).correct)


def count_solved(ledger: Ledger, gold: Gold) -> int:
    """How many answers in the ledger are right."""
    solved = 0
    for name, line in ledger.results():
        record = orjson.loads(line)
        if not record["error"] and not name.startswith(ESTIMATE):
            choice = record["response"]["body"]["choices"][0]
            text = choice["message"]["content"] if "message" in choice else choice["text"]
            solved += is_right(gold, name, text or "", record["shadowprice"]["finish"] == "length")
    return solved


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


def check_programs(questions: Sequence[Question]) -> None:
    """Raises InputError where tests cannot run: every answer would be paid for and found wrong."""
    programs = [question for question in questions if question.grader == "code"]
    if not programs:
        return
    wanted: set[str] = set()
    for question in programs:
        wanted |= _imported(question.gold) | _imported(question.options.get("prompt", ""))
    tests = f"from importlib.util import find_spec\nmissing = [m for m in {sorted(wanted)} if not find_spec(m)]\n"
    found = grade("code", "pass", f"{tests}assert not missing, 'no ' + ', '.join(missing)")
    if not found.correct:
        fix = "grade on another machine" if found.correct is None else "pip install what they import beside shadowprice"
        raise InputError(f"tests cannot run here: {found.detail.removeprefix('AssertionError: ')}", fix=fix)


def _imported(program: str) -> set[str]:
    """The packages that a program imports at its top level."""
    try:
        statements = ast.parse(program).body
    except SyntaxError:
        return set()
    names = [alias.name for s in statements if isinstance(s, ast.Import) for alias in s.names]
    names += [s.module or "" for s in statements if isinstance(s, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names} - {""}


class LargeCap:
    """The forecast of a collection: everyone alike, so that `uniform` grants everyone the cap."""

    def predict(self, queries: Sequence[Query]) -> Forecast:
        return Forecast([1.0] * len(queries))


def requests_for(questions: Sequence[Question], *, samples: int, temperature: float) -> list[Request]:
    """A chat for every sample of every question; sample s has the seed s."""
    found: list[Request] = []
    for question in questions:
        for sample in range(samples):
            body = {
                "messages": [{"role": "user", "content": question.problem}],
                "temperature": temperature,
                "seed": sample,
            }
            query = Query(f"{question.id}#{sample}", question.problem)
            raw = orjson.dumps({"custom_id": query.id, "body": body})
            found.append(Request(len(found) + 1, raw, query, "max_completion_tokens", False))
    return found


def graded(
    questions: Sequence[Question],
    ledger: Ledger,
    *,
    samples: int,
    temperature: float,
    max_tokens: int,
    model: str,
) -> Iterator[Trace]:
    """The answers in the ledger as traces, in the order of the questions; what failed is left out."""
    lines = dict(ledger.results())
    for question in questions:
        for sample in range(samples):
            record = orjson.loads(lines.get(f"{question.id}#{sample}", b'{"error": "missing"}'))
            if record["error"]:
                continue
            choice = record["response"]["body"]["choices"][0]
            text, truncated = choice["message"]["content"] or "", record["shadowprice"]["finish"] == "length"
            yield Trace(
                id=question.id,
                prompt=question.problem,
                tokens=record["shadowprice"]["tokens"],
                correct=bool(
                    grade(question.grader, text, question.gold, truncated=truncated, **question.options).correct
                ),
                truncated=truncated,
                dataset=question.dataset,
                gold=question.gold,
                model=model,
                sample=sample,
                temperature=temperature,
                max_tokens=max_tokens,
                response=text,
                extra={"flags": flags} if (flags := record["shadowprice"]["flags"]) else {},
            )
