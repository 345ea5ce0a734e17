"""The README's figure: solved against budget, on a simulated stream of queries.

Until recorded generations ship with the project the stream is simulated, and says so: lengths are
log-normal, longer answers are less often right, and a forecast knows both only roughly.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from shadowprice import Forecast, allocate

QUERIES, SEEDS = 500, 20
BUDGETS = [25, 50, 100, 150, 200, 300, 400, 600, 800, 1200, 1600]  # tokens per query
POLICIES = {"uniform": "uniform", "clear": "CLEAR", "expected": "expected (ours)", "oracle": "oracle (true lengths)"}


def stream(seed: int) -> tuple[Forecast, np.ndarray, np.ndarray]:
    """Forecasts, true lengths and outcomes of one batch.

    Median length 400 with a log spread of 0.9 between queries; the forecast misses the log length
    by 0.5 and knows the chance of success, which falls from 0.9 for short to 0.1 for long answers.
    """
    rng = np.random.default_rng(seed)
    expected = 400 * rng.lognormal(0, 0.9, QUERIES)
    lengths = np.ceil(expected * rng.lognormal(0, 0.5, QUERIES))
    chance = 0.1 + 0.8 / (1 + (expected / 600) ** 1.5)
    return Forecast(expected, spread=0.5, solve=chance), lengths, rng.random(QUERIES) < chance


def rows() -> list[dict[str, float | str | int]]:
    streams = [stream(seed) for seed in range(SEEDS)]
    found: list[dict[str, float | str | int]] = []
    for policy in POLICIES:
        for budget in BUDGETS:
            solved = []
            for forecast, lengths, correct in streams:
                truth = {"lengths": lengths} if policy == "oracle" else {}
                grants = allocate(forecast, f"{budget}/query", policy, **truth).tokens
                solved.append(100 * np.mean((grants >= lengths) & correct))
            # 95% of the means of resampled seeds
            resampled = np.random.default_rng(0).choice(solved, (2000, SEEDS)).mean(axis=1)
            low, high = np.quantile(resampled, [0.025, 0.975])
            found.append(
                {
                    "policy": policy,
                    "budget": budget,
                    "solved": round(float(np.mean(solved)), 2),
                    "ci_low": round(float(low), 2),
                    "ci_high": round(float(high), 2),
                }
            )
    return found


def draw(found: list[dict[str, float | str | int]], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "shadowprice", "font.size": 10, "svg.fonttype": "path"})
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7.2, 3.8), layout="constrained")
    style = {
        "uniform": ("#8a8a8a", "--"),
        "clear": ("#0072b2", "-"),
        "expected": ("#d55e00", "-"),
        "oracle": ("#333333", ":"),
    }
    for policy, name in POLICIES.items():
        line = [row for row in found if row["policy"] == policy]
        colour, dash = style[policy]
        budgets = [row["budget"] for row in line]
        axes.fill_between(
            budgets, [r["ci_low"] for r in line], [r["ci_high"] for r in line], color=colour, alpha=0.15, lw=0
        )
        axes.plot(budgets, [row["solved"] for row in line], dash, color=colour, label=name, lw=1.8)
    axes.set(xscale="log", xlabel="budget, tokens per query", ylabel="solved, %", ylim=(0, None))
    axes.set_xticks(BUDGETS, [str(budget) for budget in BUDGETS])
    axes.minorticks_off()
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, metadata={"Date": None, "Creator": None})
    plt.close(figure)
