"""Wraps a scheduler: every request that it leaves without a finished answer lands.

A landing asks for the final answer (`formats.landings`) after what was generated so far, which may be nothing. While
the answer itself may still continue, its latest landing is kept; it becomes the result if the answer never ends.

    while others generate      tokens for the landings to come are held back, as many as landings take on average
    nothing more is worth it   every request that waits lands, the most promising first
    tokens are left over       the scheduler continues with them, and the answers that it continued land again

A *probe* is a landing after which the answer may continue (`engine.probing`). The index sends one after a part of an
answer if it is worth its tokens. If it says that little is left to gain, the index of the request falls.

**Which requests land.** Those with a part of an answer. If probed traces show what an answer without reasoning is worth
(`market.anytime`), also those that would be declined. Requests whose answers cannot be continued do not land. An answer
that has stated its final answer, in a box that is closed, has landed at no cost. In reserved accounting an answer lands
as soon as it is cut at its grant. `extra["landing"]` of the result says where its landing begins.

A limit on an answer includes its landing; an answer with a very small limit does not land.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from shadowprice.backends.base import ended, join, opens_box
from shadowprice.engine.auto import Auto
from shadowprice.engine.metered import Metered
from shadowprice.engine.probing import Prober
from shadowprice.engine.reserved import Reserved
from shadowprice.engine.scheduler import CanContinue, Report, Round, Work
from shadowprice.formats.landings import Landing
from shadowprice.grading.answers import boxes
from shadowprice.market.anytime import Anytime
from shadowprice.types import Completion, Failure, Forecast, Outcome, Request, Result

_FEWEST_TOKENS = 3  # the smallest grant of a landing: a final answer has to be stated and to end
_USUAL_TOKENS = 8.0  # of a final answer, before any is known
_WEIGHT = 20  # an average from elsewhere counts as many landings
_MARGIN = 1.3  # on the tokens held back: the questions that are left to land are the hard ones


class _Landed(NamedTuple):
    """The latest landing of a request: the whole text, its grade, and where the landing begins."""

    answer: Completion
    correct: bool | None
    chars: int
    tokens: int


class Lander:
    """A scheduler that lands what `inner` leaves.

    can_continue  which answers can be continued from a part of them
    anytime       what landings are worth; None: unknown, so only requests with a part of an answer land
    """

    def __init__(
        self,
        inner: Metered | Reserved | Auto,
        landing: Landing,
        can_continue: CanContinue,
        anytime: Anytime | None = None,
    ) -> None:
        self.landing, self.anytime = landing, anytime
        self.rounds: list[Round] = inner.rounds
        self.probes = 0  # sent
        self._inner, self._can_continue = inner, can_continue
        self._closed = False
        self._busy = 0  # pieces of work of the inner scheduler in flight
        self._landing: set[int] = set()  # requests whose landings are in flight
        self._to_probe: deque[int] = deque()  # requests that the index holds
        self._probing: set[int] = set()  # requests whose probes are in flight
        self._landed: dict[int, _Landed] = {}
        self._cut: dict[int, Result] = {}  # results of the inner scheduler that wait to land
        self._done: set[int] = set()  # requests without a result that have landed since their last part
        self._excluded: set[int] = set()  # requests without a result whose answers cannot be continued
        self._unknown: list[int] = []  # requests for which that is unknown until the server is tried
        self._failures: dict[int, int] = {}
        self._queue: list[int] | None = None  # while everything lands: the requests that wait, the best last
        self._solve = 0.0  # the mean chance of a correct answer
        self._to_read = 0  # tokens that a landing reads on average: the prompt, and the answer before it
        self._tokens, self._count = _WEIGHT * (anytime.tokens if anytime else _USUAL_TOKENS), _WEIGHT
        self._prober: Prober | None = None
        if (index := self._index) is not None and anytime is not None and anytime.evidence is not None:
            self._prober = Prober(index, anytime)
            index.hold = self._is_to_probe

    @property
    def policy(self) -> str:
        return self._inner.policy

    @property
    def price(self) -> float | None:
        return self._inner.price

    def add(self, requests: Sequence[Request], forecast: Forecast) -> None:
        first = len(self._inner.batch)
        self._inner.add(requests, forecast)
        batch = self._inner.batch
        cap = batch.cap
        self._to_read = round(float(np.mean(np.array(batch.prompt) + batch.forecast.tokens))) if len(batch) else 0
        self._solve = float(batch.forecast.solve.mean()) if len(batch) else 0.0
        for place, request in enumerate(requests, start=first):
            continues = self._can_continue(request)
            if continues is False or cap[place] < 2 * self.landing.tokens:
                self._excluded.add(place)
                continue
            cap[place] -= self.landing.tokens
            if continues is None:
                self._unknown.append(place)

    def restore(self, place: int, state: Result | Completion, *, sample: int = 0, landing: bool = False) -> None:
        batch = self._inner.batch
        if isinstance(state, Result):
            self._inner.restore(place, state)
        elif landing:
            batch.paid(place, state)
            self._keep(place, state, None)
        elif isinstance(self._inner, Reserved) and not self._inner.metered:
            # In reserved accounting an answer is cut for good: all that is left to do is its landing.
            batch.paid(place, state)
            whole = join(self._answer(place), state)
            cut = Result(batch.requests[place].id, "truncated", batch.usage[place], batch.cost[place], whole)
            self._inner.restore(place, cut)
            self._cut[place] = cut
        else:
            self._inner.restore(place, state)
            self._done.discard(place)
            batch.cap[place] = max(batch.cap[place], batch.age(place))  # it may have been generated without landings

    def dropped(self, place: int, part: Completion) -> None:
        self._inner.dropped(place, part)

    def charged(self, costs: Mapping[int, int]) -> None:
        self._inner.charged(costs)

    def next(self, available: int, avoid: Collection[int] = ()) -> Work | None:
        if self._closed:
            return None
        if self._queue is None:
            if self._cut and (work := self._next_landing(available, avoid)):
                return work
            if avoid and not self._busy and (work := self._land_instead(available, avoid)):
                return work
            if work := self._next_probe(available, avoid) or self._continue(available, avoid):
                return work
            if self._busy:
                return None
            self._queue = self._waiting()
        if work := self._next_landing(available, avoid):
            return work
        if self._landing:
            return None
        self._queue = None  # everything has landed that can
        return self._continue(available, avoid)

    def done(self, report: Report) -> Result | None:
        place = report.work.place
        if report.work.suffix:
            return self._after_landing(place, report)
        self._busy -= 1
        result = self._inner.done(report)
        self._exclude(place)
        if result is not None and not self._is_to_land(place, result):
            stated = result.outcome == "truncated" and self._is_stated(result.completion)
            return self._result(place, result) if stated else self._ended(place, result)
        if result is not None:
            self._cut[place] = result
        elif report.completion is not None:
            self._done.discard(place)
        return None

    def close(self, stopped: str = "") -> Iterable[Result]:
        self._closed = True
        for place in [*self._cut]:
            cut = self._cut.pop(place)
            if stopped:  # the part of its answer is kept, and lands in a resumed run
                failure = Failure("not_sent", f"not sent: {stopped}")
                cut = replace(cut, outcome="not_sent", completion=None, failure=failure, correct=None)
            yield self._result(place, cut, lands=not stopped)
        batch = self._inner.batch
        places = [place for place, ended in enumerate(batch.ended) if not ended]
        # A resumed run continues what it can: not an answer that has landed at its limit.
        complete = {place for place in self._done if batch.age(place) >= batch.cap[place]}
        for place, result in zip(places, self._inner.close(stopped), strict=True):
            yield self._result(place, result, lands=not stopped or place in complete)

    # --- the inner scheduler -------------------------------------------------------------------

    @property
    def _index(self) -> Metered | None:
        """The inner scheduler if it serves by index."""
        inner = self._inner.index if isinstance(self._inner, Auto) else self._inner
        return inner if isinstance(inner, Metered) else None

    def _continue(self, available: int, avoid: Collection[int]) -> Work | None:
        free = available - self._held_back()
        work = self._inner.next(free, avoid) if free > 0 else None
        self._busy += work is not None
        return work

    def _held_back(self) -> int:
        """Units for the landings that are still to come, without those in flight."""
        batch = self._inner.batch
        requests = batch.unanswered - len(self._excluded)
        if self._index is not None and not self._worth_at_once():  # other policies divide the budget among all
            requests = min(requests, len(batch.so_far) + self._busy + 1)
        requests = max(0, requests + len(self._cut) - len(self._done) - len(self._landing))
        tokens = int(np.ceil(_MARGIN * requests * self._tokens / self._count))
        return batch.rates.bound(requests * self._to_read, tokens) if batch.rates.priced else tokens

    def _exclude(self, latest: int) -> None:
        """Excludes answers that the server turned out not to continue, including that of the latest request."""
        continues = [self._can_continue(self._inner.batch.requests[place]) for place in self._unknown[:1]]
        if continues and continues[0] is not None:
            ended, requests = self._inner.batch.ended, self._inner.batch.requests
            some = {place for place in self._unknown if self._can_continue(requests[place]) is False}
            self._excluded |= {place for place in some if not ended[place] or place == latest}
            self._unknown.clear()

    def _worth_at_once(self) -> bool:
        """Whether final answers without any reasoning are worth their tokens at the current price."""
        batch, curve = self._inner.batch, self.anytime
        if curve is None or not len(batch):
            return False
        chance = curve.shares[0] * self._solve
        return chance > 0 and chance >= (self.price or 0.0) * self._tokens / self._count

    def _is_to_land(self, place: int, result: Result) -> bool:
        cut = result.outcome == "truncated" and place not in self._excluded
        return cut and self._can_land(place, result.completion)

    def _can_land(self, place: int, answer: Completion | None) -> bool:
        """Whether the limit of an answer leaves room for a final answer, and none is stated yet."""
        return self._room(place, answer) >= _FEWEST_TOKENS and not self._is_stated(answer)

    def _room(self, place: int, answer: Completion | None) -> int:
        """The tokens that a final answer may have."""
        left = self._inner.batch.cap[place] + self.landing.tokens - (answer.tokens if answer else 0)
        return int(min(left, self.landing.tokens))

    # --- probes --------------------------------------------------------------------------------

    def _is_to_probe(self, place: int) -> bool:
        """Whether a request whose answer has a new part is probed before it is continued."""
        assert self._prober is not None
        can_land = place not in self._excluded and self._can_land(place, self._answer(place))
        worth = can_land and self._prober.is_worth(place, self._tokens / self._count)
        if worth:
            self._to_probe.append(place)
        return worth

    def _next_probe(self, available: int, avoid: Collection[int]) -> Work | None:
        while self._to_probe:
            place = self._to_probe.popleft()
            if place not in avoid and (work := self._work(place, available - self._held_back())):
                self._landing.add(place)
                self._probing.add(place)
                self._busy += 1
                self.probes += 1
                return work
            self._release(place)
        return None

    def _release(self, place: int) -> None:
        """Lets the index continue a request that it held."""
        if (index := self._index) is not None:
            index.release(place)

    # --- landings ------------------------------------------------------------------------------

    def _waiting(self) -> list[int]:
        """The requests that land, the most promising last."""
        batch, curve = self._inner.batch, self.anytime
        places = [
            place
            for place, ended in enumerate(batch.ended)
            if not (ended or place in self._done or place in self._excluded or place in self._landing)
            and self._can_land(place, batch.so_far.get(place))
        ]
        if curve is None or not self._worth_at_once():
            places = [place for place in places if place in batch.so_far]
        if curve is None or not places:
            return places[::-1]
        some, age = batch.forecast.take(places), np.array([batch.age(place) for place in places])
        return [places[i] for i in np.argsort(some.solve * curve.share(some, age), kind="stable")]

    def _next_landing(self, available: int, avoid: Collection[int]) -> Work | None:
        queue = [place for place in self._cut if place not in self._landing] or self._queue
        if not queue:
            return None
        last = len(queue) - 1
        at = next((i for i in range(last, -1, -1) if queue[i] not in avoid), last)
        work = self._work(queue[at], available)
        if work is not None:
            self._landing.add(queue[at])
            if queue is self._queue:
                del queue[at]
        return work

    def _land_instead(self, available: int, avoid: Collection[int]) -> Work | None:
        """In an outage the requests that failed are tried in turn. Those at their limit can only land: tries one."""
        batch = self._inner.batch
        for place in self._waiting():
            at_cap = batch.age(place) >= batch.cap[place]
            if at_cap and place not in avoid and (work := self._work(place, available)):
                self._landing.add(place)
                return work
        return None

    def _work(self, place: int, available: int) -> Work | None:
        batch, so_far = self._inner.batch, self._answer(place)
        age = so_far.tokens if so_far else 0
        grant = self._room(place, so_far)
        if batch.rates.priced:
            grant = min(grant, batch.rates.limit(batch.prompt[place] + age, available))
        else:
            grant = min(grant, available)
        if grant < _FEWEST_TOKENS:
            return None
        return batch.work(place, grant, so_far=so_far, suffix=self.landing.text)

    def _after_landing(self, place: int, report: Report) -> Result | None:
        self._landing.remove(place)
        batch = self._inner.batch
        batch.cost[place] += report.cost
        if report.completion is not None:
            batch.usage[place] += report.completion.usage
            self._keep(place, report.completion, report.correct)
        if place in self._probing:
            self._probing.remove(place)
            self._busy -= 1
            self._release(place)
        elif report.completion is None:
            self._failures[place] = self._failures.get(place, 0) + report.attempts
            if report.postponed and self._failures[place] < batch.attempts:
                if self._queue is not None and place not in self._cut:
                    self._queue.insert(0, place)
                return None
            self._done.add(place)
        return self._result(place, self._cut.pop(place)) if place in self._cut else None

    def _keep(self, place: int, landing: Completion, correct: bool | None) -> None:
        self._tokens += landing.tokens
        self._count += 1
        before = self._answer(place)
        whole = join(before, landing, self.landing.text)
        self._landed[place] = _Landed(whole, correct, *((len(before.text), before.tokens) if before else (0, 0)))
        self._done.add(place)
        if self._prober is not None:
            stated = landing.text.strip() if landing.finish == "stop" else None
            self._prober.learn(place, self._landed[place].tokens, stated)

    def _answer(self, place: int) -> Completion | None:
        """What was generated of an answer, without its landing."""
        return self._cut[place].completion if place in self._cut else self._inner.batch.so_far.get(place)

    def _is_stated(self, answer: Completion | None) -> bool:
        """Whether the text already states the final answer."""
        return answer is not None and opens_box(self.landing.text) and boxes(answer.text) is not None

    def _result(self, place: int, result: Result, *, lands: bool = True) -> Result:
        """The result of a request whose answer did not end: its landing, if it has one."""
        landed, batch = self._landed.get(place), self._inner.batch
        self._forget(place)
        result = replace(result, usage=batch.usage[place], cost=batch.cost[place])
        if not lands:
            return result
        if result.completion is not None and self._is_stated(result.completion):
            return replace(result, outcome="landed", completion=ended(result.completion), correct=None)
        if landed is None:
            return result
        outcome: Outcome = "landed" if landed.answer.finish == "stop" else "truncated"
        return replace(
            result,
            outcome=outcome,
            completion=landed.answer,
            failure=None,
            correct=landed.correct,
            extra={**result.extra, "landing": {"from": landed.chars, "age": landed.tokens}},
        )

    def _ended(self, place: int, result: Result) -> Result:
        self._forget(place)
        return result

    def _forget(self, place: int) -> None:
        self._landed.pop(place, None)
        self._done.discard(place)
        self._excluded.discard(place)
        if self._prober is not None:
            self._prober.forget(place)
