"""What a policy's grants give on recorded answers: exact for greedy decoding, and nobody is asked again.

    reserved  the sum of the grants is within the budget (the paper). An answer no longer than its grant
              is complete; others are cut at it.
    metered   the sum of the tokens generated is within the budget. What complete answers did not use
              flows back and is divided again, by the same policy, among those without a complete answer,
              until nobody can pay. Who was cut goes on where it stopped, and the policy is told what is
              still expected of it: the median of what is left, given that it is longer than what is there.
              The policy `metered` needs no grants: it serves the best index first (`market.metered`).

Either is checked against its budget, every time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shadowprice.arrays import Array
from shadowprice.engine.metered import replayed
from shadowprice.forecast.intervals import chance_within, quantile
from shadowprice.lab.pools import Mask, Pool
from shadowprice.market import allocate
from shadowprice.types import Forecast

Tokens: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Queries:
    """Some queries of a pool: what is forecast of them, and what is true."""

    forecast: Forecast
    length: Tokens
    correct: Mask
    truncated: Mask
    cap: int

    @classmethod
    def of(cls, pool: Pool, places: NDArray[np.intp]) -> Queries:
        return cls(
            pool.forecast.take(places), pool.length[places], pool.correct[places], pool.truncated[places], pool.cap
        )

    def __len__(self) -> int:
        return self.length.size

    def truth(self, policy: str) -> dict[str, Any]:
        """What a policy of hindsight is told: answers that never end are longer than any grant."""
        lengths = np.where(self.truncated, self.cap + 1, self.length)
        told = {"oracle": {"lengths": lengths}, "clairvoyant": {"lengths": lengths, "correct": self.correct}}
        return told.get(policy, {})


@dataclass(frozen=True, eq=False)
class Outcome:
    """What became of each query. `granted` is the most it was ever allowed; 0: abandoned."""

    granted: Tokens
    spent: Tokens
    finished: Mask  # the answer is complete
    solved: Mask  # and right
    price: float | None = None


def reserved(queries: Queries, budget: int, policy: str, **options: Any) -> Outcome:
    given = allocate(queries.forecast, budget, policy, max_tokens=queries.cap, **queries.truth(policy), **options)
    _check(policy, "grants", given.total, budget, given.tokens, queries.cap)
    return _outcome(queries, given.tokens, np.minimum(queries.length, given.tokens), given.price)


def metered(queries: Queries, budget: int, policy: str, **options: Any) -> Outcome:
    granted, spent = np.zeros(len(queries), dtype=np.int64), np.zeros(len(queries), dtype=np.int64)
    waiting, left, price = np.arange(len(queries)), budget, None
    while left > 0 and waiting.size:
        age = spent[waiting]
        given = allocate(
            remaining(queries.forecast.take(waiting), age), left, policy, max_tokens=queries.cap, **options
        )
        if not given.total:
            break
        granted[waiting] = np.where(given.tokens > 0, np.minimum(age + given.tokens, queries.cap), granted[waiting])
        spent[waiting] = np.minimum(queries.length[waiting], age + given.tokens)
        left = budget - int(spent.sum())
        price = given.price
        waiting = waiting[spent[waiting] < queries.length[waiting]]
    _check(policy, "tokens generated", int(spent.sum()), budget, granted, queries.cap)
    return _outcome(queries, granted, spent, price)


def by_index(queries: Queries, budget: int, policy: str) -> Outcome:
    ends = np.where(queries.truncated, queries.cap + 1, queries.length)
    age = replayed(queries.forecast, budget, queries.cap, ends)
    _check(policy, "tokens generated", int(age.sum()), budget, age, queries.cap)
    return _outcome(queries, age, age, None)


def remaining(forecast: Forecast, age: Tokens) -> Forecast:
    """What is still expected of answers that are longer than `age`: the median of what is left, and no more."""
    tokens = forecast.tokens.copy()
    if np.any(begun := age > 0):
        some, past = forecast.take(begun), age[begun].astype(np.float64)
        middle: Array = np.minimum((1 + chance_within(some, past)) / 2, 1 - 1e-9)
        tokens[begun] = np.clip(quantile(some, middle) - past, 1.0, 2.0**40)
    return Forecast(tokens)


def _outcome(queries: Queries, granted: Tokens, spent: Tokens, price: float | None) -> Outcome:
    finished = (spent >= queries.length) & (granted > 0) & ~queries.truncated
    return Outcome(granted, spent, finished, finished & queries.correct, price)


def _check(policy: str, what: str, total: int, budget: int, granted: Tokens, cap: int) -> None:
    if total > budget or granted.min(initial=0) < 0 or granted.max(initial=0) > cap:
        raise AssertionError(f"{policy}: {total} {what} of a budget of {budget}, up to {granted.max()} under {cap}")


Replay: TypeAlias = Callable[..., Outcome]

# Who is compared, and in which accounting. Grants of hindsight are used to the last token, so that what they
# reach is the same in both, and nobody reaches more in either. Of `tale` there are no estimates in traces.
REPLAYS: dict[str, dict[str, Replay]] = {
    "uniform": {"reserved": reserved, "metered": metered},
    "proportional": {"reserved": reserved, "metered": metered},
    "heuristic": {"reserved": reserved},
    "auction": {"reserved": reserved},
    "clear": {"reserved": reserved, "metered": metered},
    "triangular": {"reserved": reserved},
    "quadratic": {"reserved": reserved},
    "expected": {"reserved": reserved},
    "metered": {"metered": by_index},
    "oracle": {"reserved": reserved, "metered": reserved},
    "clairvoyant": {"reserved": reserved, "metered": reserved},
}
PRACTICAL = tuple(name for name in REPLAYS if name not in ("oracle", "clairvoyant"))
