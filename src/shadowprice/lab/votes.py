"""Votes on recorded answers: several answers of each model to a question, and what `run --routes --samples K` gains.

Questions are served by the scheduler itself, cross-fitted as in `lab.routes`: forecasts, the correlation between grades
and how often wrong answers agree come from the other folds. Which of the recorded answers to a question comes first is
drawn, a few times over; intervals resample questions.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from shadowprice.arrays import Array
from shadowprice.errors import InputError
from shadowprice.forecast.splits import question_key
from shadowprice.formats.routes import Route
from shadowprice.grading.agreement import Ballots
from shadowprice.lab.compare import Row
from shadowprice.lab.rewards import interval
from shadowprice.lab.routes import Fold, Policy, Recorded, forecast_folds, recorded_rows, routed
from shadowprice.market.samples import correlation_of
from shadowprice.market.votes import agreement_of
from shadowprice.types import Trace


def recorded_votes(traces: Sequence[Trace], routes: Sequence[Route], samples: int) -> Recorded:
    """The first answers of every route to the questions that all have answered so often, with what they say."""
    by_question: defaultdict[str, dict[str, list[Trace]]] = defaultdict(lambda: defaultdict(list))
    for trace in sorted(traces, key=lambda trace: trace.sample):
        by_question[question_key(trace.prompt)][trace.model].append(trace)
    names = [route.name for route in routes]
    rows = [[each[name][:samples] for name in names] for each in by_question.values()]
    rows = [row for row in rows if all(len(answers) == samples for answers in row)]
    if len(rows) < 100:
        raise InputError(
            f"{len(rows)} questions have {samples} answers of all routes, 100 are needed", fix="give more traces"
        )
    if any(trace.response is None for row in rows for answers in row for trace in answers):
        raise InputError("traces without text do not say what their answers are", fix="give traces with `response`")
    ballots = Ballots()
    said = [
        [[_said(ballots, str(place), trace) for trace in answers] for answers in row] for place, row in enumerate(rows)
    ]
    each = [
        recorded_rows(
            routes,
            [[answers[number] for answers in row] for row in rows],
            said=[[votes[number] for votes in row] for row in said],
        )
        for number in range(samples)
    ]
    return replace(each[0], more=each[1:], cap=max(one.cap for one in each))


def _said(ballots: Ballots, question: str, trace: Trace) -> str | None:
    return None if trace.truncated else ballots.vote(question, trace.response or "")


def shuffled(pool: Recorded, seed: int) -> Recorded:
    """The same answers, in another order for every question and route."""
    rng = np.random.default_rng(seed)
    each = [pool, *pool.more]
    order = rng.permuted(np.tile(np.arange(len(each)), (len(pool), len(pool.routes), 1)), axis=2)
    columns = range(len(pool.routes))

    def one(number: int) -> Recorded:
        taken = [[each[order[place, at, number]] for at in columns] for place in range(len(pool))]
        return recorded_rows(
            pool.routes,
            [[row[at].traces[place][at] for at in columns] for place, row in enumerate(taken)],
            said=[[row[at].said[place][at] for at in columns] for place, row in enumerate(taken)],
        )

    found = [one(number) for number in range(len(each))]
    return replace(found[0], more=found[1:], cap=pool.cap)


def learned(pool: Recorded, fold: Fold) -> dict[str, Any]:
    """The correlation between grades, and how often wrong answers agree, on the questions of the other folds."""
    each, grades, wrong = [pool, *pool.more], [], []
    for place in fold.known.tolist():
        for at in range(len(pool.routes)):
            grades.append([bool(one.correct[place, at]) for one in each])
            said = [(one.said[place][at], bool(one.correct[place, at])) for one in each]
            wrong.append([what for what, correct in said if what is not None and not correct])
    return {"correlation": correlation_of(grades), "agreement": agreement_of(wrong)}


def counted(pool: Recorded, samples: int, at: int = 0) -> Array:
    """Whether the answer that most of so many give is correct, by question, for one route and whatever it costs.

    Of equally many the first wins; where no answer votes it is the first answer.
    """
    each, found = [pool, *pool.more][:samples], np.zeros(len(pool))
    for place in range(len(pool)):
        said = [one.said[place][at] for one in each]
        votes = Counter(what for what in said if what is not None)
        leader = said.index(votes.most_common(1)[0][0]) if votes else 0
        found[place] = each[leader].correct[place, at]
    return found


def votes_by_market(samples: int, chosen: Sequence[int] | None = None) -> Policy:
    """At most so many answers of each route, where votes are worth their price."""
    return lambda pool, fold, budget: routed(
        pool, fold, budget, chosen=chosen, samples=samples, **(learned(pool, fold) if samples > 1 else {})
    )


def vote_rows(
    pool: Recorded,
    budgets: Sequence[float],
    *,
    seeds: int = 3,
    progress: Callable[[int, int, str], None] = lambda done, total, name: None,
) -> list[Row]:
    """By budget (dollars a question) and samples: correct answers, and what is gained over one answer each."""
    most = 1 + len(pool.more)
    pools = [shuffled(pool, seed) for seed in range(seeds)]
    parts = [forecast_folds(each) for each in pools]
    rows: list[Row] = []

    def run(samples: int, budget: float) -> tuple[Array, float]:
        """Shares correct, by question, and dollars spent on a question."""
        correct, spent = np.zeros(len(pool)), 0.0
        for some, folds in zip(pools, parts, strict=True):
            for fold in folds:
                result = votes_by_market(samples)(some, fold, budget * fold.places.size)
                correct[fold.places] += result.correct / seeds
                spent += float(result.spent.sum()) / seeds
        return correct, spent / len(pool)

    for number, budget in enumerate(budgets):
        progress(number, len(budgets), f"${budget:.6f} a question")
        one = None
        for samples in range(1, most + 1):
            correct, spent = run(samples, budget)
            one = correct if one is None else one
            low, high = interval(correct)
            gain_low, gain_high = interval(correct - one)
            rows.append(
                {
                    "table": "votes",
                    "budget": budget,
                    "samples": samples,
                    "solved": 100 * float(correct.mean()),
                    "ci_low": 100 * low,
                    "ci_high": 100 * high,
                    "gain": 100 * float((correct - one).mean()),
                    "gain_low": 100 * gain_low,
                    "gain_high": 100 * gain_high,
                    "dollars": spent,
                    "queries": len(pool),
                    "source": "ours",
                }
            )
    return rows
