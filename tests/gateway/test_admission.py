import pytest

from shadowprice.gateway.admission import decide
from shadowprice.types import Forecast

FORECAST = Forecast([200.0], 0.5, 0.8)


def decision(**given):
    return decide(FORECAST, **{"price": 0.0, "value": 1.0, "own": None, "cap": 4096, "available": 10**6, **given})


def test_at_price_0_everybody_gets_what_they_ask_for():
    assert (decision().kind, decision().grant) == ("granted", 4096)
    assert decision(own=100).grant == 100
    assert decision(own=9000).grant == 4096


def test_a_price_shrinks_and_then_declines():
    grants = [decision(price=price).grant for price in (0, 1e-5, 1e-4, 1e-3, 1e-2)]
    assert grants == sorted(grants, reverse=True)
    assert 200 < grants[3] < 1000
    assert decision(price=1e-2).kind == "declined"
    assert decision(price=1e-3).kind == "shrunk"


def test_a_higher_value_buys_more():
    assert decision(price=1e-2, value=10).grant == decision(price=1e-3).grant
    assert decision(price=1e-3, value=0).kind == "declined"


def test_no_more_than_is_left_for_all_answers():
    assert decision(available=1000, answers=3).grant == 333
    assert decision(available=15).kind == "exhausted"
    assert decision(available=15, own=10).grant == 10


@pytest.mark.parametrize("own", [None, 1, 50])
def test_its_own_limit_is_never_raised(own):
    for price in (0, 1e-4, 1e-3):
        assert decision(price=price, own=own).grant <= (own or 4096)


def test_one_request_does_not_keep_all_others_out():
    assert 200 < decision(available=5000).grant < 1000
    assert decision(available=5000, own=300).grant == 300
    assert decision(available=30_000).grant == 30_000 // 8
