r"""What a part of an answer says about the rest of it.

A forecast is made from the question. An answer that has begun says more: whether it has come to its conclusion, counts
its steps, doubts, or repeats itself. A run that pays for tokens as they are generated has read every answer so far, at
no cost. At some ages (`AGES`) the traits of the text (`traits`) revise what is forecast of the rest, by

    stretch   what is left is so many times as long as the forecast of an answer of this age says
    odds      the log odds that a correct answer is still to come, more than the forecast says

Both follow from columns x: the age, the traits, and the traits times the age. With the median m of what is left and
the chance p by the forecast, and R the tokens that were left, over parts of recorded answers with weights v,

    length  = argmin  sum v (log R - log m - x . length)^2 + penalty |length|^2           stretch = exp(x . length)
    correct = argmin  sum v (correct - p - x . correct)^2 + penalty |correct|^2

so all that has to be kept are the sums X'VX, X'V(log R - log m) and X'V(correct - p). A reader for another model adds
the sums of its traces, with more weight, to those it has. Both results are then scaled: on average over answers of an
age they are 0, and differences between answers count as far as they held for traces of this model that were left out.
What is left of a truncated answer is unknown: it counts as a little longer than what was recorded.

`market.gittins` says how stretch and odds change the index.
"""

from __future__ import annotations

import re
import zlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import logit

from shadowprice.arrays import Array
from shadowprice.forecast.calibration import Calibration
from shadowprice.forecast.conditional import chance_left, remaining
from shadowprice.forecast.loops import is_looping
from shadowprice.forecast.splits import folds, questions_of
from shadowprice.market.gittins import Readings
from shadowprice.types import Completion, Forecast, Trace

