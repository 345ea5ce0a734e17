"""What an answer is charged, and when its stream is cut, by what has arrived. The table is in `openai`.

Texts are measured in characters. A Chinese, Japanese or Korean one counts as 3, because most are a whole token or half
of one. A run of one sign (spaces of an indentation, dashes of a table) counts as 4: up to 128 are one token.

How many characters a token has is learned from credible answers: those whose count, given by the server, is not below
their pieces, not above their limit and plausible for their text, and that hide no reasoning. A server that ignores its
limit shows long texts of few tokens, so all numbers are kept within what languages and programs have.

                                     at first   learned
    typical, to estimate a count            4   the average, from 1 to 6
    most, to find a count impossible       10   1.5 times the densest answer, from 8 to 15

Of 2,133 recorded answers of two small models (arithmetic, prose, code; 2.6 and 3.1 on average), the densest has 6.3.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

__all__ = ["Charge", "Density", "Seen", "charge", "is_doubtful", "is_over", "length", "surplus"]

_SLACK = 64  # characters above any density: a few long words
_LONGEST_RUN = 128  # of one sign, in one token
_ONE_TOKEN = 7  # characters: pieces that are not longer on average look like one token each
_SHORTEST_LESSON = 16  # tokens; shorter answers vary too much
_LESSONS = 8  # answers to learn from before the densest one counts
_DOUBT = 1.5  # an estimate may be this many times the truth: 6 characters a token, where 4 are assumed, are not rare
_RUN = re.compile(r"([\W_])\1{4,}")
_WIDE = re.compile("[\u2e80-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff]")


def length(text: str) -> int:
    """The characters of a text."""
    return len(text) if text.isascii() else len(text) + 2 * len(_WIDE.findall(text))


def surplus(text: str) -> int:
    """By how much `length` is too high because of runs of one sign; computed only if a text seems too long."""
    sizes = [run.end() - run.start() for run in _RUN.finditer(text)]
    return sum(size - 4 * -(-size // _LONGEST_RUN) for size in sizes)


class Density:
    """Characters per token in the answers of one server."""

    def __init__(self) -> None:
        self._characters = self._tokens = self._answers = 0
        self._densest = 0.0

    @property
    def typical(self) -> float:
        return min(max(self._characters / self._tokens, 1.0), 6.0) if self._tokens else 4.0

    @property
    def most(self) -> float:
        return min(max(1.5 * self._densest, 8.0), 15.0) if self._answers >= _LESSONS else 10.0

    def learn(self, characters: int, tokens: int) -> None:
        """Learns from a credible answer; densities that no text has are ignored."""
        if tokens >= _SHORTEST_LESSON and 0.5 <= characters / tokens <= 10:
            self._characters += characters
            self._tokens += tokens
            self._answers += 1
            self._densest = max(self._densest, characters / tokens)

    def longest(self, tokens: int) -> int:
        """The most characters that these tokens can have."""
        return int(self.most * tokens) + _SLACK

    def fewest(self, characters: int) -> int:
        """The fewest tokens that a text of these characters has."""
        return max(0, -int(-(characters - _SLACK) // self.most))

    def estimate(self, pieces: int, characters: int) -> int:
        """Tokens of a text: its pieces if they look like one token each, else by its length."""
        if characters <= _ONE_TOKEN * pieces:
            return pieces
        return max(pieces, -int(-characters // self.typical))


class Seen(NamedTuple):
    """What arrived of an answer."""

    pieces: int
    characters: int
    used: int | None  # tokens, by the server
    reasoning: int = 0  # tokens of these, by the server
    wrong: bool = False  # the server's count is not a count
    cut: bool = False  # the server says that the limit ended it
    counted: int | None = None  # tokens of the text, by the server's tokenizer
    early: bool = False  # more text came after the server's count
    hidden: int = 0  # tokens of its count that only its total shows


class Charge(NamedTuple):
    """`least` are the tokens that were certainly generated, if `tokens` is more than a count."""

    tokens: int
    source: Literal["server", "counted", "assumed"]
    flags: tuple[str, ...] = ()
    least: int | None = None


def is_over(seen: Seen, limit: int, density: Density) -> bool:
    """Whether more arrived than `limit` tokens can be."""
    if seen.pieces > limit or seen.characters > density.longest(limit):
        return True
    # A text may be written in other tokens than the tokenizer would choose: a small excess shows nothing.
    return (_counted(seen, density) or 0) > limit + max(8, limit // 50)


def is_doubtful(seen: Seen, limit: int, density: Density) -> bool:
    """Whether a tokenizer should count: the text looks longer than what would be charged for it."""
    estimate = density.estimate(seen.pieces, seen.characters)
    return estimate > limit if seen.used is None or seen.early else estimate > 1.1 * min(seen.used, limit) + 8


def charge(seen: Seen, limit: int, density: Density) -> Charge:
    used, counted = seen.used or 0, _counted(seen, density)
    certain = used - seen.hidden  # a total may have more in it than the prompt and the answer
    estimate = density.estimate(seen.pieces, seen.characters) if counted is None else counted
    shown = max(seen.pieces, density.fewest(seen.characters))
    if is_over(seen, limit, density):
        least = max(shown, certain, counted or 0, limit + 1)
        return Charge(max(estimate, least, used), "counted", ("limit_ignored",), least)
    # An answer that was cut at its limit cannot have been empty, even if none of it was shown.
    low = max(shown, int(seen.cut), 9 * (counted or 0) // 10 - 8)
    too_low = seen.used is not None and max(0 if seen.early else low, seen.reasoning) > used
    if seen.wrong or too_low:
        tokens = max(limit, estimate if counted is None else 0, used, seen.reasoning)
        ignored = ("limit_ignored",) if max(used, seen.reasoning) > limit else ()
        return Charge(tokens, "assumed", ("usage_wrong", *ignored), max(low, certain))
    if used > limit:
        exact = not seen.hidden and not seen.early
        tokens = max(used, estimate if seen.early else 0)
        return Charge(tokens, "server", ("limit_ignored",), None if exact else max(low, certain))
    if seen.used is not None and not seen.early:
        return Charge(used, "server")
    if counted is None and estimate > _DOUBT * limit:
        return Charge(estimate, "assumed", ("usage_estimated",), max(low, certain))
    return Charge(limit, "assumed", least=max(low, certain))


def _counted(seen: Seen, density: Density) -> int | None:
    """The tokenizer's count, unless the text cannot have that few tokens."""
    if seen.counted is None or seen.counted < max(1, seen.pieces, density.fewest(seen.characters)):
        return None
    return seen.counted
