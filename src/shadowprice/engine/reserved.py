"""Clearing in rounds: a policy divides the budget, grants are hard limits, what is not used is divided again.

    reserved accounting     an answer that is cut at its grant is cut for good. With `reclaim` what others left
                            unused is offered to those that were declined, until nobody can pay.
    metered accounting      an answer that is cut at its grant waits, and continues where it stopped if a later
                            round grants it more; the policy is given what is still expected of it.

The paper's CLEAR is policy `clear` without reclaim: one clearing, once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadowprice.backends.base import join
from shadowprice.cost import TOKENS, Rates
from shadowprice.engine.prompts import with_limit
from shadowprice.engine.scheduler import TRIAL, Batch, CanContinue, Report, Round, Work, is_over, start_over
from shadowprice.forecast.conditional import remaining
from shadowprice.market import allocate
from shadowprice.types import Allocation, Completion, Forecast, Request, Result


class _Turn(NamedTuple):
    """A request that was granted tokens and has not been sent."""

    request: int
    grant: int
    sample: int = 0


class Reserved:
    """Every policy of `market.POLICIES`, in rounds.

    policy, options  who gets what
    reclaim          clear again for what was not used
    max_tokens       no answer gets more; several samples may have as much each
    samples          answers that a request may have from its grant, one after the other; one that is correct
                     stops the rest, otherwise the first that came to its end is taken, else the last
    can_continue     makes the accounting metered: which answers can be continued from a part of them
    announce         tells the model its limit, in the prompt (TALE)
    """

    def __init__(
        self,
        policy: str = "expected",
        *,
        options: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
        reclaim: bool = True,
        samples: int = 1,
        can_continue: CanContinue | None = None,
        announce: bool = False,
        attempts: int = 4,
        rates: Rates = TOKENS,
    ) -> None:
        self.policy, self.options = policy, dict(options or {})
        self.reclaim, self.samples, self.announce = reclaim, samples, announce
        self.rounds: list[Round] = []
        self._can_continue = can_continue
        self._batch = Batch(max_tokens, attempts, rates, samples)
        self._queue: deque[_Turn] = deque()
        self._running = 0
        self._cleared = False
        self._trial: _Turn | None = None  # under way to show whether the server continues; its grant is the rest
        self._best: dict[int, tuple[Completion, bool | None]] = {}  # of several samples
        self._left: dict[int, int] = {}  # of the grant of each request, before the sample under way

    @property
    def metered(self) -> bool:
        """Whether answers that are cut continue later."""
        return self._can_continue is not None

    @property
    def price(self) -> float | None:
        return self.rounds[-1].price if self.rounds else None

    def add(self, requests: Sequence[Request], forecast: Forecast) -> None:
        self._batch.add(requests, forecast)

    def restore(self, index: int, state: Result | Completion, *, sample: int = 0, landing: bool = False) -> None:
        if isinstance(state, Result) or self._can_continue is not None:
            self._batch.restore(index, state)

    def next(self, available: int) -> Work | None:
        if not self._queue and not self._running:
            self._clear(available)
        if not self._queue or (self._trial and self._unknown(self._queue[0].request)):
            return None
        turn = self._queue[0]
        work = self._work(turn)
        if work.bound > available:  # a server generated more than it was granted: clear again for what is left
            self._queue.clear()
            return None if self._running or not self.reclaim else self.next(available)
        self._queue.popleft()
        self._running += 1
        if work.grant < turn.grant and self.samples == 1:
            self._trial = turn._replace(grant=turn.grant - work.grant)
        self._left[turn.request] = turn.grant
        return work

    def done(self, report: Report) -> Result | None:
        self._running -= 1
        index = report.work.place
        rest, self._trial = (self._trial, None) if self._trial and self._trial.request == index else (None, self._trial)
        batch = self._batch
        batch.charge(report)
        if self.samples > 1:
            return self._sampled(report)
        if report.completion is None:
            if start_over(report.error, batch.so_far.get(index)):
                del batch.so_far[index]
                return None
            return batch.failed(index) if batch.gives_up(index) else None
        answer = join(report.work.so_far, report.completion)
        over = is_over(report.completion, report.work.grant, answer.tokens, batch.cap[index])
        if over or not self._may_continue(index):
            return batch.answered(index, answer, report.correct)
        batch.so_far[index] = answer
        if rest:
            self._queue.appendleft(rest)
        return None

    def close(self, stopped: str = "") -> Iterable[Result]:
        return self._batch.left(self.price, stopped)

    # --- a round -------------------------------------------------------------------------------

    def _clear(self, available: int) -> None:
        """Whoever has no result competes for what is left."""
        batch = self._batch
        waiting = [place for place, ended in enumerate(batch.ended) if not ended]
        age = np.array([batch.age(place) for place in waiting], dtype=np.int64)
        grants = self.decide(waiting, age, available)
        self._queue.extend(_Turn(place, grant) for place, grant in zip(waiting, grants.tolist(), strict=True) if grant)

    def decide(self, waiting: Sequence[int], age: NDArray[np.int64], available: int) -> NDArray[np.int64]:
        """A round: tokens for each of those who wait, having generated `age` tokens; 0 for all where none is left."""
        if (self._cleared and not self.reclaim) or not len(waiting) or available <= 0:
            return np.zeros(len(waiting), dtype=np.int64)
        self._cleared = True
        batch = self._batch
        forecast = batch.forecast.take(waiting)
        if age.any():
            forecast = remaining(forecast, age)
        decided, grants = self._allocate(forecast, batch.cap[waiting] - age, waiting, available)
        if grants.any():
            admitted, granted = int(np.count_nonzero(grants)), int(grants.sum())
            if batch.rates.money:
                bounds = (self._work(_Turn(place, grant)).bound for place, grant in zip(waiting, grants, strict=True))
                granted = sum(bound for bound, grant in zip(bounds, grants, strict=True) if grant)
            self.rounds.append(Round(available, len(waiting), admitted, granted, decided.price, decided.status))
        return grants

    def _allocate(
        self, forecast: Forecast, room: NDArray[np.float64], waiting: Sequence[int], available: int
    ) -> tuple[Allocation, NDArray[np.int64]]:
        """Whole tokens for each. Money is divided in output tokens, of which reading the prompt takes the first."""
        rates = self._batch.rates
        if not rates.money:
            decided = allocate(forecast, available, self.policy, max_tokens=room, **self.options)
            return decided, decided.tokens
        entry = np.ceil(self._batch.entry(waiting))
        tokens = max(0, available - len(waiting)) * 10**6 // rates.output  # every cost is rounded up by less than 1
        decided = allocate(forecast.shifted(entry), tokens, self.policy, max_tokens=room + entry, **self.options)
        return decided, np.maximum(0, decided.tokens - entry.astype(np.int64))

    def _work(self, turn: _Turn) -> Work:
        batch = self._batch
        grant = min(turn.grant, TRIAL) if self._unknown(turn.request) else turn.grant
        if self.samples > 1:
            grant = int(min(grant, batch.cap[turn.request] // self.samples))
        body = batch.requests[turn.request].body
        if self.announce:
            body = with_limit(body, grant)
        if self.samples > 1:
            body = {**body, "seed": turn.sample}
        return batch.work(turn.request, grant, body, batch.so_far.get(turn.request), sample=turn.sample)

    def _unknown(self, index: int) -> bool:
        return self._can_continue is not None and self._can_continue(self._batch.requests[index]) is None

    def _may_continue(self, index: int) -> bool:
        return self._can_continue is not None and self._can_continue(self._batch.requests[index]) is not False

    # --- several samples -----------------------------------------------------------------------

    def _sampled(self, report: Report) -> Result | None:
        """The next sample from what is left of the grant, or the best of them."""
        batch, work, found = self._batch, report.work, report.completion
        best = self._best.get(work.place)
        if found is None and best is None:
            return batch.failed(work.place) if batch.gives_up(work.place) else None
        if found is not None:
            better = best is None or (best[0].finish == "length" and found.finish == "stop")
            if better or report.correct:
                best = self._best[work.place] = (found, report.correct)
            left = self._left[work.place] - found.tokens
            if left > 0 and not report.correct and work.sample + 1 < self.samples:
                self._queue.appendleft(_Turn(work.place, left, work.sample + 1))
                return None
        assert best is not None
        return batch.answered(work.place, *self._best.pop(work.place))
