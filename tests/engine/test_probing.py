"""Probes during a run: a model that knows its answers early is stopped earlier, and one that does not is not probed.

Budget, crashes and failures: test_contract has configurations with probes."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from shadowprice import Forecast, Request, Trace
from shadowprice.accounts.sqlite import Ledger
from shadowprice.backends.recorded import RecordedBackend
from shadowprice.engine import Settings, make_scheduler
from shadowprice.engine.executor import execute
from shadowprice.engine.scheduler import Report
from shadowprice.engine.simulate import simulate
from shadowprice.errors import Unavailable
from shadowprice.forecast.landing import fit_landing
from shadowprice.market.anytime import Anytime
from shadowprice.market.evidence import Evidence
from shadowprice.simulation import replay

from .test_landing import LANDING, Model, _varied, requests
from .test_simulate import recorded, without_grades

MEDIAN, SPREAD, SOLVE = 1500.0, 1.0, 0.7
CAP = 20_000
SETTINGS = Settings("index", concurrency=1, max_tokens=CAP, landing="math")
EARLY = Anytime((0.0, 1.0), (0.0, 0.5), 4.0, Evidence((0.1, 0.3, 0.6), (0.0, 0.5, 0.5), (1.0, 0.0, 0.0)))


def forecast(n):
    """Nothing is known of a single answer: the same forecast for each."""
    return Forecast([MEDIAN] * n, SPREAD, [SOLVE] * n)


def traces(n, seed, known, change=1.0):
    """Answers that are known from this share of their length on. Before that the model guesses, and `change` is how
    often it changes its mind within 64 tokens."""
    rng = np.random.default_rng(seed)
    found = []
    for i in range(n):
        tokens, correct, guess = int(MEDIAN * np.exp(SPREAD * rng.normal())) + 1, bool(rng.random() < SOLVE), "-1"
        landed = {}
        for age in range(0, tokens, 64):
            guess = str(rng.integers(1000)) if rng.random() < change else guess
            stated = str(1000 + correct) if age >= known * tokens else guess
            landed[str(age)] = [stated == "1001", 4, stated]
        text = " ".join(map(str, range(tokens // 4)))
        found.append(Trace(f"q{i}", f"question {i}", tokens, correct, response=text, extra={"landed": landed}))
    return found


def correct(known, per_query, change=1.0, n=200, seed=1):
    """Correct answers without and with probes, and the number of probes."""
    anytime = fit_landing(forecast(400), traces(400, 0, known, change))
    answers = traces(n, seed, known, change)
    asked = [Request(trace.id, trace.prompt) for trace in answers]
    ways = [
        replay(asked, answers, forecast(n), per_query * n, SETTINGS, each)
        for each in (replace(anytime, evidence=None), anytime)
    ]
    assert all(way.spent <= per_query * n for way in ways)
    return ways[0].correct, ways[1].correct, ways[1].probes


def test_a_long_thinker_that_knows_its_answer_early_answers_more_questions():
    """Known at 30% of the length, and the rest is checking: 4 points more at least, over three draws of questions."""
    draws = [correct(0.3, int(0.75 * MEDIAN), seed=seed) for seed in (1, 2, 3)]
    assert all(probes > 200 for _, _, probes in draws)
    assert sum(with_probes - without for without, with_probes, _ in draws) >= 24


@pytest.mark.parametrize("change", [1.0, 0.5])
@pytest.mark.parametrize("times", [0.25, 0.5, 1])
def test_a_model_that_knows_its_answer_only_at_the_end_is_not_probed(times, change):
    without, with_probes, probes = correct(1.0, int(times * MEDIAN), change)
    assert (with_probes, probes) == (without, 0)


def test_with_an_ample_budget_nothing_is_probed():
    without, with_probes, probes = correct(0.3, CAP + 16, n=50)
    assert (with_probes, probes) == (without, 0)


@pytest.mark.parametrize("per_query", [100, 400, 900])
@pytest.mark.parametrize("policy", ["index", "auto"])
def test_what_is_simulated_is_what_is_executed(policy, per_query):
    answers = traces(30, 1, 0.3)
    asked = [Request(t.id, t.prompt, body={"messages": [{"role": "user", "content": t.prompt}]}) for t in answers]
    anytime = fit_landing(forecast(400), traces(400, 0, 0.3))
    ways, probes = [], []
    for live in (False, True):
        scheduler = make_scheduler(replace(SETTINGS, policy=policy), anytime=anytime)
        scheduler.add(asked, forecast(30))
        budget, results = per_query * 30, []
        if live:
            with Ledger.in_memory(budget) as ledger:
                backend = RecordedBackend(answers)
                asyncio.run(execute(scheduler, ledger, backend, concurrency=1, on_result=results.append))
                spent = ledger.spent
        else:
            outcome = simulate(scheduler, recorded(answers), budget)
            results, spent = [*outcome.results, *outcome.rest], outcome.spent
        assert spent <= budget
        assert sum(result.cost for result in results) == spent
        ways.append((without_grades(results), [result.extra for result in results], spent, scheduler.rounds))
        probes.append(scheduler.probes)
    assert ways[0] == ways[1]
    assert probes[0] == probes[1] > 0


def test_in_reserved_accounting_and_without_evidence_nothing_is_probed():
    answers = traces(60, 1, 0.3)
    asked = [Request(trace.id, trace.prompt) for trace in answers]
    anytime = fit_landing(forecast(400), traces(400, 0, 0.3))
    for settings in (
        Settings("expected", concurrency=1, landing="math"),
        Settings("uniform", "metered", landing="math"),
    ):
        ways = [
            replay(asked, answers, forecast(60), 60 * 700, settings, each)
            for each in (anytime, replace(anytime, evidence=None))
        ]
        assert ways[0] == ways[1]
        assert ways[0].probes == 0


class Scheduled:
    """A scheduler with two requests and a budget for little more than one, driven by hand."""

    def __init__(self, stated=("7}", "7}")):
        self.model, self.stated, self.left = Model([3000, 3000]), list(stated), 700
        self.model.completion = _varied(self.model.completion)
        self.scheduler = self.make()

    def make(self):
        scheduler = make_scheduler(SETTINGS, anytime=EARLY)
        scheduler.add(requests(2), Forecast([600.0, 620.0], 0.5, [0.9, 0.9]))
        return scheduler

    def send(self):
        return self.scheduler.next(self.left)

    def answer(self, work):
        found = self.model(work)
        if work.suffix:
            found = replace(found, text=self.stated.pop(0))
        self.left -= found.tokens
        self.scheduler.done(Report(work, found.tokens, found))
        return found

    def until_probed(self, times):
        """The parts of the first answer up to its probe, in order."""
        kept = []
        while times:
            work = self.send()
            kept.append((work.place, self.answer(work), bool(work.suffix)))
            times -= bool(work.suffix)
        return kept


def test_a_request_whose_probes_agree_gives_way_and_one_whose_probes_differ_does_not():
    for second, goes_on in (("7}", False), ("8}", True)):
        world = Scheduled(["7}", second])
        kept = world.until_probed(2)
        assert {place for place, _, _ in kept} == {kept[0][0]}
        assert (world.send().place == kept[0][0]) is goes_on


def test_a_resumed_run_knows_what_probes_said():
    world = Scheduled()
    kept = world.until_probed(2)
    expected = world.send()
    world.scheduler = world.make()
    for place, part, landing in kept:
        world.scheduler.restore(place, part, landing=landing)
    resumed = world.send()
    assert (resumed.place, resumed.so_far, resumed.suffix) == (expected.place, expected.so_far, "")
    assert resumed.place != kept[0][0]
    results = {result.id: result for result in world.scheduler.close()}
    landed = results[f"q{kept[0][0]}"]
    assert (landed.outcome, landed.cost) == ("landed", sum(part.tokens for _, part, _ in kept))
    assert landed.text.endswith(LANDING.text + "7}")


def test_a_probe_that_fails_is_charged_and_the_answer_is_continued():
    world = Scheduled()
    work = world.send()
    while not work.suffix:
        world.answer(work)
        work = world.send()
    assert world.scheduler.done(Report(work, work.bound, error=Unavailable("lost", tokens=None))) is None
    again = world.send()
    assert (again.place, again.suffix, again.so_far) == (work.place, "", work.so_far)


def test_a_probe_that_cannot_be_paid_is_left_out():
    world = Scheduled()
    first = world.send()
    world.answer(first)
    world.left = 25
    work = world.send()
    assert work is None or work.bound <= 25
