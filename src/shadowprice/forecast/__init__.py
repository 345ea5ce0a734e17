"""Forecasters: from the text of a query to how long its answer will be, and whether it will be right.

`Forecaster` is all that planning asks of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from shadowprice.forecast.prompt_length import PromptLength
from shadowprice.forecast.table import ForecastTable
from shadowprice.forecast.words import Words
from shadowprice.types import Forecast, Query

__all__ = ["ForecastTable", "Forecaster", "PromptLength", "Words"]


class Forecaster(Protocol):
    """Called with a few thousand queries at a time, so that a batch need not fit in memory."""

    def predict(self, queries: Sequence[Query]) -> Forecast:
        """One forecast per query, in order; for one answer each, whatever `answers` says."""
        ...
