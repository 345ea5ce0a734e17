r"""What several answers to one query are worth.

The answers of a model to one query are not independent: the query is easy for it, or hard. With a chance that is
itself random over queries, Beta with mean p and correlation r between two answers, none of K answers is correct with

    P(none) = prod_{j<K} ((1 - p)(1 - r) + j r) / ((1 - r) + j r)

At r = 0 this is (1 - p)^K, at r = 1 it is 1 - p: more answers gain nothing.

    with a verifier     the chance that at least one answer is correct: 1 - P(none)
    without one         the chance that the majority is, as if all wrong answers agreed; ties count half
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import comb

from shadowprice.arrays import Array, checked, checked_scalar
from shadowprice.errors import MarketError
from shadowprice.market.curves import Expected
from shadowprice.market.options import Ints, Option


def any_correct(chance: ArrayLike, samples: int, correlation: float = 0.0) -> Array:
    """The chance that at least one of several answers is correct, where one is with `chance`."""
    p, r = _checked(chance, samples, correlation)
    return 1 - _run(1 - p, samples, r, np.ones_like(p))


def majority_correct(chance: ArrayLike, samples: int, correlation: float = 0.0) -> Array:
    """The chance that the most frequent of several answers is correct; ties count half."""
    p, r = _checked(chance, samples, correlation)
    total = np.zeros_like(p)
    for right in range(samples // 2 if samples % 2 == 0 else samples // 2 + 1, samples + 1):
        weight = 0.5 if 2 * right == samples else 1.0
        total += (
            weight * comb(samples, right) * _run(1 - p, samples - right, r, _run(p, right, r, np.ones_like(p)), right)
        )
    return total


def _run(chance: Array, length: int, r: float, start: Array, before: int = 0) -> Array:
    """`start` times the chance that the next `length` draws of an urn are of one kind; `before`: draws before them."""
    product = start
    for j in range(length):
        # At r = 1 all draws repeat the first: 0/0 of the first factor is the chance itself.
        below = 1 - r + (before + j) * r
        product = product * ((chance * (1 - r) + j * r) / below if below > 0 else chance)
    return product


def next_samples(chance: ArrayLike, wrong: Ints, left: Ints, correlation: float) -> tuple[Array, Array]:
    """What each further answer promises, as a share of `chance`, and the chance that it is needed.

    After `wrong` answers to a query that were wrong the next is correct with p (1 - r) / (1 - r + wrong r). Row i has
    the answers that query i may still have, `left` of them.
    """
    r = min(correlation, 1 - 1e-9)  # at 1 the first answer is all there is
    each = np.arange(max(1, int(left.max(initial=1))), dtype=np.float64)
    share: Array = (1 - r) / (1 - r + (wrong[:, None] + each) * r)
    p = np.broadcast_to(np.asarray(chance, dtype=np.float64), wrong.shape)[:, None]
    before = np.cumprod(1 - p * share, axis=1)
    reach = np.hstack([np.ones((wrong.size, 1)), before[:, :-1]])
    return share, np.where(each < left[:, None], reach, 0.0)


def correlation_of(correct: Sequence[Sequence[bool]]) -> float:
    """The correlation between two answers to one question, from the grades of several answers to each.

    1 - (variance within questions) / (total variance), from all pairs; questions with one answer say nothing.
    """
    groups = [np.asarray(each, dtype=np.float64) for each in correct if len(each) > 1]
    if not groups:
        raise MarketError("no question has two answers: the correlation between them is unknown")
    agree = np.array([(g.sum() * (g.sum() - 1)) / (g.size * (g.size - 1)) for g in groups])
    mean = float(np.mean([g.mean() for g in groups]))
    spread = mean * (1 - mean)
    return float(np.clip((agree.mean() - mean**2) / spread, 0.0, 1.0)) if spread > 0 else 1.0


def sampled(option: Option, samples: int, correlation: float, *, verified: bool) -> Option:
    """The option of `samples` answers in place of one: each has the same limit, and is paid for.

    Its curve is (chance of several full answers) x F(t). The chance is concave in that of one answer, so this is exact
    for full answers and a lower bound for shorter ones.
    """
    one = option.curves
    if not isinstance(one, Expected):
        raise MarketError("several samples need the chance of a correct answer: curves of `Expected`")
    chance = (any_correct if verified else majority_correct)(one.solve, samples, correlation)
    # Where answers are mostly wrong, so is their majority: one answer is better.
    curves = Expected(one.median, one.spread, np.clip(chance, 0.0, 1.0), one.tail, one.cap)
    return Option(curves, samples * option.rate, samples * option.entry)


def _checked(chance: ArrayLike, samples: int, correlation: float) -> tuple[Array, float]:
    if samples < 1:
        raise MarketError(f"samples must be at least 1, got {samples}")
    return checked("chance", chance, high=1.0), checked_scalar("correlation", correlation, high=1.0)
