"""Cut answers of routes are continued: what that may cost, what it gives, and what happens when it is not possible."""

import asyncio
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice import Forecast, Request
from shadowprice.accounts.sqlite import Ledger, Settlement
from shadowprice.backends.base import join
from shadowprice.cost import Rates, prompt_bound
from shadowprice.engine.executor import Channel, Progress, Tolerance, execute
from shadowprice.engine.routed import Routed
from shadowprice.engine.scheduler import TRIAL, Report
from shadowprice.engine.simulate import simulate
from shadowprice.errors import Refused, Unavailable
from shadowprice.formats.results import StoredPart, chunk_line, dropped_parts, parse_result
from shadowprice.formats.routes import Route
from shadowprice.run_folder import restore
from shadowprice.types import Completion

ONE = Route("one", Rates.dollars("1", "1"), "http://one/v1")
TWO = Route("two", Rates.dollars("2", "3", "0.5"), "http://two/v1")
RATES = {route.name: route.rates for route in (ONE, TWO)}
PROMPT, CAP, AMPLE = 9, 400, 10**12
FAST = Tolerance(patience=0.2, pause=0.001)


def words(route: str, place: int, start: int, count: int) -> str:
    """Tokens of an answer: all differ, so that text which is missing or doubled shows."""
    return "".join(f"{route}.{place}.{i:03d} " for i in range(start, start + count))


class World:
    """Answers of given lengths, by servers that continue them."""

    def __init__(self, ends, *, forecast: float = 60.0, spread: float = 0.3, solve: float = 0.8) -> None:
        self.ends = list(ends)
        self.requests = [
            Request(f"r{i}", "", body={"messages": [{"role": "user", "content": f"{i}"}]})
            for i in range(len(self.ends))
        ]
        self.forecast = Forecast(np.full(len(self.ends), forecast), spread, solve)

    def scheduler(self, routes=(ONE,), continues=True, **options) -> Routed:
        says = continues if callable(continues) else lambda request: continues
        options = {"max_tokens": CAP, "can_continue": {route.name: says for route in routes}, **options}
        scheduler = Routed(routes, **options)
        scheduler.add(self.requests, self.forecast)
        return scheduler

    def answer(self, route: str, place: int, grant: int, so_far: Completion | None = None) -> Completion:
        age = so_far.tokens if so_far else 0
        rest = self.ends[place] - age
        text = words(route, place, age, min(rest, grant))
        body = {
            "choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": PROMPT + age},
        }
        finish = "stop" if rest <= grant else "length"
        return Completion(text, min(rest, grant), finish, "server", body=body, input_tokens=PROMPT + age)

    def simulated(self, scheduler: Routed, budget: int = AMPLE):
        """What `simulate` does; it asserts that no cost exceeds its bound, and no bound what is left."""
        outcome = simulate(
            scheduler,
            lambda work: self.answer(work.route, work.place, work.grant, work.so_far),
            budget,
            rates=RATES,
        )
        return outcome, {result.id: result for result in [*outcome.results, *outcome.rest]}


def cut(world: World, scheduler: Routed, available: int = AMPLE, route: str = "one", tokens: int = 20):
    """Sends the next piece of work, which its server cuts off; returns it with its part of an answer."""
    work = scheduler.next(available)
    assert work.route == route
    work = work._replace(grant=min(work.grant, tokens))
    part = world.answer(route, work.place, work.grant, work.so_far)
    assert scheduler.done(Report(work, RATES[route].cost(part.usage), part)) is None
    return work, part


def test_the_bound_of_a_continuation_has_the_prompt_and_the_part_read_again_at_the_full_rate():
    world = World([200])
    scheduler = world.scheduler([TWO])
    _, part = cut(world, scheduler, route="two")
    work = scheduler.next(AMPLE)
    assert work.so_far == part
    read = prompt_bound(world.requests[0].body) + len(part.text.encode())
    assert work.bound == TWO.rates.bound(read, work.grant), "no tokenizer makes more tokens than there are bytes"
    assert work.bound > TWO.rates.cost(world.answer("two", 0, work.grant, part).usage)


