"""The loop: reserve, send, retry, settle, report. The only place that talks to backends.

Units are reserved in the ledger before anything is sent, and settled by what was used, together with the answer.
An attempt that is known to have generated nothing is repeated on the same reservation. An attempt with an unknown
outcome has spent it, and the scheduler decides how its request continues. An unexpected exception, from a bug in this
package or in a backend, is a failure of one request like any other: it does not end the run.

A server that ignores a limit breaks the promise of the budget. Answers under way are received to their end and
charged for what they used; nothing more is sent.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import orjson

from shadowprice.accounts.sqlite import Ledger, Settlement
from shadowprice.backends.base import Backend, join
from shadowprice.cost import TOKENS, Rates
from shadowprice.engine.scheduler import Report, Scheduler, Work
from shadowprice.errors import BackendError, LimitViolated, Unavailable
from shadowprice.formats.results import chunk_line, result_line
from shadowprice.types import Completion, Result, Usage

# Whether the answer to a request, by its id, is correct; None: unknown. Called in a thread, and at the end for
# answers that were cut. A scheduler stops sampling at a correct one.
Grader: TypeAlias = Callable[[str, Completion], "bool | None"]
_LOST_IN_A_ROW = 16  # attempts, at least, before an execution stops because nobody knows what they cost
_POLL = 0.2  # seconds between two checks whether the execution was stopped, while a retry waits


@dataclass
class Progress:
    """The progress of an execution, passed to `on_event` whenever something has happened.

    After `stop` nothing more is sent, and what is under way is finished; `stopped` is the reason.
    """

    budget: int
    spent: int = 0
    tokens: int = 0  # generated, also where units are money
    price: float | None = None
    rounds: int = 0
    running: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    stopped: str = ""

    def restart(self) -> None:
        """For another execution of the same run."""
        self.running, self.stopped = 0, ""
        self.outcomes.clear()

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
    """Sends what `scheduler` decides on until nothing is worth its price; everything is recorded in the ledger.

    concurrency  pieces of work under way at the same time
    attempts     at one piece of work, as long as they are known to have generated nothing
    patience     seconds to wait between two attempts, at most
    record_rest  whether the ledger keeps the results of requests that were never sent
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
    under_way: dict[int, asyncio.Task[None]] = field(default_factory=dict)  # by reservation
    ended: deque[tuple[int, Report]] = field(default_factory=deque)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    crash: BaseException | None = None
    lost: int = 0  # attempts in a row that failed at an unknown cost

    async def run(self) -> None:
        try:
            while True:
                with self.ledger.together():  # one wait for the disk
                    results = self._settle()
                    starting = self._reserve()
                for result in results:
                    self._ended(result)
                for work, reservation in starting:
                    self.under_way[reservation] = asyncio.create_task(self._serve(work, reservation))
                self._notify()
                if not self.under_way:
                    break
                await self.wake.wait()
                self.wake.clear()
                if self.crash is not None:
                    raise self.crash
        finally:
            for task in self.under_way.values():
                task.cancel()
            await asyncio.gather(*self.under_way.values(), return_exceptions=True)

    def _reserve(self) -> list[tuple[Work, int]]:
        """As much work as the concurrency allows, and its reservations."""
        starting: list[Work] = []
        available = self.ledger.available
        while not self.progress.stopped and len(self.under_way) + len(starting) < self.concurrency:
            work = self.scheduler.next(available)
            if work is None:
                break
            starting.append(work)
            available -= work.bound
        return [*zip(starting, self.ledger.reserve_many((w.request.id, w.bound) for w in starting), strict=True)]

    async def _serve(self, work: Work, reservation: int) -> None:
        try:
            self.ended.append((reservation, await self._attempt(work)))
        except BaseException as crash:  # not a failure of one request: an interrupt, or the end of the execution
            self.crash = self.crash or crash
        finally:
            self.wake.set()

    async def _attempt(self, work: Work) -> Report:
        """Retries until an attempt is answered, is refused, may have cost something, or is the last."""
        tried = 0
        while True:
            tried += 1
            try:
                found = await self.backend.complete(
                    work.body, work.grant, continue_from=work.so_far, suffix=work.suffix
                )
                whole = _checked(work, found)
            except (Exception, asyncio.CancelledError) as problem:
                task = asyncio.current_task()
                if isinstance(problem, asyncio.CancelledError) and (task is None or task.cancelling()):
                    raise  # this execution is cancelled, not something that the backend waited for
                error = problem if isinstance(problem, BackendError) else _failure(problem)
                again = isinstance(error, Unavailable) and error.tokens == 0 and tried < self.attempts
                if again:
                    await self._wait(_pause(error, tried, self.patience))
                if not again or self.progress.stopped:
                    return Report(work, self._cost_of_failure(work, error), error=error, attempts=tried)
            else:
                graded = self.grade is not None and not work.suffix
                correct = await asyncio.to_thread(self._correct, work.request.id, whole) if graded else None
                return Report(work, self._cost(work, found), found, attempts=tried, correct=correct)

    async def _wait(self, seconds: float) -> None:
        """Ends early if the execution is stopped."""
        clock = asyncio.get_running_loop().time
        end = clock() + seconds
        while not self.progress.stopped and (left := end - clock()) > 0:
            await asyncio.sleep(min(left, _POLL))

    def _correct(self, id: str, answer: Completion) -> bool | None:
        """None if the grader fails: the answer is kept, ungraded."""
        try:
            return self.grade(id, answer) if self.grade else None
        except Exception:
            return None

    def _cost(self, work: Work, found: Completion) -> int:
        if not self.rates.money:
            return found.tokens
        if found.usage_source == "server" and found.input_tokens + found.cached_tokens:
            return self.rates.cost(found.usage)
        # The server did not count the prompt: it is charged as reserved.
        return work.bound + self.rates.cost(Usage(output=max(0, found.tokens - work.grant)))

    def _cost_of_failure(self, work: Work, error: BackendError) -> int:
        """Nothing, the tokens that were generated, or the whole bound: the last if they are unknown, or cost money."""
        if error.tokens is None:
            return work.bound
        if error.tokens == 0 or not self.rates.money:
            return error.tokens
        return work.bound + self.rates.cost(Usage(output=max(0, error.tokens - work.grant)))

    def _settle(self) -> list[Result]:
        """Records everything that has ended; returns the results of requests."""
        settlements, results = [], []
        while self.ended:
            reservation, report = self.ended.popleft()
            del self.under_way[reservation]
            result = self._done(report)
            settlements.append(_settlement(reservation, report, result))
            if result is not None:
                results.append(result)
        self.ledger.settle_many(settlements)
        self.ledger.note_many((result.id, result_line(result)) for result in results if result.completion is None)
        return results

    def _done(self, report: Report) -> Result | None:
        if isinstance(report.error, LimitViolated):
            self.progress.stop(str(report.error))
        elif self.rates.money and report.completion is not None and report.cost > report.work.bound:
            self.progress.stop(f"request {report.work.request.id!r:.80} cost more than its prompt and its limit can")
        self._brake(report)
        return self.scheduler.done(report)

    def _brake(self, report: Report) -> None:
        """Stops where every attempt fails at an unknown cost: it would be paid for in full until nothing is left."""
        if report.completion is not None:
            self.lost = 0
        elif report.error is not None and report.error.tokens is None:
            self.lost += 1
            if self.lost >= max(_LOST_IN_A_ROW, 2 * self.concurrency):
                self.progress.stop(f"{self.lost} attempts in a row failed at an unknown cost, the last: {report.error}")

    def close(self) -> None:
        """Ends the other requests. Parts of answers become answers only if the run was not stopped."""
        notes = []
        for result in self.scheduler.close(self.progress.stopped):
            if result.completion is not None and result.correct is None:
                result = replace(result, correct=self._correct(result.id, result.completion))
            if result.completion is not None and not self.progress.stopped:
                self.ledger.record(result.id, result_line(result))
            elif result.completion is None:
                notes.append((result.id, result_line(result)))
            self._ended(result)
        self.ledger.note_many(notes)
        self._notify()

    def _ended(self, result: Result) -> None:
        self.progress.outcomes[result.outcome] += 1
        self.on_result(result)

    def _notify(self) -> None:
        self.progress.spent, self.progress.running = self.ledger.spent, len(self.under_way)
        self.progress.tokens = self.ledger.usage.output
        self.progress.price, self.progress.rounds = self.scheduler.price, len(self.scheduler.rounds)
        self.on_event(self.progress)


