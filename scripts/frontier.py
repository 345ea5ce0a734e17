"""What the README shows of a recorded `shadowprice reproduce`: the rows behind its figure and its numbers.

The record is a part of the results of the command that it names, kept in docs/frontier.json: what was
compared, the findings, and what they were made from. The figure is drawn from it by the lab's own code.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import matplotlib as mpl

import shadowprice
from shadowprice.datasets.shipped import shipped_sets, shipped_traces
from shadowprice.lab.compare import compare
from shadowprice.lab.pools import make_pool, recorded, trained_without
from shadowprice.lab.results import Results
from shadowprice.lab.streams import QUERIES
from shadowprice.report.figures import FIGURES
from shadowprice.report.plot import write_figure

COMMAND = "shadowprice reproduce --out build/reproduce"
SHOWN = (
    ("uniform", "reserved"),
    ("clear", "reserved"),
    ("expected", "reclaimed"),
    ("index", "metered"),
    ("oracle", "reserved"),
)
COMPARED = (
    *SHOWN,
    ("clear", "reclaimed"),
    ("expected", "reserved"),
    ("uniform", "metered"),
    ("clear", "metered"),
)
# Points, or tokens: other processors round differently, which may change the outcome of a query in a thousand.
_CLOSE = 0.5

Record = dict[str, Any]


def record_of(folder: Path) -> Record:
    """The part of results that is recorded."""
    results = Results.read(folder)
    if results.meta["command"] != COMMAND:
        raise SystemExit(f"{folder} was made by `{results.meta['command']}`: run `{COMMAND}`")
    rows = [row for row in results.table("frontier") if (row["policy"], row["accounting"]) in COMPARED]
    meta = {**results.meta, "matplotlib": mpl.__version__}
    return {"meta": meta, "rows": rows, "findings": results.table("findings")}


def draw(record: Record, path: Path) -> None:
    """One plot for both accountings: what they share is the tokens that were really generated."""
    rows = [
        {name: value for name, value in row.items() if name != "accounting"}
        for row in record["rows"]
        if (row["policy"], row["accounting"]) in SHOWN
    ]
    figure = FIGURES["frontier"]
    with tempfile.TemporaryDirectory() as place:
        write_figure(figure.plots(rows), figure.title, Path(place) / "figure")
        path.write_bytes((Path(place) / "figure.svg").read_bytes())


def drift(record: Record, figure: Path) -> list[str]:
    """What has changed since: the package, its data, the figure, or results, a part of which is computed again."""
    meta, problems = record["meta"], []
    if meta["shadowprice"] != shadowprice.__version__:
        problems.append(f"it was recorded by version {meta['shadowprice']}")
    shipped = {about["sha256"] for splits in shipped_sets().values() for about in splits.values()}
    if not shipped.issuperset(file["sha256"] for file in meta["files"]):
        problems.append("it was recorded on other traces than are shipped")
    if meta["matplotlib"] == mpl.__version__ and not _draws(record, figure):
        problems.append(f"{figure.name} does not show what was recorded")
    return problems + _recomputed(record)


def _draws(record: Record, figure: Path) -> bool:
    with tempfile.TemporaryDirectory() as place:
        draw(record, Path(place) / "again.svg")
        return (Path(place) / "again.svg").read_bytes() == figure.read_bytes()


def _recomputed(record: Record) -> list[str]:
    """A scarce budget and an ample one done again, on the same streams."""
    models = recorded(shipped_traces("eval"))
    forecaster, _ = trained_without(shipped_traces("train"), models)
    policies: dict[str, list[str]] = {}
    for policy, accounting in COMPARED:
        policies.setdefault(policy, []).append(accounting)
    again = compare(
        "frontier",
        make_pool(models[0], forecaster),
        streams=[record["rows"][0]["stream"]],
        budgets=record["meta"]["budgets"][1:4:2],
        policies=policies,
        seeds=len(record["meta"]["seeds"]),
        queries=QUERIES,
    )
    then = {(row["policy"], row["accounting"], row["budget"]): row for row in record["rows"]}
    problems = []
    for row in again:
        cell = row["policy"], row["accounting"], row["budget"]
        for name in ("solved", "ci_low", "ci_high", "tokens_spent"):
            if cell not in then or abs(row[name] - then[cell][name]) > _CLOSE:
                problems.append(f"{name} of {' '.join(map(str, cell))} is {row[name]:.1f} now")
    return problems
