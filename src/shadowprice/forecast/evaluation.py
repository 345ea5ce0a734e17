"""How good forecasts are, compared with recorded answers that the forecaster was not trained on.

    spearman, kendall   rank correlation (Kendall's tau-b) of median and true length: what CLEAR depends on
    log_error, log_rmse mean absolute and root mean square error of the log of the median: 0.1 is about 10%
    coverage            share of true lengths inside the 50%, 80% and 95% intervals; it should be that share
    auc                 chance that a correct answer had a higher `solve` than a wrong one (ties: half)
    brier               mean square of `solve` minus outcome: 0 is perfect, a constant 1/2 gives 0.25
    calibration_error   expected calibration error: mean distance of `solve` from the share of correct answers,
                        in ten bins of equal count (equal forecasts are in the same bin)

A truncated answer is longer than what was recorded, by an unknown amount:

- ranks: if it was cut above the longest answer that ended, it counts as longer than all of these, and as equal to
  other truncated answers. Otherwise its rank is unknown, and it is left out, here and in the tiers.
- log error: left out.
- coverage: it is certainly outside if the interval ends before the cut. Otherwise it counts with the chance
  that the forecast itself gives it, given that it is longer than the cut. Leaving it out would bias the rest,
  since which lengths remain would depend on their values.
- correctness: as it was graded; an answer that did not end within its cap is not correct.

Traces without a grade count for length only; an empty answer counts as one token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import kendalltau

from shadowprice.arrays import Array
from shadowprice.errors import MarketError
from shadowprice.forecast.intervals import chance_within, interval
from shadowprice.forecast.splits import question_key
from shadowprice.types import Forecast, Trace

TIERS = ("easy", "moderate", "hard", "very hard")  # quartiles of the true length
COVERAGES = (0.5, 0.8, 0.95)
_BINS = 10

Mask = NDArray[np.bool_]
Groups = NDArray[np.intp]  # the place of each value among the distinct ones: all that rank measures need


@dataclass(frozen=True)
class Scores:
    """The measures above; None where one cannot be computed: there are too few traces, or all values are equal.

    The ranges are 95% bootstrap intervals over questions, each with all its traces.
    """

    traces: int
    questions: int
    truncated: int
    graded: int
    median_tokens: float  # of recorded lengths
    median_forecast: float
    spearman: float | None
    spearman_range: tuple[float, float] | None
    kendall: float | None
    log_error: float | None
    log_rmse: float | None
    coverage: dict[str, float]  # by "50%", "80%", "95%"
    correct: float | None  # the share of correct answers
    auc: float | None
    auc_range: tuple[float, float] | None
    brier: float | None
    calibration_error: float | None


@dataclass(frozen=True)
class Report:
    overall: Scores
    datasets: dict[str, Scores]
    tiers: dict[str, Scores]


def evaluate(forecast: Forecast, traces: Sequence[Trace], *, resamples: int = 1000, seed: int = 0) -> Report:
    """The quality of forecasts for `traces`, one each: overall, by dataset, and by quartile of the true length."""
    if not traces or len(forecast) != len(traces):
        raise MarketError(f"one forecast per trace is needed: {len(forecast)} forecasts, {len(traces)} traces")
    data = _Data(forecast, traces)
    every = np.ones(len(traces), dtype=bool)
    names = np.array([trace.dataset for trace in traces])
    tier = tiers_of(traces)

    def score(chosen: Mask) -> Scores:
        return data.scores(np.flatnonzero(chosen), resamples, seed)

    return Report(
        overall=score(every),
        datasets={str(name): score(names == name) for name in np.unique(names)},
        tiers={name: score(tier == i) for i, name in enumerate(TIERS) if np.any(tier == i)},
    )


def tiers_of(traces: Sequence[Trace]) -> NDArray[np.intp]:
    """The index into TIERS for each trace; -1 where it is unknown: a truncated answer."""
    length, known = _ranked_lengths(_lengths(traces), np.array([trace.truncated for trace in traces], dtype=bool))
    edges = np.quantile(length[known], [0.25, 0.5, 0.75], method="inverted_cdf")
    return np.where(known, np.searchsorted(edges, length, side="left"), -1)


class _Data:
    """Everything as arrays, one row per trace."""

    def __init__(self, forecast: Forecast, traces: Sequence[Trace]) -> None:
        n = len(traces)
        self.forecast = forecast
        self.tokens = _lengths(traces)
        self.truncated = np.array([trace.truncated for trace in traces], dtype=bool)
        self.graded = np.array([trace.correct is not None for trace in traces], dtype=bool)
        self.correct = np.array([bool(trace.correct) for trace in traces], dtype=bool)
        self.solve = np.broadcast_to(forecast.solve, n)
        keys = [question_key(trace.prompt) for trace in traces]
        number = {key: i for i, key in enumerate(sorted(set(keys)))}  # the same in any order of the traces
        self.question = np.array([number[key] for key in keys])
        self.inside = {f"{share:.0%}": self._inside(share) for share in COVERAGES}

    def _inside(self, share: float) -> Array:
        """1 or 0; for truncated answers the chance of being inside, given that they are longer than recorded."""
        low, high = interval(self.forecast, share)
        inside = (low <= self.tokens) & (self.tokens <= high)
        longer = 1 - chance_within(self.forecast, self.tokens)
        within = chance_within(self.forecast, high) - chance_within(self.forecast, np.maximum(low, self.tokens))
        chance = np.clip(within / np.maximum(longer, 1e-12), 0.0, 1.0)
        return np.where(self.truncated, np.where(high <= self.tokens, 0.0, chance), inside)

    def scores(self, rows: NDArray[np.intp], resamples: int, seed: int) -> Scores:
        tokens, median, truncated = self.tokens[rows], self.forecast.tokens[rows], self.truncated[rows]
        length, ranked = _ranked_lengths(tokens, truncated)
        true, forecast = _groups(length[ranked]), _groups(median[ranked])
        graded = rows[self.graded[rows]]
        correct, chance = self.correct[graded], _groups(self.solve[graded])
        error = np.log(median / tokens)[~truncated]

        def rank_correlation(weight: Array) -> Array:
            return _spearman(true, forecast, weight)

        def area(weight: Array) -> Array:
            return _auc(chance, correct, weight)

        return Scores(
            traces=rows.size,
            questions=np.unique(self.question[rows]).size,
            truncated=int(truncated.sum()),
            graded=graded.size,
            median_tokens=float(np.median(tokens)),
            median_forecast=float(np.median(median)),
            spearman=_once(rank_correlation, true.size),
            spearman_range=_range(rank_correlation, self.question[rows[ranked]], resamples, seed),
            kendall=_kendall(true, forecast),
            log_error=float(np.abs(error).mean()) if error.size else None,
            log_rmse=float(np.sqrt((error**2).mean())) if error.size else None,
            coverage={name: float(inside[rows].mean()) for name, inside in self.inside.items()},
            correct=float(correct.mean()) if graded.size else None,
            auc=_once(area, graded.size),
            auc_range=_range(area, self.question[graded], resamples, seed),
            brier=float(((self.solve[graded] - correct) ** 2).mean()) if graded.size else None,
            calibration_error=_calibration_error(self.solve[graded], correct) if graded.size else None,
        )


def _lengths(traces: Sequence[Trace]) -> Array:
    return np.maximum(1.0, [trace.tokens for trace in traces])


def _ranked_lengths(tokens: Array, truncated: Mask) -> tuple[Array, Mask]:
    """Lengths to rank by, and which ranks are known: of answers that ended, or were cut above all that ended."""
    known = ~truncated | (tokens >= tokens[~truncated].max(initial=0.0))
    return np.where(truncated, np.inf, tokens), known


def _groups(values: NDArray[Any]) -> Groups:
    return np.unique(values, return_inverse=True)[1]


def _count(groups: Groups) -> int:
    return int(groups.max(initial=-1)) + 1


def _spearman(x: Groups, y: Groups, weight: Array) -> Array:
    """The rank correlation where value i occurs weight[i] times, for each row of weights; NaN where all are equal."""
    a, b = _centred_ranks(x, weight), _centred_ranks(y, weight)
    scale = np.sqrt((weight * a**2).sum(axis=1) * (weight * b**2).sum(axis=1))
    return _ratio((weight * a * b).sum(axis=1), scale)


def _centred_ranks(groups: Groups, weight: Array) -> Array:
    """Mid-ranks minus their mean: for each group, the weight before it plus half its own, minus half of all."""
    total = _totals(groups, weight, _count(groups))
    ranks: Array = np.cumsum(total, axis=1) - (total + total.sum(axis=1, keepdims=True)) / 2
    return ranks[:, groups]


def _totals(groups: Groups, weight: Array, count: int) -> Array:
    """The sum of each row of weights over each group; `groups` is one row for all, or one for each."""
    rows = weight.shape[0]
    cell = groups + count * np.arange(rows)[:, None]
    total: Array = np.bincount(cell.ravel(), weight.ravel(), minlength=rows * count).astype(np.float64)
    return total.reshape(rows, count)


def _kendall(x: Groups, y: Groups) -> float | None:
    varies = x.size and x.max() > 0 and y.max() > 0
    return float(kendalltau(x, y).statistic) if varies else None


def _auc(chance: Groups, correct: Mask, weight: Array) -> Array:
    """The share of pairs (correct, wrong) in which the correct one had the higher chance; ties count half."""
    good, bad = (_totals(chance, weight * which, _count(chance)) for which in (correct, ~correct))
    ahead = (good * (np.cumsum(bad, axis=1) - bad / 2)).sum(axis=1)
    return _ratio(ahead, good.sum(axis=1) * bad.sum(axis=1))


def _calibration_error(chance: Array, correct: Mask) -> float:
    edges = np.quantile(chance, np.arange(1, _BINS) / _BINS, method="inverted_cdf")
    place = np.searchsorted(edges, chance, side="left")
    return float(np.abs(np.bincount(place, chance - correct)).sum() / chance.size)


def _range(
    measure: Callable[[Array], Array], question: NDArray[np.intp], resamples: int, seed: int
) -> tuple[float, float] | None:
    """The 95% bootstrap interval of a measure: a resample is the number of times each question was drawn."""
    number = _groups(question)
    count = _count(number)
    if count < 2:
        return None
    random, samples = np.random.default_rng(seed), np.zeros(0)
    at_once = max(1, 2**14 // number.size)  # rows that fit into a processor's cache
    while samples.size < resamples:
        drawn = random.integers(count, size=(min(at_once, resamples - samples.size), count))
        times = _totals(drawn, np.ones(drawn.shape), count)
        samples = np.append(samples, measure(times[:, number]))
    samples = samples[~np.isnan(samples)]
    return (float(np.quantile(samples, 0.025)), float(np.quantile(samples, 0.975))) if samples.size else None


def _ratio(part: Array, whole: Array) -> Array:
    share: Array = np.divide(part, whole, out=np.full(whole.shape, np.nan), where=whole > 0)
    return share


def _once(measure: Callable[[Array], Array], size: int) -> float | None:
    value = measure(np.ones((1, size))).item()
    return None if np.isnan(value) else value
