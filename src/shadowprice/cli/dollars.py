"""`reproduce --routes` and `reproduce --outcomes`: the frontier of several models, in dollars."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shadowprice.cli.common import DONE
from shadowprice.errors import InputError

if TYPE_CHECKING:
    from shadowprice.lab.compare import Row


def reproduce_dollars(options: argparse.Namespace) -> int:
    """Writes results.json, tables and a page, and prints the frontier."""
    from shadowprice.lab.results import Results, refuse_other_content

    refuse_other_content(options.out)
    rows, meta = _of_routes(options) if options.routes else _of_outcomes(options)
    results = Results(rows, {"command": shlex.join(["shadowprice", *options.arguments]), **meta})
    results.write(options.out)
    written = ["results.json", "tables/*.csv"]
    if not options.no_report and find_spec("matplotlib") and find_spec("jinja2"):
        from shadowprice.report.routes import write_report

        write_report(Results.read(options.out), Path(options.out) / "report.html")
        written.insert(0, "report.html")
    _show(rows)
    print(f"\nresults -> {options.out}: {', '.join(written)}")
    return DONE


def _of_routes(options: argparse.Namespace) -> tuple[list[Row], dict[str, Any]]:
    from shadowprice.formats.routes import read_routes
    from shadowprice.formats.traces import read_traces
    from shadowprice.lab.routes import SPLITS, budgets_between, recorded_routes, route_rows

    if not options.traces or options.outcomes:
        raise InputError("--routes needs --traces of several models, and no --outcomes", fix="give --traces FILE")
    routes = read_routes(options.routes)
    pool = recorded_routes([trace for path in options.traces for trace in read_traces(path)], routes)
    budgets = _budgets(options.budgets) or budgets_between(pool)

    def progress(done: int, total: int, step: str) -> None:
        if not options.quiet and sys.stderr is not None:
            print(f"[{done}/{total}] {step}", file=sys.stderr, flush=True)

    rows = route_rows(pool, budgets, splits=1 if options.quick else SPLITS, progress=progress)
    prices = {r.name: f"${r.rates.input / 1e9:g} in, ${r.rates.output / 1e9:g} out" for r in routes}
    return rows, {"questions": len(pool), "traces": options.traces, "dollars per million tokens": prices}


def _of_outcomes(options: argparse.Namespace) -> tuple[list[Row], dict[str, Any]]:
    from shadowprice.lab.rewards import read_outcomes, reward_rows

    if len(options.train) != 1 or not options.budgets:
        raise InputError(
            "--outcomes needs --train FILE to fit on, and --budgets in dollars per prompt", fix="give both"
        )
    fit, test = read_outcomes(options.train[0]), read_outcomes(options.outcomes)
    rows = reward_rows(fit, test, _budgets(options.budgets))
    return rows, {"fitted on": f"{options.train[0]}: {len(fit)} prompts", "prompts": len(test)}


def _budgets(texts: Sequence[str]) -> list[float]:
    try:
        budgets = [float(text.lstrip("$")) for text in texts]
    except ValueError:
        budgets = [-1.0]
    if not all(0 < budget < float("inf") for budget in budgets):
        raise InputError(f"--budgets {' '.join(texts)}: not dollars per question", fix="write them as 0.0002 0.001")
    return budgets


def _show(rows: Sequence[Row]) -> None:
    budgets = list(dict.fromkeys(row["budget"] for row in rows))
    cells = {(row["policy"], row["budget"]): row for row in rows}
    width = max(len(row["policy"]) for row in rows)
    print(f"{'%, by dollars per question':<{width}}" + "".join(f"{budget:>11.2g}" for budget in budgets))
    for policy in dict.fromkeys(row["policy"] for row in rows):
        print(f"{policy:<{width}}" + "".join(f"{cells[policy, budget]['solved']:>11.2f}" for budget in budgets))
