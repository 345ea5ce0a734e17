"""The frontier of several models: served by the scheduler itself, within every budget, above a static mix."""

import numpy as np
import pytest

from shadowprice.errors import InputError
from shadowprice.formats.routes import read_routes
from shadowprice.lab.routes import BASELINES, OURS, budgets_between, recorded_routes, route_rows

from .several import ROUTES, traces


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    path = tmp_path_factory.mktemp("routes") / "routes.toml"
    path.write_text(ROUTES)
    return recorded_routes(traces(400), read_routes(path))


def test_the_frontier_has_every_policy_and_nobody_exceeds_the_budget(pool):
    (budget,) = budgets_between(pool, 1)
    rows = {row["policy"]: row for row in route_rows(pool, [budget], splits=2)}
    names = {"cheap alone", "dear alone", "static mix", "tokens", "clairvoyant", *BASELINES, *OURS}
    assert set(rows) == names
    assert all(row["dollars"] <= budget * (1 + 1e-9) for row in rows.values())
    for name in OURS:
        assert rows[name]["gain"] > 0
        assert rows[name]["solved"] <= rows["clairvoyant"]["solved"]
        assert ("more" in rows[name]) == (name != "routes")
        parts = sum(rows[name][f"dollars_{route.name}"] for route in pool.routes)
        assert parts == pytest.approx(rows[name]["dollars"])


def test_a_recorded_answer_is_continued_where_it_stopped_and_is_read_again(pool):
    length = int(pool.tokens[0, 0])
    first = pool.answer(0, 0, length - 1)
    assert (first.tokens, first.finish, first.input_tokens) == (length - 1, "length", pool.read[0])
    rest = pool.answer(0, 0, 50, first)
    assert (rest.tokens, rest.finish) == (1, "stop")
    assert (rest.input_tokens, rest.cached_tokens) == (0, pool.read[0] + length - 1)


def test_budgets_lie_between_the_cheapest_and_the_dearest_route(pool):
    budgets = budgets_between(pool)
    assert len(budgets) == 5
    assert pool.cost.mean(0).min() < budgets[0] < budgets[-1] < pool.cost.mean(0).max()
    assert np.ptp(np.diff(np.log(budgets))) < 1e-9


def test_a_route_without_traces_is_refused(pool):
    with pytest.raises(InputError, match="route dear: no traces of a model with this name"):
        recorded_routes([trace for trace in traces() if trace.model == "cheap"], pool.routes)
    with pytest.raises(InputError, match="20 questions are shared by all routes"):
        recorded_routes(traces(20), pool.routes)
