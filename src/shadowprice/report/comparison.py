"""Tables of policies against budgets: the best practical one in bold, and what is gained over uniform."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from shadowprice.lab.compare import Row
from shadowprice.report.html import text
from shadowprice.report.rows import Rows, grouped, known, words
from shadowprice.report.style import look, order

_GAINS = ("clear", "expected", "metered")  # whose gain over uniform has a line of its own
_PAPER = "paper"


def comparison(rows: Rows, usual: str | None = None) -> str:
    """A table for every model and stream; the paper's own figures below ours, or folded away where budgets differ.

    The `usual` model is not named.
    """
    ours, theirs = ([row for row in rows if (row.get("source") == _PAPER) is paper] for paper in (False, True))
    budgets = {row["budget"] for row in ours}
    beside = [row for row in theirs if row["budget"] in budgets]
    shown = "".join(
        f'<div class="one"><h4>{text(_heading(model, stream, usual))}</h4>'
        + _table(some, [row for row in beside if row["stream"] == stream])
        + "</div>"
        for (model, stream), some in grouped(ours, "model", "stream").items()
    )
    apart = [row for row in theirs if row not in beside or not any(o["stream"] == row["stream"] for o in ours)]
    return f'<div class="tables">{shown}</div>{_folded(apart)}'


def _heading(model: Any, stream: Any, usual: str | None) -> str:
    return words(stream) if model == usual else f"{words(stream)}, {model}"


def _folded(rows: Rows) -> str:
    """The paper's figures at budgets that are not ours."""
    if not rows:
        return ""
    models = ", ".join(dict.fromkeys(str(row["model"]) for row in rows))
    tables = "".join(
        f'<div class="one"><h4>{text(words(stream))}</h4>{_table([], some)}</div>'
        for (stream,), some in grouped(rows, "stream").items()
    )
    summary = f"<summary>The paper's own figures ({text(models)})</summary>"
    return f'<details>{summary}<div class="tables">{tables}</div></details>'


def _table(ours: Rows, theirs: Rows) -> str:
    budgets = sorted({row["budget"] for row in ours or theirs})
    times = {row["budget"]: row.get("budget_times_median") for row in ours}
    head = "".join(f'<th scope="col">{budget:,g}{_times(times.get(budget))}</th>' for budget in budgets)
    groups = grouped(ours, "accounting")
    bodies = [_group(some, budgets, _named(accounting, groups)) for (accounting,), some in groups.items()]
    if theirs:
        model = theirs[0].get("model")
        bodies.append(_group(theirs, budgets, f"the paper's, {model}" if ours else "", quiet=bool(ours)))
    return (
        f'<div class="scroll"><table><thead><tr><th scope="col">tokens per query</th>{head}</tr></thead>'
        f"{''.join(bodies)}</table></div>"
    )


def _times(times: float | None) -> str:
    return f"<small>{times:.2g} ×</small>" if times is not None else ""


def _named(accounting: Any, groups: dict[tuple[Any, ...], Any]) -> str:
    return f"{accounting} accounting" if len(groups) > 1 else ""


def _group(rows: Rows, budgets: Sequence[float], title: str, *, quiet: bool = False) -> str:
    cells = {(row["policy"], row["budget"]): row for row in rows}
    policies = sorted({row["policy"] for row in rows}, key=order)
    best = {budget: best_practical(row for row in rows if row["budget"] == budget) for budget in budgets}
    lines = [
        _line(look(policy).name, "" if look(policy).practical else "quiet")
        + "".join(_solved(cells.get((policy, budget)), best[budget]) for budget in budgets)
        + "</tr>"
        for policy in policies
    ]
    for policy in _GAINS:
        if policy in policies and "uniform" in policies:
            gains = "".join(_gain(cells.get((policy, b)), cells.get(("uniform", b))) for b in budgets)
            lines.append(f"{_line(f'gain of {look(policy).name}', 'gain')}{gains}</tr>")
    heading = f'<tr class="group"><th scope="rowgroup" colspan="{len(budgets) + 1}">{text(title)}</th></tr>'
    kind = "quiet" if quiet else ""
    return f'<tbody class="{kind}">{heading if title else ""}{"".join(lines)}</tbody>'


def _line(title: str, kind: str) -> str:
    return f'<tr class="{kind}"><th scope="row">{text(title)}</th>'


def best_practical(rows: Iterable[Row]) -> float | None:
    """The highest share solved by a policy that knows no answer beforehand."""
    return max((row["solved"] for row in known(rows, "solved") if look(row["policy"]).practical), default=None)


def _solved(row: Row | None, best: float | None) -> str:
    if row is None or row.get("solved") is None:
        return "<td></td>"
    value = f"{row['solved']:.1f}"
    if best is not None and look(row["policy"]).practical and value == f"{best:.1f}":
        value = f"<b>{value}</b>"
    return f"<td>{value}{_interval(row.get('ci_low'), row.get('ci_high'))}</td>"


def _interval(low: float | None, high: float | None) -> str:
    told = "" if low is None or high is None else f"<small>{low:.1f} to {high:.1f}</small>"
    return told.replace("-", "−")


def gain(row: Row, uniform: Row | None) -> float | None:
    """Points over uniform: as the row says, else the difference."""
    if row.get("gain") is not None:
        return float(row["gain"])
    if uniform is None or uniform.get("solved") is None or row.get("solved") is None:
        return None
    return float(row["solved"] - uniform["solved"])


def _gain(row: Row | None, uniform: Row | None) -> str:
    """Coloured only where the interval, if there is one, leaves no doubt about the sign."""
    points = None if row is None else gain(row, uniform)
    if row is None or points is None:
        return "<td></td>"
    low, high = row.get("gain_low"), row.get("gain_high")
    sure = low is None or high is None or low > 0 or high < 0
    colour = "" if not sure or round(points, 1) == 0 else ' class="up"' if points > 0 else ' class="down"'
    sign = "+" if round(points, 1) > 0 else "−" if round(points, 1) < 0 else "±"
    return f"<td{colour}>{sign}{abs(points):.1f}{_interval(low, high)}</td>"
