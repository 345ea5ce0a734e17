"""Metered serves the highest index first, learns as it goes, and never spends a token too many."""

import tracemalloc
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice import Forecast, Request
from shadowprice.cost import Rates
from shadowprice.engine import metered
from shadowprice.engine.bulk import simulate_lengths
from shadowprice.engine.metered import Metered
from shadowprice.engine.scheduler import Report
from shadowprice.engine.simulate import simulate
from shadowprice.errors import Refused, Unavailable
from shadowprice.market.gittins import schedule
from shadowprice.types import Completion

CAP = 4096


def batch(n, seed=0, factor=1.0, spread=0.5):
    """Forecasts, lengths drawn from them and which answers are correct; `factor` makes the forecasts wrong."""
    rng = np.random.default_rng(seed)
    median, solve = rng.lognormal(5, 0.8, n), rng.uniform(0.1, 0.9, n)
    lengths = np.clip(median * rng.lognormal(0, spread, n), 1, CAP).astype(int)
    return Forecast(median * factor, spread, solve), lengths, rng.random(n) < solve


def requests(n):
    return [Request(f"q{i}", "?") for i in range(n)]


def scheduler(forecast, **options):
    made = Metered(**{"max_tokens": CAP, "concurrency": 1, **options})
    made.add(requests(len(forecast)), forecast)
    return made


def answers(lengths):
    """Recorded answers of these lengths."""

    def answer(work):
        left = int(lengths[work.place]) - (work.so_far.tokens if work.so_far else 0)
        return part(min(left, work.grant), "stop" if left <= work.grant else "length")

    return answer


def part(tokens, finish="length", source="server"):
    return Completion("x" * tokens, tokens, finish, source)


def ages(forecast, budget, lengths, **options):
    """Tokens that each answer has reached when the budget is spent."""
    return simulate_lengths(scheduler(forecast, chunk=1, **options), lengths, budget, CAP).generated


def solved(forecast, budget, lengths, correct, **options):
    return np.count_nonzero(correct & (ages(forecast, budget, lengths, **options) >= lengths))


# --- the budget --------------------------------------------------------------------------------


@given(st.integers(0, 10**6), st.integers(1, 40_000), st.booleans())
@settings(max_examples=20, deadline=None)
def test_the_budget_is_spent_to_the_last_token_while_somebody_can_use_it(seed, budget, learn):
    forecast, lengths, _ = batch(80, seed)
    outcome = simulate(scheduler(forecast, learn=learn), answers(lengths), budget)
    assert outcome.spent == min(budget, lengths.sum())


@pytest.mark.parametrize("concurrency", [8, 64])
@pytest.mark.parametrize("n", [6, 12, 40])
def test_a_scarce_budget_finishes_as_many_answers_together_as_one_by_one(n, concurrency):
    """Begun all together, answers would share the budget, and none of them would end."""
    together, alone = 0, 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        forecast = Forecast(rng.uniform(250, 350, n), 0.3, 0.6)
        lengths = (forecast.tokens * rng.lognormal(0, 0.3, n)).astype(int)
        budget = 150 * n
        alone += finished(forecast, lengths, budget, 1)
        together += finished(forecast, lengths, budget, concurrency)
    assert alone > 10 * n / 4
    assert together >= 0.95 * alone


def finished(forecast, lengths, budget, concurrency) -> int:
    """How many answers end if the oldest of all work under way always ends next."""
    made, answer, under_way, spent, ended = scheduler(forecast, concurrency=concurrency), answers(lengths), [], 0, 0
    while True:
        reserved = sum(work.bound for work in under_way)
        if len(under_way) < concurrency and (work := made.next(budget - spent - reserved)) is not None:
            under_way.append(work)
        elif under_way:
            work = under_way.pop(0)
            found = answer(work)
            spent += found.tokens
            ended += found.finish == "stop"
            made.done(Report(work, found.tokens, found))
        else:
            return ended


def test_a_chunk_is_at_least_as_long_as_was_asked_for():
    forecast, lengths, _ = batch(100)
    outcome = simulate(scheduler(forecast, chunk=16), answers(lengths), 5000)
    assert outcome.spent == 5000
    assert all(work.grant >= 16 for work in outcome.work[:-1])


def test_where_most_answers_are_shorter_than_a_chunk_it_is_the_median_forecast():
    forecast = Forecast(np.full(40, 10.0), 1.0, 0.5)
    made = scheduler(forecast, chunk=64)
    assert made.next(10**6).grant < 64
    assert made.least == 10


