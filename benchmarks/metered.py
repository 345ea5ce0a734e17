"""How much of the gap between CLEAR and the oracle the index closes on recorded answers; and what a schedule costs.

    python benchmarks/metered.py                  the cost alone
    python benchmarks/metered.py qwen2.5-14b-instruct.math.jsonl.gz --cap 4096 \\
        --train llama-3.1-8b-instruct.math-train.jsonl.gz zeroeval-12-models.gsm8k-mathl5.jsonl.gz
    python benchmarks/metered.py --each zeroeval-12-models.gsm8k-mathl5.jsonl.gz
    python benchmarks/metered.py FOLDER --seeds 1 --no-reading --save without.json
    python benchmarks/metered.py FOLDER --seeds 1 --against without.json

Four streams of 500 queries, five seeds each. Percent correct; `gap` is (index - clear) / (oracle - clear), with the
paper's CLEAR (reserved). Forecasts are trained on the files after --train and adapted to 100 traces, which are left
out; and cross-fitted within the pool. `--each` takes every model of a file as a pool of its own, cross-fitted. A folder
is that of every pool in it with at least 300 questions, each with forecasts from the other files (`pools.py`).
The exit code is 1 if a requirement does not hold.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from shadowprice.forecast.calibration import Calibration
from shadowprice.forecast.hazards import parametric
from shadowprice.formats.traces import read_traces
from shadowprice.lab.compare import compare
from shadowprice.lab.pools import Pool, make_pool, recorded, trained_without
from shadowprice.lab.streams import QUERIES, STREAMS
from shadowprice.market.gittins import schedule
from shadowprice.types import Forecast

POLICIES = {
    "uniform": ["reserved", "metered"],
    "clear": ["reserved", "metered"],
    "index": ["metered"],
    "oracle": ["metered"],
}
SCARCE = (0.25, 0.5, 1.0)  # times the median length
ALL = (0.1, *SCARCE, 1.5, 2.0, 3.0, 4.0)


class Requirements:
    """Prints whether each requirement holds, and counts those that do not."""

    def __init__(self) -> None:
        self.missed = 0

    def check(self, held: bool, requirement: str) -> None:
        self.missed += not held
        print(f"{'ok  ' if held else 'MISS'}  {requirement}", flush=True)


Cells = dict[tuple[str, float], dict[str, float]]


def cells(pool: Pool, times: Sequence[float] = ALL, seeds: int = 5) -> Cells:
    """Percent correct by stream and budget: {"clear": .., "clear metered": .., ..}."""
    budgets = {max(1, round(each * pool.median)): each for each in times}
    by_cell: Cells = {}
    for row in compare(
        "", pool, streams=list(STREAMS), budgets=list(budgets), policies=POLICIES, seeds=seeds, queries=QUERIES
    ):
        own = row["accounting"] == "reserved" or row["policy"] in ("index", "oracle")
        name = row["policy"] if own else f"{row['policy']} metered"
        by_cell.setdefault((row["stream"], budgets[row["budget"]]), {})[name] = row["solved"]
    return by_cell


def gap(cell: dict[str, float]) -> float:
    return (cell["index"] - cell["clear"]) / (cell["oracle"] - cell["clear"])


def on(pool: Pool, requirements: Requirements, *, mean: float, least: float) -> None:
    found = cells(pool)
    print(
        f"\n{pool.model}: {len(pool):,} questions, median {pool.median:,.0f} tokens, forecasts {pool.forecast_from}\n"
    )
    names = ["uniform", "clear", "uniform metered", "clear metered", "index", "oracle"]
    print(f"| stream | budget | {' | '.join(names)} | gap |\n|{'---|' * (len(names) + 3)}")
    for (stream, budget), cell in found.items():
        correct = " | ".join(f"{cell[name]:.1f}" for name in names)
        print(f"| {stream} | {budget:g} | {correct} | {f'{gap(cell):.2f}' if budget in SCARCE else ''} |")
    print()
    gaps = [gap(cell) for (_, budget), cell in found.items() if budget in SCARCE]
    requirements.check(np.mean(gaps) >= mean, f"gap closed on average at least {mean}: {np.mean(gaps):.2f}")
    requirements.check(min(gaps) >= least, f"gap closed in every cell at least {least}: {min(gaps):.2f}")
    short = max(max(cell[name] for name in names[:4]) - cell["index"] for cell in found.values())
    requirements.check(short <= 0.5, f"below the best of uniform and clear by at most 0.5 points: {short:.2f}")


def with_useless_and_perfect_forecasts(pool: Pool, requirements: Requirements) -> None:
    worst = max(cell["uniform metered"] - cell["index"] for cell in cells(alike(pool)).values())
    requirements.check(worst <= 0.5, f"all questions alike: below metered uniform by at most 0.5 points: {worst:.2f}")
    worst = max(abs(cell["oracle"] - cell["index"]) for cell in cells(known(pool)).values())
    requirements.check(worst <= 0.5, f"lengths known: the oracle to half a point: {worst:.2f}")


def alike(pool: Pool) -> Pool:
    """The pool with one calibrated forecast for all questions."""
    one = Forecast(pool.median, 0.5, 0.5).take(np.zeros(len(pool), dtype=np.intp))
    return replace(pool, forecast=Calibration.fit(one, pool.under_cap).apply(one), forecast_from="one for all")


def known(pool: Pool) -> Pool:
    """The pool with the true lengths as forecasts; all chances of a correct answer are equal."""
    ends = np.where(pool.truncated, 8 * pool.cap, pool.length).astype(float)
    return replace(pool, forecast=Forecast(ends, 0.02, 0.5), forecast_from="the truth")


def each_model(path: Path, requirements: Requirements) -> None:
    level, worst, count = 0, 0.0, 0
    for model in recorded(read_traces(path)):
        found = cells(make_pool(model), (0.1, *SCARCE))
        short = [max(cell["clear metered"], cell["uniform metered"]) - cell["index"] for cell in found.values()]
        held = sum(each <= 1e-9 for each in short)
        level, worst, count = level + held, max(worst, *short), count + len(short)
        print(f"{model.model}: {held} of {len(short)} cells, at worst {max(short):+.2f} points behind", flush=True)
    requirements.check(level >= 0.9 * count, f"at least metered clear and uniform in 90% of cells: {level} of {count}")
    requirements.check(worst <= 2, f"nowhere more than two points below either: {worst:.2f}")


def every_pool(options: argparse.Namespace, requirements: Requirements) -> None:
    import pools  # here, because the tests import this file as a part of a package

    found = []
    names = [path.name for path in options.train]
    settings = {"train": names, "only": options.only, "cap": options.cap or 4096, "seeds": options.seeds}
    settings["reading"] = not options.no_reading
    for row in pools.rows(options.traces, times=(0.1, *SCARCE, 2.0), **settings):
        found.append(row)
        print(f"{row.pool}: {row.figures['closed + 100']:.2f} closed", flush=True)
        if options.save:
            options.save.write_text(json.dumps(pools.saved(found)))
    for columns in pools.TABLES:
        print("\n" + "\n".join(pools.table(found, columns)))
    print()
    before = pools.load(options.against) if options.against else {}
    for requirement, held in pools.requirements(found, before):
        requirements.check(held, requirement)


def cost(requirements: Requirements, n: int = 100_000) -> None:
    rng = np.random.default_rng(0)
    fields = rng.lognormal(6, 0.8, n), rng.uniform(0.3, 0.9, n), rng.uniform(0.05, 0.95, n)
    forecasts = {"a shape": Forecast(*fields, shape=parametric(3.0, 1.0, 0.3)), "a tail": Forecast(*fields, tail=3.0)}
    numbers = rng.random(10_000_000)

    def seconds(run: object) -> float:
        start = time.process_time()
        run()  # type: ignore[operator]
        return time.process_time() - start

    sorting = min(seconds(lambda: np.sort(numbers)) for _ in range(3))
    for law, forecast in forecasts.items():
        ratio = min(seconds(lambda f=forecast: schedule(f, 4096)) for _ in range(3)) / sorting  # type: ignore[misc]
        wanted = f"schedule of {n:,} queries with {law} at most 15 sorts of 10,000,000 floats"
        requirements.check(ratio <= 15, f"{wanted}: {ratio:.1f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path, nargs="?", help="a trace file, or a folder of them")
    parser.add_argument("--train", type=Path, nargs="+", default=[], help="of a folder: the files to train on")
    parser.add_argument("--cap", type=int)
    parser.add_argument("--each", type=Path)
    parser.add_argument("--seeds", type=int, default=5, help="of a folder")
    parser.add_argument("--only", default="", help="of a folder: pools that match this regular expression")
    parser.add_argument("--no-reading", action="store_true", help="of a folder: answers are not read on the way")
    parser.add_argument("--save", type=Path, help="of a folder: a JSON file for the figures of all pools")
    parser.add_argument("--against", type=Path, help="of a folder: figures that were saved earlier")
    options = parser.parse_args()
    requirements = Requirements()
    cost(requirements)
    if options.traces and options.traces.is_dir():
        every_pool(options, requirements)
    elif options.traces:
        models = recorded(read_traces(options.traces), options.cap)
        if options.train:
            train = [trace for path in options.train for trace in read_traces(path)]
            elsewhere, _ = trained_without(train, models)
            on(
                make_pool(models[0], elsewhere, calibrate=100, about="trained elsewhere"),
                requirements,
                mean=0.6,
                least=0.35,
            )
        pool = make_pool(models[0])
        on(pool, requirements, mean=0.8, least=0.6)
        with_useless_and_perfect_forecasts(pool, requirements)
    if options.each:
        each_model(options.each, requirements)
    return 1 if requirements.missed else 0


if __name__ == "__main__":
    sys.exit(main())
