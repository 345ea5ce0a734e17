"""What a policy would achieve on recorded answers, in one call."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from shadowprice.cost import parse_budget
from shadowprice.engine import Settings, make_scheduler
from shadowprice.engine import simulate as engine
from shadowprice.engine.landing import Lander
from shadowprice.engine.readings import PartReader
from shadowprice.engine.scheduler import Round, Work
from shadowprice.errors import InputError
from shadowprice.forecast import Predictor, default, predict_all
from shadowprice.formats.probes import Probe, latest_probe, probes_of
from shadowprice.formats.traces import read_traces
from shadowprice.grading.answers import boxes
from shadowprice.market.anytime import Anytime
from shadowprice.types import Completion, Forecast, Request, Result, Trace


@dataclass(frozen=True)
class Simulation:
    """The results of a simulation.

    results  of the questions, in the order of the traces
    rounds   the clearings
    command  runs the same policy on a real model
    probes   the number of probes sent (`engine.probing`)
    """

    results: list[Result]
    budget: int
    spent: int
    rounds: list[Round]
    command: str = ""
    probes: int = 0

    @property
    def correct(self) -> int:
        return sum(result.correct is True for result in self.results)

    @property
    def price(self) -> float | None:
        return self.rounds[-1].price if self.rounds else None


def simulate(
    traces: Sequence[Trace] | str | os.PathLike[str],
    budget: int | float | str,
    *,
    forecaster: Predictor | None = None,
    **settings: Any,
) -> Simulation:
    """Simulates a run over recorded answers, without a server. Exact for greedy answers.

    traces      of one model, as `collect` writes them; of several answers to a question the first is used
    budget      tokens: `200k`, `256/query`
    forecaster  None: the one in the package. A forecaster that was trained on these questions overstates the result.
    settings    fields of `engine.Settings`: policy, accounting, reclaim, max_tokens, landing, ...
                A landing states what the nearest earlier probe in the trace stated.
    """
    first: dict[tuple[str, str], Trace] = {}
    for trace in read_traces(traces) if isinstance(traces, str | os.PathLike) else traces:
        first.setdefault((trace.dataset, trace.id), trace)
    answers = list(first.values())
    if len(models := sorted({trace.model for trace in answers})) > 1:
        raise InputError(f"traces of several models: {', '.join(models)}", fix="simulate one at a time")
    if not answers:
        raise InputError("no traces", fix="give one or more")
    chosen = Settings(**{"concurrency": 1, **settings})
    if chosen.samples != 1 or chosen.rates.priced:
        raise InputError("samples and rates cannot be simulated", fix="leave them out")
    several = len({trace.id for trace in answers}) < len(answers)  # the same id in several datasets
    names = [f"{trace.dataset}/{trace.id}" if several else trace.id for trace in answers]
    requests = [Request(name, trace.prompt) for name, trace in zip(names, answers, strict=True)]
    predictor = forecaster or default()
    forecast = predict_all(predictor, requests)
    units = parse_budget(budget, len(requests))
    knows = {name: getattr(predictor, name, None) for name in ("anytime", "reader")}
    simulation = replay(requests, answers, forecast, units, chosen, **knows)
    return replace(simulation, command=f"{chosen.command(str(budget))} --base-url URL")


def replay(
    requests: Sequence[Request],
    answers: Sequence[Trace],
    forecast: Forecast,
    budget: int,
    settings: Settings,
    anytime: Anytime | None = None,
    reader: PartReader | None = None,
) -> Simulation:
    """Does the same with given forecasts; every request has its own id and one recorded answer."""
    probes = [probes_of(trace) for trace in answers]
    if settings.landing is not None and not all(0 in by_age for by_age in probes):
        raise InputError("landings can be simulated on probed traces only", fix="record them with collect --probe")
    scheduler = make_scheduler(settings, anytime=anytime, reader=reader)
    scheduler.add(requests, forecast)

    def answer(work: Work) -> Completion:
        """The next part of a recorded answer. One that was truncated in the recording never ends."""
        trace, age = answers[work.place], work.so_far.tokens if work.so_far else 0
        if work.suffix:
            _, tokens, stated = latest_probe(probes[work.place], age) or Probe(False, work.grant)
            whole = stated is not None and tokens <= work.grant
            return Completion(
                f"{stated}}}" if whole else "", min(tokens, work.grant), "stop" if whole else "length", "server"
            )
        text, left = trace.response or "", max(1, trace.tokens) - age
        start = len(text) * age // max(1, trace.tokens)
        if trace.truncated or left > work.grant:
            part = text[start : len(text) * (age + work.grant) // max(1, trace.tokens)]
            return Completion(part, work.grant, "length", "server")
        return Completion(text[start:], left, "stop", "server")

    def correct(work: Work, part: Completion) -> bool:
        if work.suffix:
            probe = latest_probe(probes[work.place], work.so_far.tokens if work.so_far else 0)
            return probe is not None and probe.correct
        return bool(answers[work.place].correct)

    outcome = engine.simulate(scheduler, answer, budget, correct=correct)
    by_id = {result.id: result for result in [*outcome.results, *outcome.rest]}
    graded = [_graded(by_id[request.id], trace) for request, trace in zip(requests, answers, strict=True)]
    sent = scheduler.probes if isinstance(scheduler, Lander) else 0
    return Simulation(graded, budget, outcome.spent, list(scheduler.rounds), probes=sent)


def _graded(result: Result, trace: Trace) -> Result:
    """Grades an answer that was cut after it had stated its final answer: like the whole, if both state the same."""
    if result.outcome != "landed" or result.correct is not None:
        return result
    same = boxes(result.text) == boxes(trace.response or "")
    return replace(result, correct=same and trace.correct is True)
