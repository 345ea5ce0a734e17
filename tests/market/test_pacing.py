"""The price of a window. What it is worth on recorded answers is in tests/lab/test_arrivals.py."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.errors import MarketError
from shadowprice.market.pacing import Pacer
from shadowprice.market.posted import Offers
from shadowprice.types import Forecast

BUDGET, LENGTH = 100_000.0, 3600.0
units = st.floats(0, 50_000)
steps = st.lists(st.tuples(st.floats(0, 200), units, units), max_size=30)


def requests(n: int, seed: int = 0, rate: float = 1.0, value: float = 1.0) -> Offers:
    random = np.random.default_rng(seed)
    forecast = Forecast(random.lognormal(6, 0.8, n), 0.5, random.uniform(0.1, 1, n))
    return Offers(forecast, 4096, rate=rate, value=value)


def paced(pacer: Pacer, some: list, scale: float = 1.0) -> list[float]:
    now, prices = 0.0, []
    for seconds, spent, demanded in some:
        now += seconds
        prices.append(pacer.update(now, spent * scale, demanded * scale))
    return prices


@given(steps, st.booleans(), st.sampled_from([0.0, 1e-3]))
@settings(deadline=None)
def test_the_price_is_never_negative_and_bounded(some, observed, start):
    pacer, offers = Pacer(BUDGET, LENGTH, price=start), requests(40)
    if observed:
        pacer.observe(offers)
    highest = offers.reservation().max() * (1 + 1e-8) if observed else 1e12 / BUDGET
    assert all(0 <= price <= highest for price in paced(pacer, some))


@given(steps, st.booleans(), st.sampled_from([0.001, 64.0, 1e6]))
@settings(deadline=None)
def test_units_divide_the_price(some, observed, scale):
    plain, scaled = Pacer(BUDGET, LENGTH), Pacer(BUDGET * scale, LENGTH)
    if observed:
        plain.observe(requests(40))
        scaled.observe(requests(40, rate=scale))
    assert np.multiply(paced(scaled, some, scale), scale) == pytest.approx(paced(plain, some), rel=1e-6)


@given(st.floats(1, 3500), units, units)
@settings(deadline=None)
def test_of_two_windows_the_one_with_less_left_has_the_higher_price(now, spent, more):
    def price(amount: float) -> float:
        pacer = Pacer(BUDGET, LENGTH)
        pacer.observe(requests(100))
        return pacer.update(now, amount, amount)

    assert price(spent + more) >= price(spent)


@given(st.floats(1e-4, 1e-2), st.floats(10, 600))
def test_without_a_sample_it_moves_against_the_excess(start, seconds):
    target = BUDGET * seconds / LENGTH
    assert Pacer(BUDGET, LENGTH, price=start).update(seconds, 1.5 * target, 1.5 * target) > start
    assert Pacer(BUDGET, LENGTH, price=start).update(seconds, 0.5 * target, 0.5 * target) < start


def test_without_a_sample_it_leaves_0_and_returns_to_it():
    pacer = Pacer(BUDGET, LENGTH)
    assert pacer.price == 0
    assert pacer.update(60, 5000, 5000) == 1 / BUDGET
    for minute in range(2, 40):
        pacer.update(60 * minute, 0, 0)
    assert pacer.price == 0


def test_without_a_sample_mirror_descent_finds_the_price_of_a_known_demand():
    """Demand 10 / price a second: the budget lasts at price 10 * length / budget."""
    pacer = Pacer(BUDGET, LENGTH, price=0.3)
    spent = 0.0
    for second in range(1, 3400):
        demand = min(10 / pacer.price, BUDGET - spent)
        spent += demand
        pacer.update(second, demand, demand)
    assert pacer.price == pytest.approx(10 * LENGTH / BUDGET, rel=0.1)
    assert spent == pytest.approx(BUDGET * 3400 / LENGTH, rel=0.03)


def test_an_ample_budget_is_free_and_none_left_is_dear():
    for budget, free in ((1e7, True), (100.0, False)):
        pacer = Pacer(budget, LENGTH)
        pacer.update(0, 0, 0)
        pacer.observe(requests(100))
        assert (pacer.update(600, 0, 0) == 0) == free
    assert pacer.update(700, 100.0, 100.0) == pytest.approx(requests(100).reservation().max())


def test_a_given_price_holds_until_a_few_requests_have_been_observed():
    pacer = Pacer(BUDGET, LENGTH, price=0.123)
    pacer.observe(requests(1))
    assert pacer.update(0, 0, 0) == 0.123
    pacer.observe(requests(20))
    assert pacer.update(60, 0, 0) != pytest.approx(0.123, rel=0.01)


def window(pacer: Pacer, n: int, seed: int, shape=lambda share: share, cost: float = 1.0) -> tuple[list[float], float]:
    """n requests arrive and use what they are expected to, times `cost`: the prices, and what was spent."""
    offers, prices, spent, last, demanded = requests(n, seed), [], 0.0, 0.0, 0.0
    for place in range(n):
        offer = offers.take(slice(place, place + 1))
        pacer.observe(offer)
        price = pacer.update(LENGTH * shape((place + 0.5) / n), last, demanded)
        demanded = float(offer.at(price).cost[0])
        last = min(demanded * cost, BUDGET - spent)
        spent += last
        prices.append(price)
    pacer.update(LENGTH, last, demanded)
    return prices, spent


def test_the_next_window_starts_where_this_one_cleared():
    pacer = Pacer(BUDGET, LENGTH)
    prices, _ = window(pacer, 500, 1)
    assert pacer.roll(BUDGET) == pytest.approx(np.median(prices[100:400]), rel=0.2)
    assert pacer.price > 0


@pytest.mark.parametrize("cost", [0.7, 1.0, 1.4])
def test_the_window_is_spent_and_not_before_its_end_even_if_costs_are_not_as_expected(cost):
    pacer = Pacer(BUDGET, LENGTH)
    window(pacer, 500, 1, cost=cost)
    pacer.roll(BUDGET)
    prices, spent = window(pacer, 500, 2, cost=cost)
    assert 0.97 * BUDGET <= spent <= BUDGET
    assert np.std(np.log(prices[:400])) < 0.2


def test_a_budget_that_doubles_lowers_the_price():
    pacer = Pacer(BUDGET, LENGTH)
    window(pacer, 500, 1)
    before = pacer.roll(BUDGET)
    assert Pacer.roll(pacer, 2 * BUDGET) < before


def test_a_shape_that_is_known_keeps_the_price_steady_from_the_first_window():
    late = [1, 1, 1, 9]  # three quarters in the last quarter
    arrive = lambda share: np.interp(share, [0, 0.25, 1], [0, 0.75, 1])  # noqa: E731
    blind, knowing = Pacer(BUDGET, LENGTH), Pacer(BUDGET, LENGTH, shape=late)
    unsteady, steady = (np.std(window(pacer, 600, 1, arrive)[0][50:500]) for pacer in (blind, knowing))
    assert steady < unsteady / 2


def test_a_shape_is_learned_from_past_windows():
    arrive = lambda share: np.interp(share, [0, 0.25, 1], [0, 0.75, 1])  # noqa: E731
    pacer = Pacer(BUDGET, LENGTH)
    first = np.std(window(pacer, 600, 0, arrive)[0][50:500])
    for seed in range(1, 4):
        pacer.roll(BUDGET)
        last = np.std(window(pacer, 600, seed, arrive)[0][50:500])
    assert last < first / 2


def test_a_pacer_that_starts_in_the_middle_of_a_window_counts_from_there():
    late, whole = Pacer(BUDGET, LENGTH), Pacer(BUDGET, LENGTH)
    late.update(LENGTH / 2, BUDGET / 2, BUDGET / 2)
    offers = requests(200)
    for place in range(200):
        offer = offers.take(slice(place, place + 1))
        for pacer, begin in ((late, 0.5), (whole, 0.0)):
            pacer.observe(offer)
            pacer.update(LENGTH * (begin + place / 800), 0, 0)
    # Half the budget for half the window, at the same rate: the price is about the same.
    assert late.price == pytest.approx(whole.price, rel=0.35)


def test_requests_that_are_all_alike_are_served_throughout_the_window():
    pacer, alike = Pacer(BUDGET, LENGTH), Offers(Forecast([400.0], 0.5, 0.7), 4096)
    spent, last, served = 0.0, 0.0, []
    for place in range(1000):  # about four times what the budget can pay for
        pacer.observe(alike)
        bought = alike.at(pacer.update(LENGTH * place / 1000, last, last))
        last = min(float(bought.cost[0]), BUDGET - spent)
        spent += last
        served.append(last > 0)
    assert spent >= 0.97 * BUDGET
    assert np.add.reduceat(served, range(0, 900, 100)).min() >= 10


def test_values_scale_the_price():
    one, ten = Pacer(BUDGET, LENGTH), Pacer(BUDGET, LENGTH)
    one.observe(requests(200))
    ten.observe(requests(200, value=10.0))
    assert ten.update(300, 0, 0) == pytest.approx(10 * one.update(300, 0, 0))


@pytest.mark.parametrize(
    "arguments", [{"length": 0.0}, {"budget": -1.0}, {"price": -1.0}, {"shape": [0.0, 0.0]}, {"sample": 0}]
)
def test_invalid_arguments_are_errors(arguments):
    with pytest.raises(MarketError):
        Pacer(**{"budget": BUDGET, "length": LENGTH, **arguments})


@pytest.mark.parametrize(("each", "free"), [(100.0, True), (1000.0, False)])
def test_a_few_requests_at_once_are_no_rate_while_they_cost_little_of_the_first_window(each, free):
    pacer, some = Pacer(20_000, LENGTH), requests(9)
    for second in range(9):
        pacer.observe(some.take(slice(second, second + 1)))
        pacer.update(second, each, each)
    assert (pacer.price == 0) == free


def test_more_than_a_few_requests_at_once_are_a_rate():
    pacer = Pacer(20_000, LENGTH)
    pacer.update(0, 0, 0)
    pacer.observe(requests(40))
    assert pacer.update(10, 0, 0) > 0
