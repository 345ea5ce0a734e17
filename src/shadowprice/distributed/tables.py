"""Rows of a Ray Dataset as requests with forecasts: a table with a row for each, which the later stages read.

id      of the request: from its column, or made from its text
body    the request in OpenAI form, as JSON
name    64 bits of a digest of the id, to find ids that are used twice
tokens, spread, solve, tail, solved_tokens, solved_spread      its forecast
cap     tokens that its answer may have at most; infinite without a limit
prompt  tokens that its prompt has at most; 0 if prompts cost nothing
gold, grader     the correct answer, if it is known
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from shadowprice.arrays import Array
from shadowprice.cost import TOKENS, Rates, prompt_bound
from shadowprice.errors import InputError, ShadowpriceError
from shadowprice.forecast import Predictor, default
from shadowprice.forecast.shared import SharedText
from shadowprice.formats.inputs import Fields, rows_as_input
from shadowprice.formats.requests import check_requests
from shadowprice.formats.templates import PLAIN
from shadowprice.shape import Shape
from shadowprice.types import Forecast, Request

if TYPE_CHECKING:
    import pyarrow

# Of a forecast; its shape is the same for all rows, and is not in the table.
FORECAST = tuple(each.name for each in fields(Forecast) if each.name != "shape")
NUMBERS = (*FORECAST, "cap", "prompt")


@dataclass(frozen=True)
class Reading:
    """How rows become requests: as in `formats.inputs.Input`; `max_tokens` limits every answer."""

    fields: Fields = field(default_factory=Fields)
    grader: str | None = None
    template: str = PLAIN
    system: str | None = None
    model: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    rates: Rates = TOKENS
    label: str = "dataset"


class Prepare:
    """Turns batches of rows into tables. One is made in each process, with its own copy of the forecaster."""

    def __init__(self, reading: Reading, forecaster: Predictor | None = None) -> None:
        self._reading, self._forecaster = reading, forecaster or default()
        self._shared = SharedText()

    def __call__(self, batch: pyarrow.Table) -> pyarrow.Table:
        import pyarrow

        return pyarrow.table(self.columns(batch.to_pylist()))

    def columns(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        reading = self._reading
        content = rows_as_input(
            rows,
            label=reading.label,
            fields=reading.fields,
            grader=reading.grader,
            template=reading.template,
            system=reading.system,
            model=reading.model,
            temperature=reading.temperature,
        )
        requests = [line.request for line in content.batch()]
        if requests:
            check_requests(requests, priced=reading.rates.priced)
        forecast = self._forecaster.predict(self._shared.strip_requests(requests)) if requests else Forecast([])
        most = np.inf if reading.max_tokens is None else float(reading.max_tokens)
        gold = [content.gold.get(request.id, ("", "")) for request in requests]
        if any(grader == "code" for _, grader in gold):
            raise InputError("grader code is not available on Ray", path=reading.label, fix="leave out the column gold")
        return {
            "id": [request.id for request in requests],
            "body": [orjson.dumps(request.body) for request in requests],
            "name": np.array([digest(request.id) for request in requests], dtype=np.uint64),
            **forecast_columns(forecast),
            "cap": np.array([min(most, request.max_tokens or np.inf) for request in requests], dtype=np.float64),
            "prompt": np.array(
                [prompt_bound(request.body) if reading.rates.priced else 0 for request in requests], dtype=np.float64
            ),
            "gold": [correct for correct, _ in gold],
            "grader": [grader for _, grader in gold],
        }


def digest(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")


def forecast_columns(forecast: Forecast) -> dict[str, Array]:
    """A column for each field; no tail is infinitely many degrees."""
    size = len(forecast)
    given = {name: getattr(forecast, name) for name in FORECAST}
    return {
        name: np.broadcast_to(np.inf if values is None else values, size).astype(np.float64)
        for name, values in given.items()
    }


def forecast_from(columns: Mapping[str, Array], shape: Shape | None = None) -> Forecast:
    """The forecast in these columns."""
    tail = columns["tail"]
    own: dict[str, Any] = {name: columns[name] for name in FORECAST if name != "tail"}
    return Forecast(**own, tail=None if np.isinf(tail).all() else tail, shape=shape)


def shape_of(forecaster: Predictor | None) -> Shape | None:
    """The shape of lengths that a forecaster gives to all requests; None: it gives none."""
    try:
        return (forecaster or default()).predict([Request("shape", "What is 2 + 2?")]).shape
    except ShadowpriceError:  # a table of forecasts, by request
        return None


def requests_in(table: pyarrow.Table) -> list[Request]:
    """The requests of a table, without their limits."""
    names, bodies = table.column("id").to_pylist(), table.column("body").to_pylist()
    return [Request(name, "", body=orjson.loads(body)) for name, body in zip(names, bodies, strict=True)]


def gold_in(table: pyarrow.Table) -> dict[str, tuple[str, str]]:
    """Correct answers and graders, by request."""
    columns = zip(*(table.column(name).to_pylist() for name in ("id", "gold", "grader")), strict=True)
    return {name: (gold, grader) for name, gold, grader in columns if gold}