def test_a_continuation_that_does_not_fit_into_what_is_left_is_not_sent():
    world = World([200])
    scheduler = world.scheduler()
    cut(world, scheduler)
    read = prompt_bound(world.requests[0].body) + len(words("one", 0, 0, 20))
    assert scheduler.next(ONE.rates.bound(read, 1) - 1) is None
    (result,) = scheduler.close()
    assert (result.outcome, result.completion.tokens) == ("truncated", 20)


def test_a_continued_answer_is_the_whole_one_and_costs_what_its_pieces_cost():
    world = World([350] * 3, spread=0.02)  # far longer than forecast: they are cut
    outcome, results = world.simulated(world.scheduler())
    continued = [work for work in outcome.work if work.so_far is not None]
    assert {work.place for work in continued} == {0, 1, 2}
    for place in range(3):
        result = results[f"r{place}"]
        assert result.outcome == "finished"
        assert result.text == words("one", place, 0, 350)
        assert result.completion.tokens == 350
        parts = [found for work, found in zip(outcome.work, outcome.found, strict=True) if work.place == place]
        assert result.cost == sum(ONE.rates.cost(part.usage) for part in parts)
        assert result.extra == {"route": "one", "charged": {"one": result.cost}}
        assert result.usage.output == 350
        assert result.usage.input == sum(part.input_tokens for part in parts), "the prompt counts each time"
    assert outcome.spent == sum(result.cost for result in results.values())


def test_a_server_that_does_not_continue_is_never_asked_to():
    world = World([350] * 3, spread=0.02)
    for scheduler in (world.scheduler(continues=False), world.scheduler(can_continue=None)):
        outcome, results = world.simulated(scheduler)
        assert all(work.so_far is None for work in outcome.work)
        assert len(outcome.work) == 3
        assert {result.outcome for result in results.values()} == {"truncated"}


def test_no_budget_stays_idle_while_an_answer_is_cut():
    """The forecast promises nothing beyond the cut; but nobody else has a use for the money."""
    world = World([350] * 4, spread=0.02)
    budget = 4 * ONE.rates.bound(prompt_bound(world.requests[0].body), 400)
    outcome, results = world.simulated(world.scheduler(), budget)
    assert outcome.spent <= budget
    assert sum(result.outcome == "finished" for result in results.values()) >= 1
    assert budget - outcome.spent < ONE.rates.bound(prompt_bound(world.requests[0].body) + 13 * 350, 400)


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5, 0.9, 1.5])
@pytest.mark.parametrize("routes", [(ONE,), (ONE, TWO)])
def test_only_what_nobody_else_has_a_use_for_is_spent_on_continuing(share, routes):
    """Up to there everything is as without it, so nobody is worse off."""
    ends = np.random.default_rng(1).lognormal(5, 0.9, 60).astype(int).clip(1, CAP)
    world = World(ends, forecast=100.0, spread=0.4)
    budget = int(share * sum(ONE.rates.cost(world.answer("one", i, CAP).usage) for i in range(60)))
    without, before = world.simulated(world.scheduler(routes, can_continue=None), budget)
    with_it, after = world.simulated(world.scheduler(routes), budget)
    assert with_it.work[: len(without.work)] == without.work
    assert {name for name, result in before.items() if result.outcome == "finished"} <= {
        name for name, result in after.items() if result.outcome == "finished"
    }


def test_requests_that_were_never_begun_come_before_parts_that_promise_nothing():
    world = World([350, 20], spread=0.02)
    scheduler = world.scheduler()
    work, _ = cut(world, scheduler, tokens=200)
    assert scheduler.next(AMPLE).place != work.place


# --- servers that may not continue ----------------------------------------------------------------


