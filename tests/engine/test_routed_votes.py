"""Several answers where nothing is graded: they vote, under one budget, as long as that can change the result."""

import asyncio
from collections import Counter

import numpy as np
import pytest

from shadowprice import Forecast, Request
from shadowprice.accounts.sqlite import Ledger
from shadowprice.cost import Rates
from shadowprice.engine.executor import Channel, execute
from shadowprice.engine.routed import Routed
from shadowprice.engine.simulate import simulate
from shadowprice.formats.routes import Route
from shadowprice.types import Completion

CHEAP = Route("cheap", Rates.dollars("0.1", "0.1"), "http://cheap/v1")
DEAR = Route("dear", Rates.dollars("1", "1.2"), "http://dear/v1")
N, SAMPLES, AMPLE = 80, 5, 10**9


class World:
    """Questions, easy and hard, whose wrong answers rarely agree; every sixth answer says nothing final."""

    def __init__(self, routes=(CHEAP,), silent: float = 1 / 6) -> None:
        rng = np.random.default_rng(0)
        self.routes, self.chance = list(routes), {"cheap": 0.6, "dear": 0.8}
        easy = rng.beta(1.2, 0.8, N)
        self.said = {}
        for route in self.routes:
            correct = rng.random((N, SAMPLES)) < np.clip(easy * self.chance[route.name] / 0.6, 0, 1)[:, None]
            wrong = rng.integers(1, 8, (N, SAMPLES))
            self.said[route.name] = np.where(correct, 0, wrong)
            self.said[route.name][rng.random((N, SAMPLES)) < silent] = -1
        self.length = rng.lognormal(5, 0.3, (N, SAMPLES)).astype(int)
        self.requests = [Request(f"r{i}", "", body={"messages": [{"content": f"{i}"}]}) for i in range(N)]

    def scheduler(self, samples: int = SAMPLES, voted: bool = True) -> Routed:
        scheduler = Routed(self.routes, max_tokens=1000, samples=samples)
        forecasts = [Forecast(np.full(N, 150.0), 0.4, self.chance[route.name]) for route in self.routes]
        scheduler.add(self.requests, forecasts, voted=[voted] * N)
        return scheduler

    def answer(self, route: str, place: int, sample: int, grant: int) -> Completion:
        length = int(self.length[place, sample])
        finish = "stop" if length <= grant else "length"
        text = f"{route} {place} {sample}"
        return Completion(text, min(length, grant), finish, "server", input_tokens=9, body={"choices": []})

    def vote(self, _id: str, answer: Completion) -> str | None:
        said = self.says(answer.text)
        return None if said < 0 or answer.finish != "stop" else f"answer {said}"

    def says(self, text: str) -> int:
        route, place, sample = text.split()
        return int(self.said[route][int(place), int(sample)])

    def simulated(self, budget: int, scheduler: Routed):
        outcome = simulate(
            scheduler,
            lambda work: self.answer(work.route, work.place, work.sample, work.grant),
            budget,
            rates={route.name: route.rates for route in self.routes},
            vote=lambda work, found: self.vote("", found),
        )
        return outcome, [*outcome.results, *outcome.rest]

    def correct(self, results) -> int:
        return sum(bool(result.text) and self.says(result.text) == 0 for result in results)


def test_votes_decide_and_results_say_how_many():
    world = World()
    outcome, results = world.simulated(AMPLE, world.scheduler())
    assert world.correct(results) > world.correct(world.simulated(AMPLE, world.scheduler(1))[1]) + 5
    for result in results:
        _, place, sample = result.text.split()
        bought = [
            (work, found) for work, found in zip(outcome.work, outcome.found, strict=True) if work.place == int(place)
        ]
        votes = Counter(world.vote("", found) for _, found in bought)
        del votes[None]
        mine = world.vote("", result.completion)
        assert result.extra["samples"] == len(bought) <= SAMPLES
        assert result.extra["sample"] == int(sample)
        assert result.extra["votes"] == votes[mine] == max(votes.values(), default=0)
        assert result.cost == sum(result.extra["charged"].values())
        assert result.usage.output == sum(found.tokens for _, found in bought), "all answers are counted"
        assert len({work.body["seed"] for work, _ in bought}) == len(bought), "samples differ"


def test_nothing_is_bought_once_it_cannot_change_the_result():
    world = World(silent=0.0)
    _, results = world.simulated(AMPLE, world.scheduler(3))
    bought = Counter(result.extra["samples"] for result in results)
    assert bought[2] > 20, "two that agree are enough of three"
    assert bought[3] > 5
    assert set(bought) == {2, 3}
    _, results = world.simulated(AMPLE, world.scheduler(2))
    assert {result.extra["samples"] for result in results} == {1}, "a second alone decides nothing"


