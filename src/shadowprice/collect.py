"""Collecting traces, the paper's data generation: every question answered under a large cap, and graded."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from shadowprice.batchfile import Request
from shadowprice.errors import InputError
from shadowprice.grading import GRADERS, grade
from shadowprice.ledger import Ledger
from shadowprice.types import Forecast, Query, Trace


@dataclass(frozen=True)
class Question:
    """What is asked, and what would be right. `grader` is a name in `grading.GRADERS`."""

    id: str
    problem: str
    gold: str
    dataset: str = ""
    grader: str = "math"


def read_questions(path: str | os.PathLike[str], grader: str | None = None) -> list[Question]:
    """Questions from JSON lines `{id, problem, gold}`, optionally with `dataset` and `grader`."""
    found: dict[str, Question] = {}
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue

            def bad(problem: str, fix: str, number: int = number) -> InputError:
                return InputError(problem, path=path, line=number, fix=fix)

            try:
                record = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                raise bad(f"not JSON: {error.msg}", "mend or remove the line") from None
            if not isinstance(record, dict):
                raise bad("not a JSON object", 'write {"id": ..., "problem": ..., "gold": ...}')
            texts: dict[str, Any] = {name: record.get(name) for name in ("id", "problem", "gold")}
            if missing := [name for name, text in texts.items() if not isinstance(text, str) or not text]:
                raise bad(f"no {missing[0]}", 'write {"id": ..., "problem": ..., "gold": ...}, all as strings')
            chosen = grader or record.get("grader") or "math"
            if chosen not in GRADERS:
                raise bad(f"unknown grader {chosen!r}", f"choose one of {', '.join(GRADERS)}")
            question = Question(**texts, dataset=str(record.get("dataset") or ""), grader=chosen)
            if question.id in found:
                raise bad(f"id {question.id!r} was used before", "give every question its own")
            found[question.id] = question
    if not found:
        raise InputError("has no questions", path=path, fix='write lines {"id": ..., "problem": ..., "gold": ...}')
    return list(found.values())


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
    tell: Callable[[Iterable[Question]], Iterable[Question]] = lambda questions: questions,
) -> Iterator[Trace]:
    """The answers in the ledger as traces, in the order of the questions; what failed is left out."""
    lines = dict(ledger.results())
    for question in tell(questions):
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
                correct=bool(grade(question.grader, text, question.gold, truncated=truncated).correct),
                truncated=truncated,
                dataset=question.dataset,
                gold=question.gold,
                model=model,
                sample=sample,
                temperature=temperature,
                max_tokens=max_tokens,
                response=text,
            )
