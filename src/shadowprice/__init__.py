"""Spend a fixed token budget where it buys the most correct answers.

>>> from shadowprice import Forecast, allocate
>>> allocate(Forecast(tokens=[300, 900, 4000]), budget=1500).tokens.tolist()
[450, 1050, 0]
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shadowprice.cost import parse_budget
    from shadowprice.errors import InputError, MarketError, PolicyError, ShadowpriceError
    from shadowprice.forecast.encoder import EncoderForecaster as EncoderForecaster
    from shadowprice.forecast.text import TextForecaster
    from shadowprice.market import POLICIES, Clearing, allocate, clear
    from shadowprice.planning import Plan, plan
    from shadowprice.types import Allocation, Forecast, Request

__version__ = "0.1.0"

__all__ = [
    "POLICIES",
    "Allocation",
    "Clearing",
    "Forecast",
    "InputError",
    "MarketError",
    "Plan",
    "PolicyError",
    "Request",
    "ShadowpriceError",
    "TextForecaster",
    "allocate",
    "clear",
    "parse_budget",
    "plan",
]

# Names are looked up when first used, so that `shadowprice --help` need not wait for NumPy.
_HOME = {
    "shadowprice.cost": ["parse_budget"],
    "shadowprice.errors": ["InputError", "MarketError", "PolicyError", "ShadowpriceError"],
    "shadowprice.forecast.encoder": ["EncoderForecaster"],  # not in __all__: it needs an extra
    "shadowprice.forecast.text": ["TextForecaster"],
    "shadowprice.market": ["POLICIES", "Clearing", "allocate", "clear"],
    "shadowprice.planning": ["Plan", "plan"],
    "shadowprice.types": ["Allocation", "Forecast", "Request"],
}


def __getattr__(name: str) -> object:
    for module, names in _HOME.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'shadowprice' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
