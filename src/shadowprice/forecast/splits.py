"""Dividing traces so that nothing learnt from a question is ever judged on that question.

Traces are divided by question, never by sample: all generations for one question, by whatever model,
are on the same side. Two questions are the same if they differ in white space and case only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shadowprice.types import Trace

Mask = NDArray[np.bool_]


def question_key(prompt: str) -> str:
    """The same for two prompts that ask the same question."""
    return "".join(prompt.casefold().split())


def questions_of(traces: Sequence[Trace]) -> NDArray[np.intp]:
    """A number for each trace: the same for the same question, in order of appearance."""
    seen: dict[str, int] = {}
    return np.array([seen.setdefault(question_key(trace.prompt), len(seen)) for trace in traces], dtype=np.intp)


def held_out(traces: Sequence[Trace], share: float, seed: int = 0) -> Mask:
    """Marks the traces of about this share of the questions. The same question is always on the same side,

    also when other traces are added: which side hangs on its text and the seed alone.
    """
    return np.array([_fraction(trace.prompt, seed) < share for trace in traces], dtype=bool)


def folds(questions: NDArray[np.intp], count: int, seed: int = 0) -> NDArray[np.intp]:
    """The fold, from 0 to `count` - 1, of each trace; folds are equal in questions."""
    shuffled = np.random.default_rng(seed).permutation(int(questions.max(initial=-1)) + 1)
    return np.asarray(shuffled % count, dtype=np.intp)[questions]


def _fraction(prompt: str, seed: int) -> float:
    digest = hashlib.sha256(f"{seed}:{question_key(prompt)}".encode(errors="replace")).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
