"""The page about routes: the frontier of correct answers against dollars, and where the dollars went."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shadowprice.formats.files import replacing
from shadowprice.lab.compare import Row
from shadowprice.lab.results import Results
from shadowprice.report.plot import Plot, page_figure
from shadowprice.report.render import definitions, render

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TITLE = "Correct answers against dollars"
_CAPTION = "Percent of the questions, or mean reward, against the budget per question. The clairvoyant cannot be run."
_MARKS = "osv^Dd<>ph*X"


def report(results: Results) -> str:
    rows = list(results.rows)
    budgets = sorted({row["budget"] for row in rows})
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    cells = {(row["policy"], row["budget"]): row for row in rows}
    table = [(policy, [cells.get((policy, budget)) for budget in budgets]) for policy in policies]
    best = max((row for row in rows if row["policy"] in _OURS), key=lambda row: row.get("gain") or row["solved"])
    return render(
        "routes",
        budgets=[dollars(budget) for budget in budgets],
        table=table,
        figure=page_figure([Plot("", lambda axes: _draw(rows, axes))], "routes", _TITLE, _CAPTION),
        spent=[_spent(row) for row in rows if row["policy"] in _OURS],
        routes=_routes(rows),
        best={**best, "dollars": dollars(best["budget"])},
        command=results.meta.get("command"),
        made_from=definitions((name, value) for name, value in results.meta.items() if name != "command"),
    )


def write_report(results: Results, path: Path) -> None:
    with replacing([path]) as (file,):
        file.write(report(results).encode())


_OURS = ("ours", "tokens", "routes", "routes x tokens", "scouts", "continued")


def _routes(rows: Sequence[Row]) -> list[str]:
    prefixes = ("dollars_", "share_")
    return list(dict.fromkeys(key.partition("_")[2] for row in rows for key in row if key.startswith(prefixes)))


def _spent(row: Row) -> dict[str, Any]:
    """Where the dollars of a row went: the share of each route."""
    names = _routes([row])
    parts = [float(row.get(f"dollars_{name}", row.get(f"share_{name}", 0.0)) or 0.0) for name in names]
    total = sum(parts) or 1.0
    unspent = max(0.0, 1 - float(row["dollars"]) / float(row["budget"]))
    return {
        **row,
        "shown": dollars(row["budget"]),
        "parts": [100 * part / total for part in parts],
        "left": 100 * unspent,
    }


def dollars(amount: float) -> str:
    return f"${amount:.3g}" if amount >= 1e-4 else f"${amount:.7f}".rstrip("0")


def _draw(rows: Sequence[Row], axes: Axes) -> None:
    policies = list(dict.fromkeys(row["policy"] for row in rows if not row["policy"].endswith(" alone")))
    for number, policy in enumerate(policies):
        line = sorted((row for row in rows if row["policy"] == policy), key=lambda row: float(row["budget"]))
        x, y = [row["budget"] for row in line], [row["solved"] for row in line]
        style = "-" if policy in _OURS else "--"
        axes.plot(x, y, style, marker=_MARKS[number % len(_MARKS)], label=policy)
    axes.set_xscale("log")
    axes.set_xlabel("budget, dollars per question")
    axes.set_ylabel("%")
