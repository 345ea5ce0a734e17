"""The default forecaster: linear in the words and the structure of a question (`features`).

    log length and correctness, each    score = words . w + structure . v + mean

by ridge regression over questions. The target of a question is the mean of its traces, after the
average difference of each model from the others (its habit) is subtracted. Adapting to other traces
rescales the earlier scores and fits what remains by the same regression; if that does not help on
questions that were left out, only the mean is changed. Fitting is adapting from zero. The spread is
fitted in a second regression, on the two scores. Everything is then calibrated (`calibration`), on
forecasts for questions that were left out of the fit.

Truncated traces are censored: they enter with what a normal law expects beyond where they were cut.
"""

from __future__ import annotations

import math
import os
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import expit

from shadowprice.arrays import Array
from shadowprice.errors import InputError, MarketError
from shadowprice.forecast.base import Forecaster
from shadowprice.forecast.calibration import Calibration, impute_censored
from shadowprice.forecast.features import COLUMNS, STRUCTURE, features, features_of_one
from shadowprice.forecast.folder import description, written
from shadowprice.forecast.landing import fit_landing
from shadowprice.forecast.reading import Reader
from shadowprice.forecast.shared import without_shared_text
from shadowprice.forecast.splits import folds, questions_of
from shadowprice.market.anytime import Anytime
from shadowprice.types import Forecast, Trace

_ARRAYS = "weights.npz"
_FEWEST = 20
_FOLDS = 5
_PASSES = 3  # censored lengths and the habits of models depend on the fit, and the fit depends on them
_MEAN = 10.0  # in the column of the mean: large, so that the penalty hardly touches it
_UNKNOWN = 1.0  # score of correctness where no trace is graded
_STEEP = 5.0  # log odds per unit of that score, before calibration
_EDGE = 1.5  # standard deviations from the mean in training: structure is clipped there
_SLOPE_SD = 0.3  # of the prior on the slope
_SHORT = 1000  # characters: longer texts are read faster as arrays, and so are more than
_FEW = 8  # texts
_LENGTH, _CORRECT = 0, 1  # columns of targets and scores


@dataclass(frozen=True, eq=False)
class _Weights:
    """Everything that is fitted, except for the calibration."""

    centre: Array  # mean and
    scale: Array  # standard deviation of the structure in training
    linear: Array  # (COLUMNS + structure + 1, 2): words, structure, one -> score of log length, of correctness
    spread: Array  # (3,): both scores, one -> log of the spread

    @classmethod
    def zero(cls, structure: Array) -> Self:
        scale = np.maximum(structure.std(axis=0), 1e-3)
        shape = COLUMNS + structure.shape[1] + 1
        return cls(structure.mean(axis=0), scale, np.zeros((shape, 2)), np.zeros(3))

    def standardised(self, structure: Array) -> Array:
        return np.clip((structure - self.centre) / self.scale, -_EDGE, _EDGE)


class _Numbers:
    """The same weights as Python's own numbers.

    For one short text NumPy takes longer to be called than to compute, above all in a process that does other things
    in between: in the gateway two to three times as long.
    """

    def __init__(self, weights: _Weights) -> None:
        self.words = [array("d", weights.linear[:COLUMNS, target].tobytes()) for target in (_LENGTH, _CORRECT)]
        rest = weights.linear[COLUMNS:-1].tolist()
        self.structure = [*zip(weights.centre.tolist(), weights.scale.tolist(), rest, strict=True)]
        self.constant: list[float] = (_MEAN * weights.linear[-1]).tolist()
        self.spread: list[float] = weights.spread.tolist()

    def scores(self, text: str) -> tuple[float, float]:
        """Of log length and of correctness, as of `_design` times the weights."""
        values, structure = features_of_one(text)
        lengths, corrects = self.words
        length = correct = square = 0.0
        for column, value in values.items():
            length += value * lengths[column]
            correct += value * corrects[column]
            square += value * value
        norm = math.sqrt(square) or 1.0
        length, correct = length / norm + self.constant[_LENGTH], correct / norm + self.constant[_CORRECT]
        for found, (centre, scale, (for_length, for_correct)) in zip(structure, self.structure, strict=True):
            standard = (found - centre) / scale
            if not -_EDGE <= standard <= _EDGE:
                standard = math.copysign(_EDGE, standard)
            length += standard * for_length
            correct += standard * for_correct
        return length, correct


