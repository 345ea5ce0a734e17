"""Each curve is what its formula says."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import lambertw
from scipy.stats import norm

from shadowprice.errors import MarketError
from shadowprice.market import Expected, Quadratic, Surge, Triangular, fit_surge

GRID = np.unique(np.concatenate([np.linspace(0, 20_000, 20_001), np.geomspace(1e-3, 20_000, 5_001)]))[:, None]


@given(price=st.floats(1e-300, 1.0, exclude_max=True), alpha=st.floats(1e-12, 1e12), beta=st.floats(1e-9, 1e9))
def test_surge_demand_is_the_papers_lambert_formula(price, alpha, beta):
    extension = Surge(0.0, alpha, beta).follow(price * alpha)[0]
    expected = (1 - lambertw(price * np.e).real) / beta
    assert extension == pytest.approx(expected, rel=1e-9, abs=1e-9 / beta)


@pytest.mark.parametrize("price", [1e-300, 1e-200, 1e-30, 1.0, 2.0, 2.5, 1e300])
def test_no_price_overflows(price):
    demand = Surge([10.0, 1e6], alpha=2.0, beta=[1e6, 1e-6]).demand(price)
    assert np.all(np.isfinite(demand))
    assert np.all(demand >= 0)


def test_a_parabola_is_worth_nothing_past_its_width_however_narrow_it_is():
    assert Quadratic(10.0, width=1e-6).value(np.array([11.0, np.inf])) == pytest.approx(0.0)


def test_a_free_token_is_bought_up_to_the_peak():
    assert Surge(100.0, 2.0, 1 / 50).demand(0.0) == 150.0
    assert Triangular(100.0, 20.0, 60.0, 1.0).demand(0.0) == 120.0
    assert Quadratic(100.0, 60.0, 1.0).demand(0.0) == 130.0
    assert np.isinf(Expected(100.0).demand(0.0))
    assert Expected(100.0, cap=400).demand(0.0) == 400.0


def test_surges_below_their_threshold_are_worth_nothing_and_past_it_positive():
    curve = Surge(100.0, 2.0, 1 / 50)
    assert curve.value(100.0) == 0
    assert curve.value(99.9) == 0
    assert curve.value(100.1) > 0
    assert curve.value(150.0) == pytest.approx(2 * 50 / np.e)


def test_expected_is_the_log_normal_distribution_of_the_length():
    curve = Expected(median=400.0, spread=0.6, solve=0.8)
    tokens = np.array([50.0, 400.0, 2000.0])
    assert np.allclose(curve.value(tokens), 0.8 * norm.cdf(np.log(tokens / 400) / 0.6))
    # the closed form of the stationary point
    price, m, s = 1e-4, np.log(400), 0.6
    log_t = (m - s**2) + s * np.sqrt(s**2 - 2 * m - 2 * np.log(price * s * np.sqrt(2 * np.pi) / 0.8))
    assert curve.demand(price) == pytest.approx(np.exp(log_t))


def test_a_tail_makes_long_answers_likelier_and_short_ones_no_likelier():
    normal, heavy = Expected(400.0, 0.6), Expected(400.0, 0.6, tail=2.0)
    assert heavy.value(4000.0) < normal.value(4000.0)
    assert heavy.value(100.0) == normal.value(100.0)
    assert heavy.value(400.0) == normal.value(400.0) == 0.5
    assert np.allclose(Expected(400.0, 0.6, tail=1e9).value(GRID), normal.value(GRID))
    assert np.isclose(heavy.marginal(400 * (1 - 1e-9)), heavy.marginal(400 * (1 + 1e-9)))


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Surge([1.0, np.nan]), "threshold"),
        (lambda: Surge([1.0, np.inf]), "threshold"),
        (lambda: Surge([-1.0]), "threshold"),
        (lambda: Surge([1.0], alpha=0.0), "alpha"),
        (lambda: Surge([1.0], beta=-1.0), "beta"),
        (lambda: Surge([1.0, 2.0], alpha=[1.0, 2.0, 3.0]), "alpha has 3"),
        (lambda: Surge([[1.0]]), "threshold"),
        (lambda: Surge(["many"]), "threshold"),
        (lambda: Triangular([1.0], peak=2.0, width=2.0), "peak"),
        (lambda: Expected([0.0]), "median"),
        (lambda: Expected([1.0], solve=1.2), "solve"),
        (lambda: Expected([1.0], spread=0.0), "spread"),
        (lambda: Surge([1.0]).capped(np.nan), "max_tokens"),
        (lambda: Surge([1.0]).demand(-1.0), "price"),
        (lambda: Surge([10**400]), "threshold"),
        (lambda: Triangular([1.0, 2.0, 3.0], peak=[1.0, 2.0], width=[3.0, 4.0, 5.0]), "one for all"),
        (lambda: fit_surge([1.0, 2.0, 3.0], [1, np.nan, 1]), "correct"),
        (lambda: fit_surge([1.0, 2.0, 3.0], [1, 1, 1], bins=5.5), "bins"),
    ],
)
def test_invalid_parameters_are_named(make, named):
    with pytest.raises(MarketError, match=named):
        make()


class TestFitSurge:
    """A surge is the density of threshold + Gamma(2, beta): rollouts drawn from it must give it back."""

    def test_recovers_threshold_and_decay(self):
        rng = np.random.default_rng(0)
        lengths = 300 + rng.gamma(2, 80, 20_000)
        curve = fit_surge(lengths, np.ones(lengths.size, dtype=bool), bins=60)
        assert curve.threshold[0] == pytest.approx(300, abs=10)
        assert 1 / curve.beta == pytest.approx(80, rel=0.1)

    def test_wrong_rollouts_do_not_count(self):
        rng = np.random.default_rng(0)
        lengths, wrong = 300 + rng.gamma(2, 80, 2000), rng.uniform(1, 5000, 500)
        correct = np.arange(2500) < 2000
        alone = fit_surge(lengths, np.ones(2000, dtype=bool))
        both = fit_surge(np.concatenate([lengths, wrong]), correct)
        assert both.threshold == alone.threshold
        assert both.beta == alone.beta

    def test_too_little_to_fit_is_an_error(self):
        with pytest.raises(MarketError, match="three different lengths"):
            fit_surge([10.0, 20.0, 30.0], [True, True, False])
        with pytest.raises(MarketError, match="one outcome per rollout"):
            fit_surge([10.0, 20.0], [True])
