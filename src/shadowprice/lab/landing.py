"""Landings: answers that are asked for their final answer before they have ended, on traces that were probed.

`landing_ages` stops every answer at the same age; `landing` compares policies with and without landings under a budget.
The landing oracle is a bound: it knows the first age from which the final answer stays correct, and pays for nothing
else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadowprice.arrays import Array
from shadowprice.engine import HINDSIGHT
from shadowprice.formats.probes import latest_probe, probes_of
from shadowprice.lab.compare import Drawn, Row, interval, resampled
from shadowprice.lab.config import Lab, NotPossible, budgets_of
from shadowprice.lab.pools import FEWEST, Pool
from shadowprice.lab.simulations import Accounting, Outcome, Queries, Setup, outcome_of
from shadowprice.lab.streams import draw
from shadowprice.simulation import replay
from shadowprice.types import Request, Trace

_BUDGETS = ("0.25x", "0.5x", "0.75x", "1x", "2x")
_AGES = (0, 32, 64, 128, 192, 256, 384, 512, 768, 1024)
_POLICIES: dict[str, Accounting] = {"clear": "reserved", "expected": "reclaimed", "index": "metered"}
_BOUNDS: dict[str, Accounting] = dict.fromkeys(HINDSIGHT, "reserved")


class _Cell(NamedTuple):
    budget: int
    policy: str
    accounting: Accounting
    landing: bool


class _Landed(NamedTuple):
    """The outcomes with landings, the share of the results that are landings, and the probes that were sent."""

    outcome: Outcome
    landed: float
    probes: int


def landing_ages(lab: Lab) -> list[Row]:
    """Percent correct if every answer is stopped at one age: cut there, or asked for its final answer."""
    pool = _probed(lab)
    probes = [probes_of(trace) for trace in pool.first]
    ends = np.where(pool.truncated, np.inf, pool.length)
    rows: list[Row] = []
    for age in [age for age in _AGES if age < pool.cap]:
        landed = [(probe := latest_probe(by_age, age)) is not None and probe.correct for by_age in probes]
        whole = pool.correct & (ends <= age)
        for stopped, correct in (("cut", whole), ("landed", np.where(ends <= age, whole, landed))):
            facts = {"table": "landing_ages", "model": pool.model, "tokens": age, "stopped": stopped}
            rows.append({**facts, "solved": 100 * float(np.mean(correct)), "queries": len(pool), "source": "ours"})
    return rows


def landing(lab: Lab) -> list[Row]:
    """Policies with and without landings on one stream: the same forecasts, streams and budgets.

    gain     of landings, in points, with its interval
    landed   percent of the queries whose results are landings
    spoiled  percent of the queries that are answered correctly without landings, and not with them
    probes   sent during the run, per 100 queries; `gain_of_probes`: in points, against the same without them
    """
    pool = _probed(lab)
    places = [draw(pool, lab.stream, min(lab.queries, len(pool)), seed) for seed in range(lab.seeds)]
    drawn = Drawn(places, [Queries.of(pool, chosen) for chosen in places], pool.tier)
    by_cell: dict[_Cell, list[Outcome]] = {}
    landed: dict[_Cell, float] = {}
    probes: dict[_Cell, tuple[float, float]] = {}
    for budget in budgets_of(pool.median, _BUDGETS):
        for policy, accounting in (_POLICIES | _BOUNDS).items():
            without = _Cell(budget, policy, accounting, False)
            by_cell[without] = [
                outcome_of(Setup(policy, accounting), queries, budget * len(queries)) for queries in drawn.queries
            ]
        for policy, accounting in _POLICIES.items():
            cell = _Cell(budget, policy, accounting, True)
            streams = [_landing(pool.take(chosen), cell) for chosen in places]
            by_cell[cell] = [stream.outcome for stream in streams]
            landed[cell] = float(np.mean([stream.landed for stream in streams]))
            probes[cell] = _probes(pool, cell, places, streams)
        bound = _Cell(budget, "clairvoyant", "reserved", True)
        by_cell[bound] = [_bound(pool.take(chosen), budget * chosen.size) for chosen in places]
    share = resampled(drawn, by_cell)
    rows: list[Row] = []
    for cell, outcomes in by_cell.items():
        low, high = interval(share[cell])
        row = {
            "table": "landing",
            "model": pool.model,
            "stream": lab.stream,
            "budget": cell.budget,
            "budget_times_median": cell.budget / pool.median,
            "policy": cell.policy,
            "accounting": cell.accounting,
            "reclaim": cell.accounting == "reclaimed",
            "landing": cell.landing,
            "command": _command(cell, drawn.queries[0]),
            "solved": float(share[cell][0]),
            "ci_low": low,
            "ci_high": high,
            "tokens_spent": float(np.mean(np.concatenate([outcome.spent for outcome in outcomes]))),
        }
        if cell in landed:
            without = cell._replace(landing=False)
            low, high = interval(share[cell] - share[without])
            pairs = zip(by_cell[without], outcomes, strict=True)
            spoiled = float(np.mean([np.mean(a.correct & ~b.correct) for a, b in pairs]))
            row |= {"gain": float(share[cell][0] - share[without][0]), "gain_low": low, "gain_high": high}
            row |= {"landed": 100 * landed[cell], "spoiled": 100 * spoiled}
            row |= {"probes": probes[cell][0], "gain_of_probes": probes[cell][1]}
        rows.append({**row, "queries": places[0].size, "seeds": len(places), "source": "ours"})
    return rows


def _probed(lab: Lab) -> Pool:
    """The questions whose first answers were probed."""
    places = np.flatnonzero([0 in probes_of(trace) for trace in lab.pool.first])
    if places.size < FEWEST:
        raise NotPossible(f"fewer than {FEWEST} answers were probed (collect --probe)")
    return lab.pool.take(places)


def _probes(
    pool: Pool, cell: _Cell, places: Sequence[NDArray[np.intp]], found: Sequence[_Landed]
) -> tuple[float, float]:
    """Probes per 100 queries, and the points that they gain."""
    sent = 100 * float(np.mean([each.probes / each.outcome.correct.size for each in found]))
    if sent == 0 or pool.anytime is None:
        return 0.0, 0.0
    silent = replace(pool, anytime=replace(pool.anytime, evidence=None))
    without = [_landing(silent.take(each), cell) for each in places]
    points = [100 * float(np.mean(each.outcome.correct)) for each in (*found, *without)]
    return sent, float(np.mean(points[: len(found)]) - np.mean(points[len(found) :]))


def _landing(pool: Pool, cell: _Cell) -> _Landed:
    settings = replace(Setup(cell.policy, cell.accounting).settings(_queries(pool)), landing="math")
    requests = [Request(str(place), trace.prompt) for place, trace in enumerate(pool.first)]
    budget = cell.budget * len(pool)
    simulated = replay(requests, pool.under_cap, pool.forecast, budget, settings, pool.anytime)
    results = simulated.results
    spent = np.array([result.cost for result in results])
    ended = np.array([result.outcome in ("finished", "landed") for result in results])
    correct = np.array([result.correct is True for result in results])
    share = float(np.mean([result.outcome == "landed" for result in results]))
    return _Landed(Outcome(spent, spent, ended, correct), share, simulated.probes)


def _bound(pool: Pool, budget: int) -> Outcome:
    """The most correct answers that a budget can pay for: the cheapest first."""
    costs = landing_costs(pool.under_cap)
    order = np.argsort(costs, kind="stable")
    chosen = order[: int(np.searchsorted(np.cumsum(costs[order]), budget, side="right"))]
    correct = np.zeros(len(pool), dtype=bool)
    correct[chosen] = True
    spent = np.where(correct, costs, 0.0).astype(np.int64)
    return Outcome(spent, spent, correct, correct)


def landing_costs(traces: Sequence[Trace]) -> Array:
    """What the first landing costs from which on landings and the end are correct; without one, the whole answer;
    infinite where nothing is correct."""
    costs = np.full(len(traces), np.inf)
    for place, trace in enumerate(traces):
        if trace.correct and not trace.truncated:
            costs[place] = trace.tokens
        if trace.correct or trace.truncated:
            for age, probe in reversed(probes_of(trace).items()):
                if not probe.correct:
                    break
                costs[place] = min(costs[place], age + probe.tokens)
    return costs


def _queries(pool: Pool) -> Queries:
    places: NDArray[np.intp] = np.arange(len(pool))
    return Queries.of(pool, places)


def _command(cell: _Cell, queries: Queries) -> str:
    if cell.policy in HINDSIGHT:
        return ""
    setup = Setup(cell.policy, cell.accounting)
    settings = replace(setup.settings(queries), landing="math" if cell.landing else None)
    return f"{settings.command(f'{cell.budget}/query')} --base-url URL"
