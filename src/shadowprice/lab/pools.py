"""Pools: the recorded answers of one model as arrays, each question with a forecast that has not seen it.

A greedy answer is the same at every limit up to where it ends, so replaying a trace at a smaller limit is
exact. An answer that was cut, in the recording or by the pool's cap, solved nothing, and how long it would
have become nobody knows: it counts as one that would use up whatever it is granted, up to the cap.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from shadowprice.errors import InputError
from shadowprice.forecast import Forecaster
from shadowprice.forecast.splits import folds, question_key
from shadowprice.forecast.text import TextForecaster
from shadowprice.types import Forecast, Request, Trace

Question: TypeAlias = "Sequence[Trace]"  # everything one model answered to it, first answer first
Mask: TypeAlias = NDArray[np.bool_]

TIERS = ("easy", "moderate", "hard", "very hard")
# The paper's tables 6 and 7; names without signs, case, and "test" or "train".
DATASET_TIERS = {
    "gsm8k": 0,
    "math": 1,
    "math500": 1,
    "olympiadbench": 2,
    "amc23": 2,
    "aime24": 3,
    "aime2024": 3,
    "aime25": 3,
    "aime2025": 3,
    "minerva": 3,
    "minervamath": 3,
}
FEWEST = 40  # questions: with fewer there is nothing to draw streams from, or to train on what is left
_FOLDS = 5
_LONGEST = 2**40  # tokens: beyond it a number is no length


@dataclass(frozen=True, eq=False)
class Recorded:
    """What one model answered. One row per question; where there are several answers to it, the first.

    length     tokens of the answer, at least 1; the cap where it was cut
    correct    right, and not cut
    truncated  cut, in the recording or by the cap
    """

    model: str
    cap: int
    questions: Sequence[Question]

    def __len__(self) -> int:
        return len(self.questions)

    @cached_property
    def first(self) -> list[Trace]:
        return [answers[0] for answers in self.questions]

    @cached_property
    def truncated(self) -> Mask:
        return np.array([trace.truncated or trace.tokens > self.cap for trace in self.first], dtype=bool)

    @cached_property
    def length(self) -> NDArray[np.int64]:
        tokens = np.maximum(1, [trace.tokens for trace in self.first])
        return np.where(self.truncated, self.cap, tokens).astype(np.int64)

    @cached_property
    def correct(self) -> Mask:
        return np.array([bool(trace.correct) for trace in self.first], dtype=bool) & ~self.truncated

    @cached_property
    def under_cap(self) -> list[Trace]:
        """The first answers as they are under the cap."""
        columns = zip(self.first, self.length, self.truncated, self.correct, strict=True)
        return [replace(t, tokens=int(n), truncated=bool(cut), correct=bool(right)) for t, n, cut, right in columns]

    @cached_property
    def median(self) -> float:
        return float(np.median(self.length))

    @cached_property
    def tier(self) -> NDArray[np.intp]:
        """An index into TIERS: the paper's where it names all datasets, and more than one tier of them."""
        named = _named_tiers(self.first)
        if named is not None:
            return named
        rank = np.empty(len(self), dtype=np.intp)
        rank[np.argsort(self.length, kind="stable")] = np.arange(len(self))
        return rank * len(TIERS) // len(self)

    @property
    def tiers_by(self) -> str:
        return "quartile of the true length" if _named_tiers(self.first) is None else "dataset, as in the paper"


@dataclass(frozen=True, eq=False)
class Pool(Recorded):
    forecast: Forecast
    forecast_from: str


def _named_tiers(traces: Sequence[Trace]) -> NDArray[np.intp] | None:
    plain = [re.sub(r"[^a-z0-9]|test$|train$", "", trace.dataset.lower()) for trace in traces]
    found = np.array([DATASET_TIERS.get(name, -1) for name in plain], dtype=np.intp)
    return None if np.any(found < 0) or np.unique(found).size < 2 else found


# --- from traces to pools ----------------------------------------------------------------------


