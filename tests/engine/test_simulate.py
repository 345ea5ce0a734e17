"""What the simulator says is what the executor does."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from shadowprice import Forecast, Request
from shadowprice.accounts.sqlite import Ledger
from shadowprice.backends.recorded import RecordedBackend
from shadowprice.datasets.shipped import shipped_traces
from shadowprice.engine import Settings, make_scheduler
from shadowprice.engine.executor import execute
from shadowprice.engine.fixed import Ages, Fixed
from shadowprice.engine.scheduler import Scheduler, Work
from shadowprice.engine.simulate import simulate
from shadowprice.forecast import default
from shadowprice.market import POLICIES
from shadowprice.types import Completion, Result, Trace

TRACES = shipped_traces("eval", "smollm2")[:200]
CAP = 512
REQUESTS = [
    Request(trace.id, trace.prompt, body={"messages": [{"role": "user", "content": trace.prompt}]}) for trace in TRACES
]
FORECAST = default().predict(REQUESTS)
PRACTICAL = [name for name in POLICIES if name not in ("oracle", "clairvoyant")]
CONFIGURATIONS = [
    *(Settings(name, reclaim=reclaim, max_tokens=CAP) for name in PRACTICAL for reclaim in (True, False)),
    *(Settings(name, "metered", max_tokens=CAP) for name in PRACTICAL),
    Settings("index", "metered", max_tokens=CAP),
    Settings("index", "metered", max_tokens=CAP, chunk=8),
    *(Settings(name, samples=3, max_tokens=CAP) for name in ("uniform", "expected")),
]


def name_of(settings: Settings) -> str:
    kind = settings.accounting if settings.reclaim else "no reclaim"
    return f"{settings.policy} {kind} {settings.chunk} {settings.samples}"


class Recorded(RecordedBackend):
    """Finds the trace of a prompt that states its limit, too."""

    async def complete(self, body, limit, **options):
        text = body["messages"][-1]["content"].partition("\n\nKeep the entire response")[0]
        return await super().complete({"messages": [{"role": "user", "content": text}]}, limit, **options)


def recorded(traces: list[Trace] = TRACES) -> Callable[[Work], Completion]:
    """The answers of a recorded backend, without a loop."""
    backend = Recorded(traces)

    def answer(work: Work) -> Completion:
        coroutine = backend.complete(work.body, work.grant, continue_from=work.so_far, suffix=work.suffix)
        try:
            coroutine.send(None)
        except StopIteration as stop:
            return stop.value
        raise AssertionError("it waited")

    return answer


def simulated(scheduler: Scheduler, budget: int) -> tuple[list[Result], int]:
    right = {trace.id: bool(trace.correct) for trace in TRACES}
    outcome = simulate(scheduler, recorded(), budget, correct=lambda work, found: right[work.request.id])
    return [*outcome.results, *outcome.rest], outcome.spent


def executed(scheduler: Scheduler, budget: int, concurrency: int = 1) -> tuple[list[Result], int]:
    results: list[Result] = []
    right = {trace.id: bool(trace.correct) for trace in TRACES}
    with Ledger.in_memory(budget) as ledger:
        asyncio.run(
            execute(
                scheduler,
                ledger,
                Recorded(TRACES),
                concurrency=concurrency,
                grade=lambda id, found: found.finish == "stop" and right[id],
                on_result=results.append,
            )
        )
        assert ledger.reserved == 0
        return results, ledger.spent


def without_grades(results: list[Result]) -> list[tuple]:
    return [(r.id, r.outcome, r.usage, r.cost, r.text, r.failure) for r in results]


@pytest.mark.parametrize("settings", CONFIGURATIONS, ids=name_of)
@pytest.mark.parametrize("per_query", [6, 25, 80])
def test_the_simulator_gives_what_the_executor_does_one_at_a_time(settings, per_query):
    budget = per_query * len(REQUESTS)
    ways = []
    for drive in (simulated, executed):
        scheduler = make_scheduler(replace(settings, concurrency=1))
        scheduler.add(REQUESTS, FORECAST)
        results, spent = drive(scheduler, budget)
        assert spent <= budget
        assert sorted(r.id for r in results) == sorted(r.id for r in REQUESTS)
        assert sum(r.cost for r in results) == spent
        ways.append((without_grades(results), spent, scheduler.rounds))
    assert ways[0] == ways[1]


@pytest.mark.parametrize("settings", [s for s in CONFIGURATIONS if s.policy != "index"], ids=name_of)
def test_eight_at_a_time_the_outcomes_are_the_same(settings):
    budget = 25 * len(REQUESTS)
    outcomes = []
    for drive in (simulated, lambda scheduler, budget: executed(scheduler, budget, concurrency=8)):
        scheduler = make_scheduler(settings)
        scheduler.add(REQUESTS, FORECAST)
        results, spent = drive(scheduler, budget)
        outcomes.append((sorted(without_grades(results), key=str), spent, [r.price for r in scheduler.rounds]))
    assert outcomes[0] == outcomes[1]


def test_eight_at_a_time_the_index_spends_no_more_than_its_budget():
    budget = 25 * len(REQUESTS)
    scheduler = make_scheduler(Settings("index", "metered", max_tokens=CAP, concurrency=8))
    scheduler.add(REQUESTS, FORECAST)
    results, spent = executed(scheduler, budget, concurrency=8)
    assert spent <= budget
    assert {r.id for r in results} == {r.id for r in REQUESTS}


@pytest.mark.parametrize("probe", [None, Ages.parse("0,4,50%")])
def test_collecting_is_the_same_too(probe):
    landed = [
        Trace(
            t.id,
            t.prompt,
            t.tokens,
            t.correct,
            t.truncated,
            response=t.response,
            extra={"landed": {"0": [True, 2, "7"]}},
        )
        for t in TRACES[:50]
    ]
    ways = []
    for live in (False, True):
        scheduler = Fixed(CAP, probe=probe)
        scheduler.add(REQUESTS[:50], Forecast([1.0] * 50))
        if live:
            results: list[Result] = []
            with Ledger.in_memory(10**6) as ledger:
                backend = RecordedBackend(landed)
                asyncio.run(execute(scheduler, ledger, backend, concurrency=1, on_result=results.append))
                spent = ledger.spent
        else:
            outcome = simulate(scheduler, recorded(landed), 10**6)
            results, spent = [*outcome.results, *outcome.rest], outcome.spent
        ways.append((without_grades(results), [r.extra for r in results], spent))
    assert ways[0] == ways[1]
    assert all(r.outcome in ("finished", "truncated") for r in results)
    if probe:
        assert all(r.extra["probes"]["0"] == ("7}", 2) for r in results)


PROBED = [trace for trace in shipped_traces("eval", "qwen2.5-coder-1.5b") if trace.tokens < 1000][:40]


@pytest.mark.parametrize("per_query", [30, 150, 400])
@pytest.mark.parametrize(
    "settings",
    [
        Settings("index", "metered", max_tokens=2048, landing="math"),
        Settings("uniform", "metered", max_tokens=2048, landing="math"),
        Settings("expected", max_tokens=2048, landing="math"),
        Settings("clear", reclaim=False, max_tokens=2048, landing="math"),
    ],
    ids=name_of,
)
def test_with_landings_too(settings, per_query):
    requests = [Request(t.id, t.prompt, body={"messages": [{"role": "user", "content": t.prompt}]}) for t in PROBED]
    ways = []
    for live in (False, True):
        scheduler = make_scheduler(replace(settings, concurrency=1), anytime=default().anytime)
        scheduler.add(requests, default().predict(requests))
        budget, results = per_query * len(requests), []
        if live:
            with Ledger.in_memory(budget) as ledger:
                backend = RecordedBackend(PROBED)
                asyncio.run(execute(scheduler, ledger, backend, concurrency=1, on_result=results.append))
                spent = ledger.spent
        else:
            outcome = simulate(scheduler, recorded(PROBED), budget)
            results, spent = [*outcome.results, *outcome.rest], outcome.spent
        assert any(result.outcome == "landed" for result in results)
        ways.append((without_grades(results), [result.extra for result in results], spent))
    assert ways[0] == ways[1]
