"""Running a batch: forecast, allocate, complete, record; the only owner of concurrency, retries and caps.

A round clears the market of all queries without an answer for the tokens that are left, and runs the
admitted. What they did not use flows back, and the next round offers it to those that were abandoned,
until nobody can pay or nobody is left.

A grant is reserved in the ledger before the first attempt is sent, and settled by what was used. An
attempt that is known to have generated nothing is tried again on the same reservation. One whose
outcome nobody knows has spent its grant; its query competes for what is left in the next round.

A server that ignores a limit breaks the promise of the budget. Answers under way are heard to their end
and charged for what they took; nothing more is sent.

With several samples a query's grant is shared by them, one after the other; one that passes the
verifier stops the rest.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import orjson
from numpy.typing import NDArray

from shadowprice.accounts.sqlite import Ledger
from shadowprice.backends.base import Backend
from shadowprice.errors import BackendError, Distrusted, InputError, Overdrawn, Refused, Unavailable
from shadowprice.forecast import Predictor, predict_all
from shadowprice.formats.batch import BatchLine, abandoned_line, error_line
from shadowprice.formats.files import Target, replacing
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
    quantum: int = 64  # tokens of a stretch, at least; only where they are metered (`metered_runner`)


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
    """How far a run is; handed to `tell` before the first clearing and after every answer."""

    forecast: Forecast
    budget: int
    answered: int = 0
    spent: int = 0
    rounds: list[Round] = field(default_factory=list)
    stopped: str = ""  # why nothing more was sent, though something could have been

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
    overspent: int  # by how much the budget was exceeded: 0 if servers keep to their limits
    rounds: list[Round]
    flags: dict[str, int]  # what was wrong with the server, and how often
    stopped: str  # why nothing more was sent, though something could have been


async def run(
    requests: Sequence[BatchLine],
    ledger: Ledger,
    backend: Backend,
    forecaster: Predictor,
    settings: Settings,
    *,
    rounds: Sequence[Round] = (),
    verify: Verifier | None = None,
    tell: Callable[[Progress], None] = lambda progress: None,
) -> Progress:
    """Answer what the budget of `ledger` allows; everything that happens is in the ledger.

    A ledger that holds answers already is continued: nothing is paid for twice. `rounds` are the
    clearings it has had. `verify` tells whether an answer will do; it is called in a thread, and only
    where there may be several samples.
    """
    refuse_several_answers(requests)
    progress = progress_of(requests, ledger, forecaster, rounds)
    market = _Market(requests, progress.forecast, settings)
    tell(progress)
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
        if progress.stopped or not settings.reclaim:
            break
    return progress


def progress_of(
    requests: Sequence[BatchLine], ledger: Ledger, forecaster: Predictor, rounds: Sequence[Round] = ()
) -> Progress:
    """How far the run in a ledger has come; nothing is sent."""
    forecast = predict_all(forecaster, [r.query for r in requests])
    answered = sum(ledger.has_result(r.query.id) for r in requests)
    return Progress(forecast, ledger.budget, answered, ledger.spent, list(rounds))


def refuse_several_answers(requests: Sequence[BatchLine], path: str | None = None) -> None:
    if several := next((r for r in requests if r.query.answers > 1), None):
        fix = "ask for one; --samples makes more"
        raise InputError("asks for several answers (n)", path=path, line=several.line, fix=fix)


def caps(requests: Sequence[BatchLine], settings: Settings) -> NDArray[np.float64]:
    """What each query may generate at most: the caller's own limit, or that of the run."""
    limit = np.inf if settings.max_tokens is None else settings.max_tokens
    return np.array([min(limit, r.query.max_tokens or np.inf) for r in requests], dtype=np.float64)


