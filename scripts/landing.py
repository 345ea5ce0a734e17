"""Write the figures of docs/landing.md, from the probed answers that the package ships.

python scripts/landing.py

The rows are those of `shadowprice reproduce` (tables landing_ages and landing), with more seeds.
"""

from __future__ import annotations

from pathlib import Path

from shadowprice.datasets.shipped import shipped_traces
from shadowprice.lab.compare import Row
from shadowprice.lab.config import Lab
from shadowprice.lab.landing import landing, landing_ages
from shadowprice.lab.pools import make_pool, recorded, trained_without
from shadowprice.report.labels import row_label

PAGE = Path(__file__).resolve().parent.parent / "docs" / "landing.md"
BEGIN, END = "<!-- figures: scripts/landing.py -->\n", "<!-- end of figures -->\n"
SEEDS = 20


def main() -> None:
    models = recorded(shipped_traces("eval"))
    forecaster, _ = trained_without(shipped_traces("train"), models)
    lab = Lab([make_pool(models[0], forecaster)], models, seeds=SEEDS)
    rows = landing(lab)
    text = "\n".join([*by_age(landing_ages(lab)), "", *by_budget(rows, lab.pool.median), "", *of_probes(rows)]) + "\n"
    before, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(before + BEGIN + text + END + rest.split(END)[1])


def by_age(rows: list[Row]) -> list[str]:
    lines = [
        f"{rows[0]['queries']} evaluation questions, each answer stopped at one age, percent correct:",
        "",
        "| tokens | cut | landed |",
        "|---|---|---|",
    ]
    solved = {(row["tokens"], row["stopped"]): row["solved"] for row in rows}
    ages = dict.fromkeys(row["tokens"] for row in rows)
    return [*lines, *(f"| {age:,} | {solved[age, 'cut']:.1f} | {solved[age, 'landed']:.1f} |" for age in ages)]


def by_budget(rows: list[Row], median: float) -> list[str]:
    """A line for a policy and a budget, with and without landings; then the bounds."""
    lines = [
        f"Percent correct with and without landings, {rows[0]['seeds']} balanced streams of {rows[0]['queries']} "
        f"queries; budgets in median lengths ({median:.0f} tokens).",
        "`landed` and `spoiled` are percent of the queries; spoiled: correct without landings, and not with them.",
        "",
        "| policy | budget | without | with | gain (95%) | landed | spoiled |",
        "|---|---|---|---|---|---|---|",
    ]
    solved = {(row["policy"], row["budget"], row["landing"]): row["solved"] for row in rows}
    order = list(dict.fromkeys(row["policy"] for row in rows))
    for row in sorted(rows, key=lambda row: (order.index(row["policy"]), row["budget"])):
        if not row["landing"] and (row["policy"], row["budget"], True) in solved:
            continue  # in the line of the same with landings
        without = f"{solved[row['policy'], row['budget'], False]:.1f}"
        cells = [row_label({**row, "landing": False}), f"{row['budget_times_median']:.2g}", without]
        cells += [f"{row['solved']:.1f}" if row["landing"] else ""]
        cells += [f"{row['gain']:+.1f} ({row['gain_low']:+.1f} to {row['gain_high']:+.1f})" if "gain" in row else ""]
        cells += [f"{row['landed']:.0f}", f"{row['spoiled']:.1f}"] if "gain" in row else ["", ""]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def of_probes(rows: list[Row]) -> list[str]:
    lines = [
        "Probes that the index sends during the run, by what the training split says of them, per 100 queries, and the",
        "points that they gain against the same without them:",
        "",
        "| budget | probes | gain |",
        "|---|---|---|",
    ]
    sent = [row for row in rows if row["policy"] == "index" and row["landing"]]
    return [
        *lines,
        *(f"| {r['budget_times_median']:.2g} | {r['probes']:.1f} | {r['gain_of_probes']:+.1f} |" for r in sent),
    ]


if __name__ == "__main__":
    main()
