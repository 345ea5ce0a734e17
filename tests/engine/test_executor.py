"""The loop: what is reserved, what is charged, what is tried again, and what ends it."""

import asyncio
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice import Forecast, Request
from shadowprice.accounts.sqlite import Ledger
from shadowprice.backends.base import response
from shadowprice.cost import TOKENS, Rates, prompt_bound
from shadowprice.engine import Settings, executor, make_scheduler
from shadowprice.engine.executor import Progress, Tolerance, execute
from shadowprice.engine.fixed import Ages, Fixed
from shadowprice.errors import LedgerError, LimitViolated, Refused, Unavailable
from shadowprice.formats.results import parse_result
from shadowprice.types import Completion
from tests.quick import QUICK

MONEY = Rates.dollars(1, 4, 0.5)


def request(name="a"):
    return Request(name, "Why?", body={"messages": [{"role": "user", "content": f"Why, {name}?"}]})


def answer(body, tokens, limit, *flags, source="server", text="ok", read=0, cached=0):
    finish = "length" if tokens > limit else "stop"
    tokens = tokens if flags else min(tokens, limit)
    form = response(body, name="x", model="m", text=text, finish=finish, tokens=tokens, prompt_tokens=read + cached)
    return Completion(text, tokens, finish, source, flags, form, (), read, cached)


class Script:
    """A backend that does what it is told, call by call, and then answers with ten tokens."""

    model = "m"

    def __init__(self, *steps):
        self.steps, self.calls, self.limits, self.running, self.most = list(steps), 0, [], 0, 0

    def can_continue(self, body):
        return True

    async def complete(self, body, limit, *, continue_from=None, suffix=""):
        self.calls += 1
        self.limits.append(limit)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(0)
            step = self.steps.pop(0) if self.steps else 10
            if isinstance(step, BaseException):
                raise step
            if isinstance(step, int):
                return answer(body, step, limit)
            return step(body, limit) if callable(step) else step
        finally:
            self.running -= 1

    async def close(self):
        pass


def executed(scheduler, backend, budget, ledger=None, **options):
    """The ledger, and the results by request."""
    results = {}
    ledger = ledger or Ledger.in_memory(budget)

    def keep(result):
        assert result.id not in results
        results[result.id] = result

    asyncio.run(execute(scheduler, ledger, backend, **{"tolerance": QUICK, "on_result": keep, **options}))
    assert ledger.reserved == 0
    return ledger, results


def one(backend, budget=100, grant=30, **options):
    """A single request, of which `grant` tokens are asked for."""
    rates = options.get("rates", TOKENS)
    scheduler = make_scheduler(Settings("uniform", max_tokens=grant, attempts=options.get("attempts", 4), rates=rates))
    scheduler.add([request()], Forecast([30.0]))
    ledger, results = executed(scheduler, backend, budget, **options)
    return ledger, results["a"]


class TestFailures:
    def test_an_attempt_that_generated_nothing_is_repeated_at_no_cost(self):
        backend = Script(Unavailable("busy", tokens=0, delay=0.001), Unavailable("busy", tokens=0))
        ledger, result = one(backend)
        assert (result.outcome, ledger.spent, backend.calls) == ("finished", 10, 3)

    def test_an_unknown_outcome_is_charged_in_full_before_the_next_attempt(self):
        ledger, result = one(Script(Unavailable("lost", tokens=None)))
        assert (result.outcome, result.cost, ledger.spent) == ("finished", 40, 40)

    def test_unknown_outcomes_never_add_up_to_more_than_the_budget(self):
        backend = Script(*[Unavailable("lost", tokens=None)] * 9)
        ledger, result = one(backend, budget=70, attempts=10)
        assert (ledger.spent, ledger.overspent, backend.limits) == (70, 0, [30, 30, 10])
        assert (result.outcome, result.failure.message) == ("failed", "lost")

    def test_attempts_are_bounded_where_others_are_answered(self):
        busy = [Unavailable("busy", tokens=0, delay=0.0)] * 99
        backend = Script(lambda body, limit: answer(body, 10, limit), *busy)
        scheduler = Fixed(30, attempts=3)
        scheduler.add([request("a"), request("b")])
        ledger, results = executed(scheduler, backend, 1000, attempts=3, concurrency=1)
        assert (backend.calls, ledger.spent, results["b"].outcome) == (4, 10, "failed")
        assert (results["b"].failure.code, results["b"].failure.message) == ("backend_unavailable", "busy")

    def test_attempts_with_an_unknown_outcome_are_bounded_too(self):
        backend = Script(*[Unavailable("lost", tokens=None)] * 99)
        ledger, result = one(backend, budget=10_000, attempts=3)
        assert (backend.calls, ledger.spent, result.outcome, result.cost) == (3, 90, "failed", 90)

    def test_a_refusal_is_final(self):
        backend = Script(Refused("no such model", code="model_not_found"))
        _, result = one(backend)
        assert (backend.calls, result.outcome, result.failure.code) == (1, "failed", "model_not_found")

    def test_a_failure_with_a_known_cost_is_charged_that_cost(self):
        ledger, _ = one(Script(Refused("started over", tokens=7)))
        assert (ledger.spent, ledger.usage.output) == (7, 7)

    def test_a_failure_is_a_note_and_not_a_result(self):
        """So that a run that is resumed tries again."""
        ledger, _ = one(Script(Refused("no")))
        assert list(ledger.results()) == []
        (line,) = dict(ledger.notes()).values()
        assert parse_result(line).failure.message == "no"


