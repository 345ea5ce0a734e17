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

    def revise(self, places, forecast, age, some):
        self.asked |= set(zip(places, age.tolist(), strict=True))
        few = some[:, SIGNS] > 0
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
