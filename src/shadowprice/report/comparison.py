"""Tables of policies against budgets: the best practical policy in bold, and the gain over uniform."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from shadowprice.lab.compare import Row
from shadowprice.report.labels import Variant, by_variant
from shadowprice.report.render import fixed, signed
from shadowprice.report.rows import Rows, from_paper, grouped, known, words

_GAINS = ("clear", "expected", "index")  # policies whose gain over uniform has a line
HINDSIGHT = "cannot be run: needs hindsight"


@dataclass(frozen=True)
class Cell:
    text: str = ""
    kind: str = ""  # best, up, down
    interval: str = ""


@dataclass(frozen=True)
class Line:
    """A policy, or a gain, at every budget. `command` does the same live; `note` says why there is none."""

    title: str
    cells: Sequence[Cell]
    kind: str = ""  # quiet, gain
    command: str = ""
    note: str = ""


@dataclass(frozen=True)
class Group:
    title: str
    lines: Sequence[Line]
    quiet: bool = False


@dataclass(frozen=True)
class ComparisonTable:
    heading: str
    budgets: Sequence[tuple[float, float | None]]  # tokens per query, and the same in median lengths
    groups: Sequence[Group]


@dataclass(frozen=True)
class Comparison:
    tables: Sequence[ComparisonTable]
    paper_tables: Sequence[ComparisonTable]  # at budgets or on streams that are not ours
    paper_models: str


def comparison(rows: Rows, model: str | None = None, *, commands: bool = False) -> Comparison:
    """A table for every model and stream; the paper's own numbers below ours, or apart where budgets differ.

    Headings do not repeat the page's `model`.
    """
    ours = [row for row in rows if not from_paper(row)]
    theirs = [row for row in rows if from_paper(row)]
    budgets, streams = {row["budget"] for row in ours}, {row["stream"] for row in ours}
    beside = [row for row in theirs if row["budget"] in budgets and row["stream"] in streams]
    apart = [row for row in theirs if row not in beside]
    tables = [
        _table(
            words(stream) if name == model else f"{words(stream)}, {name}",
            some,
            [row for row in beside if row["stream"] == stream],
            commands,
        )
        for (name, stream), some in grouped(ours, "model", "stream").items()
    ]
    paper_tables = [_table(words(stream), [], some, False) for (stream,), some in grouped(apart, "stream").items()]
    return Comparison(tables, paper_tables, ", ".join(dict.fromkeys(str(row["model"]) for row in apart)))


def _table(heading: str, ours: Rows, theirs: Rows, commands: bool) -> ComparisonTable:
    medians = {row["budget"]: row.get("budget_times_median") for row in ours}
    budgets = sorted({row["budget"] for row in ours or theirs})
    accountings = grouped(ours, "accounting")
    groups = [
        Group(f"{accounting} accounting" if len(accountings) > 1 else "", _lines(some, budgets, commands))
        for (accounting,), some in accountings.items()
    ]
    if theirs:
        title = f"the paper's, {theirs[0].get('model')}" if ours else ""
        groups.append(Group(title, _lines(theirs, budgets, False), quiet=bool(ours)))
    return ComparisonTable(heading, [(budget, medians.get(budget)) for budget in budgets], groups)


def _lines(rows: Rows, budgets: Sequence[float], commands: bool) -> list[Line]:
    best = {budget: _best_practical(row for row in rows if row["budget"] == budget) for budget in budgets}
    variants = {variant: {row["budget"]: row for row in some} for variant, some in by_variant(rows).items()}
    lines = []
    for variant, by_budget in variants.items():
        cells = [_correct(variant, by_budget.get(budget), best[budget]) for budget in budgets]
        kind = "quiet" if variant.hindsight else ""
        command = next((row["command"] for _, row in sorted(by_budget.items()) if row.get("command")), "")
        note = HINDSIGHT if variant.hindsight else ""
        lines.append(Line(variant.label(), cells, kind, command if commands else "", note if commands else ""))
    for variant, by_budget in variants.items():
        uniform = variants.get(Variant("uniform", variant.reclaim)) or variants.get(Variant("uniform"))
        if variant.policy in _GAINS and uniform:
            cells = [_gain(by_budget.get(budget), uniform.get(budget)) for budget in budgets]
            lines.append(Line(f"gain of {variant.label()}", cells, "gain"))
    return lines


def _best_practical(rows: Iterable[Row]) -> float | None:
    """The highest percentage of a policy that could be run."""
    return max((row["solved"] for row in known(rows, "solved") if not Variant.of(row).hindsight), default=None)


def _correct(variant: Variant, row: Row | None, best: float | None) -> Cell:
    if row is None or row.get("solved") is None:
        return Cell()
    text = fixed(row["solved"])
    is_best = best is not None and not variant.hindsight and text == fixed(best)
    return Cell(text, "best" if is_best else "", _interval(row.get("ci_low"), row.get("ci_high")))


def _interval(low: Any, high: Any) -> str:
    return "" if low is None or high is None else f"{fixed(low)} to {fixed(high)}"


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
