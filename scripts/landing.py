"""Write the figures of docs/landing.md, from the probed answers that the package ships.

python scripts/landing.py

Forecasts and the curve of landings are learned from the training split alone. Every cell is the mean over the same
draws of 70% of the evaluation questions; the interval of a gain is a bootstrap over questions, paired.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import shadowprice as sp
from shadowprice.datasets.shipped import shipped_traces
from shadowprice.formats.probes import latest_probe, probes_of
from shadowprice.types import Trace

PAGE = Path(__file__).resolve().parent.parent / "docs" / "landing.md"
BEGIN, END = "<!-- figures: scripts/landing.py -->\n", "<!-- end of figures -->\n"
DRAWS, RESAMPLES = 20, 1000
MULTIPLES = (0.25, 0.5, 0.75, 1.0, 2.0)
SETUPS = {
    "index, metered": {"policy": "index"},
    "expected, reserved": {"policy": "expected"},
    "CLEAR, the paper's": {"policy": "clear", "reclaim": False},
}
AGES = (0, 32, 64, 128, 192, 256, 384, 512, 768, 1024)


def main() -> None:
    traces = [trace for trace in shipped_traces("eval") if 0 in probes_of(trace)]
    forecaster = sp.TextForecaster().fit(shipped_traces("train"))
    text = "\n".join([*by_age(traces), "", *by_budget(traces, forecaster)]) + "\n"
    before, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(before + BEGIN + text + END + rest.split(END)[1])


def by_age(traces: Sequence[Trace]) -> list[str]:
    """Correct answers if every answer is stopped at an age: cut, and landed."""
    lines = [
        f"{len(traces)} evaluation questions, each answer stopped at one age, percent correct:",
        "",
        "| tokens | cut | landed |",
        "|---|---|---|",
    ]
    for age in AGES:
        ended = np.array([not trace.truncated and trace.tokens <= age for trace in traces])
        full = np.array([trace.correct is True for trace in traces])
        landed = np.array([(probe := latest_probe(probes_of(t), age)) is not None and probe.correct for t in traces])
        cut, stopped = 100 * np.mean(ended & full), 100 * np.mean(np.where(ended, full, landed))
        lines.append(f"| {age:,} | {cut:.1f} | {stopped:.1f} |")
    return [*lines, f"| in full | {100 * np.mean(full):.1f} | |"]


def by_budget(traces: Sequence[Trace], forecaster: sp.TextForecaster) -> list[str]:
    median = float(np.median([trace.tokens for trace in traces]))
    cap = max(trace.max_tokens or trace.tokens for trace in traces)
    lines = [
        f"Percent correct with and without landings, {DRAWS} draws of 70% of these questions; budgets in median "
        f"lengths ({median:.0f} tokens). `landed` and `spoiled` are percent of the questions; spoiled: correct without",
        "landings, and not with them.",
        "",
        "| policy | budget | without | with | gain (95%) | landed | spoiled |",
        "|---|---|---|---|---|---|---|",
    ]
    draws = [np.random.default_rng(seed).permutation(len(traces))[: int(0.7 * len(traces))] for seed in range(DRAWS)]
    for name, settings in SETUPS.items():
        for times in MULTIPLES:
            without, landing = np.full((2, DRAWS, len(traces)), np.nan)
            landed = 0
            for draw, places in enumerate(draws):
                some, budget = [traces[i] for i in places], int(times * median * len(places))
                for into, how in ((without, None), (landing, "math")):
                    found = sp.simulate(
                        some,
                        budget,
                        forecaster=forecaster,
                        landing=how,
                        max_tokens=cap,
                        **settings,  # type: ignore[arg-type]
                    )
                    into[draw, places] = [result.correct is True for result in found.results]
                landed += sum(result.outcome == "landed" for result in found.results)
            gain = np.nanmean(landing - without, axis=0)
            low, high = _interval(gain[~np.isnan(gain)])
            spoiled = 100 * np.nanmean(np.where(np.isnan(without), np.nan, (without > landing).astype(float)))
            cells = 100 * np.nanmean(without), 100 * np.nanmean(landing)
            lines.append(
                f"| {name} | {times:g} | {cells[0]:.1f} | {cells[1]:.1f} | {cells[1] - cells[0]:+.1f} ({low:+.1f} to "
                f"{high:+.1f}) | {100 * landed / sum(map(len, draws)):.0f} | {spoiled:.1f} |"
            )
    for name, costs in {"oracle of full answers": full_costs(traces), "landing oracle": landing_costs(traces)}.items():
        for times in MULTIPLES:
            shares = [_most(costs[places], times * median * len(places)) / len(places) for places in draws]
            lines.append(f"| {name} | {times:g} | {100 * np.mean(shares):.1f} | | | | |")
    return lines


def _interval(gain: NDArray[np.float64]) -> tuple[float, float]:
    picks = np.random.default_rng(0).integers(gain.size, size=(RESAMPLES, gain.size))
    low, high = np.quantile(100 * gain[picks].mean(axis=1), [0.025, 0.975])
    return float(low), float(high)


def _most(costs: NDArray[np.float64], budget: float) -> int:
    """The most correct answers that a budget can pay for: the cheapest first."""
    return int(np.searchsorted(np.cumsum(np.sort(costs)), budget, side="right"))


def full_costs(traces: Sequence[Trace]) -> NDArray[np.float64]:
    """What a correct answer costs in full; infinite where there is none."""
    return np.array([trace.tokens if trace.correct and not trace.truncated else np.inf for trace in traces])


def landing_costs(traces: Sequence[Trace]) -> NDArray[np.float64]:
    """What the first landing costs from which on landings and the end are correct; without one, the whole answer."""
    costs = full_costs(traces)
    for place, trace in enumerate(traces):
        if trace.correct or trace.truncated:
            for age, probe in reversed(probes_of(trace).items()):
                if not probe.correct:
                    break
                costs[place] = min(costs[place], age + probe.tokens)
    return costs


if __name__ == "__main__":
    main()
