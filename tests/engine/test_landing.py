"""What a landing scheduler adds to any other: an answer for what would be cut or declined. See test_contract for the
rest: budget, crashes, restarts, failures."""

import asyncio
from dataclasses import replace

import pytest

from shadowprice import Forecast, Request
from shadowprice.accounts.sqlite import Ledger
from shadowprice.backends.base import response
from shadowprice.cost import Rates
from shadowprice.engine import Settings, make_scheduler
from shadowprice.engine.executor import Progress, execute
from shadowprice.engine.scheduler import Report
from shadowprice.engine.simulate import simulate
from shadowprice.errors import InputError, Refused, Unavailable
from shadowprice.formats.landings import LANDINGS, Landing
from shadowprice.formats.results import parse_chunk, parse_result
from shadowprice.market.anytime import Anytime
from shadowprice.run_folder import restore
from shadowprice.types import Completion

LANDING = LANDINGS["math"]
AT_ONCE = Anytime((0.0, 1.0), (0.2, 0.9), 4.0)
SETUPS = [("index", "metered"), ("auto", "metered"), ("uniform", "metered"), ("uniform", "reserved")]


def requests(n, **more):
    body = {"messages": [{"role": "user", "content": "?"}]}
    return [Request(f"q{i}", "?", body=body, **more) for i in range(n)]


class Model:
    """Answers of these lengths. A final answer takes 4 tokens."""

    def __init__(self, lengths, text="word "):
        self.lengths, self.text = lengths, text
        self.landings = []  # place and age of each

    def __call__(self, work):
        age = work.so_far.tokens if work.so_far else 0
        if work.suffix:
            self.landings.append((work.place, age))
            return self.completion(work, "7}", min(4, work.grant), "stop" if work.grant >= 4 else "length")
        tokens = min(work.grant, self.lengths[work.place] - age)
        ended = age + tokens == self.lengths[work.place]
        return self.completion(work, self.text * tokens, tokens, "stop" if ended else "length")

    def completion(self, work, text, tokens, finish):
        form = response(work.body, name="r", model="m", text=text, finish=finish, tokens=tokens)
        return Completion(text, tokens, finish, "server", body=form)


def run(lengths, budget, policy="index", accounting="metered", *, anytime=None, model=None, n=None, **settings):
    model = model or Model(lengths)
    scheduler = make_scheduler(
        Settings(policy, accounting, concurrency=1, **{"landing": LANDING, **settings}), anytime=anytime
    )
    scheduler.add(requests(n or len(lengths)), Forecast([100.0] * len(lengths), 0.3))
    outcome = simulate(scheduler, model, budget)
    assert outcome.spent <= budget
    return {result.id: result for result in [*outcome.results, *outcome.rest]}, model, outcome


@pytest.mark.parametrize(("policy", "accounting"), SETUPS)
def test_an_answer_that_would_be_cut_lands(policy, accounting):
    results, model, _ = run([100, 500], 300, policy, accounting)
    assert results["q0"].outcome == "finished"
    landed = results["q1"]
    assert (landed.outcome, landed.cost) == ("landed", landed.usage.output)
    assert landed.text.endswith(LANDING.text + "7}")
    assert landed.text.startswith("word word")
    age = landed.extra["landing"]["age"]
    assert landed.text[landed.extra["landing"]["from"] :] == LANDING.text + "7}"
    assert landed.text[: landed.extra["landing"]["from"]] == "word " * age
    assert landed.completion.tokens == model.landings[-1][1] + 4
    assert landed.completion.tokens <= landed.cost <= 300 - 100


@pytest.mark.parametrize(("policy", "accounting"), SETUPS)
def test_nothing_lands_if_everything_ends(policy, accounting):
    results, model, _ = run([100] * 4, 1000, policy, accounting, anytime=AT_ONCE)
    assert {result.outcome for result in results.values()} == {"finished"}
    assert not model.landings


def test_what_would_be_declined_is_asked_at_once_where_that_is_known_to_be_worth_it():
    results, model, _ = run([100] * 10, 200, anytime=AT_ONCE)
    assert not [result for result in results.values() if result.outcome == "declined"]
    at_once = [place for place, age in model.landings if age == 0]
    assert at_once
    assert all(results[f"q{place}"].text == LANDING.text + "7}" for place in at_once)
    without, _, _ = run([100] * 10, 200)
    assert any(result.outcome == "declined" for result in without.values())


def test_what_is_not_worth_its_tokens_at_the_price_is_not_asked_at_once():
    """Full answers give 1/100 per token; final answers without reasoning 0.001 / 4."""
    results, model, _ = run([90] * 10, 200, anytime=Anytime((0.0, 1.0), (0.001, 0.9), 4.0))
    assert not [age for _, age in model.landings if age == 0]
    assert sum(result.outcome == "finished" for result in results.values()) >= 1


