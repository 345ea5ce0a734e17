"""Several samples per request and route: bought one by one, and no more once a grader finds one correct."""

import asyncio

import numpy as np
import pytest

from shadowprice import Forecast, Request
from shadowprice.accounts.sqlite import Ledger
from shadowprice.cost import Rates
from shadowprice.engine.executor import Channel, execute
from shadowprice.engine.routed import Routed
from shadowprice.engine.simulate import simulate
from shadowprice.formats.routes import Route
from shadowprice.market.pieces import Pieces
from shadowprice.market.samples import any_correct, next_samples
from shadowprice.types import Completion

CHEAP = Route("cheap", Rates.dollars("0.1", "0.1"), "http://cheap/v1")
DEAR = Route("dear", Rates.dollars("1", "1.2"), "http://dear/v1")
RATES = {route.name: route.rates for route in (CHEAP, DEAR)}
N, SAMPLES = 60, 4


class World:
    """Questions that the cheap route answers correctly every other time, and the dear one a bit more often."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.correct = {"cheap": rng.random((N, SAMPLES)) < 0.5, "dear": rng.random((N, SAMPLES)) < 0.6}
        self.length = rng.lognormal(5, 0.3, (N, SAMPLES)).astype(int)
        self.requests = [Request(f"r{i}", "", body={"messages": [{"content": f"{i}"}]}) for i in range(N)]

    def scheduler(self, samples: int = SAMPLES) -> Routed:
        scheduler = Routed([CHEAP, DEAR], max_tokens=1000, samples=samples, correlation=0.1)
        scheduler.add(self.requests, [Forecast(np.full(N, 150.0), 0.4, chance) for chance in (0.5, 0.6)])
        return scheduler

    def answer(self, route: str, place: int, sample: int, grant: int) -> Completion:
        length = int(self.length[place, sample])
        finish = "stop" if length <= grant else "length"
        text = f"{route} {place} {sample}"
        return Completion(text, min(length, grant), finish, "server", input_tokens=9, body={"choices": []})

    def grade(self, _id: str, answer: Completion) -> bool:
        route, place, sample = answer.text.split()
        return bool(self.correct[route][int(place), int(sample)])

    def simulated(self, budget: int, scheduler: Routed):
        outcome = simulate(
            scheduler,
            lambda work: self.answer(work.route, work.place, work.sample, work.grant),
            budget,
            rates=RATES,
            correct=lambda work, found: self.grade("", found),
        )
        return outcome, [*outcome.results, *outcome.rest]


def correct(results) -> int:
    return sum(result.correct is True for result in results)


def test_samples_stop_at_the_first_that_is_correct_and_results_say_which():
    world = World()
    outcome, results = world.simulated(10**9, world.scheduler())
    assert correct(results) > correct(world.simulated(10**9, world.scheduler(1))[1]) + 10
    for result in results:
        route, place, sample = result.text.split()
        assert (result.extra["route"], result.extra["sample"]) == (route, int(sample))
        bought = [work for work in outcome.work if work.place == int(place)]
        verdicts = [world.correct[work.route][work.place, work.sample] for work in bought]
        assert not any(verdicts[:-1]), "nothing is bought after a correct answer"
        assert len({(work.route, work.sample) for work in bought}) == len(bought), "no sample is bought twice"
        assert result.cost == sum(result.extra["charged"].values())


@pytest.mark.parametrize("budget", [200_000, 800_000, 3_000_000])
def test_a_scarce_budget_is_never_exceeded_and_samples_help(budget):
    world = World()
    outcome, results = world.simulated(budget, world.scheduler())
    assert outcome.spent <= budget
    assert sum(result.cost for result in results) == outcome.spent
    assert correct(results) >= correct(world.simulated(budget, world.scheduler(1))[1])


class Backend:
    model = ""

    def __init__(self, world: World, route: str) -> None:
        self.world, self.route = world, route

    def can_continue(self, body):
        return False

    async def complete(self, body, limit, **options):
        return self.world.answer(self.route, int(body["messages"][0]["content"]), body["seed"], limit)


def test_what_the_simulator_says_is_what_the_executor_does():
    world, budget = World(), 2_000_000
    _, simulated = world.simulated(budget, world.scheduler())
    live = []
    with Ledger.in_memory(budget) as ledger:
        channels = {route.name: Channel(Backend(world, route.name), route.rates) for route in (CHEAP, DEAR)}
        asyncio.run(
            execute(world.scheduler(), ledger, channels, on_result=live.append, grade=world.grade, concurrency=1)
        )
        assert ledger.spent == sum(result.cost for result in simulated)
    seen = [{result.id: (result.outcome, result.extra, result.cost) for result in each} for each in (live, simulated)]
    assert seen[0] == seen[1]


def test_samples_that_were_wrong_before_a_restart_are_not_bought_again():
    world = World()
    scheduler = world.scheduler()
    for sample in range(2):
        scheduler.restore(3, world.answer("cheap", 3, sample, 1000), sample=sample, route="cheap")
    outcome, _ = world.simulated(10**9, scheduler)
    bought = [(work.route, work.sample) for work in outcome.work if work.place == 3]
    assert bought
    assert not {("cheap", 0), ("cheap", 1)} & set(bought)


def test_the_market_counts_on_later_samples_only_as_far_as_they_are_needed():
    chance, none = np.array([0.2, 0.5]), np.zeros(2, dtype=np.int64)
    share, reach = next_samples(chance, none, none + 3, 0.3)
    np.testing.assert_allclose((chance[:, None] * share * reach).sum(1), any_correct(chance, 3, 0.3))
    one = Pieces(chance[:, None] / 100, np.full((2, 1), 100.0), np.full((2, 1), 500))
    three = one.repeated(share, reach)
    np.testing.assert_allclose(three.value(three.peak()), any_correct(chance, 3, 0.3))
    after, _ = next_samples(chance, none + 2, none + 1, 0.3)
    np.testing.assert_allclose(after[:, 0], share[:, 2])
    _, spent = next_samples(chance, none, none, 0.3)
    assert not spent.any()
