"""The result of a request that the market would not pay for."""

from __future__ import annotations

from shadowprice.formats.results import DECLINED
from shadowprice.types import Failure, Forecast, Result

_MESSAGE = "declined: its tokens buy more elsewhere; a larger budget would serve it"


def declined(id: str, forecast: Forecast, position: int, price: float | None) -> Result:
    """`position` is the request's place in `forecast`; `price` is None for policies that set none."""
    columns = {name: getattr(forecast, name) for name in ("tokens", "spread", "solve")}
    expected = {name: float(values[position] if values.ndim else values) for name, values in columns.items()}
    return Result(id, "declined", failure=Failure(DECLINED, _MESSAGE, {"forecast": expected, "price": price}))
