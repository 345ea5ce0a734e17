"""What the main table of a reproduction costs, compared with one sort of ten million floats in the same run.

    python benchmarks/lab.py                       the shipped answers
    python benchmarks/lab.py TRACES [CAP]          other answers, forecasts cross-fitted

Four streams of 500 queries, five budgets, all policies in all their accountings, five seeds, with bootstrap
intervals. Reading the traces and learning the forecasts is not counted. Both sides are processor time of one
thread, so that other work on the machine counts for neither. The exit code is 1 if it takes more than 60 sorts.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before NumPy is loaded

import numpy as np

from shadowprice.datasets.shipped import shipped_traces
from shadowprice.formats.traces import read_traces
from shadowprice.lab.config import Lab, budgets_of
from shadowprice.lab.pools import Pool, make_pool, recorded, trained_without
from shadowprice.lab.streams import QUERIES
from shadowprice.lab.tables import main as main_table


def seconds(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def pool_of(arguments: list[str]) -> Pool:
    if arguments:
        models = recorded(read_traces(arguments[0]), int(arguments[1]) if len(arguments) > 1 else None)
        return make_pool(models[0])
    models = recorded(shipped_traces("eval", "smollm2"))
    return make_pool(models[0], trained_without(shipped_traces("train", "smollm2"), models)[0])


def main() -> int:
    pool = pool_of(sys.argv[1:])
    lab = Lab([pool], [pool], budgets=budgets_of(pool.median, ("0.25x", "0.5x", "1x", "2x", "4x")))
    numbers = np.random.default_rng(0).random(10_000_000)
    sorts = [seconds(lambda: np.sort(numbers)) for _ in range(5)]  # the first ones also wait for their memory
    parts = {}
    for name, policies in {
        "by grants": [name for name in lab.policies if name != "index"],
        "by index": ["index"],
    }.items():
        some = replace(lab, policies=policies)
        parts[name] = seconds(lambda some=some: main_table(some))
    cells = len(lab.streams) * len(lab.budgets) * sum(map(len, lab.accountings().values())) * lab.seeds
    print(f"{pool.model}: {len(pool):,} questions, {cells:,} simulations of {min(QUERIES, len(pool))} queries")
    print(f"np.sort of 10,000,000 floats: {min(sorts):.2f} s")
    for name, took in parts.items():
        print(f"policies {name}: {took:.2f} s, {took / min(sorts):.1f} sorts")
    ratio = sum(parts.values()) / min(sorts)
    print(f"{'ok  ' if ratio <= 60 else 'MISS'}  main table at most 60 sorts: {ratio:.1f}")
    return 0 if ratio <= 60 else 1


if __name__ == "__main__":
    sys.exit(main())
