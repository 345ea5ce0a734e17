"""Metered reads answers on the way: at which ages, when not, and what follows."""

from dataclasses import replace

import numpy as np
import pytest

from shadowprice import Forecast, Request
from shadowprice.cost import Rates
from shadowprice.engine.metered import Metered
from shadowprice.engine.scheduler import Report
from shadowprice.engine.simulate import simulate
from shadowprice.forecast.reading import AGES, traits
from shadowprice.market.gittins import Readings
from shadowprice.types import Completion

SIGNS = traits("=" * 10).index(np.log1p(10))
CAP = 2000


class Reader:
    """An answer with equals signs has little left, any other much. Keeps the ages at which it was asked."""

    def __init__(self):
        self.asked = set()

    def revise(self, places, forecast, age, observed):
        self.asked |= set(zip(places, age.tolist(), strict=True))
        few = observed[:, SIGNS] > 0
        return Readings(age, np.where(few, 0.2, 5.0), np.zeros(len(age)))


def served(lengths, texts, budget, reader, **options):
    """The ages that answers reached."""
    scheduler = Metered(**{"max_tokens": CAP, "concurrency": 1, "reader": reader, **options})
    scheduler.add([Request(f"{i}", "?") for i in range(len(lengths))], Forecast(np.full(len(lengths), 400.0), 0.8, 0.5))

    def answer(work):
        age = work.so_far.tokens if work.so_far else 0
        left = lengths[work.place] - age
        some = min(left, work.grant)
        text = (texts[work.place] * CAP)[age : age + some]
        return Completion(text, some, "stop" if left <= work.grant else "length", "server")

    outcome = simulate(scheduler, answer, budget, rates=options.get("rates", replace(Rates())))
    age = np.zeros(len(lengths), dtype=int)
    for work, part in zip(outcome.work, outcome.found, strict=True):
        age[work.place] += part.tokens
    return age, outcome


def test_answers_that_seem_to_end_soon_are_continued_first():
    lengths = [500, 1500] * 20
    texts = ["=a", "b "] * 20
    read, _ = served(lengths, texts, 14_000, Reader())
    blind, _ = served(lengths, texts, 14_000, None)
    ended = [np.count_nonzero(age == lengths) for age in (read, blind)]
    assert ended[0] > 1.5 * ended[1]
    assert read.sum() == blind.sum() == 14_000


def test_answers_pause_at_the_ages_at_which_they_are_read():
    reader = Reader()
    _, outcome = served([1500] * 4, ["x "] * 4, 6000, reader)
    ages = set()
    for work, part in zip(outcome.work, outcome.found, strict=True):
        age = (work.so_far.tokens if work.so_far else 0) + part.tokens
        before = age - part.tokens
        assert not any(before < stop < age for stop in AGES)
        ages.add(age)
    assert {age for _, age in reader.asked} <= set(map(float, AGES))
    assert {64.0, 512.0} <= {age for _, age in reader.asked}


def test_where_prompts_cost_answers_do_not_pause_for_it():
    rates = Rates(input=10**6, output=2 * 10**6)
    reader = Reader()
    _, with_reader = served([900] * 3, ["x "] * 3, 50_000, reader, rates=rates)
    _, without = served([900] * 3, ["x "] * 3, 50_000, None, rates=rates)
    assert [work.grant for work in with_reader.work[:3]] == [work.grant for work in without.work[:3]]


def test_an_answer_of_unknown_length_is_not_read():
    reader = Reader()
    scheduler = Metered(max_tokens=CAP, concurrency=1, reader=reader)
    scheduler.add([Request("a", "?")], Forecast([400.0], 0.8, 0.5))
    work = scheduler.next(1000)
    scheduler.done(Report(work, work.bound, Completion("x" * 64, work.grant, "length", "assumed")))
    scheduler.next(900)
    assert not reader.asked


@pytest.mark.parametrize("tokens", [64, 100, 700])
def test_a_part_of_an_earlier_execution_is_read_at_the_age_it_has(tokens):
    reader = Reader()
    scheduler = Metered(max_tokens=CAP, concurrency=1, reader=reader)
    scheduler.add([Request("a", "?"), Request("b", "?")], Forecast([400.0, 400.0], 0.8, 0.5))
    scheduler.restore(0, Completion("x" * tokens, tokens, "length", "server"))
    assert scheduler.next(5000) is not None
    assert reader.asked == {(0, float(tokens))}


