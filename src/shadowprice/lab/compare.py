"""Comparisons of policies: the same streams for all, with paired bootstrap intervals.

Every seed draws a stream; all policies and budgets get the same streams, so their differences are paired. The
bootstrap resamples seeds, and questions within their tiers; a question is resampled with all its appearances, since
all seeds draw from one pool. `gain` is over uniform in the same accounting. A policy with reclaim is compared with
reserved uniform, for which reclaim would change nothing, since it declines no query.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from shadowprice.arrays import Array
from shadowprice.lab.pools import Pool
from shadowprice.lab.simulations import Accounting, Outcome, Queries, Setup, outcome_of
from shadowprice.lab.streams import draw

Row: TypeAlias = dict[str, Any]
Cell: TypeAlias = tuple[int, str, Accounting]  # budget per query, policy, accounting
AnyCell = TypeVar("AnyCell", bound=Hashable)

_RESAMPLES = 1000
_AT_ONCE = 1 << 22  # weights in memory


def compare(
    table: str,
    pool: Pool,
    *,
    streams: Sequence[str],
    budgets: Sequence[int],
    policies: Mapping[str, Sequence[Accounting]],
    seeds: int,
    queries: int,
    options: Mapping[str, Any] | None = None,
) -> list[Row]:
    """A row for every stream, budget, policy and accounting; `policies` maps names to accountings.

    `options` are given to every policy: for experiments about one policy.
    """
    rows = []
    for stream in streams:
        places = [draw(pool, stream, min(queries, len(pool)), seed) for seed in range(seeds)]
        drawn = Drawn(places, [Queries.of(pool, chosen) for chosen in places], pool.tier)
        facts = {"table": table, "model": pool.model, "stream": stream}
        rows += compare_drawn(facts, drawn, pool.median, budgets=budgets, policies=policies, options=options)
    return rows


@dataclass(frozen=True, eq=False)
class Drawn:
    """Streams, one per seed: the places of their questions in the pool, and the queries; `tier` has all questions."""

    places: Sequence[NDArray[np.intp]]
    queries: Sequence[Queries]
    tier: NDArray[np.intp]


def compare_drawn(
    facts: Row,
    drawn: Drawn,
    median: float,
    *,
    budgets: Sequence[int],
    policies: Mapping[str, Sequence[Accounting]],
    options: Mapping[str, Any] | None = None,
) -> list[Row]:
    """Like `compare`, on streams that are already drawn; `facts` are the first columns of every row."""
    found: dict[Cell, list[Outcome]] = {
        (budget, policy, accounting): []
        for budget in budgets
        for policy, accountings in policies.items()
        for accounting in accountings
    }
    for queries in drawn.queries:  # one stream after the other: what is simulated on the same queries shares much
        for (budget, policy, accounting), outcomes in found.items():
            outcomes.append(outcome_of(Setup(policy, accounting, options or {}), queries, budget * len(queries)))
    share = resampled(drawn, found)
    return [
        {
            **facts,
            "budget": cell[0],
            "budget_times_median": cell[0] / median,
            "policy": cell[1],
            "accounting": cell[2],
            "reclaim": cell[2] == "reclaimed",
            "command": Setup(cell[1], cell[2], options or {}).command(drawn.queries[0], cell[0]),
            **_figures(outcomes),
            **_intervals(share, cell),
            "queries": len(drawn.queries[0]),
            "seeds": len(drawn.places),
            "source": "ours",
        }
        for cell, outcomes in found.items()
    ]


def _figures(outcomes: Sequence[Outcome]) -> Row:
    """Percent of the queries, and tokens per query."""
    cut = [~outcome.finished & (outcome.granted > 0) for outcome in outcomes]
    wrong = [outcome.finished & ~outcome.correct for outcome in outcomes]
    prices = [outcome.price for outcome in outcomes if outcome.price is not None]

    def percent(masks: Sequence[NDArray[np.bool_]]) -> float:
        return 100 * float(np.mean(np.concatenate(masks)))

    def tokens(amounts: Sequence[NDArray[np.int64]]) -> float:
        return float(np.mean(np.concatenate(amounts)))

    return {
        "solved": percent([outcome.correct for outcome in outcomes]),
        "finished": percent([outcome.finished for outcome in outcomes]),
        "cut": percent(cut),
        "abandoned": percent([outcome.granted == 0 for outcome in outcomes]),
        "tokens_granted": tokens([outcome.granted for outcome in outcomes]),
        "tokens_spent": tokens([outcome.spent for outcome in outcomes]),
        "tokens_cut": tokens([outcome.spent * mask for outcome, mask in zip(outcomes, cut, strict=True)]),
        "tokens_wrong": tokens([outcome.spent * mask for outcome, mask in zip(outcomes, wrong, strict=True)]),
        "price": float(np.mean(prices)) if prices else None,
    }


# --- intervals ---------------------------------------------------------------------------------


def _intervals(share: Mapping[Cell, Array], cell: Cell) -> Row:
    low, high = interval(share[cell])
    row: Row = {"ci_low": low, "ci_high": high}
    uniform: Cell = (cell[0], "uniform", "reserved" if cell[2] == "reclaimed" else cell[2])
    if uniform in share:
        low, high = interval(share[cell] - share[uniform])
        row |= {"gain": float(share[cell][0] - share[uniform][0]), "gain_low": low, "gain_high": high}
    return row


def interval(values: Array) -> tuple[float, float]:
    """95% of the resamples; the first value is the observation itself."""
    low, high = np.quantile(values[1:], [0.025, 0.975])
    return float(low), float(high)


def resampled(streams: Drawn, found: Mapping[AnyCell, Sequence[Outcome]]) -> dict[AnyCell, Array]:
    """For every cell the percent correct: as observed, and in each resample; all cells share the resamples."""
    places = streams.places
    distinct, where = np.unique(np.concatenate(places), return_inverse=True)
    per_seed = np.split(where, np.cumsum([each.size for each in places])[:-1])

    def totals(values: Sequence[Array]) -> Array:  # (seeds, questions)
        return np.stack(
            [np.bincount(w, v, minlength=distinct.size) for w, v in zip(per_seed, values, strict=True)]
        ).astype(np.float64)

    drawn = totals([np.ones(each.size) for each in places])
    correct = np.stack([totals([outcome.correct.astype(float) for outcome in each]) for each in found.values()])

    random = np.random.default_rng(0)
    share = np.empty((len(found), 1 + _RESAMPLES))
    share[:, 0] = 100 * correct.sum(axis=(1, 2)) / drawn.sum()
    done, step = 1, max(1, _AT_ONCE // distinct.size)
    while done <= _RESAMPLES:
        size = min(step, 1 + _RESAMPLES - done)
        questions = _weights(random, streams.tier[distinct], size)
        seeds = random.multinomial(len(places), np.full(len(places), 1 / len(places)), size=size).T
        count = (correct.reshape(-1, distinct.size) @ questions.T).reshape(len(found), len(places), size)
        share[:, done : done + size] = 100 * (count * seeds).sum(1) / ((drawn @ questions.T) * seeds).sum(0)
        done += size
    return dict(zip(found, share, strict=True))


def _weights(random: np.random.Generator, tier: NDArray[np.intp], size: int) -> Array:
    """How often each question is drawn in each of `size` resamples; the size of every tier is kept."""
    weights = np.zeros((size, tier.size))
    for each in np.unique(tier):
        members = np.flatnonzero(tier == each)
        picks = random.integers(members.size, size=(size, members.size)) + members.size * np.arange(size)[:, None]
        counts = np.bincount(picks.ravel(), minlength=size * members.size)
        weights[:, members] = counts.reshape(size, members.size)
    return weights
