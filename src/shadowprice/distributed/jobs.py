"""A job: requests in blocks, a budget, workers with a backend each, and one ledger."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shadowprice.accounts.sqlite import Ledger
from shadowprice.accounts.view import LEDGER
from shadowprice.backends.base import Backend
from shadowprice.distributed.actors import start_coordinator, start_workers
from shadowprice.distributed.cluster import load_ray, plain_errors
from shadowprice.distributed.demand import Gathered, Sharded
from shadowprice.distributed.metered import HALVES, MOST_ROUNDS, Rounded, allowances
from shadowprice.distributed.prepared import Table
from shadowprice.distributed.worker import ENDED, Served, Terms
from shadowprice.engine.executor import Progress
from shadowprice.engine.scheduler import Round
from shadowprice.run_folder import RunFolder

_TICK = 1.0  # seconds between two looks at the progress
_MOST_ROUNDS = 20  # clearings: each later one divides what is left among requests that were declined
INTERRUPTED = "interrupted"


@dataclass
class Job:
    """One job on one folder.

    workers      processes that send requests, `concurrency` each at the same time
    make_backend makes the backend of a worker, in its process
    reclaim      divide what was not used among declined requests, in further rounds
    options      of the policy; `actor_options` those of the workers in Ray, such as {"num_gpus": 1}
    """

    table: Table
    market: Gathered | Sharded
    budget: int
    folder: RunFolder
    make_backend: Callable[[], Backend]
    workers: int
    terms: Terms
    policy: str = "expected"
    options: Mapping[str, Any] = field(default_factory=dict)
    reclaim: bool = True
    actor_options: dict[str, Any] = field(default_factory=dict)
    on_event: Callable[[Progress], None] = lambda progress: None
    rounds: list[Round] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    stopped: str = ""

    def run(self) -> None:
        """Serves everything that the budget buys; the ledger has the results."""
        ray = load_ray()
        ledger = self.folder.ledger
        since = ledger.last
        ended = self._ended_before(ledger)
        available = ledger.available
        ledger.close()
        options = {"since": since, "exposure": self.terms.tolerance.exposure, "rates": self.terms.rates}
        self.coordinator = start_coordinator(self.folder.path / LEDGER, options)
        workers = min(self.workers, len(self.table.blocks))
        self.actors = start_workers(workers, self.make_backend, self.coordinator, self.terms, self.actor_options)
        try:
            if self.policy == "index":
                self._run_metered(available)
                return
            for _ in range(_MOST_ROUNDS if self.reclaim else 1):
                if self.stopped or available <= 0 or all(block.all() for block in ended):
                    break
                with plain_errors():
                    grants, cleared = self.market.divide(available, self.policy, self.options, ended)
                if not any(block.any() for block in grants):
                    break
                self.rounds.append(cleared)
                before = sum(int(block.sum()) for block in ended)
                self._serve(grants, ended)
                available = ray.get(self.coordinator.charge_lost.remote()).available
                if sum(int(block.sum()) for block in ended) == before:
                    break
        finally:
            with contextlib.suppress(Exception):
                ray.get(self.coordinator.close.remote(), timeout=60)
            for actor in (*self.actors, self.coordinator):
                ray.kill(actor)

    def _ended_before(self, ledger: Ledger) -> list[NDArray[np.bool_]]:
        """Requests that an earlier job answered or paid for."""
        paid = {entry.request for entry in ledger.entries() if entry.reservation is not None and entry.units}
        if not paid and not any(ledger.results()):
            return [np.zeros(size, dtype=bool) for size in self.table.rows]
        return [
            np.array([name in paid or ledger.has_result(name) for name in names], dtype=bool)
            for names, _ in self.table.named()
        ]

    def _serve(self, grants: Sequence[NDArray[np.int64]], ended: list[NDArray[np.bool_]]) -> None:
        """Gives every worker a block, and the next one when it is done with it."""
        ray = load_ray()
        todo = [at for at, block in enumerate(grants) if block.any()][::-1]
        busy: dict[Any, tuple[Any, int]] = {}
        idle = [*self.actors]
        while busy or (todo and not self.stopped):
            while idle and todo and not self.stopped:
                actor, at = idle.pop(), todo.pop()
                busy[actor.serve.remote(self.table.blocks[at], grants[at], False)] = actor, at
            try:
                done, _ = ray.wait([*busy], timeout=_TICK)
            except KeyboardInterrupt:
                if self.stopped:
                    raise
                self._stop(INTERRUPTED)
                continue
            for task in done:
                actor, at = busy.pop(task)
                idle.append(actor)
                try:
                    with plain_errors():
                        self._note(ray.get(task), ended[at])
                except ray.exceptions.RayActorError:  # even after restarts: its node is lost, for one
                    idle.remove(actor)
                    (new,) = start_workers(1, self.make_backend, self.coordinator, self.terms, self.actor_options)
                    self.actors[self.actors.index(actor)] = new
                    busy[new.serve.remote(self.table.blocks[at], grants[at], True)] = new, at
                except Exception as error:  # a fault of this package or of a backend: the rows keep their state
                    self._stop(" ".join(f"{type(error).__name__}: {error}".split())[:300])
            self._tell(len(busy) * self.terms.concurrency)

    def _run_metered(self, available: int) -> None:
        """Rounds of metered accounting: every worker has a share of the blocks, and an allowance for each round."""
        ray, rates = load_ray(), self.terms.rates
        ended = self._round([0] * len(self.actors))
        for number in range(MOST_ROUNDS):
            if self.stopped or available <= 0:
                break
            units = available // 2 if number < HALVES else available
            tokens = available if not rates.priced else available * 10**6 // rates.output
            price, shares = allowances([rounded.demand for rounded in ended], units, tokens)
            waiting = sum(rounded.waiting for rounded in ended)
            self.rounds.append(Round(available, waiting, waiting, units, price, "metered"))
            ended = self._round(shares)
            available = ray.get(self.coordinator.charge_lost.remote()).available
            if not any(rounded.spent for rounded in ended) and number >= HALVES:
                break
        self._round([0] * len(self.actors), last=True)

    def _round(self, shares: Sequence[int], *, last: bool = False) -> list[Rounded]:
        ray = load_ray()
        blocks = [self.table.blocks[at :: len(self.actors)] for at in range(len(self.actors))]
        tasks = [
            actor.round.remote(units, last, *own) for actor, units, own in zip(self.actors, shares, blocks, strict=True)
        ]
        waiting = tasks
        while waiting:
            try:
                _, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=_TICK)
            except KeyboardInterrupt:
                if self.stopped:
                    raise
                self._stop(INTERRUPTED)
            self._tell(len(waiting) * self.terms.concurrency)
        with plain_errors():
            ended: list[Rounded] = ray.get(tasks)
        for rounded in ended:
            self.outcomes.update(rounded.outcomes)
            if rounded.stopped:
                self._stop(rounded.stopped)
        return ended

    def _note(self, served: Served, ended: NDArray[np.bool_]) -> None:
        ended |= served.state == ENDED
        self.outcomes.update(served.outcomes)
        if served.stopped:
            self._stop(served.stopped)

    def _stop(self, reason: str) -> None:
        if not self.stopped:
            self.stopped = reason
            self.coordinator.stop.remote(reason)

    def _tell(self, running: int) -> None:
        ray = load_ray()
        if self.stopped:  # again, in case it was started again meanwhile
            self.coordinator.stop.remote(self.stopped)
        try:
            balance = ray.get(self.coordinator.balance.remote(), timeout=_TICK)
        except Exception:  # it is being started again
            return
        price = self.rounds[-1].price if self.rounds else None
        self.on_event(
            Progress(
                balance.budget,
                balance.spent,
                balance.usage.output,
                price,
                len(self.rounds),
                running,
                self.outcomes.copy(),
                stopped=self.stopped,
            )
        )
