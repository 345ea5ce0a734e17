"""Simulations in which only lengths matter, a whole round at a time: the results of `simulate`, many times faster.

The scheduler itself decides (`Reserved.decide`, `Metered.plan`, `Metered.recalibrate`); only serving is done in bulk.
tests/engine/test_bulk.py compares the results with `simulate`, request by request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from shadowprice.engine.metered import Metered
from shadowprice.engine.reserved import Reserved
from shadowprice.market.gittins import Chunks

Ints: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Served:
    """By request: the most tokens it was ever allowed, and the tokens it generated."""

    granted: Ints
    generated: Ints


def simulate_lengths(scheduler: Reserved | Metered, ends: Ints, budget: int, cap: int) -> Served:
    """Drives a scheduler over answers that end after `ends` tokens, one for each of its requests.

    `cap` is the `max_tokens` of the scheduler. An answer with an end above it never ends.
    """
    if isinstance(scheduler, Metered):
        return _by_index(scheduler, ends, budget, cap)
    return _in_rounds(scheduler, ends, budget, cap)


def _in_rounds(scheduler: Reserved, ends: Ints, budget: int, cap: int) -> Served:
    granted, age = np.zeros(ends.size, dtype=np.int64), np.zeros(ends.size, dtype=np.int64)
    waiting, left = np.arange(ends.size), budget
    while (grants := scheduler.decide(waiting.tolist(), age[waiting], left)).any():
        served, now = waiting[grants > 0], grants[grants > 0]
        granted[served] = age[served] + now
        age[served] = np.minimum(granted[served], ends[served])
        left = budget - int(age.sum())
        if scheduler.metered:
            waiting = waiting[(age[waiting] < ends[waiting]) & (age[waiting] < cap)]
        else:
            waiting = waiting[granted[waiting] == 0]
    return Served(granted, age)


def _by_index(scheduler: Metered, ends: Ints, budget: int, cap: int) -> Served:
    age, stopped = np.zeros(ends.size, dtype=np.int64), np.zeros(ends.size, dtype=bool)
    begun: dict[int, None] = {}  # requests whose answers were cut, in the order of their first cut
    left = budget
    while left > 0 and (active := np.flatnonzero(~stopped & (age < cap))).size:
        plan = scheduler.plan(active, age[active], left)
        request, start, stop = _chunks(plan, active, age, scheduler.least)
        reached = np.minimum(stop, ends[request])
        spent = np.cumsum(np.maximum(0, reached - start))
        ending = np.cumsum((start < ends[request]) & (ends[request] <= stop))
        affordable = int(np.searchsorted(spent, left, side="right"))
        enough = request.size  # chunks until the next lesson
        if scheduler.learn:
            next_lesson = scheduler.lessons
            by_ended = np.searchsorted(ending, next_lesson.ended - stopped.sum())
            enough = 1 + int(min(by_ended, np.searchsorted(spent, next_lesson.tokens - age.sum())))
        served = slice(0, min(affordable, enough))
        np.maximum.at(age, request[served], reached[served])
        stopped = age >= ends
        cut = request[served][stop[served] < ends[request[served]]]
        begun.update(dict.fromkeys(cut.tolist()))
        if enough <= affordable and enough <= request.size and scheduler.recalibrate(age, stopped):
            left -= int(spent[enough - 1])
            continue
        left -= int(spent[affordable - 1]) if affordable else 0
        if affordable < request.size:  # the budget ends within this chunk
            age[request[affordable]] = start[affordable] + left
            left = 0
        # Requests whose forecasts promise nothing more: first those with a part of an answer, then those without.
        for place in [*begun, *np.flatnonzero(age == 0).tolist()]:
            more = 0 if stopped[place] else min(left, int(min(ends[place], cap) - age[place]))
            age[place] += more
            left -= more
            stopped[place] = age[place] >= ends[place]
            if more and scheduler.recalibrate(age, stopped):
                break
        else:
            break
    return Served(age, age)


def _chunks(plan: Chunks, active: NDArray[np.intp], age: Ints, least: int) -> tuple[NDArray[np.intp], Ints, Ints]:
    """Request, start and stop of all chunks, in the order in which they are served.

    A chunk runs to where the index falls, and at least `least` tokens; its index is that of its first part.
    """
    wide = float(plan.stop.max(initial=0) + least + 1)
    query, stops, index = plan.query, plan.stop, plan.index
    ascending = query * wide + stops  # by request, and within each by age
    at = np.flatnonzero(np.diff(query, prepend=-1))  # the first part that is not in a chunk yet, by request
    last = np.append(at[1:], query.size) - 1
    who = active[query[at]]
    start = age[who]
    rows: list[tuple[NDArray[np.intp], Ints, Ints, NDArray[np.float64]]] = []
    while at.size:
        to = np.minimum(np.searchsorted(ascending, query[at] * wide + start + least), last)
        rows.append((who, start, stops[to], index[at]))
        more = to < last
        at, last, who, start = to[more] + 1, last[more], who[more], stops[to][more]
    if not rows:
        nothing = np.zeros(0, dtype=np.int64)
        return nothing.astype(np.intp), nothing, nothing
    request, first, stop, worth = (np.concatenate(column) for column in zip(*rows, strict=True))
    served = np.lexsort((request, -worth))
    return request[served], first[served], stop[served]
