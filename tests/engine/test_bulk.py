"""A simulation in bulk says what the simulator says, request by request."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice import Forecast, Request
from shadowprice.engine import Settings, make_scheduler
from shadowprice.engine.bulk import simulate_lengths
from shadowprice.engine.simulate import simulate
from shadowprice.forecast.hazards import parametric
from shadowprice.forecast.reading import AGES, traits
from shadowprice.market.gittins import Readings
from shadowprice.types import Completion

WAYS = [
    *(Settings(name, reclaim=reclaim) for name in ("uniform", "clear", "expected", "auction") for reclaim in (0, 1)),
    *(Settings(name, "metered") for name in ("uniform", "clear", "expected", "proportional")),
    Settings("index", "metered"),
    Settings("index", "metered", chunk=1),
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: f"{way.policy} {way.accounting} {way.reclaim} {way.chunk}")
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 120),
    share=st.floats(0.05, 3.0),
    cap=st.sampled_from([40, 300, 4000]),
    error=st.floats(0.0, 1.5),
    alike=st.booleans(),
)
@settings(max_examples=30, deadline=None)
def test_the_same_tokens_and_the_same_prices(way, seed, n, share, cap, error, alike):
    random = np.random.default_rng(seed)
    tokens = random.lognormal(5.0, 1.0, n)
    forecast = Forecast(tokens, random.uniform(0.05, 1.0, n), random.uniform(0.0, 1.0, n))
    if alike:
        forecast = Forecast(np.full(n, 150.0), 0.8, 0.5)
    ends = np.maximum(1, tokens * np.exp(error * random.standard_normal(n))).astype(np.int64)
    ends[ends > cap] = cap + 1
    budget = int(share * n * np.median(tokens))
    settings = Settings(
        way.policy, way.accounting, reclaim=bool(way.reclaim), chunk=way.chunk, concurrency=1, max_tokens=cap
    )

    def answer(work):
        left = int(ends[work.place]) - (work.so_far.tokens if work.so_far else 0)
        return Completion("", min(left, work.grant), "stop" if left <= work.grant else "length", "server")

    one_by_one, in_bulk = make_scheduler(settings), make_scheduler(settings)
    for scheduler in (one_by_one, in_bulk):
        scheduler.add([Request(str(i), "") for i in range(n)], forecast)
    slow = simulate(one_by_one, answer, budget)
    generated = np.zeros(n, dtype=np.int64)
    for work, found in zip(slow.work, slow.found, strict=True):
        generated[work.place] += found.tokens
    fast = simulate_lengths(in_bulk, ends, budget, cap)
    assert fast.generated.tolist() == generated.tolist()
    assert fast.generated.sum() <= budget
    assert in_bulk.rounds == one_by_one.rounds


class Readers:
    """Reads equals signs: the more of them, the shorter is what is left, and the likelier a correct answer."""

    def revise(self, places, forecast, age, observed):
        signs = np.asarray(observed)[:, SIGNS]
        return Readings(age, np.exp(1.5 - signs), signs - 1.5)


SIGNS = traits("=" * 10).index(np.log1p(10))


@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 80),
    share=st.floats(0.05, 3.0),
    cap=st.sampled_from([40, 64, 300, 4000]),
    alike=st.booleans(),
    shaped=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_the_same_where_answers_are_read(seed, n, share, cap, alike, shaped):
    random = np.random.default_rng(seed)
    tokens = random.lognormal(5.5, 1.0, n)
    forecast = Forecast(tokens, random.uniform(0.05, 1.0, n), random.uniform(0.0, 1.0, n))
    if alike:
        forecast = Forecast(np.full(n, 250.0), 0.8, 0.5)
    if shaped:
        forecast = replace(forecast, shape=parametric(3.0, 1.0, 0.3))
    ends = np.maximum(1, tokens * np.exp(random.standard_normal(n))).astype(np.int64)
    ends[ends > cap] = cap + 1
    budget = int(share * n * np.median(tokens))
    text = ["".join(random.choice(["a", "=", " "], 4100)) for _ in range(n)]

    def answer(work):
        age = work.so_far.tokens if work.so_far else 0
        some = min(int(ends[work.place]) - age, work.grant)
        whole = ends[work.place] - age <= work.grant
        return Completion(text[work.place][age : age + some], some, "stop" if whole else "length", "server")

    way = Settings("index", "metered", concurrency=1, max_tokens=cap)
    one_by_one, in_bulk = (make_scheduler(way, reader=Readers()) for _ in range(2))
    for scheduler in (one_by_one, in_bulk):
        scheduler.add([Request(str(i), "") for i in range(n)], forecast)
    slow = simulate(one_by_one, answer, budget)
    generated = np.zeros(n, dtype=np.int64)
    for work, found in zip(slow.work, slow.found, strict=True):
        generated[work.place] += found.tokens
    texts = np.array([[traits(each[:age]) for age in AGES] for each in text])
    fast = simulate_lengths(in_bulk, ends, budget, cap, texts)
    assert fast.generated.tolist() == generated.tolist()
    assert in_bulk.rounds == one_by_one.rounds
