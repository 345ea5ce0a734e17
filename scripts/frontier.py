"""The README's figure: solved against tokens spent, on recorded answers of a real model.

The shipped evaluation traces are replayed: greedy answers are the same at every cap, so an answer is
solved exactly if its grant reaches its length and it is right. Forecasts are learnt from the shipped
training traces, which share no question with them. All but `metered` reserve what they grant; that one
pays for tokens as they are generated, best index first.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shadowprice import Query, allocate
from shadowprice.data import shipped_traces
from shadowprice.forecast.text import Text
from shadowprice.metering import replayed
from shadowprice.types import Forecast

SHARES = [0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0]  # of the mean length
POLICIES = {
    "uniform": "uniform",
    "clear": "CLEAR",
    "expected": "expected (ours)",
    "metered": "metered (ours)",
    "oracle": "oracle (true lengths)",
}
CAP = 512


def rows() -> list[dict[str, float | str | int]]:
    train, evaluated = shipped_traces("train"), shipped_traces("eval")
    lengths = np.array([trace.tokens for trace in evaluated])
    correct = np.array([bool(trace.correct) for trace in evaluated])
    forecast = Text().fit(train).predict([Query(trace.id, trace.prompt) for trace in evaluated])
    resample = np.random.default_rng(0).integers(len(evaluated), size=(2000, len(evaluated)))
    found: list[dict[str, float | str | int]] = []
    for policy in POLICIES:
        for share in SHARES:
            budget = int(share * lengths.sum())
            grants = reached(policy, forecast, budget, lengths)
            solved = 100.0 * ((grants >= lengths) & correct)
            low, high = np.quantile(solved[resample].mean(axis=1), [0.025, 0.975])
            found.append(
                {
                    "policy": policy,
                    "budget": share,
                    "spent": round(float(np.minimum(grants, lengths).mean()), 1),
                    "solved": round(float(solved.mean()), 1),
                    "ci_low": round(float(low), 1),
                    "ci_high": round(float(high), 1),
                }
            )
    return found


def reached(policy: str, forecast: Forecast, budget: int, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """How far each answer may come."""
    if policy == "metered":
        return replayed(forecast, budget, CAP, lengths)
    truth = {"lengths": lengths} if policy == "oracle" else {}
    return allocate(forecast, budget, policy, max_tokens=CAP, **truth).tokens


def draw(found: list[dict[str, float | str | int]], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "shadowprice", "font.size": 10, "svg.fonttype": "path"})
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7.2, 3.8), layout="constrained")
    style = {
        "uniform": ("#8a8a8a", "--"),
        "clear": ("#0072b2", "-"),
        "expected": ("#cc79a7", "-"),
        "metered": ("#d55e00", "-"),
        "oracle": ("#333333", ":"),
    }
    for policy, name in POLICIES.items():
        line = [row for row in found if row["policy"] == policy]
        colour, dash = style[policy]
        spent = [row["spent"] for row in line]
        low, high = [row["ci_low"] for row in line], [row["ci_high"] for row in line]
        axes.fill_between(spent, low, high, color=colour, alpha=0.12, lw=0)
        axes.plot(spent, [row["solved"] for row in line], dash, color=colour, label=name, lw=1.8, marker="o", ms=3)
    axes.set(xscale="log", xlabel="tokens spent per query", ylabel="solved, %", ylim=(0, None))
    ticks = [5, 10, 20, 40, 80]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, metadata={"Date": None, "Creator": None})
    plt.close(figure)
