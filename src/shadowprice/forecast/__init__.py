"""Forecasters: from the text of a request to how long its answer will be, and whether it will be correct.

    text     n-grams and structure of the question; trained in seconds, the default      forecast/text
    frozen   the same beside what a transformer, not trained any further, says of it     forecast/frozen
    encoder  the paper's predictor: a fine-tuned transformer                             forecast/encoder
    scout    one of these, and what another model's answers to the same questions say    forecast/scout

A `Predictor` is all that planning needs; a `Forecaster` can also be trained, evaluated and saved.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from shadowprice.errors import InputError
from shadowprice.forecast.base import CHUNK, Forecaster, Predictor, predict_all
from shadowprice.forecast.folder import description
from shadowprice.forecast.prompt_length import PromptLength
from shadowprice.formats.forecasts import ForecastTable

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


def _kind(module: str, name: str) -> Callable[[], type[Forecaster]]:
    return lambda: getattr(import_module(f"shadowprice.forecast.{module}"), name)


DEFAULT = Path(__file__).parent / "default"  # the folder of the forecaster that the package ships

# Imported only when used: frozen and encoder bring torch.
KINDS: dict[str, Callable[[], type[Forecaster]]] = {
    "text": _kind("text", "TextForecaster"),
    "frozen": _kind("frozen", "FrozenForecaster"),
    "encoder": _kind("encoder", "EncoderForecaster"),
}
_SCOUT = _kind("scout", "ScoutForecaster")


def load(folder: str | os.PathLike[str]) -> Forecaster:
    """The forecaster in a folder, of any kind."""
    kind, _ = description(folder)
    class_of_kind = KINDS.get(kind) or (_SCOUT if kind == "scout" else None)
    if class_of_kind is None:
        raise InputError(f"a forecaster of unknown kind {kind!r}", path=folder, fix="update shadowprice")
    return class_of_kind().load(folder)


def default() -> Forecaster:
    """The forecaster that the package ships (docs/forecaster.md)."""
    return load(DEFAULT)
