"""How good forecasts are, held against recorded generations that they were made without.

    spearman, kendall   rank correlation (Kendall's tau-b) of median and true length: what CLEAR lives on
    log_error, log_rmse mean absolute and root mean square error of the log of the median: 0.1 is about 10%
    coverage            share of true lengths inside the 50%, 80% and 95% intervals; it should be that share
    auc                 chance that a right answer had a higher chance forecast than a wrong one (ties: half)
    brier               mean square of chance minus outcome: 0 is perfect, always saying 1/2 gives 0.25
    calibration_error   expected calibration error: mean distance of the chance forecast to the share of right
                        answers, in ten bins of equal count (equal forecasts are never parted)

A truncated answer is longer than what was recorded, nobody knows by how much:

- ranks: it counts as longer than all that ended and equal to its like, if no answer that ended is longer
  than where it was cut; else its rank is unknown, and it is left out, as it is of the tiers.
- log error: left out.
- coverage: it is outside for certain if the interval ends before the cut. Otherwise it counts with the chance
  that the forecast itself gives it, now that it is longer than the cut. Leaving it out would bias the rest:
  lengths would be chosen by how they came out.
- success: as it was graded. An answer that did not end within its cap solved nothing.

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
Groups = NDArray[np.intp]  # the place of each value among the distinct ones: all that rank measures ask for


@dataclass(frozen=True)
class Scores:
    """None where there is nothing to compute it from: too few traces, or all of one kind.

    The ranges are 95% bootstrap intervals: questions are drawn anew with all their traces.
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
    solved: float | None
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
    everyone = np.ones(len(traces), dtype=bool)
    names = np.array([trace.dataset for trace in traces])
    tier = tiers_of(traces)

    def score(who: Mask) -> Scores:
        return data.scores(np.flatnonzero(who), resamples, seed)

    return Report(
        overall=score(everyone),
        datasets={str(name): score(names == name) for name in np.unique(names)},
        tiers={name: score(tier == i) for i, name in enumerate(TIERS) if np.any(tier == i)},
    )


def tiers_of(traces: Sequence[Trace]) -> NDArray[np.intp]:
    """The index into TIERS for each trace; -1 where a truncated answer leaves it open."""
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
        self.right = np.array([bool(trace.correct) for trace in traces], dtype=bool)
        self.solve = np.broadcast_to(forecast.solve, n)
        keys = [question_key(trace.prompt) for trace in traces]
        number = {key: i for i, key in enumerate(sorted(set(keys)))}  # the same in whatever order the traces come
        self.question = np.array([number[key] for key in keys])
        self.inside = {f"{share:.0%}": self._inside(share) for share in COVERAGES}

    def _inside(self, share: float) -> Array:
        """1 or 0; for truncated answers the chance, given that they are longer than what was recorded."""
        low, high = interval(self.forecast, share)
        seen = (low <= self.tokens) & (self.tokens <= high)
        beyond = 1 - chance_within(self.forecast, self.tokens)
        within = chance_within(self.forecast, high) - chance_within(self.forecast, np.maximum(low, self.tokens))
        chance = np.clip(within / np.maximum(beyond, 1e-12), 0.0, 1.0)
        return np.where(self.truncated, np.where(high <= self.tokens, 0.0, chance), seen)

    def scores(self, who: NDArray[np.intp], resamples: int, seed: int) -> Scores:
        tokens, median, truncated = self.tokens[who], self.forecast.tokens[who], self.truncated[who]
        length, ranked = _ranked_lengths(tokens, truncated)
        true, said = _groups(length[ranked]), _groups(median[ranked])
        graded = who[self.graded[who]]
        right, chance = self.right[graded], _groups(self.solve[graded])
        missed = np.log(median / tokens)[~truncated]

        def rank_correlation(weight: Array) -> Array:
            return _spearman(true, said, weight)

        def area(weight: Array) -> Array:
            return _auc(chance, right, weight)

        return Scores(
            traces=who.size,
            questions=np.unique(self.question[who]).size,
            truncated=int(truncated.sum()),
            graded=graded.size,
            median_tokens=float(np.median(tokens)),
            median_forecast=float(np.median(median)),
            spearman=_once(rank_correlation, true.size),
            spearman_range=_range(rank_correlation, self.question[who[ranked]], resamples, seed),
            kendall=_kendall(true, said),
            log_error=float(np.abs(missed).mean()) if missed.size else None,
            log_rmse=float(np.sqrt((missed**2).mean())) if missed.size else None,
            coverage={name: float(inside[who].mean()) for name, inside in self.inside.items()},
            solved=float(right.mean()) if graded.size else None,
            auc=_once(area, graded.size),
            auc_range=_range(area, self.question[graded], resamples, seed),
            brier=float(((self.solve[graded] - right) ** 2).mean()) if graded.size else None,
            calibration_error=_calibration_error(self.solve[graded], right) if graded.size else None,
        )


