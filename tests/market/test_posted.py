"""What a request buys at a posted price."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shadowprice.errors import MarketError
from shadowprice.market.gittins import schedule
from shadowprice.market.posted import Offers
from shadowprice.types import Forecast

forecasts = st.builds(
    lambda tokens, spread, solve, tail: Forecast([tokens], spread, solve, tail),
    st.floats(5, 5000),
    st.floats(0.1, 1.5),
    st.floats(0.01, 1),
    st.one_of(st.none(), st.floats(1.5, 8)),
)
prices = st.floats(1e-7, 1)


@given(forecasts, prices, st.integers(0, 10_000))
def test_a_purchase_is_within_the_cap_and_pays_for_itself(forecast, price, cap):
    bought = Offers(forecast, cap).at(price)
    assert 0 <= bought.grant[0] <= cap
    assert bought.gain[0] >= price * bought.cost[0] - 1e-12
    assert (bought.grant[0] > 0) == (bought.gain[0] > 0)


@given(forecasts, prices, st.floats(1, 100))
@example(Forecast([5.0], 0.1, 0.125), 1e-7, 2.0)  # grants whose surplus differs by less than rounding
def test_a_higher_price_buys_no_more(forecast, price, times):
    offers = Offers(forecast, 4096)
    assert offers.at(price * times).grant[0] <= offers.at(price).grant[0]


@given(forecasts)
def test_declined_from_the_reservation_price_on(forecast):
    offers = Offers(forecast, 4096)
    reservation = offers.reservation()[0]
    assert offers.at(reservation * 0.999).grant[0] > 0
    assert offers.at(reservation * 1.001).grant[0] == 0


@given(forecasts)
def test_at_price_0_everyone_buys_the_cap(forecast):
    assert Offers(forecast, 777).at(0.0).grant[0] == 777


def test_even_a_request_without_hope_is_served_if_tokens_are_free():
    offers = Offers(Forecast([100.0], 0.5, 0.0), 256)
    assert offers.at(0.0).grant[0] == 256
    assert offers.at(1e-12).grant[0] == 0


@given(forecasts, prices, st.floats(0.01, 100))
def test_value_divides_the_price(forecast, price, value):
    assert Offers(forecast, 4096, value=value).at(price * value).cost[0] == pytest.approx(
        Offers(forecast, 4096).at(price).cost[0], rel=1e-6
    )


def test_it_is_the_demand_of_the_index():
    random = np.random.default_rng(0)
    forecast = Forecast(random.lognormal(6, 1, 50), random.uniform(0.2, 1, 50), random.uniform(0.1, 1, 50), 3.0)
    plan, price = schedule(forecast, 4096), 1e-3
    paid = plan.index > price
    wanted = np.zeros(50)
    np.maximum.at(wanted, plan.query[paid], plan.stop[paid])
    assert Offers(forecast, 4096).at(price).grant.tolist() == wanted.tolist()


def test_a_prompt_that_costs_too_much_is_declined():
    forecast = Forecast([100.0], 0.3, 0.9)
    assert Offers(forecast, 4096).at(0.004).grant[0] > 0
    assert Offers(forecast, 4096, entry=400).at(0.004).grant[0] == 0


def test_units_divide_the_price():
    forecast = Forecast([100.0, 300.0], 0.3, 0.9)
    tokens, money = Offers(forecast, 4096).at(0.002), Offers(forecast, 4096, rate=600).at(0.002 / 600)
    assert money.grant.tolist() == tokens.grant.tolist()
    assert money.cost == pytest.approx(600 * tokens.cost)


def test_a_negative_price_or_value_is_an_error():
    forecast = Forecast([100.0])
    with pytest.raises(MarketError, match="price"):
        Offers(forecast, 100).at(-1.0)
    with pytest.raises(MarketError, match="value"):
        Offers(forecast, 100, value=-1.0)
