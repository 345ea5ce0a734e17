"""Clearing in rounds: a policy divides the budget, grants are hard limits, and what is not used is divided again.

    reserved accounting     an answer that is cut at its grant is not continued. With `reclaim`, what others did
                            not use is offered to declined requests, until none can pay.
    metered accounting      an answer that is cut at its grant waits, and continues where it stopped if a later
                            round grants it more; the policy gets the forecast of what is left of it.

The paper's CLEAR is policy `clear` without reclaim: one clearing, once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadowprice.backends.base import join
from shadowprice.cost import TOKENS, Rates
from shadowprice.engine.metered import Metered
from shadowprice.engine.prompts import with_limit
from shadowprice.engine.scheduler import LARGEST_CHUNK, TRIAL, Batch, CanContinue, Report, Round, Work, flagged, is_over
from shadowprice.forecast.conditional import remaining
from shadowprice.market.policies import serve_rest
from shadowprice.market.priced import allocate_units
from shadowprice.types import Allocation, Completion, Forecast, Request, Result

_MARGIN = 4.0  # times the median: few answers are longer


class _Turn(NamedTuple):
    """A request that was granted tokens and has not been sent."""

    place: int
    grant: int
    sample: int = 0


class _Best(NamedTuple):
    """The best of the samples that a request has had."""

    answer: Completion
    correct: bool | None
    samples: int


class Reserved:
    """Every policy of `market.POLICIES`, in rounds.

    policy, options  how the budget is divided
    reclaim          clear again with what was not used
    max_tokens       the most tokens that an answer may get; with several samples, each of them
    samples          the most answers that a request may have from its grant, one after the other. A correct one ends
                     the request; without one, the first that finished is used, or else the first
    can_continue     which answers can be continued from a part of them; if given, the accounting is metered
    announce         state the limit in the prompt (TALE)
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
        self.first_round: Allocation | None = None  # if the caller has already cleared this market
        self._batch = Batch(max_tokens, attempts, rates, samples, can_continue)
        self._queue: deque[_Turn] = deque()
        self._running = 0
        self._cleared = False
        self._trial: int | None = None  # the request that shows whether the server continues
        self._best: dict[int, _Best] = {}  # of several samples
        self._left: dict[int, int] = {}  # of the grant of each request, before the piece or sample in flight

    @property
    def batch(self) -> Batch:
        """The requests and the state of each."""
        return self._batch

    @property
    def metered(self) -> bool:
        """Whether answers that were cut are continued later."""
        return self._batch.can_continue is not None

    @property
    def price(self) -> float | None:
        return self.rounds[-1].price if self.rounds else None

    def add(self, requests: Sequence[Request], forecast: Forecast) -> None:
        self._batch.add(requests, forecast)

    def adopt(self, other: Metered) -> None:
        """Takes over the requests of another scheduler, none of which may be in flight."""
        self._batch = other.batch
        self._batch.can_continue = None
        self.rounds = other.rounds

    def restore(self, place: int, state: Result | Completion, *, sample: int = 0, landing: bool = False) -> None:
        if isinstance(state, Result) or self.samples == 1:
            self._batch.restore(place, state)
        else:
            self._batch.paid(place, state)
            self._keep_best(place, state, None, sample)

    def dropped(self, place: int, part: Completion) -> None:
        self._batch.dropped(place, part)

    def charged(self, costs: Mapping[int, int]) -> None:
        self._batch.charged(costs)

    def next(self, available: int, avoid: Collection[int] = ()) -> Work | None:
        if not self._running and all(turn.place in avoid for turn in self._queue) and self._others_wait():
            self._queue.clear()
            self._clear(available)
        if avoid:
            self._queue = deque(sorted(self._queue, key=lambda turn: turn.place in avoid))
        while self._queue:
            turn = self._queue[0]
            unknown = self._batch.continues(turn.place) is None
            if unknown and self._trial is not None:
                return None
            work = self._work(turn)
            if work.bound <= available:
                self._queue.popleft()
                self._running += 1
                self._left[turn.place] = turn.grant
                if unknown and (work.so_far or work.grant < turn.grant):
                    self._trial = turn.place
                return work
            # Not affordable, because a server generated more than its grant.
            if self._running:
                return None
            if self.reclaim:
                self._queue.clear()
                self._clear(available)
            else:
                self._queue.popleft()
        return None

    def done(self, report: Report) -> Result | None:
        self._running -= 1
        batch, place = self._batch, report.work.place
        if self._trial == place:
            self._trial = None
        batch.charge(report)
        if batch.is_postponed(report):
            self._queue.append(_Turn(place, self._left[place], report.work.sample))
            return None
        if self.samples > 1:
            return self._sampled(report)
        if report.completion is None:
            return batch.after_error(place)
        answer = join(report.work.so_far, report.completion)
        over = is_over(report.completion, report.work.grant, answer.tokens, batch.cap[place])
        if over or batch.continues(place) is False:
            return batch.answered(place, answer, report.correct)
        batch.so_far[place] = answer
        rest = int(min(self._left[place] - report.work.grant, batch.cap[place] - answer.tokens))
        if rest > 0:
            self._queue.appendleft(_Turn(place, rest))
        return None

    def close(self, stopped: str = "") -> Iterable[Result]:
        if not stopped:
            for place in [*self._best]:
                yield self._chosen(place)
        yield from self._batch.left(self.price, stopped)

    # --- a round -------------------------------------------------------------------------------

    def _others_wait(self) -> bool:
        """Whether the round is over, or can be ended for requests that were granted nothing in it."""
        return not self._queue or (self.reclaim and self._batch.unanswered > len(self._queue))

    def _clear(self, available: int) -> None:
        """Divides what is left among the requests without a result."""
        batch = self._batch
        for place in [place for place in batch.so_far if batch.is_stuck(place)]:
            batch.start_over(place)
        stuck = {place for place in batch.so_far if batch.is_stuck(place)}
        stuck |= {place for place, best in self._best.items() if best.samples >= self.samples}
        waiting = [place for place, ended in enumerate(batch.ended) if not ended and place not in stuck]
        age = np.array([batch.age(place) for place in waiting], dtype=np.int64)
        grants = self.decide(waiting, age, available)
        for place, grant in zip(waiting, grants.tolist(), strict=True):
            if grant:
                self._queue.append(_Turn(place, grant, self._samples_of(place)))

    def decide(self, waiting: Sequence[int], age: NDArray[np.int64], available: int) -> NDArray[np.int64]:
        """A round: grants for the `waiting` requests, which have generated `age` tokens; all 0 if there are none."""
        if (self._cleared and not self.reclaim) or not len(waiting) or available <= 0:
            return np.zeros(len(waiting), dtype=np.int64)
        batch = self._batch
        room = batch.cap[waiting] - age
        if self._best:
            room *= [1 - self._samples_of(place) / self.samples for place in waiting]
        room = np.round(room)
        if self.first_round is not None and not self._cleared:
            decided, grants = self.first_round, self.first_round.tokens
        else:
            forecast = batch.forecast.take(waiting)
            if age.any() and self.policy != "uniform":  # it does not look at forecasts
                forecast = remaining(forecast, age)
            decided, grants = allocate_units(
                forecast, available, self.policy, room, batch.entry(waiting), batch.rates, **self.options
            )
        self._cleared = True
        if self.reclaim and not grants.any():
            grants = self._leftovers(waiting, age, room, available)
        elif not self.reclaim and "lengths" not in self.options:  # policies that know the lengths decline on purpose
            costs = room
            if batch.rates.priced:
                costs = np.array([self._cost([place], room[i : i + 1]) for i, place in enumerate(waiting)])
            grants = serve_rest(grants, room, costs, available - self._cost(waiting, grants))
        if grants.any():
            admitted, granted = int(np.count_nonzero(grants)), int(self._cost(waiting, grants))
            self.rounds.append(Round(available, len(waiting), admitted, granted, decided.price, decided.status))
        return grants

    def _leftovers(
        self, waiting: Sequence[int], age: NDArray[np.int64], room: NDArray[np.float64], available: int
    ) -> NDArray[np.int64]:
        """Grants if the market admits no request: no budget stays idle while requests wait.

        Every request gets its cap, if that is affordable. If not, the shortest forecasts are served, with a margin; the
        first of them also without the margin, if what is left is enough for its forecast or its cap.
        """
        batch = self._batch
        if self._cost(waiting, room) <= available:
            return room.astype(np.int64)
        grants = np.zeros(len(waiting), dtype=np.int64)
        # An answer that is longer than its forecast is expected to double its length.
        tokens = np.maximum(batch.forecast.tokens[np.asarray(waiting)], age)
        wanted = np.maximum(1, np.minimum(room, np.ceil(_MARGIN * tokens)))
        for at in np.argsort(tokens, kind="stable").tolist():
            if room[at] < 1:
                continue
            grant = min(int(wanted[at]), batch.affordable(waiting[at], available))
            if grant < (wanted[at] if grants.any() else min(room[at], tokens[at])):
                break
            grants[at] = grant
            available -= batch.rates.bound(batch.prompt[waiting[at]] + batch.age(waiting[at]), grant)
        return grants

    def _cost(self, places: Sequence[int], grants: NDArray[Any]) -> float:
        """The most units that these grants can cost together; infinite if one of them is."""
        batch, total = self._batch, float(grants.sum())
        if not batch.rates.priced or total == np.inf:
            return total
        each = zip(places, grants.tolist(), strict=True)
        return sum(
            batch.rates.bound(batch.prompt[place] + batch.age(place), int(grant)) for place, grant in each if grant
        )

    def _work(self, turn: _Turn) -> Work:
        batch, grant = self._batch, turn.grant
        so_far = batch.so_far.get(turn.place)
        continues = batch.continues(turn.place)
        if continues is None:  # one of two pieces that show whether the server continues
            grant = min(TRIAL, grant if so_far else -(-grant // 2))
        elif continues and not batch.rates.priced:
            grant = min(grant, LARGEST_CHUNK)
        if self.samples > 1:
            grant = int(min(grant, batch.cap[turn.place] / self.samples))
        body = batch.requests[turn.place].body
        if self.announce:
            # All parts of an answer get the same prompt: it states the limit of all of them together.
            body = with_limit(body, grant if self.samples > 1 else batch.age(turn.place) + turn.grant)
        if self.samples > 1:
            body = {**body, "seed": turn.sample}
        return batch.work(turn.place, grant, body, so_far, sample=turn.sample)

    # --- several samples -----------------------------------------------------------------------

    def _sampled(self, report: Report) -> Result | None:
        """Queues the next sample from what is left of the grant; if there is none, the best sample is the result."""
        place, sample, answer = report.work.place, report.work.sample, report.completion
        if answer is None:
            return self._chosen(place) if place in self._best else self._batch.after_error(place)
        self._keep_best(place, answer, report.correct, sample)
        left = self._left[place] - answer.tokens - int(np.ceil(self._batch.entry([place])[0]))
        # A whole answer that nobody grades is as good as any other.
        again = not report.correct if report.correct is not None else answer.finish == "length"
        if left > 0 and again and sample + 1 < self.samples:
            self._queue.appendleft(_Turn(place, left, sample + 1))
            return None
        return self._chosen(place)

    def _keep_best(self, place: int, answer: Completion, correct: bool | None, sample: int) -> None:
        """Keeps the better answer, with the flags of all samples."""
        best = self._best.get(place)
        if best is None:
            self._best[place] = _Best(answer, correct, sample + 1)
            return
        flags = (*best.answer.flags, *answer.flags)
        if not correct and (best.answer.finish != "length" or answer.finish != "stop"):
            answer, correct = best.answer, best.correct
        self._best[place] = _Best(flagged(answer, *flags), correct, sample + 1)

    def _samples_of(self, place: int) -> int:
        best = self._best.get(place)
        return best.samples if best else 0

    def _chosen(self, place: int) -> Result:
        best = self._best.pop(place)
        return self._batch.answered(place, best.answer, best.correct)
