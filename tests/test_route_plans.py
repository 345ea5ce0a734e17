"""A plan with routes: within the budget by the bound of every line, split by route, nothing lost."""

import io
import json

import numpy as np
import pytest

from shadowprice.cost import Rates, prompt_bound
from shadowprice.errors import InputError
from shadowprice.formats.routes import Route
from shadowprice.planning import batch_lines
from shadowprice.route_plans import plan_routes
from shadowprice.types import Forecast

from .conftest import request_line

CHEAP = Route("cheap", Rates.dollars("0.1", "0.1"), "http://127.0.0.1:9/v1", model="small-model")
DEAR = Route("dear", Rates.dollars("1", "1.2"), "http://127.0.0.1:9/v1", model="large-model")


@pytest.fixture
def lines(batch):
    return batch_lines(batch([request_line(f"q{i}", f"What is {i}?") for i in range(60)]))


def forecasts(n=60):
    hard = np.arange(n) % 2 == 0
    return [
        Forecast(np.full(n, 150.0), 0.4, np.where(hard, 0.1, 0.9)),
        Forecast(np.full(n, 180.0), 0.4, np.where(hard, 0.9, 0.95)),
    ]


@pytest.mark.parametrize("budget", ["$0.00001", "$0.004", "$0.02", "$5"])
def test_the_bounds_of_all_lines_are_within_the_budget(lines, budget):
    plan = plan_routes(lines, budget, [CHEAP, DEAR], forecasts(), max_tokens=1000)
    total = 0
    for line, number, limit, cost in zip(lines, plan.route, plan.limits, plan.costs, strict=True):
        if number >= 0:
            exact = [CHEAP, DEAR][number].rates.bound(prompt_bound(line.request.body), int(limit))
            assert exact == cost
            assert 0 < limit <= 1000
            total += exact
    assert total == plan.costs.sum() <= plan.budget
    assert plan.utility <= plan.bound


def test_hard_requests_go_to_the_dear_route(lines):
    plan = plan_routes(lines, "$0.03", [CHEAP, DEAR], forecasts(), max_tokens=1000)
    assert np.mean(plan.route[::2] == 1) > 0.8
    assert np.mean(plan.route[1::2] == 0) > 0.8


def test_every_line_is_written_once_with_the_model_of_its_route(lines):
    plan = plan_routes(lines, "$0.01", [CHEAP, DEAR], forecasts(), max_tokens=1000)
    files, errors = [io.BytesIO(), io.BytesIO()], io.BytesIO()
    plan.write_to(files, errors)
    seen = []
    for route, file in zip((CHEAP, DEAR), files, strict=True):
        for line in map(json.loads, file.getvalue().splitlines()):
            assert line["body"]["model"] == route.model
            seen.append(line["custom_id"])
    seen += [json.loads(line)["custom_id"] for line in errors.getvalue().splitlines()]
    assert sorted(seen) == sorted(line.request.id for line in lines)
    assert plan.summary()["declined"] == len(errors.getvalue().splitlines())


def test_several_answers_per_request_are_refused(batch):
    line = request_line("q0")
    line["body"]["n"] = 2
    lines = batch_lines(batch([line]))
    with pytest.raises(InputError, match="asks for several answers"):
        plan_routes(lines, "$1", [CHEAP], [Forecast([100.0])])
