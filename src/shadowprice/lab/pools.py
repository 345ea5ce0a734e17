"""Pools: the recorded answers of one model as arrays, each question with a forecast that has not seen it.

A greedy answer is the same under every limit, up to where it is truncated, so a trace can be simulated exactly at any
smaller limit. An answer that was truncated, in the recording or by the pool's cap, counts as not correct. Its full
length is unknown: it is treated as an answer that uses its whole grant, up to the cap.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from shadowprice.arrays import Array
from shadowprice.errors import InputError
from shadowprice.forecast import Forecaster
from shadowprice.forecast.reading import AGES, TRAITS, Reader, is_readable, text_at, traits
from shadowprice.forecast.splits import folds, question_key
from shadowprice.forecast.text import TextForecaster
from shadowprice.market.anytime import Anytime
from shadowprice.market.gittins import Readings
from shadowprice.types import Forecast, Request, Trace

Question: TypeAlias = "Sequence[Trace]"  # all answers of one model to it, in the order of their samples
Mask: TypeAlias = NDArray[np.bool_]

TIERS = ("easy", "moderate", "hard", "very hard")
# The paper's tables 6 and 7. Names in lower case, without punctuation and a final "test" or "train".
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
FEWEST = 40  # questions: fewer are not enough to draw streams from, or to cross-fit forecasts on
_FOLDS = 5
_LONGEST = 2**40  # tokens of an answer; larger numbers are invalid


@dataclass(frozen=True, eq=False)
class Recorded:
    """The answers of one model. Arrays have one entry per question, for its first answer.

    length     tokens of the answer, at least 1; the cap where it was truncated
    correct    graded as correct, and not truncated
    truncated  in the recording or by the cap
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
        """The first answers, limited to the cap."""
        columns = zip(self.first, self.length.tolist(), self.truncated.tolist(), self.correct.tolist(), strict=True)
        return [replace(under(t, self.cap), tokens=n, truncated=cut, correct=ok) for t, n, cut, ok in columns]

    @cached_property
    def median(self) -> float:
        return float(np.median(self.length))

    @cached_property
    def tier(self) -> NDArray[np.intp]:
        """Indices into TIERS: by dataset if the paper has all of them in two tiers or more, else by true length."""
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
    """Recorded answers with forecasts.

    anytime  what the forecaster knows about landings, if anything
    reader   reads parts of the answers; None: they are not read
    """

    forecast: Forecast
    forecast_from: str
    anytime: Anytime | None = None
    reader: PoolReader | None = None

    @cached_property
    def texts(self) -> Array | None:
        """The traits of every answer at the ages at which it is read, NaN if it has no text; None: nothing is read."""
        if self.reader is None:
            return None
        found = np.zeros((len(self), len(AGES), TRAITS))
        for place, trace in enumerate(self.first):
            if not is_readable(trace):
                found[place] = np.nan
                continue
            for stage, age in enumerate(AGES):
                if age >= self.cap or (age >= trace.tokens and not trace.truncated):
                    break
                found[place, stage] = traits(text_at(trace, age))
        return found

    def take(self, places: NDArray[np.intp]) -> Pool:
        """Some of the questions."""
        questions = [self.questions[place] for place in places]
        reader = self.reader and self.reader.take(places)
        taken = replace(self, questions=questions, forecast=self.forecast.take(places), reader=reader)
        if "texts" in self.__dict__ and self.texts is not None:  # they take long to make
            taken.__dict__["texts"] = self.texts[places]
        return taken


@dataclass(frozen=True, eq=False)
class PoolReader:
    """Several readers, each for some of the questions: `which` has the number of its reader for every question."""

    readers: Sequence[Reader]
    which: NDArray[np.intp]

    def take(self, places: NDArray[np.intp]) -> PoolReader:
        return replace(self, which=self.which[places])

    def revise(self, places: Sequence[int], forecast: Forecast, age: Array, observed: Array) -> Readings:
        found = Readings(*np.zeros((3, len(places))))
        which = self.which[list(places)]
        for number in np.unique(which).tolist():
            own = np.flatnonzero(which == number)
            revised = self.readers[number].revise(own.tolist(), forecast.take(own), age[own], observed[own])
            for values, new in zip(found, revised, strict=True):
                values[own] = new
        return found


def reads_all(reader: Reader | None, questions: int) -> PoolReader | None:
    """The same reader for all questions."""
    return PoolReader([reader], np.zeros(questions, dtype=np.intp)) if reader else None


def _named_tiers(traces: Sequence[Trace]) -> NDArray[np.intp] | None:
    plain = [re.sub(r"[^a-z0-9]|test$|train$", "", trace.dataset.lower()) for trace in traces]
    tier = np.array([DATASET_TIERS.get(name, -1) for name in plain], dtype=np.intp)
    return None if np.any(tier < 0) or np.unique(tier).size < 2 else tier


