"""Drives a scheduler over recorded answers: the same decisions as in a run, without a server, a disk or a clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from shadowprice.cost import TOKENS, Rates
from shadowprice.engine.scheduler import Report, Scheduler, Work
from shadowprice.types import Completion, Result


@dataclass
class Outcome:
    """The outcome of a simulation: what was sent, and the results, both in order.

    `rest` has the results of the requests that have none at the end; iterating over it closes the scheduler.
    """

    budget: int
    spent: int = 0
    work: list[Work] = field(default_factory=list)
    found: list[Completion] = field(default_factory=list)  # the answer to each piece of work
    results: list[Result] = field(default_factory=list)
    rest: Iterable[Result] = ()


def simulate(
    scheduler: Scheduler,
    answer: Callable[[Work], Completion],
    budget: int,
    *,
    rates: Rates | Mapping[str, Rates] = TOKENS,
    correct: Callable[[Work, Completion], bool] | None = None,
    vote: Callable[[Work, Completion], str | None] | None = None,
) -> Outcome:
    """Drives `scheduler` until nothing is worth its price, one piece of work at a time.

    answer   returns the recorded answer to a piece of work
    correct  returns whether an answer that ended is correct
    vote     returns what an answer that ended votes for
    rates    may be given by route
    """
    outcome = Outcome(budget)
    while work := scheduler.next(budget - outcome.spent):
        part = answer(work)
        cost = (rates if isinstance(rates, Rates) else rates[work.route]).cost(part.usage)
        assert cost <= work.bound <= budget - outcome.spent, f"{work.request.id}: {cost} units, {work.bound} reserved"
        outcome.spent += cost
        outcome.work.append(work)
        outcome.found.append(part)
        graded = correct(work, part) if correct and part.finish == "stop" else None
        voted = vote(work, part) if vote and part.finish == "stop" else None
        if result := scheduler.done(Report(work, cost, part, correct=graded, vote=voted)):
            outcome.results.append(result)
    outcome.rest = scheduler.close()
    return outcome
