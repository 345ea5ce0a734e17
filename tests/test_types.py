"""Forecasts of many requests are forecasts of each, and results say what they are."""

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowprice import MarketError
from shadowprice.types import Allocation, Completion, Forecast, Result, Usage


def values(forecast):
    """Every field for every request; no tail is one of infinitely many degrees."""
    found = [getattr(forecast, field.name) for field in fields(forecast)]
    return np.array([np.broadcast_to(np.inf if each is None else each, len(forecast)) for each in found])


tokens = st.floats(1e-3, 1e6)
spreads = st.floats(0.01, 5)
chances = st.floats(0, 1)


@st.composite
def forecasts(draw, most=5):
    """Fields for each request, one for all, or none."""
    n = draw(st.integers(0, most))

    def some(number):
        return draw(st.one_of(number, st.lists(number, min_size=n, max_size=n)))

    return Forecast(
        draw(st.lists(tokens, min_size=n, max_size=n)),
        some(spreads),
        some(chances),
        (draw(st.booleans()) and some(st.floats(1, 50))) or None,
        (draw(st.booleans()) and some(tokens)) or None,
        (draw(st.booleans()) and some(spreads)) or None,
    )


class TestForecast:
    @given(forecasts(), st.data())
    def test_some_of_the_requests_have_the_forecast_they_had(self, forecast, data):
        who = data.draw(st.lists(st.sampled_from(range(len(forecast))), max_size=6)) if len(forecast) else []
        some = forecast.take(np.array(who, dtype=np.intp))
        assert np.array_equal(values(some), values(forecast)[:, who])

    @given(forecasts(), st.data())
    def test_a_mask_is_as_good_as_indices(self, forecast, data):
        mask = np.array(data.draw(st.lists(st.booleans(), min_size=len(forecast), max_size=len(forecast))), dtype=bool)
        assert np.array_equal(values(forecast.take(mask)), values(forecast.take(np.flatnonzero(mask))))

    @given(st.lists(forecasts(), max_size=4))
    def test_joined_parts_keep_their_forecasts(self, parts):
        joined = Forecast.joined(parts)
        assert len(joined) == sum(map(len, parts))
        if parts:
            assert np.array_equal(values(joined), np.concatenate([values(part) for part in parts], axis=1))

    @given(forecasts(), st.floats(0, 1000))
    def test_more_tokens_shift_every_median_and_keep_the_chance(self, forecast, more):
        found = forecast.shifted(np.full(len(forecast), more))
        assert np.allclose(found.tokens, forecast.tokens + more)
        assert np.allclose(found.solved_tokens, forecast.solved_tokens + more)
        assert np.array_equal(found.solve, forecast.solve)
        assert np.all(found.spread <= 1.000001 * np.maximum(forecast.spread, 1e-3))
        # the same number of tokens, to first order
        wide = found.spread > 1e-3
        assert np.allclose((found.spread * found.tokens)[wide], (forecast.spread * forecast.tokens)[wide])

    def test_correct_answers_are_like_all_others_where_nothing_else_is_known(self):
        found = Forecast([10, 20], 0.3)
        assert np.array_equal(found.solved_tokens, [10, 20])
        assert np.array_equal(np.broadcast_to(found.solved_spread, 2), [0.3, 0.3])

    @pytest.mark.parametrize(
        ("arguments", "problem"),
        [
            ({"tokens": [0.0]}, "forecast tokens"),
            ({"tokens": [np.nan]}, "forecast tokens"),
            ({"tokens": [2.0**54]}, "forecast tokens"),
            ({"tokens": [1.0], "spread": 0.0}, "forecast spread"),
            ({"tokens": [1.0], "spread": 11.0}, "forecast spread"),
            ({"tokens": [1.0], "solve": 1.1}, "forecast solve"),
            ({"tokens": [1.0], "solve": -0.1}, "forecast solve"),
            ({"tokens": [1.0], "tail": 0.0}, "forecast tail"),
            ({"tokens": [1.0], "solved_tokens": 0.0}, "forecast solved_tokens"),
            ({"tokens": [1.0], "solved_spread": -1.0}, "forecast solved_spread"),
            ({"tokens": [1.0, 2.0], "solve": [0.1, 0.2, 0.3]}, "solve"),
        ],
    )
    def test_numbers_that_cannot_be_are_named(self, arguments, problem):
        with pytest.raises(MarketError, match=problem):
            Forecast(**arguments)


def test_an_allocation_declines_who_gets_nothing():
    found = Allocation(np.array([5, 0, 7]), 20, "clear")
    assert list(found.admitted) == [True, False, True]
    assert (found.total, type(found.total)) == (12, int)


usages = st.builds(Usage, st.integers(0, 99), st.integers(0, 99), st.integers(0, 99))


@given(usages, usages)
def test_usage_is_added_by_kind(one, other):
    both = one + other
    assert (both.output, both.input, both.cached) == (
        one.output + other.output,
        one.input + other.input,
        one.cached + other.cached,
    )
    assert one + Usage() == one


def test_an_answer_knows_its_usage_and_a_result_its_text():
    answer = Completion("Paris", 5, "stop", "server", input_tokens=7, cached_tokens=2)
    assert answer.usage == Usage(5, 7, 2)
    assert Result("a", "finished", completion=answer).text == "Paris"
    assert Result("a", "declined").text == ""
