"""Running a batch: forecast, allocate, complete, record; the only owner of concurrency, retries and caps.

A round clears the market of all queries without an answer for the tokens that are left, and runs the
admitted. What they did not use flows back, and the next round offers it to those that were abandoned,
until nobody can pay or nobody is left.

A grant is reserved in the ledger before the first attempt is sent, and settled by what was used. An
attempt that is known to have generated nothing is tried again on the same reservation. One whose
outcome nobody knows has spent its grant; its query competes for what is left in the next round.

With several samples a query's grant is shared by them, one after the other; one that passes the
verifier stops the rest.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import orjson

from shadowprice.backends import Backend
from shadowprice.batchfile import Request, Target, abandoned_line, error_line, replacing
from shadowprice.errors import BackendError, InputError, Overdrawn, Refused, Unavailable
from shadowprice.forecast import Forecaster
from shadowprice.ledger import Ledger
from shadowprice.market import allocate
from shadowprice.types import Allocation, Completion, Forecast

# The query's id and its answer; True stops further samples.
Verifier: TypeAlias = Callable[[str, Completion], bool]


@dataclass(frozen=True)
class Settings:
    policy: str = "clear"
    options: Mapping[str, Any] = field(default_factory=dict)
    max_tokens: int | None = None
    concurrency: int = 8
    attempts: int = 4  # at one query, whatever became of them
    reclaim: bool = True  # clear again for what was not used
    patience: float = 30.0  # seconds to wait between two attempts, at most
    samples: int = 1  # answers a query may have from one grant


@dataclass(frozen=True)
class Round:
    """One clearing of a run."""

    budget: int
    queries: int
    admitted: int
    granted: int
    price: float | None
    status: str | None


@dataclass
class Progress:
    """How far a run is; handed to `tell` after every answer."""

    forecast: Forecast
    budget: int
    answered: int = 0
    spent: int = 0
    rounds: list[Round] = field(default_factory=list)

    @property
    def price(self) -> float | None:
        return self.rounds[-1].price if self.rounds else None


@dataclass(frozen=True)
class Summary:
    """How a run ended."""

    queries: int
    finished: int  # answered to the end
    truncated: int  # answered up to the limit
    failed: int
    abandoned: int
    budget: int
    spent: int
    rounds: list[Round]
    flags: dict[str, int]  # what was wrong with the server, and how often


async def run(
    requests: Sequence[Request],
    ledger: Ledger,
    backend: Backend,
    forecaster: Forecaster,
    settings: Settings,
    *,
    verify: Verifier | None = None,
    tell: Callable[[Progress], None] = lambda progress: None,
) -> Progress:
    """Answer what the budget of `ledger` allows; everything that happens is in the ledger.

    A ledger that holds answers already is continued: nothing is paid for twice. `verify` tells
    whether an answer will do; it is called in a thread, and only where there may be several samples.
    """
    if several := next((r for r in requests if r.query.answers > 1), None):
        raise InputError("asks for several answers (n)", line=several.line, fix="ask for one; --samples makes more")
    market = _Market(requests, forecaster.predict([r.query for r in requests]), settings)
    progress = Progress(market.forecast, ledger.budget, spent=ledger.spent)
    progress.answered = sum(ledger.has_result(r.query.id) for r in requests)
    tries = dict.fromkeys((r.query.id for r in requests), 0)
    while True:
        waiting = [
            i for i, r in enumerate(requests)
            if not ledger.has_result(r.query.id) and tries[r.query.id] < settings.attempts
        ]  # fmt: skip
        decided = market.clear(waiting, ledger.available)
        granted = [(i, int(tokens)) for i, tokens in zip(waiting, decided.tokens, strict=True) if tokens]
        if not granted:
            break
        progress.rounds.append(
            Round(ledger.available, len(waiting), len(granted), decided.total, decided.price, decided.status)
        )
        tell(progress)
        await _run_round(
            granted, market, ledger, _Sampler(backend, settings.samples, verify), settings, tries, progress, tell
        )
        if not settings.reclaim:
            break
    return progress


class _Market:
    """The queries of a run with their forecasts, to be cleared in part and again."""

    def __init__(self, requests: Sequence[Request], forecast: Forecast, settings: Settings) -> None:
        self.requests, self.settings = requests, settings
        self.bodies = [orjson.loads(r.raw)["body"] for r in requests]
        n = len(requests)
        tail = None if forecast.tail is None else np.broadcast_to(forecast.tail, n)
        self.forecast = Forecast(
            forecast.tokens, np.broadcast_to(forecast.spread, n), np.broadcast_to(forecast.solve, n), tail
        )
        limit = np.inf if settings.max_tokens is None else settings.max_tokens
        self.cap = np.array([min(limit, r.query.max_tokens or np.inf) for r in requests])

    def clear(self, who: list[int], budget: int) -> Allocation:
        forecast = self.forecast
        tail = None if forecast.tail is None else forecast.tail[who]
        some = Forecast(forecast.tokens[who], forecast.spread[who], forecast.solve[who], tail)
        return allocate(some, budget, self.settings.policy, max_tokens=self.cap[who], **self.settings.options)


async def _run_round(
    granted: list[tuple[int, int]],
    market: _Market,
    ledger: Ledger,
    sampler: _Sampler,
    settings: Settings,
    tries: dict[str, int],
    progress: Progress,
    tell: Callable[[Progress], None],
) -> None:
    waiting, reserved = deque(granted), deque[tuple[int, int, int]]()

    def next_job() -> tuple[int, int, int] | None:
        """Query, grant and reservation; reserved a few at a time, since each wait for the disk is dear."""
        if not reserved and waiting:
            some = [waiting.popleft() for _ in range(min(settings.concurrency, len(waiting)))]
            try:
                numbers = ledger.reserve_many((market.requests[i].query.id, grant) for i, grant in some)
            except Overdrawn:  # a server generated more than it was granted: clear again for what is left
                waiting.clear()
                return None
            reserved.extend((i, grant, number) for (i, grant), number in zip(some, numbers, strict=True))
        return reserved.popleft() if reserved else None

    async def work() -> None:
        while job := next_job():
            i, grant, reservation = job
            name = market.requests[i].query.id
            await _answer(name, market.bodies[i], grant, reservation, ledger, sampler, settings, tries)
            progress.answered += ledger.has_result(name)
            progress.spent = ledger.spent
            tell(progress)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(settings.concurrency, len(granted))):
                group.create_task(work())
    finally:
        for _, _, reservation in reserved:  # interrupted: these were never sent
            ledger.void(reservation)


async def _answer(
    name: str,
    body: Mapping[str, Any],
    grant: int,
    reservation: int,
    ledger: Ledger,
    sampler: _Sampler,
    settings: Settings,
    tries: dict[str, int],
) -> None:
    """Attempts at one query until it is answered, refused, or its grant is spent."""
    while True:
        tries[name] += 1
        try:
            completion = await sampler.complete(name, body, grant)
        except BackendError as error:
            spent = grant if error.tokens is None else error.tokens
            last = isinstance(error, Refused) or tries[name] >= settings.attempts
            if not last and spent == 0:
                await asyncio.sleep(_pause(error, tries[name], settings.patience))
                continue
            code = error.code if isinstance(error, Refused) else "backend_unavailable"
            ledger.settle(reservation, spent, error_line(name, code, str(error), tokens=spent) if last else None)
        else:
            ledger.settle(reservation, completion.tokens, _output_line(name, completion))
        return


@dataclass(frozen=True)
class _Sampler:
    """A backend that takes up to `samples` answers from one grant."""

    backend: Backend
    samples: int
    verify: Verifier | None

    async def complete(self, name: str, body: Mapping[str, Any], grant: int) -> Completion:
        """The first answer that passes, else the first that came to its end, else the last; charged for all."""
        if self.samples == 1:
            return await self.backend.complete(body, grant)
        spent, best = 0, None
        for sample in range(self.samples):
            try:
                found = await self.backend.complete({**body, "seed": sample}, grant - spent)
            except BackendError as error:
                if best is None and spent == 0:
                    raise
                spent += grant - spent if error.tokens is None else error.tokens
                break
            spent += found.tokens
            passed = self.verify is not None and await asyncio.to_thread(self.verify, name, found)
            if best is None or passed or (best.finish == "length" and found.finish == "stop"):
                best = found
            if passed or spent >= grant:
                break
        assert best is not None
        return replace(best, tokens=spent)


def _pause(error: BackendError, tried: int, patience: float) -> float:
    """What the server asked for; otherwise longer each time, and never in step with others."""
    named = error.delay if isinstance(error, Unavailable) else None
    return min(patience, named if named is not None else 2.0 ** (tried - 1) * random.uniform(0.5, 1.0))


def _output_line(name: str, completion: Completion) -> bytes:
    return orjson.dumps(
        {
            "id": f"shadowprice-{name}",
            "custom_id": name,
            "response": {"status_code": 200, "request_id": completion.body.get("id", ""), "body": completion.body},
            "error": None,
            "shadowprice": {
                "finish": completion.finish,
                "tokens": completion.tokens,
                "usage_source": completion.usage_source,
                "flags": completion.flags,
            },
        }
    )


def write_results(
    requests: Sequence[Request], ledger: Ledger, progress: Progress, *, out: Target, errors: Target
) -> Summary:
    """Every request to one file or the other, in order; files appear whole or not at all."""
    lines = dict(ledger.results())
    counts = dict.fromkeys(("finished", "truncated", "failed", "abandoned"), 0)
    flags: dict[str, int] = {}
    with replacing([errors, out]) as (error_file, out_file):
        for i, request in enumerate(requests):
            line = lines.get(request.query.id)
            if line is None:
                counts["abandoned"] += 1
                error_file.write(abandoned_line(request.query.id, progress.forecast, i, progress.price) + b"\n")
                continue
            record = orjson.loads(line)
            if record["error"]:
                counts["failed"] += 1
                error_file.write(line + b"\n")
            else:
                counts["finished" if record["shadowprice"]["finish"] == "stop" else "truncated"] += 1
                for flag in record["shadowprice"]["flags"]:
                    flags[flag] = flags.get(flag, 0) + 1
                out_file.write(line + b"\n")
    return Summary(
        queries=len(requests), **counts, budget=ledger.budget, spent=ledger.spent, rounds=progress.rounds, flags=flags
    )
