"""Several routes, one budget: who answers what, what happens when a route fails, and that nothing is overspent."""

import asyncio
import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice import Forecast, Request
from shadowprice.accounts.sqlite import Ledger
from shadowprice.cost import Rates, prompt_bound
from shadowprice.engine.executor import Channel, Tolerance, execute
from shadowprice.engine.routed import Routed
from shadowprice.engine.scheduler import Report
from shadowprice.engine.simulate import simulate
from shadowprice.errors import Denied, Refused, Unavailable
from shadowprice.forecast.calibration import Calibration
from shadowprice.forecast.revise import Evidence, Reviser
from shadowprice.formats.routes import Route
from shadowprice.types import Completion, Trace

CHEAP = Route("cheap", Rates.dollars("0.1", "0.1"), "http://cheap/v1")
DEAR = Route("dear", Rates.dollars("1", "1.2"), "http://dear/v1")
RATES = {route.name: route.rates for route in (CHEAP, DEAR)}
FAST = Tolerance(patience=0.2, pause=0.001)


def body(i: int) -> dict:
    return {"messages": [{"role": "user", "content": f"question {i} " + "x" * (i % 50)}]}


class World:
    """Easy questions that both models answer, and hard ones that only the dear one does."""

    def __init__(self, n: int = 200, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.n, self.hard = n, rng.random(n) < 0.4
        self.length = {"cheap": rng.lognormal(5, 0.4, n).astype(int), "dear": rng.lognormal(5.2, 0.4, n).astype(int)}
        chance = {"cheap": np.where(self.hard, 0.1, 0.9), "dear": np.where(self.hard, 0.85, 0.95)}
        self.correct = {name: rng.random(n) < p for name, p in chance.items()}
        self.requests = [Request(f"r{i}", "", body=body(i)) for i in range(n)]
        self.forecasts = [
            Forecast(np.full(n, 150.0), 0.5, chance["cheap"]),
            Forecast(np.full(n, 180.0), 0.5, chance["dear"]),
        ]

    def answer(self, route: str, place: int, grant: int) -> Completion:
        length = int(self.length[route][place])
        finish = "stop" if length <= grant else "length"
        return Completion("", min(length, grant), finish, "server", input_tokens=40, body={"choices": []})

    def scheduler(self, routes=(CHEAP, DEAR), **options) -> Routed:
        scheduler = Routed(routes, max_tokens=1000, **options)
        names = [route.name for route in (CHEAP, DEAR)]
        scheduler.add(self.requests, [self.forecasts[names.index(route.name)] for route in routes])
        return scheduler

    def simulated(self, budget: int, scheduler: Routed | None = None):
        scheduler = scheduler or self.scheduler()
        outcome = simulate(scheduler, lambda work: self.answer(work.route, work.place, work.grant), budget, rates=RATES)
        return outcome, [*outcome.results, *outcome.rest]

    def score(self, results) -> int:
        done = [result for result in results if result.outcome == "finished"]
        return sum(bool(self.correct[result.extra["route"]][int(result.id[1:])]) for result in done)


class Backend:
    """A route of the world; `faults` are raised first, one per call."""

    model = ""

    def __init__(self, world: World, route: str, faults=(), delay: float = 0.0) -> None:
        self.world, self.route, self.faults, self.delay = world, route, list(faults), delay
        self.sent = self.under_way = self.most = 0
        self.seen: Counter = Counter()

    def can_continue(self, body):
        return False

    async def complete(self, body, limit, **options):
        self.sent += 1
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(self.delay)
        self.under_way -= 1
        if self.faults:
            fault = self.faults.pop(0)
            if fault is not None:
                raise fault
        place = int(body["messages"][0]["content"].split()[1])
        self.seen[place] += 1
        return self.world.answer(self.route, place, limit)


def executed(world: World, budget: int, cheap: Backend, dear: Backend, scheduler: Routed | None = None, **options):
    scheduler = scheduler or world.scheduler()
    results = []
    with Ledger.in_memory(budget) as ledger:
        channels = {"cheap": Channel(cheap, CHEAP.rates), "dear": Channel(dear, DEAR.rates)}
        options = {"concurrency": 4, "tolerance": FAST, **options}
        progress = asyncio.run(execute(scheduler, ledger, channels, on_result=results.append, **options))
        assert ledger.reserved == 0
        assert ledger.spent <= budget
        assert ledger.overspent == 0
        return results, progress, ledger.spent


def test_hard_questions_go_to_the_dear_route_and_easy_ones_to_the_cheap_one():
    world = World()
    budget = 22_000_000  # all cheap: about 3.5 million nano-dollars; all dear: about 55 million
    outcome, results = world.simulated(budget)
    answered = [result for result in results if result.completion]
    routes = np.array([result.extra["route"] for result in answered])
    hard = world.hard[[int(result.id[1:]) for result in answered]]
    assert np.mean(routes[hard] == "dear") > 0.7
    assert np.mean(routes[~hard] == "cheap") > 0.9
    assert 0.9 * budget < outcome.spent <= budget


@pytest.mark.slow
def test_both_routes_together_beat_either_alone_at_the_same_money():
    world = World(400)
    for budget in (20_000_000, 45_000_000):
        together = world.score(world.simulated(budget)[1])
        alone = [world.score(world.simulated(budget, world.scheduler([route]))[1]) for route in (CHEAP, DEAR)]
        assert together > max(alone) + 20


def test_an_ample_budget_buys_everybody_the_best():
    world = World(60)
    _, results = world.simulated(10**9)
    assert {result.extra["route"] for result in results} == {"dear"}
    assert not any(result.outcome == "declined" for result in results)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), budget=st.integers(0, 10**7), n=st.integers(1, 40))
