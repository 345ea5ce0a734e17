"""Splitting traces so that no forecaster is evaluated on a question it was trained on.

Traces are split by question, never by sample: all answers to one question, by any model, are on the same
side. Two questions are the same if they differ only in white space and case.
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
    """Marks the traces of about this share of the questions.

    A question stays on its side when other traces are added: the side depends only on its text and the seed.
    """
    return np.array([_fraction(trace.prompt, seed) < share for trace in traces], dtype=bool)


def folds(questions: NDArray[np.intp], count: int, seed: int = 0) -> NDArray[np.intp]:
    """The fold, from 0 to `count` - 1, of each trace; all folds have the same number of questions, give or take one."""
    shuffled = np.random.default_rng(seed).permutation(int(questions.max(initial=-1)) + 1)
    return np.asarray(shuffled % count, dtype=np.intp)[questions]


def _fraction(prompt: str, seed: int) -> float:
    digest = hashlib.sha256(f"{seed}:{question_key(prompt)}".encode(errors="replace")).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
