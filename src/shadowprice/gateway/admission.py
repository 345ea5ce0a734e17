"""How many tokens a request buys at the posted prices. Pure: no clock, no disk, no network.

Every account has a price per unit, and a request spends from several: it gets the smallest of the grants that it would
buy in each of them alone. So no account sells more than it would at its own price. (`market.posted` has what a request
buys at a price; its value multiplies what an answer is worth.)

At price 0 every request gets what it asks for. Once an account has room for a few such grants only, it gets what nine
of ten answers like it need: a grant is reserved until its answer ends, and one request must not keep all others out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from shadowprice.accounts.windows import Account
from shadowprice.cost import TOKENS, Rates
from shadowprice.market import Expected
from shadowprice.market.posted import Offers
from shadowprice.types import Forecast, Usage

__all__ = ["KINDS", "Decision", "Purse", "Terms", "decide", "decide_reading", "offers_of", "surplus"]

Kind = Literal["granted", "shrunk", "declined", "exhausted"]
KINDS: tuple[Kind, ...] = ("granted", "shrunk", "declined", "exhausted")
_LEAST = 16  # tokens: a shorter answer is of no use, and some servers refuse a lower limit
_FEW = 8  # grants
_USUAL = 0.9  # of answers have ended by then
_BYTES = 4  # of a token of a prompt, as a rule


class Terms(NamedTuple):
    """What a request asks for on one route.

    own     its own limit; cap: the most that any request gets
    prompt  the most tokens that its prompt can have
    reads   whether tokens that are read count in budgets of tokens: those of embeddings, which generate none
    """

    own: int | None
    cap: int
    value: float = 1.0
    answers: int = 1
    prompt: int = 0
    rates: Rates | None = None
    reads: bool = False

    @property
    def most(self) -> int:
        """Tokens of each answer."""
        return min(self.own or self.cap, self.cap)

    def _rates(self, account: Account) -> Rates:
        return self.rates if account.money and self.rates else TOKENS

    def cost(self, account: Account, usage: Usage) -> int:
        """In units of the account."""
        if self.reads and not account.money:
            return usage.input + usage.cached
        return self._rates(account).cost(usage)

    def bound(self, account: Account, grant: int) -> int:
        """The most that it can cost with this grant."""
        if self.reads:
            return self.rates.bound(self.prompt, 0) if account.money and self.rates else self.prompt
        return self._rates(account).bound(self.prompt, grant * self.answers)

    def room(self, account: Account, available: int) -> int:
        """Tokens that each answer can have within so many units."""
        return self._rates(account).limit(self.prompt, available) // self.answers

    def fits(self, account: Account, available: int) -> bool:
        """Whether a short answer can be had for so many units."""
        if self.reads:
            return self.bound(account, 0) <= available
        return self.room(account, available) >= min(_LEAST, self.most)

    def rate(self, money: bool) -> float:
        """Units per output token."""
        return self.rates.output / 1e6 if money and self.rates else 1.0

    def entry(self, money: bool) -> float:
        """What reading the prompt is expected to cost, in output tokens."""
        return self.rates.entry(self.prompt // _BYTES) / self.answers if money and self.rates else 0.0

    def expected(self, money: bool, grant: int, forecast: Forecast, offers: Mapping[bool, Offers] | None) -> float:
        """What it is expected to cost, in units: by its offers, or else by the mean of its length."""
        if offers is not None:
            return float(np.interp(grant, offers[money].tokens[0], offers[money].cost[0]))
        mean = float(forecast.tokens[0]) * math.exp(min(float(forecast.spread.flat[0]) ** 2 / 2, 1.0))
        return self.answers * self.rate(money) * (min(grant, mean) + self.entry(money))


def offers_of(forecast: Forecast, terms: Sequence[Terms], money: bool, most: int | None = None) -> Offers:
    """What requests can buy, in money or in tokens; `most`: if no more tokens are for sale."""
    return Offers(
        forecast,
        [each.most if most is None else most for each in terms],
        value=[each.value for each in terms],
        entry=[each.entry(money) for each in terms],
        rate=[each.answers * each.rate(money) for each in terms],
    )


class Purse(NamedTuple):
    """An account as a decision sees it: units that are available, and utility per unit."""

    account: Account
    available: int
    price: float


class Decision(NamedTuple):
    """granted: all it asked for; shrunk: less; declined: not worth the price; exhausted: a budget is used up.

    grant     tokens of each answer
    price     utility per output token
    why       the reason, for people
    expected  what it is expected to cost in each account
    others    the tokens that the other accounts would let it buy, for each account
    """

    kind: Kind
    grant: int
    price: float
    forecast: float
    why: str = ""
    expected: tuple[float, ...] = ()
    others: tuple[int, ...] = ()


def decide(forecast: Forecast, terms: Terms, purses: Sequence[Purse], offers: Mapping[bool, Offers] | None) -> Decision:
    """The decision on one request.

    offers  its own: those in tokens and, where a budget has them, in money; needed only if a price is above 0
    """
    expected, most = float(forecast.tokens[0]), terms.most
    price = max((p.price * terms.rate(p.account.money) for p in purses), default=0.0)
    rooms = [terms.room(p.account, p.available) for p in purses]
    room = min([most, *rooms])
    wanted = [most if p.price == 0 or offers is None else _bought(offers[p.account.money], p.price) for p in purses]
    allowed = [min(pair) for pair in zip(rooms, wanted, strict=True)]
    others = tuple(min([most, *allowed[:i], *allowed[i + 1 :]]) for i in range(len(purses)))

    def decided(kind: Kind, grant: int, why: str) -> Decision:
        costs = tuple(terms.expected(p.account.money, grant, forecast, offers) if grant else 0.0 for p in purses)
        return Decision(kind, grant, price, expected, why, costs, others)

    if room < min(_LEAST, most):
        return decided("exhausted", 0, f"too little is left of {_name(purses, rooms)}")
    grant, why = min([most, *wanted]), f"the price of {_name(purses, wanted)}"
    if grant > room:  # what it would buy if no more were for sale
        again = [_bought(offers_of(forecast, [terms], p.account.money, room), p.price) for p in purses if p.price > 0]
        grant, why = min([room, *again]), f"what is left of {_name(purses, rooms)}"
    if grant < 1:
        return decided("declined", 0, f"worth less than {why}")
    if min([*rooms, _FEW * most]) < _FEW * most and grant > _LEAST:
        usual = int(Expected(forecast.tokens, forecast.spread, 1.0, forecast.tail).quantile(_USUAL)[0])
        if (fair := max(usual, _LEAST, min(rooms) // _FEW)) < grant:
            grant, why = fair, f"little is left of {_name(purses, rooms)}"
    grant = min(room, max(grant, min(_LEAST, most)))
    return decided("granted", grant, "as asked") if grant == most else decided("shrunk", grant, why)


def surplus(purses: Sequence[Purse], offers: Mapping[bool, Offers]) -> float:
    """What a request gains on a route, less what that costs at the posted prices: of the dearest account."""
    found = []
    for purse in purses:
        bought = offers[purse.account.money].at(purse.price)
        found.append(float(bought.gain[0] - purse.price * bought.cost[0]))
    return min(found, default=0.0)


def decide_reading(terms: Terms, purses: Sequence[Purse]) -> Decision:
    """The decision on a request that generates nothing: it reads its whole prompt, or is refused."""
    bounds = [terms.bound(purse.account, 0) for purse in purses]
    for bound, purse in zip(bounds, purses, strict=True):
        if bound > purse.available:
            return Decision(
                "exhausted", 0, 0.0, 0.0, f"too little is left of {purse.account.name}", (0.0,) * len(purses)
            )
    return Decision("granted", terms.prompt, 0.0, 0.0, "as asked", tuple(bound / _BYTES for bound in bounds))


def _bought(offers: Offers, price: float) -> int:
    return int(offers.at(price).grant[0])


def _name(purses: Sequence[Purse], tokens: Sequence[int]) -> str:
    """The account that allows the fewest tokens."""
    return purses[tokens.index(min(tokens))].account.name
