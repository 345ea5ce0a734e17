"""From a batch file and a budget to a batch file that keeps to it.

The file is read twice, a line at a time: once to forecast every request, once to write the plan.
What is kept in between is a few numbers and the id of each request, so that the file may be
larger than memory.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import IO, Any

import numpy as np

from shadowprice.arrays import Array
from shadowprice.cost import LARGEST, parse_budget
from shadowprice.errors import InputError
from shadowprice.forecast import CHUNK, Predictor
from shadowprice.formats.batch import BatchLine, abandoned_line, read_requests, with_limit
from shadowprice.formats.files import Target, replacing
from shadowprice.market import allocate, check_policy
from shadowprice.types import Allocation, Forecast

Progress = Callable[[Iterator[BatchLine], str], Iterator[BatchLine]]


@dataclass(frozen=True)
class Plan:
    """What was decided, for the verdict."""

    queries: int
    budget: int
    granted: int  # tokens the written limits add up to
    admitted: int
    abandoned: int
    policy: str
    price: float | None
    utility: float | None
    bound: float | None
    status: str | None
    more_budget: int  # 10% more: how many tokens that is,
    more_admitted: int  # how many more queries it would admit,
    more_utility: float | None  # and what those tokens are worth at this price
    older_limits: int  # planned chats that carry `max_tokens` as well


def plan(
    source: str | os.PathLike[str],
    budget: int | str,
    forecaster: Predictor,
    *,
    out: Target,
    errors: Target,
    policy: str = "clear",
    max_tokens: int | None = None,
    options: Mapping[str, Any] | None = None,
    limit_field: str | None = None,
    label: str | None = None,
    progress: Progress = lambda requests, label: requests,
) -> Plan:
    """Write the admitted requests of `source` with their limits to `out`, the abandoned to `errors`.

    Both files appear complete or not at all. `limit_field` names the field that limits chats
    instead of `max_completion_tokens`, and lowers the others beside it; `label` is what errors call
    the source.
    """
    chosen = dict(options or {})
    check_policy(policy, chosen)  # before a long file is read for nothing
    parse_budget(budget, 1)
    with replacing([errors, out]) as (error_file, out_file):
        before = os.stat(source)
        demand = _read(progress(read_requests(source, label=label), "forecasting"), forecaster, max_tokens)
        if len(demand.forecast) == 0:
            raise InputError("has no requests", path=label or source, fix="write one JSON object a line")
        supply = parse_budget(budget, len(demand.forecast))
        decided = demand.allocate(supply, policy, chosen)
        more = demand.allocate(min(supply + supply // 10, LARGEST), policy, chosen)

        limits = decided.tokens // demand.answers
        requests = progress(read_requests(source, label=label), "writing")
        try:
            older = _write(requests, demand.forecast, limits.tolist(), decided.price, limit_field, out_file, error_file)
        finally:
            after = os.stat(source)
            if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
                raise InputError("changed while it was being planned", path=label or source, fix="plan it again")
    admitted = int(np.count_nonzero(limits))
    return Plan(
        queries=len(demand.forecast),
        budget=supply,
        granted=int((limits * demand.answers).sum()),
        admitted=admitted,
        abandoned=len(demand.forecast) - admitted,
        policy=policy,
        price=decided.price,
        utility=decided.utility,
        bound=decided.bound,
        status=decided.status,
        more_budget=supply // 10,
        more_admitted=int(np.count_nonzero(more.tokens // demand.answers)) - admitted,
        more_utility=None if decided.price is None else decided.price * (supply // 10),
        older_limits=older,
    )


@dataclass(frozen=True)
class _Demand:
    """The numbers kept of every request; the forecast is for all its answers together."""

    forecast: Forecast
    cap: np.ndarray[Any, np.dtype[np.float64]]
    answers: np.ndarray[Any, np.dtype[np.int64]]

    def allocate(self, budget: int, policy: str, options: Mapping[str, Any]) -> Allocation:
        return allocate(self.forecast, budget, policy, max_tokens=self.cap, **options)


def _read(requests: Iterator[BatchLine], forecaster: Predictor, max_tokens: int | None) -> _Demand:
    parts: list[Forecast] = []
    cap, answers = array("d"), array("d")
    limit = np.inf if max_tokens is None else float(max_tokens)
    while chunk := list(islice(requests, CHUNK)):
        queries = [request.query for request in chunk]
        parts.append(forecaster.predict(queries))
        cap.extend(min(limit, query.max_tokens or np.inf) for query in queries)
        answers.extend(query.answers for query in queries)
    count = np.frombuffer(answers)
    forecast = Forecast.joined(parts)

    def of_all_answers(tokens: Array) -> Array:
        return np.where(count > 1, np.ceil(tokens) * count, tokens)  # limits are whole tokens per answer

    together = replace(
        forecast, tokens=of_all_answers(forecast.tokens), solved_tokens=of_all_answers(forecast.solved_tokens)
    )
    return _Demand(together, np.frombuffer(cap) * count, count.astype(np.int64))


def _write(
    requests: Iterator[BatchLine],
    forecast: Forecast,
    limits: list[int],
    price: float | None,
    limit_field: str | None,
    out_file: IO[bytes],
    error_file: IO[bytes],
) -> int:
    """Every request to one file or the other; returns how many planned ones carry the older limit too."""
    older = 0
    for i, (request, limit) in enumerate(zip(requests, limits, strict=True)):
        if limit:
            chat = request.limit_field == "max_completion_tokens"
            field = limit_field if chat and limit_field else request.limit_field
            planned = with_limit(request.raw, field, limit, lower_others=limit_field is not None)
            out_file.write(planned + b"\n")
            older += request.older_limit and field != "max_tokens"
        else:
            error_file.write(abandoned_line(request.query.id, forecast, i, price) + b"\n")
    return older
