"""Graders: is an answer correct? `grade` is the entry point; `GRADERS` has all kinds.

    grade("math", r"... so \\boxed{\\frac12}", "0.5")
    grade("numeric", "That makes $1,234.", "1234")
    grade("words", "The capital of France is Paris.", "Paris")
    grade("choice", "The answer is (B).", "B")
    grade("exact", "**Paris.**", "Paris")
    grade("code", completion, tests, prompt=prompt, entry_point="f")

Each grader has its own options: see `grade_math`, `grade_words`, `grade_choice`, `grade_exact`, `grade_numeric` and
`grade_code`. `math` needs the extra `[math]`. Graders block; call them in threads from async code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shadowprice.errors import InputError, ShadowpriceError
from shadowprice.grading.answers import grade_exact, grade_numeric
from shadowprice.grading.grades import Grade, Reason
from shadowprice.grading.levels import Limits, check_code_grading, sandbox
from shadowprice.grading.mathematics import MathPool, grade_math
from shadowprice.grading.programs import grade_code
from shadowprice.grading.words import grade_choice, grade_words

__all__ = [
    "GRADERS",
    "Grade",
    "Limits",
    "MathPool",
    "Reason",
    "check_code_grading",
    "grade",
    "grade_choice",
    "grade_code",
    "grade_exact",
    "grade_math",
    "grade_numeric",
    "grade_words",
    "sandbox",
]

GRADERS: dict[str, Callable[..., Grade]] = {
    "math": grade_math,
    "exact": grade_exact,
    "numeric": grade_numeric,
    "code": grade_code,
    "words": grade_words,
    "choice": grade_choice,
}


def grade(kind: str, answer: str, gold: str, *, truncated: bool = False, **options: Any) -> Grade:
    """The grade of an answer. One that was cut at its limit is never correct; `correct` is None after an error."""
    if kind not in GRADERS:
        raise InputError(f"unknown grader {kind!r}", fix=f"known are {', '.join(GRADERS)}")
    if truncated:
        return Grade(False, "truncated")
    try:
        return GRADERS[kind](answer, gold, **options)
    except ShadowpriceError:
        raise
    except (ValueError, ArithmeticError, LookupError, RecursionError) as error:  # models write anything
        return Grade(None, "error", f"{type(error).__name__}: {error}"[:200])
