"""Running a batch in metered accounting: the next tokens go where they are worth the most.

Workers take the best stretch of generation from a `Meter`, reserve its tokens, have them generated,
settle by what was really generated, and tell the meter how far the answer came. A part of an answer is
kept in the ledger together with what it cost, so that a run which is continued after a crash goes on
from there and pays for nothing twice.

**Two ways of pausing.** Where the backend can go on with a part of an answer, a query waits between its
stretches, and others go first. Where it cannot, a query is answered in one go, with a limit at the age
where its index falls below the price. The limit does the cutting: of a stream that we hang up on nobody
knows what its server generated until it noticed, so that the whole grant would have to be charged.
Which of the two it is, some servers have to show: the first answer is then generated in two short
pieces before anything else is sent.

**At the end of the money** the next in line takes what is left. As long as answers are under way it
waits for what they give back. Answers that were begun and not finished are results, cut where they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import orjson

from shadowprice.accounts.sqlite import Ledger
from shadowprice.backends.base import PausingBackend, joined
from shadowprice.engine.metered import Meter, Stretch
from shadowprice.errors import BackendError, Distrusted, Unavailable
from shadowprice.forecast import Predictor
from shadowprice.formats.batch import BatchLine
from shadowprice.market.gittins import schedule
from shadowprice.runner import (
    Failure,
    Progress,
    Round,
    Settings,
    attempted,
    caps,
    output_line,
    progress_of,
    refuse_several_answers,
)
from shadowprice.types import Completion, Forecast

_TRIAL = 16  # tokens that show whether a server goes on with a part of an answer

_Extend: TypeAlias = Callable[[Mapping[str, Any], Completion | None, int], Awaitable[Completion]]


async def run_metered(
    requests: Sequence[BatchLine],
    ledger: Ledger,
    backend: PausingBackend,
    forecaster: Predictor,
    settings: Settings,
    *,
    rounds: Sequence[Round] = (),
    tell: Callable[[Progress], None] = lambda progress: None,
) -> Progress:
    """Answer what the budget of `ledger` allows; everything that happens is in the ledger.

    A ledger that holds answers, or parts of some, is continued: nothing is paid for twice. `rounds` are the
    clearings it has had. Of `settings` the policy, its options, `reclaim` and `samples` do not matter here.
    """
    refuse_several_answers(requests)
    progress = progress_of(requests, ledger, forecaster, rounds)
    tell(progress)
    service = _Service(requests, ledger, backend, progress, settings, tell)
    service.clear()
    async with asyncio.TaskGroup() as group:
        for _ in range(min(settings.concurrency, len(requests))):
            group.create_task(service.work())
    if not service.progress.stopped:
        service.close()
    return service.progress


class _Service:
    """The queries of a run, those who wait in a meter, and those being served."""

    def __init__(
        self,
        requests: Sequence[BatchLine],
        ledger: Ledger,
        backend: PausingBackend,
        progress: Progress,
        settings: Settings,
        tell: Callable[[Progress], None],
    ) -> None:
        self.ledger, self.backend, self.settings, self.tell = ledger, backend, settings, tell
        self.progress = progress
        self.names = [r.query.id for r in requests]
        self.places = {name: query for query, name in enumerate(self.names)}
        self.bodies = [orjson.loads(r.raw)["body"] for r in requests]
        self.tries = dict.fromkeys(self.names, 0)  # since its last success
        self.parts = _parts(ledger)
        age = [part.tokens if (part := self.parts.get(name)) else 0 for name in self.names]
        self.meter = Meter(progress.forecast, caps(requests, settings), age, quantum=settings.quantum)
        self._leave_out_answered()
        self.cleared: Forecast | None = None  # the forecast of the latest clearing
        self.counts = True  # the server does, so that tokens can be metered
        self.busy = 0
        self.turn, self.trial = asyncio.Condition(), asyncio.Lock()

    def _leave_out_answered(self) -> None:
        """Tells the meter of the answers that are there already."""
        for name, line in self.ledger.results():
            if name in self.places:
                told = orjson.loads(line).get("shadowprice") or {"finish": "error", "tokens": 0, "usage_source": ""}
                self.meter.waiting[self.places[name]] = False
                self._learn(self.places[name], told["tokens"], told["finish"], told["usage_source"])

    def _learn(self, query: int, tokens: int, finish: str, usage_source: str) -> None:
        """Tells the meter how long an answer is that does not wait for more."""
        if usage_source == "assumed":  # what was charged for it says nothing of its length
            self.meter.age[query] = 0
        elif finish == "stop":
            self.meter.told(query, tokens, ended=True)
        else:
            self.meter.age[query] = tokens  # longer than that

    def clear(self) -> None:
        """Finds the price, where the forecast is another one than it was and there is something to pay with."""
        meter = self.meter
        if meter.corrected is self.cleared or (self.progress.rounds and not self.ledger.available):
            return
        rows = np.flatnonzero(meter.waiting)
        if not rows.size:
            return
        self.cleared = meter.corrected
        plan = schedule(meter.corrected.take(rows), meter.cap[rows], meter.age[rows])
        price = plan.price(self.ledger.available)
        worth = plan.index >= price
        expected = min(self.ledger.available, round(float(plan.cost[worth].sum())))
        admitted = int(np.unique(plan.query[worth]).size)
        self.progress.rounds.append(
            Round(self.ledger.available, rows.size, admitted, expected, price, "metered")
        )  # fmt: skip
        self.tell(self.progress)

    async def work(self) -> None:
        while job := await self._next():
            try:
                await self._serve(*job)
            finally:
                async with self.turn:
                    self.busy -= 1
                    self.turn.notify_all()
            self.clear()
            self.progress.spent = self.ledger.spent
            self.tell(self.progress)

    async def _next(self) -> tuple[Stretch, int, int] | None:
        """The best stretch, its grant and its reservation; None: nobody can be served any more."""
        async with self.turn:
            while not self.progress.stopped:
                stretch = self.meter.next() or self._beyond_forecast() if self.ledger.available else None
                if stretch and stretch.start and self._resumes(stretch.query) is False:
                    self._end_as_it_is(stretch.query)
                    continue
                if stretch:
                    wanted, available = self._wanted(stretch), self.ledger.available
                    if wanted <= available or self.busy == 0:
                        grant = min(wanted, available)
                        self.busy += 1
                        return stretch, grant, self.ledger.reserve(self.names[stretch.query], grant)
                    self._wait_on(stretch)
                if self.busy == 0:
                    break
                await self.turn.wait()
            self.turn.notify_all()
            return None

    def _beyond_forecast(self) -> Stretch | None:
        """An answer that is longer than its forecast thought possible goes on when nobody else wants the tokens."""
        for name in self.parts:
            query = self.places[name]
            if self.meter.waiting[query]:
                self.meter.waiting[query] = False
                start = int(self.meter.age[query])
                return Stretch(query, start, int(min(start + self.settings.quantum, self.meter.cap[query])), 0.0)
        return None

    def _wanted(self, stretch: Stretch) -> int:
        """The tokens to reserve for a stretch, or for the whole answer where it cannot be paused.

        No more than a share of what is not spent, so that others can be served at the same time.
        """
        length, resumes = stretch.stop - stretch.start, self._resumes(stretch.query)
        unanswered = len(self.names) - self.progress.answered
        share = (self.ledger.available + self.ledger.reserved) // min(self.settings.concurrency, unanswered)
        if resumes:
            return min(length, max(self.settings.quantum, share))
        if resumes is None:
            return min(length, _TRIAL)
        if not self.counts:  # whatever is granted will be charged
            return stretch.stop
        plan = schedule(self.meter.corrected.take([stretch.query]), self.meter.cap[[stretch.query]])
        price = self.progress.price or 0.0
        return int(np.max(plan.stop[(plan.index >= price) & (plan.stop <= share)], initial=stretch.stop))

    def _resumes(self, query: int) -> bool | None:
        return self.backend.resumes(self.bodies[query])

    def _wait_on(self, stretch: Stretch) -> None:
        self.meter.told(stretch.query, stretch.start, ended=False)

    async def _serve(self, stretch: Stretch, grant: int, reservation: int) -> None:
        if self._resumes(stretch.query) is not None:
            await self._attempt(stretch, grant, reservation, self.backend.extend)
            return
        async with self.trial:
            if self._resumes(stretch.query) is None:
                await self._attempt(stretch, grant, reservation, self._tried)
                return
        self.ledger.void(reservation)  # another has shown the way meanwhile
        self._wait_on(stretch)

    async def _tried(self, body: Mapping[str, Any], so_far: Completion | None, grant: int) -> Completion:
        """A part in two pieces, so that the backend knows afterwards whether it goes on."""
        if so_far is not None:
            return await self.backend.extend(body, so_far, grant)
        limit = max(1, grant // 2)
        first = await self.backend.extend(body, None, limit)
        if first.finish == "stop" or first.tokens != limit or first.tokens >= grant:
            return first
        try:
            return joined(first, await self.backend.extend(body, first, grant - limit))
        except BackendError as error:  # the answer begins anew, in one go
            second = grant - limit if error.tokens is None else error.tokens
            raise Unavailable(str(error), tokens=limit + second) from None

    async def _attempt(self, stretch: Stretch, grant: int, reservation: int, extend: _Extend) -> None:
        query = stretch.query
        name, body = self.names[query], self.bodies[query]
        so_far = self.parts.get(name)
        try:
            got = await attempted(name, lambda: extend(body, so_far, grant), grant, self.settings, self.tries)
        except Distrusted as error:
            self.ledger.void(reservation)
            self.progress.stopped = str(error)
            return
        if isinstance(got, Failure):
            self._failed(stretch, reservation, got)
            return
        self.tries[name] = 0
        if got.usage_source == "assumed":
            self.counts = False
            got = _flagged(got, "not_counted")
        answer = joined(so_far, got)
        # A server that stops below its limit, or generates what it does not show, has come to an end of its own.
        over = got.finish == "stop" or got.tokens < grant or not got.text or answer.tokens >= self.meter.cap[query]
        if over or not self._resumes(query):
            self.ledger.settle(reservation, got.tokens, output_line(name, answer))
            self._answered(query)
            self._learn(query, answer.tokens, answer.finish, answer.usage_source)
        else:
            self.ledger.pause(reservation, got.tokens, _packed(got))
            self.parts[name] = answer
            self.meter.told(query, answer.tokens, ended=False)

    def _failed(self, stretch: Stretch, reservation: int, failure: Failure) -> None:
        so_far = self.parts.get(name := self.names[stretch.query])
        if failure.line is None:
            self.ledger.settle(reservation, failure.spent)
            self._wait_on(stretch)
            return
        line = failure.line if so_far is None else output_line(name, _flagged(so_far, "not_continued"))
        self.ledger.settle(reservation, failure.spent, line)
        self._answered(stretch.query)

    def _end_as_it_is(self, query: int) -> None:
        """A part of an answer that a server of now cannot go on with."""
        name = self.names[query]
        self.ledger.record(name, output_line(name, _flagged(self.parts[name], "not_continued")))
        self._answered(query)

    def _answered(self, query: int) -> None:
        self.parts.pop(self.names[query], None)
        self.progress.answered += 1

    def close(self) -> None:
        """No more will come: answers that were begun end where they are."""
        for name in self.names:
            if part := self.parts.pop(name, None):
                self.ledger.record(name, output_line(name, part))
                self.progress.answered += 1


def _flagged(part: Completion, flag: str) -> Completion:
    return replace(part, flags=tuple(dict.fromkeys((*part.flags, flag))))


def _parts(ledger: Ledger) -> dict[str, Completion]:
    """What has come of the answers that are not finished."""
    found: dict[str, Completion] = {}
    for name, packed in ledger.parts():
        if not ledger.has_result(name):
            found[name] = joined(found.get(name), _unpacked(packed))
    return found


def _packed(part: Completion) -> bytes:
    return orjson.dumps(part)


def _unpacked(packed: bytes) -> Completion:
    fields = orjson.loads(packed)
    return Completion(**{**fields, "flags": tuple(fields["flags"]), "ids": tuple(fields["ids"])})