def test_no_budget_is_exceeded_and_none_stays_idle(seed, budget, n):
    world = World(n, seed)
    outcome, results = world.simulated(budget)  # `simulate` asserts every bound
    assert sorted(result.id for result in results) == sorted(request.id for request in world.requests)
    assert outcome.spent == sum(result.cost for result in results) <= budget
    if any(result.outcome == "declined" for result in results):  # not one more could be begun
        assert budget - outcome.spent < CHEAP.rates.bound(400, 1000)


@pytest.mark.slow
def test_what_the_simulator_says_is_what_the_executor_does():
    world = World(120)
    _, simulated = world.simulated(9_000_000)
    results, _, spent = executed(world, 9_000_000, Backend(world, "cheap"), Backend(world, "dear"), concurrency=1)
    assert {result.id: result for result in results} == {result.id: result for result in simulated}
    assert spent == sum(result.cost for result in simulated)


def test_units_are_kept_by_route():
    world = World(80)
    scheduler = world.scheduler()
    results, _, spent = executed(world, 10**7, Backend(world, "cheap"), Backend(world, "dear"), scheduler)
    by_route = Counter()
    for result in results:
        by_route.update(result.extra.get("charged", {}))
    assert sum(by_route.values()) == spent
    assert dict(by_route) == {name: units for name, units in scheduler.units.items() if units}


@pytest.mark.parametrize("seed", range(3))
def test_concurrent_failures_never_overspend(seed):
    world, draw = World(100, seed), random.Random(seed)

    def faults():
        kinds = [None, None, Unavailable("503", tokens=0), Unavailable("lost", tokens=None), Refused("400")]
        return [draw.choice(kinds) for _ in range(60)]

    cheap, dear = Backend(world, "cheap", faults(), 0.001), Backend(world, "dear", faults(), 0.001)
    results, _, spent = executed(world, 12_000_000, cheap, dear, concurrency=16)
    assert len({result.id for result in results}) == len(results) == 100
    assert spent <= 12_000_000


def test_a_request_that_one_route_refuses_is_answered_by_another():
    world = World(30)
    dear = Backend(world, "dear", [Refused("content filter", code="filtered")] * 5)
    results, progress, _ = executed(world, 10**9, Backend(world, "cheap"), dear)
    routes = Counter(result.extra["route"] for result in results)
    assert routes == {"dear": 25, "cheap": 5}
    assert not progress.dropped


def test_a_dead_route_leaves_the_menu_and_the_run_ends_without_it():
    world = World(60)
    dear = Backend(world, "dear", [Unavailable("connection refused", tokens=0, sent=False)] * 1000)
    results, progress, _ = executed(world, 10**9, Backend(world, "cheap"), dear)
    assert {result.extra["route"] for result in results} == {"cheap"}
    assert len(results) == 60
    assert list(progress.dropped) == ["dear"]
    assert dear.sent < 20
    assert not progress.stopped


