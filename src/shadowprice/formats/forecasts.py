"""Forecasts in files: read from any source, and written for others to read."""

from __future__ import annotations

import os
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson

from shadowprice.errors import InputError, MarketError
from shadowprice.formats.jsonl import located, read_objects
from shadowprice.shape import Shape
from shadowprice.types import Forecast, Request

_FIELDS = ("tokens", "spread", "solve", "tail", "solved_tokens", "solved_spread")
_FORM = '{"custom_id": "...", "tokens": 300, "spread": 0.5, "solve": 0.8}'


class ForecastTable:
    """Forecasts by request id, from JSON lines `{"custom_id", "tokens", "spread", "solve"}`.

    All but `tokens` may be left out (spread 0.5, solve 1); `tail`, `solved_tokens` and `solved_spread` may be added
    (see `Forecast`). A `shape` on any line holds for all of them. A request without a line is an error; a line without
    a request is ignored. `shadowprice forecast` writes such files, with `forecast_line`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = path
        self._row: dict[str, int] = {}
        self._values = {name: array("d") for name in _FIELDS}
        self._shape: Shape | None = None
        for number, record in read_objects(path, form=_FORM):
            try:
                self._add(record)
            except InputError as error:
                raise located(error, path, number) from None

    def predict(self, requests: Sequence[Request]) -> Forecast:
        try:
            rows = np.array([self._row[request.id] for request in requests], dtype=np.intp)
        except KeyError as error:
            raise InputError(
                f"no forecast for custom_id {error.args[0]!r}", path=self.path, fix="add a line for it"
            ) from None
        columns: dict[str, Any] = {name: np.frombuffer(values)[rows] for name, values in self._values.items()}
        if np.all(columns["tail"] == np.inf):
            del columns["tail"]
        return Forecast(**columns, shape=self._shape)

    def _add(self, record: dict[str, Any]) -> None:
        name = record.get("custom_id")
        if isinstance(name, int) and not isinstance(name, bool):
            name = str(name)
        if not isinstance(name, str):
            raise InputError("no custom_id", fix=f"write {_FORM}")
        if name in self._row:
            raise InputError(f"a second forecast for custom_id {name!r}", fix="keep one")
        given = {field: record[field] for field in _FIELDS if record.get(field) is not None}
        if "tokens" not in given:
            raise InputError(f"no tokens for custom_id {name!r}", fix="give the median length of the answer")
        for field, value in given.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise InputError(f"{field} is not a number", fix="give a plain number")
        try:
            forecast = Forecast(**given)
        except MarketError as error:
            raise InputError(str(error), fix="fix the number") from None
        if (shape := record.get("shape")) is not None:
            self._add_shape(shape)
        self._row[name] = len(self._row)
        for field, values in self._values.items():
            value = getattr(forecast, field)
            values.append(np.inf if value is None else value.item())

    def _add_shape(self, record: Any) -> None:
        try:
            shape = Shape.from_dict(record)
        except ValueError as error:
            raise InputError(f"shape: {error}", fix="remove it, or write the forecasts again") from None
        if self._shape not in (None, shape):
            raise InputError("another shape than on an earlier line", fix="give each its own file")
        self._shape = shape


def forecast_line(custom_id: str, forecast: Forecast, position: int, route: str = "") -> bytes:
    """The line that `ForecastTable` reads as the forecast at `position`; the first has the shape of all.

    One of several forecasts of a request has the name of its route.
    """
    record: dict[str, Any] = {"custom_id": custom_id, **({"route": route} if route else {})}
    for field in _FIELDS:
        values = getattr(forecast, field)
        if values is not None and np.isfinite(value := float(values[position] if values.ndim else values)):
            record[field] = value
    if forecast.shape is not None and position == 0:
        record["shape"] = forecast.shape.to_dict()
    return orjson.dumps(record)
