"""A worker: serves blocks of requests with the executor of a run, on leases from the coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from shadowprice.backends.base import Backend
from shadowprice.cost import TOKENS, Rates
from shadowprice.distributed.coordinator import TAKEN, Message, Reply
from shadowprice.distributed.leases import Leases
from shadowprice.engine.executor import USUAL, Grader, Progress, Tolerance, execute
from shadowprice.engine.granted import Granted
from shadowprice.types import Request

WAITS, ENDED = 0, 1  # the state of a request after a block was served


@dataclass(frozen=True)
class Terms:
    """What all workers of a job have in common."""

    budget: int
    concurrency: int = 8
    attempts: int = 4
    tolerance: Tolerance = USUAL
    rates: Rates = TOKENS


@dataclass
class Served:
    """How a block was served: the state of each request, the outcomes so far, and why the job has to stop, if so."""

    state: NDArray[np.int8]
    outcomes: Mapping[str, int] = field(default_factory=dict)
    stopped: str = ""


async def serve(
    requests: Sequence[Request],
    grants: NDArray[np.int64],
    backend: Backend,
    exchange: Callable[[Message], Awaitable[Reply]],
    terms: Terms,
    *,
    grade: Grader | None = None,
    again: bool = False,
) -> Served:
    """Sends every request of a block that has a grant; all that is known of them then is in the ledger.

    again  the block may have been served in part, by a worker that died
    """
    scheduler = Granted(attempts=terms.attempts, rates=terms.rates)
    granted: list[int] = np.flatnonzero(grants).tolist()
    limited = [replace(requests[at], max_tokens=int(grants[at])) for at in granted]
    scheduler.add(limited)
    names = [request.id for request in limited]
    progress = Progress(terms.budget)
    leases = Leases(progress, exchange, scheduler, names, range(len(names)), most=terms.concurrency, again=again)
    execution = asyncio.create_task(
        execute(
            scheduler,
            leases,
            backend,
            concurrency=terms.concurrency,
            attempts=terms.attempts,
            tolerance=terms.tolerance,
            rates=terms.rates,
            grade=grade,
            progress=progress,
            record_rest=False,
            feed=leases,
        )
    )
    supply = asyncio.create_task(leases.supply())
    supply.add_done_callback(lambda task: execution.cancel() if task.cancelled() or task.exception() else None)
    try:
        await execution
        leases.finish()
    finally:
        if not execution.done() or execution.cancelled() or execution.exception():
            supply.cancel()
        await supply
    state = np.full(len(requests), WAITS, dtype=np.int8)
    for place, at in enumerate(granted):
        if names[place] in leases.ended or leases.skipped.get(place) == TAKEN:
            state[at] = ENDED
    return Served(state, dict(progress.outcomes), progress.stopped)