class TextForecaster(Forecaster):
    """Trained in seconds, saved in a few hundred kilobytes.

    penalty    shrinks the weights
    structure  weight of the structure beside the words, for length and for correctness; it is smaller for length,
               because lengths differ more from model to model
    """

    kind = "text"  # in the description of its folder

    def __init__(self, penalty: float = 3.0, structure: tuple[float, float] = (0.02, 0.1)) -> None:
        self.penalty, self.structure = penalty, structure
        self.trained_on: dict[str, Any] = {}
        self._weights: _Weights | None = None
        self._numbers: _Numbers | None = None
        self._calibration = Calibration()
        self._reader: Reader | None = None  # `reader`, or one that has to be adapted first

    def fit(self, traces: Sequence[Trace]) -> Self:
        self._learn(traces, None)
        return self

    def adapt(self, traces: Sequence[Trace]) -> Self:
        adapted = self._untrained()
        adapted._learn(traces, self._trained(), self._reader)
        adapted.anytime = adapted.anytime or self.anytime
        adapted.trained_on["adapted_from"] = self.trained_on
        return adapted

    def _predict(self, texts: Sequence[str]) -> Forecast:
        weights = self._trained()
        if 0 < len(texts) <= _FEW and all(len(text) <= _SHORT for text in texts):
            if self._numbers is None:
                self._numbers = _Numbers(weights)
            rows = [self._row(self._numbers, text) for text in texts]
            return Forecast.of_rows(rows, self._calibration.shape)
        return self._at_once(weights, texts)

    def _at_once(self, weights: _Weights, texts: Sequence[str]) -> Forecast:
        words, structure = self._read(texts)
        # The rows of `_design` times the weights; joining its parts would take longer than all else, for one request.
        constant = _MEAN * weights.linear[-1]
        scores = (
            words @ weights.linear[:COLUMNS] + weights.standardised(structure) @ weights.linear[COLUMNS:-1] + constant
        )
        return self._calibration.apply(_forecast(scores, weights.spread))

    def _row(self, numbers: _Numbers, text: str) -> tuple[float | None, ...]:
        """The same for one short text, without arrays."""
        length, correct = numbers.scores(text)
        by_length, by_correct, wide = numbers.spread
        wide += by_length * length + by_correct * correct
        solve = 1 / (1 + math.exp(-_clipped(_STEEP * (correct - 0.5), -5.0, 5.0)))
        return self._calibration.apply_to_one(_clipped(length, 0.0, 16.0), math.exp(_clipped(wide, -3.0, 1.0)), solve)

    def _trained(self) -> _Weights:
        if self._weights is None:
            raise InputError("the forecaster is not trained", fix="call fit, or load one that is")
        return self._weights

    # --- what a forecaster that reads more than this overrides ----------------------------------

    def _untrained(self) -> Self:
        """Another one with the same settings."""
        return type(self)(self.penalty, self.structure)

    def _read(self, texts: Sequence[str]) -> tuple[sparse.csr_array, Array]:
        """Words and structure of each text."""
        return features(texts)

    def _width(self) -> int:
        """Columns of the structure."""
        return STRUCTURE

    def _strength(self, target: int) -> Array:
        """Weight of each column of the structure beside the words."""
        return np.full(STRUCTURE, self.structure[target])

    # --- fitting -------------------------------------------------------------------------------

    def _learn(self, traces: Sequence[Trace], known: _Weights | None, reader: Reader | None = None) -> None:
        """Fits weights, calibration and reader; `known` and `reader` are those to start from."""
        used = [trace for trace in traces if trace.tokens > 0]
        question = questions_of(used)
        first = np.unique(question, return_index=True)[1]  # a trace of each question
        if first.size < _FEWEST:
            raise InputError(
                f"{first.size} questions are too few to learn from", fix=f"give the traces of {_FEWEST} or more"
            )
        words, structure = self._read(without_shared_text([used[i].prompt for i in first]))
        base = known or _Weights.zero(structure)
        design = _design(words, base.standardised(structure))
        before = design @ base.linear
        targets = _Targets(used, question)

        scores = before if known else np.tile([targets.length.mean(), _UNKNOWN], (first.size, 1))
        for _ in range(_PASSES):
            wanted = targets.of_questions(scores)
            slope, change = self._regress(design, before, wanted)
            scores = slope * before + design @ change
        unseen = self._cross_fit(design, before, wanted)
        if known:  # a difference that does not help on unseen questions is reduced to its mean
            unseen_mean = self._cross_fit(design, before, wanted, only_mean=True)
            worse = ~(_error(wanted, unseen) < _error(wanted, unseen_mean))
            unseen = np.where(worse, unseen_mean, unseen)
            slope_mean, change_mean = self._regress(design, before, wanted, only_mean=True)
            slope, change = np.where(worse, slope_mean, slope), np.where(worse, change_mean, change)

        spread = base.spread if known else _spread(unseen, targets.errors(unseen), question)
        self._weights = _Weights(base.centre, base.scale, slope * base.linear + change, spread)
        self._numbers = None
        forecast = _forecast(unseen, spread).take(question)
        self._calibration = Calibration.fit(forecast, used)
        calibrated = self._calibration.apply(forecast)
        self.anytime = fit_landing(calibrated, used)
        self._keep(reader.adapt(calibrated, used) if reader else Reader.fit(forecast, used))
        self.trained_on = {
            "traces": len(used),
            "questions": int(first.size),
            "models": sorted({trace.model for trace in used}),
            "datasets": sorted({trace.dataset for trace in used}),
        }

    def _keep(self, reader: Reader | None) -> None:
        self._reader, self.reader = reader, reader if reader and reader.own else None

    def _cross_fit(self, design: sparse.csr_array, before: Array, wanted: Array, *, only_mean: bool = False) -> Array:
        """The scores of every question from a regression that has not seen it."""
        scores = np.empty_like(before)
        fold = folds(np.arange(len(before)), _FOLDS)
        for number in range(_FOLDS):
            rest, out = fold != number, fold == number
            slope, change = self._regress(design[rest], before[rest], wanted[rest], only_mean=only_mean)
            scores[out] = slope * before[out] + design[out] @ change
        return scores

    def _regress(
        self, design: sparse.csr_array, before: Array, wanted: Array, *, only_mean: bool = False
    ) -> tuple[Array, Array]:
        """The slope on the earlier scores and the weights of the difference: wanted = slope * before + design @ change.

        Ridge regression, |design @ change - difference|^2 + penalty |change / weight|^2, once for length and once
        for correctness. `only_mean`: the difference is one number for all questions.
        """
        from scipy.sparse.linalg import lsqr  # half a second to import, and predicting does not need it

        slope, change = np.zeros(2), np.zeros((design.shape[1], 2))
        for target in (_LENGTH, _CORRECT):
            seen = ~np.isnan(wanted[:, target])
            x, y, old = design[seen], wanted[seen, target], before[seen, target]
            if y.size == 0:
                slope[target], change[-1, target] = (1.0, 0.0) if before.any() else (0.0, _UNKNOWN / _MEAN)
                continue
            slope[target] = _slope(old, y)
            difference = y - slope[target] * old
            if only_mean:
                change[-1, target] = difference.mean() / _MEAN
            else:
                weight = np.ones(x.shape[1])
                weight[COLUMNS:-1] = self._strength(target)
                found = lsqr(x * weight, difference, damp=np.sqrt(self.penalty), atol=1e-4, btol=1e-4, iter_lim=200)[0]
                change[:, target] = weight * found
        return slope, change

    # --- saving --------------------------------------------------------------------------------

    def save(self, folder: str | os.PathLike[str]) -> None:
        with written(folder, self.kind, self._about()) as scratch:
            self._save_weights(scratch)

    def _about(self) -> dict[str, Any]:
        self._trained()
        return {
            "penalty": self.penalty,
            "structure": self.structure,
            "calibration": self._calibration.to_dict(),
            "anytime": self.anytime.to_dict() if self.anytime else None,
            "trained_on": self.trained_on,
        }

    def _save_weights(self, folder: Path) -> None:
        arrays = {name: values.astype(np.float32) for name, values in vars(self._trained()).items()}
        np.savez_compressed(folder / _ARRAYS, **arrays)
        if self._reader:
            self._reader.save(folder)

    @classmethod
    def _from(cls, folder: str | os.PathLike[str], about: Mapping[str, Any]) -> Self:
        """One that is not trained, with the settings of a saved one."""
        for_length, for_correct = map(float, about["structure"])
        return cls(float(about["penalty"]), (for_length, for_correct))

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Self:
        kind, about = description(folder)
        try:
            if kind != cls.kind:
                raise ValueError(f"its kind is {kind!r}")
            found = cls._from(folder, about)
            shapes = _shapes(found._width())
            with np.load(Path(folder, _ARRAYS), allow_pickle=False) as arrays:
                weights = _Weights(**{name: np.asarray(arrays[name], np.float64) for name in shapes})
            if any(getattr(weights, name).shape != shape for name, shape in shapes.items()):
                raise ValueError("its weights have the wrong shape")
            if not all(np.isfinite(values).all() for values in vars(weights).values()):
                raise ValueError("its weights are not finite")
            found._weights, found.trained_on = weights, dict(about["trained_on"])
            found._calibration = Calibration.from_dict(about["calibration"])
            found._keep(Reader.load(Path(folder)))
            found.anytime = Anytime.from_dict(about["anytime"]) if about.get("anytime") else None
        except InputError:  # of a part, and says what is damaged
            raise
        except (ValueError, TypeError, KeyError, OSError, EOFError, BadZipFile, MarketError) as error:
            raise InputError(f"damaged: {error}", path=folder, fix="train it again, or name another folder") from None
        return found


