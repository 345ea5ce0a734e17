"""Questions whose answers are known: collecting traces, the paper's data generation, and verifying a run."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import orjson

from shadowprice.accounts.sqlite import Ledger
from shadowprice.errors import InputError
from shadowprice.formats.batch import BatchLine
from shadowprice.formats.questions import Gold, Question
from shadowprice.grading import grade
from shadowprice.grading.answers import boxes
from shadowprice.tale import ESTIMATE
from shadowprice.types import Completion, Forecast, Request, Trace


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

    def predict(self, queries: Sequence[Request]) -> Forecast:
        return Forecast([1.0] * len(queries))


# How questions are put to a model: `{problem}` stands for the question.
TEMPLATES = {
    "plain": "{problem}",
    "math": "{problem}\n\nPlease reason step by step, and put your final answer within \\boxed{}.",
    "code": (
        "{problem}\n\nAnswer with the complete Python function and the imports it needs, in one ```python code block."
    ),
}


def read_template(name: str) -> str:
    """A template by its name in `TEMPLATES`, or from a text file in which {problem} stands for the question."""
    if name in TEMPLATES:
        return TEMPLATES[name]
    if not os.path.isfile(name):
        fix = f"choose one of {', '.join(TEMPLATES)}, or name a file"
        raise InputError("no such template, and no such file", path=name, fix=fix)
    with open(name, encoding="utf-8-sig") as file:
        template = file.read().rstrip("\n")
    if "{problem}" not in template:
        raise InputError("has no {problem}", path=name, fix="write {problem} where the question belongs")
    return template


def requests_for(
    questions: Sequence[Question], *, samples: int, temperature: float, template: str = TEMPLATES["plain"]
) -> list[BatchLine]:
    """A chat for every sample of every question; sample s has the seed s."""
    found: list[BatchLine] = []
    for question in questions:
        for sample in range(samples):
            body = {
                "messages": [{"role": "user", "content": template.replace("{problem}", question.problem)}],
                "temperature": temperature,
                "seed": sample,
            }
            query = Request(f"{question.id}#{sample}", question.problem)
            raw = orjson.dumps({"custom_id": query.id, "body": body})
            found.append(BatchLine(len(found) + 1, raw, query, "max_completion_tokens", False))
    return found


# --- probes ------------------------------------------------------------------------------------

PROBE_TOKENS = 16  # that a final answer may take


@dataclass(frozen=True)
class Ages:
    """Where answers are probed: after so many tokens, and after such shares of their length."""

    tokens: tuple[int, ...]
    shares: tuple[float, ...]

    @classmethod
    def parse(cls, text: str) -> Ages:
        tokens: list[int] = []
        shares: list[int] = []
        for part in text.split(","):
            number = part.strip().removesuffix("%")
            if not number.isdecimal() or (part.strip().endswith("%") and int(number) > 100):
                raise InputError(f"--probe {text}: {part!r} is not an age", fix="write ages as 0,64,256,50%")
            (shares if part.strip().endswith("%") else tokens).append(int(number))
        return cls(tuple(tokens), tuple(share / 100 for share in shares))

    def __len__(self) -> int:
        return len(self.tokens) + len(self.shares) + 1

    def of(self, answer: Completion) -> list[int]:
        """The ages of one answer, the longest first; its end is one of them only where it was cut."""
        ages = {*self.tokens, *(round(share * answer.tokens) for share in self.shares)}
        return sorted(
            {age for age in ages if age < answer.tokens} | ({answer.tokens} - {0} if _cut(answer) else set())
        )[::-1]


def _cut(answer: Completion) -> bool:
    return answer.finish == "length"


class LandingBackend(Protocol):
    """A backend whose answers have token ids, and that can be asked for the final answer after some of them."""

    model: str

    async def extend(self, body: Mapping[str, Any], so_far: Completion | None, limit: int) -> Completion: ...
    async def land(self, body: Mapping[str, Any], ids: Sequence[int], limit: int) -> tuple[str, int]: ...


class Probing:
    """A backend that asks, after every answer, for the final answer after the beginnings of it."""

    def __init__(self, backend: LandingBackend, ages: Ages) -> None:
        self.backend, self.model, self.ages = backend, backend.model, ages

    async def complete(self, body: Mapping[str, Any], limit: int) -> Completion:
        answer = await self.backend.extend(body, None, limit - len(self.ages) * PROBE_TOKENS)
        landed: dict[str, tuple[str, int]] = {}
        for age in self.ages.of(answer):
            landed[str(age)] = await self.backend.land(body, answer.ids[:age], PROBE_TOKENS)
        tokens = answer.tokens + sum(took for _, took in landed.values())
        body = {**answer.body, "probed": {"tokens": answer.tokens, "landed": landed}}
        return replace(answer, tokens=tokens, body=body)

    async def close(self) -> None:
        pass


def _judged(question: Question, answer: str, *, truncated: bool = False) -> bool:
    return bool(grade(question.grader, answer, question.gold, truncated=truncated, **question.options).correct)


def graded(
    questions: Sequence[Question],
    ledger: Ledger,
    *,
    template: str = TEMPLATES["plain"],
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
            body = record["response"]["body"]
            text, truncated = (
                body["choices"][0]["message"]["content"] or "",
                record["shadowprice"]["finish"] == "length",
            )
            probed = body.get("probed") or {"tokens": record["shadowprice"]["tokens"], "landed": {}}
            judge = partial(_judged, question)
            extra: dict[str, Any] = {}
            if template != TEMPLATES["plain"]:
                extra["template"] = template
            if probed["landed"]:
                # correct, tokens it took, and what was stated
                extra["landed"] = {
                    age: [judge(stated), took, boxes(stated)] for age, (stated, took) in probed["landed"].items()
                }
            if flags := record["shadowprice"]["flags"]:
                extra["flags"] = flags
            yield Trace(
                id=question.id,
                prompt=question.problem,
                tokens=probed["tokens"],
                correct=judge(text, truncated=truncated),
                truncated=truncated,
                dataset=question.dataset,
                gold=question.gold,
                model=model,
                sample=sample,
                temperature=temperature,
                max_tokens=max_tokens,
                response=text,
                extra=extra,
            )
