"""What the error file says of a declined request."""

import json

from shadowprice import Forecast
from shadowprice.formats.declined import declined
from shadowprice.formats.results import parse_result, result_line


def test_the_line_has_the_code_forecast_and_price_and_is_read_back():
    result = declined("q", Forecast([300, 900], spread=[0.4, 0.6], solve=0.7), 1, 0.002)
    line = result_line(result)
    error = json.loads(line)["error"]
    assert error["code"] == "budget_abandoned"
    assert error["forecast"] == {"tokens": 900, "spread": 0.6, "solve": 0.7}
    assert error["price"] == 0.002
    assert parse_result(line) == result
    assert (result.outcome, result.cost, result.completion) == ("declined", 0, None)


def test_a_policy_without_a_price_leaves_it_null():
    assert json.loads(result_line(declined("q", Forecast([5]), 0, None)))["error"]["price"] is None