def _lengths(traces: Sequence[Trace]) -> Array:
    return np.maximum(1.0, [trace.tokens for trace in traces])


def _ranked_lengths(tokens: Array, truncated: Mask) -> tuple[Array, Mask]:
    """Lengths to rank by, and whose rank is known: answers that ended, and those cut later than any of them ended."""
    known = ~truncated | (tokens >= tokens[~truncated].max(initial=0.0))
    return np.where(truncated, np.inf, tokens), known


def _groups(values: NDArray[Any]) -> Groups:
    return np.unique(values, return_inverse=True)[1]


def _count(groups: Groups) -> int:
    return int(groups.max(initial=-1)) + 1


def _spearman(x: Groups, y: Groups, weight: Array) -> Array:
    """Of values that occur `weight` times each, a row of weights at a time; NaN where all are equal."""
    a, b = _centred_ranks(x, weight), _centred_ranks(y, weight)
    scale = np.sqrt((weight * a**2).sum(axis=1) * (weight * b**2).sum(axis=1))
    return _ratio((weight * a * b).sum(axis=1), scale)


def _centred_ranks(groups: Groups, weight: Array) -> Array:
    total = _totals(groups, weight, _count(groups))
    ranks: Array = np.cumsum(total, axis=1) - (total + total.sum(axis=1, keepdims=True)) / 2
    return ranks[:, groups]


def _totals(groups: Groups, weight: Array, count: int) -> Array:
    """For each row of weights, their sum over each group; the groups are the same for all rows, or a row each."""
    rows = weight.shape[0]
    cell = groups + count * np.arange(rows)[:, None]
    total: Array = np.bincount(cell.ravel(), weight.ravel(), minlength=rows * count).astype(np.float64)
    return total.reshape(rows, count)


def _kendall(x: Groups, y: Groups) -> float | None:
    varies = x.size and x.max() > 0 and y.max() > 0
    return float(kendalltau(x, y).statistic) if varies else None


def _auc(chance: Groups, right: Mask, weight: Array) -> Array:
    good, bad = (_totals(chance, weight * which, _count(chance)) for which in (right, ~right))
    ahead = (good * (np.cumsum(bad, axis=1) - bad / 2)).sum(axis=1)
    return _ratio(ahead, good.sum(axis=1) * bad.sum(axis=1))


def _calibration_error(chance: Array, right: Mask) -> float:
    edges = np.quantile(chance, np.arange(1, _BINS) / _BINS, method="inverted_cdf")
    place = np.searchsorted(edges, chance, side="left")
    return float(np.abs(np.bincount(place, chance - right)).sum() / chance.size)


def _range(
    measure: Callable[[Array], Array], question: NDArray[np.intp], resamples: int, seed: int
) -> tuple[float, float] | None:
    number = _groups(question)
    count = _count(number)
    if count < 2:
        return None
    random, found = np.random.default_rng(seed), np.zeros(0)
    at_once = max(1, 2**14 // number.size)  # what fits into a processor's cache
    while found.size < resamples:
        drawn = random.integers(count, size=(min(at_once, resamples - found.size), count))
        times = _totals(drawn, np.ones(drawn.shape), count)
        found = np.append(found, measure(times[:, number]))
    found = found[~np.isnan(found)]
    return (float(np.quantile(found, 0.025)), float(np.quantile(found, 0.975))) if found.size else None


def _ratio(part: Array, whole: Array) -> Array:
    share: Array = np.divide(part, whole, out=np.full(whole.shape, np.nan), where=whole > 0)
    return share


def _once(measure: Callable[[Array], Array], size: int) -> float | None:
    value = measure(np.ones((1, size))).item()
    return None if np.isnan(value) else value
