"""What a grader returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Reason: TypeAlias = Literal["correct", "wrong", "truncated", "no_answer", "timeout", "error"]


@dataclass(frozen=True)
class Grade:
    """Whether an answer is correct, the reason, and a line of detail.

    correct    the answer is correct
    wrong      it is not
    truncated  it was cut at its limit, and not checked
    no_answer  nothing in it can be read as an answer
    timeout    checking it took longer than allowed
    error      it could not be checked; `correct` is None where that is not the answer's fault
               (an invalid gold, no sandbox), so that the question stays ungraded
    """

    correct: bool | None
    reason: Reason
    detail: str = ""

    @staticmethod
    def of(correct: bool, detail: str = "") -> Grade:
        return Grade(correct, "correct" if correct else "wrong", detail)
