"""Metered accounting on several machines, in rounds.

Each worker has a share of the requests, and serves them by their index as one node does (`engine.metered`), with its
own units for the round. Between rounds every worker says what its requests would still buy: chunks of generation, each
with its index and its cost. Together they have one price: the index of the last chunk that the budget reaches. The
allowance of a worker for the next round is the cost of its chunks above the price. The first rounds divide half of what
is left, the later ones all of it, because what an answer takes is known only when it has ended.

Two things are lost compared with one node: within a round a worker that runs out of promising chunks cannot use the
units of another, and only the answers of its own share correct its forecasts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from shadowprice.arrays import Array
from shadowprice.engine.metered import Metered

HALVES = 3  # rounds that divide half of what is left
MOST_ROUNDS = 12
_POINTS = 4096  # the most groups of chunks that a worker reports


@dataclass(frozen=True, eq=False)
class Demand:
    """What requests would buy: expected tokens by index, the highest index first."""

    index: Array
    cost: Array


@dataclass(frozen=True)
class Rounded:
    """How a round ended at one worker."""

    demand: Demand
    spent: int
    waiting: int
    outcomes: dict[str, int] = field(default_factory=dict)
    stopped: str = ""


def demand_of(scheduler: Metered) -> Demand:
    """What the requests that wait would buy. Chunks of similar index are grouped."""
    chunks = scheduler.waiting_chunks()
    order = np.argsort(-chunks.index, kind="stable")
    index, cost = chunks.index[order], chunks.cost[order]
    if index.size <= _POINTS:
        return Demand(index, cost)
    first = np.linspace(0, index.size, _POINTS, endpoint=False).astype(np.intp)
    return Demand(index[first], np.add.reduceat(cost, first))


def price_of(demands: Sequence[Demand], tokens: float) -> float:
    """The index of the last chunk that these tokens are expected to reach, the best first; 0 if they are ample."""
    index = np.concatenate([demand.index for demand in demands])
    order = np.argsort(-index, kind="stable")
    total = np.cumsum(np.concatenate([demand.cost for demand in demands])[order])
    reached = int(np.searchsorted(total, tokens))
    return float(index[order[reached]]) if reached < index.size else 0.0


def allowances(demands: Sequence[Demand], units: int, tokens: float) -> tuple[float, list[int]]:
    """The price, and `units` divided among workers by what their chunks at that price or above cost.

    tokens  that the whole of what is left pays for: the price is that of all of it, also where a round divides half
    """
    price = price_of(demands, tokens)
    needs = np.array([float(demand.cost[demand.index >= price].sum()) for demand in demands])
    if not needs.sum() > 0:
        return price, [0] * len(demands)
    shares = [int(share) for share in np.floor(units * needs / needs.sum())]
    shares[int(np.argmax(needs))] += units - sum(shares)
    return price, shares
