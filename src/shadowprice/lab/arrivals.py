"""Recorded answers as live traffic: requests that arrive one by one, and buy at a posted price or are served in order.

Time is a share of the window. A request that is admitted holds its grant until its answer ends, and is charged what it
used; its grant is never more than what is free, so no order of events can spend more than the budget. Answers that are
in flight when the window ends are charged to it.

    posted   the price moves (`market.pacing`)
    static   one price for the whole window; the best one is known only in hindsight
    fcfs     first come, first served: each is granted its cap while there is budget
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shadowprice.arrays import Array
from shadowprice.lab.pools import Pool
from shadowprice.lab.simulations import Outcome, Queries
from shadowprice.lab.streams import draw
from shadowprice.market.pacing import Pacer
from shadowprice.market.posted import Offers

PACE = 180_000  # tokens that one answer generates in a window: 50 a second for an hour
_BURSTS, _IN_BURSTS, _BURST = 20, 0.6, 0.003  # bursts in a window, the share of requests in them, their length


def rate_of_day(time: Array) -> Array:
    """Relative arrivals over a day: the lowest at four in the morning, the highest twelve hours later."""
    return 1 - 0.85 * np.cos(2 * np.pi * (time - 1 / 6))


def poisson(mean: float, random: np.random.Generator) -> Array:
    return np.sort(random.random(random.poisson(mean)))


def bursts(mean: float, random: np.random.Generator) -> Array:
    """Most requests arrive in short bursts, the others in between."""
    n, starts = random.poisson(mean), random.random(_BURSTS) * (1 - _BURST)
    inside = starts[random.integers(_BURSTS, size=n)] + _BURST * random.random(n)
    return np.sort(np.where(random.random(n) < _IN_BURSTS, inside, random.random(n)))


def day(mean: float, random: np.random.Generator) -> Array:
    edges = np.linspace(0, 1, 1441)
    share = np.cumsum(rate_of_day((edges[1:] + edges[:-1]) / 2))
    return np.sort(np.interp(random.random(random.poisson(mean)), [0, *share / share[-1]], edges))


PATTERNS: dict[str, Callable[[float, np.random.Generator], Array]] = {"poisson": poisson, "bursts": bursts, "day": day}


@dataclass(frozen=True, eq=False)
class Traffic:
    """Requests in the order in which they arrive, at their `times`; `value` is what a correct answer is worth."""

    queries: Queries
    times: Array
    value: Array
    offers: Offers

    @classmethod
    def drawn(
        cls, pool: Pool, stream: str, pattern: str, mean: float, seed: int, value: Array | None = None
    ) -> Traffic:
        """A window's traffic: about `mean` requests; `value` has one number per question of the pool."""
        times = PATTERNS[pattern](mean, np.random.default_rng([seed, *pattern.encode()]))
        places = draw(pool, stream, times.size, seed)
        worth = np.ones(times.size) if value is None else value[places]
        queries = Queries.of(pool, places)
        return cls(queries, times, worth, Offers(queries.forecast, pool.cap, value=worth))


class Seller(Protocol):
    """Says what a request is granted when it arrives."""

    def grant(self, place: int, time: float, free: int) -> tuple[int, float]:
        """At most `free` tokens, 0 to decline; and what it is expected to use."""
        ...

    def settle(self, usage: int, expected: float) -> None:
        """An answer has ended."""
        ...


class FirstCome:
    def __init__(self, traffic: Traffic) -> None:
        self._cap = traffic.queries.cap

    def grant(self, place: int, time: float, free: int) -> tuple[int, float]:
        return min(self._cap, free), 0.0

    def settle(self, usage: int, expected: float) -> None: ...


class Static:
    """One price for the whole window."""

    def __init__(self, traffic: Traffic, price: float) -> None:
        self._traffic, self.price = traffic, price
        self._bought = traffic.offers.at(price)

    def grant(self, place: int, time: float, free: int) -> tuple[int, float]:
        grant = int(self._bought.grant[place])
        if grant <= free:
            return grant, float(self._bought.cost[place])
        return _within(self._traffic, place, free, self.price)

    def settle(self, usage: int, expected: float) -> None: ...