def test_one_sample_and_requests_without_votes_are_as_before():
    world = World()
    plain = [(r.id, r.text, r.cost) for r in world.simulated(400_000, world.scheduler(1, voted=False))[1]]
    for scheduler in (world.scheduler(1), world.scheduler(SAMPLES, voted=False)):
        _, results = world.simulated(AMPLE, scheduler)
        assert all(result.extra.get("samples", 1) == 1 for result in results)
        assert all("votes" not in result.extra for result in results)
    assert [(r.id, r.text, r.cost) for r in world.simulated(400_000, world.scheduler(1))[1]] == plain


@pytest.mark.parametrize("budget", [100_000, 400_000, 900_000, 2_500_000])
@pytest.mark.parametrize("routes", [(CHEAP,), (CHEAP, DEAR)])
def test_a_budget_is_never_exceeded_and_votes_lose_nothing(budget, routes):
    world = World(routes)
    outcome, results = world.simulated(budget, world.scheduler())
    assert outcome.spent <= budget
    assert sum(result.cost for result in results) == outcome.spent
    assert world.correct(results) >= world.correct(world.simulated(budget, world.scheduler(1))[1]) - 3


def test_a_scarce_budget_buys_no_votes():
    world = World()
    outcome, results = world.simulated(700_000, world.scheduler())
    assert sum(result.completion is not None for result in results) > N / 3
    assert max(Counter(work.place for work in outcome.work).values()) == 1


def test_an_answer_that_ran_into_its_own_limit_is_bought_again_and_one_that_the_price_cut_is_not():
    world = World(silent=0.0)
    scheduler = world.scheduler()
    for place, tokens in ((3, 1000), (4, 500)):
        part = Completion(f"cheap {place} 0", tokens, "length", "server", input_tokens=9)
        scheduler.restore(place, part, sample=0, route="cheap")
    outcome, results = world.simulated(AMPLE, scheduler)
    bought = Counter(work.place for work in outcome.work)
    assert bought[3] >= 1
    assert bought[4] == 0
    outcomes = {result.id: result.outcome for result in results}
    assert (outcomes["r3"], outcomes["r4"]) == ("finished", "truncated")


def test_a_dearer_route_may_overrule_a_cheaper_one():
    world = World((CHEAP, DEAR))
    outcome, results = world.simulated(6_000_000, world.scheduler())
    routes = {place: {work.route for work in outcome.work if work.place == place} for place in range(N)}
    assert sum(len(each) == 2 for each in routes.values()) > 5
    for result in results:
        if result.completion is not None:
            assert sum(result.extra["charged"].values()) == result.cost


class Backend:
    model = ""

    def __init__(self, world: World, route: str) -> None:
        self.world, self.route = world, route

    def can_continue(self, body):
        return False

    async def complete(self, body, limit, **options):
        return self.world.answer(self.route, int(body["messages"][0]["content"]), body["seed"], limit)


def test_what_the_simulator_says_is_what_the_executor_does():
    world, budget = World((CHEAP, DEAR)), 3_000_000
    _, simulated = world.simulated(budget, world.scheduler())
    live = []
    with Ledger.in_memory(budget) as ledger:
        channels = {route.name: Channel(Backend(world, route.name), route.rates) for route in world.routes}
        asyncio.run(execute(world.scheduler(), ledger, channels, on_result=live.append, vote=world.vote, concurrency=1))
        assert ledger.spent == sum(result.cost for result in simulated)
    seen = [{result.id: (result.outcome, result.extra, result.cost) for result in each} for each in (live, simulated)]
    assert seen[0] == seen[1]


def test_a_vote_that_fails_is_none():
    world = World()

    def fails(id, answer):
        raise ValueError("unreadable")

    live = []
    with Ledger.in_memory(AMPLE) as ledger:
        channels = {"cheap": Channel(Backend(world, "cheap"), CHEAP.rates)}
        asyncio.run(execute(world.scheduler(), ledger, channels, on_result=live.append, vote=fails))
    assert {result.outcome for result in live} == {"finished"}
    assert {result.extra["votes"] for result in live} == {0}


def test_answers_at_hand_before_a_restart_vote_and_are_not_bought_again():
    world = World(silent=0.0)
    scheduler = world.scheduler()
    before = [world.answer("cheap", 3, sample, 1000) for sample in range(2)]
    for sample, answer in enumerate(before):
        scheduler.restore(3, answer, sample=sample, route="cheap", vote=f"answer {sample}")
    outcome, results = world.simulated(AMPLE, scheduler)
    after = [(work, found) for work, found in zip(outcome.work, outcome.found, strict=True) if work.place == 3]
    assert after, "two that differ decide nothing"
    assert [work.sample for work, _ in after] == [*range(2, 2 + len(after))]
    (result,) = [result for result in results if result.id == "r3"]
    assert result.extra["samples"] == 2 + len(after)
    paid = sum(CHEAP.rates.cost(each.usage) for each in [*before, *(found for _, found in after)])
    assert result.extra["charged"] == {"cheap": paid}
