"""What the executor costs, compared with the bare ledger and with the bare backend.

    python benchmarks/executor.py [REQUESTS]

The bare ledger reserves the same grants in the same groups and settles each with a result that is already known; the
executor serves the same requests from recorded answers. Both wait for the disk equally often, so their CPU time is
compared: beside other work, waiting varies from one second to the next. The bare backend sends the same requests
without scheduler and ledger to an HTTP server that answers at once, 64 at a time. The exit code is 1 if a ratio is
missed.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import numpy as np
from instant_server import instant_server

from shadowprice import Forecast, RecordedBackend, Request, Trace
from shadowprice.accounts.sqlite import Ledger
from shadowprice.backends.openai import OpenAIBackend
from shadowprice.engine import Settings, make_scheduler
from shadowprice.engine.executor import execute

TOKENS, CONCURRENCY, MANY, TURNS = 20, 8, 64, 5


def scheduler_for(requests: list[Request], concurrency: int):  # noqa: ANN201
    scheduler = make_scheduler(Settings("uniform", concurrency=concurrency))
    scheduler.add(requests, Forecast([float(TOKENS)] * len(requests)))
    return scheduler


def _now() -> np.ndarray:
    return np.array([time.process_time(), time.perf_counter()])


def beside_the_ledger(requests: list[Request], folder: Path) -> float:
    """By the medians of several runs of each, in turns."""
    traces = [Trace(request.id, request.text, TOKENS, response="word " * TOKENS) for request in requests]
    whole, bare = [], []  # seconds of CPU time, and on the clock
    for turn in range(TURNS):
        backend = RecordedBackend(traces)
        with Ledger.create(folder / f"run {turn}", TOKENS * len(requests)) as ledger:
            start = _now()
            asyncio.run(execute(scheduler_for(requests, CONCURRENCY), ledger, backend, concurrency=CONCURRENCY))
            whole.append(_now() - start)
            results = dict(ledger.results())
        with Ledger.create(folder / f"bare {turn}", TOKENS * len(requests)) as ledger:
            start = _now()
            for first in range(0, len(requests), CONCURRENCY):
                some = requests[first : first + CONCURRENCY]
                for request, number in zip(some, ledger.reserve_many((r.id, TOKENS) for r in some), strict=True):
                    ledger.settle(number, TOKENS, result=results[request.id])
            bare.append(_now() - start)
    (cpu, clock), (bare_cpu, bare_clock) = np.median(whole, axis=0), np.median(bare, axis=0)
    print(f"{len(requests):,} recorded answers, median of {TURNS}: executor {cpu:.2f} s of CPU time, bare ledger "
          f"{bare_cpu:.2f} s; on the clock {clock:.2f} s and {bare_clock:.2f} s")  # fmt: skip
    return float(cpu / bare_cpu)


async def beside_the_backend(url: str, requests: list[Request], folder: Path) -> float:
    """The median of several runs of each, in turns, as above."""
    whole, bare = [], []
    async with OpenAIBackend(url, "m") as backend:
        for turn in range(TURNS):
            with Ledger.create(folder / f"http {turn}", TOKENS * len(requests)) as ledger:
                start = time.perf_counter()
                await execute(scheduler_for(requests, MANY), ledger, backend, concurrency=MANY)
                whole.append(time.perf_counter() - start)
            start = time.perf_counter()
            waiting = iter(requests)
            await asyncio.gather(*(_answers(backend, waiting) for _ in range(MANY)))
            bare.append(time.perf_counter() - start)
    print(f"{len(requests):,} answers over HTTP, median of {TURNS}: executor {len(requests) / median(whole):,.0f}/s, "
          f"bare backend {len(requests) / median(bare):,.0f}/s")  # fmt: skip
    return median(whole) / median(bare)


async def _answers(backend: OpenAIBackend, waiting: Iterator[Request]) -> None:
    for request in waiting:
        await backend.complete(request.body, TOKENS)


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    requests = []
    for i in range(count):
        text = f"Question {i}?"
        requests.append(Request(f"q{i}", text, body={"messages": [{"role": "user", "content": text}]}))
    with tempfile.TemporaryDirectory(dir=".") as folder, instant_server() as url:
        ratios = {
            "executor on recorded answers at most 1.3 times the bare ledger, in CPU time": (
                beside_the_ledger(requests, Path(folder)), 1.3
            ),
            "executor over HTTP at most 2 times the bare backend": (
                asyncio.run(beside_the_backend(url, requests[: count // 4], Path(folder))), 2.0
            ),
        }  # fmt: skip
    for name, (ratio, most) in ratios.items():
        print(f"{'ok  ' if ratio <= most else 'MISS'}  {name}: {ratio:.2f}")
    return 0 if all(ratio <= most for ratio, most in ratios.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