class Backend:
    """A route of the world. Until it is tried nobody knows whether it continues; if it does not, it starts over."""

    model = ""

    def __init__(self, world: World, route: str, *, starts_over: bool = False, known: bool | None = None) -> None:
        self.world, self.route, self.starts_over, self.known = world, route, starts_over, known
        self.generated = self.cost = 0
        self.pieces: list[tuple[int, int]] = []  # age and limit of continuations
        self.trying = self.most_trying = 0
        self.faults: list[Exception] = []

    def can_continue(self, body):
        return self.known

    async def complete(self, body, limit, *, continue_from=None, suffix=""):
        await asyncio.sleep(0)
        if self.faults:
            raise self.faults.pop(0)
        place = int(body["messages"][0]["content"])
        if continue_from is not None:
            self.pieces.append((continue_from.tokens, limit))
            if self.known is None:
                self.trying += 1
                self.most_trying = max(self.most_trying, self.trying)
                await asyncio.sleep(0.01)
                self.trying -= 1
                self.known = not self.starts_over
            if self.starts_over:
                anew = self.world.answer(self.route, place, limit)
                self.pay(anew)
                raise Refused("the server started over", tokens=anew.tokens, code="not_continued")
        found = self.world.answer(self.route, place, limit, continue_from)
        self.pay(found)
        return found

    def pay(self, found: Completion) -> None:
        self.generated += found.tokens
        self.cost += RATES[self.route].cost(found.usage)


def executed(scheduler: Routed, backends, budget: int, ledger: Ledger | None = None, **options):
    results = {}
    with ledger or Ledger.in_memory(budget) as book:
        routes = {route.name: route for route in (ONE, TWO)}
        channels = {backend.route: Channel(backend, routes[backend.route].rates) for backend in backends}
        options = {"concurrency": 4, "tolerance": FAST, **options}
        keep = lambda result: results.setdefault(result.id, result)  # noqa: E731
        progress = asyncio.run(execute(scheduler, book, channels, on_result=keep, **options))
        assert book.reserved == 0
        assert book.spent <= budget
        assert book.overspent == 0
        assert book.spent >= sum(backend.cost for backend in backends)
        return results, progress, book.spent


def says(*backends: Backend):
    return {each.route: lambda request, each=each: each.can_continue(request.body) for each in backends}


def test_a_server_that_starts_over_is_tried_once_with_a_short_piece_and_no_text_is_doubled():
    world = World([350] * 6, spread=0.02)
    backend = Backend(world, "one", starts_over=True)
    results, _, _ = executed(world.scheduler(can_continue=says(backend)), [backend], AMPLE)
    assert len(backend.pieces) == 1
    assert backend.pieces[0][1] <= TRIAL
    assert {result.outcome for result in results.values()} == {"truncated"}
    for result in results.values():
        assert result.text == words("one", int(result.id[1:]), 0, result.completion.tokens)


def test_where_it_is_unknown_one_short_piece_shows_that_a_server_continues():
    world = World([350] * 6, spread=0.02)
    backend = Backend(world, "one")
    results, _, spent = executed(world.scheduler(can_continue=says(backend)), [backend], AMPLE)
    assert backend.most_trying == 1
    assert backend.pieces[0][1] == TRIAL
    assert sum(limit == TRIAL for _, limit in backend.pieces) == 1
    assert {result.text for result in results.values()} == {words("one", place, 0, 350) for place in range(6)}
    assert spent == backend.cost == sum(result.cost for result in results.values())


def test_a_server_that_starts_over_does_not_break_a_scarce_budget():
    world = World([350] * 6, spread=0.5)
    for budget in (300_000, 900_000, 2_000_000, 4_000_000):
        backend = Backend(world, "one", starts_over=True)
        results, _, _ = executed(world.scheduler(can_continue=says(backend)), [backend], budget)
        assert len(results) == 6


# --- routes that leave the menu, and fallbacks ----------------------------------------------------


def test_a_part_of_a_route_that_left_the_menu_is_the_answer_at_hand_and_another_route_may_answer():
    world = World([200])
    scheduler = world.scheduler([ONE, TWO])
    cut(world, scheduler)
    assert scheduler.drop("one", "down")
    work = scheduler.next(AMPLE)
    assert (work.route, work.so_far) == ("two", None)
    result = scheduler.done(Report(work, 10, world.answer("two", 0, CAP)))
    assert (result.outcome, result.extra["route"]) == ("finished", "two")
    assert result.text == words("two", 0, 0, 200)
    assert result.extra["charged"] == {"one": ONE.rates.cost(world.answer("one", 0, 20).usage), "two": 10}


def test_without_another_route_the_part_is_the_result():
    world = World([200])
    scheduler = world.scheduler([ONE, TWO])
    cut(world, scheduler)
    scheduler.drop("one", "down")
    work = scheduler.next(AMPLE)
    result = scheduler.done(Report(work, 0, error=Refused("no")))
    assert (result.outcome, result.text, result.extra["route"]) == ("truncated", words("one", 0, 0, 20), "one")


