"""The posted price as the gateway moves it: by time, by what requests demand, and by what the ledger has left."""

from contextlib import contextmanager

import numpy as np
import pytest

from shadowprice.accounts.notes import Notes, Price
from shadowprice.accounts.owner import SqliteOwner
from shadowprice.accounts.tree import Tree
from shadowprice.accounts.windows import parse_account
from shadowprice.gateway.admission import Terms, decide, offers_of
from shadowprice.gateway.prices import Prices
from shadowprice.types import Forecast

START = 36_000_000.0  # the start of an hour
TERMS = Terms(None, 2000)
HOUR = parse_account("all", "100k/hour")


class Clock:
    now = START

    def __call__(self):
        return self.now


@contextmanager
def made(tmp_path, policy="posted", price=0.0):
    owner, clock = SqliteOwner(tmp_path / "accounts.sqlite"), Clock()
    tree = Tree(owner, tmp_path / "workers", clock=clock)
    try:
        yield Prices(tree, Notes(owner, tree.worker), policy, price), tree, clock
    finally:
        tree.close()
        owner.close()


def serve(prices, tree, clock, path, count, *, seconds=3600.0, median=300.0, seed=0):
    """Requests of equal distance, each ending at once; values from 1 to 10. Returns the values that were served."""
    random, served = np.random.default_rng(seed), []
    for _ in range(count):
        clock.now += seconds / count
        value = float(random.integers(1, 11))
        terms = Terms(None, 2000, value)
        forecast = Forecast([median], 0.5, 0.7, solved_tokens=[0.8 * median], solved_spread=[0.4])
        offers = {False: offers_of(forecast, [terms], False)}
        decision = decide(forecast, terms, prices.purses(path, terms), offers)
        prices.arrived(path, decision, forecast, terms)
        if not decision.grant:
            continue
        held = tree.reserve(path, decision.grant)
        prices.granted(path, decision)
        used = min(decision.grant, int(median * np.exp(0.5 * random.standard_normal())))
        tree.settle(held, used)
        prices.settled(path, decision, [used] * len(path))
        served.append(value)
    return served


def test_ample_budgets_have_price_0(tmp_path):
    with made(tmp_path) as (prices, tree, clock):
        assert len(serve(prices, tree, clock, [HOUR], 100)) == 100
        assert prices.price(HOUR) == 0


def test_a_scarce_budget_lasts_until_the_window_ends_and_serves_the_most_valuable(tmp_path):
    with made(tmp_path) as (prices, tree, clock):
        serve(prices, tree, clock, [HOUR], 1000)  # it demands three times the budget
        clock.now = START + 3600.0
        served = serve(prices, tree, clock, [HOUR], 1000, seconds=3590.0, seed=1)
        assert tree.available(HOUR) < 0.05 * HOUR.limit
        assert np.mean(served) > 7.5  # the third of the requests that is worth most has 8 or more
        assert prices.price(HOUR) >= 0


def test_a_tenant_whose_own_budget_is_scarce_does_not_raise_the_price_of_all(tmp_path):
    everyone, tenant = parse_account("all", "1M/hour"), parse_account("tenant a", "20k/hour")
    with made(tmp_path) as (prices, tree, clock):
        serve(prices, tree, clock, [everyone, tenant], 300, seconds=1800.0)
        assert prices.price(tenant) > 0
        assert prices.price(everyone) == 0


def test_a_process_that_restarts_continues_with_the_price_and_what_is_left(tmp_path):
    with made(tmp_path) as (prices, tree, clock):
        serve(prices, tree, clock, [HOUR], 500, seconds=1800.0)
        before = prices.price(HOUR)
        noted = prices.history()
        assert [(each.account, each.price) for each in noted] == [("all hour", before)]
        assert before > 0
        assert prices.history() == []  # not again within a 720th of the window
        Notes(tree.owner, "w").write(noted)
    with made(tmp_path) as (prices, tree, clock):
        clock.now = START + 1800.0
        assert prices.price(HOUR) == pytest.approx(before)
        assert tree.available(HOUR) < 0.7 * HOUR.limit


def test_policies_without_a_moving_price(tmp_path):
    money = parse_account("all", "$5/hour")
    with made(tmp_path, "first-come") as (prices, tree, clock):
        serve(prices, tree, clock, [HOUR], 50)
        assert prices.price(HOUR) == 0
    with made(tmp_path, "fixed", 0.004) as (prices, _, _):
        assert prices.price(HOUR) == 0.004
        assert prices.price(money, rate=2000.0) == 0.004 / 2000


def test_a_budget_that_never_refills_is_not_paced(tmp_path):
    total = parse_account("all", "1000")
    with made(tmp_path) as (prices, tree, clock):
        serve(prices, tree, clock, [total], 20)
        assert prices.price(total) == 0
        assert isinstance(prices.history()[0], Price)


def test_processes_pace_their_share(tmp_path):
    with made(tmp_path) as (prices, tree, clock):
        serve(prices, tree, clock, [HOUR], 300, seconds=900.0)
        alone = prices.price(HOUR)
        prices.workers = 2
        clock.now += 10.0
        assert prices.price(HOUR) > alone
