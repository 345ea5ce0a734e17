"""Forecasts in files and in parts are the same forecasts."""

import gzip
from dataclasses import fields
from itertools import pairwise

import numpy as np
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shadowprice import Forecast, InputError, Request
from shadowprice.forecast import ForecastTable
from shadowprice.formats.forecasts import forecast_line
from shadowprice.shape import COUNT, Shape

LENGTHS, SPREADS = st.floats(0.001, 1e6), st.floats(0.01, 10)
QUERIES = st.fixed_dictionaries(
    {
        "tokens": LENGTHS,
        "spread": SPREADS,
        "solve": st.floats(0, 1),
        "tail": st.one_of(st.just(np.inf), st.floats(0.1, 1e5)),
        "solved_tokens": LENGTHS,
        "solved_spread": SPREADS,
    }
)


def forecast_of(queries):
    return Forecast(**{name: [query[name] for query in queries] for name in queries[0]})


def same(one, other):
    """No tail at all, and one of infinitely many degrees, are the same."""
    for field in fields(Forecast):
        a, b = (np.inf if (v := getattr(f, field.name)) is None else v for f in (one, other))
        if not np.array_equal(np.broadcast_to(a, len(one)), np.broadcast_to(b, len(other))):
            return False
    return True


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(queries=st.lists(QUERIES, min_size=1, max_size=5))
def test_written_forecasts_are_read_back(queries, tmp_path):
    forecast, path = forecast_of(queries), tmp_path / "forecasts.jsonl"
    path.write_bytes(b"\n".join(forecast_line(f"q{i}", forecast, i) for i in range(len(queries))))
    assert same(ForecastTable(path).predict([Request(f"q{i}", "") for i in range(len(queries))]), forecast)


def test_one_value_for_all_is_written_to_every_line(tmp_path):
    forecast, path = Forecast([10, 20], 0.4, 0.7, tail=3.0, solved_spread=0.2), tmp_path / "forecasts.jsonl"
    path.write_bytes(b"\n".join(forecast_line(name, forecast, i) for i, name in enumerate("ab")))
    assert same(ForecastTable(path).predict([Request("b", ""), Request("a", "")]), forecast.take([1, 0]))


def test_missing_fields_have_the_defaults_of_a_forecast(tmp_path):
    path = tmp_path / "forecasts.jsonl"
    path.write_text('{"custom_id": "a", "tokens": 30, "tail": null}\n{"custom_id": "b", "tokens": 40, "tail": 2.5}\n')
    table = ForecastTable(path)
    assert same(table.predict([Request("a", "")]), Forecast([30]))
    assert table.predict([Request("a", "")]).tail is None
    assert same(table.predict([Request("a", ""), Request("b", "")]), Forecast([30, 40], tail=[np.inf, 2.5]))


def test_an_invalid_number_is_an_error_with_its_line(tmp_path):
    path = tmp_path / "forecasts.jsonl"
    path.write_text('{"custom_id": "a", "tokens": 30}\n{"custom_id": "b", "tokens": 40, "solved_tokens": -1}\n')
    with pytest.raises(InputError, match=r"forecasts\.jsonl:2: forecast solved_tokens must be"):
        ForecastTable(path)


def test_gzip_and_a_byte_order_mark(tmp_path):
    path = tmp_path / "forecasts.jsonl"
    path.write_bytes(gzip.compress(b'\xef\xbb\xbf{"custom_id": "a", "tokens": 30}\r\n'))
    assert same(ForecastTable(path).predict([Request("a", "")]), Forecast([30]))


@given(queries=st.lists(QUERIES, min_size=1, max_size=8), cuts=st.lists(st.integers(0, 8), max_size=3))
def test_a_forecast_in_parts_is_the_same_forecast(queries, cuts):
    forecast = forecast_of(queries)
    ends = [0, *sorted(min(cut, len(queries)) for cut in cuts), len(queries)]
    parts = [forecast.take(range(a, b)) for a, b in pairwise(ends)]
    assert same(Forecast.joined(parts), forecast)


def test_parts_may_differ_in_the_fields_they_have():
    joined = Forecast.joined([Forecast([10, 20], 0.4, tail=2.0), Forecast([30], [0.5], 0.3)])
    assert same(joined, Forecast([10, 20, 30], [0.4, 0.4, 0.5], [1, 1, 0.3], tail=[2, 2, np.inf]))
    assert Forecast.joined([Forecast([10]), Forecast([20])]).tail is None
    assert len(Forecast.joined([])) == 0


class TestShape:
    SHAPE = Shape(tuple(0.1 * i for i in range(COUNT)), tuple(0.05 * i for i in range(COUNT)))

    def test_it_is_on_the_first_line_and_holds_for_all(self, tmp_path):
        written = Forecast([10.0, 20.0, 30.0], shape=self.SHAPE)
        lines = [forecast_line(str(i), written, i) for i in range(3)]
        assert [b"shape" in line for line in lines] == [True, False, False]
        path = tmp_path / "forecasts.jsonl"
        path.write_bytes(b"\n".join(lines))
        assert ForecastTable(path).predict([Request("2", ""), Request("1", "")]).shape == self.SHAPE

    @pytest.mark.parametrize(
        ("second", "problem"),
        [
            ('{"correct": [0, 1], "wrong": [0, 1]}', "2: shape: a shape has 61 cumulative hazards"),
            ("[1, 2]", "2: shape: not a shape"),
            (orjson.dumps(Shape((0.0,) * COUNT, (0.0,) * COUNT).to_dict()).decode(), "2: another shape than on"),
        ],
    )
    def test_one_that_is_damaged_or_differs_is_refused(self, tmp_path, second, problem):
        path = tmp_path / "forecasts.jsonl"
        first = forecast_line("a", Forecast([10.0], shape=self.SHAPE), 0).decode()
        path.write_text(f'{first}\n{{"custom_id": "b", "tokens": 5, "shape": {second}}}\n')
        with pytest.raises(InputError, match=problem):
            ForecastTable(path)
