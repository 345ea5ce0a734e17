"""The page about a reproduction: one self-contained HTML file, the verdict first."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shadowprice.formats.files import replacing
from shadowprice.lab.compare import Row
from shadowprice.lab.experiments import EXPERIMENTS
from shadowprice.lab.results import Results
from shadowprice.report.comparison import compared, gain
from shadowprice.report.figures import FIGURES, drawn
from shadowprice.report.labels import Variant, accounting_of, by_variant, outcome_label, row_label
from shadowprice.report.plot import PageFigure, page_figure
from shadowprice.report.render import definitions, render
from shadowprice.report.rows import Rows, describe, from_paper, grouped, known, words

_COMPARED = ("main", "second_model", "code_best_of_k", "variants", "landing")


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
        findings=results.table("findings"),
        findings_caption=EXPERIMENTS["findings"].caption,
        comparisons=[_comparison(name, results) for name in _COMPARED if _ours(results, name)],
        datasets=grouped((row for row in datasets if not from_paper(row)), "model"),
        paper_datasets=grouped((row for row in datasets if from_paper(row)), "model"),
        waterfall=_waterfall(results),
        queries=[_query(row) for row in results.queries],
        queries_of=_queries_of(meta.get("queries_are_of") or {}),
        command=meta.get("command"),
        notes=_notes(meta),
        made_from=definitions((words(name), value) for name, value in settings.items()),
    )


def write_report(results: Results, path: Path) -> None:
    with replacing([path]) as (file,):
        file.write(report(results).encode())


def _ours(results: Results, name: str) -> list[Row]:
    return [row for row in results.table(name) if not from_paper(row)]


# --- the verdict -------------------------------------------------------------------------------


def _verdict(results: Results) -> dict[str, Any] | None:
    """One cell of the main comparison, and what else a reader should know at once."""
    rows = [{**row, "label": row_label(row)} for row in known(_ours(results, "main"), "solved")]
    reserved = [row for row in rows if accounting_of(row) in (None, "reserved")]
    if not reserved:
        return None
    cell = results.meta.get("queries_are_of") or {}
    streams, budgets = {row["stream"] for row in reserved}, {row["budget"] for row in reserved}
    stream = cell["stream"] if cell.get("stream") in streams else reserved[0]["stream"]
    budget = cell["budget"] if cell.get("budget") in budgets else min(budgets)
    here = _cell(reserved, stream, budget)
    metered = _cell([row for row in rows if row not in reserved], stream, budget)  # never compared with reserved
    practical = [row for variant, row in here.items() if not variant.hindsight]
    best = max(practical or here.values(), key=lambda row: float(row["solved"]))
    ours, uniform = here.get(Variant("clear")) or best, here.get(Variant("uniform"))
    can_be_run = [row for row in (*practical, *metered.values()) if not Variant.of(row).hindsight]
    winners = [row for row in can_be_run if Variant.of(row).policy != "uniform"]
    return {
        "budget": budget,
        "winner": max(winners, key=lambda row: float(row["solved"])) if winners else ours,
        "ours": ours,
        "uniform": None if uniform is ours else uniform,
        "points": gain(ours, uniform) or 0.0,
        "interval": (ours["gain_low"], ours["gain_high"]) if known([ours], "gain_low", "gain_high") else None,
        "best": best,
        "oracle": here.get(Variant("oracle")),
        "index": metered.get(Variant("index")),
        "metered_clear": metered.get(Variant("clear")),
        "everywhere": _everywhere([row for row in reserved if Variant.of(row) == Variant.of(ours)]),
    }


def _cell(rows: Rows, stream: Any, budget: Any) -> dict[Variant, Row]:
    here = [row for row in rows if row["stream"] == stream and row["budget"] == budget]
    return {variant: of_variant[0] for variant, of_variant in by_variant(here).items()}


def _everywhere(rows: Rows) -> dict[str, Any]:
    """Over all streams and budgets: where the gain over uniform is certain, and where it is a certain loss."""
    cells = known(rows, "gain", "gain_low", "gain_high")
    below = [row["budget"] for row in cells if row["gain_high"] < 0]
    above = sum(row["gain_low"] > 0 for row in cells)
    return {"cells": len(cells), "above": above, "below": len(below), "lost_at": sorted(set(below))}


def _facts(results: Results) -> list[tuple[str, str]]:
    meta, facts = results.meta, []
    claims = [row["held"] for row in results.table("findings") if row.get("claimed_by") != "ours"]
    if tested := [verdict for verdict in claims if verdict != "not tested"]:
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


def _notes(meta: Mapping[str, Any]) -> list[str]:
    left_out = (meta.get("left_out") or {}).items()
    titles = {name: experiment.title for name, experiment in EXPERIMENTS.items()}
    return [*(meta.get("notes") or []), *(f"left out: {titles.get(name, name)}: {why}" for name, why in left_out)]


def _caption(name: str, caption: str) -> str:
    place = EXPERIMENTS[name].paper if name in EXPERIMENTS else ""
    return f"{caption} In the paper: {place}." if place else caption


def _figures(results: Results) -> dict[str, PageFigure]:
    return {
        name: page_figure(plots, name, FIGURES[name].title, _caption(name, FIGURES[name].caption))
        for name, plots in drawn(results.rows).items()
    }


def _comparison(name: str, results: Results) -> dict[str, Any]:
    rows = results.table(name)
    tables, paper_tables = compared(rows, results.meta.get("model"))
    return {
        "name": name,
        "title": EXPERIMENTS[name].title,
        "caption": _caption(name, EXPERIMENTS[name].caption),
        "tables": tables,
        "paper_tables": paper_tables,
        "paper_models": list(dict.fromkeys(str(row["model"]) for row in rows if from_paper(row))),
        "commands": any(row.get("command") for row in rows),
    }


def _waterfall(results: Results) -> dict[str, Any] | None:
    """The numbers behind the bars, with some that the bars do not show."""

    def cell(row: Row) -> tuple[Any, ...]:
        return row["stream"], row["budget"], Variant.of(row), row["accounting"]

    main = {cell(row): row for row in _ours(results, "main")}
    rows = []
    for row in results.table("waterfall"):
        same = main.get(cell(row), {})
        queries = row["tokens"] / row["budget"] if row["budget"] else 0
        used = row["correct"] + row["wrong"] + row["truncated"]
        granted = round(same["tokens_granted"] * queries) if same.get("tokens_granted") is not None else None
        unused = None if granted is None else granted - used
        returned = row["accounting"] == "metered" or Variant.of(row).reclaim
        more = {"unused": None if returned else unused, "reclaimed": unused if returned else None}
        more |= {"label": row_label(row), "granted": granted, "used": used, "declined": same.get("abandoned")}
        rows.append({**row, **more})
    return {"cell": describe(rows[0]["stream"], rows[0]["budget"]), "rows": rows} if rows else None


def _query(row: Row) -> Row:
    chance = row.get("forecast_solve")
    more = {"outcome": outcome_label(row.get("outcome")), "chance": None if chance is None else 100 * chance}
    return {**row, **more}


def _queries_of(cell: Mapping[str, Any]) -> str:
    policy = Variant.of(dict(cell)).label() if cell.get("policy") else ""
    parts = [policy, describe(cell.get("stream"), cell.get("budget")), str(cell.get("accounting") or "")]
    return ", ".join(filter(None, parts))
