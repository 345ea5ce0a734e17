"""Results along a line: budget, decay rate, velocity, noise on the forecasts. And where the budget went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from shadowprice.lab.compare import Drawn, Row, compare, compare_drawn
from shadowprice.lab.config import Lab, budgets_of
from shadowprice.lab.simulations import Queries
from shadowprice.lab.streams import draw
from shadowprice.types import Forecast

_MULTIPLES = ("0.125x", "0.25x", "0.35x", "0.5x", "0.7x", "1x", "1.4x", "2x", "2.8x", "4x", "8x")
_FEW_MULTIPLES = ("0.125x", "0.25x", "0.5x", "1x", "2x", "4x", "8x")
_ALPHAS = (0.02, 0.2, 2.0, 20.0, 200.0)
_NOISES = (0.0, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5)


def _grid(lab: Lab) -> list[int]:
    return budgets_of(lab.pool.median, _FEW_MULTIPLES if lab.quick else _MULTIPLES)


def scarce_median_ample(lab: Lab) -> list[int]:
    """The smallest and the largest budget of the main table, and the median length between them."""
    middle = budgets_of(lab.pool.median, ("1x",))
    return sorted({lab.budgets[0], *middle, lab.budgets[-1]})


def frontier(lab: Lab) -> list[Row]:
    """Percent correct against tokens spent on one stream, for all policies, those with hindsight included."""
    return compare(
        "frontier",
        lab.pool,
        streams=[lab.stream],
        budgets=_grid(lab),
        policies=lab.accountings(),
        seeds=lab.seeds,
        queries=lab.queries,
    )


def phase_transition(lab: Lab) -> list[Row]:
    """Figure 5: correct and declined against the budget."""
    return compare(
        "phase_transition",
        lab.pool,
        streams=lab.streams,
        budgets=_grid(lab),
        policies={"uniform": ["reserved"], "clear": ["reserved"]},
        seeds=lab.seeds,
        queries=lab.queries,
    )


def beta(lab: Lab) -> list[Row]:
    """Figure 7: fixed decay rates against the one that adapts to the budget (eq. 16)."""
    rates = np.geomspace(0.01 / lab.pool.median, 1.0, lab.few_if_quick(16, 8))
    fixed = [float(f"{rate:.3g}") for rate in rates]  # as short as the commands that set them
    rows = [{**row, "beta": rate, "adaptive": False} for rate in fixed for row in _clear(lab, "beta", beta=rate)]
    for row in _clear(lab, "beta"):
        surplus = row["budget"] - float(lab.pool.forecast.tokens.mean())
        rows.append({**row, "beta": 1 / max(1e-6, surplus), "adaptive": True})
    return rows


def alpha(lab: Lab) -> list[Row]:
    """Figure 8: the price scales with alpha, the grants do not change."""
    return [{**row, "alpha": velocity} for velocity in _ALPHAS for row in _clear(lab, "alpha", alpha=velocity)]


def _clear(lab: Lab, table: str, **options: float) -> list[Row]:
    return compare(
        table,
        lab.pool,
        streams=[lab.stream],
        budgets=scarce_median_ample(lab),
        policies={"clear": ["reserved"]},
        seeds=lab.seeds,
        queries=lab.queries,
        options=options,
    )


def noise(lab: Lab) -> list[Row]:
    """Figure 11: forecasts multiplied by exp(sigma z). Every draw has its own stream and its own noise."""
    draws, pool = lab.few_if_quick(30, 6), lab.pool
    n = min(lab.queries, len(pool))
    places = [draw(pool, lab.stream, n, seed) for seed in range(draws)]
    drawn = Drawn(places, [Queries.of(pool, chosen) for chosen in places], pool.tier)
    budgets = scarce_median_ample(lab)[:2]
    rows: list[Row] = []
    for sigma in _NOISES:
        facts = {"table": "noise", "model": pool.model, "stream": lab.stream, "noise": sigma}
        rows += compare_drawn(
            facts,
            replace(drawn, queries=[_with_noise(queries, sigma, seed) for seed, queries in enumerate(drawn.queries)]),
            pool.median,
            budgets=budgets,
            policies={"uniform": ["reserved"], "clear": ["reserved"]},
        )
    return rows


def _with_noise(queries: Queries, sigma: float, seed: int) -> Queries:
    """The same z at every sigma, so that only the size of the noise differs."""
    z = np.random.default_rng([seed, 11]).standard_normal(len(queries))
    tokens = np.clip(queries.forecast.tokens * np.exp(sigma * z), 1.0, 2.0**40)
    return replace(queries, forecast=Forecast(tokens))


def waterfall(lab: Lab) -> list[Row]:
    """Where the budget went: the tokens of a whole stream, from the rows of the main table."""
    budget = scarce_budget(lab)
    return [
        {
            "table": "waterfall",
            "model": row["model"],
            "stream": row["stream"],
            "budget": budget,
            "policy": row["policy"],
            "accounting": row["accounting"],
            "reclaim": row["reclaim"],
            **_parts(row),
        }
        for row in _main_rows(lab.rows)
        if row["stream"] == lab.stream and row["budget"] == budget
    ]


def scarce_budget(lab: Lab) -> int:
    """The budget of the main table that is nearest to half the median length."""
    return min(lab.budgets, key=lambda budget: abs(np.log(budget / lab.pool.median / 0.5)))


def _main_rows(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["table"] == "main" and row["source"] == "ours"]


def _parts(row: Row) -> Row:
    n, spent = row["queries"], row["tokens_spent"]
    # With reclaim, and in metered accounting, what is not used is granted again.
    unused = row["tokens_granted"] - spent if row["accounting"] == "reserved" else 0.0
    return {
        "tokens": n * row["budget"],
        "unused": round(n * unused),
        "truncated": round(n * row["tokens_cut"]),
        "wrong": round(n * row["tokens_wrong"]),
        "correct": round(n * (spent - row["tokens_cut"] - row["tokens_wrong"])),
    }
