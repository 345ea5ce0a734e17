"""The loop: reserve, send, retry, settle, report. The only place that talks to backends.

Units are reserved in the ledger before anything is sent, and settled by what was used, together with the answer. A
reservation is open only while its attempt may be generating, so a crash costs what was in flight and no more.

**Failures.** An attempt that is known to have generated nothing is settled as such and retried after a pause; until
then its units are held back. An attempt with an unknown outcome has spent its reservation; the scheduler decides how
its request continues. An unexpected exception, from a bug in this package or in a backend, is a failure of one request
and does not end the run. Outages are waited out (`engine.breaker`). Meanwhile work that generated nothing goes back to
the scheduler, so that one faulty request does not keep others from being tried.

**Exposure.** Only the server knows that it generated nothing for a request it received. Grants that were not charged
because a server said so are added up, each once, and the run stops when they exceed a share of the budget. Grants in
flight at the same time, and the probes of an outage, sent one at a time, come on top of that share.

**Ignored limits.** A server that ignores a limit breaks the promise of the budget. Answers in flight are received to
their end and charged for what they used; nothing more is sent.

**Routes.** With several backends each has its own rates, breaker and places in flight, and work names its route. A
route in an outage, or one that refuses everything, is dropped: the scheduler continues without it (`Routed.drop`). Only
the last route is waited for.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar

from shadowprice.accounts.book import Book
from shadowprice.backends.base import ATTEMPT, Backend
from shadowprice.cost import TOKENS, Rates, show
from shadowprice.engine._attempts import Attempt, Retry, attempt_name, checked, failure, note_routes, settlement
from shadowprice.engine.breaker import Breaker
from shadowprice.engine.progress import USUAL, Progress, Tolerance
from shadowprice.engine.scheduler import Feed, Report, Scheduler, Work
from shadowprice.errors import BackendError, LimitViolated, Unavailable
from shadowprice.formats.results import result_line
from shadowprice.types import Completion, Result, Usage

__all__ = ["USUAL", "Channel", "Grader", "Progress", "Tolerance", "execute"]

# Says whether the answer to a request, given by its id, is correct; None: unknown. Called in a thread, and at the end
# for answers that were cut. A scheduler stops sampling at a correct answer.
Grader: TypeAlias = Callable[[str, Completion], "bool | None"]
# What the answer to a request, by its id, votes for; None: it does not vote. Called in a thread.
Voter: TypeAlias = Callable[[str, Completion], "str | None"]
_R = TypeVar("_R", Result, Result | None)
_T = TypeVar("_T", bool, str)
_TICK = 1.0  # seconds between reports while answers are generated
_POLL = 0.2  # seconds between checks whether the execution was stopped, while work waits


@dataclass(frozen=True)
class Channel:
    """One of several backends, with its rates and the number of requests that it takes at the same time."""

    backend: Backend
    rates: Rates
    concurrency: int | None = None


async def execute(
    scheduler: Scheduler,
    ledger: Book,
    backend: Backend | Mapping[str, Channel],
    *,
    concurrency: int = 8,
    attempts: int = 4,
    tolerance: Tolerance = USUAL,
    rates: Rates = TOKENS,
    grade: Grader | None = None,
    vote: Voter | None = None,
    progress: Progress | None = None,
    record_rest: bool = True,
    feed: Feed | None = None,
    name: str = "",
    on_result: Callable[[Result], None] = lambda result: None,
    on_event: Callable[[Progress], None] = lambda progress: None,
) -> Progress:
    """Sends what `scheduler` decides until nothing is worth its price. Everything is recorded in the ledger.

    backend      the backend, or channels by route; these have their own rates, and `rates` are not used
    concurrency  pieces of work in flight
    attempts     at one piece of work, as long as they are known to have generated nothing; outages do not count
    record_rest  whether the ledger keeps the results of requests that were never sent
    feed         adds work during the execution, which does not end before the feed does
    name         a unique name of this execution: attempts are named after it, for `engine.lost`
    on_result    called with the result of every request, once it is in the ledger
    on_event     called with the progress whenever something has happened
    """
    progress = progress or Progress(ledger.budget)
    channels = backend if isinstance(backend, Mapping) else {"": Channel(backend, rates)}
    sites = {name: _Site(channel, _breaker(channel, concurrency, tolerance)) for name, channel in channels.items()}
    loop = _Loop(scheduler, ledger, sites, concurrency, attempts, tolerance, grade, vote, progress)
    loop.name, loop.on_result, loop.on_event = name, on_result, on_event
    if feed is not None:
        loop.feed, loop.wake = feed, feed.wake
    await loop.run()
    if record_rest:
        loop.close()
    return progress


def _breaker(channel: Channel, concurrency: int, tolerance: Tolerance) -> Breaker:
    return Breaker(min(concurrency, channel.concurrency or concurrency), tolerance.patience, tolerance.pause)


@dataclass
class _Site:
    """A backend of this execution, and the state of its server."""

    channel: Channel
    breaker: Breaker
    under_way: int = 0

    @property
    def rates(self) -> Rates:
        return self.channel.rates


@dataclass
class _Loop:
    scheduler: Scheduler
    ledger: Book
    sites: dict[str, _Site]  # by route; one with an empty name where there are no routes
    concurrency: int
    attempts: int
    tolerance: Tolerance
    grade: Grader | None
    vote: Voter | None
    progress: Progress
    name: str = ""
    on_result: Callable[[Result], None] = lambda result: None
    on_event: Callable[[Progress], None] = lambda progress: None
    workers: list[asyncio.Task[None]] = field(default_factory=list)  # as many as were ever busy at the same time
    idle: list[asyncio.Future[Attempt]] = field(default_factory=list)  # idle workers wait for these
    under_way: set[int] = field(default_factory=set)  # reservations
    ended: deque[tuple[Attempt, Report]] = field(default_factory=deque)
    retries: deque[Retry] = field(default_factory=deque)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    feed: Feed | None = None
    crash: BaseException | None = None
    exposed: int = 0  # grants that are free on the server's word, in units; without retries and probes of outages
    most_reserved: int = 0  # at the same time

    async def run(self) -> None:
        clock = asyncio.get_running_loop()
        backends = [site.channel.backend for site in self.sites.values()]
        counters = [backend.generating for backend in backends if hasattr(backend, "generating")]
        ticker = asyncio.create_task(self._tick(counters)) if counters else None
        try:
            while True:
                with self.ledger.together():  # one wait for the disk
                    results = self._settle(clock.time())
                    starting = self._reserve(clock.time())
                for result in results:
                    self._ended(result)
                for attempt in starting:
                    self.under_way.add(attempt.reservation)
                    self._site(attempt.work).under_way += 1
                    if self.idle:
                        self.idle.pop().set_result(attempt)
                    else:
                        self.workers.append(asyncio.create_task(self._work(attempt)))
                delay = self._delay(clock.time())
                fed = self.feed is not None and self.feed.open and not self.progress.stopped
                ends = not self.under_way and delay is None and not fed
                self._notify("" if ends else self._describe(clock.time()))
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

    def _site(self, work: Work) -> _Site:
        return self.sites[work.route]

    def _describe(self, now: float) -> str:
        """What the execution is waiting for; empty if it is not."""
        return next((text for site in self.sites.values() if (text := site.breaker.describe(now))), "")

    async def _tick(self, counters: list[Callable[[], Any]]) -> None:
        """Reports every second while answers are generated. Other events come only when an answer ends."""
        while True:
            await asyncio.sleep(_TICK)
            if self.under_way:
                self.progress.generating = sum([await count() for count in counters])
                self.on_event(self.progress)

    # --- sending -------------------------------------------------------------------------------

    def _reserve(self, now: float) -> list[Attempt]:
        """Takes as much work as the concurrency allows, and reserves its bounds."""
        starting: list[tuple[Work, int]] = []  # with the number of earlier attempts
        available, sites = self.ledger.available, self.sites
        room = {name: 0 if self.progress.stopped else self._room(name, now) for name in sites}

        def start(work: Work, tried: int) -> None:
            nonlocal available
            starting.append((work, tried))
            available -= work.bound
            room[work.route] -= 1

        for _ in range(len(self.retries)):
            retry = self.retries.popleft()
            if room[retry.work.route] > 0 and now >= retry.due and retry.work.bound <= available:
                start(retry.work, retry.tried)
            else:
                self.retries.append(retry)
        available -= sum(retry.work.bound for retry in self.retries)  # held back
        places = self.concurrency - len(self.under_way) - len(self.retries)
        avoid = {place for site in sites.values() if site.breaker.open for place in site.breaker.failing}
        while len(starting) < places and any(left > 0 for left in room.values()):
            if (work := self._next(available, avoid, room)) is None:
                break
            start(work, 0)
        reservations = self.ledger.reserve_many([(work.request.id, work.bound) for work, _ in starting])
        note_routes(self.ledger, reservations, [work.route for work, _ in starting])
        self.most_reserved = max(self.most_reserved, self.ledger.reserved)
        return [
            Attempt(number, work, tried, self._site(work).breaker.turn)
            for number, (work, tried) in zip(reservations, starting, strict=True)
        ]

    def _room(self, route: str, now: float) -> int:
        """How many attempts may be sent to a route now."""
        if route in self.progress.dropped:
            return 0
        site = self.sites[route]
        return site.breaker.room(site.under_way, now)

    def _next(self, available: int, avoid: set[int], room: dict[str, int]) -> Work | None:
        closed = [route for route, left in room.items() if left <= 0]
        more: dict[str, Any] = {"closed": closed} if closed else {}  # only a scheduler of several routes takes this
        return self.scheduler.next(available, avoid, **more)

    def _delay(self, now: float) -> float | None:
        """Seconds until work that waits may be sent; at most `_POLL`, since the execution may be stopped meanwhile."""
        waits = [wait for site in self.sites.values() if (wait := site.breaker.wait(now))]
        if self.progress.stopped or not (self.retries or waits):
            return None
        if self.under_way:  # the next end wakes the loop: before that, wake only for a retry that can be sent
            available = self.ledger.available
            if not any(retry.work.bound <= available and self._room(retry.work.route, now) for retry in self.retries):
                return None
        due = min([*waits, *(retry.due - now for retry in self.retries)])
        return min(max(due, 0.001), _POLL)

    async def _work(self, attempt: Attempt) -> None:
        """Serves one attempt after another: a new task for each would take longer than all other steps."""
        clock = asyncio.get_running_loop()
        try:
            while True:
                self.ended.append((attempt, await self._serve(attempt)))
                self.idle.append(clock.create_future())
                self.wake.set()
                attempt = await self.idle[-1]
        except BaseException as crash:  # not a failure of one request: an interrupt, or the end of the execution
            self.crash = self.crash or crash
            self.wake.set()

    async def _serve(self, attempt: Attempt) -> Report:
        work = attempt.work
        ATTEMPT.set(attempt_name(self.name, attempt.reservation))
        try:
            backend = self._site(work).channel.backend
            part = await backend.complete(work.body, work.grant, continue_from=work.so_far, suffix=work.suffix)
            whole = checked(work, part)
        except (Exception, asyncio.CancelledError) as problem:
            task = asyncio.current_task()
            if isinstance(problem, asyncio.CancelledError) and (task is None or task.cancelling()):
                raise  # this execution was cancelled, not something that the backend waited for
            error = problem if isinstance(problem, BackendError) else failure(problem)
            return Report(work, self._cost_of_failure(work, error), error=error)
        graded = self.grade is not None and not work.probe
        correct = await asyncio.to_thread(self._correct, work.request.id, whole) if graded else None
        vote = await asyncio.to_thread(_tried, self.vote, work.request.id, whole) if self.vote else None
        return Report(work, self._cost(work, part), part, correct=correct, vote=vote)

    def _correct(self, id: str, answer: Completion) -> bool | None:
        """The grade; None if the grader fails: the answer is kept without one."""
        return _tried(self.grade, id, answer) if self.grade else None

    def _cost(self, work: Work, part: Completion) -> int:
        rates = self._site(work).rates
        if not rates.priced:
            return part.tokens
        if part.usage_source == "server" and part.input_tokens + part.cached_tokens:
            return rates.cost(part.usage)
        # The server did not count the prompt: it is charged as reserved.
        return work.bound + rates.cost(Usage(output=max(0, part.tokens - work.grant)))

    def _cost_of_failure(self, work: Work, error: BackendError) -> int:
        """Nothing, the tokens that were generated, or the whole bound: if these are unknown, or prompts cost, too."""
        if error.tokens is None:
            return work.bound
        rates = self._site(work).rates
        if error.tokens == 0 or not rates.priced:
            return error.tokens
        return work.bound + rates.cost(Usage(output=max(0, error.tokens - work.grant)))

    # --- settling ------------------------------------------------------------------------------

    def _settle(self, now: float) -> list[Result]:
        """Records everything that has ended; returns the results of requests."""
        settlements, results = [], []
        while self.ended:
            attempt, report = self.ended.popleft()
            breaker = self._site(report.work).breaker
            self.under_way.remove(attempt.reservation)
            self._site(report.work).under_way -= 1
            if report.completion is not None:  # until the next tick counts again
                self.progress.generating = max(0, self.progress.generating - report.completion.tokens)
            tried = attempt.tried + (not breaker.open or report.cost > 0)
            self._watch(attempt, report, now)
            result = None if self._retry(report, tried, now) else self._graded(self._done(report, tried))
            settlements.append(settlement(attempt.reservation, report, result))
            if result is not None:
                results.append(result)
        self.ledger.settle_many(settlements)
        # A retry can become unaffordable if a server exceeded its limits.
        unaffordable = not self.under_way and any(retry.work.bound > self.ledger.available for retry in self.retries)
        all_end = self.progress.stopped or unaffordable
        if all_end or any(site.breaker.open for site in self.sites.values()):
            given_up = self._give_up(everything=bool(all_end))
            for result in given_up:
                if result.completion is not None:  # made of parts or samples that were paid for earlier
                    self.ledger.record(result.id, result_line(result))
            results += given_up
        self.ledger.note_many((result.id, result_line(result)) for result in results if result.completion is None)
        return results

    def _watch(self, attempt: Attempt, report: Report, now: float) -> None:
        """Stops the execution if the server cannot be relied on."""
        error, work = report.error, report.work
        breaker, rates = self._site(work).breaker, self._site(work).rates
        if error is None:
            breaker.answered(attempt.turn)
            if rates.priced and report.cost > work.bound:
                self.progress.stop(f"request {work.request.id!r:.80} cost more than its prompt and its limit can")
            return
        if error.tokens == 0 and error.sent and not attempt.tried and not breaker.open:
            self.exposed += work.bound
        breaker.failed(error, work.place, attempt.turn, now)
        if breaker.reason or breaker.open:
            self._lost(work.route, breaker)
        if isinstance(error, LimitViolated):
            self.progress.stop(str(error))
        if self.exposed > self.tolerance.exposure * self.ledger.budget + self.most_reserved:
            exposed = show(self.exposed, rates)
            self.progress.stop(
                f"the server failed requests worth {exposed} and says that they cost nothing: more than "
                f"--exposure allows; the last: {error}"
            )

    def _lost(self, route: str, breaker: Breaker) -> None:
        """Drops a route that is down or refuses everything, unless it is the last one: that is waited for."""
        others = [name for name in self.sites if name != route and name not in self.progress.dropped]
        if route in self.progress.dropped:
            return
        if others:
            drop: Callable[[str, str], bool] = self.scheduler.drop  # type: ignore[attr-defined]
            reason = breaker.reason or breaker.cause
            self.progress.dropped[route] = reason
            drop(route, reason)
        elif breaker.reason:
            self.progress.stop(breaker.reason)

    def _retry(self, report: Report, tried: int, now: float) -> bool:
        """Schedules a retry if the work is known to have generated nothing; returns whether it did."""
        error = report.error
        if not isinstance(error, Unavailable) or error.tokens != 0 or tried >= self.attempts:
            return False
        breaker = self._site(report.work).breaker
        if self.progress.stopped or breaker.open or report.work.route in self.progress.dropped:
            return False
        due = now + breaker.pause(tried, error)
        self.retries.append(Retry(report.work, tried, error, due))
        return True

    def _give_up(self, *, everything: bool) -> list[Result]:
        """Returns retries to the scheduler: all of them, or those at servers that are down."""
        down = [retry for retry in self.retries if everything or self._site(retry.work).breaker.open]
        reports = [(Report(retry.work, 0, error=retry.error), retry.tried) for retry in down]
        self.retries = deque(retry for retry in self.retries if retry not in down)
        return [result for report, tried in reports if (result := self._done(report, tried)) is not None]

    def _done(self, report: Report, tried: int) -> Result | None:
        """Passes a report to the scheduler. Work that an outage kept from generating is postponed, not failed."""
        error = report.error
        if error is not None:
            free = isinstance(error, Unavailable) and error.tokens == 0
            report = report._replace(attempts=tried, postponed=free and self._site(report.work).breaker.open)
        return self.scheduler.done(report)

    def close(self) -> None:
        """Ends the requests that have no result yet."""
        results = []
        with self.ledger.together():
            for result in self.scheduler.close(self.progress.stopped):
                result = self._graded(result)
                if result.completion is None:
                    self.ledger.note(result.id, result_line(result))
                else:
                    self.ledger.record(result.id, result_line(result))
                results.append(result)
        for result in results:
            self._ended(result)
        self._notify()

    def _graded(self, result: _R) -> _R:
        """The result with a grade, if it is an answer made of earlier parts, which has none."""
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


def _tried(judge: Callable[[str, Completion], _T | None], id: str, answer: Completion) -> _T | None:
    """None if a grader fails."""
    try:
        return judge(id, answer)
    except Exception:
        return None
