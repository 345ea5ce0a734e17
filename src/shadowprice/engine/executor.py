"""The loop: reserve, send, retry, settle, report. The only place that talks to backends.

Units are reserved in the ledger before anything is sent, and settled by what was used, together with the answer.
An attempt that is known to have generated nothing is repeated on the same reservation; one whose outcome nobody
knows has spent it, and the scheduler decides what becomes of its request.

A server that ignores a limit breaks the promise of the budget. Answers under way are received to their end and
charged for what they took; nothing more is sent.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from shadowprice.accounts.sqlite import Ledger
from shadowprice.backends.base import Backend, join
from shadowprice.cost import TOKENS, Rates
from shadowprice.engine.scheduler import Report, Scheduler, Work
from shadowprice.errors import BackendError, Distrusted, Unavailable
from shadowprice.formats.results import chunk_line, result_line
from shadowprice.types import Completion, Request, Result, Usage

# Whether an answer is correct. Called in a thread; a scheduler stops sampling at a correct one.
Grader: TypeAlias = Callable[[Request, str], "bool | None"]


@dataclass
class Progress:
    """How far an execution is; handed to `on_event` whenever something has happened.

    `stop` has it send nothing more and finish what is under way; `stopped` says why.
    """

    budget: int
    spent: int = 0
    price: float | None = None
    rounds: int = 0
    running: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    stopped: str = ""

    def stop(self, reason: str) -> None:
        self.stopped = self.stopped or reason


async def execute(
    scheduler: Scheduler,
    ledger: Ledger,
    backend: Backend,
    *,
    concurrency: int = 8,
    attempts: int = 4,
    patience: float = 30.0,
    rates: Rates = TOKENS,
    grade: Grader | None = None,
    progress: Progress | None = None,
    record_rest: bool = True,
    on_result: Callable[[Result], None] = lambda result: None,
    on_event: Callable[[Progress], None] = lambda progress: None,
) -> Progress:
    """Sends what `scheduler` decides on until nothing is worth its price; everything that happens is in the ledger.

    concurrency  pieces of work under way at the same time
    attempts     at one piece of work, where failed ones are known to have generated nothing
    patience     seconds to wait between two attempts, at most
    record_rest  what becomes of requests that were never sent is kept in the ledger
    on_result    called with the result of every request, once it is in the ledger
    """
    progress = progress or Progress(ledger.budget)
    loop = _Loop(scheduler, ledger, backend, concurrency, attempts, patience, rates, grade, progress)
    loop.on_result, loop.on_event = on_result, on_event
    await loop.run()
    if record_rest:
        loop.close()
    return progress


@dataclass
class _Loop:
    scheduler: Scheduler
    ledger: Ledger
    backend: Backend
    concurrency: int
    attempts: int
    patience: float
    rates: Rates
    grade: Grader | None
    progress: Progress
    on_result: Callable[[Result], None] = lambda result: None
    on_event: Callable[[Progress], None] = lambda progress: None
    ended: deque[tuple[int, Report]] = field(default_factory=deque)
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                self._send(group)
                self._tell()
                if not self.progress.running:
                    break
                await self.wake.wait()
                self.wake.clear()
                while self.ended:
                    self.progress.running -= 1
                    self._settle(*self.ended.popleft())

    def _send(self, group: asyncio.TaskGroup) -> None:
        """Fills the free places. All that starts now is reserved at the cost of one wait for the disk."""
        starting: list[Work] = []
        available = self.ledger.available
        while not self.progress.stopped and self.progress.running + len(starting) < self.concurrency:
            work = self.scheduler.next(available)
            if work is None:
                break
            starting.append(work)
            available -= work.bound
        reservations = self.ledger.reserve_many((work.request.id, work.bound) for work in starting)
        for work, reservation in zip(starting, reservations, strict=True):
            self.progress.running += 1
            group.create_task(self._serve(work, reservation))

    async def _serve(self, work: Work, reservation: int) -> None:
        self.ended.append((reservation, await self._attempt(work)))
        self.wake.set()

    async def _attempt(self, work: Work) -> Report:
        """Attempts until one is answered, refused, may have cost something, or was the last."""
        tried = 0
        while True:
            tried += 1
            try:
                found = await self.backend.complete(
                    work.body, work.grant, continue_from=work.so_far, suffix=work.suffix
                )
            except BackendError as error:
                again = isinstance(error, Unavailable) and error.tokens == 0 and tried < self.attempts
                if not again or self.progress.stopped:
                    return Report(work, self._cost_of_failure(work, error), error=error, attempts=tried)
                await asyncio.sleep(_pause(error, tried, self.patience))
            else:
                correct = await self._graded(work, found)
                return Report(work, self._cost(work, found), found, attempts=tried, correct=correct)

    async def _graded(self, work: Work, found: Completion) -> bool | None:
        if self.grade is None or work.suffix:
            return None
        if found.finish != "stop":
            return False
        return await asyncio.to_thread(self.grade, work.request, join(work.so_far, found).text)

    def _cost(self, work: Work, found: Completion) -> int:
        if not self.rates.money:
            return found.tokens
        if found.usage_source == "server" and found.input_tokens + found.cached_tokens:
            return self.rates.cost(found.usage)
        # Nobody counted the prompt: it is charged as it was reserved.
        return work.bound + self.rates.cost(Usage(output=max(0, found.tokens - work.grant)))

    def _cost_of_failure(self, work: Work, error: BackendError) -> int:
        if error.tokens is None or (error.tokens and self.rates.money):
            return max(work.bound, error.tokens or 0)
        return error.tokens

    def _settle(self, reservation: int, report: Report) -> None:
        if isinstance(report.error, Distrusted):
            self.progress.stop(str(report.error))
        result = self.scheduler.done(report)
        usage = report.completion.usage if report.completion else Usage()
        answered = result is not None and result.completion is not None
        if report.cost == 0 and report.completion is None and not answered:
            self.ledger.void(reservation)
        elif result is None and report.completion is not None:
            part = chunk_line(report.completion, sample=report.work.sample, landing=bool(report.work.suffix))
            self.ledger.settle_chunk(reservation, report.cost, usage, part)
        else:
            line = result_line(result) if answered and result is not None else None
            self.ledger.settle(reservation, report.cost, usage, line)
        if result is not None:
            if not answered:
                self.ledger.note(result.id, result_line(result))
            self._ended(result)

    def close(self) -> None:
        """What becomes of the rest. Parts of answers are answers only if the run was not stopped."""
        notes = []
        for result in self.scheduler.close(self.progress.stopped):
            if result.completion is not None and self.grade is not None:
                result = replace(result, correct=False)
            if result.completion is not None and not self.progress.stopped:
                self.ledger.record(result.id, result_line(result))
            elif result.completion is None:
                notes.append((result.id, result_line(result)))
            self._ended(result)
        self.ledger.note_many(notes)
        self._tell()

    def _ended(self, result: Result) -> None:
        self.progress.outcomes[result.outcome] += 1
        self.on_result(result)

    def _tell(self) -> None:
        self.progress.spent = self.ledger.spent
        self.progress.price, self.progress.rounds = self.scheduler.price, len(self.scheduler.rounds)
        self.on_event(self.progress)


def _pause(error: BackendError, tried: int, patience: float) -> float:
    """What the server asked for; otherwise longer each time, and never in step with others."""
    named = error.delay if isinstance(error, Unavailable) else None
    return min(patience, named if named is not None else 2.0 ** (tried - 1) * random.uniform(0.5, 1.0))
