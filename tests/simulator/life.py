"""One life of a run, from one seed: it starts, meets faults, dies, is resumed, and ends."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from unittest.mock import patch

from shadowprice.accounts import mark, stores
from shadowprice.accounts.journal import read_rows
from shadowprice.accounts.sqlite import Ledger
from shadowprice.accounts.stores import Store
from shadowprice.collect import collect
from shadowprice.engine import lessons
from shadowprice.engine.executor import Progress
from shadowprice.errors import LedgerError
from shadowprice.formats.landings import Landing
from shadowprice.formats.results import ESTIMATE, parse_result
from shadowprice.market.anytime import Anytime
from shadowprice.runs import Run
from shadowprice.types import Completion, Forecast, Request, Result

from .audit import Audit
from .clock import Stuck, VirtualLoop
from .disk import Folder, Platter, Watched
from .process import Killed, Process, Violation
from .server import Client, Server
from .story import End, Story


@dataclass(frozen=True)
class Ended:
    """How a life ended: `problem` is the invariant that was violated, if one was."""

    seed: int
    digest: str
    problem: str
    events: list[str]
    steps: list[int]  # of each process


def live(seed: int) -> Ended:
    """Lives the life of this seed."""
    return live_through(Story.of(seed))


def live_through(story: Story) -> Ended:
    state = random.getstate()
    random.seed(story.seed)  # the executor's jitter
    try:
        with patch.object(lessons, "FIRST", 2):  # so that a few answers teach something
            return _Life(story).run()
    finally:
        random.setstate(state)


class Job(Protocol):
    """What a process does: a run, or collecting."""

    ledger: Ledger
    progress: Progress

    async def execute(self) -> None: ...

    def results(self) -> list[Result]: ...


class _Run(Run):
    """A run whose answers are graded by a coin."""

    def _grade(self, id: str, answer: Completion) -> bool | None:
        assert self.gold is not None
        if answer.tokens % 7 == 3:
            raise ValueError("a bug in a grader")
        return answer.tokens % 2 == 0


class _Predictor:
    """The story's forecasts."""

    def __init__(self, forecast: Forecast, anytime: Anytime | None) -> None:
        self.predict: Callable[[Sequence[Request]], Forecast] = lambda requests: forecast
        self.anytime = anytime


class _Running:
    def __init__(self, run: Run, story: Story, audit: Audit) -> None:
        self.run, self.story, self.audit = run, story, audit
        self.ledger, self.progress = run.ledger, run.progress

    async def execute(self) -> None:
        await self.run.execute(on_result=self.audit.result, tolerance=self.story.tolerance)
        self.audit.require(self.run.summary().spent == self.ledger.spent, "the summary is wrong")

    def results(self) -> list[Result]:
        return self.run.results()


class _Collecting:
    def __init__(self, ledger: Ledger, client: Client, story: Story) -> None:
        self.ledger, self.client, self.story = ledger, client, story
        self.progress = Progress(ledger.budget)
        self._executed = False

    async def execute(self) -> None:
        if self._executed:
            self.ledger.charge_lost()
            self.progress.restart()
        self._executed = True
        await collect(
            self.story.requests,
            self.ledger,
            self.client,
            max_tokens=self.story.grant,
            probe=self.story.probe,
            concurrency=self.story.concurrency,
            progress=self.progress,
        )

    def results(self) -> list[Result]:
        lines = {**dict(self.ledger.notes()), **dict(self.ledger.results())}
        return [parse_result(lines[r.id]) for r in self.story.requests if r.id in lines]


