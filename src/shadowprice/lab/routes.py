"""Several models on the same questions, priced by a table of rates: the frontier of correct answers against dollars.

Questions are cross-fitted in folds, in several splits. The questions of each fold are served by `engine.routed` itself,
under its share of the budget and with forecasts from the other folds, so that what is measured is what `run --routes`
does.

    NAME alone      questions in turn, until the money ends
    uniform         every model equally often, as far as the money goes
    static mix      the best mix of two models, by their means in hindsight
    threshold       a router in the style of RouteLLM: the cheapest model, or the best one where its forecast gain is
                    above a threshold that meets the budget in the other folds
    cascade         in the style of FrugalGPT: the cheapest model first, and the best one where the answer's chance of
                    being correct is below such a threshold
    tokens          the one route that is best at this budget, with the lengths that the market allows
    routes          whole answers: the market chooses routes alone
    routes x tokens routes and lengths
    scouts          and answers of cheaper routes as evidence
    continued       routes x tokens, by servers that continue cut answers
    clairvoyant     knows every answer and every cost
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from shadowprice.arrays import Array
from shadowprice.engine.routed import Routed
from shadowprice.engine.scheduler import Work
from shadowprice.engine.simulate import simulate
from shadowprice.errors import InputError
from shadowprice.forecast.calibration import Calibration
from shadowprice.forecast.differences import Differences
from shadowprice.forecast.revise import Evidence, Reviser, revisers_of
from shadowprice.forecast.splits import folds, question_key
from shadowprice.formats.routes import Route
from shadowprice.lab.compare import Row
from shadowprice.lab.kernel import KernelRegression
from shadowprice.lab.rewards import clairvoyant, interval, static_mix
from shadowprice.types import Completion, Forecast, Request, Trace

_FOLDS = 5
SPLITS = 5  # ways of dividing the questions into folds: by one alone, figures differ by up to a point
_PROMPT = 4.0  # characters of a prompt's token: traces do not say how many it had
_FRAME = 16  # tokens of a chat template
_NANO = 1e9


@dataclass(frozen=True, eq=False)
class Recorded:
    """Answers of several models (columns) to the same questions (rows); a truncated answer is not correct.

    said  the final answer of each, in one form for all that agree; None: it has none. Empty where nobody votes
    more  further answers to the same questions, by the same models
    """

    routes: Sequence[Route]
    prompts: Sequence[str]
    traces: Sequence[Sequence[Trace]]
    tokens: NDArray[np.int64]
    correct: Array
    read: NDArray[np.int64]
    cap: int
    said: Sequence[Sequence[str | None]] = ()
    more: Sequence[Recorded] = ()

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def cost(self) -> Array:
        """Dollars of every whole answer."""
        each = [
            (self.read * route.rates.input + self.tokens[:, at] * route.rates.output) / 10**6 / _NANO
            for at, route in enumerate(self.routes)
        ]
        return np.column_stack(each)

    def sample(self, number: int) -> Recorded:
        """The answers of this number; 0: these."""
        return self.more[number - 1] if number else self

    def answer(self, place: int, at: int, grant: int, so_far: Completion | None = None) -> Completion:
        """The recorded answer under a limit; or the next part of it, for which everything is read again.

        A server that continues has what it reads again in its cache; where the cached rate is not given it is the
        full one.
        """
        age, read = so_far.tokens if so_far else 0, int(self.read[place])
        rest = int(self.tokens[place, at]) - age
        cut = rest > grant or self.traces[place][at].truncated
        finish: Literal["stop", "length"] = "length" if cut else "stop"
        fresh, again = (0, read + age) if so_far else (read, 0)
        return Completion("", min(rest, grant), finish, "server", input_tokens=fresh, cached_tokens=again)


def recorded_routes(traces: Sequence[Trace], routes: Sequence[Route]) -> Recorded:
    """The questions that all routes have answered; the name of a route is that of the model in the traces."""
    by_model: defaultdict[str, dict[str, Trace]] = defaultdict(dict)
    for trace in traces:
        by_model[trace.model].setdefault(question_key(trace.prompt), trace)
    if missing := next((route.name for route in routes if route.name not in by_model), None):
        known = ", ".join(sorted(by_model))
        raise InputError(
            f"route {missing}: no traces of a model with this name", fix=f"name routes as in {known}"[:200]
        )
    shared = [key for key in by_model[routes[0].name] if all(key in by_model[route.name] for route in routes)]
    if len(shared) < 100:
        raise InputError(f"{len(shared)} questions are shared by all routes, 100 are needed", fix="give more traces")
    return recorded_rows(routes, [[by_model[route.name][key] for route in routes] for key in shared])


def recorded_rows(routes: Sequence[Route], rows: Sequence[Sequence[Trace]], **fields: Any) -> Recorded:
    """One answer of every route (column) to every question (row)."""
    return Recorded(
        routes,
        [row[0].prompt for row in rows],
        rows,
        np.array([[max(1, trace.tokens) for trace in row] for row in rows], dtype=np.int64),
        np.array([[float(bool(trace.correct) and not trace.truncated) for trace in row] for row in rows]),
        np.array([int(len(row[0].prompt) / _PROMPT) + _FRAME for row in rows], dtype=np.int64),
        max(trace.max_tokens or trace.tokens for row in rows for trace in row),
        **fields,
    )


# --- forecasts ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Fold:
    """The questions of a fold, what is forecast of each route, and what answers of one route say about another.

    known  the questions of the other folds, and what was forecast of them without their own answers
    """

    places: NDArray[np.intp]
    forecasts: list[Forecast]
    revisers: Mapping[tuple[str, str], Reviser]
    known: NDArray[np.intp]
    known_forecasts: list[Forecast]


def forecast_folds(pool: Recorded, *, seed: int = 0) -> list[Fold]:
    fold = folds(np.arange(len(pool), dtype=np.intp), _FOLDS, seed)
    return [_fold(pool, np.flatnonzero(fold != each), np.flatnonzero(fold == each)) for each in range(_FOLDS)]


def _fold(pool: Recorded, known: NDArray[np.intp], places: NDArray[np.intp]) -> Fold:
    each = [pool, *pool.more]
    correct = np.mean([some.correct[known] for some in each], axis=0)
    length = np.mean([np.log(some.tokens[known]) for some in each], axis=0)
    level = correct.mean(1, keepdims=True)
    model = KernelRegression.fit([pool.prompts[i] for i in known], np.hstack([level, correct - level, length]))
    before = model.left_out
    after = model.predict([pool.prompts[i] for i in places])
    first, then = [], []
    for at in range(len(pool.routes)):
        chances = [np.clip(some[:, 0] + some[:, 1 + at], 0.01, 0.99) for some in (before, after)]
        lengths = [some[:, 1 + len(pool.routes) + at] for some in (before, after)]
        traces = [pool.traces[i][at] for i in known.tolist()]
        rough = [Forecast(np.exp(np.clip(m, 0, 12)), 0.5, p) for m, p in zip(lengths, chances, strict=True)]
        calibration = Calibration.fit(rough[0], traces)
        first.append(calibration.apply(rough[0]))
        then.append(calibration.apply(rough[1]))
    differences = Differences.fit(first, pool.correct[known])
    first, then = differences.apply(first), differences.apply(then)
    return Fold(places, then, _revisers(pool, known, first), known, first)


def _revisers(pool: Recorded, known: NDArray[np.intp], forecasts: list[Forecast]) -> dict[tuple[str, str], Reviser]:
    """From every route to itself and to all dearer ones."""
    dollars = pool.cost.mean(0)
    answers = [[pool.traces[i][at] for i in known.tolist()] for at in range(len(pool.routes))]
    return {
        (pool.routes[one].name, pool.routes[other].name): reviser
        for (one, other), reviser in revisers_of(forecasts, answers).items()
        if one == other or dollars[other] > dollars[one]
    }


# --- serving ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Result:
    """By question: correct or not, and the dollars spent on it by route."""

    correct: Array
    spent: Array


Policy = Callable[[Recorded, Fold, float], Result]


def routed(
    pool: Recorded,
    fold: Fold,
    budget: float,
    chosen: Sequence[int] | None = None,
    *,
    continuing: bool = False,
    **options: object,
) -> Result:
    """By the scheduler of `run --routes`, with `budget` dollars for all questions of the fold.

    Where it is known what answers say, several to a question vote, as many as the option `samples` allows.
    `continuing`: the servers continue answers that were cut.
    """
    numbers = list(range(len(pool.routes))) if chosen is None else list(chosen)
    routes = [pool.routes[at] for at in numbers]
    column = {pool.routes[at].name: at for at in numbers}
    requests = [Request(str(i), "", body={"prompt": pool.prompts[i]}) for i in fold.places.tolist()]
    if continuing:
        options["can_continue"] = {route.name: lambda request: True for route in routes}
    scheduler = Routed(routes, max_tokens=pool.cap, **options)  # type: ignore[arg-type]
    scheduler.add(requests, [fold.forecasts[at] for at in numbers], voted=[bool(pool.said)] * len(requests))

    def answer(work: Work) -> Completion:
        recorded = pool.sample(work.sample)
        return recorded.answer(int(fold.places[work.place]), column[work.route], work.grant, work.so_far)

    def vote(work: Work, _: Completion) -> str | None:
        said = pool.sample(work.sample).said
        return said[int(fold.places[work.place])][column[work.route]] if said else None

    rates = {route.name: route.rates for route in routes}
    outcome = simulate(scheduler, answer, int(budget * _NANO), rates=rates, vote=vote)
    correct, spent = np.zeros(len(requests)), np.zeros((len(requests), len(pool.routes)))
    place = {request.id: at for at, request in enumerate(requests)}
    for result in [*outcome.results, *outcome.rest]:
        at = place[result.id]
        for name, units in result.extra.get("charged", {}).items():
            spent[at, column[name]] += units / _NANO
        if result.outcome == "finished":
            given = pool.sample(result.extra.get("sample", 0))
            correct[at] = given.correct[int(result.id), column[result.extra["route"]]]
    assert spent.sum() <= budget * (1 + 1e-9)
    return Result(correct, spent)


def _in_turn(pool: Recorded, fold: Fold, budget: float, route: NDArray[np.intp], first: int | None = None) -> Result:
    """Whole answers of a given route for each question, in turn, while the money lasts.

    first  a route that is asked before, for every question whose route is another one
    """
    cost, rows = pool.cost[fold.places], np.arange(fold.places.size)
    spent = np.zeros(cost.shape)
    spent[rows, route] = cost[rows, route]
    if first is not None:
        spent[:, first] = cost[:, first]
    paid = np.cumsum(spent.sum(1)) <= budget
    return Result(np.where(paid, pool.correct[fold.places, route], 0.0), spent * paid[:, None])


def alone(at: int) -> Policy:
    return lambda pool, fold, budget: _in_turn(pool, fold, budget, np.full(fold.places.size, at))


def uniform(pool: Recorded, fold: Fold, budget: float) -> Result:
    return _in_turn(pool, fold, budget, np.arange(fold.places.size) % len(pool.routes))


def threshold(pool: Recorded, fold: Fold, budget: float) -> Result:
    cheap, best = _ends(pool, fold)
    gain, before = (
        np.asarray(some[best].solve) - np.asarray(some[cheap].solve) for some in (fold.forecasts, fold.known_forecasts)
    )
    cost = pool.cost[fold.known]
    share = _share(before, cost[:, best], cost[:, cheap], budget / fold.places.size)
    return _in_turn(pool, fold, budget, np.where(gain > share, best, cheap))


def cascade(pool: Recorded, fold: Fold, budget: float) -> Result:
    cheap, best = _ends(pool, fold)
    name = pool.routes[cheap].name
    reviser = fold.revisers[name, name]

    def doubt(places: NDArray[np.intp], forecasts: list[Forecast]) -> Array:
        cut = [float(pool.traces[i][cheap].truncated) for i in places.tolist()]
        return 1 - reviser.chance(forecasts[cheap], Evidence(pool.tokens[places, cheap], cut))

    cost = pool.cost[fold.known]
    both = cost[:, best] + cost[:, cheap]
    limit = _share(doubt(fold.known, fold.known_forecasts), both, cost[:, cheap], budget / fold.places.size)
    chosen = np.where(doubt(fold.places, fold.forecasts) > limit, best, cheap)
    return _in_turn(pool, fold, budget, chosen, first=cheap)


def _ends(pool: Recorded, fold: Fold) -> tuple[int, int]:
    """The cheapest route, and the one with most correct answers, in the other folds."""
    return int(pool.cost[fold.known].mean(0).argmin()), int(pool.correct[fold.known].mean(0).argmax())


def _share(score: Array, dear: Array, cheap: Array, budget: float) -> float:
    """The lowest threshold at which those above it can have the dear option."""
    order = np.argsort(-score, kind="stable")
    total = cheap.sum() + np.cumsum((dear - cheap)[order])
    affordable = int(np.searchsorted(total, budget * score.size, side="right"))
    return float(score[order[affordable]]) if affordable < score.size else -np.inf


OURS: dict[str, Policy] = {
    "routes": lambda pool, fold, budget: routed(pool, fold, budget, whole=True),
    "routes x tokens": routed,
    "scouts": lambda pool, fold, budget: routed(pool, fold, budget, revisers=fold.revisers),
    "continued": partial(routed, continuing=True),
}
_OVER = {"routes x tokens": "routes", "scouts": "routes x tokens", "continued": "routes x tokens"}
BASELINES: dict[str, Policy] = {"uniform": uniform, "threshold": threshold, "cascade": cascade}


# --- rows ---------------------------------------------------------------------------------------


def budgets_between(pool: Recorded, count: int = 5) -> list[float]:
    """Dollars per question, evenly spaced in the logarithm between the cheapest and the dearest route alone."""
    each = pool.cost.mean(0)
    return [float(b) for b in np.geomspace(each.min(), each.max(), count + 2)[1:-1]]


def route_rows(
    pool: Recorded,
    budgets: Sequence[float],
    *,
    splits: int = SPLITS,
    progress: Callable[[int, int, str], None] = lambda done, total, name: None,
) -> list[Row]:
    """The frontier, with what each policy gains over the best static mix, and where the dollars went.

    Every question is served once in each of the splits; figures are the means of these.
    """
    parts = [fold for split in range(splits) for fold in forecast_folds(pool, seed=split)]
    rows: list[Row] = []
    names = [route.name for route in pool.routes]
    singles: dict[str, Policy] = {f"{name} alone": alone(at) for at, name in enumerate(names)}
    total = len(budgets) * (len(BASELINES) + len(OURS) + 2)

    def run(policy: Policy, budget: float) -> Result:
        correct, spent = np.zeros(len(pool)), np.zeros((len(pool), len(names)))
        for fold in parts:
            served = policy(pool, fold, budget * fold.places.size)
            correct[fold.places] += served.correct / splits
            spent[fold.places] += served.spent / splits
        return Result(correct, spent)

    for number, budget in enumerate(budgets):
        _, shares = static_mix(pool.correct, pool.cost, budget)
        mixed = pool.correct @ shares

        def row(policy: str, result: Result, mixed: Array = mixed, budget: float = budget) -> None:
            low, high = interval(result.correct)
            gain_low, gain_high = interval(result.correct - mixed)
            spent = result.spent.mean(0)
            rows.append(
                {
                    "table": "routes",
                    "policy": policy,
                    "budget": budget,
                    "solved": 100 * float(result.correct.mean()),
                    "ci_low": 100 * low,
                    "ci_high": 100 * high,
                    "gain": 100 * float((result.correct - mixed).mean()),
                    "gain_low": 100 * gain_low,
                    "gain_high": 100 * gain_high,
                    "dollars": float(spent.sum()),
                    "queries": len(pool),
                    "seeds": splits,
                    "source": "ours",
                    **{f"dollars_{name}": float(part) for name, part in zip(names, spent, strict=True)},
                }
            )

        for name, policy in {**singles, **BASELINES}.items():
            row(name, run(policy, budget))
        row("static mix", Result(mixed, pool.cost * shares))
        progress(number * (total // len(budgets)), total, f"${budget:.6f} a question")
        one = [run(partial(routed, chosen=[at]), budget) for at in _plausible(pool, budget)]
        row("tokens", max(one, key=lambda each: float(each.correct.mean())))
        results: dict[str, Result] = {}
        for name, policy in OURS.items():
            results[name] = run(policy, budget)
            row(name, results[name])
            if name in _OVER:  # question by question
                more = results[name].correct - results[_OVER[name]].correct
                low, high = interval(more)
                rows[-1] |= {"more": 100 * float(more.mean()), "more_low": 100 * low, "more_high": 100 * high}
        known = clairvoyant(pool.correct, pool.cost, budget)
        row("clairvoyant", Result(np.full(len(pool), known), np.zeros((len(pool), len(names)))))
    return rows


def _plausible(pool: Recorded, budget: float) -> list[int]:
    """Routes that may be the best one alone: by what they would answer if they were served in turn."""
    value = pool.correct.mean(0) * np.minimum(1.0, budget / pool.cost.mean(0))
    return [int(at) for at in np.argsort(-value)[:3]]