ODD = {
    "a bug": (ZeroDivisionError("division by zero"), "ZeroDivisionError: division by zero"),
    "a bug that says much": (KeyError("x" * 5000 + "\n" * 9), "KeyError: "),
    "nothing at all": (None, "NoneType"),
    "another type": (lambda body, limit: {"choices": []}, "dict"),
    "half a character": (lambda body, limit: answer(body, 5, limit, text="\ud83d"), "TypeError"),
    "a number too large": (
        lambda body, limit: Completion("ok", 5, "stop", "server", body={"n": 2**70}),
        "TypeError",
    ),
    "fewer tokens than none": (lambda body, limit: Completion("ok", -5, "stop", "server"), "counted (-5, 0, 0)"),
    "half a token": (lambda body, limit: Completion("ok", 3.5, "stop", "server"), "counted (3.5, 0, 0)"),
    "a cancellation of its own": (asyncio.CancelledError("not of the run"), "CancelledError"),
}


class TestAnythingElseThatGoesWrong:
    @pytest.mark.parametrize("odd", ODD)
    def test_is_the_failure_of_one_request_charged_in_full(self, odd):
        step, printed = ODD[odd]
        scheduler = Fixed(30, attempts=1)
        scheduler.add([request(name) for name in "abcd"])
        ledger, results = executed(scheduler, Script(10, 10, step), 200, concurrency=1)
        assert [results[name].outcome for name in "abcd"] == ["finished", "finished", "failed", "finished"]
        assert ledger.spent == 30 + 30
        assert printed in results["c"].failure.message
        assert len(results["c"].failure.message) <= 300

    def test_words_that_no_file_can_hold_are_replaced(self):
        scheduler = Fixed(30)
        scheduler.add([request("a"), request("b")])
        _, results = executed(scheduler, Script(Refused("bad input \ud800")), 200, concurrency=1)
        assert results["a"].failure.message == "bad input ?"
        assert results["b"].outcome == "finished"

    def test_where_all_attempts_fail_at_an_unknown_cost_the_run_stops_before_the_budget_is_gone(self):
        scheduler = make_scheduler(Settings("uniform", max_tokens=10, attempts=100))
        scheduler.add([request(f"q{i}") for i in range(100)], Forecast([10.0] * 100))
        lost = [Unavailable("502: bad gateway", tokens=None) for _ in range(500)]
        progress = Progress(1000)
        tolerance = Tolerance(pause=0.001)
        ledger, _ = executed(scheduler, Script(*lost), 1000, concurrency=4, progress=progress, tolerance=tolerance)
        assert progress.stopped == "the server fails at an unknown cost: 502: bad gateway"
        assert ledger.spent <= 10 * (4 + 3 + 8)

    def test_is_tried_again_as_far_as_the_budget_goes(self):
        ledger, result = one(Script(RuntimeError("once")))
        assert (result.outcome, ledger.spent) == ("finished", 40)

    def test_in_a_part_that_does_not_fit_the_part_before(self):
        """An answer in two parts, the second without the form that the first has."""
        scheduler = make_scheduler(Settings("index", "metered", max_tokens=5000, chunk=8, concurrency=1, attempts=1))
        scheduler.add([request()], Forecast([20.0]))
        odd = Completion("more", 5, "stop", "server", body={"choices": "none"})
        _, results = executed(scheduler, Script(9999, odd), 1000, attempts=1)
        assert results["a"].outcome == "truncated"
        assert results["a"].completion.flags == ("not_continued",)

    def test_in_a_grader_leaves_the_answer_without_a_grade(self):
        def grade(name, found):
            raise RuntimeError("no idea")

        _, result = one(Script(), grade=grade)
        assert (result.outcome, result.correct, result.text) == ("finished", None, "ok")

    def test_a_ledger_that_cannot_be_written_ends_the_run_with_its_own_error(self):
        class Full(Script):
            async def complete(self, *arguments, **options):
                ledger.close()
                return await super().complete(*arguments, **options)

        ledger = Ledger.in_memory(100)
        with pytest.raises(LedgerError, match="closed"):
            one(Full(), ledger=ledger)

    def test_being_cancelled_is_no_failure(self):
        ledger = Ledger.in_memory(100)

        async def cancelled():
            scheduler = Fixed(30)
            scheduler.add([request()])
            task = asyncio.create_task(execute(scheduler, ledger, Stuck()))
            await asyncio.sleep(0.01)
            task.cancel()
            await task

        with pytest.raises(asyncio.CancelledError):
            asyncio.run(cancelled())
        assert ledger.reserved == 30  # nobody knows what it generated: charged when the ledger is opened again
        assert list(ledger.notes()) == []


