"""Clearing in rounds: several samples from one grant, answers in parts, limits in the prompt, and money."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice import Forecast, Request
from shadowprice.backends.base import response
from shadowprice.cost import ALL_TOKENS, TOKENS, Rates
from shadowprice.engine import Settings, make_scheduler
from shadowprice.engine.reserved import Reserved
from shadowprice.engine.scheduler import Report
from shadowprice.engine.simulate import simulate
from shadowprice.errors import InputError, LimitViolated, Refused, Unavailable
from shadowprice.market import POLICIES
from shadowprice.types import Completion

PRACTICAL = [name for name in POLICIES if name not in ("oracle", "clairvoyant")]


def request(name="q", text="?", **fields):
    return Request(name, text, body={"messages": [{"role": "user", "content": text}]}, **fields)


def part(tokens, finish="length", text=None, flags=(), **counted):
    text = "x" * tokens if text is None else text
    form = response({"messages": []}, name="r", model="m", text=text, finish=finish, tokens=tokens)
    return Completion(text, tokens, finish, "server", tuple(flags), form, **counted)


def one(forecast=100.0, **options):
    made = Reserved(**{"policy": "uniform", **options})
    made.add([request()], Forecast([forecast]))
    return made


class TestNoIdleBudget:
    @pytest.mark.parametrize("policy", ["clear", "triangular", "quadratic", "heuristic", "auction", "expected"])
    @pytest.mark.parametrize("rates", [TOKENS, ALL_TOKENS, Rates.dollars(1, 4)])
    def test_one_clearing_serves_up_to_its_cap_whom_the_budget_can_serve(self, policy, rates):
        scheduler = make_scheduler(Settings(policy, reclaim=False, max_tokens=100, rates=rates))
        scheduler.add([request(f"q{i}") for i in range(4)], Forecast([50, 400, 500, 600]))
        available = 4 * max(1000, rates.bound(1000, 100))
        grants = {}
        while work := scheduler.next(available):
            available -= work.bound
            grants[work.request.id] = work.grant
        assert sorted(grants) == ["q0", "q1", "q2", "q3"]
        assert [grants[f"q{i}"] for i in (1, 2, 3)] == [100, 100, 100]
        assert available >= 0


class TestSeveralSamples:
    """They share the grant of their request, one after the other."""

    def ask(self, *answers, budget=100, samples=4, **options):
        """The result, and the grants and seeds of the samples. Answers: text, tokens and flags, or an error."""
        made, spent, sent = one(samples=samples, attempts=1, **options), 0, []
        script = list(answers)
        while work := made.next(budget - spent):
            sent.append((work.grant, work.body["seed"]))
            answer = script.pop(0)
            if isinstance(answer, Exception):
                report = Report(work, work.bound, error=answer)
            else:
                text, tokens, *flags = answer
                tokens, finish = min(tokens, work.grant), "stop" if tokens <= work.grant else "length"
                found = part(tokens, finish, text, flags)
                report = Report(work, tokens, found, correct=text == "right" and finish == "stop")
            spent += report.cost
            if result := made.done(report):
                assert result.cost == spent
                return result, sent
        (result,) = made.close()
        return result, sent

    def test_a_correct_sample_stops_the_rest(self):
        result, sent = self.ask(("wrong", 30), ("right", 20), ("never asked", 10))
        assert (result.text, result.correct, result.cost, result.usage.output) == ("right", True, 50, 50)
        assert sent == [(100, 0), (70, 1)]

    def test_the_first_that_came_to_its_end_is_taken_where_none_is_correct(self):
        result, _ = self.ask(("cut", 130), samples=2)
        assert (result.text, result.outcome) == ("cut", "truncated")
        result, sent = self.ask(("cut", 70), ("first", 30), ("second", 10), samples=3, max_tokens=50, budget=150)
        assert (result.text, result.correct, result.outcome) == ("first", False, "finished")
        assert [grant for grant, _ in sent] == [50, 50, 50]

    def test_they_end_with_the_grant(self):
        result, sent = self.ask(("wrong", 60), ("wrong too", 60))
        assert [grant for grant, _ in sent] == [100, 40]
        assert (result.outcome, result.text, result.cost) == ("finished", "wrong", 100)

    def test_the_grant_is_never_exceeded_however_many_there_are(self):
        result, sent = self.ask(*[("wrong", 33)] * 9, samples=9)
        assert (result.cost, len(sent)) == (100, 4)

    def test_what_a_lost_sample_may_have_cost_is_charged_and_the_best_before_it_is_taken(self):
        result, _ = self.ask(("wrong", 30), Unavailable("lost", tokens=None))
        assert (result.text, result.cost) == ("wrong", 100)

    def test_flags_of_any_sample_are_kept(self):
        result, _ = self.ask(("first", 30), ("second", 30, "odd"), ("third", 30, "odd"), samples=3)
        assert (result.text, result.completion.flags) == ("first", ("odd",))

    def test_a_resumed_run_takes_the_samples_that_are_left(self):
        made = one(samples=3, max_tokens=40)
        made.restore(0, part(30, "stop", "wrong"), sample=0)
        work = made.next(1000)
        assert (work.sample, work.body["seed"]) == (1, 1)
        assert made.rounds[0].granted == 80
        made.done(Report(work, 40, part(40)))
        last = made.next(960)
        result = made.done(Report(last, 40, part(40)))
        assert (last.sample, result.text, result.outcome, result.cost) == (2, "wrong", "finished", 110)

    def test_a_sample_that_was_paid_for_is_an_answer_even_if_no_other_can_be_paid(self):
        made = one(samples=3, max_tokens=40)
        made.restore(0, part(30, "stop", "wrong"), sample=0)
        assert made.next(0) is None
        (result,) = made.close()
        assert (result.outcome, result.text, result.cost) == ("finished", "wrong", 30)

    def test_every_sample_pays_for_its_prompt_from_the_grant(self):
        rates = Rates.dollars(1, 1)
        made = Reserved("uniform", samples=3, max_tokens=500, rates=rates, reclaim=False)
        made.add([request("a"), request("b")], Forecast([50.0, 50.0]))
        budget, reserved = 2_000_000, 0
        while work := made.next(budget - reserved):
            reserved += work.bound
            made.done(Report(work, work.bound, part(work.grant, input_tokens=1)))
        assert {result.outcome for result in made.close()} == set()  # both were served, from what each was granted


class TestAnswersInParts:
    """Metered accounting."""

    def test_an_answer_cut_at_its_grant_continues_in_the_next_round(self):
        made = Reserved("uniform", can_continue=lambda request: True)
        made.add([request("a"), request("b")], Forecast([50.0, 50.0]))
        a, b = made.next(40), made.next(20)
        assert (a.grant, b.grant) == (20, 20)
        assert made.done(Report(a, 20, part(20))) is None
        assert made.done(Report(b, 4, part(4, "stop"))).outcome == "finished"
        more = made.next(16)
        assert (more.place, more.so_far.tokens, more.grant) == (0, 20, 16)
        assert made.done(Report(more, 16, part(16))) is None
        assert made.next(0) is None
        (result,) = made.close()
        assert (result.outcome, result.cost, result.completion.tokens) == ("truncated", 36, 36)

    @pytest.mark.parametrize("continues", [True, False])
    @pytest.mark.parametrize(("each", "pieces"), [(100, [8, 8]), (16, [8, 8]), (10, [5, 5]), (3, [2, 1])])
    def test_two_pieces_show_whether_the_server_continues_before_anything_else_is_sent(self, each, pieces, continues):
        known, available = None, 4 * each
        made = Reserved("uniform", can_continue=lambda request: known)
        made.add([request(f"q{i}") for i in range(4)], Forecast([50.0] * 4))
        for size in pieces:
            work = made.next(available)
            assert (work.place, work.grant) == (0, size)
            available -= size
            assert made.next(available) is None
            known = continues if work.so_far else None
            anew = Report(work, size, error=Refused("anew", tokens=size, code="not_continued"))
            assert made.done(anew if known is False else Report(work, size, part(size))) is None
        rest = [(0, each - 16)] if continues and each > 16 else []
        then = [made.next(available) for _ in range(len(rest) + 3)]
        assert [(work.place, work.grant) for work in then] == [*rest, (1, each), (2, each), (3, each)]

    def test_an_answer_that_was_not_continued_is_begun_again(self):
        known = None
        made = one(can_continue=lambda request: known)
        first = made.next(100)
        made.done(Report(first, 8, part(8)))
        second = made.next(92)
        known = False
        assert made.done(Report(second, 8, error=Refused("anew", tokens=8, code="not_continued"))) is None
        again = made.next(84)
        assert (again.so_far, again.grant) == (None, 84)
        result = made.done(Report(again, 50, part(50, "stop")))
        assert (result.outcome, result.completion.tokens, result.cost) == ("finished", 50, 66)

    def test_if_no_budget_is_left_for_that_it_is_declined_and_says_what_it_cost(self):
        made = one(can_continue=lambda request: None)
        made.done(Report(made.next(16), 8, part(8)))
        made.done(Report(made.next(8), 8, error=Refused("anew", tokens=8, code="not_continued")))
        assert made.next(0) is None
        (result,) = made.close()
        assert (result.outcome, result.cost) == ("declined", 16)

    def test_a_long_part_that_is_refused_is_the_answer(self):
        made = one(can_continue=lambda request: True)
        made.restore(0, part(30))
        result = made.done(Report(made.next(100), 0, error=Refused("anew", code="not_continued")))
        assert (result.outcome, result.completion.tokens) == ("truncated", 30)
        assert result.completion.flags == ("not_continued",)

    def test_a_long_part_of_another_server_is_not_sent_to_one_that_cannot_continue(self):
        made = one(can_continue=lambda request: False)
        made.restore(0, part(30))
        assert made.next(100) is None
        (result,) = made.close()
        assert (result.completion.flags, result.cost) == (("not_continued",), 30)


class TestRounds:
    def test_what_is_not_used_is_offered_to_those_that_were_declined(self):
        made = Reserved("auction")
        made.add([request("short"), request("long")], Forecast([40.0, 90.0]))
        first = made.next(100)
        assert (first.place, made.next(0)) == (0, None)
        made.done(Report(first, 5, part(5, "stop")))
        assert made.next(95).place == 1
        assert [each.admitted for each in made.rounds] == [1, 1]

    def test_without_reclaim_it_is_not(self):
        made = Reserved("auction", reclaim=False)
        made.add([request("short"), request("long")], Forecast([40.0, 90.0]))
        made.done(Report(made.next(100), 5, part(5, "stop")))
        assert made.next(95) is None
        (result,) = made.close()
        assert (result.id, result.outcome, result.failure.code) == ("long", "declined", "budget_abandoned")

    def test_without_reclaim_a_grant_that_a_server_spent_too_much_for_is_dropped_and_the_others_stay(self):
        made = Reserved("uniform", reclaim=False)
        made.add([request("a"), request("b", max_tokens=30), request("c", max_tokens=5)], Forecast([9.0] * 3))
        first = made.next(120)
        made.done(Report(first, 110, part(110)))
        assert made.next(10).request.id == "c"

    @pytest.mark.parametrize("policy", ["clear", "expected", "triangular", "quadratic"])
    def test_if_the_budget_suffices_for_all_no_request_is_declined(self, policy):
        """Forecasts above the cap, or without a chance, are worth nothing to the market."""
        made = Reserved(policy, max_tokens=50)
        made.add([request("a"), request("b")], Forecast([30.0, 5000.0], 0.1, [0.0, 0.9]))
        done = simulate(made, lambda work: part(min(40, work.grant), "stop"), 1000)
        assert [result.outcome for result in done.results] == ["finished", "finished"]
        assert list(done.rest) == []

    def test_a_server_that_is_not_trusted_any_more_leaves_requests_not_sent(self):
        made = one()
        made.done(Report(made.next(100), 0, error=LimitViolated("it ignored a limit")))
        (result,) = made.close("it ignored a limit")
        assert (result.outcome, result.failure.code) == ("not_sent", "not_sent")


class TestLimitsInThePrompt:
    """TALE."""

    def test_the_grant_is_announced_in_the_last_message_of_the_user(self):
        made = make_scheduler(Settings("tale"))
        made.add([request(text="Why?")], Forecast([50.0]))
        work = made.next(70)
        assert work.body["messages"] == [
            {"role": "user", "content": "Why?\n\nKeep the entire response within at most 70 tokens."}
        ]
        assert work.request.body["messages"][0]["content"] == "Why?"

    def test_other_policies_send_what_was_asked(self):
        made = make_scheduler(Settings("proportional"))
        made.add([request(text="Why?")], Forecast([50.0]))
        work = made.next(70)
        assert work.body is work.request.body


class TestMoney:
    ways = pytest.mark.parametrize(
        "settings",
        [
            *(Settings(name, reclaim=reclaim) for name in PRACTICAL for reclaim in (True, False)),
            *(Settings(name, "metered") for name in PRACTICAL),
            Settings("index", "metered"),
            Settings("index", "metered", chunk=8),
            Settings("expected", samples=3),
        ],
        ids=lambda s: f"{s.policy} {s.accounting} {s.reclaim} {s.chunk} {s.samples}",
    )

    def outcome(self, settings, budget, seed, prompt=0):
        """A simulation of 30 requests; prompts cost `prompt` tokens, and what is continued costs its part again."""
        rng = np.random.default_rng(seed)
        median = rng.lognormal(3.5, 0.8, 30)
        ends = np.maximum(1, median * rng.lognormal(0, 0.5, 30)).astype(int)
        made = make_scheduler(replace(settings, max_tokens=200, concurrency=1))
        made.add(
            [request(f"q{i}", "?" * (1 + 7 * i)) for i in range(30)], Forecast(median, 0.5, rng.uniform(0.1, 1, 30))
        )

        def answer(work):
            age = work.so_far.tokens if work.so_far else 0
            left = int(ends[work.place]) - age
            read = {"input_tokens": prompt + 7 * work.place + age} if prompt else {}
            return part(min(left, work.grant), "stop" if left <= work.grant else "length", **read)

        done = simulate(made, answer, budget, rates=settings.rates)
        results = [*done.results, *done.rest]
        assert sum(result.cost for result in results) == done.spent <= budget
        assert len({result.id for result in results}) == 30
        return done, results, made

    @ways
    @given(seed=st.integers(0, 10**6), tokens=st.integers(0, 3000))
    @settings(max_examples=6, deadline=None)
    def test_where_prompts_cost_nothing_money_is_divided_as_tokens_are(self, settings, seed, tokens):
        ways = []
        for rates in (TOKENS, Rates.dollars(0, "0.6")):
            unit = rates.output // 10**6
            done, results, made = self.outcome(replace(settings, rates=rates), tokens * unit, seed)
            grants = [(work.place, work.grant, work.bound // unit) for work in done.work]
            prices = [(each.budget // unit, each.admitted, each.granted // unit, each.price) for each in made.rounds]
            ways.append((grants, prices, [(r.id, r.outcome, r.cost // unit, r.text) for r in results]))
        assert ways[0] == ways[1]

    @ways
    @given(seed=st.integers(0, 10**6), share=st.floats(0.02, 3.0), uneven=st.booleans())
    @settings(max_examples=6, deadline=None)
    def test_where_prompts_cost_something_the_budget_holds_too(self, settings, seed, share, uneven):
        rates = Rates(123_456, 65_432, 1_234_567) if uneven else Rates.dollars("0.15", "0.6")
        budget = int(share * 30 * rates.bound(400, 50))
        done, _, _ = self.outcome(replace(settings, rates=rates), budget, seed, prompt=20)
        assert all(work.bound >= rates.bound(20, work.grant) for work in done.work)

    @pytest.mark.parametrize("policy", ["expected", "clear", "index"])
    def test_a_long_prompt_is_a_reason_to_be_declined(self, policy):
        accounting = "metered" if policy == "index" else "reserved"
        rates = Rates.dollars(1, 1)
        made = make_scheduler(Settings(policy, accounting, rates=rates, max_tokens=100))
        made.add([request("long", "?" * 5000), request("short", "?")], Forecast([50.0, 50.0], 0.2))
        assert made.next(rates.bound(600, 100)).request.id == "short"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Settings("index", "reserved"), "policy index needs metered accounting"),
        (Settings("index", "metered", options={"beta": 1}), "takes no options"),
        (Settings("clear", "metered", reclaim=False), "no reclaim in metered accounting"),
        (Settings("clear", "metered", samples=2), "several samples in metered accounting"),
        (Settings(samples=0), "must be at least 1"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        make_scheduler(settings)


@pytest.mark.parametrize("policy", ["clear", "triangular", "quadratic", "expected", "auction"])
def test_no_budget_stays_idle_while_somebody_waits(policy):
    """Forecasts above the limit are worth nothing to these markets, and are served with what is left."""
    scheduler = make_scheduler(Settings(policy, max_tokens=120))
    scheduler.add([request(f"q{i}") for i in range(10)], Forecast([500.0] * 10))
    answer = lambda work: part(min(100, work.grant), "stop" if work.grant >= 100 else "length")  # noqa: E731
    outcome = simulate(scheduler, answer, 750)
    assert outcome.spent >= 700  # the other 50 are too little for anybody
    assert sum(result.outcome == "finished" for result in outcome.results) == 7