def test_a_continuation_that_fails_for_good_leaves_the_part():
    world = World([350] * 2, spread=0.02)
    backend = Backend(world, "one", known=True)
    scheduler = world.scheduler(can_continue=says(backend))
    original = backend.complete

    async def complete(body, limit, **options):
        if options.get("continue_from") is not None:
            raise Unavailable("lost", tokens=None)
        return await original(body, limit, **options)

    backend.complete = complete
    results, _, spent = executed(scheduler, [backend], AMPLE)
    assert {result.outcome for result in results.values()} == {"truncated"}
    assert all(result.text for result in results.values())
    assert spent == sum(result.cost for result in results.values())


def test_a_cut_answer_of_another_route_does_not_end_a_request_whose_part_waits():
    world = World([200])
    scheduler = world.scheduler([ONE, TWO], can_continue={"one": lambda request: True})
    _, part = cut(world, scheduler)
    scheduler._running[0] = (work := scheduler.next(AMPLE)._replace(route="two", so_far=None, grant=5)), 1.0
    assert scheduler.done(Report(work, 10, Completion("x", 5, "length", "server"))) is None
    assert scheduler.next(AMPLE).so_far == part


# --- samples and votes ----------------------------------------------------------------------------


def test_a_sample_of_another_route_is_bought_before_a_part_is_continued():
    world = World([200, 200])
    scheduler = world.scheduler([ONE, TWO], samples=2)
    for _ in range(2):
        cut(world, scheduler)
    assert scheduler.next(AMPLE).route == "two"


def test_where_answers_are_evidence_a_cut_one_is_evidence_at_once():
    world = World([200])
    scheduler = world.scheduler([ONE, TWO], revisers={("two", "one"): None})
    work = scheduler.next(AMPLE)
    result = scheduler.done(Report(work, 10, Completion("x", work.grant, "length", "server")))
    assert result is None or result.outcome == "truncated"
    assert scheduler._parts.all() == []


def test_a_part_is_no_vote_and_no_sample_until_its_answer_has_ended():
    world = World([200])
    scheduler = Routed([ONE], max_tokens=CAP, samples=3, can_continue={"one": lambda request: True})
    scheduler.add(world.requests, world.forecast, voted=[True])
    first, part = cut(world, scheduler)
    again = scheduler.next(AMPLE)
    assert (again.so_far, again.sample, again.body) == (part, first.sample, first.body)
    rest = world.answer("one", 0, CAP, part)
    assert scheduler.done(Report(again, 10, rest, vote="42")) is None, "a second vote may follow"
    second = scheduler.next(AMPLE)
    assert (second.so_far, second.sample) == (None, 1)
    result = scheduler.done(Report(second, 10, world.answer("one", 0, CAP), vote="42"))
    assert (result.extra["samples"], result.extra["votes"]) == (2, 2)


def test_a_wrong_answer_that_was_continued_counts_as_one_sample():
    world = World([200])
    scheduler = world.scheduler(samples=2)
    _, part = cut(world, scheduler)
    work = scheduler.next(AMPLE)
    assert scheduler.done(Report(work, 10, world.answer("one", 0, CAP, part), correct=False)) is None
    work = scheduler.next(AMPLE)
    assert (work.sample, work.so_far) == (1, None)
    result = scheduler.done(Report(work, 10, world.answer("one", 0, CAP), correct=True))
    assert (result.correct, result.extra["sample"], result.extra["samples"]) == (True, 1, 2)


