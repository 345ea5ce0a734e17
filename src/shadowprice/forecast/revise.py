"""Evidence: what an answer of another model says about the answer that is forecast.

A cheap model's answer to a question (a *scout*) tells more about a dear model's answer than the question does. The
same form serves the *cascade*, where the evidence is about the very answer that was given: is it correct?

    evidence  per request: length of the answer, whether it was cut, and where known its mean log probability and the
              share of other answers that agree with it
    revise    log median' = log median + w . x        x: the evidence and the forecast, standardised
              log odds'   = log odds   + v . x

by ridge regression (censored lengths are imputed) and logistic regression, both with a prior around "the forecast is
right". Then everything is calibrated (`calibration`). A request without evidence keeps its forecast.

A market cuts answers earlier than traces do, and a question whose answer was cut is harder than one whose answer ended
there. So there are weights of their own for answers that were cut, learned from all that a limit, drawn from the
lengths of the others, would have cut.

    reviser = Reviser.fit(forecast, Evidence.from_traces(prompts, scout_traces), traces)
    reviser.revise(forecast, evidence)

**A second answer** is bought if the other model promises more than the answer at hand, so it is bought where the
difference is too high. What such differences were worth is measured. Of g = p - q (p: the revised chance of the other
model, q: that of the answer at hand) only trust g is believed:

    trust = slope of (grade of the other - grade at hand) on g where g > 0, less its standard error, within 0 and 1
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from shadowprice.arrays import Array, checked_scalar
from shadowprice.errors import InputError
from shadowprice.forecast.calibration import Calibration, impute_censored, log_odds
from shadowprice.forecast.splits import folds, question_key
from shadowprice.types import Forecast, Trace

__all__ = ["Evidence", "Reviser", "grade", "revisers_of"]

FEWEST = 30  # traces with evidence
_PASSES = 4  # censored lengths depend on the fit
_PRIOR_SD = 1.0  # of a weight, in log tokens or log odds per standard deviation of a feature
_EDGE = 3.0  # standard deviations: features are clipped there
_COLUMNS = 7


@dataclass(frozen=True, eq=False)
class Evidence:
    """What is known about an answer to each request; NaN where nothing is.

    tokens     its length
    cut        1: it was cut at that length; 0: the model ended it
    log_prob   mean log probability of its tokens
    agreement  share of other answers to the request that agree with it
    """

    tokens: Array
    cut: Array
    log_prob: Array
    agreement: Array

    def __init__(
        self,
        tokens: ArrayLike,
        cut: ArrayLike | None = None,
        log_prob: ArrayLike | None = None,
        agreement: ArrayLike | None = None,
    ) -> None:
        length = np.atleast_1d(np.asarray(tokens, dtype=np.float64))
        given = {"tokens": length, "cut": cut, "log_prob": log_prob, "agreement": agreement}
        for name, values in given.items():
            missing = 0.0 if name == "cut" else np.nan
            array = np.asarray(missing if values is None else values, dtype=np.float64)
            if array.shape not in ((), length.shape):
                raise InputError(f"evidence {name} has {array.size} values for {length.size} requests")
            object.__setattr__(self, name, np.broadcast_to(array, length.shape))

    def __len__(self) -> int:
        return self.tokens.size

    @property
    def known(self) -> NDArray[np.bool_]:
        """Which requests have evidence."""
        known: NDArray[np.bool_] = np.isfinite(self.tokens) & (self.tokens > 0)
        return known

    def take(self, who: Sequence[int] | NDArray[np.intp] | NDArray[np.bool_]) -> Evidence:
        return Evidence(*(getattr(self, column.name)[who] for column in fields(self)))

    @classmethod
    def from_traces(cls, prompts: Sequence[str], traces: Sequence[Trace]) -> Evidence:
        """The answers in `traces` to the questions of `prompts`; of several answers to a question, the first."""
        first: dict[str, Trace] = {}
        for trace in traces:
            if trace.tokens > 0:
                first.setdefault(question_key(trace.prompt), trace)
        found = [first.get(question_key(prompt)) for prompt in prompts]
        return _of(found)


@dataclass(frozen=True, eq=False)
class _Weights:
    """A correction of forecasts by answers of one kind: that ended, or that were cut.

    centre, scale  of the features
    length, odds   weights of the features
    """

    centre: Array
    scale: Array
    length: Array
    odds: Array
    calibration: Calibration

    @classmethod
    def fit(cls, forecast: Forecast, evidence: Evidence, traces: Sequence[Trace]) -> Self:
        if not traces:  # nothing to learn from: no correction
            zero = np.zeros(_COLUMNS)
            return cls(zero, np.ones(_COLUMNS), zero, zero, Calibration())
        raw = _features(forecast, evidence)
        centre, scale = raw.mean(0), np.maximum(raw.std(0), 1e-6)
        x = _standardised(raw, centre, scale)
        truncated = np.array([trace.truncated for trace in traces], dtype=bool)
        correct = np.array([trace.correct is True for trace in traces], dtype=bool)
        graded = np.array([trace.correct is not None for trace in traces], dtype=bool)
        log_length = np.log([max(1.0, trace.tokens) for trace in traces])
        length = _ridge(x, log_length - np.log(forecast.tokens), truncated)
        odds = _logistic(x[graded], _odds(forecast)[graded], correct[graded])
        first = cls(centre, scale, length, odds, Calibration())
        return cls(centre, scale, length, odds, Calibration.fit(first._shifted(forecast, evidence), traces))

    def revise(self, forecast: Forecast, evidence: Evidence) -> Forecast:
        return self.calibration.apply(self._shifted(forecast, evidence))

    def _shifted(self, forecast: Forecast, evidence: Evidence) -> Forecast:
        x = _standardised(_features(forecast, evidence), self.centre, self.scale)
        shift = np.clip(x @ self.length, -6.0, 6.0)
        solve = expit(np.clip(_odds(forecast) + x @ self.odds, -8.0, 8.0))
        tokens, solved = (
            np.clip(lengths * np.exp(shift), 1.0, 2.0**24) for lengths in (forecast.tokens, forecast.solved_tokens)
        )
        return Forecast(tokens, forecast.spread, solve, forecast.tail, solved, forecast.solved_spread, forecast.shape)

    def to_dict(self) -> dict[str, Any]:
        arrays = {name: getattr(self, name).tolist() for name in ("centre", "scale", "length", "odds")}
        return {**arrays, "calibration": self.calibration.to_dict()}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Self:
        arrays = [np.asarray(record[name], dtype=np.float64) for name in ("centre", "scale", "length", "odds")]
        if (
            any(array.shape != (_COLUMNS,) or not np.isfinite(array).all() for array in arrays)
            or (arrays[1] <= 0).any()
        ):
            raise ValueError("not a reviser")
        centre, scale, length, odds = arrays
        return cls(centre, scale, length, odds, Calibration.from_dict(record["calibration"]))


@dataclass(frozen=True, eq=False)
class Reviser:
    """A correction of forecasts by evidence, made by `fit`: by answers that ended, and by answers that were cut.

    trust  how much of a gain over the answer at hand is believed, if another model's answer is the evidence
    """

    ended: _Weights
    cut: _Weights
    trust: float = 1.0

    @classmethod
    def fit(cls, forecast: Forecast, evidence: Evidence, traces: Sequence[Trace]) -> Self:
        """From forecasts for `traces`, one each, by a forecaster that was not trained on them, and the evidence."""
        if not len(forecast) == len(evidence) == len(traces):
            sizes = f"{len(forecast)} forecasts, {len(evidence)} answers as evidence, {len(traces)} traces"
            raise InputError(f"one of each per request is needed: {sizes}")
        rows = np.flatnonzero(evidence.known)
        if rows.size < FEWEST:
            problem = f"{rows.size} questions have answers of both models, {FEWEST} are needed"
            raise InputError(problem, fix="give traces that share questions")
        ended = rows[evidence.cut[rows] == 0]
        limit = np.random.default_rng(0).permutation(evidence.tokens[rows])  # independent of the answer's own length
        longer = evidence.tokens[rows] > limit
        cut = rows[longer]
        stopped = Evidence(limit[longer], 1.0, evidence.log_prob[cut], evidence.agreement[cut])
        pairs = ((ended, evidence.take(ended)), (cut, stopped))
        of_ended, of_cut = (
            _Weights.fit(forecast.take(who), what, [traces[i] for i in who.tolist()]) for who, what in pairs
        )
        return cls(of_ended, of_cut)

    def revise(self, forecast: Forecast, evidence: Evidence) -> Forecast:
        """The forecasts, corrected where there is evidence."""
        if len(forecast) != len(evidence):
            raise InputError(f"{len(forecast)} forecasts, and evidence for {len(evidence)} requests")
        if not evidence.known.any():
            return forecast
        cut = evidence.known & (evidence.cut > 0)
        groups = [np.flatnonzero(who) for who in (evidence.known & ~cut, cut, ~evidence.known)]
        parts = [
            each.revise(forecast.take(who), evidence.take(who))
            for each, who in zip((self.ended, self.cut), groups, strict=False)
            if who.size
        ]
        joined = Forecast.joined([*parts, forecast.take(groups[2])] if groups[2].size else parts)
        return joined.take(np.argsort(np.concatenate(groups), kind="stable"))

    def second(self, forecast: Forecast, evidence: Evidence, chance: float) -> Forecast:
        """What another answer promises to a request that has one which is correct with `chance` (0: it is wrong)."""
        revised = self.revise(forecast, evidence)
        # That an answer was cut is never good news.
        likely = np.where(evidence.cut > 0, np.minimum(revised.solve, forecast.solve), revised.solve)
        if chance > 0:
            likely = np.minimum(likely, chance + self.trust * np.maximum(0.0, likely - chance))
        return replace(revised, solve=likely)

    def chance(self, forecast: Forecast, evidence: Evidence) -> Array:
        """The chance that an answer is correct, given what is known about it: what a cascade decides by."""
        return np.broadcast_to(self.revise(forecast, evidence).solve, (len(forecast),))

    def to_dict(self) -> dict[str, Any]:
        return {"ended": self.ended.to_dict(), "cut": self.cut.to_dict(), "trust": self.trust}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Self:
        """What `to_dict` gave; raises ValueError for anything else."""
        trust = checked_scalar("trust", record["trust"], high=1.0)
        return cls(_Weights.from_dict(record["ended"]), _Weights.from_dict(record["cut"]), trust)


def revisers_of(
    forecasts: Sequence[Forecast], answers: Sequence[Sequence[Trace | None]]
) -> dict[tuple[int, int], Reviser]:
    """By the numbers of two models: what an answer of the first says about the second, and how far that is believed.

    forecasts  of every model for the same questions, by forecasters that were not trained on them
    answers    of every model to each question; None: it has none
    """
    models, n = range(len(answers)), len(answers[0])
    evidence = [_of(of_model) for of_model in answers]
    grades = np.array([[grade(trace) for trace in of_model] for of_model in answers])

    def fitted(one: int, other: int, who: NDArray[np.intp]) -> Reviser | None:
        both = [at for at in who.tolist() if answers[other][at] is not None and evidence[one].known[at]]
        traces = [trace for at in both if (trace := answers[other][at]) is not None]
        return (
            Reviser.fit(forecasts[other].take(both), evidence[one].take(both), traces) if len(both) >= FEWEST else None
        )

    everything: NDArray[np.intp] = np.arange(n, dtype=np.intp)
    revisers = {(one, other): fitted(one, other, everything) for one in models for other in models}
    half = folds(everything, 2)
    trust = {}
    for one in models:
        chance = np.full((len(models), n), np.nan)  # of every model after an answer of one, by fits to the other half
        for other in models:
            for each in range(2):
                out = np.flatnonzero(half == each)
                if revisers[one, other] and (reviser := fitted(one, other, np.flatnonzero(half != each))):
                    chance[other, out] = reviser.chance(forecasts[other].take(out), evidence[one].take(out))
        usable = evidence[one].known & (evidence[one].cut == 0)
        for other in models:
            gain, gained = chance[other] - chance[one], grades[other] - grades[one]
            trust[one, other] = 1.0 if one == other else _trust(gain[usable], gained[usable])
    return {pair: replace(reviser, trust=trust[pair]) for pair, reviser in revisers.items() if reviser is not None}


def _of(answers: Sequence[Trace | None]) -> Evidence:
    length = [np.nan if trace is None or trace.tokens < 1 else float(trace.tokens) for trace in answers]
    cut = [float(trace is not None and trace.truncated) for trace in answers]
    return Evidence(length, cut, [_number(trace.extra.get("log_prob")) if trace else np.nan for trace in answers])


def grade(trace: Trace | None) -> float:
    """1: correct, 0: not, NaN: unknown; an answer that was cut is not correct."""
    return np.nan if trace is None or trace.correct is None else float(trace.correct and not trace.truncated)


def _trust(expected: Array, gained: Array) -> float:
    """Of gains that were expected, the share that was there, less its standard error; 0 where nothing is known."""
    known = np.isfinite(gained) & np.isfinite(expected) & (expected > 0)
    g, y = expected[known], gained[known]
    if g.size < 2:
        return 0.0
    slope = float(g @ y / (g @ g))
    error = float(np.sqrt((g**2) @ (y - slope * g) ** 2) / (g @ g))
    return float(np.clip(slope - error, 0.0, 1.0))


def _features(forecast: Forecast, evidence: Evidence) -> Array:
    """One row per request. What is not known is 0 beside a column that says so."""
    length = np.log(np.maximum(1.0, evidence.tokens))
    forecast_length = np.broadcast_to(np.log(forecast.tokens), length.shape)
    columns = [
        np.ones_like(length),
        length,
        length**2,
        forecast_length,
        _odds(forecast),
        np.nan_to_num(evidence.log_prob),
        np.nan_to_num(evidence.agreement),
    ]
    return np.column_stack(columns)


def _standardised(raw: Array, centre: Array, scale: Array) -> Array:
    x: Array = np.clip((raw - centre) / scale, -_EDGE, _EDGE)
    x[:, 0] = 1.0
    return x


def _odds(forecast: Forecast) -> Array:
    return np.broadcast_to(log_odds(forecast.solve), (len(forecast),))


def _prior(noise: float) -> Array:
    """Precision of the weights; that of the mean is free."""
    return np.diag([1e-9, *[noise / _PRIOR_SD**2] * (_COLUMNS - 1)])


def _ridge(x: Array, y: Array, censored: NDArray[np.bool_]) -> Array:
    weights: Array = np.zeros(x.shape[1])
    target = y
    for _ in range(_PASSES):
        spread = float(np.std(target - x @ weights))
        target = impute_censored(y, x @ weights, spread, censored)
        weights = np.asarray(np.linalg.solve(x.T @ x + _prior(spread**2 + 1e-9), x.T @ target), dtype=np.float64)
    return weights


def _logistic(x: Array, offset: Array, correct: NDArray[np.bool_]) -> Array:
    """Newton's method; all weights 0 where nothing is graded, or all grades are the same."""
    weights: Array = np.zeros(x.shape[1])
    prior = _prior(1.0)
    if not correct.any() or correct.all():
        return weights
    for _ in range(30):
        p = expit(offset + x @ weights)
        gradient = x.T @ (correct - p) - prior @ weights
        weights = weights + np.clip(np.linalg.solve((x.T * (p * (1 - p))) @ x + prior, gradient), -1.0, 1.0)
    return weights


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else np.nan
