"""Requests with forecasts, in blocks that the processes of a cluster hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shadowprice.cost import Rates
from shadowprice.distributed.cluster import load_data, load_ray, plain_errors
from shadowprice.distributed.demand import Gathered, Sharded, find_twice
from shadowprice.distributed.tables import FORECAST, Prepare, Reading, digest, forecast_from
from shadowprice.errors import InputError
from shadowprice.forecast import Predictor
from shadowprice.types import Forecast

if TYPE_CHECKING:
    import ray.data

_BATCH = 4096  # rows that are forecast together
# What a worker serves before it is given the next: at its end some of its requests wait for the last ones.
_BLOCK, _BLOCKS = 20_000, 8  # rows at most; blocks for each worker at least


@dataclass
class Table:
    """Requests with forecasts, in blocks that other processes hold."""

    blocks: list[Any]
    rows: list[int]

    @property
    def size(self) -> int:
        return sum(self.rows)

    def named(self) -> Iterator[tuple[list[str], Forecast]]:
        """Ids and forecasts, a block at a time."""
        ray = load_ray()
        read = ray.remote(_ids_and_forecast)
        for block in self.blocks:
            names, columns = ray.get(read.remote(block))
            yield names, forecast_from(columns)


def prepare(
    dataset: ray.data.Dataset, reading: Reading, forecaster: Predictor | None, processes: int, workers: int
) -> Table:
    """Forecasts every row, in several processes with one forecaster each, and makes blocks for the workers."""
    ray = load_ray()
    dataset.context.execution_options.preserve_order = True
    pool = load_data().ActorPoolStrategy(min_size=1, max_size=max(1, processes))
    with plain_errors():
        table = dataset.map_batches(
            Prepare,
            fn_constructor_args=(reading, forecaster),
            batch_size=_BATCH,
            batch_format="pyarrow",
            compute=pool,
        ).materialize()
        count = table.count()
        if count == 0:
            raise InputError("has no rows", path=reading.label, fix="give one or more")
        blocks = max(-(-count // _BLOCK), min(count, _BLOCKS * workers))
        if table.num_blocks() < blocks:
            table = table.repartition(blocks).materialize()
        refs = table.to_arrow_refs()
        rows = ray.get([ray.remote(_rows_of).remote(block) for block in refs])
    kept = [(block, size) for block, size in zip(refs, rows, strict=True) if size]
    return Table([block for block, _ in kept], [size for _, size in kept])


def _rows_of(table: Any) -> int:
    return int(table.num_rows)


def market_of(table: Table, rates: Rates, gather: int) -> Gathered | Sharded:
    """The market of all rows; refuses ids that are used twice."""
    market = Gathered(table.blocks, rates) if table.size <= gather else Sharded(table.blocks, table.rows, rates)
    if (twice := find_twice(market.names)).size:
        _refuse_same_names(table, twice)
    return market


def _refuse_same_names(table: Table, twice: NDArray[np.uint64]) -> None:
    seen: set[str] = set()
    suspects = {int(number) for number in twice}
    for names, _ in table.named():
        for name in names:
            if digest(name) in suspects:
                if name in seen:
                    raise InputError(f"id {name!r:.80} is used twice", fix="give every row its own, in a column id")
                seen.add(name)


def _ids_and_forecast(table: Any) -> tuple[list[str], dict[str, Any]]:
    return table.column("id").to_pylist(), {name: table.column(name).to_numpy() for name in FORECAST}