def _pause(error: BackendError, tried: int, patience: float) -> float:
    """The delay that the server asked for; otherwise exponential backoff with jitter."""
    named = error.delay if isinstance(error, Unavailable) else None
    return min(patience, named if named is not None else 2.0 ** (tried - 1) * random.uniform(0.5, 1.0))


def _settlement(reservation: int, report: Report, result: Result | None) -> Settlement:
    """How an attempt ends in the ledger: with an answer, with a part of one, or with its cost alone."""
    answered = result is not None and result.completion is not None
    if report.completion is None:
        if report.cost == 0 and not answered:
            return Settlement("void", reservation, 0, None, None)
        usage = Usage(output=report.error.tokens or 0) if report.error else Usage()
    else:
        usage = report.completion.usage
        if result is None:
            part = chunk_line(report.completion, sample=report.work.sample, landing=bool(report.work.suffix))
            return Settlement("chunk", reservation, report.cost, usage, part)
    line = result_line(result) if result is not None and answered else None
    return Settlement("settle", reservation, report.cost, usage, line)


def _failure(problem: BaseException) -> BackendError:
    """For an exception that no backend should raise: what was generated before it is unknown."""
    line = " ".join(f"{type(problem).__name__}: {problem}".split())
    return Unavailable(line[:300], tokens=None)


def _checked(work: Work, found: Completion) -> Completion:
    """The answer so far; raises if it cannot be charged, continued or written."""
    if not isinstance(found, Completion):
        raise TypeError(f"the backend gave {type(found).__name__}, not a Completion")
    counts = output, input, cached = found.tokens, found.input_tokens, found.cached_tokens
    if not type(output) is type(input) is type(cached) is int or min(counts) < 0:
        raise ValueError(f"the backend counted {counts} tokens")
    orjson.dumps((found.text, found.body, found.flags, found.ids))
    return found if work.suffix else join(work.so_far, found)
