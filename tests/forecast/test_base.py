"""Forecasts of a batch are made in pieces, from what its requests do not share."""

import numpy as np
import pytest

from shadowprice.errors import InputError
from shadowprice.forecast.base import CHUNK, Forecaster, predict_all
from shadowprice.types import Forecast, Request, Trace


class Letters:
    """A forecast is the length of the text."""

    def __init__(self):
        self.calls = []

    def predict(self, requests):
        self.calls.append([request.text for request in requests])
        return Forecast([1.0 + len(request.text) for request in requests])


class Learned(Forecaster):
    fit = adapt = save = load = None

    def _predict(self, texts):
        return Forecast([1.0 + len(text) for text in texts])


def requests(texts):
    return [Request(f"q{i}", text) for i, text in enumerate(texts)]


@pytest.mark.parametrize("count", [0, 1, CHUNK, CHUNK + 1, 3 * CHUNK - 1])
def test_pieces_are_joined_in_order(count):
    letters = Letters()
    found = predict_all(letters, requests("x" * (i % 7) for i in range(count)))
    assert list(found.tokens) == [1 + i % 7 for i in range(count)]
    assert max(map(len, letters.calls), default=0) <= CHUNK
    assert len(letters.calls) == -(-count // CHUNK)


def test_what_all_requests_share_is_not_in_the_forecast_even_of_a_short_last_piece():
    asked = [f"What is {i} plus {i * i}?" for i in range(CHUNK + 2)]
    shared = [f"{text}\nAnswer briefly, and explain nothing." for text in asked]
    assert np.array_equal(
        predict_all(Letters(), requests(shared)).tokens, predict_all(Letters(), requests(asked)).tokens
    )


def test_texts_are_as_good_as_requests_and_one_text_is_not_a_list():
    assert list(Learned().predict(["a", Request("q", "bcd")]).tokens) == [2, 4]
    with pytest.raises(InputError, match=r"one string is not a list of requests \(give \[text\]\)"):
        Learned().predict("abc")


def test_it_is_evaluated_on_what_traces_do_not_share():
    rng = np.random.default_rng(0)
    traces = [Trace(f"t{i}", "x" * int(rng.integers(1, 99)), 0, correct=True) for i in range(40)]
    traces = [Trace(t.id, f"{t.prompt} ok?\nPlease think.", len(t.prompt), correct=True) for t in traces]
    assert Learned().evaluate(traces, resamples=5).overall.spearman == pytest.approx(1.0)
