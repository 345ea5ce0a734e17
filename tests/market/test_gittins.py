"""The index: against its definition, against brute force, and under changes that must not matter."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad

from shadowprice import Forecast
from shadowprice.errors import MarketError
from shadowprice.market import Expected
from shadowprice.market.gittins import Readings, along, chunks, indices, majorant, schedule


def market(n, seed=0, tail=None):
    rng = np.random.default_rng(seed)
    median, spread, solve = rng.lognormal(5, 0.8, n), rng.uniform(0.2, 0.9, n), rng.uniform(0.05, 0.95, n)
    return Forecast(median, spread, solve, tail, median * rng.uniform(0.7, 1.0, n), spread * rng.uniform(0.8, 1.0, n))


def deal(forecast, i, start, stop):
    """Chance gained and tokens expected between two ages, given that the answer has not ended: by quadrature."""
    tail = None if forecast.tail is None else float(np.ravel(forecast.tail)[0])
    every = Expected(forecast.tokens[i], forecast.spread[i], tail=tail)
    correct = Expected(forecast.solved_tokens[i], forecast.solved_spread[i], forecast.solve[i], tail)
    ended = lambda t: max(every.value(t).item(), correct.value(t).item())  # noqa: E731
    cost = quad(lambda t: 1 - ended(t), start, stop, limit=400)[0]
    survived = max(1 - ended(start), 1e-12)
    return (correct.value(stop).item() - correct.value(start).item()) / survived, cost / survived, survived


@pytest.mark.parametrize("tail", [None, 3.0])
def test_a_chunk_is_the_best_deal_of_all_stopping_ages(tail):
    forecast = market(12, tail=tail)
    plan = schedule(forecast, 3000)
    for k in np.linspace(0, len(plan) - 1, 25).astype(int):
        i, start, stop = plan.query[k], plan.start[k], plan.stop[k]
        gained, cost, survived = deal(forecast, i, start, stop)
        if survived < 0.01:  # what one answer in a hundred reaches is within the error of the grid
            continue
        # Ages are a grid, some 8% apart. Seen from age 0 both are multiplied with the chance of coming
        # this far, which leaves their ratio.
        assert gained / cost == pytest.approx(plan.index[k], rel=0.08)
        for other in start + np.geomspace(1 + 0.1 * start, 3000 - start, 12):
            other_gained, other_cost, _ = deal(forecast, i, start, other)
            assert other_gained / other_cost <= plan.index[k] * 1.08


def test_the_chunks_of_a_query_follow_one_another_with_falling_index():
    plan = schedule(market(200), 4096)
    assert np.all(np.diff(plan.index) <= 0)
    for query in range(200):
        mine = plan.query == query
        start, stop, index = plan.start[mine], plan.stop[mine], plan.index[mine]
        assert start[0] == 0
        assert np.all(start[1:] == stop[:-1])  # in the order of the schedule they are in order of age
        assert np.all(stop > start)
        assert stop[-1] <= 4096
        assert np.all(np.diff(index) <= 1e-15)


@given(st.integers(0, 1000), st.integers(2, 12))
@settings(max_examples=40)
def test_the_majorant_is_that_of_the_convex_hull(seed, width):
    rng = np.random.default_rng(seed)
    cost = np.hstack([np.zeros((3, 1)), np.cumsum(rng.uniform(0.1, 2, (3, width)), axis=1)])
    gained = np.hstack([np.zeros((3, 1)), np.cumsum(rng.uniform(0, 1, (3, width)), axis=1)])
    row, first, last, slope = majorant(gained, cost)
    for r in range(3):
        corners = [0, *last[row == r]]
        line = np.interp(cost[r], cost[r, corners], gained[r, corners])
        assert np.all(line >= gained[r] - 1e-12)  # above everything,
        assert np.all(np.diff(slope[row == r]) <= 1e-12)  # concave,
        assert np.all(np.isin(first[row == r], corners))
        assert np.allclose(line[corners], gained[r, corners])  # and touching: nothing lower is both


def test_spending_more_at_the_price_expects_what_the_budget_allows():
    plan = schedule(market(500), 4096)
    for budget in (1_000, 20_000, 60_000):
        price = plan.price(budget)
        assert plan.cost[plan.index > price].sum() <= budget
        assert plan.cost[plan.index >= price].sum() >= budget
    assert plan.price(1e12) == 0
    assert plan.price(0) == plan.index[0]


def test_the_order_of_queries_does_not_matter():
    forecast, order = market(100), np.random.default_rng(1).permutation(100)
    one, other = schedule(forecast, 4096), schedule(forecast.take(order), 4096)
    assert np.array_equal(one.index, other.index)
    assert set(zip(one.query, one.start, one.stop, strict=True)) == set(
        zip(order[other.query], other.start, other.stop, strict=True)
    )


def test_tokens_ten_times_as_many_are_worth_a_tenth():
    one = schedule(market(100), 40_000)
    f = market(100)
    ten = schedule(Forecast(f.tokens * 10, f.spread, f.solve, None, f.solved_tokens * 10, f.solved_spread), 400_000)
    assert ten.price(1e6) == pytest.approx(one.price(1e5) / 10, rel=0.02)


def test_a_hopeless_query_comes_last_and_a_short_one_first():
    forecast = Forecast([100.0, 100.0, 1000.0], 0.3, [0.9, 0.01, 0.9])
    assert list(dict.fromkeys(schedule(forecast, 4096).query)) == [0, 2, 1]


def test_the_index_rises_until_the_answer_is_due_and_falls_where_it_is_overdue():
    forecast = Forecast([100.0], 0.2, 0.8)
    young, ripe, late = indices(forecast, 4096, [0, 80, 400])[0]
    assert ripe > 2 * young
    heavy = Forecast([100.0], 0.2, 0.8, tail=1.5)
    assert indices(heavy, 4096, [400])[0, 0] < 0.5 * young < late * 10  # a normal law expects the end at any moment


def test_a_query_that_outlives_its_forecast_still_has_a_chunk():
    assert schedule(Forecast([100.0], 0.1, 0.8), 4096, 900).stop.max() == 4096


@pytest.mark.parametrize("tail", [None, 1.0])
def test_an_extreme_forecast_without_a_cap_has_a_schedule(tail):
    plan = schedule(Forecast([1e9, 5.0], 10.0, 0.5, tail), np.inf)
    assert np.all(plan.stop > plan.start)
    assert np.all(np.isfinite(plan.index) & np.isfinite(plan.cost))


def test_queries_at_their_cap_have_no_chunk():
    plan = schedule(market(3), [100, 50, 10], [100, 20, 10])
    assert set(plan.query) == {1}
    assert plan.start.min() == 20
    assert plan.stop.max() <= 50


def test_no_queries_and_no_chance():
    assert len(schedule(Forecast(np.zeros(0)), 100)) == 0
    assert schedule(Forecast(np.zeros(0)), 100).price(10) == 0
    assert len(schedule(Forecast([100.0], 0.5, 0.0), 100)) == 0


@pytest.mark.parametrize(("cap", "age"), [(np.nan, 0), (100, -1)])
def test_an_invalid_age_or_cap(cap, age):
    with pytest.raises(MarketError):
        schedule(market(2), cap, age)


class TestEntry:
    """A cost before the first further token: reading the prompt."""

    def test_none_is_the_default(self):
        one, other = schedule(market(50), 4096, 20), schedule(market(50), 4096, 20, np.zeros(50))
        for name in ("query", "start", "stop", "index", "cost"):
            assert np.array_equal(getattr(one, name), getattr(other, name))

    def test_it_lowers_the_index_of_every_query(self):
        forecast = market(100)
        free, paid = schedule(forecast, 4096), schedule(forecast, 4096, entry=50.0)
        best = [[plan.index[plan.query == i].max() for i in range(100)] for plan in (free, paid)]
        assert np.all(np.array(best[1]) < np.array(best[0]))

    def test_it_never_changes_the_chance(self):
        """Index times cost is the chance that a chunk buys."""
        forecast, entry = market(100), np.random.default_rng(2).uniform(0, 500, 100)
        chances = []
        for plan in (schedule(forecast, 4096, 30), schedule(forecast, 4096, 30, entry)):
            chances.append(np.bincount(plan.query, plan.index * plan.cost, minlength=100))
        assert chances[0] == pytest.approx(chances[1], rel=1e-9)

    def test_it_is_paid_once(self):
        forecast, entry = market(100), np.arange(100.0)
        free, paid = schedule(forecast, 4096), schedule(forecast, 4096, entry=entry)
        extra = np.bincount(paid.query, paid.cost) - np.bincount(free.query, free.cost)
        assert extra == pytest.approx(entry, abs=1e-6)

    @pytest.mark.parametrize("tail", [None, 3.0])
    @pytest.mark.parametrize("age", [0, 60])
    def test_the_index_is_the_best_deal_with_it(self, tail, age):
        forecast = market(8, seed=5, tail=tail)
        entry = np.array([0.0, 5.0, 20.0, 80.0, 150.0, 300.0, 900.0, 40.0])
        plan = schedule(forecast, 3000, age, entry)
        checked = 0
        for i in range(8):
            deals = [deal(forecast, i, age, age + step) for step in np.geomspace(1, 3000 - age, 150)]
            if deals[0][2] < 0.01:
                continue
            best = max(gained / (cost + entry[i]) for gained, cost, _ in deals)
            assert plan.index[plan.query == i].max() == pytest.approx(best, rel=0.08)
            checked += 1
        assert checked >= 5

    def test_it_favours_long_chunks(self):
        """Once it is paid, stopping early wastes it."""
        forecast = Forecast([100.0], 0.8, 0.8, tail=2.0)
        assert schedule(forecast, 4096, entry=2000.0).stop[0] > schedule(forecast, 4096).stop[0]

    @pytest.mark.parametrize("entry", [-1.0, np.nan, [1.0, -2.0]])
    def test_an_invalid_one(self, entry):
        with pytest.raises(MarketError, match="entry"):
            schedule(market(2), 100, 0, entry)


class TestReadings:
    """What was read in an answer changes what is expected from there on, and nothing else."""

    @staticmethod
    def readings(n, since=0.0, stretch=1.0, odds=0.0):
        return Readings(*(np.full(n, value) for value in (since, stretch, odds)))

    @pytest.mark.parametrize("tail", [None, 3.0])
    def test_an_answer_that_was_not_read_has_the_chunks_of_its_forecast(self, tail):
        forecast, age = market(40, tail=tail), np.arange(40) * 10
        plain, read = (chunks(forecast, 3000, age, read=some) for some in (None, self.readings(40)))
        assert plain.stop.tolist() == read.stop.tolist()
        np.testing.assert_allclose(plain.index, read.index, rtol=1e-6)

    @given(since=st.integers(1, 400), stretch=st.floats(0.1, 10.0), seed=st.integers(0, 99))
    @settings(deadline=None)
    def test_what_is_left_is_stretched(self, since, stretch, seed):
        forecast = market(5, seed)
        later = np.array([0.0, 5.0, 50.0, 500.0])
        usual, read = (
            along(forecast, np.tile(since + factor * later, (5, 1)), read=some)
            for factor, some in ((1.0, None), (stretch, self.readings(5, float(since), stretch)))
        )
        for one, other in zip(usual[:2], read[:2], strict=True):
            np.testing.assert_allclose(one / usual[1][:, :1], other / read[1][:, :1], rtol=1e-6, atol=1e-9)

    @given(odds=st.floats(-3.0, 3.0), seed=st.integers(0, 99))
    @settings(deadline=None)
    def test_the_chance_changes_by_its_log_odds(self, odds, seed):
        forecast = market(5, seed)
        ages = np.tile([100.0, 200.0, 1e7], (5, 1))

        def chance(read):
            gained, alive, _ = along(forecast, ages, read=read)
            p = (gained[:, -1] - gained[:, 0]) / alive[:, 0]
            return np.log(p / (1 - p))

        before, after = chance(self.readings(5, 100.0)), chance(self.readings(5, 100.0, odds=odds))
        np.testing.assert_allclose(after - before, odds, rtol=1e-5, atol=1e-5)
