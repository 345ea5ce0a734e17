"""The posted price of every account, moved so that its window's budget lasts (`market.pacing`).

    policy posted      accounts with a window have a price that moves; those that never refill have price 0
    policy fixed       one price per output token, everywhere
    policy first-come  price 0

Only requests that the other accounts on their path would admit count as demand of an account: a tenant whose own budget
is used up demands nothing from its team. Each process that shares a ledger paces an equal part of what is left, by its
own requests. A process that starts uses the last recorded price until it has seen a few requests.
"""

from __future__ import annotations

from collections.abc import Sequence

from shadowprice.accounts.notes import Notes, Price
from shadowprice.accounts.tree import Tree
from shadowprice.accounts.windows import Account
from shadowprice.gateway.admission import Decision, Purse, Terms, offers_of
from shadowprice.market.pacing import Pacer
from shadowprice.types import Forecast

__all__ = ["Prices"]

_OFTEN, _SELDOM = 0.2, 5.0  # seconds between two updates of a price: at least, and at most
_UPDATES = 2000  # in a window, within these bounds
_NOTED = 720  # prices of a window in its history
_BUFFER = 64  # requests between two updates that are looked at; others are only counted
_SAMPLE = 128  # recent requests of an account


class Prices:
    """`workers`: how many processes share the ledger."""

    def __init__(
        self,
        tree: Tree,
        notes: Notes,
        policy: str = "posted",
        price: float = 0.0,
        shape: Sequence[float] | None = None,
    ) -> None:
        self._tree, self._notes, self._policy, self._fixed, self._shape = tree, notes, policy, price, shape
        self._paced: dict[str, _Paced] = {}
        self._seen: dict[str, Account] = {}
        self._noted: dict[str, float] = {}
        self.workers = 1

    def purses(self, path: Sequence[Account], terms: Terms) -> list[Purse]:
        """What is available in each account, as far as this process knows, and its price now."""
        for account in path:
            self._seen[account.name] = account
        return [Purse(each, self._tree.available(each), self.price(each, terms.rate(each.money))) for each in path]

    def price(self, account: Account, rate: float = 1.0) -> float:
        """Utility per unit; `rate`: units per output token."""
        if self._policy == "fixed":
            return self._fixed / rate
        if self._policy == "first-come" or not account.window.period:
            return 0.0
        paced = self._paced.get(account.name)
        if paced is None or paced.account.limit != account.limit:
            shape = self._shape if account.window.period == "day" else None
            price = paced.pacer.price if paced else self._notes.last_price(account.name)
            self._paced[account.name] = paced = _Paced(account, price, shape, self._tree, self.workers)
        return paced.price(self._tree, self.workers)

    def arrived(self, path: Sequence[Account], decision: Decision, forecast: Forecast, terms: Terms) -> None:
        """Counts a request, whether it was granted or declined. Of several attempts only the first counts."""
        for account, other in zip(path, decision.others, strict=True):
            if paced := self._paced.get(account.name):
                paced.arrived(forecast, terms, other)

    def granted(self, path: Sequence[Account], decision: Decision) -> None:
        for account, expected in zip(path, decision.expected, strict=True):
            if paced := self._paced.get(account.name):
                paced.demanded += expected
                paced.in_flight += expected

    def settled(self, path: Sequence[Account], decision: Decision, costs: Sequence[int]) -> None:
        for account, expected, cost in zip(path, decision.expected, costs, strict=True):
            if paced := self._paced.get(account.name):
                paced.spent += cost
                paced.in_flight = max(0.0, paced.in_flight - expected)

    def current(self) -> dict[str, float]:
        """The prices of the accounts that are in use."""
        return {name: self.price(account) for name, account in self._seen.items()}

    def history(self) -> list[Price]:
        """Prices to record now, with what is available."""
        found, now = [], self._tree.clock()
        for name, account in self._seen.items():
            span = account.window.span(now)
            if now - self._noted.get(name, 0.0) >= ((span[1] - span[0]) / _NOTED if span else _SELDOM):
                self._noted[name] = now
                found.append(Price(name, now, self.price(account), self._tree.available(account)))
        return found


class _Paced:
    """The pacer of one account, and what has happened since it was last asked."""

    def __init__(self, account: Account, price: float, shape: Sequence[float] | None, tree: Tree, workers: int) -> None:
        self.account = account
        self._start, self._end = self._span(tree.clock())
        self.length = self._end - self._start
        self.pacer = Pacer(account.limit / workers, self.length, price=price, shape=shape, sample=_SAMPLE)
        self._interval = min(max(self.length / _UPDATES, _OFTEN), _SELDOM)
        self._updated = 0.0
        self._latest: list[tuple[Forecast, Terms, int]] = []
        self._arrivals = 0
        self.spent = self.demanded = self.in_flight = 0.0

    def _span(self, now: float) -> tuple[float, float]:
        span = self.account.window.span(now)
        assert span  # only accounts with a window are paced
        return span

    def arrived(self, forecast: Forecast, terms: Terms, other: int) -> None:
        self._arrivals += 1
        if len(self._latest) < _BUFFER:
            self._latest.append((forecast, terms, other))

    def price(self, tree: Tree, workers: int) -> float:
        now = tree.clock()
        if not self._start <= now < self._end:
            self._update(self.length, None)
            self._start, self._end = self._span(now)
            self.length = self._end - self._start
            self.pacer.roll(self.account.limit / workers)
        elif now - self._updated < self._interval:
            return self.pacer.price
        self._updated = now
        left = tree.available(self.account) + tree.reserved(self.account)
        return self._update(min(now - self._start, self.length), left / workers)

    def _update(self, now: float, left: float | None) -> float:
        # What the latest would have bought is computed for all of one forecaster together.
        by_shape: dict[int, list[tuple[Forecast, Terms, int]]] = {}
        for each in self._latest:
            by_shape.setdefault(id(each[0].shape), []).append(each)
        arrivals = self._arrivals
        for some in by_shape.values():
            forecasts, terms, others = zip(*some, strict=True)
            offers = offers_of(Forecast.joined(forecasts), terms, self.account.money)
            self.pacer.observe(offers.up_to(others), arrivals)
            arrivals = 0
        spent, demanded = self.spent, self.demanded
        self.spent = self.demanded = 0.0
        self._latest, self._arrivals = [], 0
        return self.pacer.update(now, spent, demanded, in_flight=self.in_flight, left=left)