# --- restarts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [3, 5, 6, 8])
def test_a_run_that_was_killed_between_two_pieces_continues_from_them(tmp_path, after):
    world = World([350] * 4, spread=0.02)
    path, names = tmp_path / "ledger.sqlite", [request.id for request in world.requests]

    class Killed(BaseException):
        pass

    backend = Backend(world, "one", known=True)
    original, calls = backend.complete, 0

    async def complete(body, limit, **options):
        nonlocal calls
        calls += 1
        if calls == after:
            raise Killed
        return await original(body, limit, **options)

    backend.complete = complete
    ledger = Ledger.create(path, AMPLE)
    channels = {"one": Channel(backend, ONE.rates)}
    with pytest.raises(Killed):
        asyncio.run(execute(world.scheduler(), ledger, channels, concurrency=1))
    ledger.close()
    ledger = Ledger.reopen(path)
    scheduler = world.scheduler()
    restore(scheduler, ledger, world.requests, Progress(AMPLE), vote=lambda name, part: None)
    backend.complete = original
    asyncio.run(execute(scheduler, ledger, channels, concurrency=1))
    lost = sum(entry.units for entry in ledger.entries() if entry.kind == "orphan")
    assert backend.generated == 4 * 350, "nothing is generated twice"
    assert ledger.spent == backend.cost + lost
    results = {name: parse_result(line) for name, line in ledger.results()}
    assert {name: result.text for name, result in results.items()} == {
        name: words("one", place, 0, 350) for place, name in enumerate(names)
    }
    assert sum(result.cost for result in results.values()) == ledger.spent
    ledger.close()


def test_a_continued_answer_votes_as_a_whole_after_a_restart():
    world = World([60])
    first = world.answer("one", 0, 20)
    votes = []
    with Ledger.in_memory(AMPLE) as ledger:
        for sample, part in ((0, first), (0, world.answer("one", 0, CAP, first)), (1, first)):
            reservation = ledger.reserve("r0", 100)
            line = chunk_line(part, sample=sample, landing=False, route="one")
            ledger.settle_many([Settlement("chunk", reservation, 10, part.usage, line)])
        scheduler = world.scheduler(samples=2)
        restore(scheduler, ledger, world.requests, Progress(AMPLE), vote=lambda name, answer: votes.append(answer.text))
    assert votes == [words("one", 0, 0, count) for count in (20, 60, 20)]


def test_parts_are_restored_by_route_and_sample():
    world = World([60, 60])
    scheduler = world.scheduler([ONE, TWO], samples=2)
    pieces = [world.answer("one", 0, 20), world.answer("one", 0, 20, world.answer("one", 0, 20))]
    for piece in pieces:
        scheduler.restore(0, piece, route="one", sample=0)
    scheduler.restore(1, world.answer("two", 1, 30), route="two", sample=0)
    scheduler.restore(1, world.answer("two", 1, CAP), route="two", sample=1)  # the one before it had ended
    assert scheduler._parts.get(scheduler._sites[0], 0) == join(*pieces)
    assert scheduler._parts.get(scheduler._sites[1], 1) is None
    assert scheduler._sites[1].taken[1] == 2


def test_a_resumed_run_whose_server_no_longer_continues_keeps_the_joined_part():
    world = World([60])
    scheduler = world.scheduler(continues=False)
    first = world.answer("one", 0, 20)
    for piece in (first, world.answer("one", 0, 10, first)):
        scheduler.restore(0, piece, route="one")
    assert scheduler.next(AMPLE) is None
    (result,) = scheduler.close()
    assert (result.outcome, result.text) == ("truncated", words("one", 0, 0, 30))


# --- anything at all ------------------------------------------------------------------------------

