"""What the scheduler of routes knows of a route, and which of two answers is kept."""

import numpy as np
import pytest

from shadowprice.cost import Rates
from shadowprice.engine.sites import Kept, Site, replace_solve, solve_of, with_one
from shadowprice.formats.routes import Route
from shadowprice.types import Completion, Forecast


def site() -> Site:
    none = np.zeros(2, dtype=np.int64)
    forecast = Forecast([10.0, 20.0])
    return Site(Route("a", Rates.dollars("1", "2")), forecast, forecast, np.zeros(2), none, none > 0, none)


def test_prompts_are_expected_by_what_earlier_ones_took_of_their_bounds():
    one = site()
    assert one.expected_share() == pytest.approx(0.3)
    one.read, one.read_bound = 500, 1000
    assert one.expected_share() == pytest.approx(0.4)


def test_the_likelier_answer_is_worth_more_and_a_whole_one_more_than_a_part():
    whole, part = (Completion("", 5, finish, "server") for finish in ("stop", "length"))
    assert Kept(whole, None, "a", 0.6, 0).worth > Kept(whole, None, "a", 0.5, 0).worth
    assert Kept(whole, None, "a", 0.0, 0).worth > Kept(part, None, "a", 0.0, 0).worth


def test_chances_and_single_requests_are_replaced_and_the_rest_stays():
    forecast = Forecast([10.0, 20.0, 30.0], 0.5, 0.7)
    changed = with_one(forecast, 1, Forecast([99.0], 0.4, 0.2))
    np.testing.assert_array_equal(changed.tokens, [10.0, 99.0, 30.0])
    assert [solve_of(changed, place) for place in range(3)] == [0.7, 0.2, 0.7]
    assert solve_of(replace_solve(forecast, np.array([0.1, 0.2, 0.3])), 2) == 0.3
    assert solve_of(forecast, 2) == 0.7
