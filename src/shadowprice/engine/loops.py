"""Answers that repeat themselves: they never end, and what they repeat is worth nothing more."""

from __future__ import annotations

_WINDOW = 600  # characters at the end of a text
_TIMES = 3  # that the repeated part fits into them


def is_looping(text: str) -> bool:
    """Whether the end of a text is the same part again and again, three times at least.

    In recorded answers of 27 models 592 of 14,235 loop in this sense; 18 of those end by themselves, 2 of them
    correctly (docs/log.md).
    """
    end = text[-_WINDOW:]
    return len(end) == _WINDOW and any(end[n:] == end[:-n] for n in range(1, _WINDOW // _TIMES + 1))
