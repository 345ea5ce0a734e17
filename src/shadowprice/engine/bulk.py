"""Simulations in which only lengths matter, a whole round at a time: the results of `simulate`, many times faster.

The scheduler itself decides (`Reserved.decide`, `Metered.plan`, `Metered.recalibrate`); only serving is done in bulk.
tests/engine/test_bulk.py compares the results with `simulate`, request by request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from shadowprice.arrays import Array
from shadowprice.engine.metered import Metered
from shadowprice.engine.reserved import Reserved
from shadowprice.forecast.reading import AGES
from shadowprice.market.gittins import Chunks, chunks
from shadowprice.types import Forecast

Ints: TypeAlias = NDArray[np.int64]
_STAGES = np.array(AGES)


@dataclass(frozen=True, eq=False)
class Served:
    """By request: the most tokens it was ever allowed, and the tokens it generated."""

    granted: Ints
    generated: Ints


def simulate_lengths(
    scheduler: Reserved | Metered, ends: Ints, budget: int, cap: int, texts: Array | None = None
) -> Served:
    """Drives a scheduler over answers that end after `ends` tokens, one for each of its requests.

    `cap` is the `max_tokens` of the scheduler. An answer with an end above it never ends. A scheduler that reads needs
    the traits of every answer at `forecast.reading.AGES`: `texts[i, k]` are those of answer i at the k-th age, NaN if
    the answer has no text.
    """
    if isinstance(scheduler, Metered):
        return _by_index(scheduler, ends, budget, cap, texts)
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


def _by_index(scheduler: Metered, ends: Ints, budget: int, cap: int, texts: Array | None) -> Served:
    age, stopped = np.zeros(ends.size, dtype=np.int64), np.zeros(ends.size, dtype=bool)
    begun: dict[int, None] = {}  # requests whose answers were cut, in the order of their first cut
    left, last = budget, np.minimum(ends, cap)
    while left > 0 and (active := np.flatnonzero(~stopped & (age < cap))).size:
        plan = scheduler.plan(active, age[active], left)
        read = texts if scheduler.reads else None
        if read is not None:
            known = scheduler.corrected, active, age[active], last[active], scheduler.answers_read.since(active)
            request, start, stop = scheduler.recall(_chunks_between, *known, scheduler.least, given=(scheduler, read))
        else:
            request, start, stop = scheduler.recall(_chunks, plan, active, scheduler.least)
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
        if read is not None:
            _keep_read(scheduler, request[served], stop[served], last, read)
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


def _chunks(plan: Chunks, active: NDArray[np.intp], least: int) -> tuple[NDArray[np.intp], Ints, Ints]:
    """Request, start and stop of all chunks, in the order in which they are served."""
    row, start, stop, index = _joined(plan, least)
    order = np.argsort(-index, kind="stable")
    return active[row[order]], start[order], stop[order]


def _joined(plan: Chunks, least: int) -> tuple[NDArray[np.intp], Ints, Ints, Array]:
    """Row of the plan, start, stop and index of all chunks, by row and age.

    A chunk runs to where the index falls, and at least `least` tokens; its index is that of its first part.
    """
    query, start, stop = plan.query, plan.start, plan.stop
    wide = float(stop.max(initial=0) + least + 1)
    ascending = query * wide + stop  # by request, and within each by age
    # Where a chunk ends that begins with this part, and where the next one begins: at a later part of the same request,
    # or at the first part of the next.
    end = np.minimum(np.searchsorted(ascending, query * wide + start + least), plan.first[query + 1] - 1)
    begins = np.append(np.zeros(query.size, dtype=bool), True)
    at = plan.first[:-1][np.diff(plan.first) > 0]
    while at.size:
        begins[at] = True
        at = end[at] + 1
        at = at[~begins[at]]
    chunk = np.flatnonzero(begins[:-1])
    return query[chunk], start[chunk], stop[end[chunk]], plan.index[chunk]


def _chunks_between(
    everybody: Forecast,
    active: NDArray[np.intp],
    age: Ints,
    last: Ints,
    since: Ints,
    least: int,
    scheduler: Metered,
    texts: Array,
) -> tuple[NDArray[np.intp], Ints, Ints]:
    """The same for answers that are read on the way. They pause at every age at which they are read, up to their end,
    and what was read there decides on their chunks up to the next."""
    readable = ~np.isnan(texts[active, 0, 0])
    later, stage = np.nonzero((age[:, None] < _STAGES) & (last[:, None] > _STAGES) & readable[:, None])
    stage = np.append(np.full(active.size, -1), stage)  # -1: the present age
    who, start = np.append(active, active[later]), np.append(age, _STAGES[stage[active.size :]])
    order = np.lexsort((start, who))
    who, start, stage = who[order], start[order], stage[order]
    rows = np.flatnonzero(stage >= 0)
    observed = texts[who[rows], stage[rows]]
    read = scheduler.answers_read.revised(who, rows, start[rows].astype(np.float64), observed, everybody)
    if since.any() and (before := scheduler.answers_read.readings(active, everybody)) is not None:
        for values, old in zip(read, before, strict=True):
            values[stage < 0] = old
    plan = chunks(everybody.take(who), *scheduler.where(who, start), scheduler.anytime, read)
    row, begin, stop, index = _joined(plan, least)
    never = np.iinfo(np.int64).max
    pause = np.append(_STAGES, never)[np.searchsorted(_STAGES, start, side="right")]
    pause[np.isnan(texts[who, 0, 0])] = never
    inside = begin < pause[row]
    row, begin, stop, index = row[inside], begin[inside], np.minimum(stop, pause[row])[inside], index[inside]
    # An answer whose chunks end before the pause does not come to the next age.
    paused = np.zeros(who.size, dtype=bool)
    paused[row[stop == pause[row]]] = True
    stuck = np.append(0, np.cumsum(~paused)[:-1])
    first = np.searchsorted(who, who)
    come = (stuck == stuck[first])[row]
    return _best_first(who[row[come]], begin[come], stop[come], index[come])


def _best_first(
    request: NDArray[np.intp], start: Ints, stop: Ints, index: Array
) -> tuple[NDArray[np.intp], Ints, Ints]:
    """Chunks by request and age, in the order in which they are served if always the best next one is.

    After a reading the index may rise. A chunk is served as soon as all before it are, so what counts is the lowest
    index of its request so far.
    """
    each, place = np.unique(request, return_inverse=True)
    number = np.arange(request.size) - np.searchsorted(request, request)
    lowest = np.full((each.size, int(number.max(initial=0)) + 1), np.inf)
    lowest[place, number] = index
    order = np.argsort(-np.minimum.accumulate(lowest, axis=1)[place, number], kind="stable")
    return request[order], start[order], stop[order]


def _keep_read(scheduler: Metered, request: NDArray[np.intp], stop: Ints, last: Ints, texts: Array) -> None:
    """Passes on what was read where answers paused."""
    stage = np.minimum(np.searchsorted(_STAGES, stop), _STAGES.size - 1)
    paused = (_STAGES[stage] == stop) & (stop < last[request]) & ~np.isnan(texts[request, 0, 0])
    for at in np.flatnonzero(paused).tolist():
        scheduler.answers_read.keep(int(request[at]), int(stop[at]), texts[request[at], stage[at]])
