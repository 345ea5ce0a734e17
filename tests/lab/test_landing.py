"""Landings in the lab: bounds hold, and what is simulated is what the schedulers do."""

from dataclasses import replace

import numpy as np
import pytest

from shadowprice import simulate
from shadowprice.datasets.shipped import shipped_traces
from shadowprice.lab.config import Lab, NotPossible
from shadowprice.lab.landing import landing, landing_ages, landing_costs
from shadowprice.lab.pools import make_pool, recorded, trained_without
from shadowprice.types import Trace


@pytest.fixture(scope="module")
def lab():
    models = recorded(shipped_traces("eval")[:120])
    forecaster, _ = trained_without(shipped_traces("train"), models)
    return Lab([make_pool(models[0], forecaster)], models, seeds=2)


@pytest.fixture(scope="module")
def rows(lab):
    return landing(lab)


def _cell(rows, policy, lands, times):
    rows = [row for row in rows if (row["policy"], row["landing"]) == (policy, lands)]
    return min(rows, key=lambda row: abs(row["budget_times_median"] - times))


def test_an_answer_that_is_landed_is_correct_at_least_as_often_as_one_that_is_cut(lab):
    rows = landing_ages(lab)
    solved = {(row["tokens"], row["stopped"]): row["solved"] for row in rows}
    for age in {row["tokens"] for row in rows}:
        assert solved[age, "landed"] >= solved[age, "cut"]
    assert solved[0, "cut"] == 0 < solved[0, "landed"]
    assert solved[1024, "cut"] == pytest.approx(100 * np.mean(lab.pool.correct & (lab.pool.length <= 1024)))


@pytest.mark.slow
@pytest.mark.parametrize("times", [0.25, 0.5, 0.75, 1, 2])
def test_no_policy_is_above_its_bound(rows, times):
    bound = _cell(rows, "clairvoyant", True, times)["solved"]
    assert bound >= _cell(rows, "clairvoyant", False, times)["solved"]
    for policy in ("clear", "expected", "index"):
        assert _cell(rows, policy, False, times)["solved"] <= _cell(rows, "clairvoyant", False, times)["solved"]


@pytest.mark.slow
def test_where_tokens_are_scarce_landings_gain(rows):
    for policy in ("clear", "expected", "index"):
        row = _cell(rows, policy, True, 0.25)
        assert row["gain"] == pytest.approx(row["solved"] - _cell(rows, policy, False, 0.25)["solved"])
        assert row["gain"] > 3
        assert row["gain_low"] <= row["gain"] <= row["gain_high"]
        assert row["tokens_spent"] <= row["budget"]


@pytest.mark.slow
def test_a_row_names_the_command_that_lands(rows):
    assert "--policy index --accounting metered" in _cell(rows, "index", True, 1)["command"]
    for row in rows:
        assert ("--landing math" in row["command"]) is (row["landing"] and row["policy"] != "clairvoyant")


@pytest.mark.slow
def test_a_row_is_what_simulate_gives(lab):
    """On one draw of a stream: the same forecasts, the same order."""
    one = replace(lab, seeds=1, queries=40)
    row = _cell(landing(one), "index", True, 0.5)
    from shadowprice.lab.streams import draw

    places = draw(one.pool, one.stream, 40, 0)
    pool = one.pool.take(places)
    traces = [replace(trace, id=str(place)) for place, trace in enumerate(pool.first)]

    class Given:
        anytime = pool.anytime

        def predict(self, requests):
            return pool.forecast.take(np.array([int(request.id) for request in requests]))

    found = simulate(
        traces, f"{row['budget']}/query", forecaster=Given(), policy="index", max_tokens=pool.cap, landing="math"
    )
    assert row["solved"] == pytest.approx(100 * found.correct / 40)


def test_the_cheapest_correct_landing_is_one_after_which_nothing_is_wrong():
    def trace(landed, *, correct=True, truncated=False):
        return Trace("a", "?", 100, correct, truncated=truncated, extra={"landed": landed})

    costs = landing_costs(
        [
            trace({"0": [True, 4], "32": [False, 4], "64": [True, 5]}),
            trace({"0": [True, 4], "32": [True, 4]}),
            trace({"0": [True, 4]}, correct=False),
            trace({"0": [False, 4], "50": [True, 6]}, correct=False, truncated=True),
            trace({"0": [False, 4]}),
        ]
    )
    assert costs.tolist() == [69, 4, np.inf, 56, 100]


def test_traces_without_probes_are_left_out(lab):
    models = recorded(shipped_traces("eval", "smollm2")[:100])
    with pytest.raises(NotPossible, match="probed"):
        landing(Lab([make_pool(models[0])], models))