class _Market:
    """The queries of a run with their forecasts, to be cleared in part and again."""

    def __init__(self, requests: Sequence[BatchLine], forecast: Forecast, settings: Settings) -> None:
        self.requests, self.settings = requests, settings
        self.bodies = [orjson.loads(r.raw)["body"] for r in requests]
        self.forecast = forecast
        self.cap = caps(requests, settings)

    def clear(self, who: list[int], budget: int) -> Allocation:
        some = self.forecast.take(who)
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
        """Request, grant and reservation; reserved a few at a time, since each wait for the disk is dear."""
        if progress.stopped:
            return None
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
            try:
                await _answer(name, market.bodies[i], grant, reservation, ledger, sampler, settings, tries)
            except Distrusted as error:
                ledger.void(reservation)
                progress.stopped = str(error)
            progress.answered += ledger.has_result(name)
            progress.spent = ledger.spent
            tell(progress)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(settings.concurrency, len(granted))):
                group.create_task(work())
    finally:
        for _, _, reservation in reserved:  # interrupted or stopped: these were never sent
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
    got = await attempted(name, lambda: sampler.complete(name, body, grant), grant, settings, tries)
    if isinstance(got, Failure):
        ledger.settle(reservation, got.spent, got.line)
    else:
        ledger.settle(reservation, got.tokens, output_line(name, got))


@dataclass(frozen=True)
class Failure:
    """Attempts that came to nothing: what they cost, and the line of the error file if there shall be no more."""

    spent: int
    line: bytes | None


async def attempted(
    name: str, ask: Callable[[], Awaitable[Completion]], grant: int, settings: Settings, tries: dict[str, int]
) -> Completion | Failure:
    """Attempts at one query until it is answered, refused, or its grant is spent."""
    while True:
        tries[name] += 1
        try:
            return await ask()
        except Distrusted:
            raise
        except BackendError as error:
            spent = grant if error.tokens is None else error.tokens
            last = isinstance(error, Refused) or tries[name] >= settings.attempts
            if last or spent:
                code = error.code if isinstance(error, Refused) else "backend_unavailable"
                return Failure(spent, error_line(name, code, str(error), tokens=spent) if last else None)
            await asyncio.sleep(_pause(error, tries[name], settings.patience))


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
        spent, best, flags = 0, None, dict[str, None]()
        for sample in range(self.samples):
            try:
                found = await self.backend.complete({**body, "seed": sample}, grant - spent)
            except BackendError as error:
                if best is None and spent == 0:
                    raise
                spent += grant - spent if error.tokens is None else error.tokens
                break
            spent += found.tokens
            flags |= dict.fromkeys(found.flags)
            passed = self.verify is not None and await asyncio.to_thread(self.verify, name, found)
            if best is None or passed or (best.finish == "length" and found.finish == "stop"):
                best = found
            if passed or spent >= grant:
                break
        assert best is not None
        return replace(best, tokens=spent, flags=tuple(flags))


def _pause(error: BackendError, tried: int, patience: float) -> float:
    """What the server asked for; otherwise longer each time, and never in step with others."""
    named = error.delay if isinstance(error, Unavailable) else None
    return min(patience, named if named is not None else 2.0 ** (tried - 1) * random.uniform(0.5, 1.0))


def output_line(name: str, completion: Completion) -> bytes:
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
    requests: Sequence[BatchLine], ledger: Ledger, progress: Progress, *, out: Target, errors: Target
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
                error_file.write(_unanswered(request.query.id, progress, i) + b"\n")
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
        queries=len(requests),
        **counts,
        budget=ledger.budget,
        spent=ledger.spent,
        overspent=ledger.overspent,
        rounds=progress.rounds,
        flags=flags,
        stopped=progress.stopped,
    )


def beyond_grants(ledger: Ledger) -> int:
    """Tokens generated above the grants of their queries, whether the budget covers them or not."""
    grants = {entry.id: entry.tokens for entry in ledger.entries() if entry.kind == "reserve"}
    settled = ((entry.tokens, entry.reservation) for entry in ledger.entries() if entry.kind in ("settle", "pause"))
    return sum(max(0, tokens - grants[reservation]) for tokens, reservation in settled if reservation is not None)


def _unanswered(name: str, progress: Progress, query: int) -> bytes:
    if progress.stopped:
        return error_line(name, "not_sent", f"not sent: {progress.stopped}")
    return abandoned_line(name, progress.forecast, query, progress.price)
