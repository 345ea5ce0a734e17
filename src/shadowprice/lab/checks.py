"""Checks each claim on the rows of the other tables: what was measured, as text, and whether the claim holds.

Raises `NotPossible` if these traces or options do not allow the check.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from shadowprice.lab.compare import Row
from shadowprice.lab.config import Lab, NotPossible
from shadowprice.lab.simulations import PRACTICAL

_NEAR, _HALF = 1.0, 0.5  # points within which two results count as equal
_PAPERS_OWN = ("uniform", "proportional", "heuristic", "auction")


class _Rows:
    """Our rows of one table, in one accounting."""

    def __init__(self, lab: Lab, table: str, accounting: str = "reserved") -> None:
        self.median, self.accounting = lab.pool.median, accounting
        self.rows = [
            row
            for row in lab.rows
            if row["table"] == table
            and row.get("source", "ours") == "ours"
            and row.get("accounting", accounting) == accounting
        ]
        if not self.rows:
            raise NotPossible(f"table {table} is left out")

    def column(self, name: str) -> list[float]:
        return sorted({row[name] for row in self.rows})

    @property
    def streams(self) -> list[str]:
        return list(dict.fromkeys(row["stream"] for row in self.rows))

    def one(self, **where: object) -> Row:
        for row in self.rows:
            if all(row.get(name) == value for name, value in where.items()):
                return row
        raise NotPossible(f"policy {where['policy']} was not selected" if "policy" in where else "not measured")

    def correct(self, **where: object) -> float:
        return float(self.one(**where)["solved"])

    @property
    def scarce(self) -> float:
        smallest = self.column("budget")[0]
        if smallest >= 0.75 * self.median:
            raise NotPossible("no budget is well below the median length")
        return smallest

    @property
    def ample(self) -> float:
        largest = self.column("budget")[-1]
        if largest < 2 * self.median:
            raise NotPossible("no budget is twice the median length")
        return largest

    def per_stream(self, policy: str, budget: float) -> list[float]:
        return [self.correct(stream=stream, policy=policy, budget=budget) for stream in self.streams]


def _list(names: Iterable[str], values: Iterable[float], form: str = "{:.1f}") -> str:
    return ", ".join(f"{name} {form.format(value)}" for name, value in zip(names, values, strict=True))


# --- the paper's claims ------------------------------------------------------------------------


def scarce_gain(lab: Lab) -> tuple[str, bool]:
    main = _Rows(lab, "main")
    ours, uniform = main.per_stream("clear", main.scarce), main.per_stream("uniform", main.scarce)
    times = [a / b if b > 0 else np.inf if a > 0 else 1.0 for a, b in zip(ours, uniform, strict=True)]
    measured = "; ".join(
        f"{stream} {a:.1f}% against {b:.1f}% ({_times(t)})"
        for stream, a, b, t in zip(main.streams, ours, uniform, times, strict=True)
    )
    return f"correct at {main.scarce:,} tokens per query: {measured}", min(times) >= 3


def _times(ratio: float) -> str:
    return f"{ratio:.1f} times" if np.isfinite(ratio) else "against none"


def never_below(lab: Lab) -> tuple[str, bool]:
    return _below(_clear_over_uniform(_Rows(lab, "main")))


def around_the_median(lab: Lab) -> tuple[str, bool]:
    rows = _clear_over_uniform(_Rows(lab, "phase_transition"))
    cells = [row for row in rows if 0.6 <= row["budget_times_median"] <= 1.5]
    if not cells:
        raise NotPossible("no budget is near the median length")
    return _below(cells)


def _clear_over_uniform(rows: _Rows) -> list[Row]:
    cells = [row for row in rows.rows if row["policy"] == "clear" and "gain" in row]
    if not cells:
        raise NotPossible("policy clear or uniform was not selected")
    return cells


def _below(cells: Sequence[Row]) -> tuple[str, bool]:
    below = [row for row in cells if row["gain"] < 0]
    certain = [row for row in below if row["gain_high"] < 0]
    worst = min(cells, key=lambda row: float(row["gain"]))
    measured = (
        f"below uniform in {len(below)} of {len(cells)} cells; in {len(certain)} of them the 95% interval excludes 0"
    )
    if below:
        measured += (
            f"; worst {worst['solved']:.1f}%, {worst['gain']:+.1f} points, at {worst['budget']:,} tokens per query "
            f"({worst['budget_times_median']:.2f} median lengths), {worst['stream']}"
        )
    return measured, not below


def ample(lab: Lab) -> tuple[str, bool]:
    main = _Rows(lab, "main")
    gaps = [abs(a - b) for a, b in zip(*(main.per_stream(p, main.ample) for p in ("clear", "uniform")), strict=True)]
    return f"points apart at {main.ample:,} tokens per query: {_list(main.streams, gaps)}", max(gaps) <= _NEAR


def declined(lab: Lab) -> tuple[str, bool]:
    phase = _Rows(lab, "phase_transition")
    ends = [
        [phase.one(stream=s, policy="clear", budget=budget)["abandoned"] for s in phase.streams]
        for budget in (phase.scarce, phase.ample)
    ]
    measured = f"declined at {phase.scarce:,} tokens per query: {_list(phase.streams, ends[0], '{:.0f}%')}"
    measured += f"; at {phase.ample:,}: {_list(phase.streams, ends[1], '{:.0f}%')}"
    return measured, min(ends[0]) > 20 and max(ends[1]) == 0


def best_of_the_papers(lab: Lab) -> tuple[str, bool]:
    main = _Rows(lab, "main")
    others = [policy for policy in _PAPERS_OWN if any(row["policy"] == policy for row in main.rows)]
    cells = [(s, b) for s in main.streams for b in main.column("budget")]
    behind = []
    for stream, budget in cells:
        ours = main.correct(stream=stream, budget=budget, policy="clear")
        best = max(
            others, key=lambda policy: main.correct(stream=stream, budget=budget, policy=policy), default="clear"
        )
        gap = main.correct(stream=stream, budget=budget, policy=best) - ours
        if gap > _NEAR:
            behind.append((gap, best, stream, budget))
    measured = f"more than {_NEAR:g} point below another of the paper's methods in {len(behind)} of {len(cells)} cells"
    if behind:
        gap, best, stream, budget = max(behind)
        measured += f"; most below {best}, {gap:.1f} points, at {budget:,} tokens per query, {stream}"
    return measured, not behind


def never_declining(lab: Lab) -> tuple[str, bool]:
    main = _Rows(lab, "main")
    by_policy = {p: main.per_stream(p, main.scarce) for p in ("proportional", "uniform", "clear")}
    measured = "; ".join(f"{policy}: {_list(main.streams, values)}" for policy, values in by_policy.items())
    pairs = list(zip(*by_policy.values(), strict=True))
    loses = all(a < c for a, _, c in pairs) and np.mean([b - a for a, b, _ in pairs]) > 0
    return f"% correct at {main.scarce:,} tokens per query: {measured}", bool(loses)


def alpha(lab: Lab) -> tuple[str, bool]:
    rows = _Rows(lab, "alpha")
    change, slopes = 0.0, []
    for budget in rows.column("budget"):
        by_alpha = [rows.one(budget=budget, alpha=alpha) for alpha in rows.column("alpha")]
        change = max(change, float(np.ptp([row["solved"] for row in by_alpha])))
        if all(row["price"] and row["price"] > 0 for row in by_alpha):
            logs = np.log([[row["alpha"], row["price"]] for row in by_alpha])
            slopes.append(float(np.polyfit(logs[:, 0], logs[:, 1], 1)[0]))
    alphas = rows.column("alpha")
    measured = f"alpha from {alphas[0]:g} to {alphas[-1]:g}: percent correct changes by {change:.2f} points"
    measured += f", the price grows as alpha to the power {slopes[0]:.4f}" if slopes else ""
    return measured, change <= 0.1 and all(abs(slope - 1) < 1e-3 for slope in slopes)


def _best_beta(rows: _Rows, budget: float) -> tuple[Row, Row]:
    """The rows of the best fixed beta (the highest, if several are equal) and of the adaptive one."""
    fixed = [row for row in rows.rows if row["budget"] == budget and not row["adaptive"]]
    best = max(fixed, key=lambda row: (row["solved"], row["beta"]))
    return best, rows.one(budget=budget, adaptive=True)


def beta_shift(lab: Lab) -> tuple[str, bool]:
    rows = _Rows(lab, "beta")
    budgets = [rows.scarce, *(b for b in rows.column("budget") if b > rows.scarce)][:2]
    if len(budgets) < 2:
        raise NotPossible("there is only one budget")
    best = [_best_beta(rows, budget)[0] for budget in budgets]
    measured = "; ".join(
        f"at {row['budget']:,} tokens per query best with {row['beta']:.2g} ({row['solved']:.1f}%)" for row in best
    )
    return measured, best[0]["beta"] > best[1]["beta"]


def beta_adaptive(lab: Lab) -> tuple[str, bool]:
    rows = _Rows(lab, "beta")
    measured, held = [], True
    for budget in rows.column("budget"):
        best, star = _best_beta(rows, budget)
        measured.append(f"{star['solved']:.1f}% against {best['solved']:.1f}% (beta {best['beta']:.2g}) at {budget:,}")
        held &= star["solved"] >= best["solved"] - _NEAR
    return f"adaptive against best fixed: {'; '.join(measured)} tokens per query", held


def noise(lab: Lab) -> tuple[str, bool]:
    rows = _Rows(lab, "noise")
    budget = rows.scarce
    ours = [rows.correct(policy="clear", budget=budget, noise=sigma) for sigma in rows.column("noise")]
    uniform = rows.correct(policy="uniform", budget=budget, noise=0.0)
    measured = _list([f"sigma {sigma:g}:" for sigma in rows.column("noise")], ours)
    return f"% correct at {budget:,} tokens per query: {measured}; uniform {uniform:.1f}", min(ours) > uniform


def variants(lab: Lab) -> tuple[str, bool]:
    rows = _Rows(lab, "variants")
    gaps = {
        policy: max(
            abs(a - b)
            for a, b in zip(rows.per_stream(policy, rows.scarce), rows.per_stream("clear", rows.scarce), strict=True)
        )
        for policy in ("triangular", "quadratic")
    }
    anywhere = max(
        abs(row["solved"] - rows.correct(stream=row["stream"], budget=row["budget"], policy="clear"))
        for row in rows.rows
        if row["policy"] in gaps
    )
    measured = f"largest difference to CLEAR at {rows.scarce:,} tokens per query: {_list(gaps, gaps.values())} points"
    return f"{measured}; at any budget {anywhere:.1f}", max(gaps.values()) <= 2.2


def s_shape(lab: Lab) -> tuple[str, bool]:
    rows = [row for row in _Rows(lab, "s_curve").rows if row["dataset"] == "all"]
    at = np.array([row["budget_times_median"] for row in rows])
    share = np.array([row["solved"] for row in rows]) / max(1e-9, rows[-1]["solved"])
    quarter, four = (100 * float(np.interp(times, at, share)) for times in (0.25, 4.0))
    measured = (
        f"of all correct answers {quarter:.0f}% end within a quarter of the median length, {four:.0f}% within 4 times"
    )
    return measured, quarter <= 5 and four >= 95


def ranks(lab: Lab) -> tuple[str, bool]:
    row = next(row for row in _Rows(lab, "predictor").rows if row.get("dataset") == "all")
    if row["spearman"] is None:
        raise NotPossible("all lengths or all forecasts are equal")
    measured = f"Spearman {row['spearman']:.2f}, Kendall {row['kendall']:.2f} over {row['traces']:,} answers"
    return measured, row["spearman"] >= 0.5


def code(lab: Lab) -> tuple[str, bool]:
    rows = _clear_over_uniform(_Rows(lab, "code_best_of_k"))
    scarce = [row for row in rows if row["budget_times_median"] < 0.75]
    measured = "; ".join(
        f"{row['model']} at {row['budget']:,}: {row['solved']:.1f}%, {row['gain']:+.1f} points" for row in scarce
    )
    if not scarce:
        raise NotPossible("no budget is well below the median need")
    return f"over uniform, best of {rows[0]['k']}: {measured}", all(row["gain"] > 0 for row in scarce)


def second(lab: Lab) -> tuple[str, bool]:
    rows = _clear_over_uniform(_Rows(lab, "second_model"))
    measured, held = _below(rows)
    return f"{rows[0]['model']}: {measured}", held


def oracle(lab: Lab) -> tuple[str, bool]:
    main = _Rows(lab, "main")
    cells = [(s, b) for s in main.streams for b in main.column("budget")]
    above = max(
        main.correct(stream=s, budget=b, policy="clairvoyant") - main.correct(stream=s, budget=b, policy="oracle")
        for s, b in cells
    )
    exceeded = {
        (row["stream"], row["budget"])
        for row in main.rows
        if row["policy"] in PRACTICAL
        and row["solved"] > main.correct(stream=row["stream"], budget=row["budget"], policy="oracle")
    }
    measured = f"the clairvoyant, which also knows which answers are correct, is up to {above:.1f} points above it"
    return f"{measured}; a practical policy is above it in {len(exceeded)} of {len(cells)} cells", above <= 0


# --- ours --------------------------------------------------------------------------------------


def expected(lab: Lab) -> tuple[str, bool]:
    main = _Rows(lab, "main")
    gaps = [
        main.correct(stream=s, budget=b, policy="expected") - main.correct(stream=s, budget=b, policy="clear")
        for s in main.streams
        for b in main.column("budget")
    ]
    worse = sum(gap < -_NEAR for gap in gaps)
    measured = f"{np.mean(gaps):+.1f} points on average, from {min(gaps):+.1f} to {max(gaps):+.1f}"
    held = not worse and float(np.mean(gaps)) > 0
    return f"{measured}; more than {_NEAR:g} point worse in {worse} of {len(gaps)} cells", held


def metering(lab: Lab) -> tuple[str, bool]:
    rows = _clear_over_uniform(_Rows(lab, "main", "metered"))
    measured, held = _below(rows)
    return f"both metered: {measured}; {np.mean([row['gain'] for row in rows]):+.1f} points on average", held


def index(lab: Lab) -> tuple[str, bool]:
    rows = _Rows(lab, "main", "metered")
    behind = []
    gains = []
    for stream in rows.streams:
        for budget in rows.column("budget"):
            cell = {"stream": stream, "budget": budget}
            ours, clear, uniform = (rows.correct(**cell, policy=p) for p in ("index", "clear", "uniform"))
            gains.append(ours - max(clear, uniform))
            if gains[-1] < -_HALF:
                behind.append(cell)
    measured = f"all metered: {np.mean(gains):+.1f} points on average over the better of the two"
    measured += f", from {min(gains):+.1f} to {max(gains):+.1f}"
    return f"{measured}; more than half a point below it in {len(behind)} of {len(gains)} cells", not behind


def landing(lab: Lab) -> tuple[str, bool]:
    rows = [row for row in lab.rows if row["table"] == "landing" and row["policy"] == "index" and row["landing"]]
    if not rows:
        raise NotPossible("table landing is left out")
    gains = {row["budget_times_median"]: float(row["gain"]) for row in rows}
    scarce = [gain for times, gain in gains.items() if times < 1.5]
    measured = ", ".join(f"{gain:+.1f} at {times:.2g}" for times, gain in gains.items())
    held = min(gains.values()) >= -0.05 and float(np.mean(scarce)) >= 3
    return f"points gained, by budget in median lengths: {measured}", held