class _Life:
    def __init__(self, story: Story) -> None:
        self.story = story
        self.audit = Audit(story)
        self.server = Server(story, self.audit)
        self.rng = random.Random(f"life {story.seed}")
        self.platter = Platter(story.budget)
        self.folder: Folder | None = None
        self.clock: Callable[[], float] = lambda: 0.0
        self.steps: list[int] = []
        self.abandoned: list[Store] = []
        self.how = ""

    def run(self) -> Ended:
        try:
            with ExitStack() as stack:
                if self.story.on_file:
                    stack.enter_context(patch.object(stores, "monotonic", lambda: self.clock()))
                    shared = "/dev/shm" if Path("/dev/shm").is_dir() else None
                    self.folder = Folder(Path(stack.enter_context(tempfile.TemporaryDirectory(dir=shared))))
                    stack.enter_context(patch.object(mark, "boot", self.folder.boot))
                for end in [*self.story.ends, None]:
                    self.process(end)
        except Violation as violation:
            self.audit.violation = self.audit.violation or str(violation)
        finally:
            self.close_files()
        return Ended(self.story.seed, self.audit.digest, self.audit.violation, self.audit.events, self.steps)

    def process(self, end: End | None) -> None:
        """From its start to its end; what it leaves is what the next one finds."""
        number = len(self.steps) + 1
        process = Process(f"process {self.story.seed} {number}", end)
        self.audit.event("process", number)
        how = self.outcome(process, last=end is None)
        self.audit.event("ends:", how)
        self.steps.append(process.steps)
        power = end is not None and (end.kind == "power cut" or (how == "disk" and self.rng.random() < 0.5))
        self.crash(power=power)

    def outcome(self, process: Process, *, last: bool) -> str:
        job: Job | None = None

        def step() -> None:
            process.step()
            if self.audit.violation:
                raise Violation(self.audit.violation)
            if job is not None and not job.ledger._closed:
                self.audit.check(job.ledger)

        loop = VirtualLoop(process.rng, shuffle=self.story.shuffle, on_step=step)
        self.clock = loop.time
        with self.dying(process, loop):
            job = self.open(process, error_rate=0.0 if last else self.story.disk_error_rate)
            progress = job.progress
            self.audit.stopped = lambda: progress.stopped
            task = loop.create_task(self.execute(job, process))
            process.stop = lambda: loop.call_soon(progress.stop, "enough")
            process.cancel = lambda: loop.call_soon(task.cancel)
            try:
                loop.run_until_complete(task)
            except asyncio.CancelledError:
                process.step()
                if job.ledger._closed or self.rng.random() < 0.5:
                    return "cancelled"
                self.audit.event("executes again")
                self.audit.begins()
                loop.run_until_complete(self.execute(job, process))
            self.finished(job)
            if process.rng.random() < 0.5:
                return "done"
            job.ledger.close()  # waits for the disk
            self.platter.durable = len(self.platter.rows)
            self.audit.durable = len(self.audit.books.rows)
            return "closed"
        return self.how

    @contextmanager
    def dying(self, process: Process, loop: VirtualLoop) -> Iterator[None]:
        try:
            yield
        except Killed:
            self.how = "killed"
        except Stuck:
            raise Violation("everything waits, forever") from None
        except LedgerError as error:
            self.audit.require("(virtually)" in str(error), f"the ledger refuses: {error}")
            self.how = "disk"
        finally:
            process.alive = False
            self.audit.stopped = lambda: ""
            loop.unwind()

    async def execute(self, job: Job, process: Process) -> None:
        await job.execute()
        process.step()
        self.audit.check(job.ledger)

    # --- ledgers -------------------------------------------------------------------------------

    def open(self, process: Process, *, error_rate: float) -> Job:
        client, story = Client(self.server, process), self.story
        if self.folder is None:
            ledger = self.platter.reopen(process, self.audit, error_rate)
        elif story.settings is None:
            path = self.folder.ledger
            path.parent.mkdir(exist_ok=True)
            ledger = Ledger.reopen(path) if path.exists() else Ledger.create(path, story.budget)
            self.watch(ledger, process, error_rate)
        if story.settings is None:
            return _Collecting(ledger, client, story)
        settings = {name: getattr(story.settings, name) for name in type(story.settings).__dataclass_fields__}
        run = _Run(
            story.requests,
            budget=story.budget,
            backend=client,
            folder=self.folder.path if self.folder else None,
            forecaster=_Predictor(story.forecast, story.anytime),
            gold={request.id: ("", "exact") for request in story.requests} if story.graded else None,
            **settings,
        )
        if self.folder is None:
            run.ledger = ledger
        else:
            self.watch(run.ledger, process, error_rate)
        return _Running(run, story, self.audit)

    def watch(self, ledger: Ledger, process: Process, error_rate: float) -> None:
        """A ledger on a real disk; what was charged when it was opened is audited now."""
        assert self.folder is not None
        store, known = ledger._store, len(self.audit.books.rows)
        self.abandoned.append(store)
        rows = [(row.entry, row.line) for row in read_rows(store._db)]  # type: ignore[attr-defined]
        self.audit.written(rows[known:], durable=True)
        self.folder.waited()
        ledger._store = Watched(store, process, self.audit, error_rate, self.folder.waited)

    def crash(self, *, power: bool) -> None:
        """What is left, as the next process finds it."""
        if self.folder is None:
            if power:
                self.platter.lose_power(self.rng)
            rows = self.platter.rows
        else:
            self.folder.crash(self.rng, power=power)
            self.close_files()
            rows = self.folder.rows()
        self.audit.restarted(rows, power=power)

    def close_files(self) -> None:
        while self.abandoned:
            self.abandoned.pop().close()

    # --- at the end ----------------------------------------------------------------------------

    def finished(self, job: Job) -> None:
        """An execution has come to its end: everything has its place, and everything is paid for."""
        audit, ledger, story, results = self.audit, job.ledger, self.story, job.results()
        audit.require([r.id for r in results] == [r.id for r in story.requests], "a request has no result and no note")
        audit.require(ledger.reserved == 0, f"{ledger.reserved} are still reserved")
        charged = ledger.spent + ledger.overspent
        audit.require(charged >= audit.generated, f"{charged} charged, {audit.generated} generated")
        estimates = sum(e.units for e in ledger.entries() if e.reservation and (e.request or "").startswith(ESTIMATE))
        costs = sum(result.cost for result in results)
        audit.require(costs + estimates == charged, f"results cost {costs + estimates}, and {charged} is charged")
        for result in results:
            if result.completion is not None and story.keeps_limits:
                self.is_genuine(result.id, result.completion)
        stopped, progress = job.progress.stopped, job.progress
        audit.require(progress.outcomes == Counter(r.outcome for r in results), "the progress counts other outcomes")
        audit.require(progress.spent == ledger.spent and not progress.running, "the progress is not that of the end")
        if story.generous:
            audit.require(stopped in ("", "enough") or bool(story.at_fault), f"it stopped for no reason: {stopped}")
            unanswered = [r.id for r in results if r.completion is None and r.id not in story.at_fault]
            audit.require(stopped == "enough" or not unanswered, f"nothing prevents answers to {unanswered}")

    def is_genuine(self, name: str, answer: Completion) -> None:
        """An answer is what the server sent, from its beginning, without gaps or repetitions, and its landing."""
        settings, text, final = self.story.settings, answer.text, ""
        if settings and isinstance(settings.landing, Landing) and settings.landing.text in text:
            text, _, final = text.partition(settings.landing.text)
        count, samples = text.count(" "), settings.samples if settings else 1
        printed = [self.server.words(name, sample, 0, count) for sample in range(samples)]
        count += 3 if final else 0
        genuine = text in printed and final in ("", "42}")
        self.audit.require(genuine, f"{name} has an answer that nobody gave: {answer.text!r:.200}")
        if self.story.counts != "assumed":
            self.audit.require(answer.tokens == count, f"{name} has {answer.tokens} tokens, not {count}")