rates = st.builds(
    lambda read, cached, out: Rates(read, min(read, cached), out, "nano-dollar"),
    st.integers(0, 5_000_000), st.integers(0, 5_000_000), st.integers(1, 9_000_000),
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    ends=st.lists(st.integers(1, 300), min_size=1, max_size=8),
    forecast=st.floats(1, 300),
    spread=st.sampled_from([0.02, 0.5, 1.5]),
    cap=st.integers(1, 300),
    both=st.tuples(rates, rates),
    share=st.sampled_from([0.0, 0.05, 0.3, 1.0, 3.0]),
    continues=st.tuples(st.sampled_from([True, False, None]), st.sampled_from([True, False, None])),
    samples=st.sampled_from([1, 1, 2]),
    votes=st.booleans(),
    fails=st.sampled_from([0.0, 0.2]),
    parallel=st.integers(1, 4),
    crash=st.integers(0, 40),
    seed=st.integers(0, 10**6),
)
def test_no_budget_is_exceeded_whatever_is_cut_continued_refused_or_lost(
    ends, forecast, spread, cap, both, share, continues, samples, votes, fails, parallel, crash, seed
):
    world, draw, names = World(ends, forecast=forecast, spread=spread), random.Random(seed), ("one", "two")
    routes = [Route(name, each, f"http://{name}/v1") for name, each in zip(names, both, strict=True)]
    by_name = {route.name: route.rates for route in routes}
    known = dict(zip(names, continues, strict=True))
    truth = {name: known[name] if known[name] is not None else draw.random() < 0.5 for name in names}

    def made() -> Routed:
        asked = {name: lambda request, name=name: known[name] for name in names}
        scheduler = Routed(routes, max_tokens=cap, samples=samples, can_continue=asked)
        scheduler.add(world.requests, world.forecast, voted=[votes] * len(ends))
        return scheduler

    budget = int(share * sum(max(each.bound(300, end) for each in both) for end in ends))
    scheduler, under_way, spent, results, kept = made(), {}, 0, {}, []
    dropped, cost = set(), {}

    def paid(place: int, units: int) -> None:
        cost[place] = cost.get(place, 0) + units

    for step in range(2000):
        if step == crash:  # what is under way is charged in full; parts are restored
            for work in under_way.values():
                spent += work.bound
                paid(work.place, work.bound)
            under_way, scheduler = {}, made()
            for place, part, sample, route, _ in kept:
                if f"r{place}" not in results:
                    scheduler.restore(place, part, sample=sample, route=route)
            for name, result in results.items():
                scheduler.restore(int(name[1:]), result)
            scheduler.charged({place: units for place, units in cost.items() if f"r{place}" not in results})
            dropped = set()
        while len(under_way) < parallel:
            available = budget - spent - sum(work.bound for work in under_way.values())
            work = scheduler.next(available, (), [*dropped])
            if work is None:
                break
            age = work.so_far.tokens if work.so_far else 0
            assert work.request.id not in results
            assert work.place not in under_way
            assert work.grant >= 1
            assert work.bound <= available
            assert age + work.grant <= cap
            assert work.so_far is None or known[work.route] is not False
            trials = [each for each in under_way.values() if each.so_far is not None and each.route == work.route]
            assert known[work.route] is not None or work.so_far is None or (not trials and work.grant <= TRIAL)
            under_way[work.place] = work
        if not under_way:
            break
        work = under_way.pop(draw.choice(sorted(under_way)))
        if draw.random() < fails:
            busy, lost = Unavailable("busy", tokens=0), Unavailable("lost", tokens=None)
            error = draw.choice([busy, lost, Refused("no")])
            report = Report(work, 0 if error.tokens == 0 else work.bound, error=error)
            if draw.random() < 0.1 and not dropped:
                dropped.add(work.route)
                scheduler.drop(work.route, "down")
        elif work.so_far is not None and not truth[work.route]:
            known[work.route] = False
            report = Report(work, work.bound, error=Refused("anew", tokens=work.grant, code="not_continued"))
        else:
            if work.so_far is not None:
                known[work.route] = True
            found = world.answer(work.route, work.place, work.grant, work.so_far)
            units = by_name[work.route].cost(found.usage)
            assert units <= work.bound
            graded = draw.random() < 0.5 if samples > 1 and not votes and found.finish == "stop" else None
            report = Report(work, units, found, correct=graded, vote=draw.choice(["a", "b", None]))
        spent += report.cost
        paid(work.place, report.cost)
        result = scheduler.done(report)
        if result is not None:
            results[result.id] = result
        elif report.completion is not None:
            kept.append((work.place, report.completion, work.sample, work.route, work.so_far is None))
    else:
        raise AssertionError("it does not end")
    assert spent <= budget
    stored = [(f"r{at}", StoredPart(part, sample, False, *more)) for at, part, sample, *more in kept]
    assert dropped_parts(stored) == set(), "what is not continued is an answer at hand"
    for result in scheduler.close():
        assert result.id not in results
        results[result.id] = result
    assert results.keys() == {request.id for request in world.requests}
    for name, result in results.items():
        assert result.cost == cost.get(int(name[1:]), 0)
        if result.completion is not None:
            assert result.text == words(result.extra["route"], int(name[1:]), 0, result.completion.tokens)
