"""Windows: when a budget refills.

    2000                 total: never refills
    1M/day               calendar, in UTC: refills at midnight; also minute, hour, month
    1M/day rolling       what any 24 hours may use
    $5/day               the same in money, in nano-dollars

A window is counted in slots. A calendar window is one slot. A rolling one is the current slot and the 60 before it,
each a sixtieth of its length, so that any span of its length is within them: units are available again up to a
sixtieth late, and never early.
"""

from __future__ import annotations

import calendar
import re
import time
from dataclasses import dataclass

from shadowprice.cost import TOKENS, Rates, parse_budget
from shadowprice.errors import InputError

__all__ = ["Account", "Window", "parse_account"]

_SECONDS = {"minute": 60, "hour": 3600, "day": 86400}
_PARTS = 60  # slots of a rolling window
_ROLLING_MONTH = 30 * 86400
_MONEY = Rates.dollars(1, 1)  # any rates: they say that budgets are in nano-dollars
_SYNTAX = re.compile(r"(.*?)(?:/\s*(minute|hour|day|month))?(?:\s+(rolling))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Window:
    """The window of a budget. `period` is minute, hour, day or month; "" never refills."""

    period: str = ""
    rolling: bool = False

    def slot(self, now: float) -> int:
        """The slot that `now` (seconds since 1970) is in."""
        if not self.period:
            return 0
        if self.rolling:
            return int(now // (self._length() / _PARTS))
        if self.period == "month":
            date = time.gmtime(now)
            return 12 * date.tm_year + date.tm_mon - 1
        return int(now // _SECONDS[self.period])

    def first(self, slot: int) -> int:
        """The earliest slot that counts while `slot` is the current one."""
        return slot - _PARTS if self.rolling else slot

    def bounds(self, now: float) -> tuple[float, float] | None:
        """Start and end of the slot that `now` is in; None: it has no end."""
        if not self.period:
            return None
        slot = self.slot(now)
        if self.rolling:
            part = self._length() / _PARTS
            return slot * part, (slot + 1) * part
        if self.period == "month":
            return _month(slot), _month(slot + 1)
        length = _SECONDS[self.period]
        return slot * length, (slot + 1) * length

    def span(self, now: float) -> tuple[float, float] | None:
        """Start and end of the period over which the budget should last: the calendar's, even if it is rolling."""
        return Window(self.period).bounds(now)

    def _length(self) -> int:
        return _SECONDS.get(self.period, _ROLLING_MONTH)

    def __str__(self) -> str:
        return f"{self.period or 'total'}{' rolling' if self.rolling else ''}"


def _month(slot: int) -> int:
    return calendar.timegm((slot // 12, slot % 12 + 1, 1, 0, 0, 0))


@dataclass(frozen=True, slots=True)
class Account:
    """A budget at one node of the tree: at most `limit` units in each window."""

    name: str
    limit: int
    window: Window = Window()
    money: bool = False  # units are nano-dollars, not tokens


def parse_account(owner: str, budget: str) -> Account:
    """The account of `owner` with a budget such as `1M/day` or `$5/month`.

    Its name has the owner, the window and the unit, so that each budget is counted on its own.
    """
    money = budget.lstrip().startswith("$")
    match = _SYNTAX.fullmatch(budget.strip())
    amount, period, rolling = match.groups() if match else (budget, None, None)
    if rolling and not period:
        raise InputError(f"budget {budget!r:.60}: a total cannot be rolling", fix="write it as '1M/day rolling'")
    if "/" in amount:
        raise InputError(f"budget {budget!r:.60} has an unknown window", fix="write it as 2000, 1M/day or $5/month")
    window = Window(period or "", bool(rolling))
    limit = parse_budget(amount, 1, _MONEY if money else TOKENS)
    return Account(f"{owner} {window}{' dollars' if money else ''}", limit, window, money)
