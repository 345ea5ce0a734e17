"""Budgets, rates and costs, in whole numbers.

A budget is a whole number of *units*, and `Rates` say how many units a token of each kind costs:

    TOKENS            a unit is an output token, and prompts are free, as in the paper: `200000`, `200k`, `256/query`
    ALL_TOKENS        a unit is a token of any kind: prompts count each time they are sent
    Rates.dollars()   a unit is a nano-dollar: `$5` or `$0.002/query`

The cost of a request is known only when it has ended. Its bound is known before it is sent: every token of the prompt
at the input rate, and every token that it may generate at the output rate. The bound is what is reserved.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import orjson

from shadowprice.errors import InputError
from shadowprice.types import Usage

_AMOUNT = r"(\d+(?:[_,]\d{3})*(?:\.\d+)?(?:[eE]\+?\d{1,2})?|\.\d+)"
_SYNTAX = re.compile(rf"(\$?)\s*{_AMOUNT}\s*([kKmMgG]?)\s*(/\s*query)?")
_THOUSANDS_OR_DECIMALS = re.compile(r"[1-9]\d{0,2}\.\d{3}")  # in many countries 200.000 is 200,000
_SCALE = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_NANO = 10**9  # nano-dollars in a dollar
_MILLION = 10**6
# Below this, sums of units are exact in the float64 arithmetic of the market.
LARGEST = 2**50
_FRAME = 256  # tokens that a chat template may add to a prompt


@dataclass(frozen=True, slots=True)
class Rates:
    """Units per million tokens of each kind; the default counts output tokens only."""

    input: int = 0
    cached: int = 0
    output: int = _MILLION
    unit: Literal["token", "nano-dollar"] = "token"

    @classmethod
    def dollars(cls, input: float | str, output: float | str, cached: float | str | None = None) -> Rates:
        """Rates in dollars per million tokens, as in price lists; `cached` defaults to `input`."""
        read = _nano_dollars(input, "input")
        cheaper = read if cached is None else _nano_dollars(cached, "cached input")
        generated = _nano_dollars(output, "output")
        if not generated:
            raise InputError("the rate of output is 0: an output token must cost something", fix="write it as 0.60")
        return cls(read, cheaper, generated, "nano-dollar")

    @property
    def money(self) -> bool:
        """Whether units are nano-dollars, and amounts are shown in dollars; otherwise they are tokens."""
        return self.unit == "nano-dollar"

    @property
    def priced(self) -> bool:
        """Whether more than output tokens counts: prompts may cost something, and need a bound."""
        return self is not TOKENS and self != TOKENS

    def cost(self, usage: Usage) -> int:
        """The cost of this usage in whole units, rounded up."""
        if self is TOKENS:
            return usage.output
        total = usage.input * self.input + usage.cached * self.cached + usage.output * self.output
        return -(-total // _MILLION)

    def bound(self, prompt: int, limit: int) -> int:
        """The most that a request can cost with at most `prompt` tokens of prompt and `limit` tokens of answer."""
        if self is TOKENS:
            return limit
        return -(-(prompt * max(self.input, self.cached) + limit * self.output) // _MILLION)

    def limit(self, prompt: int, units: int) -> int:
        """The largest limit whose bound is within `units`; 0 if the prompt alone exceeds them."""
        if self is TOKENS:
            return max(0, units)
        return max(0, (units * _MILLION - prompt * max(self.input, self.cached)) // self.output)

    def entry(self, prompt: int) -> float:
        """The most that reading a prompt costs, in output tokens."""
        return prompt * max(self.input, self.cached) / self.output


TOKENS = Rates()
ALL_TOKENS = Rates(_MILLION, _MILLION, _MILLION)


def _nano_dollars(rate: float | str, kind: str) -> int:
    """Dollars per million tokens in nano-dollars, rounded up."""
    try:
        nano = Fraction(str(rate)) * _NANO
    except (ValueError, ZeroDivisionError):
        nano = Fraction(-1)
    if not 0 <= nano <= LARGEST:
        raise InputError(f"the rate of {kind} is {rate!r}, not dollars per million tokens", fix="write it as 0.15")
    return -int(-nano // 1)


def prompt_bound(body: Mapping[str, Any]) -> int:
    """An upper bound on the tokens of a prompt: no tokenizer makes more tokens than there are bytes."""
    return len(orjson.dumps(body)) + _FRAME


def prompts_in_words() -> str:
    """Explains why no request may fit into a small budget that counts prompts."""
    return f"a prompt counts as its bytes and {_FRAME} tokens until a server has counted it: raise --budget"


def parse_budget(budget: int | float | str, queries: int, rates: Rates = TOKENS) -> int:
    """The budget in whole units, rounded down; `/query` multiplies it by `queries`, the number of requests."""
    if isinstance(budget, str):
        match = _SYNTAX.fullmatch(budget.strip()) if len(budget) < 100 else None
        if match is None:
            if not budget.strip():
                raise InputError("budget is empty", fix="write it as 200k, or in quotes as '$5'")
            negative = budget.strip().startswith("-") and budget.strip(" -")[:1].isdigit()
            raise InputError(
                f"budget {budget!r:.100} is {'negative' if negative else 'not an amount of tokens or money'}",
                fix="write it as 200000, 200k, 1.5M, 256/query or $5",
            )
        dollar, number, suffix, per_query = match.groups()
        if not (dollar or suffix or per_query) and _THOUSANDS_OR_DECIMALS.fullmatch(number):
            whole, _, decimals = number.partition(".")
            raise InputError(
                f"budget {budget!r} has a point before three digits", fix=f"{whole}, or {whole}{decimals}?"
            )
        if dollar and not rates.money:
            raise InputError(
                f"budget {budget!r}: the cost of tokens is unknown",
                fix="give rates in dollars per million tokens, as --rate-in 0.15 --rate-out 0.60",
            )
        amount = Fraction(re.sub("[_,]", "", number)) * _SCALE[suffix.lower()] * (queries if per_query else 1)
        if not (dollar or suffix or per_query) and amount.denominator != 1:
            raise InputError(f"budget {budget!r} is not a whole number of tokens", fix=f"{number}k, or {number}M?")
        if rates.money:
            if not dollar:
                raise InputError(f"budget {budget!r} is in tokens, and rates are in dollars", fix="write it as $5")
            amount *= _NANO
    else:
        try:
            amount = Fraction(budget)
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(f"budget {budget!r} is not an amount of tokens", fix="give a finite number") from error
    if amount < 0:
        raise InputError(f"budget {budget!r} is negative", fix="give 0 or more")
    if amount > LARGEST:
        raise InputError(f"budget {budget!r} is above {show(LARGEST, rates)}", fix="give a smaller one")
    return int(amount)


def show(units: int, rates: Rates = TOKENS) -> str:
    """An amount as text: `1,234 tokens` or `$0.0123`."""
    if not rates.money:
        return f"{units:,} token{'' if units == 1 else 's'}"
    digits = 6 if units >= 10**4 else 9  # small amounts still show two significant digits
    return f"${units / _NANO:,.{digits}f}".rstrip("0").rstrip(".")


def show_dollars(usage: Usage, prices: Rates) -> str:
    """What tokens cost, as text."""
    return show(prices.cost(usage), prices)


def show_beside(usage: Usage, rates: Rates, prices: Rates | None) -> str:
    """More about the units spent: `, $0.0123` or `; 1,234 tokens generated, 567 read`."""
    dollars = f", {show_dollars(usage, prices)}" if prices and not rates.money else ""
    read = usage.input + usage.cached
    return dollars + (f"; {show(usage.output)} generated, {read:,} read" if rates.priced else "")


def show_spent(spent: int, budget: int, rates: Rates = TOKENS) -> str:
    """`1,234 of 5,000 tokens` or `$0.0123 of $5`."""
    return f"{spent:,} of {show(budget)}" if not rates.money else f"{show(spent, rates)} of {show(budget, rates)}"