def _shapes(structure: int) -> dict[str, tuple[int, ...]]:
    return {"centre": (structure,), "scale": (structure,), "linear": (COLUMNS + structure + 1, 2), "spread": (3,)}


class _Targets:
    """The targets of each question: log length and correctness, without the habits of the models."""

    def __init__(self, traces: Sequence[Trace], question: NDArray[np.intp]) -> None:
        self.question = question
        names = {name: i for i, name in enumerate(dict.fromkeys(trace.model for trace in traces))}
        self.model = np.array([names[trace.model] for trace in traces])
        self.length = np.log([float(trace.tokens) for trace in traces])
        self.censored = np.array([trace.truncated for trace in traces])
        self.correct = np.array([np.nan if trace.correct is None else float(trace.correct) for trace in traces])

    def of_questions(self, scores: Array) -> Array:
        """A row per question, (log length, correctness); NaN where no trace of the question is known."""
        return np.column_stack(
            [self._mean(self._lengths(scores), scores[:, _LENGTH]), self._mean(self.correct, scores[:, _CORRECT])]
        )

    def errors(self, scores: Array) -> Array:
        """By how much each trace is longer than its question's score."""
        errors: Array = self._lengths(scores) - scores[self.question, _LENGTH]
        return errors

    def _lengths(self, scores: Array) -> Array:
        mean = scores[self.question, _LENGTH]
        return impute_censored(self.length, mean, float(np.std(self.length - mean)), self.censored)

    def _mean(self, values: Array, scores: Array) -> Array:
        """Per question. The habit of a model is by how much it is above its questions' scores, on average."""
        seen = ~np.isnan(values)
        model, question, values = self.model[seen], self.question[seen], values[seen]
        models = int(self.model.max()) + 1
        if values.size == 0:
            return np.full(scores.size, np.nan)
        habit = _means(values - scores[question], model, models)
        return _means(values - (habit - np.nanmean(habit))[model], question, scores.size)


