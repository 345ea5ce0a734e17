"""What votes gain on recorded answers: correct answers with 1 to K answers to a question, by budget, in dollars.

    python benchmarks/votes.py TRACES --rates NAME=0.1 OTHER=0.3 --samples 4

Every model alone and all of them together are routes of the market (`shadowprice.lab.votes`). Budgets are multiples of
what one answer costs on average, of the dearest model where there are several. The majority of all answers, whatever it
costs, is printed beside them.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np

from shadowprice.cost import Rates
from shadowprice.formats.routes import Route
from shadowprice.formats.traces import read_traces
from shadowprice.lab.votes import counted, recorded_votes, shuffled, vote_rows

TIMES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", help="several answers of each model to a question, with text")
    parser.add_argument("--rates", nargs="+", required=True, metavar="NAME=R", help="dollars per million tokens")
    parser.add_argument("--samples", type=int, default=4, metavar="K")
    parser.add_argument("--seeds", type=int, default=3, help="orders of the answers (default: 3)")
    parser.add_argument("--times", type=float, nargs="+", default=TIMES, help="budgets, in answers")
    parser.add_argument("--out", type=Path, help="all rows as JSON")
    options = parser.parse_args()
    rates = dict(each.rpartition("=")[::2] for each in options.rates)
    routes = [Route(name, Rates.dollars(rate, rate), "http://127.0.0.1:9/v1") for name, rate in rates.items()]
    traces = [trace for trace in read_traces(options.traces) if trace.model in rates]
    found = []
    for chosen in [*([route] for route in routes), *([routes] if len(routes) > 1 else [])]:
        name = " | ".join(route.name for route in chosen)
        pool = recorded_votes(traces, chosen, options.samples)
        budgets = [float(pool.cost.mean(0).max()) * times for times in options.times]
        print(f"\n{name}: {len(pool)} questions, percent correct, and the gain over one answer", flush=True)
        rows = vote_rows(pool, budgets, seeds=options.seeds, progress=progress)
        for times, budget in zip(options.times, budgets, strict=True):
            cells = [row for row in rows if row["budget"] == budget]
            print(f"  {times:5.2f} answers  " + "  ".join(map(cell, cells)), flush=True)
        if len(chosen) == 1:
            orders = [shuffled(pool, seed) for seed in range(options.seeds)]
            means = [np.mean([counted(each, k) for each in orders]) for k in range(1, options.samples + 1)]
            print("  majority, whatever it costs: " + ", ".join(f"{100 * mean:.1f}" for mean in means), flush=True)
        found += [{"routes": name, **row} for row in rows]
    if options.out:
        options.out.write_text(json.dumps(found, indent=1))


def cell(row: dict[str, float]) -> str:
    if row["samples"] == 1:
        return f"{row['solved']:.1f} ({row['ci_low']:.1f} to {row['ci_high']:.1f})"
    return f"{row['solved']:.1f} {row['gain']:+.1f} ({row['gain_low']:+.1f} to {row['gain_high']:+.1f})"


def progress(done: int, total: int, step: str) -> None:
    print(f"[{done}/{total}] {step}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
