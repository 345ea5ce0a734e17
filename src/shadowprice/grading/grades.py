"""What a grader says about an answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Reason: TypeAlias = Literal["correct", "wrong", "truncated", "no_answer", "timeout", "error"]


@dataclass(frozen=True)
class Grade:
    """The verdict, why, and a line for the curious.

    correct    the answer is right
    wrong      it is not
    truncated  it was cut at its limit, so that nobody looked at it
    no_answer  nothing in it could be taken for an answer
    timeout    checking it took longer than allowed
    error      it could not be checked; `correct` is None where that is no fault of the answer
               (an unusable gold, no sandbox), so that the question stays ungraded
    """

    correct: bool | None
    reason: Reason
    detail: str = ""

    @staticmethod
    def of(correct: bool, detail: str = "") -> Grade:
        return Grade(correct, "correct" if correct else "wrong", detail)
