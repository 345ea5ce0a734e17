r"""A common level: all answers may grow to the same age, whatever their forecasts say of each.

With A, F and C as in `gittins`, seen from the age t_i that the answer to query i has reached, a level u costs and gains

    cost(u) = sum_i (C_i(u) - C_i(t_i)) / (1 - F_i(t_i))      gain(u) = sum_i (A_i(u) - A_i(t_i)) / (1 - F_i(t_i))

over all answers below it, and the level of a budget is where they meet: cost(u) = budget. It is what dividing the
budget equally comes to where tokens count as they are generated. Only the sums count, so what forecasts
say of single queries may be wrong, and the order of the index needs more than that: by these forecasts it
never gains less.

The sums may be wrong too, so answers go there in steps: first to the age that the budget reaches even if none of them
ends, then a tenth further each time. A step to the age s has the index gain(u) / cost(u) * u / s: the lower step is
served first, and at the level itself the index is what a token is expected to gain.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shadowprice.arrays import Array
from shadowprice.market.gittins import BLOCK, Chunks, along, last_ages
from shadowprice.types import Forecast

_GRID = 48  # levels that are compared, evenly spaced in the logarithm
_STEP, _LEAP = 1.1, 2.0  # from one step to the next, below twice the level and beyond it


@dataclass(frozen=True)
class Level:
    """The age that all answers are expected to reach, and the one that they reach even if none of them ends."""

    age: float
    sure: float
    value: float  # correct answers expected on the way
    index: float  # the same per token

    def steps(self, last: float) -> Array:
        """Ages to stop at on the way, whole tokens, up to the last."""
        ages = [max(1.0, self.sure)]
        while ages[-1] < last:
            ages.append(ages[-1] * (_STEP if ages[-1] < 2 * self.age else _LEAP))
        return np.unique(np.ceil(ages))


def level_of(forecast: Forecast, cap: Array, age: Array, entry: Array, budget: float) -> Level:
    """The level of a budget; the other arguments are those of `chunks`."""
    last = last_ages(forecast, age, cap)
    ages = np.geomspace(1.0, max(2.0, float(last.max(initial=0.0))), _GRID)
    gained, cost = _from_now(forecast, ages, last, age, entry)
    total, value = cost.sum(axis=0), gained.sum(axis=0)
    unended = (_clipped(ages, age, last) - age[:, None]).sum(axis=0)
    reached, sure, worth = (
        float(np.interp(budget, *each)) for each in ((total, ages), (unended, ages), (total, value))
    )
    return Level(reached, sure, worth, worth / max(1.0, min(budget, float(total[-1]))))


def steps_to(level: Level, forecast: Forecast, cap: Array, age: Array, entry: Array) -> Chunks:
    """The chunks of all queries on their way to the level and beyond it."""
    last = last_ages(forecast, age, cap)
    ages = level.steps(float(last.max(initial=0.0)))
    count, stops, costs = [np.zeros(1, dtype=np.int64)], [np.zeros(0)], [np.zeros(0)]
    for first in range(0, len(forecast), BLOCK):
        some = np.arange(first, min(first + BLOCK, len(forecast)))
        _, cost = _from_now(forecast.take(some), ages, last[some], age[some], entry[some])
        stop = np.floor(_clipped(ages, age[some], last[some]))
        new = np.diff(stop, axis=1, prepend=age[some][:, None]) > 0
        count.append(new.sum(axis=1))
        stops.append(stop[new])
        costs.append(np.diff(cost, axis=1, prepend=0.0)[new])
    stop, cost = np.concatenate(stops), np.concatenate(costs)
    index = level.index * level.age / stop
    return Chunks(np.cumsum(np.concatenate(count)), age.astype(np.int64), stop.astype(np.int64), index, cost)


def _from_now(forecast: Forecast, levels: Array, last: Array, now: Array, entry: Array) -> tuple[Array, Array]:
    """By query and level, what is gained and spent from the current age on. Every step pays its entry cost."""
    ages = _clipped(np.append(0.0, levels), now, last)
    gained, alive, cost = along(forecast, ages)
    to_enter = entry[:, None] * alive[:, :-1] * (np.diff(ages, axis=1) > 0)
    cost[:, 1:] += np.cumsum(to_enter, axis=1)
    return (gained[:, 1:] - gained[:, :1]) / alive[:, :1], cost[:, 1:] / alive[:, :1]


def _clipped(levels: Array, now: Array, last: Array) -> Array:
    """The levels that a query can still grow to, a row per query."""
    return np.clip(levels, now[:, None], np.maximum(last, now)[:, None])
