"""Rows of a table as requests with forecasts."""

import numpy as np
import orjson
import pytest

from shadowprice.cost import Rates
from shadowprice.distributed.tables import Prepare, Reading, digest, forecast_from, shape_of
from shadowprice.errors import InputError
from shadowprice.forecast import PromptLength
from shadowprice.formats.inputs import Fields
from shadowprice.shape import COUNT, Shape
from shadowprice.types import Forecast


def columns(rows, **reading):
    return Prepare(Reading(**reading), PromptLength()).columns(rows)


def test_columns_are_named_as_in_the_files_of_a_run():
    found = columns([{"id": 7, "question": "What is 2 + 2?", "answer": "4"}, {"id": "b", "question": "And 3?"}])
    assert found["id"] == ["7", "b"]
    assert orjson.loads(found["body"][0]) == {"messages": [{"role": "user", "content": "What is 2 + 2?"}]}
    assert (found["gold"], found["grader"]) == (["4", ""], ["math", ""])
    assert found["name"][0] == digest("7")
    assert np.isinf(found["cap"]).all()


def test_other_columns_can_be_named():
    found = columns([{"q": "Why?", "key": "a"}], fields=Fields(prompt="q", id="key"), system="Be short.", max_tokens=9)
    assert found["id"] == ["a"]
    assert orjson.loads(found["body"][0])["messages"][0] == {"role": "system", "content": "Be short."}
    assert found["cap"].tolist() == [9.0]


def test_requests_in_a_table_lose_the_fields_that_only_others_have():
    body = {"messages": [{"role": "user", "content": "Hi", "name": None}], "max_tokens": 20, "temperature": None}
    found = columns([{"custom_id": "a", "body": body}], max_tokens=50)
    assert orjson.loads(found["body"][0]) == {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 20}
    assert found["cap"].tolist() == [20.0]


def test_prompts_are_counted_where_they_cost_something():
    rates = Rates.dollars("1", "2")
    assert columns([{"question": "What?"}], rates=rates)["prompt"][0] > 0
    assert columns([{"question": "What?"}])["prompt"][0] == 0


def test_forecasts_survive_the_table():
    rows = [{"id": str(i), "question": "word " * (i + 1)} for i in range(5)]
    found = columns(rows)
    forecast = forecast_from(found)
    assert isinstance(forecast, Forecast)
    assert len(forecast) == 5
    assert forecast.tail is None


def test_a_shape_of_lengths_is_the_forecasters_and_not_in_the_table():
    shape = Shape(tuple(np.linspace(0, 3, COUNT)), tuple(np.linspace(0, 2, COUNT)))

    class Shaped:
        def predict(self, requests):
            return Forecast([100.0] * len(requests), shape=shape)

    found = Prepare(Reading(), Shaped()).columns([{"question": "a"}, {"question": "b"}])
    assert forecast_from(found, shape_of(Shaped())).shape == shape
    assert forecast_from(found).shape is None
    joined = Forecast.joined([forecast_from(found, shape), forecast_from(found, shape)])
    assert joined.shape == shape


def test_programs_are_not_graded():
    with pytest.raises(InputError, match="grader code is not available on Ray"):
        columns([{"question": "Write f.", "answer": "assert f()", "grader": "code"}])


def test_an_empty_batch_has_the_same_columns():
    assert columns([]).keys() == columns([{"question": "a"}]).keys()
