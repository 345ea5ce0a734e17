"""Parts of answers that wait at their routes: which may be continued, what that costs, and where idle units go."""

import numpy as np
import pytest

from shadowprice import Forecast, Request
from shadowprice.cost import Rates
from shadowprice.engine.parts import Parts, reading_bound
from shadowprice.engine.scheduler import TRIAL, Batch
from shadowprice.engine.sites import Site
from shadowprice.formats.routes import Route
from shadowprice.types import Completion

PROMPT = np.array([100, 100], dtype=np.int64)


def part(tokens: int = 50, finish: str = "length", **more) -> Completion:
    return Completion("", tokens, finish, "server", **more)


def made(says=True, rates=("1", "2", "0.1")) -> tuple[Parts, Site, Site]:
    """Two requests and two routes, of which the first continues answers as `says`."""
    batch = Batch(200)
    batch.add([Request("a", ""), Request("b", "")], Forecast([20.0, 20.0]))
    forecast, none = Forecast([20.0, 20.0]), np.zeros((3, 2), dtype=np.int64)
    sites = [
        Site(Route(name, Rates.dollars(*rates)), forecast, forecast, np.full(2, 200.0), none[0], none[1] > 0, none[2])
        for name in ("one", "two")
    ]
    return Parts(batch, sites, {"one": lambda request: says}), *sites


def test_an_answer_waits_unless_it_has_ended_or_its_server_does_not_continue():
    parts, one, two = made()
    assert parts.waits(one, 0, part(), 50, part())
    assert not parts.waits(two, 0, part(), 50, part()), "nothing is known of its server"
    assert not parts.waits(one, 0, part(finish="stop"), 50, part(finish="stop"))
    assert not parts.waits(one, 0, part(49), 50, part(49)), "the server stopped below the limit"
    assert not parts.waits(one, 0, part(), 50, part(200)), "it has come to its cap"
    uncounted = Completion("", 50, "length", "assumed")
    assert not parts.waits(one, 0, uncounted, 50, uncounted), "its length is unknown"
    one.reason = "down"
    assert not parts.waits(one, 0, part(), 50, part())


def test_until_it_is_known_one_short_piece_is_tried():
    parts, one, _ = made(says=None)
    parts.put(one, 0, part())
    assert parts.is_trial(one, 0)
    assert not parts.is_trial(one, 1)
    assert (parts.grant(one, 0, 150), parts.grant(one, 1, 150)) == (TRIAL, 150)
    parts.continued(one, part(), part(TRIAL, input_tokens=60))
    assert not parts.is_trial(one, 0)
    assert parts.grant(one, 0, 150) == 100


def test_parts_of_a_route_that_left_the_menu_are_lost_but_not_while_they_are_continued():
    parts, one, two = made()
    for place in (0, 1):
        parts.put(one, place, part())
    assert parts.lost(set()) == []
    one.reason = "down"
    assert parts.lost({1}) == [(one, 0)]
    assert parts.all() == [(one, 0), (one, 1)]
    assert parts.at(0) == [one]
    parts.forget(0)
    assert parts.at(0) == []
    assert parts.get(two, 1) is None


def test_reading_again_is_expected_at_the_cached_rate_as_far_as_the_server_counts_it():
    parts, one, _ = made()
    parts.put(one, 0, part())
    ages = parts.ages(one, [0, 1])
    assert ages.tolist() == [50, 0]
    prompt = np.full(2, 30.0)
    again, fresh = parts.entry(one, prompt, ages)
    assert fresh == pytest.approx(30 * 1 / 2)
    assert again == pytest.approx((30 + 50) * 0.1 / 2)
    parts.continued(one, part(), part(8, input_tokens=9000))  # it has nothing in its cache
    assert parts.entry(one, prompt, ages)[0] == pytest.approx(80 * (0.1 * 0.1 + 0.9 * 1) / 2)
    plain, site, _ = made(rates=("1", "2"))
    assert plain.entry(site, prompt, ages)[0] == pytest.approx(80 * 1 / 2), "without a cached rate everything is read"


def test_no_tokenizer_makes_more_tokens_of_a_part_than_it_has_bytes():
    assert reading_bound(Completion("äb", 1, "length", "server")) == 3
    assert reading_bound(Completion("", 7, "length", "server")) == 7
    assert reading_bound(Completion("a long word", 2, "length", "server", ids=(5, 6))) == 2, "ids are sent as they are"


def test_idle_units_take_parts_to_their_caps_the_cheapest_first_and_as_far_as_they_go():
    parts, one, two = made(rates=("1", "2"))
    parts.put(one, 0, part(50))
    parts.put(one, 1, part(150))
    parts.put(two, 1, part(10))
    ample = parts.at_their_caps([0, 1], PROMPT, 10**9)
    assert [(turn.place, turn.route, turn.limit) for turn in ample] == [(1, 0, 200), (0, 0, 200)]
    units = one.route.rates.bound(150, 20)
    (turn,) = parts.at_their_caps([0], PROMPT, units)
    assert (turn.place, turn.limit, turn.expected) == (0, 70, units)
    assert parts.at_their_caps([0], PROMPT, one.route.rates.bound(150, 0)) == []