def test_a_route_with_a_wrong_key_leaves_the_menu():
    world = World(60)
    dear = Backend(world, "dear", [Denied("401: wrong key")] * 1000)
    results, progress, _ = executed(world, 10**9, Backend(world, "cheap"), dear)
    assert {result.extra["route"] for result in results} == {"cheap"}
    assert "dear" in progress.dropped


def test_the_last_route_is_waited_for_and_then_ends_the_run():
    world = World(20)
    faults = [Unavailable("connection refused", tokens=0, sent=False)] * 1000
    results, progress, spent = executed(world, 10**9, Backend(world, "cheap", faults), Backend(world, "dear", faults))
    assert "unavailable" in progress.stopped
    assert spent == 0
    assert {result.outcome for result in results} <= {"not_sent", "failed"}


def test_a_server_that_lost_an_answer_is_charged_and_the_request_falls_back():
    world = World(1)
    dear = Backend(world, "dear", [Unavailable("reset", tokens=None)] * 4)
    scheduler = world.scheduler()
    (result,), _, spent = executed(world, 10**9, Backend(world, "cheap"), dear, scheduler, attempts=4)
    assert result.outcome == "finished"
    assert result.cost == spent
    assert scheduler.units["dear"] > 0


def test_places_in_flight_are_those_of_the_route():
    world = World(60)
    cheap, dear = Backend(world, "cheap", delay=0.002), Backend(world, "dear", delay=0.002)
    with Ledger.in_memory(7_000_000) as ledger:
        channels = {"cheap": Channel(cheap, CHEAP.rates, 5), "dear": Channel(dear, DEAR.rates, 2)}
        asyncio.run(execute(world.scheduler(), ledger, channels, concurrency=6))
    assert cheap.most <= 5
    assert dear.most <= 2
    assert min(cheap.sent, dear.sent) > 5


def test_a_context_that_is_too_short_takes_a_route_off_the_menu_of_that_request():
    world = World(40)
    tight = replace(DEAR, context=330)  # prompts differ by up to 50 bytes
    scheduler = world.scheduler([CHEAP, tight])
    _, results = world.simulated(10**9, scheduler)
    room = [tight.room(request) for request in world.requests]
    assert min(room) == 0 < max(room)
    for result in results:
        if room[int(result.id[1:])] == 0:
            assert result.extra["route"] == "cheap"


def test_results_of_an_earlier_execution_are_not_bought_again():
    world = World(40)
    _, before = world.simulated(10**9)
    scheduler = world.scheduler()
    for place in range(20):
        scheduler.restore(place, next(result for result in before if result.id == f"r{place}"))
    outcome, results = world.simulated(10**9, scheduler)
    assert {result.id for result in results} == {f"r{place}" for place in range(20, 40)}
    assert scheduler.units["dear"] == sum(result.cost for result in before)
    assert outcome.spent < scheduler.units["dear"]