class Posted:
    """The pacer's price, updated at every arrival with the numbers that a gateway would give it."""

    def __init__(self, traffic: Traffic, pacer: Pacer, length: float) -> None:
        self._traffic, self._pacer, self._length = traffic, pacer, length
        self._spent = self._demanded = self._in_flight = 0.0
        self.prices: list[float] = []

    def grant(self, place: int, time: float, free: int) -> tuple[int, float]:
        offer = self._traffic.offers.take(slice(place, place + 1))
        self._pacer.observe(offer)
        price = self._pacer.update(time * self._length, self._spent, self._demanded, in_flight=self._in_flight)
        self.prices.append(price)
        self._spent = self._demanded = 0.0
        bought = offer.at(price)
        grant, cost = int(bought.grant[0]), float(bought.cost[0])
        if grant > free:
            grant, cost = _within(self._traffic, place, free, price)
        self._demanded += cost
        self._in_flight += cost
        return grant, cost

    def settle(self, usage: int, expected: float) -> None:
        self._spent += usage
        self._in_flight = max(0.0, self._in_flight - expected)

    def roll(self, traffic: Traffic, budget: int) -> None:
        """The next window; what the last answers of this one used is known by then."""
        self._pacer.update(self._length, self._spent, self._demanded)
        self._pacer.roll(budget)
        self._traffic, self.prices = traffic, []
        self._spent = self._demanded = self._in_flight = 0.0


def _within(traffic: Traffic, place: int, free: int, price: float) -> tuple[int, float]:
    """What a request buys if less is free than it would buy."""
    forecast = traffic.queries.forecast.take([place])
    bought = Offers(forecast, free, value=traffic.value[place]).at(price)
    return int(bought.grant[0]), float(bought.cost[0])


def serve(traffic: Traffic, seller: Seller, budget: int, *, pace: float = PACE) -> Outcome:
    """One window: every request is offered what is free when it arrives."""
    queries = traffic.queries
    ends = np.where(queries.truncated, queries.cap + 1, queries.length)
    granted = np.zeros(len(queries), dtype=np.int64)
    free, under_way = budget, list[tuple[float, int, int, float]]()  # end, usage, grant, what was expected

    def settle() -> int:
        _, usage, grant, expected = heapq.heappop(under_way)
        seller.settle(usage, expected)
        return grant - usage

    for place, time in enumerate(traffic.times.tolist()):
        while under_way and under_way[0][0] <= time:
            free += settle()
        grant, expected = seller.grant(place, time, free)
        if grant > 0:
            usage = min(grant, int(ends[place]))
            heapq.heappush(under_way, (time + usage / pace, usage, grant, expected))
            granted[place] = grant
            free -= grant
    while under_way:
        free += settle()
    spent: NDArray[np.int64] = np.minimum(granted, queries.length)
    finished = (spent >= queries.length) & (granted > 0) & ~queries.truncated
    return Outcome(granted, spent, finished, finished & queries.correct)


def worth(traffic: Traffic, outcome: Outcome) -> float:
    """The value of the correct answers."""
    return float(traffic.value[outcome.correct].sum())


def best_static(traffic: Traffic, budget: int, *, pace: float = PACE, prices: int = 40) -> tuple[float, Outcome]:
    """Of 0 and many other prices, the one that would have gained most, and its outcome."""
    reservation = traffic.offers.reservation()
    positive = reservation[reservation > 0]
    low = float(positive.min()) if positive.size else 1.0
    tried = np.unique(
        [
            0.0,
            *np.geomspace(low / 30, low, 8),
            *np.quantile(positive if positive.size else [low], np.linspace(0, 1, prices)),
        ]
    )
    served = [(float(price), serve(traffic, Static(traffic, float(price)), budget, pace=pace)) for price in tried]
    return max(served, key=lambda candidate: worth(traffic, candidate[1]))
