"""A worker: serves blocks of requests with the executor of a run, on leases from the coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from shadowprice.backends.base import Backend
from shadowprice.cost import TOKENS, Rates
from shadowprice.distributed.coordinator import Message, Reply
from shadowprice.distributed.leases import Leases
from shadowprice.distributed.metered import Rounded, demand_of
from shadowprice.engine.executor import Grader, execute
from shadowprice.engine.granted import Granted
from shadowprice.engine.metered import Metered
from shadowprice.engine.progress import USUAL, Progress, Tolerance
from shadowprice.formats.results import parse_chunk, parse_result
from shadowprice.shape import Shape
from shadowprice.types import Forecast, Request

WAITS, ENDED = 0, 1  # the state of a request after a block was served


@dataclass(frozen=True)
class Terms:
    """What all workers of a job share; `shape` is the shape of the lengths, for metered accounting."""

    budget: int
    concurrency: int = 8
    attempts: int = 4
    tolerance: Tolerance = USUAL
    rates: Rates = TOKENS
    shape: Shape | None = None


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
    """Sends every request of a block that has a grant. When it returns, everything about them is in the ledger.

    again  the block may have been served in part, by a worker that died
    """
    scheduler = Granted(attempts=terms.attempts, rates=terms.rates)
    granted: list[int] = np.flatnonzero(grants).tolist()
    scheduler.add([replace(requests[at], max_tokens=int(grants[at])) for at in granted])
    progress = Progress(terms.budget)
    leases = Leases(progress, exchange, scheduler, most=terms.concurrency, again=again)
    await run_on(leases, backend, terms, progress, grade, record_rest=False)
    state = np.array([request.id in leases.ended for request in requests], dtype=np.int8)
    return Served(state, dict(progress.outcomes), progress.stopped)


async def run_on(
    leases: Leases,
    backend: Backend,
    terms: Terms,
    progress: Progress,
    grade: Grader | None,
    *,
    record_rest: bool,
) -> None:
    """Executes what the leases' scheduler decides; everything is settled when it returns."""
    execution = asyncio.create_task(
        execute(
            leases,
            leases,
            backend,
            concurrency=terms.concurrency,
            attempts=terms.attempts,
            tolerance=terms.tolerance,
            rates=terms.rates,
            grade=grade,
            progress=progress,
            record_rest=record_rest,
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


class Share:
    """The requests of one worker in metered accounting; they stay with it from round to round."""

    def __init__(
        self,
        requests: Sequence[Request],
        forecast: Forecast,
        backend: Backend,
        exchange: Callable[[Message], Awaitable[Reply]],
        terms: Terms,
        *,
        grade: Grader | None = None,
        again: bool = False,
    ) -> None:
        self._backend, self._exchange, self._terms, self._grade, self._again = backend, exchange, terms, grade, again
        self._scheduler = Metered(
            concurrency=terms.concurrency,
            can_continue=lambda request: backend.can_continue(request.body),
            attempts=terms.attempts,
            rates=terms.rates,
        )
        self._scheduler.add(requests, forecast)
        self._places = {request.id: place for place, request in enumerate(requests)}

    def restore(self, parts: Sequence[tuple[str, bytes, bool]]) -> None:
        """Restores what the ledger has of these requests: parts of answers, and results."""
        answered = {name for name, _, is_result in parts if is_result}
        for name, line, is_result in parts:
            if is_result:
                self._scheduler.restore(self._places[name], parse_result(line))
            elif name not in answered:
                self._scheduler.restore(self._places[name], parse_chunk(line).part)

    async def round(self, allowance: int, *, last: bool = False) -> Rounded:
        """Serves by index until the allowance is spent; after the last round, parts of answers become results."""
        progress = Progress(self._terms.budget)
        leases = Leases(
            progress,
            self._exchange,
            self._scheduler,
            most=self._terms.concurrency,
            allowance=allowance,
            again=self._again,
        )
        await run_on(leases, self._backend, self._terms, progress, self._grade, record_rest=last)
        waiting = self._scheduler.batch.unanswered
        return Rounded(demand_of(self._scheduler), leases.spent, waiting, dict(progress.outcomes), progress.stopped)
