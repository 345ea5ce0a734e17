"""Tables of policies against budgets: the best practical policy in bold, and the gain over uniform."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from shadowprice.lab.compare import Row
from shadowprice.report.labels import Variant, by_accounting, by_variant
from shadowprice.report.render import fixed, signed
from shadowprice.report.rows import Rows, from_paper, grouped, known, words

_GAINS = ("clear", "expected", "index")  # policies whose gain over uniform has a line


class Cell(NamedTuple):
    text: str = ""
    kind: str = ""  # best, up, down
    interval: str = ""


@dataclass(frozen=True)
class Line:
    title: str
    cells: Sequence[Cell]  # one per budget
    kind: str = ""  # hindsight, gain
    command: str = ""  # does the same live, at the first budget


@dataclass(frozen=True)
class Table:
    heading: str
    budgets: Sequence[tuple[float, float | None]]  # tokens per query, and the same in median lengths
    groups: Sequence[tuple[str, Sequence[Line]]]  # one per accounting
    paper: tuple[str, Sequence[Line]] | None  # the paper's own numbers


def compared(rows: Rows, model: str | None = None) -> tuple[list[Table], list[Table]]:
    """A table for every model and stream, and tables of the paper's numbers at other budgets or on other streams.

    Headings do not repeat the page's `model`.
    """
    ours = [row for row in rows if not from_paper(row)]
    cells = {(row["stream"], row["budget"]) for row in ours}
    beside = [row for row in rows if from_paper(row) and (row["stream"], row["budget"]) in cells]
    apart = [row for row in rows if from_paper(row) and (row["stream"], row["budget"]) not in cells]
    tables = []
    for (name, stream), of_stream in grouped(ours, "model", "stream").items():
        heading = words(stream) if name == model else f"{words(stream)}, {name}"
        tables.append(_table(heading, of_stream, [row for row in beside if row["stream"] == stream]))
    return tables, [_table(words(stream), of_stream, []) for (stream,), of_stream in grouped(apart, "stream").items()]


def _table(heading: str, rows: Rows, theirs: Rows) -> Table:
    medians = {row["budget"]: row.get("budget_times_median") for row in rows}
    budgets = sorted(medians)
    accountings = by_accounting(rows)
    title = "{} accounting" if len(accountings) > 1 else ""
    groups = [
        (title.format(accounting), _lines(of_accounting, budgets)) for accounting, of_accounting in accountings.items()
    ]
    paper = (f"the paper's, {theirs[0].get('model')}", _lines(theirs, budgets)) if theirs else None
    return Table(heading, [(budget, medians[budget]) for budget in budgets], groups, paper)


def _lines(rows: Rows, budgets: Sequence[float]) -> list[Line]:
    variants = {variant: {row["budget"]: row for row in of_variant} for variant, of_variant in by_variant(rows).items()}
    best: dict[float, float] = {}
    for row in known(rows, "solved"):
        if not Variant.of(row).hindsight:
            best[row["budget"]] = max(row["solved"], best.get(row["budget"], 0.0))
    lines = []
    for variant, cells in variants.items():
        practical = {} if variant.hindsight else best
        shown = [_correct(cells.get(budget), practical.get(budget)) for budget in budgets]
        command = next((row["command"] for _, row in sorted(cells.items()) if row.get("command")), "")
        lines.append(Line(variant.label(), shown, "hindsight" if variant.hindsight else "", command))
    for variant, cells in variants.items():
        if variant.landing and not variant.hindsight:
            shown = [_gain(cells.get(budget), None) for budget in budgets]
            lines.append(Line(f"gain of landing, {variant._replace(landing=False).label()}", shown, "gain"))
            continue
        uniform = variants.get(Variant("uniform", variant.reclaim)) or variants.get(Variant("uniform"))
        if variant.policy in _GAINS and uniform:
            shown = [_gain(cells.get(budget), uniform.get(budget)) for budget in budgets]
            lines.append(Line(f"gain of {variant.label()}", shown, "gain"))
    return lines


def _correct(row: Row | None, best: float | None) -> Cell:
    if row is None or row.get("solved") is None:
        return Cell()
    text = fixed(row["solved"])
    kind = "best" if best is not None and text == fixed(best) else ""
    return Cell(text, kind, _interval(row.get("ci_low"), row.get("ci_high")))


def gain(row: Row, uniform: Row | None) -> float | None:
    """Points over uniform: from the row itself, otherwise the difference."""
    if row.get("gain") is not None:
        return float(row["gain"])
    if uniform is None or uniform.get("solved") is None or row.get("solved") is None:
        return None
    return float(row["solved"] - uniform["solved"])


def _gain(row: Row | None, uniform: Row | None) -> Cell:
    """Coloured only where the interval, if there is one, excludes zero."""
    points = None if row is None else gain(row, uniform)
    if row is None or points is None:
        return Cell()
    low, high = row.get("gain_low"), row.get("gain_high")
    certain = low is None or high is None or low > 0 or high < 0
    kind = "" if not certain or round(points, 1) == 0 else "up" if points > 0 else "down"
    return Cell(signed(points), kind, _interval(low, high))


def _interval(low: Any, high: Any) -> str:
    return "" if low is None or high is None else f"{fixed(low)} to {fixed(high)}"