class Stuck(Script):
    async def complete(self, body, limit, **options):
        await asyncio.sleep(60)


class TestConcurrency:
    @pytest.mark.parametrize("concurrency", [1, 3, 50])
    def test_as_many_are_under_way_as_allowed_and_no_more(self, concurrency):
        backend = Script()
        scheduler = Fixed(10)
        scheduler.add([request(f"q{i}") for i in range(20)])
        _, results = executed(scheduler, backend, 1000, concurrency=concurrency)
        assert backend.most == min(concurrency, 20)
        assert len(results) == 20

    def test_nothing_is_sent_before_it_is_reserved(self):
        class Looks(Script):
            async def complete(self, body, limit, **options):
                assert ledger.reserved >= limit * self.running + limit
                return await super().complete(body, limit, **options)

        ledger, scheduler = Ledger.in_memory(200), Fixed(30)
        scheduler.add([request(f"q{i}") for i in range(20)])
        _, results = executed(scheduler, Looks(), 200, ledger)
        assert {result.outcome for result in results.values()} == {"finished", "declined"}
        assert ledger.spent == 180  # 30 must be reserved, for answers of 10


class TestStopping:
    def test_sends_nothing_more_and_finishes_what_is_under_way(self):
        progress = Progress(1000)

        def stops(body, limit):
            progress.stop("enough")
            return answer(body, 10, limit)

        backend, scheduler = Script(stops), Fixed(30)
        scheduler.add([request(f"q{i}") for i in range(20)])
        ledger, results = executed(scheduler, backend, 1000, concurrency=4, progress=progress)
        assert backend.calls == 4
        assert progress.outcomes == {"finished": 4, "not_sent": 16}
        assert results["q19"].failure.message == "not sent: enough"
        assert len(dict(ledger.results())) == 4

    def test_does_not_wait_for_an_attempt_that_waits(self):
        progress = Progress(1000)

        def stops(body, limit):
            progress.stop("enough")
            return answer(body, 10, limit)

        backend = Script(Unavailable("busy", tokens=0, delay=1000.0), stops)
        scheduler = Fixed(30)
        scheduler.add([request("a"), request("b")])
        _, results = executed(scheduler, backend, 1000, concurrency=2, progress=progress)
        assert (results["a"].outcome, results["b"].outcome, backend.calls) == ("failed", "finished", 2)

    def test_a_server_that_ignores_limits_is_charged_for_it_and_sent_nothing_more(self):
        over = lambda body, limit: answer(body, 35, limit, "limit_ignored")  # noqa: E731
        backend = Script(over, over, *[LimitViolated("ignored a limit")] * 9)
        scheduler = Fixed(30, attempts=1)
        scheduler.add([request(f"q{i}") for i in range(20)])
        progress = Progress(1000)
        ledger, results = executed(scheduler, backend, 1000, concurrency=2, progress=progress)
        assert (ledger.spent, ledger.beyond_grants, backend.calls) == (70, 10, 4)
        assert progress.stopped == "ignored a limit"
        assert progress.outcomes == {"truncated": 2, "not_sent": 18}
        assert {r.failure.code for r in results.values() if r.failure} == {"not_sent"}

    def test_parts_of_answers_are_kept_for_the_next_run(self):
        progress = Progress(1000)

        def stops(body, limit):
            progress.stop("enough")
            raise Unavailable("lost", tokens=None)

        scheduler = make_scheduler(Settings("index", "metered", max_tokens=5000, chunk=8, concurrency=1))
        scheduler.add([request()], Forecast([50.0]))
        ledger, results = executed(scheduler, Script(9999, stops), 1000, progress=progress)
        assert results["a"].outcome == "not_sent"
        assert "a" in dict(ledger.notes())  # in the error file now,
        assert "a" in dict(ledger.chunks())  # and to be continued from here
        assert list(ledger.results()) == []


