"""What a scheduler is: it decides who generates next, and never waits, reads a clock or touches a disk.

`execute` drives a scheduler on a real backend, `simulate` the same object over recorded answers:

    while work := scheduler.next(available):     what to send now, with the units to reserve for it
        result = scheduler.done(report)          what came of it: a result, or the request waits again
    scheduler.close()                            no more will be sent: what becomes of the rest

`next` gives None where nothing is worth its price now. While work is under way it may have an answer again after
the next `done`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from shadowprice.arrays import Array
from shadowprice.backends.base import join
from shadowprice.cost import TOKENS, Rates, prompt_bound
from shadowprice.errors import BackendError, Distrusted, Refused
from shadowprice.formats.declined import declined
from shadowprice.types import Completion, Failure, Forecast, Outcome, Request, Result, Usage

TRIAL = 8  # tokens of each of the two pieces that show whether a server continues a part of an answer


class Work(NamedTuple):
    """Something to send.

    place    of the request, in the order in which they were added
    grant    tokens it may generate
    bound    units it can cost at most: to be reserved before it is sent
    body     what is sent: the request's own body, unless the scheduler has something to add
    so_far   the part of the answer to continue from
    suffix   text to continue with, after `so_far`: asks for the final answer
    """

    place: int
    request: Request
    grant: int
    bound: int
    body: Mapping[str, Any]
    so_far: Completion | None = None
    suffix: str = ""
    sample: int = 0


class Report(NamedTuple):
    """What came of a piece of work: a completion or an error, what it cost, and after how many attempts."""

    work: Work
    cost: int
    completion: Completion | None = None
    error: BackendError | None = None
    attempts: int = 1
    correct: bool | None = None


@dataclass(frozen=True)
class Round:
    """One clearing: of `queries` that waited `admitted` are to get `granted` units of a `budget` that is left."""

    budget: int
    queries: int
    admitted: int
    granted: int
    price: float | None
    status: str | None


# Whether an answer to a request can be continued from a part of it; None: nobody knows before it is tried.
CanContinue: TypeAlias = Callable[[Request], "bool | None"]


class Scheduler(Protocol):
    """Decides. `price` is that of the latest clearing, `rounds` are all of them."""

    rounds: list[Round]

    @property
    def price(self) -> float | None: ...

    def add(self, requests: Sequence[Request], forecast: Forecast) -> None:
        """More requests, with a forecast for each; at any time."""
        ...

    def restore(self, index: int, state: Result | Completion, *, sample: int = 0, landing: bool = False) -> None:
        """What an earlier execution left of a request: its result, or one more part of its answer."""
        ...

    def next(self, available: int) -> Work | None:
        """What to send now, for `available` units at most; None: nothing, at least until the next `done`."""
        ...

    def done(self, report: Report) -> Result | None:
        """What came of a piece of work. A result ends the request; None: it waits again."""
        ...

    def close(self, stopped: str = "") -> Iterable[Result]:
        """The results of all requests that have none. `stopped` says why nothing more is sent, though it could be."""
        ...


# --- what the schedulers share -----------------------------------------------------------------


@dataclass
class Batch:
    """The requests of a scheduler and what is known of each; a scheduler decides, this keeps the books.

    max_tokens  no answer gets more
    attempts    at one request since its last success, whatever became of them
    """

    max_tokens: int | None = None
    attempts: int = 4
    rates: Rates = TOKENS
    samples: int = 1  # answers of a request, each of which may have `max_tokens`
    requests: list[Request] = field(default_factory=list)
    forecast: Forecast = field(default_factory=lambda: Forecast([]))
    cap: Array = field(default_factory=lambda: np.zeros(0))
    cost: list[int] = field(default_factory=list)
    usage: list[Usage] = field(default_factory=list)
    tries: list[int] = field(default_factory=list)
    ended: list[bool] = field(default_factory=list)  # has a result
    unanswered: int = 0
    so_far: dict[int, Completion] = field(default_factory=dict)
    error: dict[int, BackendError] = field(default_factory=dict)  # the latest
    prompt: list[int] = field(default_factory=list)  # tokens, at most; 0 where they cost nothing

    def add(self, requests: Sequence[Request], forecast: Forecast) -> None:
        n = len(requests)
        limit = np.inf if self.max_tokens is None else self.max_tokens
        cap = self.samples * np.array([min(limit, r.max_tokens or np.inf) for r in requests], dtype=np.float64)
        first = not self.requests
        self.requests += requests
        self.forecast = forecast if first else Forecast.joined([self.forecast, forecast])
        self.cap = cap if first else np.concatenate([self.cap, cap])
        self.cost += [0] * n
        self.usage += [_NOTHING] * n
        self.tries += [0] * n
        self.ended += [False] * n
        self.unanswered += n
        self.prompt += [prompt_bound(r.body) if self.rates.money else 0 for r in requests]

    def __len__(self) -> int:
        return len(self.requests)

    def work(
        self,
        index: int,
        grant: int,
        body: Mapping[str, Any] | None = None,
        so_far: Completion | None = None,
        suffix: str = "",
        sample: int = 0,
    ) -> Work:
        request = self.requests[index]
        bound = grant
        if self.rates.money:
            bound = self.rates.bound(self.prompt[index] + (so_far.tokens if so_far else 0), grant)
        return Work(index, request, grant, bound, request.body if body is None else body, so_far, suffix, sample)

    def affordable(self, index: int, units: int) -> int:
        """Tokens that the next part of an answer can be granted for `units`."""
        if not self.rates.money:
            return units
        so_far = self.so_far.get(index)
        return self.rates.limit(self.prompt[index] + (so_far.tokens if so_far else 0), units)

    def entry(self, rows: Sequence[int]) -> Array:
        """What the next part of each answer costs before its first token, in output tokens."""
        if not self.rates.money:
            return np.zeros(len(rows))
        parts = ((i, self.so_far.get(i)) for i in rows)
        return np.array([self.rates.entry(self.prompt[i] + (part.tokens if part else 0)) for i, part in parts])

    def age(self, index: int) -> int:
        part = self.so_far.get(index)
        return part.tokens if part else 0

    # --- what came of it

    def charge(self, report: Report) -> None:
        index = report.work.place
        self.cost[index] += report.cost
        if report.completion is not None:
            self.usage[index] = _plus(self.usage[index], report.completion)
            self.tries[index] = 0
            self.error.pop(index, None)
        elif report.error is not None and not isinstance(report.error, Distrusted):  # nothing was sent
            self.tries[index] += report.attempts
            self.error[index] = report.error

    def gives_up(self, index: int) -> bool:
        """Whether the latest error of a request is one that another attempt does not help."""
        return isinstance(self.error.get(index), Refused) or self.tries[index] >= self.attempts

    def answered(self, index: int, answer: Completion, correct: bool | None = None, **extra: Any) -> Result:
        outcome: Outcome = "finished" if answer.finish == "stop" else "truncated"
        usage, cost = self.usage[index], self.cost[index]
        return self._end(index, Result(self.requests[index].id, outcome, usage, cost, answer, None, correct, extra))

    def failed(self, index: int) -> Result:
        """The result of a request whose latest error is final; what there is of an answer is an answer."""
        error = self.error[index]
        code = error.code if isinstance(error, Refused) else "backend_unavailable"
        if index in self.so_far:
            return self.answered(index, flagged(self.so_far[index], "not_continued"))
        failure = Failure(code, str(error))
        return self._end(
            index, Result(self.requests[index].id, "failed", self.usage[index], self.cost[index], failure=failure)
        )

    def left(self, price: float | None, stopped: str) -> Iterable[Result]:
        """The results of all that have none."""
        for index, request in enumerate(self.requests):
            if self.ended[index]:
                continue
            if index in self.so_far and not stopped:
                yield self.answered(index, self.so_far[index])
            elif index in self.error and not (stopped and index in self.so_far):
                yield self.failed(index)
            elif stopped:
                failure = Failure("not_sent", f"not sent: {stopped}")
                yield self._end(index, Result(request.id, "not_sent", cost=self.cost[index], failure=failure))
            else:
                yield self._end(index, declined(request.id, self.forecast, index, price))

    def restore(self, index: int, state: Result | Completion) -> None:
        """A result, or one more part of an answer."""
        if isinstance(state, Result):
            self.ended[index] = True
            self.unanswered -= 1
            self.so_far.pop(index, None)
            self.cost[index], self.usage[index] = state.cost, state.usage
        else:
            self.so_far[index] = join(self.so_far.get(index), state)
            self.usage[index] = _plus(self.usage[index], state)
            self.cost[index] += self.rates.cost(state.usage)

    def _end(self, index: int, result: Result) -> Result:
        self.ended[index] = True
        self.unanswered -= 1
        self.so_far.pop(index, None)
        self.error.pop(index, None)
        return result


_NOTHING = Usage()


def _plus(usage: Usage, part: Completion) -> Usage:
    return part.usage if usage is _NOTHING else usage + part.usage


def flagged(part: Completion, flag: str) -> Completion:
    return replace(part, flags=tuple(dict.fromkeys((*part.flags, flag))))


def start_over(error: BackendError | None, so_far: Completion | None) -> bool:
    """Whether an answer is begun again from its start: its server turned out not to continue, early enough."""
    stopped = isinstance(error, Refused) and error.code == "not_continued"
    return stopped and so_far is not None and so_far.tokens <= 2 * TRIAL


def is_over(part: Completion, grant: int, tokens: int, cap: float) -> bool:
    """Whether an answer of `tokens` has come to its end with this part, for which `grant` tokens were granted.

    A server that stops below its limit has come to an end of its own.
    """
    return part.finish == "stop" or part.tokens < grant or tokens >= cap
