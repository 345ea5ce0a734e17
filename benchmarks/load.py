"""How many requests a run serves per second, and what very many of them take.

    python benchmarks/load.py [--requests 4000] [--concurrency 8,64,256] [--many 100000]

Whole runs, with their ledgers on the disk, against an HTTP server in its own process that answers every request at
once. The best of three rounds counts, since other processes only slow it down; CPU time is that of the client. Then the
memory of a run of very many requests in metered accounting, and the time until the first of them is answered: reading,
forecasting and planning all of them. The exit code is 1 if a run misses its aim.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from instant_server import instant_server

from shadowprice import Forecast, Request, Run
from shadowprice.backends.openai import OpenAIBackend
from shadowprice.types import Result

TOKENS, ROUNDS = 16, 3
POLICIES = {"reserved": "uniform", "metered": "index"}
AIMS = {("reserved", 64): 1500, ("metered", 64): 1000}  # requests per second
MOST_MEMORY, LONGEST_PLAN = 400, 10.0  # megabytes, seconds


class Alike:
    """Forecasts that vary a little, and cost nothing to make."""

    def predict(self, requests: list[Request]) -> Forecast:
        return Forecast([TOKENS * (0.8 + (i % 41) / 100) for i in range(len(requests))], 0.3, 0.7)


def made(count: int) -> list[Request]:
    texts = [f"Question {i}?" for i in range(count)]
    return [Request(f"q{i}", t, body={"messages": [{"role": "user", "content": t}]}) for i, t in enumerate(texts)]


class Measured:
    """A run, and when its first request ended."""

    def __init__(self, url: str, folder: Path, count: int, accounting: str, concurrency: int) -> None:
        self.backend = OpenAIBackend(url, "m")
        self.first = 0.0
        self.start = time.perf_counter()
        self.cpu = time.process_time()
        self.run = Run(
            made(count),
            budget=2 * TOKENS * count,
            backend=self.backend,
            folder=folder,
            forecaster=Alike(),
            policy=POLICIES[accounting],
            accounting=accounting,
            max_tokens=2 * TOKENS,
            concurrency=concurrency,
        )

    def ended(self, result: Result) -> None:
        self.first = self.first or time.perf_counter() - self.start

    async def finish(self) -> tuple[float, float]:
        """Seconds, and seconds of CPU time."""
        async with self.backend:
            summary = await self.run.execute(on_result=self.ended)
        assert summary.count("finished") == summary.requests, summary.outcomes
        return time.perf_counter() - self.start, time.process_time() - self.cpu


def speed(url: str, folder: Path, count: int, accounting: str, concurrency: int) -> bool:
    """The best of several rounds: other processes only slow one down."""
    rounds = []
    for turn in range(ROUNDS):
        place = folder / f"{accounting} {concurrency} {turn}"
        rounds.append(asyncio.run(Measured(url, place, count, accounting, concurrency).finish()))
    wall, cpu = (min(column) for column in zip(*rounds, strict=True))
    aim = AIMS.get((accounting, concurrency), 0)
    verdict = "" if not aim else f"   {'ok' if count / wall >= aim else 'MISS'}, aim {aim:,}/s"
    print(f"{accounting:9} {concurrency:4} in flight {count / wall:7,.0f} requests/s "
          f"{1000 * cpu / count:7.3f} ms CPU each{verdict}")  # fmt: skip
    return count / wall >= aim


def many(url: str, folder: Path, count: int) -> bool:
    """In a process of its own, whose memory is measured."""
    command = [sys.executable, __file__, "--url", url, "--folder", str(folder / "many"), "--many", str(count)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    first = float(process.stdout.read())
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    memory = usage.ru_maxrss / 1024  # kilobytes on Linux
    ok = memory < MOST_MEMORY and first < LONGEST_PLAN
    print(f"metered, {count:,} requests: {memory:.0f} MB at most, aim {MOST_MEMORY}; the first answer after "
          f"{first:.1f} s, aim {LONGEST_PLAN:.0f}   {'ok' if ok else 'MISS'}")  # fmt: skip
    return ok


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--concurrency", default="8,64,256")
    parser.add_argument("--many", type=int, default=100_000, help="0 leaves this part out")
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.url:
        run = Measured(options.url, options.folder, options.many, "metered", 64)
        asyncio.run(run.finish())
        print(run.first)
        return 0
    with tempfile.TemporaryDirectory(dir=".") as name, instant_server(TOKENS) as url:
        folder, numbers = Path(name), [int(each) for each in options.concurrency.split(",")]
        held = [speed(url, folder, options.requests, kind, number) for kind in POLICIES for number in numbers]
        if options.many:
            held.append(many(url, folder, options.many))
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