class TestMoney:
    def test_what_is_reserved_is_the_bound_and_what_is_charged_the_truth(self):
        backend = Script(lambda body, limit: answer(body, 10, limit, read=12, cached=6))
        ledger, result = one(backend, budget=10**6, grant=30, rates=MONEY)
        (reserved,) = [entry.units for entry in ledger.entries() if entry.kind == "reserve"]
        assert reserved == prompt_bound(request().body) * 1000 + 30 * 4000
        assert ledger.spent == result.cost == 12 * 1000 + 6 * 500 + 10 * 4000
        assert (ledger.usage.input, ledger.usage.cached, ledger.usage.output) == (12, 6, 10)

    @pytest.mark.parametrize("source", ["server", "counted", "assumed"])
    def test_a_prompt_that_was_not_counted_is_charged_as_reserved(self, source):
        ledger, _ = one(Script(lambda body, limit: answer(body, 10, limit, source=source)), 10**6, rates=MONEY)
        (reserved,) = [entry.units for entry in ledger.entries() if entry.kind == "reserve"]
        assert ledger.spent == reserved

    def test_tokens_beyond_the_grant_are_charged_on_top(self):
        over = lambda body, limit: answer(body, limit + 5, limit, "limit_ignored", source="counted")  # noqa: E731
        ledger, _ = one(Script(over), 10**6, rates=MONEY)
        assert ledger.beyond_grants == 5 * 4000

    @pytest.mark.parametrize(("tokens", "full"), [(None, True), (1, True), (0, False)])
    def test_a_failure_costs_the_whole_bound_unless_it_generated_nothing(self, tokens, full):
        ledger, result = one(Script(Refused("no", tokens=tokens)), 10**6, rates=MONEY)
        (reserved,) = [entry.units for entry in ledger.entries() if entry.kind == "reserve"]
        assert ledger.spent == result.cost == (reserved if full else 0)

    def test_a_failure_that_generated_more_than_its_grant_is_charged_for_it(self):
        ledger, _ = one(Script(Refused("started over", tokens=35)), 10**6, rates=MONEY)
        assert ledger.beyond_grants == 5 * 4000


def fails(kind, tokens):
    """Of a server that keeps its limits."""

    def step(body, limit):
        raise kind("lost", tokens=None if tokens is None else min(tokens, limit))

    return step


steps = st.one_of(
    st.integers(1, 60),
    st.builds(fails, st.sampled_from([Unavailable, Refused]), st.sampled_from([None, 0, 9])),
    st.builds(ValueError),
)
WAYS = [
    Settings("uniform", max_tokens=40),
    Settings("clear", max_tokens=40, reclaim=False),
    Settings("expected", samples=3, max_tokens=40),
    Settings("expected", "metered", max_tokens=40),
    Settings("index", "metered", max_tokens=40, chunk=8),
]


