"""What held and what did not: the paper's claims, one by one, against the rows of this reproduction.

A claim is checked on the rows of other tables, never on figures of its own; `held` is yes, no, or not tested
where these traces or settings do not allow it. What counts as holding is part of the claim's text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from shadowprice.lab.compare import Row
from shadowprice.lab.config import Lab, NotPossible
from shadowprice.lab.simulations import PRACTICAL

_NEAR, _HALF = 1.0, 0.5  # points: as good as equal
_PAPERS_OWN = ("uniform", "proportional", "heuristic", "auction")


class _Rows:
    """Our rows of one table in the reserved accounting, and how to find one."""

    def __init__(self, lab: Lab, table: str, accounting: str = "reserved") -> None:
        self.median, self.accounting = lab.pool.median, accounting
        self.rows = [
            row
            for row in lab.found
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
        raise NotPossible(f"policy {where['policy']} was not asked for" if "policy" in where else "not measured")

    def solved(self, **where: object) -> float:
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
        return [self.solved(stream=stream, policy=policy, budget=budget) for stream in self.streams]


def claims(lab: Lab) -> list[Row]:
    return [_finding(lab, *claim) for claim in CLAIMS]


def _finding(lab: Lab, claim: str, where: str, check: Callable[[Lab], tuple[str, bool]]) -> Row:
    try:
        measured, held = check(lab)
        verdict = "yes" if held else "no"
    except NotPossible as error:
        measured, verdict = str(error), "not tested"
    source = "ours" if where == "ours" else "paper"
    return {"table": "findings", "claim": claim, "where": where, "measured": measured, "held": verdict} | {
        "claimed_by": source
    }


def _list(names: Iterable[str], values: Iterable[float], form: str = "{:.1f}") -> str:
    return ", ".join(f"{name} {form.format(value)}" for name, value in zip(names, values, strict=True))


# --- the paper's claims ------------------------------------------------------------------------


def _scarce_gain(lab: Lab) -> tuple[str, bool]:
    main = _Rows(lab, "main")
    ours, uniform = main.per_stream("clear", main.scarce), main.per_stream("uniform", main.scarce)
    times = [a / b if b > 0 else np.inf if a > 0 else 1.0 for a, b in zip(ours, uniform, strict=True)]
    told = "; ".join(
        f"{stream} {a:.1f}% against {b:.1f}% ({_times(t)})"
        for stream, a, b, t in zip(main.streams, ours, uniform, times, strict=True)
    )
    return f"at {main.scarce:,} tokens per query: {told}", min(times) >= 3


def _times(ratio: float) -> str:
    return f"{ratio:.1f} times" if np.isfinite(ratio) else "from nothing"


def _never_below(lab: Lab) -> tuple[str, bool]:
    return _below(_clear_over_uniform(_Rows(lab, "main")))


def _around_the_median(lab: Lab) -> tuple[str, bool]:
    rows = _clear_over_uniform(_Rows(lab, "phase_transition"))
    cells = [row for row in rows if 0.6 <= row["budget_times_median"] <= 1.5]
    if not cells:
        raise NotPossible("no budget is near the median length")
    return _below(cells)


def _clear_over_uniform(rows: _Rows) -> list[Row]:
    cells = [row for row in rows.rows if row["policy"] == "clear" and "gain" in row]
    if not cells:
        raise NotPossible("policy clear or uniform was not asked for")
    return cells


def _below(cells: Sequence[Row]) -> tuple[str, bool]:
    below = [row for row in cells if row["gain"] < 0]
    sure = [row for row in below if row["gain_high"] < 0]
    worst = min(cells, key=lambda row: float(row["gain"]))
    told = f"below uniform in {len(below)} of {len(cells)} cells, in {len(sure)} of them beyond the 95% interval"
    if below:
        told += (
            f"; worst {worst['solved']:.1f}%, {worst['gain']:+.1f} points, at {worst['budget']:,} tokens per query "
            f"({worst['budget_times_median']:.2f} median lengths), {worst['stream']}"
        )
    return told, not below


def _ample(lab: Lab) -> tuple[str, bool]:
    main = _Rows(lab, "main")
    gaps = [abs(a - b) for a, b in zip(*(main.per_stream(p, main.ample) for p in ("clear", "uniform")), strict=True)]
    return f"points apart at {main.ample:,} tokens per query: {_list(main.streams, gaps)}", max(gaps) <= _NEAR


def _abandonment(lab: Lab) -> tuple[str, bool]:
    phase = _Rows(lab, "phase_transition")
    ends = [
        [phase.one(stream=s, policy="clear", budget=budget)["abandoned"] for s in phase.streams]
        for budget in (phase.scarce, phase.ample)
    ]
    told = f"abandoned at {phase.scarce:,} tokens per query: {_list(phase.streams, ends[0], '{:.0f}%')}"
    told += f"; at {phase.ample:,}: {_list(phase.streams, ends[1], '{:.0f}%')}"
    return told, min(ends[0]) > 20 and max(ends[1]) == 0


def _best_of_the_papers(lab: Lab) -> tuple[str, bool]:
    main = _Rows(lab, "main")
    others = [policy for policy in _PAPERS_OWN if any(row["policy"] == policy for row in main.rows)]
    cells = [(s, b) for s in main.streams for b in main.column("budget")]
    behind = []
    for stream, budget in cells:
        ours = main.solved(stream=stream, budget=budget, policy="clear")
        best = max(others, key=lambda policy: main.solved(stream=stream, budget=budget, policy=policy), default="clear")
        gap = main.solved(stream=stream, budget=budget, policy=best) - ours
        if gap > _NEAR:
            behind.append((gap, best, stream, budget))
    told = f"more than {_NEAR:g} point behind another of the paper's methods in {len(behind)} of {len(cells)} cells"
    if behind:
        gap, best, stream, budget = max(behind)
        told += f"; most behind {best}, {gap:.1f} points, at {budget:,} tokens per query, {stream}"
    return told, not behind


def _no_abandonment(lab: Lab) -> tuple[str, bool]:
    main = _Rows(lab, "main")
    by_policy = {p: main.per_stream(p, main.scarce) for p in ("proportional", "uniform", "clear")}
    told = "; ".join(f"{policy}: {_list(main.streams, values)}" for policy, values in by_policy.items())
    pairs = list(zip(*by_policy.values(), strict=True))
    loses = all(a < c for a, _, c in pairs) and np.mean([b - a for a, b, _ in pairs]) > 0
    return f"% solved at {main.scarce:,} tokens per query: {told}", bool(loses)


def _alpha(lab: Lab) -> tuple[str, bool]:
    rows = _Rows(lab, "alpha")
    moved, slopes = 0.0, []
    for budget in rows.column("budget"):
        some = [rows.one(budget=budget, alpha=alpha) for alpha in rows.column("alpha")]
        moved = max(moved, float(np.ptp([row["solved"] for row in some])))
        if all(row["price"] and row["price"] > 0 for row in some):
            logs = np.log([[row["alpha"], row["price"]] for row in some])
            slopes.append(float(np.polyfit(logs[:, 0], logs[:, 1], 1)[0]))
    alphas = rows.column("alpha")
    told = f"alpha from {alphas[0]:g} to {alphas[-1]:g}: solved moves by {moved:.2f} points"
    told += f", the price grows as alpha to the power {slopes[0]:.4f}" if slopes else ""
    return told, moved <= 0.1 and all(abs(slope - 1) < 1e-3 for slope in slopes)


def _best_beta(rows: _Rows, budget: float) -> tuple[Row, Row]:
    fixed = [row for row in rows.rows if row["budget"] == budget and not row["adaptive"]]
    best = max(row["solved"] for row in fixed)
    return max((row for row in fixed if row["solved"] >= best - 1e-9), key=lambda row: float(row["beta"])), rows.one(
        budget=budget, adaptive=True
    )


def _beta_shift(lab: Lab) -> tuple[str, bool]:
    rows = _Rows(lab, "beta")
    budgets = [rows.scarce, *(b for b in rows.column("budget") if b > rows.scarce)][:2]
    if len(budgets) < 2:
        raise NotPossible("one budget only")
    best = [_best_beta(rows, budget)[0] for budget in budgets]
    told = "; ".join(
        f"at {row['budget']:,} tokens per query best at {row['beta']:.2g} ({row['solved']:.1f}%)" for row in best
    )
    return told, best[0]["beta"] > best[1]["beta"]


def _beta_adaptive(lab: Lab) -> tuple[str, bool]:
    rows = _Rows(lab, "beta")
    told, held = [], True
    for budget in rows.column("budget"):
        best, star = _best_beta(rows, budget)
        told.append(f"{star['solved']:.1f}% against {best['solved']:.1f}% (beta {best['beta']:.2g}) at {budget:,}")
        held &= star["solved"] >= best["solved"] - _NEAR
    return f"adaptive against best fixed: {'; '.join(told)} tokens per query", held


def _noise(lab: Lab) -> tuple[str, bool]:
    rows = _Rows(lab, "noise")
    budget = rows.scarce
    ours = [rows.solved(policy="clear", budget=budget, noise=sigma) for sigma in rows.column("noise")]
    uniform = rows.solved(policy="uniform", budget=budget, noise=0.0)
    told = _list([f"sigma {sigma:g}:" for sigma in rows.column("noise")], ours)
    return f"% solved at {budget:,} tokens per query: {told}; uniform {uniform:.1f}", min(ours) > uniform


def _variants(lab: Lab) -> tuple[str, bool]:
    rows = _Rows(lab, "variants")
    gaps = {
        policy: max(
            abs(a - b)
            for a, b in zip(rows.per_stream(policy, rows.scarce), rows.per_stream("clear", rows.scarce), strict=True)
        )
        for policy in ("triangular", "quadratic")
    }
    anywhere = max(
        abs(row["solved"] - rows.solved(stream=row["stream"], budget=row["budget"], policy="clear"))
        for row in rows.rows
        if row["policy"] in gaps
    )
    told = f"largest distance to CLEAR at {rows.scarce:,} tokens per query: {_list(gaps, gaps.values())} points"
    return f"{told}; at any budget {anywhere:.1f}", max(gaps.values()) <= 2.2


def _s_shape(lab: Lab) -> tuple[str, bool]:
    rows = [row for row in _Rows(lab, "s_curve").rows if row["dataset"] == "all"]
    at = np.array([row["budget_times_median"] for row in rows])
    share = np.array([row["solved"] for row in rows]) / max(1e-9, rows[-1]["solved"])
    quarter, four = (100 * float(np.interp(times, at, share)) for times in (0.25, 4.0))
    told = (
        f"of all that is ever solved, {quarter:.0f}% within a quarter of the median length, {four:.0f}% within 4 times"
    )
    return told, quarter <= 5 and four >= 95


def _ranks(lab: Lab) -> tuple[str, bool]:
    row = next(row for row in _Rows(lab, "predictor").rows if row.get("dataset") == "all")
    if row["spearman"] is None:
        raise NotPossible("all lengths or all forecasts are equal")
    told = f"Spearman {row['spearman']:.2f}, Kendall {row['kendall']:.2f} over {row['traces']:,} answers"
    return told, row["spearman"] >= 0.5


def _code(lab: Lab) -> tuple[str, bool]:
    rows = _clear_over_uniform(_Rows(lab, "code_best_of_k"))
    scarce = [row for row in rows if row["budget_times_median"] < 0.75]
    told = "; ".join(
        f"{row['model']} at {row['budget']:,}: {row['solved']:.1f}%, {row['gain']:+.1f} points" for row in scarce
    )
    if not scarce:
        raise NotPossible("no budget is well below the median need")
    return f"over uniform, best of {rows[0]['k']}: {told}", all(row["gain"] > 0 for row in scarce)


def _second(lab: Lab) -> tuple[str, bool]:
    rows = _clear_over_uniform(_Rows(lab, "second_model"))
    told, held = _below(rows)
    return f"{rows[0]['model']}: {told}", held


def _oracle(lab: Lab) -> tuple[str, bool]:
    main = _Rows(lab, "main")
    cells = [(s, b) for s in main.streams for b in main.column("budget")]
    above = max(
        main.solved(stream=s, budget=b, policy="clairvoyant") - main.solved(stream=s, budget=b, policy="oracle")
        for s, b in cells
    )
    beaten = {
        (row["stream"], row["budget"])
        for row in main.rows
        if row["policy"] in PRACTICAL
        and row["solved"] > main.solved(stream=row["stream"], budget=row["budget"], policy="oracle")
    }
    told = f"a clairvoyant, who also knows which answers are right, is up to {above:.1f} points above it"
    return f"{told}; practical policies are in {len(beaten)} of {len(cells)} cells", above <= 0


# --- ours --------------------------------------------------------------------------------------


def _expected(lab: Lab) -> tuple[str, bool]:
    main = _Rows(lab, "main")
    gaps = [
        main.solved(stream=s, budget=b, policy="expected") - main.solved(stream=s, budget=b, policy="clear")
        for s in main.streams
        for b in main.column("budget")
    ]
    worse = sum(gap < -_NEAR for gap in gaps)
    told = f"{np.mean(gaps):+.1f} points on average, from {min(gaps):+.1f} to {max(gaps):+.1f}"
    held = not worse and float(np.mean(gaps)) > 0
    return f"{told}; more than {_NEAR:g} point worse in {worse} of {len(gaps)} cells", held


def _metering(lab: Lab) -> tuple[str, bool]:
    rows = _clear_over_uniform(_Rows(lab, "main", "metered"))
    told, held = _below(rows)
    return f"both metered: {told}; {np.mean([row['gain'] for row in rows]):+.1f} points on average", held


def _index(lab: Lab) -> tuple[str, bool]:
    rows = _Rows(lab, "main", "metered")
    behind = []
    gains = []
    for stream in rows.streams:
        for budget in rows.column("budget"):
            cell = {"stream": stream, "budget": budget}
            ours, clear, uniform = (rows.solved(**cell, policy=p) for p in ("index", "clear", "uniform"))
            gains.append(ours - max(clear, uniform))
            if gains[-1] < -_HALF:
                behind.append(cell)
    told = f"all metered: {np.mean(gains):+.1f} points on average over the better of both"
    told += f", from {min(gains):+.1f} to {max(gains):+.1f}"
    return f"{told}; more than half a point below it in {len(behind)} of {len(gains)} cells", not behind


CLAIMS: list[tuple[str, str, Callable[[Lab], tuple[str, bool]]]] = [
    ("When tokens are scarce CLEAR solves at least 3 times as much as uniform", "abstract, table 1", _scarce_gain),
    ("CLEAR is not below uniform in any tested condition", "table 1, appendix B", _never_below),
    ("CLEAR is not below uniform around the median length", "figure 5", _around_the_median),
    ("When tokens are ample CLEAR and uniform converge, to 1 point", "section 7.2, figure 5", _ample),
    ("Abandonment is high when tokens are scarce and falls to zero", "figure 5", _abandonment),
    ("CLEAR is the best of the paper's practical methods, to 1 point", "table 1", _best_of_the_papers),
    ("The predictor without abandonment loses when scarce, to CLEAR and to uniform", "table 1", _no_abandonment),
    ("Alpha changes no result, and the price scales with it", "figure 8", _alpha),
    ("Scarce budgets want a high beta, larger budgets a low one", "figure 7", _beta_shift),
    ("The adaptive beta is as good as the best fixed one, to 1 point", "figure 7", _beta_adaptive),
    ("CLEAR stays above uniform when noise is put on the forecast", "figure 11", _noise),
    ("Triangular and quadratic utilities are within 2.2 points of CLEAR", "table 3", _variants),
    ("Solved against the limit is S-shaped: strict, surge, ample", "figure 1", _s_shape),
    ("The predictor ranks lengths well: Spearman of at least 0.5", "figure 4", _ranks),
    ("Best of K for code: CLEAR is above uniform when scarce", "table 2", _code),
    ("On a second model CLEAR is not below uniform", "table 4", _second),
    ("The oracle is an upper bound on what a policy can solve", "section 6, appendix A", _oracle),
    ("The market of expected answers is above CLEAR, and nowhere 1 point below", "ours", _expected),
    ("Metered, CLEAR is not below uniform", "ours", _metering),
    ("Metered, serving by index is not half a point below uniform or CLEAR", "ours", _index),
]
