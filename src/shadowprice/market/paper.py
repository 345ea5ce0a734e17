"""The paper's own solver, to measure against."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import lambertw

from shadowprice.arrays import checked, checked_scalar


def algorithm1(
    threshold: ArrayLike,
    budget: float,
    *,
    alpha: ArrayLike = 2.0,
    beta: ArrayLike | None = None,
    max_tokens: ArrayLike = np.inf,
    epsilon: float = 1e-6,
    iterations: int = 40,
) -> tuple[NDArray[np.int64], float]:
    """The paper's Algorithm 1 as printed, vectorised: integer grants, and the last price tried.

    Every price p is tried on all queries at once, with d tokens beyond each threshold tau:

        d = (1 - W0(p e / alpha)) / beta                            (eq. 5)
        admitted where  alpha d exp(-beta d) > p (tau + d)          (definition 4.1)

    With one alpha for all, W0 is one number per price, and only tau differs between queries. `alpha`
    and `beta` may also be one per query; without `beta` it is the adaptive rate (eq. 16).

    A reference, not a solver: in a scarce market beta is 1/epsilon, every price worth having lies
    below the interval at which the search stops, and all queries are declined (docs/paper.md).
    """
    tau = np.atleast_1d(checked("threshold", threshold))
    scale, cap = checked("alpha", alpha, open_low=True), checked("max_tokens", max_tokens, finite=False)
    mean_budget = checked_scalar("budget", budget) / tau.size
    if beta is None:
        beta = 1 / max(epsilon, mean_budget - tau.mean())
    rate = checked("beta", beta, open_low=True)

    best, low, high, price = np.zeros(tau.size), 0.0, float(scale.max()) - 1e-6, 0.0
    for _ in range(iterations):
        if high - low <= epsilon:
            break
        price = (low + high) / 2
        past = (1 - lambertw(price * np.e / scale).real) / rate
        tokens = tau + past
        admitted = (scale * past * np.exp(-rate * past) > price * tokens) & (past > 0)
        np.minimum(tokens, cap, out=tokens)
        tokens *= admitted
        if tokens.sum() > budget:
            low = price
        else:
            high, best = price, tokens
    return np.floor(best).astype(np.int64), price
