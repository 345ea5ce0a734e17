"""A posted price against first come, first served, and against the best static price in hindsight, on recorded answers.

    python benchmarks/pacing.py                                   the shipped answers
    python benchmarks/pacing.py --traces FILE [--cap 4096] [--model N] [--seeds 3]

Four streams, about 500 requests in a window, three patterns of arrival, budgets of 0.25, 0.5 and 1 times the median
length per request. The pacer has seen three windows of other requests of the stream (`--cold`: none); the share of the
window's arrivals by time of day is learned from these. Ratios are those of correct answers, over all streams and seeds,
with 95% bootstrap intervals over these. `spent` is the smallest share of the budget in a window in which first come,
first served spends 99% of it, and `short` the number of such windows in which it was below 97%.
The exit code is 1 if a requirement does not hold.
"""

from __future__ import annotations

import argparse
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np

from shadowprice.datasets.shipped import shipped_traces
from shadowprice.formats.traces import read_traces
from shadowprice.lab.arrivals import PATTERNS, FirstCome, Posted, Traffic, best_static, serve
from shadowprice.lab.pools import Pool, make_pool, recorded, trained_without
from shadowprice.lab.streams import STREAMS
from shadowprice.market.pacing import Pacer

REQUESTS, LENGTH, PAST = 500, 3600.0, 3
BUDGETS = (0.25, 0.5, 1.0)
SUFFICES = 0.99  # of a budget: where first come, first served spends so much, the demand suffices


def window(pool: Pool, stream: str, pattern: str, times: float, seed: int, past: int) -> tuple[float, ...]:
    """Correct answers of posted, static and first come; the share that posted spent, or nan if demand is too small."""
    budget = round(times * pool.median * REQUESTS)
    seeds = [1000 * (seed + 1) + each for each in range(past)] + [seed]
    traffic = [Traffic.drawn(pool, stream, pattern, REQUESTS, each) for each in seeds]
    posted = Posted(traffic[0], Pacer(budget, LENGTH), LENGTH)
    for now, after in pairwise(traffic):
        serve(now, posted, budget)
        posted.roll(after, budget)
    last = traffic[-1]
    outcome = serve(last, posted, budget)
    others = best_static(last, budget)[1], (first := serve(last, FirstCome(last), budget))
    spent = outcome.spent.sum() / budget if first.spent.sum() >= SUFFICES * budget else np.nan
    return (*(float(each.correct.sum()) for each in (outcome, *others)), float(spent))


def ratio(over: np.ndarray, under: np.ndarray) -> tuple[float, float, float]:
    random = np.random.default_rng(0)
    some = random.integers(over.size, size=(1000, over.size))
    low, high = np.quantile(over[some].sum(1) / np.maximum(under[some].sum(1), 1), [0.025, 0.975])
    return float(over.sum() / max(under.sum(), 1)), float(low), float(high)


def on(pool: Pool, seeds: int, past: int) -> bool:
    """Prints a table; whether all requirements hold."""
    print(f"\n{pool.model}: {len(pool):,} questions, median {pool.median:,.0f} tokens, cap {pool.cap:,}\n")
    print(
        "| arrivals | budget | of the best static price | times first come | spent | short |\n|---|---|---|---|---|---|"
    )
    held = True
    for pattern in PATTERNS:
        for times in BUDGETS:
            found = np.array(
                [window(pool, stream, pattern, times, seed, past) for stream in STREAMS for seed in range(seeds)]
            )
            posted, static, first, spent = found.T
            of, over = ratio(posted, static), ratio(posted, first)
            known = spent[~np.isnan(spent)]
            short = int((known < 0.97).sum())
            least = f"{known.min():.3f}" if known.size else ""
            print(
                f"| {pattern} | {times:g} | {of[0]:.3f} ({of[1]:.3f}-{of[2]:.3f}) | "
                f"{over[0]:.2f} ({over[1]:.2f}-{over[2]:.2f}) | {least} | {short} of {known.size} |",
                flush=True,
            )
            held &= of[0] >= 0.9 and not short and (times != 0.5 or over[0] >= 1.3)
    return held


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--cap", type=int)
    parser.add_argument("--model", type=int, default=0, help="which model of the file: 0 has the most questions")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--cold", action="store_true")
    options = parser.parse_args()
    if options.traces:
        pool = make_pool(recorded(read_traces(options.traces), options.cap)[options.model])
    else:
        (model,) = recorded(shipped_traces("eval", "smollm2"))
        pool = make_pool(model, trained_without(shipped_traces("train", "smollm2"), [model])[0])
    held = on(pool, options.seeds, 0 if options.cold else PAST)
    print(f"\n{'ok  ' if held else 'MISS'}  0.9 of the static price, 1.3 times first come at 0.5, 97% spent")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
