"""What the schedulers share: the state of every request, and the result that it ends with."""

from math import inf

import numpy as np
import pytest

from shadowprice import Forecast, Request
from shadowprice.backends.base import response
from shadowprice.cost import Rates, prompt_bound
from shadowprice.engine.scheduler import TRIAL, Batch, Report, flagged, is_over
from shadowprice.errors import LimitViolated, Refused, Unavailable
from shadowprice.types import Completion, Result, Usage

RATES = Rates.dollars("0.1", "0.5", "0.05")  # 100, 500 and 50 nano-dollars a token


def batch(n=2, limits=(None,), **options):
    made = Batch(**options)
    bodies = [{"prompt": "?" * (i + 1)} for i in range(n)]
    limits = [limits[i % len(limits)] for i in range(n)]
    made.add(
        [Request(f"q{i}", "?", limits[i], body=bodies[i]) for i in range(n)],
        Forecast([10.0 * (i + 1) for i in range(n)]),
    )
    return made


def part(tokens, finish="length", flags=(), **more):
    form = response({"prompt": "?"}, name="r", model="m", text="x" * tokens, finish=finish, tokens=tokens)
    return Completion("x" * tokens, tokens, finish, "server", flags, form, **more)


def failed(made, place, error, cost=0, attempts=1):
    made.charge(Report(made.work(place, 5), cost, error=error, attempts=attempts))
    return made.after_error(place)


class TestAdding:
    def test_caps_are_the_smaller_of_the_limits_for_all_samples(self):
        made = batch(3, [None, 30, 90], max_tokens=50, samples=2)
        assert list(made.cap) == [100, 60, 100]
        assert list(batch(2, [None, 30]).cap) == [inf, 30]

    def test_requests_may_be_added_later(self):
        made = batch(2, max_tokens=50)
        made.add([Request("late", "?", 7)], Forecast([99.0], tail=5.0))
        assert len(made) == made.unanswered == 3
        assert list(made.cap) == [50, 50, 7]
        assert list(made.forecast.tokens) == [10, 20, 99]
        assert (made.cost, made.ended) == ([0] * 3, [False] * 3)


class TestWork:
    def test_tokens_are_reserved_as_they_are_granted(self):
        made = batch()
        work = made.work(1, 40)
        assert (work.place, work.grant, work.bound, work.request.id) == (1, 40, 40, "q1")
        assert work.body is made.requests[1].body
        assert made.work(1, 40, {"prompt": "!"}).body == {"prompt": "!"}
        assert made.affordable(1, 40) == 40
        assert list(made.entry([0, 1])) == [0, 0]

    def test_money_is_reserved_for_the_prompt_and_the_part_to_continue_too(self):
        made = batch(rates=RATES)
        prompt = prompt_bound(made.requests[0].body)
        assert made.work(0, 40).bound == 100 * prompt + 500 * 40
        assert made.work(0, 40, so_far=part(8)).bound == 100 * (prompt + 8) + 500 * 40

    @pytest.mark.parametrize("age", [0, 8])
    def test_what_is_affordable_is_the_most_whose_bound_can_be_paid(self, age):
        made = batch(rates=RATES)
        if age:
            made.so_far[0] = part(age)
        for units in (0, 30_000, 50_000, 123_456):
            most = made.affordable(0, units)
            assert most <= 0 or made.work(0, most, so_far=made.so_far.get(0)).bound <= units
            assert made.work(0, max(0, most) + 1, so_far=made.so_far.get(0)).bound > units

    def test_a_longer_prompt_costs_more_to_begin_with(self):
        first, second = batch(rates=RATES).entry([0, 1])
        assert 0 < first < second


class TestContinuing:
    def test_without_a_backend_that_can_no_answer_continues(self):
        assert batch().continues(0) is False

    @pytest.mark.parametrize("known", [True, False, None])
    def test_the_backend_decides_by_request(self, known):
        made = batch(can_continue=lambda request: known if request.id == "q0" else True)
        made.so_far[0] = made.so_far[1] = part(8)
        assert (made.continues(0), made.continues(1)) == (known, True)
        assert (made.is_stuck(0), made.is_stuck(1)) == (known is False, False)

    def test_a_short_part_is_dropped_once_and_then_the_answer_is_one_piece(self):
        made = batch(can_continue=lambda request: True)
        made.so_far[0], made.tries[0] = part(2 * TRIAL), 3
        assert made.start_over(0)
        assert (made.age(0), made.tries[0], made.continues(0)) == (0, 0, False)
        made.so_far[0] = part(3)
        assert not made.start_over(0)

    def test_a_long_part_is_worth_keeping(self):
        made = batch(can_continue=lambda request: False)
        made.so_far[0] = part(2 * TRIAL + 1)
        assert not made.start_over(0)
        assert made.age(0) == 2 * TRIAL + 1