AGES = (64, 128, 192, 256, 384, 512, 768, *(1024 * 2**n * part // 2 for n in range(6) for part in (2, 3)))  # tokens
_FILE = "reader.npz"
_FEWEST = 30  # questions of a model
_FOLDS = 5
_EACH = 2  # answers to a question
_MOST = 600  # answers of a model
_MARKS = (
    ("\\boxed",),
    ("final answer",),
    ("answer is", "answer:"),
    ("therefore", "thus", "hence", " so "),
    ("step ", "\n#"),
    ("wait", "hmm", "alternatively", "let me"),
    ("check", "verify", "double"),
    ("\n",),
    ("\n\n",),
    ("</think>",),
    ("```",),
    ("=",),
    ("?",),
)
_NUMBERED = re.compile(r"(?:step |^[ \t]*|#{1,6} )(\d{1,2})[.:)]", re.MULTILINE)
_TAIL, _RECENT = 300, 1500  # characters
TRAITS = 2 * len(_MARKS) + 9
_BASE = 3  # columns without traits
_COLUMNS = _BASE + 2 * TRAITS
_MIDDLE = 5.5  # log age
_PENALTY, _BASE_PENALTY = 300.0, 1.0
_ROWS = 15.0  # a model with n rows counts as sqrt(_ROWS n): one with many is not to decide alone
_OWN = 8.0  # weight of a row of the model that a reader is adapted to
_CLIP = 2.5  # log tokens: longer or shorter than that counts as that
_LONGER = 0.5  # log tokens that a truncated answer counts as longer
_EDGE = 4.0  # standard deviations
_STRETCH, _ODDS = 3.0, 4.0  # the largest logarithms of both
_NOISE, _GRADE_NOISE = 0.64, 0.2  # variances of what is left and of grades, given the columns
_INDEPENDENT = 3.0  # parts of the same answer are alike: it counts as so many
_SLOPE_SD, _STEEPEST = 0.3, 1.2  # of the prior when results are scaled, and the largest slope
_CHANCES = (0.005, 0.995)


def traits(text: str) -> list[float]:
    """The traits of the text of an answer so far."""
    lower = text.lower()
    tail, recent = lower[-_TAIL:], lower[-_RECENT:]
    found = [sum(map(part.count, words)) for words in _MARKS for part in (lower, tail)]
    box, final = lower.find("\\boxed"), lower.rfind("final answer")
    packed = len(zlib.compress(recent.encode(errors="replace"), 1)) / max(1, len(recent))
    return [
        *np.log1p(found).tolist(),
        float(np.log1p(max((int(number) for number in _NUMBERED.findall(lower)), default=0))),
        float(is_looping(lower)),
        packed,
        float(np.log1p(len(lower))),
        float(np.log1p(len(lower) - box)) if box >= 0 else 0.0,
        float(np.log1p(len(lower) - final)) if final >= 0 else 0.0,
        sum(letter.isdigit() for letter in tail) / _TAIL,
        float(lower.rstrip()[-1:] == "."),
        float(lower.endswith("\n")),
    ]


def next_age(age: int) -> int | None:
    """The first of `AGES` after this one."""
    place = bisect_right(AGES, age)
    return AGES[place] if place < len(AGES) else None


class Sums(NamedTuple):
    """X'VX, and X'V times both targets (columns): log R - log m, and correct - p."""

    square: Array
    targets: Array

    def __add__(self, other: Sums) -> Sums:  # type: ignore[override]
        return Sums(self.square + other.square, self.targets + other.targets)


class _Rows(NamedTuple):
    """Parts of recorded answers, one a row, with what was left of the whole.

    question  the number of the question
    targets   log R - log m, and correct - p
    """

    question: NDArray[np.intp]
    traits: Array
    age: Array
    targets: Array

    def columns(self, centre: Array, scale: Array) -> Array:
        return _columns(self.traits, self.age, centre, scale)


@dataclass(frozen=True, eq=False)
class Reader:
    """Reads parts of answers. Made by `fit`, or from another one by `adapt`.

    centre, scale  mean and standard deviation of the traits
    sums           of the rows that it was fitted to
    own            whether the latest traces were of one model and had texts: that is the model it reads. If not, it is
                   not used
    for_length     x . length becomes shift + turn (log age - 5.5) + slope x . length
    for_correct    x . correct becomes shift + slope x . correct
    """

    centre: Array
    scale: Array
    sums: Sums
    own: bool = False
    for_length: tuple[float, ...] = (0.0, 0.0, 1.0)
    for_correct: tuple[float, ...] = (0.0, 1.0)

    @classmethod
    def fit(cls, forecast: Forecast, traces: Sequence[Trace]) -> Self | None:
        """From forecasts for `traces`, one each, by a forecaster that was not trained on them.

        Each of several models is calibrated by itself: its habits are not what is to be read. None: too few answers
        have a text.
        """
        models = dict.fromkeys(trace.model for trace in traces)
        by_model = [rows for model in models if (rows := _calibrated_rows(model, forecast, traces)) is not None]
        if not by_model:
            return None
        every = np.concatenate([rows.traits for rows in by_model])
        centre, scale = every.mean(axis=0), every.std(axis=0) + 1e-3
        if len(models) == 1:
            nothing = Sums(np.zeros((_COLUMNS, _COLUMNS)), np.zeros((_COLUMNS, 2)))
            return cls(centre, scale, nothing, own=True)._with(by_model[0])
        sums = [_sums(rows.columns(centre, scale), rows.targets, np.sqrt(_ROWS / len(rows.age))) for rows in by_model]
        return cls(centre, scale, sum(sums[1:], sums[0]), own=False)

    def adapt(self, forecast: Forecast, traces: Sequence[Trace]) -> Self:
        """For the model of these traces; `forecast` is calibrated to it. It is not used for a model without texts, or
        for several models."""
        rows = _rows(forecast, traces) if len({trace.model for trace in traces}) == 1 else None
        return self._with(rows) if rows is not None else replace(self, own=False)

    def _with(self, rows: _Rows) -> Self:
        """A reader that also knows these rows, of the model that it is to read."""
        x, fold = rows.columns(self.centre, self.scale), folds(rows.question, _FOLDS)
        own = [_sums(x[fold == each], rows.targets[fold == each], _OWN) for each in range(_FOLDS)]
        # How far results hold is seen on questions that a reader has not seen.
        unseen = np.empty((len(x), 2))
        for each in range(_FOLDS):
            others = sum((sums for number, sums in enumerate(own) if number != each), self.sums)
            unseen[fold == each] = x[fold == each] @ _weights(others)
        return self._scaled(sum(own, self.sums), rows, unseen)

    def revise(self, places: Sequence[int], forecast: Forecast, age: Array, observed: Array) -> Readings:
        """From forecasts of some requests, the ages at which their answers were read, and the traits observed there.

        `places` say which requests these are; it is the same reader for all.
        """
        chance = chance_left(forecast, age)
        x = _columns(observed, age, self.centre, self.scale)
        shift, turn, slope = self.for_length
        longer = shift + turn * (np.log(age) - _MIDDLE) + slope * (x @ self._weights[:, 0])
        shift, slope = self.for_correct
        revised = np.clip(chance + shift + slope * (x @ self._weights[:, 1]), *_CHANCES)
        odds = np.clip(logit(revised) - logit(np.clip(chance, *_CHANCES)), -_ODDS, _ODDS)
        return Readings(age, np.exp(np.clip(longer, -_STRETCH, _STRETCH)), odds)

    @cached_property
    def _weights(self) -> Array:
        return _weights(self.sums)

    def _scaled(self, sums: Sums, rows: _Rows, found: Array) -> Self:
        """A reader with these sums, whose results are scaled as what was found in the rows should have been.

        On average a reading changes nothing, since the forecast is calibrated.
        """
        one, since = np.ones(len(found)), np.log(rows.age) - _MIDDLE
        known = _INDEPENDENT * np.unique(rows.question).size / len(found)
        length = _scale(np.column_stack([one, since]), found[:, 0], rows.targets[:, 0], known / _NOISE)
        correct = _scale(one[:, None], found[:, 1], rows.targets[:, 1], known / _GRADE_NOISE)
        return replace(self, sums=sums, own=True, for_length=length, for_correct=correct)

    # --- saving --------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        upper = self.sums.square[np.triu_indices(len(self.sums.square))]
        arrays = {"square": upper, "targets": self.sums.targets}
        arrays |= {
            "centre": self.centre,
            "scale": self.scale,
            "scaled": np.array([self.own, *self.for_length, *self.for_correct]),
        }
        small: dict[str, Any] = {name: values.astype(np.float32) for name, values in arrays.items()}
        np.savez_compressed(folder / _FILE, **small)

    @classmethod
    def load(cls, folder: Path) -> Self | None:
        """What `save` wrote, None if there is none; ValueError and the errors of `np.load` for anything else."""
        if not (folder / _FILE).exists():
            return None
        with np.load(folder / _FILE, allow_pickle=False) as arrays:
            found: Mapping[str, Array] = {name: np.asarray(arrays[name], np.float64) for name in arrays.files}
        width = _COLUMNS
        shapes: dict[str, tuple[int, ...]] = {"square": (width * (width + 1) // 2,), "targets": (width, 2)}
        shapes |= {"centre": (TRAITS,), "scale": (TRAITS,), "scaled": (6,)}
        if {name: values.shape for name, values in found.items()} != shapes:
            raise ValueError("its reader has the wrong shape")
        if not all(np.isfinite(values).all() for values in found.values()) or not np.all(found["scale"] > 0):
            raise ValueError("its reader has numbers that are not finite")
        square = np.zeros((width, width))
        square[np.triu_indices(width)] = found["square"]
        square += np.triu(square, 1).T
        own, shift, turn, slope, of_chance, of_odds = found["scaled"].tolist()
        sums = Sums(square, found["targets"])
        reader = cls(found["centre"], found["scale"], sums, bool(own), (shift, turn, slope), (of_chance, of_odds))
        _ = reader._weights  # a LinAlgError, which is a ValueError, if they cannot be found
        return reader


def _columns(observed: Array, age: Array, centre: Array, scale: Array) -> Array:
    since = np.log(age) - _MIDDLE
    standard = np.clip((observed - centre) / scale, -_EDGE, _EDGE)
    return np.column_stack([np.ones_like(since), since, since**2, standard, standard * since[:, None]])


def _sums(x: Array, targets: Array, weight: float) -> Sums:
    return Sums(weight * x.T @ x, weight * x.T @ targets)


def _weights(sums: Sums) -> Array:
    """Of both results, a column each."""
    penalty = np.full(len(sums.square), _PENALTY)
    penalty[:_BASE] = _BASE_PENALTY
    found: Array = np.asarray(np.linalg.solve(sums.square + np.diag(penalty), sums.targets), dtype=np.float64)
    return found


def _scale(at: Array, found: Array, wanted: Array, weight: float) -> tuple[float, ...]:
    """The coefficients of the columns `at`, and the slope on what was found: least squares with a normal prior around
    a slope of 0. The mean of what they give is 0, by these columns."""
    means = np.linalg.lstsq(at, np.column_stack([found, wanted]), rcond=None)[0]
    more, less = (found, wanted) - (at @ means).T
    slope = float(np.clip(weight * (more @ less) / (weight * (more @ more) + 1 / _SLOPE_SD**2), 0.0, _STEEPEST))
    return *(-slope * means[:, 0]).tolist(), slope


def _calibrated_rows(model: str, forecast: Forecast, traces: Sequence[Trace]) -> _Rows | None:
    """The rows of one of several models, with its forecasts calibrated to it."""
    places = [place for place, trace in enumerate(traces) if trace.model == model]
    if len(places) < _FEWEST:
        return None
    own, some = [traces[place] for place in places], forecast.take(places)
    return _rows(Calibration.fit(some, own).apply(some), own)


def _rows(forecast: Forecast, traces: Sequence[Trace]) -> _Rows | None:
    """The parts of answers at `AGES`, of those that are longer; None: of too few questions."""
    question = questions_of(traces)
    answers: Counter[int] = Counter()
    usable = []
    for place, trace in enumerate(traces):
        if trace.correct is not None and is_readable(trace):
            answers[int(question[place])] += 1
            if answers[int(question[place])] <= _EACH:
                usable.append(place)
    usable = usable[:: -(-len(usable) // _MOST) or 1]
    if len({int(question[place]) for place in usable if traces[place].tokens > AGES[0]}) < _FEWEST:
        return None
    parts = []
    for age in AGES:
        places = [place for place in usable if traces[place].tokens > age]
        if not places:
            break
        own = [traces[place] for place in places]
        rest = remaining(forecast.take(places), float(age))
        left = np.log(rest.tokens)
        more = np.log([trace.tokens - age for trace in own]) + _LONGER * np.array([trace.truncated for trace in own])
        correct = np.array([float(trace.correct is True and not trace.truncated) for trace in own])
        parts.append(
            _Rows(
                question[places],
                np.array([traits(text_at(trace, age)) for trace in own]),
                np.full(len(own), float(age)),
                np.column_stack([np.clip(more - left, -_CLIP, _CLIP), correct - rest.solve]),
            )
        )
    return _Rows(*map(np.concatenate, zip(*parts, strict=True)))


def is_readable(trace: Trace) -> bool:
    """Whether a recorded answer has the text of its tokens. Hidden reasoning is counted, and has none."""
    return _has_text(trace.response or "", trace.tokens)


def can_read(answer: Completion) -> bool:
    """The same for an answer so far."""
    return answer.usage_source != "assumed" and _has_text(answer.text, answer.tokens)


def _has_text(text: str, tokens: int) -> bool:
    return tokens > 0 and 2 * (len(text) + 1) >= tokens


def text_at(trace: Trace, age: int) -> str:
    """The text of a recorded answer after its first tokens, as if all were equally long."""
    text = trace.response or ""
    return text[: len(text) * age // max(1, trace.tokens)]