class TestCascade:
    """The cheap model's long answers are wrong ones, so its answers say when to ask the dear one."""

    @staticmethod
    def world() -> World:
        world = World(400, seed=5)
        rng = np.random.default_rng(6)
        hard = world.hard
        world.length["cheap"] = np.where(hard, rng.lognormal(5.8, 0.2, 400), rng.lognormal(4.8, 0.2, 400)).astype(int)
        world.forecasts = [  # the text says nothing
            Forecast(np.full(400, 150.0), 0.8, np.full(400, 0.58)),
            Forecast(np.full(400, 180.0), 0.5, np.full(400, 0.9)),
        ]
        return world

    @staticmethod
    def traces(world: World, route: str, n: int = 400) -> list[Trace]:
        lengths, grades = world.length[route], world.correct[route]
        return [Trace(f"r{i}", f"q{i}", int(lengths[i]), bool(grades[i])) for i in range(n)]

    @classmethod
    def revisers(cls, world: World) -> dict:
        scout = Evidence(world.length["cheap"][:200])
        first = range(200)
        return {
            ("cheap", route): Reviser.fit(world.forecasts[at].take(first), scout, cls.traces(world, route, 200))
            for at, route in enumerate(("cheap", "dear"))
        }

    def test_a_revision_of_one_request_leaves_the_others_as_they_were(self):
        """A forecast has one shape: a revised one must not take it from all other requests of the route."""
        world = self.world()
        shape = Calibration.fit(world.forecasts[1], self.traces(world, "dear")).shape
        world.forecasts[1] = Forecast(np.full(400, 180.0), 0.5, 0.9, shape=shape)
        scheduler = world.scheduler(revisers=self.revisers(world))
        scheduler.restore(3, Completion("42", 400, "stop", "server", input_tokens=40), route="cheap")
        revised = scheduler._sites[1].forecast
        assert revised.shape is shape
        assert revised.tokens[3] != 180.0
        np.testing.assert_array_equal(np.delete(revised.tokens, 3), 180.0)

    def test_a_revision_starts_from_the_forecasts_that_its_reviser_was_fitted_to(self):
        """Those hardly differ between requests, so others are far from all that the reviser has seen."""
        world, rng = self.world(), np.random.default_rng(1)
        alike = Forecast(180.0 * np.exp(0.01 * rng.normal(size=400)), 0.5, 0.9)
        later = Forecast(alike.tokens * 1.2, 0.5, 0.9)  # of a forecaster that has seen more
        evidence = Evidence(world.length["cheap"])
        revisers = {("cheap", "dear"): Reviser.fit(alike, evidence, self.traces(world, "dear"))}
        scheduler = Routed((CHEAP, DEAR), max_tokens=1000, revisers=revisers)
        scheduler.add(world.requests, [world.forecasts[0], later], [world.forecasts[0], alike])
        for place in range(100):
            scheduler.restore(place, world.answer("cheap", place, 10_000), route="cheap")
        found, told = scheduler._sites[1].forecast.tokens, np.median(world.length["dear"])
        assert np.median(found[:100]) == pytest.approx(told, rel=0.1)
        np.testing.assert_array_equal(found[100:], later.tokens[100:])

    @pytest.mark.slow
    def test_an_answer_that_is_likely_wrong_is_bought_again_from_a_dearer_route(self):
        world = self.world()
        budget = 25_000_000
        plain = world.score(world.simulated(budget)[1])
        scheduler = world.scheduler(revisers=self.revisers(world))
        outcome, results = world.simulated(budget, scheduler)
        assert world.score(results) > plain + 10
        assert outcome.spent <= budget
        bought_twice = [result for result in results if len(result.extra.get("charged", {})) == 2]
        assert np.mean(world.hard[[int(result.id[1:]) for result in bought_twice]]) > 0.8

    def test_a_cut_answer_of_the_dearer_route_does_not_replace_the_one_at_hand(self):
        world = self.world()
        scheduler = world.scheduler(revisers=self.revisers(world))
        work = scheduler.next(8_000_000)
        assert work.route == "cheap"
        assert scheduler.done(Report(work, 10, replace(world.answer("cheap", work.place, 1000), tokens=400))) is None
        dearer = work._replace(route="dear", grant=5)
        scheduler._running[work.place] = dearer, 1.0
        result = scheduler.done(Report(dearer, 10, Completion("", 5, "length", "server")))
        assert (result.extra["route"], result.cost) == ("cheap", 20)

    def test_an_answer_at_hand_survives_a_restart(self):
        world = self.world()
        scheduler = world.scheduler(revisers=self.revisers(world))
        at_hand = Completion("42", 400, "stop", "server", input_tokens=40)
        scheduler.restore(3, at_hand, route="cheap")
        scheduler.charged({3: 77})
        (kept,) = [result for result in scheduler.close() if result.id == "r3"]
        assert (kept.outcome, kept.text, kept.cost) == ("finished", "42", 77)


@pytest.mark.parametrize(("share", "least", "most"), [(4.0, 4, 4), (1.0, 1, 4), (0.99, 0, 0)])
def test_no_budget_stays_idle_while_requests_wait_that_promise_nothing(share, least, most):
    """Forecasts far beyond the limit: every request that the budget can serve is served, where that costs the least."""
    requests = [Request(f"r{i}", "", body=body(0)) for i in range(4)]
    budget = int(share * CHEAP.rates.bound(prompt_bound(body(0)), 80))
    scheduler = Routed([DEAR, CHEAP], max_tokens=80)
    scheduler.add(requests, Forecast(np.full(4, 1e7), 0.1, 0.5))
    short = Completion("", 20, "stop", "server", input_tokens=40, body={"choices": []})
    outcome = simulate(scheduler, lambda work: short, budget, rates=RATES)
    outcomes = Counter(result.outcome for result in [*outcome.results, *outcome.rest])
    assert least <= outcomes["finished"] <= most
    assert outcomes["finished"] + outcomes["declined"] == 4
    assert all(work.route == "cheap" for work in outcome.work)