def test_a_request_under_way_is_not_handed_out_again():
    forecast, _, _ = batch(20)
    made = scheduler(forecast, concurrency=20)
    out = [made.next(10**6) for _ in range(20)]
    assert sorted(work.place for work in out) == list(range(20))
    assert made.next(10**6) is None
    assert made.done(Report(out[0], out[0].grant, part(out[0].grant))) is None
    again = made.next(10**6)
    assert (again.place, again.so_far.tokens) == (out[0].place, out[0].grant)
    assert made.done(Report(again, 3, part(3, "stop"))).outcome == "finished"
    assert made.next(10**6) is None


def test_while_work_is_under_way_the_next_in_line_waits_for_what_it_gives_back():
    made = scheduler(Forecast([50.0, 50.0], 0.1), concurrency=1)
    first = made.next(100)
    assert first.grant > 50
    assert made.next(100 - first.grant) is None
    made.done(Report(first, 10, part(10, "stop")))
    assert made.next(90).grant >= 40


def test_no_work_takes_all_that_is_left_where_several_are_to_be_under_way():
    made = scheduler(Forecast([200.0] * 8, 0.5), concurrency=4)
    assert [made.next(available).grant for available in (1000, 750, 500)] == [250] * 3
    assert made.next(250) is None  # too little beside the others, until they have ended


# --- who is next -------------------------------------------------------------------------------


def test_the_highest_index_is_first():
    forecast, _, _ = batch(50)
    plan = schedule(forecast, CAP)
    assert scheduler(forecast).next(10**6).place == plan.query[0]


def test_an_answer_longer_than_its_forecast_allowed_continues_when_no_other_request_needs_the_tokens():
    lengths = np.array([300, 300, 20])
    outcome = simulate(scheduler(Forecast([20.0] * 3, 0.05)), answers(lengths), 500)
    assert outcome.spent == 500
    assert [result.outcome for result in [*outcome.results, *outcome.rest]] == ["finished", "finished", "truncated"]


def test_a_request_without_a_chance_is_served_when_no_other_needs_the_tokens():
    forecast = Forecast([40.0, 40.0, 1e6], 0.1, [0.0, 0.9, 0.9])
    outcome = simulate(scheduler(forecast, max_tokens=100), answers([40, 40, 200]), 1000)
    assert outcome.work[0].place == 1
    results = {result.id: result.outcome for result in outcome.results}
    assert results == {"q0": "finished", "q1": "finished", "q2": "truncated"}


def test_where_answers_cannot_be_continued_such_a_request_gets_all_it_may_have():
    made = scheduler(Forecast([40.0], 0.5, 0.0), max_tokens=300, chunk=8, can_continue=lambda request: False)
    assert made.next(1000).grant == 300


def test_answers_under_way_keep_their_place_when_forecasts_change():
    """As many as are under way at once when others come, or when something is learned."""
    forecast = Forecast([30.0, 200.0], 1.0, [0.9, 0.5])
    made = scheduler(forecast, concurrency=2, chunk=1)
    first = made.next(10**6)
    assert first.place == 0
    made.add([Request("late", "?")], Forecast([4000.0], 1.0, 0.1))
    assert made.next(10**6).place == 1
    made.done(Report(first, first.grant, part(first.grant)))
    assert made.next(10**6).place == 0


# --- learning ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("factor", "sure"), [(0.25, 1.0), (4.0, 1.0), (0.25, 0.2), (1.0, 0.2)])
def test_a_wrong_forecast_is_corrected(factor, sure):
    """Wrong by a factor, or much too certain, or both."""
    honest, lengths, correct = batch(500)
    wrong = Forecast(honest.tokens * factor, honest.spread * sure, honest.solve)
    budget = int(np.median(lengths) * 500)
    right = solved(honest, budget, lengths, correct, learn=False)
    assert solved(wrong, budget, lengths, correct) >= 0.97 * right


def test_without_learning_a_forecast_that_is_too_short_and_too_certain_costs_dearly():
    """All requests seem overdue at once, and are served as if nothing were known about them."""
    honest, lengths, correct = batch(500)
    wrong = Forecast(honest.tokens / 4, honest.spread / 4, honest.solve, tail=2.0)
    budget = int(0.5 * np.median(lengths) * 500)
    with_it, without = (solved(wrong, budget, lengths, correct, learn=learn) for learn in (True, False))
    assert with_it > 1.1 * without


def test_learning_costs_little_where_there_is_nothing_to_learn():
    forecast, lengths, correct = batch(500)
    budget = int(0.5 * np.median(lengths) * 500)
    with_it, without = (solved(forecast, budget, lengths, correct, learn=learn) for learn in (True, False))
    assert with_it >= 0.97 * without