def test_short_parts_are_not_read():
    reader = Reader()
    scheduler = Metered(max_tokens=CAP, concurrency=1, reader=reader)
    scheduler.add([Request("a", "?")], Forecast([400.0], 0.8, 0.5))
    scheduler.restore(0, Completion("x" * 63, 63, "length", "server"))
    assert scheduler.next(5000) is not None
    assert not reader.asked


def test_hidden_reasoning_is_not_read():
    reader = Reader()
    served([900] * 3, ["x "] * 3, 3000, reader)
    assert reader.asked
    reader = Reader()
    scheduler = Metered(max_tokens=CAP, concurrency=1, reader=reader)
    scheduler.add([Request("a", "?")], Forecast([400.0], 0.8, 0.5))
    simulate(scheduler, lambda work: Completion("x", min(work.grant, 500), "length", "server"), 500)
    assert not reader.asked


@pytest.mark.parametrize("source", ["server", "assumed"])
def test_answers_that_cannot_be_continued_do_not_pause(source):
    def grants(reader, can_continue):
        scheduler = Metered(max_tokens=CAP, concurrency=1, reader=reader, can_continue=can_continue)
        scheduler.add([Request(f"{i}", "?") for i in range(8)], Forecast(np.full(8, 400.0), 0.3, 0.5))

        def answer(work):
            left = 450 - (work.so_far.tokens if work.so_far else 0)
            tokens = min(left, work.grant) if source == "server" else work.grant
            return Completion("x " * tokens, tokens, "stop" if left <= work.grant else "length", source)

        return [
            (work.place, work.grant)
            for work in simulate(scheduler, answer, 4000).work
            if not can_continue(work.request) and work.so_far is None
        ]

    assert grants(Reader(), lambda request: False) == grants(None, lambda request: False)
    mixed = grants(Reader(), lambda request: int(request.id) % 2 == 0)
    assert mixed
    assert min(grant for _, grant in mixed) > 64


def learned(scheduler):
    return float(np.log(scheduler.corrected.tokens).mean())


def a_run(reader, requests=30):
    """A run of two halves: what it has learned, its results and the parts of its answers."""
    rng = np.random.default_rng(0)
    lengths = np.where(np.arange(requests) % 2, 900, 200) * rng.lognormal(0, 0.1, requests)
    scheduler = Metered(max_tokens=CAP, concurrency=1, reader=reader)
    scheduler.add([Request(f"{i}", "?") for i in range(requests)], Forecast(np.full(requests, 400.0), 0.8, 0.5))

    def answer(work):
        age = work.so_far.tokens if work.so_far else 0
        left = int(lengths[work.place]) - age
        some = min(left, work.grant)
        text = (("b " if work.place % 2 else "=a") * CAP)[age : age + some]
        return Completion(text, some, "stop" if left <= work.grant else "length", "server")

    outcome = simulate(scheduler, answer, 6000)
    return scheduler, outcome


def test_a_resumed_run_learns_as_if_it_had_not_stopped():
    scheduler, outcome = a_run(Reader())
    again = Metered(max_tokens=CAP, concurrency=1, reader=Reader())
    again.add(scheduler.batch.requests, scheduler.batch.forecast)
    for result in outcome.results:
        again.restore(int(result.id), result)
    for place, part in scheduler.batch.so_far.items():
        again.restore(place, part)
    before, after = (run.answers_read.as_forecast(run._age, scheduler.corrected) for run in (scheduler, again))
    ended = [int(result.id) for result in outcome.results]
    assert len(ended) > 8
    assert before[ended].tolist() == after[ended].tolist() != scheduler._age[ended].tolist()


def test_a_request_that_is_added_does_not_change_what_was_learned():
    scheduler, _ = a_run(Reader())
    scheduler.lessons.tokens = 0.0  # a lesson now, so that nothing new is learned by the next
    assert scheduler.recalibrate(scheduler._age, scheduler._stopped)
    before = learned(scheduler)
    scheduler.add([Request("new", "?")], Forecast([400.0], 0.8, 0.5))
    assert learned(scheduler) == pytest.approx(before, abs=0.02)
