"""The law of the length: quantiles are the inverse of what the market plans with."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import lognorm

from shadowprice import Forecast, MarketError
from shadowprice.forecast.intervals import chance_within, interval, quantile
from shadowprice.market import Expected

TAILS = st.one_of(st.none(), st.floats(1.5, 1e4), st.just(np.inf))


@given(tokens=st.floats(1, 1e5), spread=st.floats(0.01, 3), tail=TAILS, p=st.floats(1e-4, 1 - 1e-4, exclude_max=True))
def test_a_quantile_is_the_inverse_of_the_markets_law(tokens, spread, tail, p):
    forecast = Forecast([tokens], spread, tail=tail)
    assert Expected([tokens], spread, tail=tail).value(quantile(forecast, p)) == pytest.approx(p, rel=1e-6)
    assert chance_within(forecast, quantile(forecast, p)) == pytest.approx(p, rel=1e-6)


def test_without_a_tail_it_is_the_log_normal():
    forecast = Forecast([300.0, 40.0], [0.5, 1.2])
    for p in (0.01, 0.3, 0.5, 0.8, 0.999):
        assert quantile(forecast, p) == pytest.approx(lognorm.ppf(p, s=[0.5, 1.2], scale=[300, 40]))


def test_a_tail_lengthens_the_upper_side_only():
    plain, heavy = (interval(Forecast([300.0], 0.5, tail=tail), 0.9) for tail in (None, 2.0))
    assert heavy[0] == plain[0]
    assert heavy[1] > 1.3 * plain[1]


@pytest.mark.parametrize("tail", [None, 2.5])
def test_an_interval_holds_its_share_of_the_density(tail):
    curve = Expected([100.0], 0.7, tail=tail)
    low, high = interval(Forecast([100.0], 0.7, tail=tail), 0.8)
    inside, _ = quad(lambda t: curve.marginal(t).item(), low.item(), high.item(), points=[100.0], limit=200)
    assert inside == pytest.approx(0.8, abs=1e-6)


def test_several_shares_of_several_queries_at_once():
    forecast = Forecast([10.0, 200.0, 3000.0], [0.1, 0.5, 1.0], tail=[1.5, 3.0, np.inf])
    table = quantile(forecast, np.array([[0.1], [0.5], [0.9]]))
    assert table.shape == (3, 3)
    assert table[1] == pytest.approx(forecast.tokens)
    for i in range(3):
        assert table[:, i] == pytest.approx([quantile(forecast.take([i]), p).item() for p in (0.1, 0.5, 0.9)])


def test_the_ends_of_the_scale():
    forecast = Forecast([300.0], 0.5, tail=3.0)
    assert interval(forecast, 1.0) == (0.0, np.inf)
    assert interval(forecast, 0.0) == (pytest.approx([300.0]), pytest.approx([300.0]))
    for wrong in (-0.1, 1.1, np.nan):
        with pytest.raises(MarketError):
            quantile(forecast, wrong)
        with pytest.raises(MarketError):
            interval(forecast, wrong)
