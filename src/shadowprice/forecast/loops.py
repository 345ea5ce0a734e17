"""Answers that repeat themselves: they hardly ever end, and more tokens are worth nothing."""

from __future__ import annotations

_WINDOW = 600  # characters at the end of a text
_TIMES = 3  # how often the repeated part must fit into them


def is_looping(text: str) -> bool:
    """Whether the end of a text is the same part repeated, at least three times.

    In recorded answers of 27 models 592 of 14,235 loop in this sense; 18 of those end by themselves, 2 of them
    correctly (docs/log.md).
    """
    end = text[-_WINDOW:]
    return len(end) == _WINDOW and any(end[n:] == end[:-n] for n in range(1, _WINDOW // _TIMES + 1))
