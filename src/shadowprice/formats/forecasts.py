"""Forecasts that somebody else made, read from a file."""

from __future__ import annotations

import os
from array import array
from collections.abc import Sequence

import numpy as np
import orjson

from shadowprice.errors import InputError, MarketError
from shadowprice.types import Forecast, Request

_FIELDS = ("tokens", "spread", "solve", "tail", "solved_tokens", "solved_spread")


class ForecastTable:
    """Forecasts by query id, from JSONL lines `{"custom_id", "tokens", "spread", "solve"}`.

    All but `tokens` may be left out (spread 0.5, solve 1); `tail`, `solved_tokens` and `solved_spread`
    may be added (see `Forecast`). Lines for queries that are not asked for do no harm; a query without
    a line is an error. `shadowprice forecast` writes such files, with `forecast_line`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = path
        self._row: dict[str, int] = {}
        self._values = {name: array("d") for name in _FIELDS}
        with open(path, "rb") as lines:
            for number, line in enumerate(lines, start=1):
                text = line.removeprefix(b"\xef\xbb\xbf").strip() if number == 1 else line.strip()
                if text:
                    self._add(text, number)

    def predict(self, queries: Sequence[Request]) -> Forecast:
        try:
            rows = np.array([self._row[query.id] for query in queries], dtype=np.intp)
        except KeyError as error:
            raise InputError(
                f"no forecast for custom_id {error.args[0]!r}", path=self.path, fix="add a line for it"
            ) from None
        found = {name: np.frombuffer(values)[rows] for name, values in self._values.items()}
        if np.all(found["tail"] == np.inf):
            del found["tail"]
        return Forecast(**found)

    def _add(self, line: bytes, number: int) -> None:
        def bad(problem: str, fix: str) -> InputError:
            return InputError(problem, path=self.path, line=number, fix=fix)

        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise bad(f"not JSON: {error.msg} at column {error.colno}", "mend or remove the line") from None
        if not isinstance(record, dict) or not isinstance(record.get("custom_id"), str):
            raise bad("no custom_id", 'write {"custom_id": "...", "tokens": 300, "spread": 0.5, "solve": 0.8}')
        name = record["custom_id"]
        if name in self._row:
            raise bad(f"a second forecast for custom_id {name!r}", "keep one")
        given = {field: record[field] for field in _FIELDS if record.get(field) is not None}
        if "tokens" not in given:
            raise bad(f"no tokens for custom_id {name!r}", "give the median length of the answer")
        if wrong := [field for field, v in given.items() if isinstance(v, bool) or not isinstance(v, int | float)]:
            raise bad(f"{wrong[0]} is not a number", "give a plain number")
        try:
            forecast = Forecast(**given)
        except MarketError as error:
            raise bad(str(error), "mend the number") from None
        self._row[name] = len(self._row)
        for field, values in self._values.items():
            value = getattr(forecast, field)
            values.append(np.inf if value is None else value.item())


def forecast_line(custom_id: str, forecast: Forecast, query: int) -> bytes:
    """The line that says of one query what its forecast says."""
    told: dict[str, float] = {}
    for field in _FIELDS:
        values = getattr(forecast, field)
        if values is not None and np.isfinite(value := float(values[query] if values.ndim else values)):
            told[field] = value
    return orjson.dumps({"custom_id": custom_id, **told})