def recorded(traces: Iterable[Trace], cap: int | None = None) -> list[Recorded]:
    """The graded traces, by model and question; the model with most questions first.

    Without a cap it is the largest limit any answer was recorded under, as far as the traces tell.
    """
    found: dict[str, dict[tuple[str, str, str], list[Trace]]] = {}
    for trace in traces:
        if trace.tokens > _LONGEST:
            raise InputError(f"trace {trace.id!r:.60} has {trace.tokens} tokens", fix="no model generates that many")
        if trace.correct is not None:
            key = (trace.dataset, trace.id, question_key(trace.prompt))
            found.setdefault(trace.model, {}).setdefault(key, []).append(trace)
    pools = []
    for model, questions in found.items():
        answers = [sorted(each, key=lambda trace: trace.sample) for each in questions.values()]
        largest = max(max(trace.tokens, trace.max_tokens or 1, 1) for each in answers for trace in each)
        pools.append(Recorded(model, largest if cap is None else cap, answers))
    return sorted(pools, key=lambda pool: -len(pool))  # stable: at ties, as they came


def make_pool(recorded: Recorded, forecaster: Forecaster | None = None, *, calibrate: int = 0, about: str = "") -> Pool:
    """With a forecaster, its forecasts; else each question's are learnt from the other questions.

    `calibrate` questions are drawn and left out of the pool, and the forecaster is adapted to them.
    `about` says where the forecaster comes from.
    """
    model, cap, questions = recorded.model, recorded.cap, recorded.questions
    if len(questions) - calibrate < FEWEST:
        left = f", {calibrate} of them to calibrate with" if calibrate else ""
        raise InputError(
            f"{len(questions)} graded questions of model {model!r}{left}: too few",
            fix=f"give the traces of {FEWEST + calibrate} or more",
        )
    if forecaster is None:
        if calibrate:
            raise InputError("--calibrate: there is no forecaster to adapt", fix="give --train or --forecaster")
        return Pool(model, cap, questions, cross_fitted(questions, cap), "cross-fitted by question, 5 folds")
    if calibrate:
        chosen: list[int] = np.random.default_rng(0).permutation(len(questions))[:calibrate].tolist()
        asked = {question_key(questions[i][0].prompt) for i in chosen}
        forecaster = forecaster.adapt([_under(trace, cap) for i in chosen for trace in questions[i]])
        questions = [question for question in questions if question_key(question[0].prompt) not in asked]
        about = f"{about}, adapted to {calibrate} questions that are left out"
    return Pool(model, cap, questions, forecaster.predict(_queries(questions)), about)


def trained_without(train: Sequence[Trace], asked: Iterable[Recorded]) -> tuple[TextForecaster, int]:
    """A forecaster trained on traces of questions that nobody is asked, under the cap of the first; and on how many."""
    pools = list(asked)
    hidden = {question_key(question[0].prompt) for pool in pools for question in pool.questions}
    kept = [_under(trace, pools[0].cap) for trace in train if question_key(trace.prompt) not in hidden]
    if not kept:
        raise InputError("every training trace is of a question that is evaluated", fix="train on other questions")
    return TextForecaster().fit(kept), len(kept)


def cross_fitted(questions: Sequence[Question], cap: int) -> Forecast:
    """Forecasts for each fifth of the questions, learnt from the other four."""
    seen: dict[str, int] = {}
    number = np.array([seen.setdefault(question_key(q[0].prompt), len(seen)) for q in questions], dtype=np.intp)
    fold = folds(number, _FOLDS)
    parts, places = [], []
    for this in range(_FOLDS):
        inside: list[int] = np.flatnonzero(fold == this).tolist()
        outside: list[int] = np.flatnonzero(fold != this).tolist()
        others = [_under(trace, cap) for i in outside for trace in questions[i]]
        parts.append(TextForecaster().fit(others).predict(_queries([questions[i] for i in inside])))
        places.append(inside)
    return Forecast.joined(parts).take(np.argsort(np.concatenate(places)))


def _queries(questions: Sequence[Question]) -> list[Request]:
    return [Request(answers[0].id, answers[0].prompt) for answers in questions]


def _under(trace: Trace, cap: int) -> Trace:
    """The trace as it would have been recorded under the cap; an empty answer counts as one token."""
    if trace.tokens > cap:
        return replace(trace, tokens=cap, truncated=True, correct=False)
    return trace if trace.tokens else replace(trace, tokens=1)
