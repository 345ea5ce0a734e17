"""Random markets, and solvers without prices, to compare the real one with."""

from __future__ import annotations

import itertools

import numpy as np

from shadowprice.market import Curve, Expected, Quadratic, Surge, ThresholdCurve, Triangular
from shadowprice.market.options import Option

KINDS = ["surge", "triangular", "quadratic", "expected", "heavy-tailed"]
SHARED_KINDS = KINDS[:3]


def mixed_market(kind: str, n: int, rng: np.random.Generator, *, capped: bool = False) -> Curve:
    """Every parameter its own, over more than a decade each."""
    place, width, height = rng.lognormal(5, 1, n), rng.lognormal(4, 1, n), rng.lognormal(0, 1, n)
    cap = place * rng.uniform(0.5, 3, n) if capped else np.inf
    if kind == "surge":
        return Surge(place, height, 1 / width, cap)
    if kind == "triangular":
        return Triangular(place, width, width * rng.uniform(1.1, 3, n), height, cap)
    if kind == "quadratic":
        return Quadratic(place, width, height, cap)
    tail = None if kind == "expected" else rng.uniform(1.5, 8, n)
    return Expected(place, rng.uniform(0.1, 1.2, n), rng.uniform(0.05, 1, n), tail, cap)


def shared_market(kind: str, threshold: np.ndarray, width: float, cap: float = np.inf) -> ThresholdCurve:
    if kind == "surge":
        return Surge(threshold, 2.0, 1 / width, cap)
    if kind == "triangular":
        return Triangular(threshold, width, 2 * width, 3.0, cap)
    return Quadratic(threshold, 2 * width, 3.0, cap)


def whole_demand(curves: Curve) -> float:
    """About what everyone together can use."""
    peak = curves.peak()
    return float(np.where(np.isfinite(peak), peak, curves.follow(1e-4)).sum())


def best_over_subsets(curves: ThresholdCurve, budget: float) -> float:
    """One shape for all: every subset, its budget levelled by bisection on the common extension."""
    tau, cap = curves.threshold, np.broadcast_to(curves.cap, (len(curves),))
    shape = curves.with_threshold(0.0)
    reach = float(shape.extent())
    best = 0.0
    for size in range(1, len(curves) + 1):
        for subset in map(list, itertools.combinations(range(len(curves)), size)):
            room, limit = budget - tau[subset].sum(), np.minimum(reach, cap[subset] - tau[subset])
            if room < 0 or (limit <= 0).any():
                continue
            low, high = 0.0, reach
            for _ in range(100):
                middle = (low + high) / 2
                low, high = (middle, high) if np.minimum(middle, limit).sum() <= room else (low, middle)
            past = limit if limit.sum() <= room else np.minimum(low, limit)
            best = max(best, float(shape.shape(past).sum()))
    return best


def best_on_grid(curves: Curve, budget: float, steps: int = 1000) -> float:
    """Any curves: dynamic programming over a grid of grants. A lower bound on the optimum."""
    grid = np.linspace(0, budget, steps + 1)
    value = np.where(grid[:, None] <= curves.cap, curves.value(grid[:, None]), 0.0)
    value = np.maximum.accumulate(value, axis=0)
    best = value[:, 0]
    shift = np.arange(steps + 1)[:, None] - np.arange(steps + 1)[None, :]  # what is left for the others
    for query in range(1, len(curves)):
        best = np.where(shift >= 0, best[np.maximum(shift, 0)] + value[:, query], -np.inf).max(axis=1)
    return float(best[-1])


def random_menu(rng: np.random.Generator, n: int, routes: int, *, entry: bool = True) -> list[Option]:
    """Routes from cheap to dear; a dearer one is better on average, but not for every query."""
    menu = []
    for route in range(routes):
        solve = np.clip(rng.beta(2, 2, n) * (0.5 + route / routes), 0, 1)
        curves = Expected(rng.lognormal(5, 0.7, n), rng.uniform(0.2, 0.9, n), solve, None, 4096.0)
        menu.append(Option(curves, 10.0**route, rng.uniform(0, 200, n) * entry * 10.0**route))
    return menu
