"""Questions with known answers; correct answers in a file of their own."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import orjson

from shadowprice.errors import InputError
from shadowprice.formats.jsonl import located, read_objects

# Names of the graders of `shadowprice.grading`.
GRADERS = ("math", "exact", "numeric", "code", "words", "choice")
# What correct answers look like that are not mathematics.
_CHOICE = re.compile(r"\(?(?:\\text\{\(?)?[A-J]\)?\}?[).]?")  # B, (B) or B.
_QUANTITY = re.compile(r"-?[$€£¥]? ?-?\d[\d,]*(?:\.\d+)?(?: [^\W\d_]{2,}\.?){1,3}")  # 18 dollars
_TIME = re.compile(r"\d{1,2}:\d\d(?::\d\d)?|\d{4}-\d\d-\d\d")
_WORDS = re.compile(r"(?=.*(?:[^\W\d_]{2}|[A-Z][\d+#]))[\w\s'’\"“”.,;:!?&/+#()-]*", re.DOTALL)
_TEXT = re.compile(r"\\(?:text|textbf|mathrm)\{([^{}\\]*)\}")
# And what shows that it is: names of functions, operators between numbers, numbers in a row.
_MATHEMATICS = re.compile(
    r"\b(?:arc|a)?(?:sin|cos|tan|cot|sec|csc)h?\b|\b(?:sqrt|log|ln|exp|pi|infinity|inf|mod|gcd|lcm)\b"
    r"|[\d)] ?[+/*-] ?[\d(]|\d,? (?:and|or) -?\d",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Question:
    """A problem and its correct answer, empty if that is unknown.

    `grader` is a name in `GRADERS`, `options` are the grader's. `body` is the request, if it is more than one message.
    """

    id: str
    problem: str
    gold: str
    dataset: str = ""
    grader: str = "math"
    options: Mapping[str, Any] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None

    def request_body(self) -> Mapping[str, Any]:
        return self.body or {"messages": [{"role": "user", "content": self.problem}]}


# custom_id -> the correct answer and the name of its grader.
Gold: TypeAlias = Mapping[str, tuple[str, str]]


def gold_text(value: Any, name: str | None = "gold") -> str:
    """A correct answer as text; for a solution that ends in `#### 72`, as in GSM8K, the part after the mark."""
    if value is None:
        return ""
    if not isinstance(value, str | int | float):
        raise InputError(f"{name} is {value!r:.40}", fix="give a text or a number; --gold-field names another field")
    return str(value).rpartition("####")[2].strip()


def usual_grader(gold: str) -> str:
    """The grader of a correct answer that names none: by what it looks like, or else `math`."""
    if _CHOICE.fullmatch(gold):
        return "choice"
    if _TIME.fullmatch(gold):
        return "words"
    if _MATHEMATICS.search(gold):
        return "math"
    if _QUANTITY.fullmatch(gold):
        return "numeric"
    return "words" if _WORDS.fullmatch(_TEXT.sub(r"\1", gold)) else "math"


def read_gold(path: str | os.PathLike[str]) -> Gold:
    """Correct answers by request, from JSON lines `{custom_id, gold}`, optionally with `grader`."""
    if os.fspath(path).lower().removesuffix(".gz").endswith((".csv", ".tsv")):
        fix = f"write lines {_FORM}, or put the answers beside the questions"
        raise InputError("is a table, not JSON lines", path=path, fix=fix)
    found: dict[str, tuple[str, str]] = {}
    for number, record in read_objects(path, form=_FORM):
        name = record.get("custom_id")
        try:
            if not isinstance(name, str | int) or isinstance(name, bool) or name == "":
                raise InputError("no custom_id", fix=f"write {_FORM}")
            if not (gold := gold_text(record.get("gold"))):
                raise InputError("no gold", fix=f"write {_FORM}")
            grader = record.get("grader") or usual_grader(gold)
            if grader not in GRADERS:
                raise InputError(f"unknown grader {grader!r:.40}", fix=f"choose one of {', '.join(GRADERS)}")
            if str(name) in found:
                raise InputError(f"custom_id {name!r} was used before", fix="keep one")
        except InputError as error:
            raise located(error, path, number) from None
        found[str(name)] = gold, grader
    if not found:
        raise InputError("has no lines", path=path, fix=f"write lines {_FORM}")
    return found


_FORM = '{"custom_id": ..., "gold": ...}'


def sha256_of_questions(questions: Sequence[Question]) -> str:
    """A hash that identifies the questions, with the bodies of those that have one."""
    records = [
        {name: value for name, value in vars(question).items() if name != "body" or value is not None}
        for question in questions
    ]
    in_order = [{**record, "options": dict(sorted(record["options"].items()))} for record in records]
    return hashlib.sha256(orjson.dumps(in_order)).hexdigest()