def test_with_lengths_known_it_is_the_oracle():
    _, lengths, correct = batch(500)
    known = Forecast(lengths.astype(float), 0.02, 0.5)
    for share in (0.25, 0.5, 1.0):
        budget = int(share * np.median(lengths) * 500)
        order = np.argsort(lengths, kind="stable")
        best = np.count_nonzero(correct[order[np.cumsum(lengths[order]) <= budget]])
        assert abs(solved(known, budget, lengths, correct) - best) <= 0.005 * 500


def first_grants(made, n=5):
    return [made.next(10**6).grant for _ in range(n)]


def test_what_was_learned_holds_for_requests_that_come_later():
    forecast, lengths, _ = batch(100, factor=0.1)
    made = scheduler(forecast, concurrency=8)
    simulate(made, answers(lengths), int(lengths.sum()))
    late = Forecast([8.0] * 5, 0.5, 0.5)
    made.add(requests(5), late)
    untaught = scheduler(late, concurrency=8)
    assert np.mean(first_grants(made)) > 2 * np.mean(first_grants(untaught))


@pytest.mark.parametrize("source", ["server", "assumed"])
def test_an_answer_that_was_not_counted_teaches_nothing(monkeypatch, source):
    lessons = []
    monkeypatch.setattr(metered, "recalibrate", lambda forecast, *seen: lessons.append(seen) or forecast)
    forecast = Forecast([20.0] * 40)
    done = simulate(scheduler(forecast), lambda work: part(min(5, work.grant), "stop", source), 10**6)
    assert len(lessons) == (3 if source == "server" else 0)  # after 8 answers, twice the tokens, and 32 answers
    again = scheduler(forecast)
    for place, result in enumerate(done.results):
        again.restore(place, result)
    assert len(lessons) == (6 if source == "server" else 0)


def test_answers_that_do_not_end_are_learned_from():
    """The short ones end, and the others are eight times as long as they are forecast to be."""
    forecast, length = Forecast(np.repeat([20.0, 40.0], 40), 0.5, 0.8), np.repeat([20, 320], 40)
    made = scheduler(forecast)
    simulate(made, answers(length), 3000)
    assert made.lessons.taken > 3
    assert made.corrected.tokens[-1] > forecast.tokens[-1]


def test_answers_of_no_tokens_are_learned_from_without_harm():
    made = scheduler(Forecast([20.0] * 80))
    outcome = simulate(made, lambda work: part(0, "stop"), 10**6)
    assert [result.outcome for result in outcome.results] == ["finished"] * 80


# --- parts of answers --------------------------------------------------------------------------


def test_it_continues_from_the_parts_of_an_earlier_execution():
    forecast, lengths, _ = batch(50)
    before = simulate(scheduler(forecast), answers(lengths), 2000)
    again = scheduler(forecast)
    for work, found in zip(before.work, before.found, strict=True):
        if found.finish == "length":
            again.restore(work.place, found)
    for result in before.results:
        again.restore(int(result.id[1:]), result)
    after = simulate(again, answers(lengths), 10**6)
    assert after.spent == lengths.sum() - 2000
    assert {result.id: len(result.text) for result in [*before.results, *after.results]} == {
        f"q{i}": length for i, length in enumerate(lengths)
    }


@dataclass
class Server:
    """Continues, starts over, or refuses to say so before it is tried."""

    continues: bool
    known: bool | None = None

    def __call__(self, request):
        return self.known

    def answer(self, work, length=100):
        if work.so_far is not None:
            self.known = self.continues
            if not self.continues:
                return Report(work, work.grant, error=Refused("anew", tokens=work.grant, code="not_continued"))
        left = length - (work.so_far.tokens if work.so_far else 0)
        tokens = min(left, work.grant)
        return Report(work, tokens, part(tokens, "stop" if left <= work.grant else "length"))


@pytest.mark.parametrize("continues", [True, False])
@pytest.mark.parametrize("chunk", [1, 64])
def test_two_pieces_of_eight_tokens_show_whether_the_server_continues_before_anything_else_is_sent(continues, chunk):
    server = Server(continues)
    forecast, _, _ = batch(20, spread=1.5)
    made = scheduler(forecast, concurrency=8, chunk=chunk, can_continue=server)
    pieces = []
    while server.known is None:
        work = made.next(10**6)
        pieces.append((work.place, work.grant))
        assert made.next(10**6 - work.bound) is None
        made.done(server.answer(work))
    assert len({place for place, _ in pieces}) == 1
    assert all(grant <= 8 for _, grant in pieces)
    assert len(pieces) == 2
    assert len([made.next(10**6) for _ in range(8)]) == 8