class TestCharging:
    def test_costs_and_usage_add_up_over_attempts(self):
        made = batch()
        assert failed(made, 0, Unavailable("lost", tokens=None), cost=5) is None
        made.charge(Report(made.work(0, 8), 8, part(8, input_tokens=3, cached_tokens=1)))
        made.charge(Report(made.work(0, 8), 2, part(2, "stop")))
        result = made.answered(0, part(10, "stop"), correct=True, samples=2)
        assert (result.outcome, result.cost, result.usage) == ("finished", 15, Usage(10, 3, 1))
        assert (result.correct, result.extra) == (True, {"samples": 2})
        assert (made.ended, made.unanswered) == ([True, False], 1)

    def test_a_success_forgives_the_failures_before_it(self):
        made = batch(attempts=3)
        for _ in range(4):
            for _ in range(2):
                assert failed(made, 0, Unavailable("busy", tokens=0)) is None
            made.charge(Report(made.work(0, 8), 8, part(8)))
        assert (made.tries[0], made.error) == (0, {})

    def test_after_so_many_attempts_a_request_has_failed(self):
        made = batch(attempts=3)
        assert failed(made, 0, Unavailable("busy", tokens=0), attempts=2) is None
        result = failed(made, 0, Unavailable("503: busy", tokens=None, cause="503"), cost=5)
        assert (result.outcome, result.cost) == ("failed", 5)
        assert (result.failure.code, result.failure.message) == ("backend_unavailable", "503: busy")
        assert result.failure.details == {"cause": "503"}

    def test_a_refusal_is_final_at_once_and_has_its_own_code(self):
        result = failed(batch(), 0, Refused("no such model", code="model_not_found"))
        assert (result.outcome, result.failure.code) == ("failed", "model_not_found")

    def test_what_was_not_sent_is_no_attempt(self):
        made = batch(attempts=1)
        assert failed(made, 0, LimitViolated("it ignored a limit")) is None
        assert made.tries[0] == 0

    def test_a_part_that_is_refused_is_begun_again_or_is_the_answer(self):
        made = batch(can_continue=lambda request: True)
        made.so_far[0], made.so_far[1] = part(TRIAL), part(9 * TRIAL)
        refused = Refused("cannot be continued", code="not_continued")
        assert failed(made, 0, refused) is None
        result = failed(made, 1, refused)
        assert (result.outcome, result.completion.tokens, result.completion.flags) == (
            "truncated", 9 * TRIAL, ("not_continued",),
        )  # fmt: skip


class TestTheRest:
    def rest(self, stopped=""):
        """Of five requests: answered, with an error, with a part, with a part that cannot be continued, and waiting."""
        made = batch(5, can_continue=lambda request: request.id != "q3")
        made.answered(0, part(5, "stop"))
        failed(made, 1, Unavailable("busy", tokens=0), cost=2)
        for place in (2, 3):
            made.restore(place, part(6))
        return made, {result.id: result for result in made.left(0.25, stopped)}

    def test_parts_become_answers_and_those_without_one_are_declined(self):
        made, found = self.rest()
        assert {name: result.outcome for name, result in found.items()} == {
            "q1": "failed", "q2": "truncated", "q3": "truncated", "q4": "declined",
        }  # fmt: skip
        assert (found["q2"].completion.flags, found["q3"].completion.flags) == ((), ("not_continued",))
        assert [found[name].cost for name in ("q1", "q2", "q4")] == [2, 6, 0]
        assert found["q4"].failure.details["price"] == 0.25
        assert made.unanswered == 0
        assert list(made.left(0.25, "")) == []

    def test_stopped_only_what_failed_has_failed_and_parts_wait(self):
        _, found = self.rest("interrupted")
        assert {name: result.outcome for name, result in found.items()} == {
            "q1": "failed", "q2": "not_sent", "q3": "not_sent", "q4": "not_sent",
        }  # fmt: skip
        assert found["q2"].failure.message == "not sent: interrupted"
        assert found["q2"].cost == 6


class TestRestoring:
    def test_parts_are_joined_and_paid_for(self):
        made = batch(rates=RATES)
        for tokens in (8, 4):
            made.restore(0, part(tokens, input_tokens=3))
        assert (made.age(0), made.so_far[0].text) == (12, "x" * 12)
        assert made.usage[0] == Usage(12, 6)
        assert made.cost[0] == 2 * (3 * 100) + 12 * 500

    def test_the_ledger_knows_better_what_they_cost(self):
        made = batch()
        made.restore(0, part(8))
        made.charged({0: 30})
        assert made.answered(0, part(8)).cost == 30

    def test_a_result_ends_its_request(self):
        made = batch()
        made.restore(0, part(8))
        made.restore(0, Result("q0", "finished", Usage(9), 9, part(9, "stop")))
        assert (made.ended, made.unanswered, made.so_far) == ([True, False], 1, {})
        assert (made.cost[0], made.usage[0]) == (9, Usage(9))


@pytest.mark.parametrize(
    ("answer", "grant", "tokens", "over"),
    [
        (part(8, "stop"), 8, 8, True),
        (part(8), 8, 8, False),
        (part(7), 8, 7, True),  # the server stopped below its limit
        (part(8), 8, 100, True),
    ],
)
def test_an_answer_is_over_at_its_end_below_its_limit_or_at_its_cap(answer, grant, tokens, over):
    assert is_over(answer, grant, tokens, cap=100) is over
    assert is_over(answer, grant, tokens, cap=np.inf) is (over and tokens < 100)


def test_flags_are_added_once():
    assert flagged(part(1, flags=("slow",)), "not_continued", "slow").flags == ("slow", "not_continued")
