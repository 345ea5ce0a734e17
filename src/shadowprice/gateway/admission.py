"""How many tokens a request buys at the posted price. Pure: no clock, no disk, no network.

The value of a correct answer scales its curve, so at price p a request of value v buys what one of value 1 buys at p/v.
At price 0 every request gets what it asks for. Once the budget has room for a few such grants only, it gets what nine
of ten answers like it need: a grant is reserved until its answer ends, and one request must not keep all others out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shadowprice.market import Expected
from shadowprice.types import Forecast

__all__ = ["Decision", "decide"]

_LEAST = 16  # tokens: a shorter answer is of no use, and some servers refuse a lower limit
_FEW = 8  # grants
_USUAL = 0.9  # of answers have ended by then


@dataclass(frozen=True, slots=True)
class Decision:
    """granted: all it asked for; shrunk: less; declined: not worth the price; exhausted: the budget is used up."""

    kind: Literal["granted", "shrunk", "declined", "exhausted"]
    grant: int  # tokens of each answer
    price: float
    forecast: float


def decide(
    forecast: Forecast, *, price: float, value: float, own: int | None, cap: int, available: int, answers: int = 1
) -> Decision:
    """The decision on one request.

    own        its own limit; cap: the most that any request gets
    available  tokens that are left for all its answers together
    """
    expected = float(forecast.tokens[0])
    most = min(own or cap, cap)
    room = min(most, available // answers)
    if room < min(_LEAST, most):
        return Decision("exhausted", 0, price, expected)
    curve = Expected(forecast.solved_tokens, forecast.solved_spread, forecast.solve, forecast.tail, room)
    grant = room
    if available // answers < _FEW * most:
        usual = int(Expected(forecast.tokens, forecast.spread, 1.0, forecast.tail).quantile(_USUAL)[0])
        grant = min(room, max(usual, _LEAST, available // (_FEW * answers)))
    if price > 0:
        grant = min(grant, int(curve.demand(price / value)[0])) if value > 0 else 0
    if grant < 1:
        return Decision("declined", 0, price, expected)
    return Decision("granted" if grant == most else "shrunk", grant, price, expected)
