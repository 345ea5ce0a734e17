"""What every scheduler promises, whatever its configuration and whatever comes of the work it hands out."""

import os
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from shadowprice.engine.auto import Auto
from shadowprice.engine.landing import Lander
from shadowprice.engine.scheduler import Report
from shadowprice.errors import Unavailable

from .worlds import CAP, CONFIGURATIONS, Story, World, stories

EXAMPLES = int(os.environ.get("EXAMPLES", "10"))  # of each property, for each configuration
every_scheduler = pytest.mark.parametrize("make", CONFIGURATIONS, ids=lambda make: make.name)
some = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@every_scheduler
@given(story=stories())
@some
def test_the_budget_holds_every_request_has_one_result_and_costs_add_up(make, story):
    """The world checks every piece of work: its bound is affordable, its grant within the cap, its request open."""
    world = World(story, make)
    world.run()
    assert world.scheduler.next(world.budget - world.spent) is None
    world.close()
    assert world.spent <= world.budget
    assert set(world.results) == {request.id for request in world.requests}
    assert sum(result.cost for result in world.results.values()) == world.spent
    assert list(world.scheduler.close()) == []
    assert world.scheduler.next(10**9) is None


STARTS_OVER = Story(  # a crash while an answer that was begun again is cut, and waits to land
    tokens=[1, 1], solve=[0, 0.1], spread=0.02, ends=[55, 1], limits=[None, None], budget=5, continues=[None],
    fails=0.5, kinds=["busy", "not continued", "busy", "down"], parallel=2, seed=108211,
)  # fmt: skip

AT_ITS_LIMIT = Story(  # one request lands instead of others that fail, and its landing ends after all else
    tokens=[1] * 6, solve=[0] * 6, spread=0.02, ends=[1, 1, 55, 1, 1, 1], limits=[None] * 6, budget=5, continues=[True],
    fails=0.5, kinds=["busy"], parallel=4, seed=2185,
)  # fmt: skip


@every_scheduler
@example(story=STARTS_OVER, crashes=[6])
@example(story=AT_ITS_LIMIT, crashes=[3])
@given(story=stories(), crashes=st.lists(st.integers(0, 12), min_size=1, max_size=3))
@some
def test_after_a_crash_at_any_point_the_same_holds(make, story, crashes):
    world = World(story, make)
    for steps in crashes:
        for _ in range(steps):
            world.step()
        while len(world.out) < story.parallel and world.send():
            pass
        world.crash()
    world.run()
    world.close()
    assert world.spent <= world.budget
    assert set(world.results) == {request.id for request in world.requests}
    charged = sum(result.cost for result in world.results.values())
    assert world.spent - world.lost <= charged <= world.spent


@every_scheduler
@given(story=stories(), steps=st.integers(0, 12))
@some
def test_stopped_it_says_of_everyone_without_an_answer_that_it_was_not_sent_or_failed(make, story, steps):
    world = World(story, make)
    for _ in range(steps):
        world.step()
    while world.out:
        world.report()
    scheduler = world.scheduler._inner if isinstance(world.scheduler, Lander) else world.scheduler
    batch = (scheduler._now if isinstance(scheduler, Auto) else scheduler)._batch  # a part waits for the next run
    failed = {f"q{place}" for place in batch.error if place not in batch.so_far}
    rest = world.close("the server is distrusted")
    assert set(world.results) == {request.id for request in world.requests}
    for result in rest:
        assert result.completion is None
        assert result.outcome == ("failed" if result.id in failed else "not_sent")
    assert sum(result.cost for result in world.results.values()) == world.spent


@every_scheduler
@pytest.mark.parametrize("place", range(4))
def test_others_come_before_requests_that_failed_just_now(make, place):
    story = Story([50.0] * 4, [0.9] * 4, 0.5, [60] * 4, [None] * 4, 40.0, [True], 0.0, ["busy"], 1, 0)
    scheduler, budget = World(story, make).scheduler, World(story, make).budget
    others = set(range(4)) - {place}
    work = scheduler.next(budget, others)
    assert work.place == place
    assert scheduler.done(Report(work, 0, error=Unavailable("down", tokens=0), attempts=0, postponed=True)) is None
    assert scheduler.next(budget, others) == work  # and it has the same grant again
    assert scheduler.next(budget - work.bound, {0, 1, 2, 3}).place in others


@pytest.mark.parametrize("make", [each for each in CONFIGURATIONS if each.once], ids=lambda make: make.name)
@given(story=stories())
@some
def test_without_reclaim_the_market_is_cleared_once(make, story):
    world = World(story, make)
    world.run()
    assert len(world.scheduler.rounds) <= 1


@pytest.mark.parametrize("make", [each for each in CONFIGURATIONS if not each.once], ids=lambda make: make.name)
@given(story=stories())
@some
def test_no_request_is_declined_if_the_budget_could_serve_all(make, story):
    world = World(replace(story, fails=0.0), make)
    world.budget = 2 * len(story.ends) * make.rates.bound(1000, make.samples * CAP)
    world.run()
    world.close()
    assert {result.outcome for result in world.results.values()} <= {"finished", "landed", "truncated"}


@every_scheduler
@given(story=stories(), late=st.integers(0, 6))
@some
def test_requests_may_be_added_while_others_are_served(make, story, late):
    world, n = World(story, make), len(story.ends)
    for _ in range(late):
        world.step()
    others = [replace(request, id=f"q{n + i}") for i, request in enumerate(world.requests)]
    world.story = replace(story, ends=story.ends * 2, limits=story.limits * 2)
    world.requests = world.requests + others
    world.scheduler.add(others, world.forecast)
    world.run()
    world.close()
    assert world.spent <= world.budget
    assert len(world.results) == 2 * n
    assert sum(result.cost for result in world.results.values()) == world.spent


@every_scheduler
@given(story=stories(), excess=st.integers(1, 50))
@some
def test_a_server_that_exceeds_its_limits_takes_from_the_others_and_loses_no_request(make, story, excess):
    """What is there after that is all that is handed out; the world checks it."""
    world = World(replace(story, fails=0.0), make)

    def exceeds(work):
        report = world._completed(work)
        more = replace(report.completion, tokens=report.completion.tokens + excess, flags=("limit_ignored",))
        return report._replace(cost=make.rates.cost(more.usage), completion=more)

    world.honest, world.answer = False, exceeds
    world.run()
    world.close()
    assert set(world.results) == {request.id for request in world.requests}
    assert sum(result.cost for result in world.results.values()) == world.spent
