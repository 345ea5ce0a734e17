"""The protocol of a scheduler: it decides which request generates next, and does no I/O.

It never waits, reads a clock or touches a disk. `execute` drives a scheduler with a real backend, `simulate` drives the
same object over recorded answers:

    while work := scheduler.next(available):     what to send now, with the units to reserve for it
        result = scheduler.done(report)          its result, or None: the request waits again
    scheduler.close()                            nothing more will be sent: the results of the rest

`next` returns None if nothing is worth its price now. While work is in flight, that may change with the next `done`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from shadowprice.arrays import Array
from shadowprice.backends.base import join
from shadowprice.cost import TOKENS, Rates, prompt_bound
from shadowprice.errors import BackendError, LimitViolated, Refused
from shadowprice.formats.declined import declined
from shadowprice.types import Completion, Failure, Forecast, Outcome, Request, Result, Usage

LARGEST_CHUNK = 256  # tokens of an answer that can be continued: a crash loses no more than that
TRIAL = 8  # tokens of each of the two pieces that show whether a server continues a part of an answer


class Work(NamedTuple):
    """A piece of work: something to send.

    place    the number of the request, in the order in which requests were added
    grant    the most tokens that it may generate
    bound    the most units that it can cost, to be reserved before it is sent
    body     what is sent: the request's own body, unless the scheduler adds to it
    so_far   the part of the answer to continue from
    suffix   text to continue with, after `so_far`: asks for the final answer
    sample   the number of the sample, from 0
    probe    the answer to the suffix is not an answer to the request, and is not graded
    route    the name of the route that answers; empty if there is only one
    """

    place: int
    request: Request
    grant: int
    bound: int
    body: Mapping[str, Any]
    so_far: Completion | None = None
    suffix: str = ""
    sample: int = 0
    probe: bool = False
    route: str = ""


class Report(NamedTuple):
    """The outcome of a piece of work: a completion or an error, its cost, and the number of attempts.

    vote       the final answer, in one form for all answers that agree; None: it has none, or nobody asked
    attempts   without those made while the server was known to be down
    postponed  nothing was generated because of an outage: the same work is sent again unless its attempts are used up
    """

    work: Work
    cost: int
    completion: Completion | None = None
    error: BackendError | None = None
    attempts: int = 1
    correct: bool | None = None
    postponed: bool = False
    vote: str | None = None


@dataclass(frozen=True)
class Round:
    """One clearing: `admitted` of `queries` waiting requests are granted `granted` units of the `budget` left."""

    budget: int
    queries: int
    admitted: int
    granted: int
    price: float | None
    status: str | None


# Says whether the answer to a request can be continued from a part of it; None: unknown until it is tried.
CanContinue: TypeAlias = Callable[[Request], "bool | None"]


class Scheduler(Protocol):
    """`rounds` are all clearings so far, `price` is that of the latest."""

    rounds: list[Round]

    @property
    def price(self) -> float | None: ...

    def add(self, requests: Sequence[Request], forecast: Forecast) -> None:
        """Adds requests, with a forecast for each; at any time."""
        ...

    def restore(self, place: int, state: Result | Completion, *, sample: int = 0, landing: bool = False) -> None:
        """Restores what an earlier execution left of a request: its result, or one more part of its answer."""
        ...

    def dropped(self, place: int, part: Completion) -> None:
        """Takes a part that an earlier execution paid for and dropped: its answer was begun again."""
        ...

    def charged(self, costs: Mapping[int, int]) -> None:
        """Takes what earlier executions were charged for requests without a result, including failed attempts."""
        ...

    def next(self, available: int, avoid: Collection[int] = ()) -> Work | None:
        """What to send now, for at most `available` units; None: nothing until the next `done`.

        Requests at the places in `avoid` have just failed: others come before them.
        """
        ...

    def done(self, report: Report) -> Result | None:
        """Takes the outcome of a piece of work. Returns the result of its request, or None if that waits again."""
        ...

    def close(self, stopped: str = "") -> Iterable[Result]:
        """The results of all requests that have none yet. `stopped` is why the execution stopped early, if it did.

        Parts of answers become truncated answers, unless it was stopped: a resumed run continues them.
        """
        ...


class Feed(Protocol):
    """Adds requests to the scheduler during an execution. Sets `wake` after each addition and when it ends."""

    wake: asyncio.Event

    @property
    def open(self) -> bool:
        """Whether more may arrive."""
        ...


# --- what the schedulers share -----------------------------------------------------------------


@dataclass
class Batch:
    """The requests of a scheduler and the state of each, by place. It makes no decisions.

    max_tokens    the most tokens that an answer may get
    attempts      at one request since its last answer or part of one, with any outcome
    samples       answers per request, each of which may have `max_tokens`
    can_continue  which answers can be continued from a part of them; None: none
    """

    max_tokens: int | None = None
    attempts: int = 4
    rates: Rates = TOKENS
    samples: int = 1
    can_continue: CanContinue | None = None
    requests: list[Request] = field(default_factory=list)
    forecast: Forecast = field(default_factory=lambda: Forecast([]))
    cap: Array = field(default_factory=lambda: np.zeros(0))  # tokens of all samples together
    cost: list[int] = field(default_factory=list)
    usage: list[Usage] = field(default_factory=list)
    tries: list[int] = field(default_factory=list)
    ended: list[bool] = field(default_factory=list)  # has a result
    unanswered: int = 0
    so_far: dict[int, Completion] = field(default_factory=dict)
    error: dict[int, BackendError] = field(default_factory=dict)  # the latest
    prompt: list[int] = field(default_factory=list)  # bounds, in tokens; 0 if prompts cost nothing
    restarted: set[int] = field(default_factory=set)  # answered in a single request: their parts cannot be continued
    postponed: set[int] = field(default_factory=set)  # requests whose latest error is an outage

    def add(self, requests: Sequence[Request], forecast: Forecast) -> None:
        n = len(requests)
        limit = np.inf if self.max_tokens is None else self.max_tokens
        own = np.array([r.max_tokens for r in requests], dtype=np.float64)  # NaN: no limit of the caller's
        cap = self.samples * np.fmin(own, limit)
        first = not self.requests
        self.requests += requests
        self.forecast = forecast if first else Forecast.joined([self.forecast, forecast])
        self.cap = cap if first else np.concatenate([self.cap, cap])
        self.cost += [0] * n
        self.usage += [_NOTHING] * n
        self.tries += [0] * n
        self.ended += [False] * n
        self.unanswered += n
        self.prompt += [prompt_bound(r.body) for r in requests] if self.rates.priced else [0] * n

    def __len__(self) -> int:
        return len(self.requests)

    def age(self, place: int) -> int:
        """The tokens that an answer has so far."""
        part = self.so_far.get(place)
        return part.tokens if part else 0

    # --- what to send

    def work(
        self,
        place: int,
        grant: int,
        body: Mapping[str, Any] | None = None,
        so_far: Completion | None = None,
        suffix: str = "",
        sample: int = 0,
        probe: bool = False,
    ) -> Work:
        request = self.requests[place]
        bound = grant
        if self.rates.priced:
            bound = self.rates.bound(self.prompt[place] + (so_far.tokens if so_far else 0), grant)
        return Work(place, request, grant, bound, request.body if body is None else body, so_far, suffix, sample, probe)

    def affordable(self, place: int, units: int) -> int:
        """The largest grant of the next part of an answer for `units`."""
        return self.rates.limit(self.prompt[place] + self.age(place), units) if self.rates.priced else units

    def entry(self, places: Sequence[int]) -> Array:
        """What the next part of each answer costs before its first token, in output tokens."""
        if not self.rates.priced:
            return np.zeros(len(places))
        return np.array([self.rates.entry(self.prompt[place] + self.age(place)) for place in places])

    # --- continuing

    def continues(self, place: int) -> bool | None:
        """Whether an answer can be continued from a part of it; None: unknown until it is tried."""
        if self.can_continue is None or place in self.restarted:
            return False
        return self.can_continue(self.requests[place])

    def is_stuck(self, place: int) -> bool:
        """Whether the request has a part of an answer that cannot be continued."""
        return place in self.so_far and self.continues(place) is False

    def start_over(self, place: int) -> bool:
        """Drops a part that cannot be continued, if it is short: the answer is then generated in a single request.

        This happens only once per request: otherwise parts might be paid for and dropped until the budget is spent.
        """
        if place in self.restarted or self.age(place) > 2 * TRIAL:
            return False
        del self.so_far[place]
        self.error.pop(place, None)
        self.tries[place] = 0
        self.restarted.add(place)
        return True

    # --- results

    def charge(self, report: Report) -> None:
        place = report.work.place
        self.cost[place] += report.cost
        if report.completion is not None:
            self.usage[place] = _plus(self.usage[place], report.completion)
            self.tries[place] = 0
            self.error.pop(place, None)
        elif report.error is not None:
            if not isinstance(report.error, LimitViolated):  # nothing was sent
                self.tries[place] += report.attempts
            self.error[place] = report.error
            (self.postponed.add if report.postponed else self.postponed.discard)(place)

    def is_postponed(self, report: Report) -> bool:
        """Whether the same work is sent again with the same grant."""
        return report.postponed and self.tries[report.work.place] < self.attempts

    def after_error(self, place: int) -> Result | None:
        """The result of a request after an error if another attempt would not help; None: it waits again."""
        error = self.error[place]
        if isinstance(error, Refused):
            # The code, or what was learned since this attempt, says that the part of an answer cannot be continued.
            stuck = error.code == "not_continued" or self.continues(place) is False
            return None if place in self.so_far and stuck and self.start_over(place) else self._failed(place)
        return self._failed(place) if self.tries[place] >= self.attempts else None

    def answered(self, place: int, answer: Completion, correct: bool | None = None, **extra: Any) -> Result:
        outcome: Outcome = "finished" if answer.finish == "stop" else "truncated"
        usage, cost = self.usage[place], self.cost[place]
        return self._end(place, Result(self.requests[place].id, outcome, usage, cost, answer, None, correct, extra))

    def left(self, price: float | None, stopped: str) -> Iterable[Result]:
        """The results of all requests that have none yet."""
        for place, request in enumerate(self.requests):
            if self.ended[place]:
                continue
            error = self.error.get(place)
            if stopped and (error is None or isinstance(error, LimitViolated) or place in self.so_far):
                yield self._unanswered(place, "not_sent", Failure("not_sent", f"not sent: {stopped}"))
            elif place in self.so_far:
                part = self.so_far[place]
                yield self.answered(place, flagged(part, "not_continued") if self.is_stuck(place) else part)
            elif error is not None and (stopped or place not in self.postponed):
                yield self._failed(place)
            else:  # never sent, or only in an outage
                yield self._unanswered(place, "declined", declined(request.id, self.forecast, place, price).failure)

    def restore(self, place: int, state: Result | Completion) -> None:
        """Takes a result, or one more part of an answer."""
        if isinstance(state, Result):
            self.cost[place], self.usage[place] = state.cost, state.usage
            self._end(place, state)
        else:
            self.so_far[place] = join(self.so_far.get(place), state)
            self.paid(place, state)

    def dropped(self, place: int, part: Completion) -> None:
        """Takes a part that was paid for and dropped, which happens only once."""
        self.paid(place, part)
        self.restarted.add(place)

    def charged(self, costs: Mapping[int, int]) -> None:
        """Replaces costs that were added up from parts by those of the ledger."""
        for place, units in costs.items():
            self.cost[place] = units

    def paid(self, place: int, part: Completion) -> None:
        """Adds the cost of a part that an earlier execution paid for."""
        self.usage[place] = _plus(self.usage[place], part)
        self.cost[place] += self.rates.cost(part.usage)

    def _failed(self, place: int) -> Result:
        """The result of a request whose latest error is final; a part of an answer becomes the answer."""
        error = self.error[place]
        if place in self.so_far:
            return self.answered(place, flagged(self.so_far[place], "not_continued"))
        code = error.code if isinstance(error, Refused) else "backend_unavailable"
        return self._unanswered(place, "failed", Failure(code, str(error), {"cause": error.cause}))

    def _unanswered(self, place: int, outcome: Outcome, failure: Failure | None) -> Result:
        usage, cost = self.usage[place], self.cost[place]
        return self._end(place, Result(self.requests[place].id, outcome, usage, cost, failure=failure))

    def _end(self, place: int, result: Result) -> Result:
        if not self.ended[place]:
            self.unanswered -= 1
        self.ended[place] = True
        self.so_far.pop(place, None)
        self.error.pop(place, None)
        return result


_NOTHING = Usage()


def _plus(usage: Usage, part: Completion) -> Usage:
    return part.usage if usage is _NOTHING else usage + part.usage


def flagged(part: Completion, *flags: str) -> Completion:
    return replace(part, flags=tuple(dict.fromkeys((*part.flags, *flags))))


def is_over(part: Completion, grant: int, tokens: int, cap: float) -> bool:
    """Whether an answer of `tokens` ends with this part, for which `grant` tokens were granted.

    If a server stops below the limit, the answer has ended.
    """
    return part.finish == "stop" or part.tokens < grant or tokens >= cap
