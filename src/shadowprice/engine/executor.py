"""The loop: reserve, send, retry, settle, report. The only place that talks to backends.

Units are reserved in the ledger before anything is sent, and settled by what was used, together with the answer. A
reservation exists only while its attempt may be generating, so that a crash costs what was under way and no more.

An attempt that is known to have generated nothing is settled as such, and repeated after a pause: its units are held
back for it until then. An attempt with an unknown outcome has spent its reservation, and the scheduler decides how its
request continues. An unexpected exception, from a bug in this package or in a backend, is a failure of one request
like any other: it does not end the run. Outages are waited out (`engine.breaker`): meanwhile what generated nothing
waits with the scheduler again, so that one request at fault does not keep the others from being tried.

**Exposure.** Only the server knows that it generated nothing for a request it received. Grants that were not charged
because a server said so add up, each of them once, and the run stops when they exceed a share of the budget. Not
included in that share are what was under way at the same time, and the probes of an outage, sent one at a time.

A server that ignores a limit breaks the promise of the budget. Answers under way are received to their end and
charged for what they used; nothing more is sent.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias, TypeVar

import orjson

from shadowprice.accounts.sqlite import Ledger, Settlement
from shadowprice.backends.base import Backend, join
from shadowprice.cost import TOKENS, Rates, show
from shadowprice.engine.breaker import Breaker
from shadowprice.engine.scheduler import Report, Scheduler, Work
from shadowprice.errors import BackendError, LimitViolated, Unavailable
from shadowprice.formats.results import chunk_line, result_line
from shadowprice.types import Completion, Result, Usage

# Whether the answer to a request, by its id, is correct; None: unknown. Called in a thread, and at the end for
# answers that were cut. A scheduler stops sampling at a correct one.
Grader: TypeAlias = Callable[[str, Completion], "bool | None"]
_R = TypeVar("_R", Result, Result | None)
_TICK = 1.0  # seconds between two reports while answers are generated
_POLL = 0.2  # seconds between two checks whether the execution was stopped, while work waits


@dataclass(frozen=True)
class Tolerance:
    """How many faults of a server an execution tolerates.

    patience  seconds that an outage may last before the execution stops
    pause     seconds before the first repetition; later ones wait twice as long each time
    exposure  share of the budget that may be taken on the server's word
    """

    patience: float = 300.0
    pause: float = 0.5
    exposure: float = 0.1


USUAL = Tolerance()


@dataclass
class Progress:
    """The progress of an execution, passed to `on_event` whenever something has happened.

    After `stop` nothing more is sent, and what is under way is finished; `stopped` is the reason. `waiting` says what
    is being waited for, if the server is unavailable. `generating` are the tokens of answers under way, which are not
    in `spent` yet, as far as the backend knows them.
    """

    budget: int
    spent: int = 0
    tokens: int = 0  # generated, also where units are money
    price: float | None = None
    rounds: int = 0
    running: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    waiting: str = ""
    stopped: str = ""
    generating: int = 0

    def restart(self) -> None:
        """For another execution of the same run."""
        self.running, self.generating, self.waiting, self.stopped = 0, 0, "", ""
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
    tolerance: Tolerance = USUAL,
    rates: Rates = TOKENS,
    grade: Grader | None = None,
    progress: Progress | None = None,
    record_rest: bool = True,
    on_result: Callable[[Result], None] = lambda result: None,
    on_event: Callable[[Progress], None] = lambda progress: None,
) -> Progress:
    """Sends what `scheduler` decides on until nothing is worth its price; everything is recorded in the ledger.

    concurrency  pieces of work under way at the same time
    attempts     at one piece of work, as long as they are known to have generated nothing; outages do not count
    record_rest  whether the ledger keeps the results of requests that were never sent
    on_result    called with the result of every request, once it is in the ledger
    """
    progress = progress or Progress(ledger.budget)
    breaker = Breaker(concurrency, tolerance.patience, tolerance.pause)
    loop = _Loop(scheduler, ledger, backend, concurrency, attempts, tolerance, rates, grade, progress, breaker)
    loop.on_result, loop.on_event = on_result, on_event
    await loop.run()
    if record_rest:
        loop.close()
    return progress


class _Attempt(NamedTuple):
    """An attempt at a piece of work: the number of those before it that count, and when it was sent."""

    reservation: int
    work: Work
    tried: int
    turn: int


class _Repetition(NamedTuple):
    """A piece of work that generated nothing and is sent again, from `due` on."""

    work: Work
    tried: int
    error: BackendError
    due: float


@dataclass
class _Loop:
    scheduler: Scheduler
    ledger: Ledger
    backend: Backend
    concurrency: int
    attempts: int
    tolerance: Tolerance
    rates: Rates
    grade: Grader | None
    progress: Progress
    breaker: Breaker
    on_result: Callable[[Result], None] = lambda result: None
    on_event: Callable[[Progress], None] = lambda progress: None
    workers: list[asyncio.Task[None]] = field(default_factory=list)  # as many as were ever busy at the same time
    idle: list[asyncio.Future[_Attempt]] = field(default_factory=list)  # what workers wait for
    under_way: set[int] = field(default_factory=set)  # reservations
    ended: deque[tuple[_Attempt, Report]] = field(default_factory=deque)
    repeated: deque[_Repetition] = field(default_factory=deque)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    crash: BaseException | None = None
    exposed: int = 0  # grants taken on the server's word, in units; repetitions and probes of outages are left out
    most_reserved: int = 0  # at the same time

    async def run(self) -> None:
        clock = asyncio.get_running_loop()
        generating = getattr(self.backend, "generating", None)
        ticker = asyncio.create_task(self._tick(generating)) if generating else None
        try:
            while True:
                with self.ledger.together():  # one wait for the disk
                    results = self._settle(clock.time())
                    starting = self._reserve(clock.time())
                for result in results:
                    self._ended(result)
                for each in starting:
                    self.under_way.add(each.reservation)
                    if self.idle:
                        self.idle.pop().set_result(each)
                    else:
                        self.workers.append(asyncio.create_task(self._work(each)))
                delay = self._delay(clock.time())
                ends = not self.under_way and delay is None
                self._notify("" if ends else self.breaker.describe(clock.time()))
                if ends:
                    break
                timer = clock.call_later(delay, self.wake.set) if delay is not None else None
                await self.wake.wait()
                self.wake.clear()
                if timer:
                    timer.cancel()
                if self.crash is not None:
                    raise self.crash
        finally:
            tasks = [*self.workers, *([ticker] if ticker else [])]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _tick(self, generating: Callable[[], Awaitable[int]]) -> None:
        """Reports every second while answers are generated: an event is otherwise the end of one."""
        while True:
            await asyncio.sleep(_TICK)
            if self.under_way:
                self.progress.generating = await generating()
                self.on_event(self.progress)

    # --- sending -------------------------------------------------------------------------------

    def _reserve(self, now: float) -> list[_Attempt]:
        """As much work as the concurrency allows, once it is reserved."""
        starting: list[tuple[Work, int]] = []  # and the number of attempts before
        available, turn = self.ledger.available, self.breaker.turn
        room = 0 if self.progress.stopped else self.breaker.room(len(self.under_way), now)
        for _ in range(len(self.repeated)):
            again = self.repeated.popleft()
            if len(starting) < room and now >= again.due and again.work.bound <= available:
                starting.append((again.work, again.tried))
                available -= again.work.bound
            else:
                self.repeated.append(again)
        available -= sum(again.work.bound for again in self.repeated)  # held back
        room = min(room, self.concurrency - len(self.under_way) - len(self.repeated))
        avoid = self.breaker.failing if self.breaker.open else ()
        while len(starting) < room and (work := self.scheduler.next(available, avoid)) is not None:
            starting.append((work, 0))
            available -= work.bound
        reservations = self.ledger.reserve_many([(work.request.id, work.bound) for work, _ in starting])
        self.most_reserved = max(self.most_reserved, self.ledger.reserved)
        return [_Attempt(number, *each, turn) for number, each in zip(reservations, starting, strict=True)]

    def _delay(self, now: float) -> float | None:
        """Seconds until something that waits may be sent; short, since the execution may be stopped meanwhile."""
        if self.progress.stopped or not (self.repeated or self.breaker.wait(now)):
            return None
        if self.under_way:  # what ends next wakes the loop; before that only what can be sent is worth waking for
            payable = any(again.work.bound <= self.ledger.available for again in self.repeated)
            if not payable or not self.breaker.room(len(self.under_way), now):
                return None
        due = self.breaker.wait(now) or min(again.due for again in self.repeated) - now
        return min(max(due, 0.001), _POLL)

    async def _work(self, attempt: _Attempt) -> None:
        """Serves one attempt after another; a new task for each would take longer than all other steps."""
        clock = asyncio.get_running_loop()
        try:
            while True:
                self.ended.append((attempt, await self._serve(attempt.work)))
                self.idle.append(clock.create_future())
                self.wake.set()
                attempt = await self.idle[-1]
        except BaseException as crash:  # not a failure of one request: an interrupt, or the end of the execution
            self.crash = self.crash or crash
            self.wake.set()

    async def _serve(self, work: Work) -> Report:
        try:
            found = await self.backend.complete(work.body, work.grant, continue_from=work.so_far, suffix=work.suffix)
            whole = _checked(work, found)
        except (Exception, asyncio.CancelledError) as problem:
            task = asyncio.current_task()
            if isinstance(problem, asyncio.CancelledError) and (task is None or task.cancelling()):
                raise  # this execution is cancelled, not something that the backend waited for
            error = problem if isinstance(problem, BackendError) else _failure(problem)
            return Report(work, self._cost_of_failure(work, error), error=error)
        graded = self.grade is not None and not work.probe
        correct = await asyncio.to_thread(self._correct, work.request.id, whole) if graded else None
        return Report(work, self._cost(work, found), found, correct=correct)

    def _correct(self, id: str, answer: Completion) -> bool | None:
        """None if the grader fails: the answer is kept, ungraded."""
        try:
            return self.grade(id, answer) if self.grade else None
        except Exception:
            return None

    def _cost(self, work: Work, found: Completion) -> int:
        if not self.rates.priced:
            return found.tokens
        if found.usage_source == "server" and found.input_tokens + found.cached_tokens:
            return self.rates.cost(found.usage)
        # The server did not count the prompt: it is charged as reserved.
        return work.bound + self.rates.cost(Usage(output=max(0, found.tokens - work.grant)))

    def _cost_of_failure(self, work: Work, error: BackendError) -> int:
        """Nothing, the tokens that were generated, or the whole bound: the last if they are unknown, or cost money."""
        if error.tokens is None:
            return work.bound
        if error.tokens == 0 or not self.rates.priced:
            return error.tokens
        return work.bound + self.rates.cost(Usage(output=max(0, error.tokens - work.grant)))

    # --- settling ------------------------------------------------------------------------------

    def _settle(self, now: float) -> list[Result]:
        """Records everything that has ended; returns the results of requests."""
        settlements, results = [], []
        while self.ended:
            attempt, report = self.ended.popleft()
            self.under_way.remove(attempt.reservation)
            if report.completion is not None:  # until the next tick counts again
                self.progress.generating = max(0, self.progress.generating - report.completion.tokens)
            tried = attempt.tried + (not self.breaker.open or report.cost > 0)
            self._watch(attempt, report, now)
            again = self._again(report, tried, now)
            result = None if again else self._graded(self._done(report, tried))
            settlements.append(_settlement(attempt.reservation, report, result))
            if result is not None:
                results.append(result)
        self.ledger.settle_many(settlements)
        unaffordable = not self.under_way and any(each.work.bound > self.ledger.available for each in self.repeated)
        if self.progress.stopped or self.breaker.open or unaffordable:  # the last where a server exceeded its limits
            given_up = self._give_up()
            for result in given_up:
                if result.completion is not None:  # from parts or samples that were paid for earlier
                    self.ledger.record(result.id, result_line(result))
            results += given_up
        self.ledger.note_many((result.id, result_line(result)) for result in results if result.completion is None)
        return results

    def _watch(self, attempt: _Attempt, report: Report, now: float) -> None:
        """Stops the execution if the server cannot be relied on."""
        error, work = report.error, report.work
        if error is None:
            self.breaker.answered(attempt.turn)
            if self.rates.priced and report.cost > work.bound:
                self.progress.stop(f"request {work.request.id!r:.80} cost more than its prompt and its limit can")
            return
        if error.tokens == 0 and error.sent and not attempt.tried and not self.breaker.open:
            self.exposed += work.bound
        self.breaker.failed(error, work.place, attempt.turn, now)
        if self.breaker.reason:
            self.progress.stop(self.breaker.reason)
        if isinstance(error, LimitViolated):
            self.progress.stop(str(error))
        if self.exposed > self.tolerance.exposure * self.ledger.budget + self.most_reserved:
            believed = show(self.exposed, self.rates)
            self.progress.stop(
                f"the server failed requests worth {believed} and says that they cost nothing: more than "
                f"--exposure allows; the last: {error}"
            )

    def _again(self, report: Report, tried: int, now: float) -> bool:
        """Whether the same piece of work is sent again: it is known to have generated nothing."""
        error = report.error
        if not isinstance(error, Unavailable) or error.tokens != 0 or tried >= self.attempts:
            return False
        if self.progress.stopped or self.breaker.open:
            return False
        due = now + self.breaker.pause(tried, error)
        self.repeated.append(_Repetition(report.work, tried, error, due))
        return True

    def _give_up(self) -> list[Result]:
        """Gives the scheduler what waits to be repeated."""
        reports = [(Report(each.work, 0, error=each.error), each.tried) for each in self.repeated]
        self.repeated.clear()
        return [result for report, tried in reports if (result := self._done(report, tried)) is not None]

    def _done(self, report: Report, tried: int) -> Result | None:
        """Passes a report on. What an outage kept from generating anything is postponed, not failed."""
        error = report.error
        if error is not None:
            free = isinstance(error, Unavailable) and error.tokens == 0
            report = report._replace(attempts=tried, postponed=free and self.breaker.open)
        return self.scheduler.done(report)

    def close(self) -> None:
        """Ends the other requests. Parts of answers become answers only if the run was not stopped."""
        results = []
        with self.ledger.together():
            for result in self.scheduler.close(self.progress.stopped):
                result = self._graded(result)
                if result.completion is None:
                    self.ledger.note(result.id, result_line(result))
                elif not self.progress.stopped:
                    self.ledger.record(result.id, result_line(result))
                results.append(result)
        for result in results:
            self._ended(result)
        self._notify()

    def _graded(self, result: _R) -> _R:
        """With a grade, where the result is an answer that was put together from earlier parts."""
        if self.grade is None or result is None or result.completion is None or result.correct is not None:
            return result
        return replace(result, correct=self._correct(result.id, result.completion))

    def _ended(self, result: Result) -> None:
        self.progress.outcomes[result.outcome] += 1
        self.on_result(result)

    def _notify(self, waiting: str = "") -> None:
        progress = self.progress
        progress.spent, progress.running = self.ledger.spent, len(self.under_way)
        progress.generating = progress.generating if self.under_way else 0
        progress.tokens = self.ledger.usage.output
        progress.price, progress.rounds = self.scheduler.price, len(self.scheduler.rounds)
        progress.waiting = waiting
        self.on_event(progress)


def _settlement(reservation: int, report: Report, result: Result | None) -> Settlement:
    """How an attempt ends in the ledger: with an answer, with a part of one, or with its cost alone."""
    answered = result is not None and result.completion is not None
    if report.completion is None:
        if report.cost == 0 and not answered:
            sent = report.error is not None and report.error.sent
            return Settlement("free" if sent else "void", reservation, 0, None, None)
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
    return found if work.probe else join(work.so_far, found, work.suffix)
