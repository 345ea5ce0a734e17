"""The report of a reproduction: one HTML text that needs nothing else, the verdict first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from shadowprice.lab.compare import Row
from shadowprice.lab.experiments import EXPERIMENTS
from shadowprice.lab.results import Results
from shadowprice.report.comparison import best_practical, comparison, gain
from shadowprice.report.figures import FIGURES, drawn
from shadowprice.report.html import Column, definitions, facts, figure, page, records, section, table, text
from shadowprice.report.panels import Panel, page_figure
from shadowprice.report.rows import grouped, known, words
from shadowprice.report.style import look

_COMPARED = ("main", "second_model", "code_best_of_k", "variants")
_HOW_TO_READ = (
    " In bold the best policy that could be used: the oracle and the clairvoyant know what nobody knows beforehand. "
    "Below each budget it stands in median lengths of an answer. Small figures are 95% intervals; a gain over uniform "
    "is coloured where its interval leaves no doubt."
)
_FIRST, _APART = "frontier", ("calibration", "waterfall")  # figures with a section of their own
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
    Column("solved", "right, %", digits=1),
    Column("mean_tokens", "mean"),
    Column("median_tokens", "median"),
    Column("truncated", "cut"),
]
_DATASETS_ABOUT = "Mean and median length in tokens; how many answers were cut, by their recording or by the cap."
_WATERFALL = [
    Column("policy", "policy", "text"),
    Column("accounting", "accounting", "text"),
    Column("granted", "granted"),
    Column("used", "used"),
    Column("unused", "not used"),
    Column("reclaimed", "reclaimed"),
    Column("truncated", "cut off"),
    Column("wrong", "wrong"),
    Column("right", "right"),
    Column("abandoned", "queries abandoned, %", digits=1),
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
    """One self-contained HTML text."""
    meta = results.meta
    about = [str(meta.get("model") or ""), f"{meta['queries']:,} queries a stream" if meta.get("queries") else ""]
    verdict, lead = _verdict(results)
    return page(
        title=f"{about[0] or 'A reproduction'}: shadowprice",
        eyebrow=" · ".join(["shadowprice reproduce", *filter(None, about)]),
        verdict=verdict,
        lead=f'<p class="lead">{lead}</p>{facts(_facts(results))}',
        body="\n".join(_sections(results)),
        footer="Made by <code>shadowprice reproduce</code>. Beside this file: results.json, tables as CSV, figures as "
        "SVG and PNG.",
    )


def write_report(results: Results, path: Path) -> None:
    from shadowprice.formats.files import replacing

    with replacing([path]) as (file,):
        file.write(report(results).encode())


# --- the verdict -------------------------------------------------------------------------------


def _verdict(results: Results) -> tuple[str, str]:
    """What a reader should know after five seconds, and after twenty."""
    whole = known(_ours(results, "main"), "solved")
    rows = [row for row in whole if row.get("accounting", "reserved") == "reserved"]
    cell = results.meta.get("queries_are_of") or {}
    streams, budgets = {row["stream"] for row in rows}, sorted({row["budget"] for row in rows})
    if not budgets:
        return "No comparison of policies was made.", ""
    stream = cell.get("stream") if cell.get("stream") in streams else rows[0]["stream"]
    budget = cell.get("budget") if cell.get("budget") in budgets else budgets[0]
    here = {row["policy"]: row for row in rows if row["stream"] == stream and row["budget"] == budget}
    ours = here.get("clear") or max(here.values(), key=lambda row: row["solved"] * look(row["policy"]).practical)
    uniform = here.get("uniform")
    name = text(look(ours["policy"]).label)
    lost = uniform is not None and ours["solved"] < uniform["solved"]
    solves = f'<b class="{"down" if lost else ""}">{name} solves {ours["solved"]:.1f}%</b>'
    said = f"With {budget:,g} tokens per query, {solves}"
    if uniform is None or uniform is ours:
        return f"{said} of the queries.", _beyond(here, ours)
    verdict = f"{said} of the queries where uniform solves {uniform['solved']:.1f}%."
    metered = [row for row in whole if row["stream"] == stream and row["budget"] == budget and row not in rows]
    lead = [_how_much(ours, uniform), _beyond(here, ours), _metered(metered), _everywhere(rows, ours)]
    return verdict, " ".join(filter(None, lead))


def _how_much(ours: Row, uniform: Row) -> str:
    points = gain(ours, uniform) or 0.0
    sure = ""
    if ours.get("gain_low") is not None:
        sure = f", 95% interval {ours['gain_low']:+.1f} to {ours['gain_high']:+.1f}".replace("-", "−")
    if points > 0 and uniform["solved"] > 0 and ours["solved"] >= 1.2 * uniform["solved"]:
        return f"That is <b>{ours['solved'] / uniform['solved']:.1f} times</b> as many ({points:+.1f} points{sure})."
    return f"A difference of {points:+.1f} points{sure}.".replace("of -", "of −")


def _beyond(here: Mapping[str, Row], ours: Row) -> str:
    said = []
    best = best_practical(here.values())
    first = next((row for row in here.values() if row["solved"] == best and look(row["policy"]).practical), ours)
    if first["policy"] != ours["policy"] and best is not None and best > ours["solved"]:
        said.append(f"Best of all practical policies is {text(look(first['policy']).label)}, {best:.1f}%.")
    if oracle := here.get("oracle"):
        said.append(f"Knowing every length beforehand would solve {oracle['solved']:.1f}%.")
    return " ".join(said)


def _metered(rows: Sequence[Row]) -> str:
    """What the index reaches, and CLEAR beside it: metered is compared with metered only."""
    solved = {row["policy"]: row["solved"] for row in rows}
    if "metered" not in solved:
        return ""
    other = f", CLEAR {solved['clear']:.1f}%" if "clear" in solved else ""
    return f"Where only tokens that are generated count, serving by index solves {solved['metered']:.1f}%{other}."


def _everywhere(rows: Sequence[Row], ours: Row) -> str:
    """Over all streams and budgets: where the gain is beyond doubt, and where it is a loss."""
    cells = known((row for row in rows if row["policy"] == ours["policy"]), "gain", "gain_low", "gain_high")
    if not cells:
        return ""
    above = sum(row["gain_low"] > 0 for row in cells)
    below = [row for row in cells if row["gain_high"] < 0]
    lost = ", ".join(f"{budget:,g}" for budget in sorted({row["budget"] for row in below}))
    where = f" (at {lost} tokens per query)" if below else ""
    return (
        f"Over {len(cells)} streams and budgets it is above uniform, beyond the 95% interval, in {above}, and below in "
        f"{len(below)}{where}."
    )


def _facts(results: Results) -> list[tuple[str, str]]:
    meta, pairs = results.meta, []
    claims = [row["held"] for row in results.table("findings") if row.get("claimed_by") != "ours"]
    if tested := [held for held in claims if held != "not tested"]:
        pairs.append(("claims of the paper that held", f"{tested.count('yes')} of {len(tested)}"))
    scored = next((row for row in _ours(results, "predictor") if row.get("spearman") is not None), None)
    if scored:
        pairs.append(("rank correlation of the forecast", f"{scored['spearman']:.2f}"))
    for field, name in (("questions", "questions"), ("cap", "cap, tokens"), ("median_tokens", "median answer, tokens")):
        if isinstance(meta.get(field), int | float):
            pairs.append((name, f"{meta[field]:,.0f}"))
    seeds = meta.get("seeds")
    if seeds:
        pairs.append(("seeds", f"{len(seeds) if isinstance(seeds, list) else seeds}"))
    return pairs


# --- sections ----------------------------------------------------------------------------------


def _ours(results: Results, name: str) -> list[Row]:
    return [row for row in results.table(name) if row.get("source") != "paper"]


def _sections(results: Results) -> list[str]:
    pictures = drawn(results.rows)
    found = []
    if _FIRST in pictures:
        found.append(section(_FIRST, FIGURES[_FIRST].title, _figure(_FIRST, pictures[_FIRST], heading=False)))
    if rows := results.table("findings"):
        about = text(EXPERIMENTS["findings"].caption)
        found.append(section("findings", "What held and what did not", table(_FINDINGS, rows, "stack"), about=about))
    for name in _COMPARED:
        if _ours(results, name):
            found.append(_comparison(name, results))
    if rows := results.table("datasets"):
        found.append(section("datasets", "Datasets", *_datasets(rows), about=_DATASETS_ABOUT))
    others = [name for name in pictures if name != _FIRST and name not in _APART]
    if others:
        found.append(section("figures", "Figures", *(_figure(name, pictures[name]) for name in others)))
    for name in _APART:
        if name in pictures:
            parts = [_figure(name, pictures[name], heading=False)]
            if name == "waterfall":
                parts.append(_waterfall(results))
            found.append(section(name, FIGURES[name].title, *parts))
    if results.queries:
        found.append(_queries(results))
    found.append(_made_from(results))
    return found


def _figure(name: str, panels: list[Panel], *, heading: bool = True) -> str:
    picture = FIGURES[name]
    of_paper = EXPERIMENTS[name].paper if name in EXPERIMENTS else ""
    caption = f"{picture.caption} In the paper: {of_paper}." if of_paper else picture.caption
    return figure(page_figure(panels, name, picture.title), caption, picture.title if heading else "")


def _comparison(name: str, results: Results) -> str:
    experiment = EXPERIMENTS[name]
    about = experiment.caption + (f" In the paper: {experiment.paper}." if experiment.paper else "")
    if name == _COMPARED[0]:
        about += _HOW_TO_READ
    tables = comparison(results.table(name), results.meta.get("model"))
    return section(name.replace("_", "-"), experiment.title, tables, about=text(about))


def _datasets(rows: list[Row]) -> list[str]:
    ours, theirs = ([row for row in rows if (row.get("source") == "paper") is paper] for paper in (False, True))
    told = "<details><summary>The paper's own figures</summary>"
    return [_by_model(ours)] + ([f"{told}{_by_model(theirs)}</details>"] if theirs else [])


def _by_model(rows: list[Row]) -> str:
    tables = (
        f'<div class="one"><h4>{text(model)}</h4>{table(_DATASETS, some)}</div>'
        for (model,), some in grouped(rows, "model").items()
    )
    return f'<div class="tables">{"".join(tables)}</div>'


def _waterfall(results: Results) -> str:
    """The figures behind the bars, with what the bars do not show."""
    compared = {(row["stream"], row["budget"], row["policy"], row["accounting"]): row for row in _ours(results, "main")}
    rows = []
    for row in results.table("waterfall"):
        whole = compared.get((row["stream"], row["budget"], row["policy"], row["accounting"]), {})
        n = row["tokens"] / row["budget"] if row["budget"] else 0
        used = row["right"] + row["wrong"] + row["truncated"]
        granted = round(whole["tokens_granted"] * n) if whole.get("tokens_granted") is not None else None
        back = None if granted is None else granted - used
        reserved = row["accounting"] == "reserved"
        told = {"unused": back if reserved else None, "reclaimed": None if reserved else back}
        name = {"policy": look(row["policy"]).label, "granted": granted, "used": used}
        rows.append({**row, **name, **told, "abandoned": whole.get("abandoned")})
    where = results.table("waterfall")[0]
    about = (
        f"Tokens of a whole stream ({words(where['stream'])}, {where['budget']:,g} tokens per query). Metered, what is "
        "not used is reclaimed: it is granted again."
    )
    return f'<p class="about">{text(about)}</p>{table(_WATERFALL, rows)}'


def _queries(results: Results) -> str:
    cell = results.meta.get("queries_are_of") or {}
    told = [str(look(str(cell["policy"])).label) if cell.get("policy") else "", words(cell.get("stream") or "")]
    told += [f"{cell['budget']:,g} tokens per query" if cell.get("budget") else "", str(cell.get("accounting") or "")]
    rows = [
        {**row, "chance": None if row.get("forecast_solve") is None else 100 * row["forecast_solve"]}
        for row in results.queries
    ]
    about = text(", ".join(filter(None, told)) + ". Forecasts have seen none of these questions.")
    return section("queries", "Every query", records("query-table", _QUERIES, rows), about=about)


def _made_from(results: Results) -> str:
    meta = dict(results.meta)
    command = meta.pop("command", None)
    parts = [f"<pre>{text(command)}</pre>"] if command else []
    notes = [str(note) for note in meta.pop("notes", None) or []]
    for name, why in (meta.pop("left_out", None) or {}).items():
        notes.append(f"left out: {EXPERIMENTS[name].title if name in EXPERIMENTS else name}: {why}")
    if notes:
        parts.append(f"<ul>{''.join(f'<li>{text(note)}</li>' for note in notes)}</ul>")
    pairs = ((words(name), value) for name, value in meta.items() if value not in (None, "", [], {}))
    return section("made-from", "What this was made from", *parts, definitions(pairs))
