"""The page about a reproduction: one self-contained HTML file, the verdict first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shadowprice.formats.files import replacing
from shadowprice.lab.compare import Row
from shadowprice.lab.experiments import EXPERIMENTS
from shadowprice.lab.results import Results
from shadowprice.report.comparison import Comparison, comparison, gain
from shadowprice.report.figures import FIGURES, drawn
from shadowprice.report.labels import Variant, by_variant, outcome_label, row_label
from shadowprice.report.plot import PageFigure, page_figure
from shadowprice.report.render import Column, Table, definitions, render, table
from shadowprice.report.rows import Rows, describe, from_paper, grouped, known, words

_COMPARED = ("main", "second_model", "code_best_of_k", "variants")
_FINDINGS = [
    Column("held", "held", "tag"),
    Column("claim", "claim", "text"),
    Column("where", "where", "text"),
    Column("measured", "measured here", "text"),
]
_DATASETS = [
    Column("dataset", "dataset", "text"),
    Column("tier", "tier", "text"),
    Column("questions", "questions"),
    Column("solved", "correct, %", digits=1),
    Column("mean_tokens", "mean"),
    Column("median_tokens", "median"),
    Column("truncated", "truncated"),
]
_WATERFALL = [
    Column("label", "policy", "text"),
    Column("granted", "granted"),
    Column("used", "used"),
    Column("unused", "not used"),
    Column("reclaimed", "reclaimed"),
    Column("truncated", "truncated"),
    Column("wrong", "wrong"),
    Column("right", "correct"),
    Column("abandoned", "queries declined, %", digits=1),
]
_QUERIES = [
    Column("id", "query", "text"),
    Column("outcome", "outcome", "tag"),
    Column("why", "why", "text"),
    Column("forecast_tokens", "forecast, tokens"),
    Column("chance", "chance, %"),
    Column("price", "price"),
    Column("grant", "grant, tokens"),
    Column("length", "true length"),
    Column("tier", "tier", "tag"),
    Column("dataset", "dataset", "tag"),
    Column("prompt", "question", "text"),
]


def report(results: Results) -> str:
    """The page."""
    meta, datasets = results.meta, results.table("datasets")
    settings = {name: value for name, value in meta.items() if name not in ("command", "notes", "left_out")}
    return render(
        "reproduction",
        model=meta.get("model"),
        queries_per_stream=meta.get("queries"),
        verdict=_verdict(results),
        facts=_facts(results),
        figures=_figures(results),
        findings=table(_FINDINGS, results.table("findings")),
        findings_caption=EXPERIMENTS["findings"].caption,
        comparisons=_comparisons(results),
        datasets=_by_model(row for row in datasets if not from_paper(row)),
        paper_datasets=_by_model(row for row in datasets if from_paper(row)),
        waterfall=_waterfall(results),
        queries=_queries(results),
        queries_of=_queries_of(meta.get("queries_are_of") or {}),
        command=meta.get("command"),
        notes=_notes(meta.get("notes") or [], meta.get("left_out") or {}),
        made_from=definitions((words(name), value) for name, value in settings.items()),
    )


def write_report(results: Results, path: Path) -> None:
    with replacing([path]) as (file,):
        file.write(report(results).encode())


# --- the verdict -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Everywhere:
    """Over all streams and budgets: where the gain over uniform is certain, and where it is a certain loss."""

    cells: int
    above: int
    below: int
    lost_at: Sequence[float]


@dataclass(frozen=True)
class Verdict:
    """One cell of the main comparison, and what else a reader should know; rows are those of the results."""

    budget: float
    ours: Row
    uniform: Row | None
    points: float
    better: Row | None  # a practical policy above ours
    oracle: Row | None
    index: Row | None  # metered accounting is compared with metered accounting only
    metered_clear: Row | None
    everywhere: Everywhere | None

    @property
    def ratio(self) -> float | None:
        """How many times as many as uniform, where that is worth saying."""
        if self.uniform is None or not 0 < 1.2 * self.uniform["solved"] <= self.ours["solved"] or self.points <= 0:
            return None
        return float(self.ours["solved"] / self.uniform["solved"])


def _verdict(results: Results) -> Verdict | None:
    rows = [{**row, "label": row_label(row)} for row in known(_ours(results, "main"), "solved")]
    reserved = [row for row in rows if row.get("accounting", "reserved") == "reserved"]
    if not reserved:
        return None
    cell = results.meta.get("queries_are_of") or {}
    streams, budgets = {row["stream"] for row in reserved}, {row["budget"] for row in reserved}
    stream = cell["stream"] if cell.get("stream") in streams else reserved[0]["stream"]
    budget = cell["budget"] if cell.get("budget") in budgets else min(budgets)
    here = _cell(reserved, stream, budget)
    metered = _cell([row for row in rows if row not in reserved], stream, budget)
    practical = [row for variant, row in here.items() if not variant.hindsight]
    best = max(practical or here.values(), key=lambda row: float(row["solved"]))
    ours = here.get(Variant("clear")) or best
    uniform = here.get(Variant("uniform"))
    return Verdict(
        budget=budget,
        ours=ours,
        uniform=None if uniform is ours else uniform,
        points=gain(ours, uniform) or 0.0,
        better=best if best["solved"] > ours["solved"] else None,
        oracle=here.get(Variant("oracle")),
        index=metered.get(Variant("index")),
        metered_clear=metered.get(Variant("clear")),
        everywhere=_everywhere(reserved, Variant.of(ours)),
    )


def _cell(rows: Rows, stream: Any, budget: Any) -> dict[Variant, Row]:
    here = [row for row in rows if row["stream"] == stream and row["budget"] == budget]
    return {variant: some[0] for variant, some in by_variant(here).items()}


def _everywhere(rows: Rows, variant: Variant) -> Everywhere | None:
    cells = known((row for row in rows if Variant.of(row) == variant), "gain", "gain_low", "gain_high")
    below = [row for row in cells if row["gain_high"] < 0]
    above = sum(row["gain_low"] > 0 for row in cells)
    return Everywhere(len(cells), above, len(below), sorted({row["budget"] for row in below})) if cells else None


def _facts(results: Results) -> list[tuple[str, str]]:
    meta, facts = results.meta, []
    claims = [row["held"] for row in results.table("findings") if row.get("claimed_by") != "ours"]
    if tested := [held for held in claims if held != "not tested"]:
        facts.append(("claims of the paper that held", f"{tested.count('yes')} of {len(tested)}"))
    if scored := known(_ours(results, "predictor"), "spearman"):
        facts.append(("rank correlation of the forecast", f"{scored[0]['spearman']:.2f}"))
    for field, name in (("questions", "questions"), ("cap", "cap, tokens"), ("median_tokens", "median answer, tokens")):
        if isinstance(meta.get(field), int | float):
            facts.append((name, f"{meta[field]:,.0f}"))
    if seeds := meta.get("seeds"):
        facts.append(("seeds", f"{len(seeds) if isinstance(seeds, list) else seeds}"))
    return facts


# --- sections ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ComparisonSection:
    id: str
    title: str
    caption: str
    content: Comparison
    commands: bool


def _ours(results: Results, name: str) -> list[Row]:
    return [row for row in results.table(name) if not from_paper(row)]


def _in_paper(name: str) -> str:
    place = EXPERIMENTS[name].paper if name in EXPERIMENTS else ""
    return f" In the paper: {place}." if place else ""


def _figures(results: Results) -> dict[str, PageFigure]:
    return {
        name: page_figure(
            plots,
            name,
            FIGURES[name].title,
            title=FIGURES[name].title,
            caption=FIGURES[name].caption + _in_paper(name),
        )
        for name, plots in drawn(results.rows).items()
    }


def _comparisons(results: Results) -> list[ComparisonSection]:
    found = []
    for name in _COMPARED:
        if _ours(results, name):
            rows, main = results.table(name), name == "main"
            content = comparison(rows, results.meta.get("model"), commands=main)
            caption = EXPERIMENTS[name].caption + _in_paper(name)
            commands = main and any(row.get("command") for row in rows)
            title = EXPERIMENTS[name].title
            found.append(ComparisonSection(name.replace("_", "-"), title, caption, content, commands))
    return found


def _by_model(rows: Iterable[Row]) -> list[tuple[str, Table]]:
    return [(model, table(_DATASETS, some)) for (model,), some in grouped(rows, "model").items()]


def _waterfall(results: Results) -> tuple[str, Table] | None:
    """The numbers behind the bars, with some that the bars do not show."""

    def cell(row: Row) -> tuple[Any, ...]:
        return row["stream"], row["budget"], Variant.of(row), row["accounting"]

    compared = {cell(row): row for row in _ours(results, "main")}
    rows = []
    for row in results.table("waterfall"):
        main = compared.get(cell(row), {})
        queries = row["tokens"] / row["budget"] if row["budget"] else 0
        used = row["right"] + row["wrong"] + row["truncated"]
        granted = round(main["tokens_granted"] * queries) if main.get("tokens_granted") is not None else None
        unused = None if granted is None else granted - used
        returned = row["accounting"] == "metered" or row.get("reclaim")
        more = {"unused": None if returned else unused, "reclaimed": unused if returned else None}
        more |= {"label": row_label(row), "granted": granted, "used": used, "abandoned": main.get("abandoned")}
        rows.append({**row, **more})
    return (describe(rows[0]["stream"], rows[0]["budget"]), table(_WATERFALL, rows)) if rows else None


def _queries(results: Results) -> Table | None:
    rows = [
        {
            **row,
            "outcome": outcome_label(row.get("outcome")),
            "chance": None if row.get("forecast_solve") is None else 100 * row["forecast_solve"],
        }
        for row in results.queries
    ]
    return table(_QUERIES, rows) if rows else None


def _queries_of(cell: Mapping[str, Any]) -> str:
    policy = Variant.of(dict(cell)).label() if cell.get("policy") else ""
    parts = [policy, describe(cell.get("stream"), cell.get("budget")), str(cell.get("accounting") or "")]
    return ", ".join(filter(None, parts))


def _notes(notes: Sequence[Any], left_out: Mapping[str, Any]) -> list[str]:
    titles = {name: EXPERIMENTS[name].title if name in EXPERIMENTS else name for name in left_out}
    return [*map(str, notes), *(f"left out: {titles[name]}: {why}" for name, why in left_out.items())]
