"""Forecasters: from the text of a query to how long its answer will be, and whether it will be right.

    text     n-grams and structure of the question; trained in seconds, the default      forecast/text
    encoder  the paper's predictor: a fine-tuned transformer                             forecast/encoder

`Predictor` is all that planning asks for; a `Forecaster` can also be trained and kept in a folder.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Protocol, Self

from shadowprice.errors import InputError
from shadowprice.forecast.folder import description
from shadowprice.forecast.prompt_length import PromptLength
from shadowprice.formats.forecasts import ForecastTable
from shadowprice.types import Forecast, Request, Trace

__all__ = [
    "CHUNK",
    "DEFAULT",
    "KINDS",
    "ForecastTable",
    "Forecaster",
    "Predictor",
    "PromptLength",
    "default",
    "load",
    "predict_all",
]


CHUNK = 512  # queries forecast at a time


class Predictor(Protocol):
    """Called with `CHUNK` queries at a time, so that a batch need not fit in memory."""

    def predict(self, queries: Sequence[Request]) -> Forecast:
        """One forecast per query, in order; for one answer each, whatever `answers` says."""
        ...


class Forecaster(Predictor, Protocol):
    """Learns from traces. Truncated ones are censored: their answers are longer than what is recorded."""

    def fit(self, traces: Sequence[Trace]) -> Self: ...

    def adapt(self, traces: Sequence[Trace]) -> Self:
        """Another forecaster, corrected to the lengths and the success of these traces: a hundred will do."""
        ...

    def save(self, folder: str | os.PathLike[str]) -> None: ...

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Self:
        """What `save` wrote. Never executes anything from the folder."""
        ...


def _kind(module: str, name: str) -> Callable[[], type[Forecaster]]:
    return lambda: getattr(import_module(f"shadowprice.forecast.{module}"), name)


DEFAULT = Path(__file__).parent / "default"  # the folder of the forecaster that the package ships

# Imported only when used: the encoder brings torch.
KINDS: dict[str, Callable[[], type[Forecaster]]] = {
    "text": _kind("text", "Text"),
    "encoder": _kind("encoder", "Encoder"),
}


def load(folder: str | os.PathLike[str]) -> Forecaster:
    """The forecaster in a folder, whatever its kind."""
    kind, _ = description(folder)
    if kind not in KINDS:
        raise InputError(f"a forecaster of unknown kind {kind!r}", path=folder, fix="update shadowprice")
    return KINDS[kind]().load(folder)


def predict_all(predictor: Predictor, queries: Sequence[Request]) -> Forecast:
    parts = [predictor.predict(queries[i : i + CHUNK]) for i in range(0, len(queries), CHUNK)]
    return Forecast.joined(parts)


def default() -> Forecaster:
    """The forecaster that the package ships (docs/forecaster.md)."""
    return load(DEFAULT)
