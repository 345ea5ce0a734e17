"""Without a policy, a run serves by index where answers can be continued, and by `expected` where they cannot."""

from __future__ import annotations

import pytest

from shadowprice import Forecast, Request
from shadowprice.engine import Settings, make_scheduler
from shadowprice.engine.auto import Auto
from shadowprice.engine.scheduler import TRIAL
from shadowprice.engine.simulate import simulate
from shadowprice.errors import InputError, Refused
from shadowprice.types import Completion

LENGTHS = [30, 60, 90, 120, 400, 50, 70, 500]


def batch(scheduler):
    scheduler.add([Request(f"q{i}", "?", body={"prompt": "?"}) for i in range(8)], Forecast([*map(float, LENGTHS)]))
    return scheduler


def generate(work):
    age = work.so_far.tokens if work.so_far else 0
    left = LENGTHS[work.place] - age
    return Completion("", min(left, work.grant), "stop" if left <= work.grant else "length", "server")


@pytest.mark.parametrize(("continues", "policy"), [(True, "index"), (False, "expected")])
def test_decisions_are_those_of_the_better_one(continues, policy):
    auto = batch(make_scheduler(Settings(), lambda request: continues))
    other = batch(make_scheduler(Settings(policy), lambda request: continues))
    ours, theirs = (simulate(scheduler, generate, 300) for scheduler in (auto, other))
    assert auto.policy == policy
    assert [(work.place, work.grant) for work in ours.work] == [(work.place, work.grant) for work in theirs.work]
    assert ours.spent == theirs.spent


class TestAServerThatShowsItOnlyByTrying:
    def served(self, answer, budget=700):
        known = {"continues": None}
        scheduler = batch(make_scheduler(Settings(), lambda request: known["continues"]))

        def tried(work):
            if work.so_far and known["continues"] is None:
                known["continues"] = answer
            return generate(work)

        return scheduler, simulate(scheduler, tried, budget)

    def test_is_served_by_index_if_it_continues(self):
        scheduler, _ = self.served(True)
        assert scheduler.policy == "index"

    def test_is_served_by_expected_if_it_starts_over(self):
        scheduler, outcome = self.served(False)
        assert scheduler.policy == "expected"
        assert [work.grant for work in outcome.work[:2]] == [TRIAL, TRIAL]
        results = {result.id: result for result in [*outcome.results, *outcome.rest]}
        assert len(results) == 8
        assert outcome.spent <= 700
        finished = [result for result in results.values() if result.outcome == "finished"]
        assert len(finished) >= 5
        for result in finished:  # the first two pieces are not part of an answer that was generated again
            assert result.completion.tokens == LENGTHS[int(result.id[1:])]


def test_settings_follow_from_each_other():
    assert (Settings().policy, Settings().accounting) == ("auto", "metered")
    assert (Settings("clear").policy, Settings("clear").accounting) == ("clear", "reserved")
    assert Settings("index").accounting == "metered"
    assert Settings(accounting="metered").policy == "index"
    assert Settings(accounting="reserved").policy == "expected"
    assert (Settings(samples=3).policy, Settings(reclaim=False).policy) == ("expected", "expected")
    with pytest.raises(InputError, match="auto cannot be combined"):
        make_scheduler(Settings("auto", samples=2))


def test_a_refusal_to_continue_is_no_failure():
    known = {"continues": None}
    scheduler = batch(make_scheduler(Settings(), lambda request: known["continues"]))
    assert isinstance(scheduler, Auto)
    from shadowprice.engine.scheduler import Report

    first = scheduler.next(700)
    scheduler.done(Report(first, first.grant, generate(first)))
    second = scheduler.next(700)
    assert second.so_far is not None
    known["continues"] = False
    error = Refused("the server started over", tokens=8, code="not_continued")
    assert scheduler.done(Report(second, 8, error=error)) is None
    assert scheduler.next(600) is not None
    assert scheduler.policy == "expected"
