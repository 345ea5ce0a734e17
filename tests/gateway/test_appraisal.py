import asyncio
from dataclasses import fields

import numpy as np
import pytest

from shadowprice.cost import Rates
from shadowprice.errors import MarketError
from shadowprice.forecast import default
from shadowprice.gateway.admission import Terms, offers_of
from shadowprice.gateway.appraisal import Appraiser, appraise
from shadowprice.types import Request

from .inside import Alike

TEXTS = ["What is 2 + 3?", "Prove that there are infinitely many primes.", "x" * 100_000]
TERMS = [Terms(None, 4096), Terms(100, 4096, 3.0, 2), Terms(None, 500, prompt=400, rates=Rates.dollars(1, 2))]


def test_together_or_alone_is_the_same():
    predictor = default()
    together = appraise(predictor, TEXTS, TERMS)
    for text, terms, found in zip(TEXTS, TERMS, together, strict=True):
        (alone,) = appraise(predictor, [text], [terms])
        assert found.forecast.tokens == pytest.approx(alone.forecast.tokens)
        for money in alone.offers:
            assert np.allclose(found.offers[money].cost, alone.offers[money].cost)
            assert np.allclose(found.offers[money].gain, alone.offers[money].gain)


def test_the_forecast_of_a_request_is_its_row_of_the_batch():
    predictor = default()
    whole = predictor.predict([Request("", text) for text in TEXTS[:2]])
    for i, found in enumerate(appraise(predictor, TEXTS[:2], TERMS[:2])):
        expected = whole.take([i])
        for field in fields(expected):
            one, other = getattr(found.forecast, field.name), getattr(expected, field.name)
            assert one is other or np.array_equal(one, other), field.name
        again = offers_of(found.forecast, TERMS[:1], False, 300)
        assert np.allclose(again.cost, offers_of(expected, TERMS[:1], False, 300).cost)


def test_offers_are_those_of_the_terms():
    found = appraise(Alike(), TEXTS, TERMS)
    for terms, each in zip(TERMS, found, strict=True):
        for money in (False, True):
            assert np.allclose(each.offers[money].cost, offers_of(each.forecast, [terms], money).cost)


def test_requests_of_one_moment_are_forecast_in_one_call():
    calls = []

    class Counting(Alike):
        def predict(self, requests):
            calls.append(len(requests))
            return super().predict(requests)

    async def work():
        appraiser = Appraiser(Counting())
        await asyncio.gather(*(appraiser(f"q{i}", TERMS[0]) for i in range(100)))

    asyncio.run(work())
    assert calls == [64, 36]


def test_a_forecaster_that_fails_on_one_request_does_not_fail_the_others():
    class Picky(Alike):
        def predict(self, requests):
            if any("bad" in request.text for request in requests):
                raise KeyError("bad")
            return super().predict(requests)

    async def work():
        appraiser = Appraiser(Picky())
        return await asyncio.gather(*(appraiser(text, TERMS[0]) for text in ("a", "bad", "b")), return_exceptions=True)

    first, second, third = asyncio.run(work())
    assert isinstance(second, MarketError)
    assert first.forecast.tokens == third.forecast.tokens