def _clipped(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def _design(words: sparse.csr_array, structure: Array) -> sparse.csr_array:
    """Words, structure, and a column for the mean."""
    constant = np.full((len(structure), 1), _MEAN)
    return sparse.hstack([words, sparse.csr_array(np.hstack([structure, constant]))], format="csr")


def _means(values: Array, group: NDArray[np.intp], groups: int) -> Array:
    """The mean of each group; NaN where it has no value."""
    count = np.bincount(group, minlength=groups)
    total = np.bincount(group, values, minlength=groups)
    return np.where(count > 0, total / np.maximum(1, count), np.nan)


def _forecast(scores: Array, spread: Array) -> Forecast:
    wide: Array = np.hstack([scores, np.ones((len(scores), 1))]) @ spread
    tokens = np.exp(np.clip(scores[:, 0], 0.0, 16.0))
    # The log odds are linear in the score: the logit of a score near 1 would make too much of small differences.
    solve = expit(np.clip(_STEEP * (scores[:, 1] - 0.5), -5.0, 5.0))
    return Forecast(tokens, np.exp(np.clip(wide, -3.0, 1.0)), solve)


def _spread(scores: Array, errors: Array, question: NDArray[np.intp]) -> Array:
    """Weights of the log of the spread, by ridge regression: E ln|e| = ln(spread) - 0.635 for a normal e.

    Words and structure are not used: they add more noise than information. Mistakes here are expensive, because in
    metered accounting a request that seems uncertain is served first.
    """
    x = np.hstack([scores, np.ones((len(scores), 1))])[question]
    y = np.log(np.abs(errors) + 0.02) + 0.635
    penalty = np.diag([0.01 * len(y)] * 2 + [0.0])
    return np.asarray(np.linalg.solve(x.T @ x + penalty, x.T @ y))


def _error(wanted: Array, scores: Array) -> Array:
    """Mean square error of length and of correctness; NaN where nothing is known about it."""
    known = ~np.isnan(wanted)
    total = np.where(known, (wanted - scores) ** 2, 0.0).sum(axis=0)
    return np.where(known.any(axis=0), total / np.maximum(1, known.sum(axis=0)), np.nan)


def _slope(before: Array, wanted: Array) -> float:
    """The slope of the targets on the earlier scores, with a prior around 1 that a few dozen questions outweigh."""
    x, y = before - before.mean(), wanted - wanted.mean()
    if not x.any():
        return 0.0
    doubt = float(np.mean((y - x) ** 2)) / _SLOPE_SD**2
    return float(np.clip((x @ y + doubt) / (x @ x + doubt), 0.0, 3.0))
