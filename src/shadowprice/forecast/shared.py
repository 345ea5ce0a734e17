"""Removes the text that nearly all requests of a batch share before forecasts are made.

An instruction after every question, such as "Please reason step by step, and put your final answer within \\boxed{}.",
does not make one answer longer than another. But a forecaster that was trained on questions alone would read it as a
part of the question. So system prompts, preambles with examples and closing instructions are removed.

Only whole sentences, lines, asides, labels such as "Question:" and marks such as <question> or [INST] are removed, and
quotes around a question with them, so that questions with similar words ("What is the sum of 3 and 4?") stay whole; and
never all of a text. The instructions of our own templates are removed from any text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING

from shadowprice.formats.templates import INSTRUCTIONS, PLAIN
from shadowprice.types import Forecast, Request

if TYPE_CHECKING:
    from shadowprice.forecast.base import Predictor

__all__ = ["SharedText", "WithoutTemplate", "without_shared_text"]

_FEWEST = 8  # different texts; fewer may be similar by chance
_SHARE = 0.95  # of the texts
# Where a sentence, a line, or a label such as "Answer the question:" ends, and the next one begins.
_BREAK = r"\n\s*|[.!?][\"'”’)\]*]*\s+|(?<=[a-z]{2})\s+(?:--?|[–—])\s+"
_MARK = r"<[/|]?[A-Za-z][\w|/.:-]*>|\[/?[A-Z]{2,}\]"
_START = re.compile(rf"{_BREAK}|(?:{_MARK})\s*")
_REST = re.compile(rf"{_BREAK}|\s(?=\()|(?={_MARK})")  # what follows the question, not always a sentence
_QUOTED = re.compile(r"[\"“«](.+)[\"”»]", re.DOTALL)
_LABEL = re.compile(r"[#*\s]*\w+(?: \w+){0,7}[*]*:[*]*\s+")
_WORD = re.compile(r"\w")


class SharedText:
    """What the texts of a batch share. The batch may come in parts: one with few texts is treated like those before."""

    def __init__(self) -> None:
        self._prefix = self._suffix = ""

    def strip_requests(self, requests: Sequence[Request]) -> Sequence[Request]:
        texts = [request.text for request in requests]
        stripped = self.strip(texts)
        if stripped == texts:
            return requests
        return [
            request if text == request.text else replace(request, text=text)
            for request, text in zip(requests, stripped, strict=True)
        ]

    def strip(self, texts: Sequence[str]) -> list[str]:
        texts = [_without_instruction(text) for text in texts]
        different = sorted(set(texts))
        if len(different) >= _FEWEST:
            self._prefix = _whole_prefix(_shared_prefix(different))
            backwards = sorted(text[::-1] for text in different)
            self._suffix = _whole_suffix(_shared_prefix(backwards)[::-1])
        if not self._prefix and not self._suffix:
            return texts
        return [self._strip_one(text) for text in texts]

    def _strip_one(self, text: str) -> str:
        rest = text.removeprefix(self._prefix)
        rest = rest.removesuffix(self._suffix) if len(rest) > len(self._suffix) else rest
        if len(rest) == len(text):
            return text
        rest = rest.strip()
        if quoted := _QUOTED.fullmatch(rest):
            rest = quoted[1].strip()
        return rest if _WORD.search(rest) else text


class WithoutTemplate:
    """A predictor for requests made with `template` and `system`: it is given the questions alone, however few."""

    def __init__(self, predictor: Predictor, template: str = PLAIN, system: str | None = None) -> None:
        before, _, after = template.partition(PLAIN)
        self._predictor, self._after = predictor, after.strip()
        self.anytime = getattr(predictor, "anytime", None)
        self.reader = getattr(predictor, "reader", None)
        self._before = [text.strip() for text in (system or "", before) if text.strip()]

    def predict(self, requests: Sequence[Request]) -> Forecast:
        return self._predictor.predict([replace(request, text=self._question(request.text)) for request in requests])

    def _question(self, text: str) -> str:
        rest = text.strip()
        for words in self._before:
            rest = rest.removeprefix(words).lstrip()
        rest = rest.removesuffix(self._after).rstrip() if self._after else rest
        return rest if _WORD.search(rest) else text


def without_shared_text(texts: Sequence[str]) -> list[str]:
    """The texts of one batch, without what they share."""
    return SharedText().strip(texts)


def _without_instruction(text: str) -> str:
    for instruction in INSTRUCTIONS:
        if text.endswith(instruction) and _WORD.search(rest := text.removesuffix(instruction)):
            return rest.rstrip()
    return text


def _shared_prefix(texts: list[str]) -> str:
    """The longest prefix that at least `_SHARE` of `texts` have in common. Sorted, these texts are neighbours."""
    width = ceil(_SHARE * len(texts))
    longest = ""
    for first, last in zip(texts, texts[width - 1 :], strict=False):
        low, high = len(longest), min(len(first), len(last))
        if not last.startswith(first[:low]):
            continue
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if last.startswith(first[:middle]) else (low, middle - 1)
        longest = max(longest, first[:low], key=len)
    return longest


def _whole_prefix(shared: str) -> str:
    """As much of it as ends with a sentence, a line or a label."""
    end = 0
    for start in _START.finditer(shared):
        end = start.end()
    if label := _LABEL.match(shared, end):
        end = label.end()
    return shared[:end] if _WORD.search(shared, 0, end) else ""


def _whole_suffix(shared: str) -> str:
    """As much of it as begins with a sentence, a line, an aside or a mark."""
    if not _WORD.search(rest := shared.lstrip('"”»')):
        return ""
    space = rest[: len(rest) - len(rest.lstrip())]
    if "\n" in space or (space and rest.lstrip()[:1].isupper()):
        return rest
    found = _REST.search(shared)
    return shared[found.end() :] if found else ""
