"""Do answers agree? Their final answers are compared by the graders, each with the earlier ones in place of a gold.

The final answer is what the text announces (`answers.announced`), or all of a text that is one short line. What it
looks like decides the grader, as for a correct answer that names none: mathematics, a number, a choice, or words.
"""

from __future__ import annotations

import importlib.util
import re

from shadowprice.formats.questions import usual_grader
from shadowprice.grading import grade
from shadowprice.grading.answers import announced, normalised, numbers
from shadowprice.grading.words import OPPOSITES

_SHORT = 200  # characters of a text that is a final answer as a whole
_NUMBER = re.compile(r"[-+]?[\s$€£¥]*[\d.,]*\d\s*%?")
_EXACTLY = 1e-9  # a vote is for one number: neighbours are others


def final_answer(text: str) -> str | None:
    """The final answer of a text; None if no final answer can be found."""
    final = announced(text)
    if final is None and len(text.strip()) <= _SHORT and "\n" not in text.strip():
        final = text
    final = (final or "").strip().lstrip("*_ ").rstrip("*_. ")
    return final if re.search(r"\w", final) else None


def agree(one: str, other: str) -> bool:
    """Whether two final answers are the same."""
    if normalised(one) == normalised(other):
        return True
    if _is_quantity(one) and _is_quantity(other):
        return bool(grade("numeric", one, other, relative=_EXACTLY).correct)
    if _is_short(one) or _is_short(other):
        return _as_gold(one, other) or _as_gold(other, one)
    if usual_grader(other) == "math":
        # Without math-verify, formulas that are written differently are different.
        return importlib.util.find_spec("math_verify") is not None and _is_graded("math", one, other)
    # A list has each of its names in it: words agree only if each is in the other.
    return _is_graded("words", one, other) and _is_graded("words", other, one)


def _is_short(final: str) -> bool:
    """Whether it is a choice, or one of two words of which an answer states one."""
    return usual_grader(final) == "choice" or any(normalised(final) in pair for pair in OPPOSITES)


def _as_gold(one: str, other: str) -> bool:
    return _is_short(other) and _is_graded(usual_grader(other), one, other)


def _is_graded(kind: str, answer: str, gold: str) -> bool:
    return bool(grade(kind, rf"\boxed{{{answer}}}", gold).correct)


def _is_quantity(final: str) -> bool:
    """Whether it is one number, perhaps with a unit in words."""
    bare = _NUMBER.fullmatch(final) is not None
    return (bare or usual_grader(final) == "numeric") and len(numbers(final)) == 1


class Ballots:
    """The votes of answers: by request, each final answer in the form in which it came first."""

    def __init__(self) -> None:
        self._forms: dict[str, list[str]] = {}

    def vote(self, request: str, text: str) -> str | None:
        """The form of the final answer of a text; None: it does not vote."""
        final = final_answer(text)
        if final is None:
            return None
        forms = self._forms.setdefault(request, [])
        same = next((form for form in forms if agree(final, form)), None)
        if same is None:
            forms.append(final)
        return same or final