def test_tokens_that_landings_did_not_need_are_used_to_continue():
    """In the end nothing is left over while an answer waits."""
    _, model, outcome = run([500] * 4, 240, anytime=AT_ONCE)
    assert outcome.spent >= 240 - LANDING.tokens
    assert len(model.landings) >= 4


def test_a_landing_is_replaced_by_the_end_of_the_answer():
    """Landed first, since tokens seemed to be short; what was held back for the others is enough to finish it."""
    scheduler = make_scheduler(Settings("index", "metered", concurrency=1, landing=LANDING), anytime=AT_ONCE)
    scheduler.add(requests(1), Forecast([100.0], 0.3))
    model = Model([100])
    first = scheduler.next(30)
    scheduler.done(Report(first, first.grant, model(first)))
    landing = scheduler.next(5)
    assert landing.suffix == LANDING.text
    assert scheduler.done(Report(landing, 4, model(landing))) is None
    last = scheduler.next(100)
    assert (last.suffix, last.so_far.text) == ("", model(first).text)
    result = scheduler.done(Report(last, model(last).tokens, model(last)))
    while result is None:
        more = scheduler.next(100)
        result = scheduler.done(Report(more, model(more).tokens, model(more)))
    assert (result.outcome, result.cost) == ("finished", 104)
    assert LANDING.text not in result.text


def test_a_final_answer_that_is_in_the_text_has_landed_and_costs_nothing():
    model = Model([500, 500], text="so \\boxed{3} ")
    results, model, _ = run([500, 500], 200, model=model)
    assert not model.landings
    assert {result.outcome for result in results.values()} <= {"landed", "declined"}
    landed = results["q0"]
    assert (landed.completion.finish, landed.extra) == ("stop", {})


def test_answers_that_cannot_be_continued_do_not_land():
    scheduler = make_scheduler(
        Settings("expected", "reserved", landing=LANDING), can_continue=lambda request: False, anytime=AT_ONCE
    )
    scheduler.add(requests(3), Forecast([100.0] * 3, 0.3))
    model = Model([500] * 3)
    outcome = simulate(scheduler, model, 200)
    assert not model.landings
    assert {result.outcome for result in [*outcome.results, *outcome.rest]} <= {"truncated", "declined"}


def test_a_server_that_turns_out_not_to_continue_answers_is_not_asked():
    known = None
    scheduler = make_scheduler(
        Settings("auto", concurrency=1, landing=LANDING), can_continue=lambda request: known, anytime=AT_ONCE
    )
    scheduler.add(requests(3), Forecast([100.0] * 3, 0.3))
    model = Model([500] * 3)
    work = scheduler.next(300)
    known = False
    first = scheduler.done(Report(work, work.grant, model(work)))
    outcome = simulate(scheduler, model, 250)
    assert not model.landings
    assert len([result for result in [first, *outcome.results, *outcome.rest] if result]) == 3


def test_the_limit_of_an_answer_holds_for_it_and_its_landing():
    scheduler = make_scheduler(Settings("uniform", "reserved", concurrency=1, landing=LANDING))
    scheduler.add(requests(2, max_tokens=80), Forecast([100.0] * 2, 0.3))
    outcome = simulate(scheduler, Model([500, 500]), 1000)
    assert [result.completion.tokens for result in [*outcome.results, *outcome.rest]] == [80 - 16 + 4] * 2
    scheduler = make_scheduler(Settings("uniform", "reserved", concurrency=1, landing=LANDING))
    scheduler.add(requests(1, max_tokens=20), Forecast([100.0], 0.3))  # too few to reason and to land
    assert simulate(scheduler, Model([500]), 1000).results[0].outcome == "truncated"


def test_a_final_answer_that_does_not_end_is_a_truncated_answer():
    landing = Landing(LANDING.text, 3)
    results, _, _ = run([500, 500], 100, landing=landing)
    assert (results["q0"].outcome, results["q0"].completion.finish) == ("truncated", "length")


def test_a_landing_that_fails_costs_what_it_cost_and_loses_no_answer():
    scheduler = make_scheduler(Settings("uniform", "reserved", concurrency=1, landing=LANDING))
    scheduler.add(requests(1), Forecast([100.0], 0.3))
    model = Model([500])
    work = scheduler.next(100)
    assert scheduler.done(Report(work, work.grant, model(work))) is None
    landing = scheduler.next(100 - work.grant)
    failed = Report(landing, landing.bound, error=Unavailable("lost", tokens=None))
    result = scheduler.done(failed)
    assert (result.outcome, result.cost) == ("truncated", work.grant + landing.bound)
    assert result.text == model(work).text