@given(
    script=st.lists(steps, max_size=40),
    budget=st.integers(0, 400),
    way=st.sampled_from(WAYS),
    concurrency=st.integers(1, 5),
    money=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_whatever_happens_the_budget_holds_and_every_request_ends_once(script, budget, way, concurrency, money):
    rates = MONEY if money else TOKENS
    scheduler = make_scheduler(Settings(**{**vars(way), "rates": rates, "concurrency": concurrency}))
    scheduler.add([request(f"q{i}") for i in range(8)], Forecast([10.0 * i + 5 for i in range(8)], 0.5, 0.8))
    ledger, results = executed(scheduler, Script(*script), budget * (6000 if money else 1), concurrency=concurrency)
    assert sorted(results) == [f"q{i}" for i in range(8)]
    assert ledger.overspent == ledger.beyond_grants == 0
    assert ledger.spent == sum(result.cost for result in results.values())
    answered = {name for name, _ in ledger.results()}
    assert answered == {name for name, result in results.items() if result.completion}
    assert answered | {name for name, _ in ledger.notes()} == set(results)
    assert all(result.failure.message for result in results.values() if result.outcome == "failed")


# --- the same grant for everybody --------------------------------------------------------------


def lands(body, limit):
    return answer(body, 3, limit, text="7}")


class TestProbes:
    def collected(self, ages, lengths, *, concurrency=8, budget=100_000, steps=None):
        """Answers of these lengths, probed; a landing takes three tokens."""
        backend = Script()
        backend.landings = []
        whole = iter(lengths)

        async def complete(body, limit, *, continue_from=None, suffix=""):
            await asyncio.sleep(0)
            if not suffix:
                return answer(body, next(whole), limit, text="x" * 100)
            backend.landings.append((body["messages"][0]["content"], continue_from.tokens if continue_from else 0))
            found = next(steps) if steps else lands
            if isinstance(found, Exception):
                raise found
            return found(body, limit)

        backend.complete = complete
        scheduler = Fixed(100, probe=Ages.parse(ages))
        scheduler.add([request(f"q{i}") for i in range(len(lengths))])
        ledger, results = executed(scheduler, backend, budget, concurrency=concurrency)
        return ledger, results, backend.landings

    def test_an_answer_is_probed_at_its_ages_from_the_longest_to_the_shortest(self):
        ledger, results, landings = self.collected("0,10,50%", [40] * 6)
        assert results["q3"].extra["probes"] == {str(age): ("7}", 3) for age in (0, 10, 20)}
        for name, group in itertools.groupby(sorted(landings, key=lambda each: each[0]), key=lambda each: each[0]):
            assert [age for _, age in group] == [20, 10, 0], name
        assert ledger.spent == 6 * (40 + 9) == sum(result.cost for result in results.values())

    def test_an_answer_shorter_than_every_age_is_kept_without_probes(self):
        _, results, landings = self.collected("64", [5, 80])
        assert (results["q0"].outcome, results["q0"].extra["probes"]) == ("finished", {})
        assert list(results["q1"].extra["probes"]) == ["64"]
        assert len(landings) == 1

    def test_an_answer_that_was_cut_is_probed_at_its_end_too(self):
        _, results, _ = self.collected("10", [500])
        assert list(results["q0"].extra["probes"]) == ["100", "10"]

    def test_a_probe_that_fails_is_left_out(self):
        fails = iter([lands, Refused("no"), lands])
        _, results, _ = self.collected("0,10,20", [40], steps=fails)
        assert results["q0"].outcome == "finished"
        assert list(results["q0"].extra["probes"]) == ["20", "0"]

    def test_answers_are_kept_when_the_budget_ends_before_their_probes(self):
        ledger, results, _ = self.collected("0,10", [95], budget=100)
        assert (results["q0"].outcome, results["q0"].extra["probes"]) == ("finished", {})
        assert [name for name, _ in ledger.results()] == ["q0"]


class TestARoomForAll:
    def test_what_is_not_used_makes_room_for_others(self):
        scheduler = Fixed(16, most=32)
        scheduler.add([request(f"q{i}") for i in range(6)])
        backend = Script(*[1] * 6)
        ledger, results = executed(scheduler, backend, 1000)
        assert (ledger.spent, backend.most, len(results)) == (6, 2, 6)

    @pytest.mark.parametrize("most", [0, 15, 16, 48, 79])
    def test_it_is_never_exceeded(self, most):
        scheduler = Fixed(16, most=most)
        scheduler.add([request(f"q{i}") for i in range(6)])
        ledger, _ = executed(scheduler, Script(*[99] * 6), 1000)
        assert ledger.spent == most // 16 * 16

    def test_where_the_first_all_fail_the_others_are_not_sent(self):
        scheduler = Fixed(16, give_up_after=3, attempts=1)
        scheduler.add([request(f"q{i}") for i in range(20)])
        backend = Script(*[Refused("no")] * 20)
        executed(scheduler, backend, 1000)
        assert backend.calls == 3


class TestProgress:
    def test_tokens_of_answers_under_way_are_reported_until_they_are_spent(self, monkeypatch):
        monkeypatch.setattr(executor, "_TICK", 0.01)
        counted = asyncio.Event()

        class Slow(Script):
            async def complete(self, body, limit, **options):
                await counted.wait()
                return answer(body, 10, limit)

            async def generating(self):
                counted.set()
                return 7

        seen = []
        one(Slow(), on_event=lambda progress: seen.append((progress.spent, progress.generating)))
        assert (0, 7) in seen
        assert seen[-1] == (10, 0)
        assert all(spent + generating <= 10 for spent, generating in seen)
