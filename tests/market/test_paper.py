"""The paper's algorithm as printed, where it is sound and where it is not."""

import numpy as np
import pytest
from scipy.special import lambertw

from shadowprice.errors import MarketError
from shadowprice.market import Surge, algorithm1, clear


def test_is_reproduced_where_the_budget_is_ample():
    rng = np.random.default_rng(10)
    tau = rng.lognormal(6, 0.8, 500)
    for share in (1.05, 1.5, 3.0):
        budget = share * tau.sum()
        printed, _ = algorithm1(tau, budget)
        ours = clear(Surge(tau, 2.0, 1 / (budget / 500 - tau.mean())), budget)
        assert np.abs(printed - np.floor(ours.tokens)).max() <= 1


def test_declines_everyone_where_the_budget_is_scarce():
    """docs/paper.md, repair 1: the clearing price is about 1e-9 and the search stops at 1e-6."""
    rng = np.random.default_rng(10)
    tau = rng.lognormal(6, 0.8, 500)
    budget = 0.5 * tau.sum()
    printed, _ = algorithm1(tau, budget)
    assert printed.sum() == 0
    ours = clear(Surge(tau, 2.0, 1e6), budget)
    assert ours.price < 1e-6
    assert ours.admitted.sum() > 250
    assert ours.tokens.sum() > 0.99 * budget


def one_by_one(tau, budget, alpha, beta, cap, epsilon=1e-6):
    """Algorithm 1 with a loop over the queries."""
    best, low, high = [0.0] * len(tau), 0.0, max(alpha) - 1e-6
    for _ in range(40):
        if high - low <= epsilon:
            break
        price, tokens = (low + high) / 2, []
        for t, a, b in zip(tau, alpha, beta, strict=True):
            d = (1 - lambertw(price * np.e / a).real) / b
            pays = d > 0 and a * d * np.exp(-b * d) > price * (t + d)
            tokens.append(min(t + d, cap) if pays else 0.0)
        if sum(tokens) > budget:
            low = price
        else:
            high, best = price, tokens
    return np.floor(best)


@pytest.mark.parametrize("cap", [np.inf, 500.0])
@pytest.mark.parametrize("kind", ["one alpha and beta", "one beta", "all different"])
def test_all_queries_at_once_are_the_queries_one_by_one(kind, cap):
    rng = np.random.default_rng(3)
    tau = rng.lognormal(5, 0.8, 40)
    budget = 1.3 * tau.sum()
    alpha = 2.0 if kind == "one alpha and beta" else rng.uniform(1, 3, 40)
    beta = rng.uniform(0.002, 0.02, 40) if kind == "all different" else None
    found, _ = algorithm1(tau, budget, alpha=alpha, beta=beta, max_tokens=cap)
    rate = 1 / (budget / 40 - tau.mean()) if beta is None else beta
    wanted = one_by_one(tau, budget, np.full(40, alpha) if np.ndim(alpha) == 0 else alpha, np.full(40, rate) if
                        np.ndim(rate) == 0 else rate, cap)  # fmt: skip
    assert found.tolist() == wanted.tolist()
    assert found.any()


def test_invalid_parameters_are_named():
    with pytest.raises(MarketError, match="alpha"):
        algorithm1([10.0], 100, alpha=0.0)
    with pytest.raises(MarketError, match="beta"):
        algorithm1([10.0], 100, beta=-1.0)