def test_a_run_that_is_stopped_keeps_the_answers_that_have_landed_at_their_limit():
    """There is nothing left for a resumed run to do for them. Other parts of answers it continues."""
    scheduler = make_scheduler(
        Settings("index", "metered", concurrency=1, landing=LANDING, max_tokens=100), can_continue=lambda request: None
    )
    scheduler.add(requests(2), Forecast([100.0] * 2, 0.3))
    for place, tokens in enumerate([100 - LANDING.tokens, 50]):
        scheduler.restore(place, Completion("word " * tokens, tokens, "length", "server"))
        scheduler.restore(place, Completion("7}", 4, "stop", "server"), landing=True)
    results = {result.id: result for result in scheduler.close("the server is down")}
    assert (results["q0"].outcome, results["q1"].outcome) == ("landed", "not_sent")
    assert results["q0"].text.endswith(LANDING.text + "7}")


class Killed(BaseException):
    """What kill -9 does to an execution."""


class StartsOver:
    """A server that does not continue answers, whose process is killed at the first landing."""

    model, kills = "", True

    def __init__(self, length):
        self.length = length

    def can_continue(self, body):
        return None

    async def complete(self, body, limit, *, continue_from=None, suffix=""):
        if suffix and self.kills:
            raise Killed
        if continue_from and not suffix:
            raise Refused("the server started over", tokens=limit, code="not_continued")
        text = "7}" if suffix else "".join(f"{i} " for i in range(min(limit, self.length)))
        tokens, finish = (4, "stop") if suffix or limit >= self.length else (limit, "length")
        form = response(body, name="r", model="m", text=text, finish=finish, tokens=tokens)
        return Completion(text, tokens, finish, "server", body=form)


@pytest.mark.parametrize("policy", ["index", "auto", "uniform"])
def test_an_answer_that_was_begun_again_lands_after_a_crash_without_the_part_that_was_dropped(tmp_path, policy):
    server, asked = StartsOver(500), requests(1)

    def execution(ledger):
        scheduler = make_scheduler(
            Settings(policy, "metered", concurrency=1, landing=LANDING, max_tokens=80), lambda request: None
        )
        scheduler.add(asked, Forecast([400.0], 0.3))
        restore(scheduler, ledger, asked, Progress(1000))
        asyncio.run(execute(scheduler, ledger, server, concurrency=1))

    with Ledger.create(tmp_path / "ledger.sqlite", 1000) as ledger, pytest.raises(Killed):
        execution(ledger)
    server.kills = False
    with Ledger.reopen(tmp_path / "ledger.sqlite") as ledger:
        parts = [parse_chunk(line) for _, line in ledger.chunks()]
        assert [stored.anew for stored in parts] == [True, True]
        execution(ledger)
        result = parse_result(ledger.line("q0"))
        cut = 80 - LANDING.tokens
        assert result.text == "".join(f"{i} " for i in range(cut)) + LANDING.text + "7}"
        assert result.completion.tokens == cut + 4
        assert result.usage.output == 8 + cut + 4, "what was dropped was paid for, too"
        assert result.cost == ledger.spent


def test_in_money_a_landing_pays_for_reading_the_answer_again():
    rates = Rates.dollars("0.15", "0.6")
    scheduler = make_scheduler(Settings("uniform", "reserved", concurrency=1, rates=rates, landing=LANDING))
    scheduler.add(requests(1), Forecast([1200.0], 0.3))
    model, budget = Model([5000]), 10**6
    work = scheduler.next(budget)
    scheduler.done(Report(work, work.bound, model(work)))
    landing = scheduler.next(budget - work.bound)
    assert landing.bound >= rates.bound(work.grant, landing.grant)
    assert work.bound + landing.bound <= budget


def test_grades_of_landings_are_kept():
    scheduler = make_scheduler(Settings("uniform", "reserved", concurrency=1, landing=LANDING))
    scheduler.add(requests(1), Forecast([100.0], 0.3))
    model = Model([500])
    work = scheduler.next(100)
    scheduler.done(Report(work, work.grant, model(work), correct=False))
    landing = scheduler.next(100 - work.grant)
    result = scheduler.done(replace_correct(Report(landing, 4, model(landing)), correct=True))
    assert (result.outcome, result.correct) == ("landed", True)


def replace_correct(report, *, correct):
    return report._replace(correct=correct, completion=replace(report.completion))


def test_several_samples_do_not_land():
    with pytest.raises(InputError, match="several samples cannot be combined with landings"):
        make_scheduler(Settings("uniform", samples=2, landing=LANDING))


def test_an_answer_that_repeats_itself_is_stopped_and_lands():
    endless = Model([4000, 200], text="again and again ")
    found, model, _ = run([4000, 200], 10_000, model=endless)
    assert [result.outcome for result in found.values()] == ["landed", "finished"]
    assert max(age for place, age in model.landings if place == 0) < 600
    varied = Model([2000, 200])
    varied.completion = _varied(varied.completion)
    found, *_ = run([2000, 200], 10_000, model=varied)
    assert [result.outcome for result in found.values()] == ["finished", "finished"]


def _varied(completion):
    def other(work, text, tokens, finish):
        age = work.so_far.tokens if work.so_far else 0
        return completion(work, " ".join(str(age + n) for n in range(tokens)), tokens, finish)

    return other
