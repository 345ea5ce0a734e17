"""A forecast from the words of the question, learnt from recorded generations in a second."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Self
from zlib import crc32

import numpy as np

from shadowprice.arrays import Array
from shadowprice.errors import InputError
from shadowprice.types import Forecast, Query, Trace

_WORD = re.compile(r"[a-z]+|\d+|[^\sa-z\d]")
_COLUMNS = 2048


class Words:
    """Ridge regression of log length and of success on hashed words, pairs of words and sizes.

    Numbers are taken by their number of digits. Good enough to tell kinds of questions apart;
    `spread` is what the fit leaves unexplained, one for all.
    """

    def __init__(self, penalty: float = 3.0) -> None:
        self.penalty = penalty

    def fit(self, traces: Iterable[Trace]) -> Self:
        kept = [trace for trace in traces if trace.tokens > 0]
        if len(kept) < 10:
            raise InputError(f"{len(kept)} traces are too few to learn from", fix="give ten or more")
        x = _features([trace.prompt for trace in kept])
        y = np.column_stack([np.log([t.tokens for t in kept]), [float(bool(t.correct)) for t in kept]])
        self._mean = y.mean(axis=0)
        inverse = np.linalg.inv(x.T @ x + self.penalty * np.eye(_COLUMNS))
        self._weights = inverse @ (x.T @ (y - self._mean))
        # What the fit would have missed each trace by without it: leave-one-out, in closed form.
        leverage = np.einsum("ij,jk,ik->i", x, inverse, x, optimize=True)
        missed = (y - self._mean - x @ self._weights)[:, 0] / (1 - leverage)
        self._spread = float(np.clip(missed.std(), 0.05, 3.0))
        return self

    def predict(self, queries: Sequence[Query]) -> Forecast:
        found = _features([query.text for query in queries]) @ self._weights + self._mean
        return Forecast(np.exp(np.clip(found[:, 0], 0.0, 15.0)), self._spread, np.clip(found[:, 1], 0.01, 0.99))


def _features(texts: Sequence[str]) -> Array:
    x = np.zeros((len(texts), _COLUMNS))
    for row, text in zip(x, texts, strict=True):
        words = [f"#{len(w)}" if w.isdigit() else w for w in _WORD.findall(text.lower())]
        for word in [*words, *map(" ".join, pairwise(words))]:
            row[crc32(word.encode()) % (_COLUMNS - 2)] = 1.0
        row[:-2] /= max(1.0, float(np.sqrt(row.sum())))
        row[-2:] = np.log1p(len(text)) / 5, np.log1p(len(words)) / 4
    return x
