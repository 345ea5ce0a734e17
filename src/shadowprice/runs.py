"""A run: requests, a budget, a backend, and a folder that keeps everything.

    run = Run(["What is 2 + 2?", ...], budget="200k", backend=backend, folder="run")
    async for result in run:                                     # or, in a script: run.complete()
        print(result.id, result.outcome, result.text)

The folder holds the settings (manifest.json), the questions (requests.jsonl), the forecasts (forecast.jsonl) and the
ledger (ledger.sqlite). A run whose folder exists is resumed if its settings are the same; nothing is paid for twice.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from secrets import token_hex
from typing import Any

import orjson

from shadowprice.accounts.sqlite import Ledger
from shadowprice.backends.base import Backend
from shadowprice.cost import TOKENS, Rates, parse_budget
from shadowprice.engine import Settings, make_scheduler
from shadowprice.engine.context import within_context
from shadowprice.engine.executor import USUAL, Progress, Tolerance, execute
from shadowprice.engine.lost import settle_lost
from shadowprice.engine.scheduler import Round, Scheduler
from shadowprice.errors import InputError, Refused
from shadowprice.forecast import Predictor, default, predict_all
from shadowprice.formats.files import Target, replacing
from shadowprice.formats.questions import Gold
from shadowprice.formats.requests import check_requests, requests_from
from shadowprice.formats.results import ESTIMATE, parse_chunk, parse_result, result_line
from shadowprice.formats.routes import read_routes
from shadowprice.grading import check_code_grading
from shadowprice.grading.referee import Referee
from shadowprice.routing import Routing, open_routing
from shadowprice.run_folder import RunFolder, restore
from shadowprice.summary import Summary, Tally
from shadowprice.tale import ASKS, LIMIT, ask, estimates_in, with_estimates
from shadowprice.types import Failure, Forecast, Request, Result


class Run:
    """Answers as many requests as possible, correctly, within one budget that is never exceeded.

    requests         texts, OpenAI request bodies, batch lines, or the path of a batch file
    budget           `200k`, `256/query`, a number of tokens; with `rates`, `$5`
    backend          the model that answers
    routes           instead of a backend: several models with their rates (`routing.Routing`), or a routes.toml file
    folder           where the run is kept; None: in memory
    forecaster       None: the one in the package
    forecaster_name  identifies the forecaster in the folder; default: its class
    gold             correct answer and grader, by request id: answers are graded as they arrive
    unsafe_code      grade programs even without a sandbox; by default InputError is raised
    teacher          policy tale: the model that estimates; None: the backend, paid from the budget
    resume           True: the folder must exist; False: it must not; None: resume if it exists
    accept_loss      continue from the valid part of a damaged ledger, and charge what may have been used
    rates            units per token in the budget; `cost.ALL_TOKENS`: prompts count, too
    prices           in dollars, for the summary and the report of a run whose budget is in tokens
    settings         fields of `engine.Settings`: policy, accounting, max_tokens, reclaim, samples, concurrency, ...
    """

    def __init__(
        self,
        requests: Sequence[str | Mapping[str, Any] | Request] | str | os.PathLike[str],
        *,
        budget: int | float | str,
        backend: Backend | None = None,
        routes: Routing | str | os.PathLike[str] | None = None,
        folder: str | os.PathLike[str] | None = None,
        forecaster: Predictor | None = None,
        forecaster_name: str = "",
        gold: Gold | None = None,
        unsafe_code: bool = False,
        teacher: Backend | None = None,
        resume: bool | None = None,
        accept_loss: bool = False,
        rates: Rates = TOKENS,
        prices: Rates | None = None,
        **settings: Any,
    ) -> None:
        if (backend is None) == (routes is None):
            raise InputError("a run needs a backend or routes, and not both", fix="give one of them")
        self.requests = requests_from(requests)
        if routes is not None:
            routes = routes if isinstance(routes, Routing) else open_routing(read_routes(routes), forecaster=forecaster)
            routes.check(self.requests)
            rates, settings = routes.routes[0].rates, {"policy": "routes", **settings}
        self.routing = routes
        check_requests(self.requests, priced=rates.priced)
        self.settings = Settings(rates=rates, **settings)
        self.settings.check()
        self.backend: Backend | Routing = backend or routes  # type: ignore[assignment]
        self.teacher, self.gold = teacher, gold
        self.prices = rates if rates.money else prices
        self.unsafe_code, self.sandbox = unsafe_code, check_gold(gold, unsafe_code=unsafe_code)
        self.budget = parse_budget(budget, len(self.requests), rates)
        self.progress = Progress(self.budget)
        self.teaching: dict[str, Any] | None = None  # a summary of the teacher's estimates
        self._forecaster = forecaster
        votes = routes is not None and self.settings.samples > 1
        self._referee = Referee(self.requests, gold, votes=votes, unsafe=unsafe_code)
        self._executing = self._executed = False
        self._execution = ""  # the name of the latest execution; attempts are named after it
        self._task: asyncio.Task[Summary] | None = None  # of the latest `async for`
        self._rounds: list[Round] = []
        self._scheduler: Scheduler | None = None
        asked = {
            "input": _hash(self.requests),
            "model": self.backend.model,
            **({"routes": routes.described()} if routes else {}),
            "forecast": forecaster_name or ("default" if forecaster is None else type(forecaster).__name__),
            "gold": _hash_of(sorted(gold.items())) if gold else None,
            "teacher": {"model": teacher.model} if teacher else None,
            **{name: value for name, value in asdict(self.settings).items() if name not in ("concurrency", "attempts")},
        }
        self._accept_loss = accept_loss
        self.folder = None
        if folder is not None:
            self.folder = RunFolder.open(folder, self.budget, asked, resume, accept_loss=accept_loss, charge_lost=False)
            self._execution = str(self.folder.manifest.get("execution") or "")
        self.ledger = self.folder.ledger if self.folder else Ledger.in_memory(self.budget)
        if self.folder and self.sandbox:  # a run that is resumed on another machine may have used several
            self.folder.save(sandboxes=sorted({*self.folder.manifest.get("sandboxes", []), self.sandbox}))
        if self.folder and prices:
            self.folder.save(prices=asdict(prices))

    @property
    def price(self) -> float | None:
        """The price of the latest clearing."""
        return self._rounds[-1].price if self._rounds else None

    @property
    def policy(self) -> str:
        """The policy; for `auto`, the one that it chose."""
        if self._scheduler is None and self.folder:
            return str(self.folder.manifest.get("served") or self.settings.policy)
        return getattr(self._scheduler, "policy", self.settings.policy)

    @property
    def spent(self) -> int:
        """Units spent so far."""
        return self.ledger.spent

    def stop(self, reason: str = "stopped") -> None:
        """Sends nothing more and finishes what is in flight; the run can be resumed."""
        self.progress.stop(reason)

    def complete(self) -> list[Result]:
        """Runs to the end and returns all results in order, for scripts and notebooks; closes the backends."""

        async def main() -> None:
            self.ledger.take_over()
            try:
                await self.execute()
            finally:
                for backend in (self.backend, self.teacher):
                    if backend is not None:
                        await backend.close()

        try:
            asyncio.get_running_loop()
        except RuntimeError:
            asyncio.run(main())
            return self.results()
        with ThreadPoolExecutor(1) as thread:  # in a notebook: its own event loop runs in this thread
            try:
                thread.submit(asyncio.run, main()).result()
            except KeyboardInterrupt:
                self.stop("interrupted")
                raise
            finally:
                thread.shutdown()
                self.ledger.take_over()
        return self.results()

    async def __aiter__(self) -> AsyncIterator[Result]:
        """Results as they arrive, those of an earlier execution first. Leaving the loop cancels what is in flight."""
        finished = self.folder is not None and self.folder.finished
        earlier = self.results() if finished else [parse_result(line) for _, line in self._own(self.ledger.results())]
        if self._task is not None and not self._task.done():  # an earlier loop was left and has not ended yet
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        ready: asyncio.Queue[Result | None] = asyncio.Queue()
        task = self._task = asyncio.create_task(self.execute(on_result=ready.put_nowait))
        task.add_done_callback(lambda _: ready.put_nowait(None))
        try:
            for result in earlier:
                yield result
            while (arrived := await ready.get()) is not None:
                yield arrived
            await task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def execute(
        self,
        *,
        on_result: Callable[[Result], None] = lambda result: None,
        on_event: Callable[[Progress], None] = lambda progress: None,
        tolerance: Tolerance = USUAL,
    ) -> Summary:
        """Runs to the end. Calls `on_result` with the result of each request, and `on_event` with the progress.

        If it was stopped or cancelled, call it again to continue; what was in flight then counts as spent.
        """
        if self._executing:
            raise InputError("this run is already executing", fix="wait for it, or make another Run")
        self._executing = True
        try:
            if self._executed:
                self.progress.restart()
            self._executed = True
            return await self._execute(on_result, on_event, tolerance)
        finally:
            self._executing = False

    async def _execute(
        self, on_result: Callable[[Result], None], on_event: Callable[[Progress], None], tolerance: Tolerance
    ) -> Summary:
        if self.folder and self.folder.finished:
            return self._finished(self.folder)
        bodies = {request.id: request.body for request in self.requests}
        await settle_lost(self.ledger, self.backend, self._execution, bodies, priced=self.settings.rates.priced)
        self._execution = token_hex(16)  # new each time: a copy of the folder may be resumed as well
        if self.folder:
            self.folder.save(execution=self._execution)
            self.folder.keep_requests(self.requests, self.gold)
        scheduler, refused = await self._scheduled(on_event, tolerance)
        self._scheduler, self._rounds = scheduler, scheduler.rounds
        if self.folder:
            scheduler.rounds.extend(self.folder.rounds())
        vote = self._referee.vote if self.routing else None
        restore(scheduler, self.ledger, self.requests, self.progress, vote=vote)
        self._refuse(scheduler, refused, on_result)
        kept = len(scheduler.rounds)

        def event(progress: Progress) -> None:
            nonlocal kept
            if self.folder and len(scheduler.rounds) != kept:
                kept = len(scheduler.rounds)
                self.folder.save(rounds=[asdict(round) for round in scheduler.rounds], served=self.policy)
            on_event(progress)

        await execute(
            scheduler,
            self.ledger,
            self.routing.channels if self.routing else self._one,
            concurrency=self.settings.concurrency,
            attempts=self.settings.attempts,
            tolerance=tolerance,
            rates=self.settings.rates,
            grade=self._referee.grade if self.gold else None,
            vote=self._referee.vote if self._referee.voted else None,
            progress=self.progress,
            name=self._execution,
            on_result=on_result,
            on_event=event,
        )
        summary = self.summary()
        if self.folder:
            self.ledger.wait()  # before the manifest says that it is done: a power cut must not lose results
            self.folder.save(done=True, summary=asdict(summary))
        return summary

    async def _scheduled(
        self, on_event: Callable[[Progress], None], tolerance: Tolerance
    ) -> tuple[Scheduler, dict[int, Refused]]:
        """The scheduler with all requests and their forecasts; and, by place, why some requests cannot be sent."""
        settings, names = self.settings, [request.id for request in self.requests]
        if self.routing is not None:
            forecasts = self.routing.predict(self.requests)
            self._keep_forecast(names, forecasts[0])
            routed = self.routing.scheduler(settings.max_tokens, settings.attempts, settings.samples)
            voted = [name in self._referee.voted for name in names]
            routed.add(self.requests, forecasts, self.routing.predict_revised(self.requests), voted)
            return routed, {}
        forecaster = self._forecaster or default()
        forecast = predict_all(forecaster, self.requests)
        if settings.policy == "tale":
            forecast = await self._taught(forecast, on_event, tolerance)
        self._keep_forecast(names, forecast)
        scheduler = make_scheduler(
            settings,
            lambda request: self._one.can_continue(request.body),
            getattr(forecaster, "anytime", None),
            getattr(forecaster, "reader", None),
        )
        requests, refused = await within_context(self.requests, self._one, settings.max_tokens, settings.concurrency)
        scheduler.add(requests, forecast)
        return scheduler, refused

    @property
    def _one(self) -> Backend:
        """The backend of a run without routes."""
        assert not isinstance(self.backend, Routing)
        return self.backend

    def _keep_forecast(self, names: Sequence[str], forecast: Forecast) -> None:
        if self.folder:
            self.folder.save(done=False)
            self.folder.keep_forecast(names, forecast)

    def results(self) -> list[Result]:
        """The results of the requests, in order; requests without one are left out."""
        return [*self._each_result()]

    def summary(self) -> Summary:
        tally = Tally()
        for result in self._each_result():
            tally.add(result)
        for name, line in self._own(self.ledger.chunks()) if self.ledger.beyond_grants else ():
            if not self.ledger.has_result(name):
                tally.add_answer(parse_chunk(line).part)
        return tally.summary(
            self.ledger,
            requests=len(self.requests),
            correct=tally.grades[True] if self.gold else None,
            rounds=list(self._rounds),
            stopped=self.progress.stopped,
            sandbox=self.sandbox,
            dollars=self.prices.cost(self.ledger.usage) / 10**9 if self.prices else None,
            dropped=dict(self.progress.dropped),
            unvaried=self._referee.unvaried,
        )

    def write(self, out: Target, errors: Target) -> None:
        """Writes answers to `out` and other results to `errors`, in order; the files appear complete or not at all."""
        with replacing([errors, out]) as (error_file, out_file):
            for request in self.requests:
                if (line := self.ledger.line(request.id)) is not None:
                    answered = self.ledger.has_result(request.id)
                    (out_file if answered else error_file).write(line + b"\n")

    def close(self) -> None:
        """Closes the ledger."""
        self.ledger.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- internal ------------------------------------------------------------------------------

    def _finished(self, folder: RunFolder) -> Summary:
        """The summary of a run that has nothing left to do."""
        self._rounds, self.teaching = folder.rounds(), folder.manifest.get("teacher")
        self.progress.spent = self.ledger.spent
        summary = self.summary()
        self.progress.outcomes.update(summary.outcomes)
        return summary

    def _each_result(self) -> Iterator[Result]:
        """The results of the requests, in order."""
        lines = (self.ledger.line(request.id) for request in self.requests)
        return (parse_result(line) for line in lines if line is not None)

    def _refuse(
        self, scheduler: Scheduler, refused: Mapping[int, Refused], on_result: Callable[[Result], None]
    ) -> None:
        """Ends requests that cannot be sent, unless they have a part of an answer."""
        begun = {name for name, _ in self.ledger.chunks()} if refused else set()
        for place, error in sorted(refused.items()):
            name = self.requests[place].id
            if self.ledger.has_result(name) or name in begun:
                continue
            result = Result(name, "failed", failure=Failure(error.code, str(error), {"cause": error.cause}))
            self.ledger.note(name, result_line(result))
            scheduler.restore(place, result)
            self.progress.outcomes["failed"] += 1
            on_result(result)

    def _own(self, lines: Iterable[tuple[str, bytes]]) -> Iterable[tuple[str, bytes]]:
        return ((name, line) for name, line in lines if not name.startswith(ESTIMATE))

    async def _taught(self, forecast: Forecast, on_event: Callable[[Progress], None], tolerance: Tolerance) -> Forecast:
        """Asks the teacher. If it is the model that answers, it is paid from the budget, at most half of it."""
        waiting = [request for request in self.requests if not self.ledger.has_result(request.id)]
        options: dict[str, Any] = {
            "concurrency": self.settings.concurrency,
            "attempts": self.settings.attempts,
            "tolerance": tolerance,
        }
        if self.teacher is None:
            options |= {"rates": self.settings.rates, "progress": self.progress, "on_event": on_event}
            await ask(waiting, self.ledger, self._one, most=self.budget // 2, **options)
            self.progress.outcomes.clear()  # those of estimates
            estimates = estimates_in(self.ledger, self.requests)
        else:
            with self._ledger_of_teacher() as ledger:
                await ask(waiting, ledger, self.teacher, most=ledger.budget, **options)
                estimates = estimates_in(ledger, self.requests)
        figures = {name: value for name, value in asdict(estimates).items() if name != "tokens_of"}
        self.teaching = {**figures, "charged": self.teacher is None}
        if self.folder:
            self.folder.save(teacher=self.teaching)
        return with_estimates(forecast, self.requests, estimates.tokens_of)

    def _ledger_of_teacher(self) -> Ledger:
        most = ASKS * LIMIT * len(self.requests)
        if self.folder is None:
            return Ledger.in_memory(most)
        path = self.folder.path / "teacher.sqlite"
        return Ledger.reopen(path, accept_loss=self._accept_loss) if path.exists() else Ledger.create(path, most)


def check_gold(gold: Gold | None, *, unsafe_code: bool = False) -> str:
    """The level of the sandbox that will grade programs, empty if there are none; InputError if there is no sandbox."""
    programs = any(grader == "code" for _, grader in (gold or {}).values())
    return check_code_grading(unsafe_code) if programs else ""


def _hash(requests: Sequence[Request]) -> str:
    return _hash_of([(request.id, request.body) for request in requests])


def _hash_of(value: Any) -> str:
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()