# --- from traces to pools ----------------------------------------------------------------------


def recorded(traces: Iterable[Trace], cap: int | None = None) -> list[Recorded]:
    """The graded traces by model and question, the model with the most questions first.

    The same model at another temperature counts as another model: sampled and greedy answers are not compared. The
    default cap is the largest limit or length in a model's traces.
    """
    found: dict[str, dict[tuple[str, str, str], list[Trace]]] = {}
    for trace in traces:
        if trace.tokens > _LONGEST:
            raise InputError(f"trace {trace.id!r:.60} has {trace.tokens} tokens", fix="no model generates that many")
        if trace.correct is not None:
            key = (trace.dataset, trace.id, question_key(trace.prompt))
            name = f"{trace.model}, T = {trace.temperature:g}" if trace.temperature else trace.model
            found.setdefault(name, {}).setdefault(key, []).append(trace)
    pools = []
    for model, questions in found.items():
        answers = [sorted(each, key=lambda trace: trace.sample) for each in questions.values()]
        largest = max(max(trace.tokens, trace.max_tokens or 1, 1) for each in answers for trace in each)
        pools.append(Recorded(model, largest if cap is None else cap, answers))
    return sorted(pools, key=lambda pool: -len(pool))  # stable: ties stay in the order of the traces


def make_pool(recorded: Recorded, forecaster: Forecaster | None = None, *, calibrate: int = 0, about: str = "") -> Pool:
    """A pool with the forecasts of `forecaster`; without one, each question's forecast is learned from the others.

    calibrate  this many questions are drawn and left out of the pool, and the forecaster is adapted to them
    about      where the forecaster comes from, for the results
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
            raise InputError("--calibrate: no forecaster to adapt", fix="give --train or --forecaster")
        forecast, reader = cross_fitted(questions, cap)
        return Pool(model, cap, questions, forecast, "cross-fitted by question, 5 folds", reader=reader)
    if calibrate:
        chosen: list[int] = np.random.default_rng(0).permutation(len(questions))[:calibrate].tolist()
        used = {question_key(questions[i][0].prompt) for i in chosen}
        forecaster = forecaster.adapt([under(trace, cap) for i in chosen for trace in questions[i]])
        questions = [question for question in questions if question_key(question[0].prompt) not in used]
        about = f"{about}, adapted to {calibrate} questions that are left out"
    forecast = forecaster.predict(_queries(questions))
    reader = reads_all(forecaster.reader, len(questions))
    return Pool(model, cap, questions, forecast, about, forecaster.anytime, reader)


def trained_without(
    train: Sequence[Trace], evaluated: Sequence[Recorded], cap: int | None = None
) -> tuple[TextForecaster, int]:
    """A forecaster trained on the traces of all questions that are not in `evaluated`, and how many traces these are.

    Traces are limited to the cap, by default that of the first pool.
    """
    hidden = {question_key(question[0].prompt) for pool in evaluated for question in pool.questions}
    kept = [under(trace, cap or evaluated[0].cap) for trace in train if question_key(trace.prompt) not in hidden]
    if not kept:
        raise InputError("every training trace is of a question that is evaluated", fix="train on other questions")
    return TextForecaster().fit(kept), len(kept)


def cross_fitted(questions: Sequence[Question], cap: int) -> tuple[Forecast, PoolReader | None]:
    """Forecasts for each fifth of the questions, learned from the other four; and who reads the answers to them."""
    seen: dict[str, int] = {}
    number = np.array([seen.setdefault(question_key(q[0].prompt), len(seen)) for q in questions], dtype=np.intp)
    fold = folds(number, _FOLDS)
    parts, places, readers = [], [], []
    for this in range(_FOLDS):
        inside: list[int] = np.flatnonzero(fold == this).tolist()
        outside: list[int] = np.flatnonzero(fold != this).tolist()
        others = [under(trace, cap) for i in outside for trace in questions[i]]
        forecaster = TextForecaster().fit(others)
        parts.append(forecaster.predict(_queries([questions[i] for i in inside])))
        readers.append(forecaster.reader)
        places.append(inside)
    known = [reader for reader in readers if reader is not None]
    forecast = Forecast.joined(parts).take(np.argsort(np.concatenate(places)))
    return forecast, PoolReader(known, fold) if len(known) == _FOLDS else None


def _queries(questions: Sequence[Question]) -> list[Request]:
    return [Request(answers[0].id, answers[0].prompt) for answers in questions]


def under(trace: Trace, cap: int) -> Trace:
    """The trace as it would be recorded with the cap as limit; an empty answer counts as one token."""
    if trace.tokens > cap:
        text = trace.response and text_at(trace, cap)
        return replace(trace, tokens=cap, truncated=True, correct=False, response=text)
    return trace if trace.tokens else replace(trace, tokens=1)
