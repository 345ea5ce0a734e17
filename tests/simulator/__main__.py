"""`python -m tests.simulator --seeds N --first S [--mutant NAME]`: lives that many lives, on all cores.

The seed of a failure is printed; `--first SEED --seeds 1 --events` lives that life again, and prints all of it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

from .life import Ended, live
from .mutants import MUTANTS, unchanged

_AT_A_TIME = 25  # lives, per process


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description="Whole lives of runs, by seed.")
    parser.add_argument("--seeds", type=int, default=1000, help="how many (1000)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--mutant", choices=sorted(MUTANTS), help="a broken variant; it should fail")
    parser.add_argument("--events", action="store_true", help="print the events of lives that fail, or of the only one")
    parser.add_argument("--keep-going", action="store_true", help="print every failure, not the first alone")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    failed = lived = 0
    for ended in _lives(asked):
        lived += 1
        if ended.problem or (asked.events and asked.seeds == 1):
            failed += bool(ended.problem)
            if asked.events:
                print(*ended.events, sep="\n")
            print(f"seed {ended.seed}: {ended.problem or 'no violation'} ({ended.digest[:16]})", flush=True)
            if not asked.keep_going:
                break
        if lived % 100 == 0:
            print(f"\r{lived} of {asked.seeds}", end="", file=sys.stderr, flush=True)
    print(f"\r{lived} lives, {failed} violations", file=sys.stderr)
    return 1 if failed else 0


def _lives(asked: argparse.Namespace) -> Iterator[Ended]:
    seeds = range(asked.first, asked.first + asked.seeds)
    parts = [(seeds[i : i + _AT_A_TIME], asked.mutant) for i in range(0, len(seeds), _AT_A_TIME)]
    if asked.jobs == 1 or len(parts) == 1:
        for part in parts:
            yield from _some(part)
        return
    with ProcessPoolExecutor(asked.jobs) as pool:
        try:
            for lives in pool.map(_some, parts):
                yield from lives
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _some(part: tuple[range, str | None]) -> list[Ended]:
    seeds, mutant = part
    with MUTANTS[mutant]() if mutant else unchanged():
        return [live(seed) for seed in seeds]


if __name__ == "__main__":
    sys.exit(main())