def test_an_answer_that_was_not_continued_is_begun_again_and_given_in_one_go():
    server = Server(False)
    made = scheduler(Forecast([100.0], 0.5), can_continue=server)
    results, spent = [], 0
    while work := made.next(1000 - spent):
        report = server.answer(work)
        spent += report.cost
        results.append(made.done(report))
    assert [result is None for result in results] == [True, True, False]
    assert (results[-1].outcome, len(results[-1].text), results[-1].cost) == ("finished", 100, spent)


def test_a_server_that_says_it_continues_and_does_not_is_paid_for_one_lost_part_of_a_request():
    """It would otherwise be paid for parts until the budget ends."""
    made, spent = scheduler(Forecast([100.0], 1.5), chunk=4), 0
    while work := made.next(10_000 - spent):
        if work.so_far is not None:
            report = Report(work, 0, error=Refused("anew", code="not_continued"))
        else:
            tokens = min(100, work.grant)
            report = Report(work, tokens, part(tokens, "stop" if tokens == 100 else "length"))
        spent += report.cost
        result = made.done(report)
    assert result.outcome in ("finished", "truncated")
    assert spent <= 16 + result.completion.tokens


@pytest.mark.parametrize(("tokens", "outcome"), [(16, "finished"), (17, "truncated")])
def test_a_part_of_an_earlier_server_is_dropped_if_short_and_kept_as_it_is_if_not(tokens, outcome):
    made = scheduler(Forecast([100.0], 0.5), can_continue=lambda request: False)
    made.restore(0, part(tokens))
    done = simulate(made, answers([100]), 10_000)
    (result,) = [*done.results, *done.rest]
    assert result.outcome == outcome
    if outcome == "truncated":
        assert (result.completion.flags, result.cost, done.spent) == (("not_continued",), 17, 0)
    else:
        assert (result.completion.tokens, result.cost, done.spent) == (100, 116, 100)


def test_an_answer_that_is_not_continued_gets_a_limit_where_its_index_falls_below_the_price():
    forecast, _, _ = batch(60, spread=1.5)
    budget = 3000
    made = scheduler(forecast, can_continue=lambda request: False)
    work = made.next(budget)
    plan = schedule(forecast, CAP)
    worth = plan.stop[(plan.query == work.place) & (plan.index >= made.price)]
    assert made.price > 0
    assert work.grant == worth.max() < CAP


def test_where_tokens_are_not_counted_no_more_than_the_next_chunk_is_granted():
    """Whatever is granted is charged."""
    forecast, _, _ = batch(60, spread=1.5)
    made = scheduler(forecast, can_continue=lambda request: False)
    first = made.next(10**6)
    result = made.done(Report(first, first.grant, part(first.grant, "stop", "assumed")))
    assert result.completion.flags == ("not_counted",)
    counted = scheduler(forecast, can_continue=lambda request: False)
    counted.next(10**6)
    assert made.next(10**6).grant < counted.next(10**6).grant


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(Refused("no", code="model_not_found"), "failed"), (Unavailable("busy", tokens=0), "finished")],
)
def test_a_refusal_is_final_and_an_outage_is_not(error, outcome):
    made = scheduler(Forecast([100.0], 0.5), attempts=4)
    first = made.next(1000)
    result = made.done(Report(first, 0, error=error))
    if outcome == "failed":
        assert (result.outcome, result.failure.code) == ("failed", "model_not_found")
        assert made.next(1000) is None
    else:
        assert result is None
        done = simulate(made, answers([50]), 1000)
        assert [result.outcome for result in done.results] == [outcome]


# --- money -------------------------------------------------------------------------------------


def test_thousands_whose_prompts_cost_more_than_what_is_left_are_declined_without_being_sent():
    rates = Rates.dollars(10, 10)
    made = Metered(max_tokens=100, rates=rates)
    made.add([Request(f"q{i}", "?", body={"prompt": "?" * 1000}) for i in range(3000)], Forecast([10.0] * 3000))
    assert made.next(rates.bound(1000, 0)) is None
    assert {result.outcome for result in made.close()} == {"declined"}


def test_a_hundred_thousand_requests_are_planned_in_little_memory():
    """Requests without a limit have 36 chunks each: 16 bytes of each are kept, and 56 are needed to find them."""
    n = 20_000
    rng = np.random.default_rng(0)
    forecast = Forecast(rng.lognormal(5, 0.8, n), 0.9, 0.5, 10.0)
    made = Metered()
    made.add([Request(f"q{i}", "?") for i in range(n)], forecast)
    tracemalloc.start()
    try:
        made.next(100 * n)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    chunks = len(schedule(forecast, np.inf))
    assert chunks > 30 * n
    assert kept < 16 * chunks + 300 * n  # and the heap
    assert peak < 64 * chunks + 300 * n
