"""Spend a fixed budget of tokens or money where it buys the most correct answers, and never exceed it.

>>> from shadowprice import Forecast, allocate
>>> allocate(Forecast(tokens=[300, 900, 4000]), budget=1500).tokens.tolist()
[450, 1050, 0]
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shadowprice import distributed as ray  # noqa: F401
    from shadowprice.backends.llamacpp import LlamaCppBackend as LlamaCppBackend
    from shadowprice.backends.openai import OpenAIBackend as OpenAIBackend
    from shadowprice.backends.recorded import RecordedBackend
    from shadowprice.cost import Rates, parse_budget
    from shadowprice.errors import InputError, MarketError, PolicyError, ShadowpriceError
    from shadowprice.forecast.encoder import EncoderForecaster as EncoderForecaster
    from shadowprice.forecast.text import TextForecaster
    from shadowprice.formats.traces import read_traces, write_traces
    from shadowprice.market import POLICIES, Clearing, allocate, clear
    from shadowprice.planning import Plan, plan
    from shadowprice.runs import Run
    from shadowprice.simulation import Simulation, simulate
    from shadowprice.types import Allocation, Forecast, Request, Result, Trace, Usage

__version__ = "0.2.0"

__all__ = [
    "POLICIES",
    "Allocation",
    "Clearing",
    "Forecast",
    "InputError",
    "MarketError",
    "Plan",
    "PolicyError",
    "Rates",
    "RecordedBackend",
    "Request",
    "Result",
    "Run",
    "ShadowpriceError",
    "Simulation",
    "Summary",
    "TextForecaster",
    "Trace",
    "Usage",
    "allocate",
    "clear",
    "parse_budget",
    "plan",
    "read_traces",
    "simulate",
    "write_traces",
]

# Names are imported when first used, so that `shadowprice --help` does not wait for NumPy. Those that need an extra
# are not in __all__.
_HOME = {
    "shadowprice.backends.llamacpp": ["LlamaCppBackend"],
    "shadowprice.backends.openai": ["OpenAIBackend"],
    "shadowprice.backends.recorded": ["RecordedBackend"],
    "shadowprice.cost": ["Rates", "parse_budget"],
    "shadowprice.errors": ["InputError", "MarketError", "PolicyError", "ShadowpriceError"],
    "shadowprice.forecast.encoder": ["EncoderForecaster"],
    "shadowprice.forecast.text": ["TextForecaster"],
    "shadowprice.formats.traces": ["read_traces", "write_traces"],
    "shadowprice.market": ["POLICIES", "Clearing", "allocate", "clear"],
    "shadowprice.planning": ["Plan", "plan"],
    "shadowprice.runs": ["Run"],
    "shadowprice.summary": ["Summary"],
    "shadowprice.simulation": ["Simulation", "simulate"],
    "shadowprice.types": ["Allocation", "Forecast", "Request", "Result", "Trace", "Usage"],
}


def __getattr__(name: str) -> object:
    if name == "ray":  # `shadowprice.ray.run`: Ray itself is loaded when a function is called
        return import_module("shadowprice.distributed")
    for module, names in _HOME.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'shadowprice' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
