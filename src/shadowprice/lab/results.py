"""Results: every row of every table, and what they were made from. Written as JSON, and as one CSV file per table.

A row is flat. Comparisons have these columns:

    table, model, stream, budget, policy
    accounting                            reserved, reclaimed (reserved, and cleared again), metered
    reclaim                               whether the accounting is reclaimed
    source                                ours, or the paper's own number
    command                               the command that runs the same policy; empty for policies with hindsight
    solved, ci_low, ci_high               percent of the queries that were answered correctly
    gain, gain_low, gain_high             points over uniform, see `compare`
    finished, cut, abandoned              percent of the queries; cut: truncated, abandoned: declined
    budget, tokens_granted, tokens_spent  tokens per query, mean over the stream and the seeds
    tokens_cut, tokens_wrong              the part of tokens_spent in truncated and in wrong answers
    budget_times_median                   the budget in median lengths of the pool
    price                                 utility per token, of policies that set one; mean over the seeds
    queries, seeds

Other tables have their own columns. `queries` holds one cell query by query.
"""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from shadowprice.errors import InputError
from shadowprice.formats.files import replacing
from shadowprice.lab.compare import Row

_FILE = "results.json"
_EARLIER_NAMES = {"right": "correct"}  # of columns, in results of version 0.1
_DIGITS = 6  # significant; later ones depend on the order in which a machine adds


@dataclass(frozen=True)
class Results:
    rows: Sequence[Row]
    meta: Mapping[str, Any] = field(default_factory=dict)
    queries: Sequence[Row] = ()

    def table(self, name: str) -> list[Row]:
        return [row for row in self.rows if row["table"] == name]

    @property
    def tables(self) -> list[str]:
        return list(dict.fromkeys(row["table"] for row in self.rows))

    def write(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Writes results.json and tables/NAME.csv; returns their paths."""
        place = Path(folder)
        tables = {name: self.table(name) for name in self.tables} | ({"queries": self.queries} if self.queries else {})
        paths = [place / _FILE, *(place / "tables" / f"{name}.csv" for name in tables)]
        try:
            (place / "tables").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot be created: {error.strerror}", path=folder, fix="choose another folder") from None
        with replacing(paths) as files:
            record = {"rows": self.rows, "meta": self.meta, "queries": self.queries}
            files[0].write(orjson.dumps(_plain(record), option=orjson.OPT_APPEND_NEWLINE))
            for file, rows in zip(files[1:], tables.values(), strict=True):
                file.write(_csv(_plain(rows)).encode())
        return paths

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> Results:
        path = Path(folder) / _FILE
        try:
            record = orjson.loads(path.read_bytes())
            rows, meta, queries = record["rows"], record["meta"], record["queries"]
            if not (isinstance(meta, dict) and all(isinstance(row, dict) and "table" in row for row in rows)):
                raise TypeError
        except FileNotFoundError:
            raise InputError(f"holds no {_FILE}", path=folder, fix="give a folder made by `reproduce`") from None
        except (ValueError, TypeError, KeyError):
            raise InputError("damaged: not what `reproduce` writes", path=path, fix="run `reproduce` again") from None
        return cls([{_EARLIER_NAMES.get(name, name): row[name] for name in row} for row in rows], meta, queries)


def refuse_other_content(folder: str | os.PathLike[str]) -> None:
    """Raises InputError if a folder holds anything but earlier results, which may be replaced."""
    place = Path(folder)
    if place.exists() and not place.is_dir():
        raise InputError("is not a folder", path=folder, fix="give a folder to write to")
    if place.is_dir() and any(place.iterdir()) and not (place / _FILE).exists():
        raise InputError("holds files that are not results", path=folder, fix="give a new folder")


def _plain(value: Any) -> Any:
    """As types that JSON has: no NaN, infinity or NumPy types; floats are rounded to their significant digits."""
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    return value


def _csv(rows: Sequence[Row]) -> str:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
