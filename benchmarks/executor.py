"""What the executor costs, compared with the bare ledger and with the bare backend.

    python benchmarks/executor.py [REQUESTS]

The bare ledger reserves the same grants in the same groups and settles each with a result that is already known; the
executor serves the same requests from recorded answers. The bare backend sends the same requests without scheduler and
ledger to an HTTP server that answers at once, 64 at a time. The exit code is 1 if a ratio is missed.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

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


def beside_the_ledger(requests: list[Request], folder: Path) -> float:
    """The median of several runs of each, in turns: waiting for the disk varies from one second to the next."""
    traces = [Trace(request.id, request.text, TOKENS, response="word " * TOKENS) for request in requests]
    whole, bare = [], []
    for turn in range(TURNS):
        backend = RecordedBackend(traces)
        with Ledger.create(folder / f"run {turn}", TOKENS * len(requests)) as ledger:
            start = time.perf_counter()
            asyncio.run(execute(scheduler_for(requests, CONCURRENCY), ledger, backend, concurrency=CONCURRENCY))
            whole.append(time.perf_counter() - start)
            results = dict(ledger.results())
        with Ledger.create(folder / f"bare {turn}", TOKENS * len(requests)) as ledger:
            start = time.perf_counter()
            for first in range(0, len(requests), CONCURRENCY):
                some = requests[first : first + CONCURRENCY]
                for request, number in zip(some, ledger.reserve_many((r.id, TOKENS) for r in some), strict=True):
                    ledger.settle(number, TOKENS, result=results[request.id])
            bare.append(time.perf_counter() - start)
    print(f"{len(requests):,} recorded answers, median of {TURNS}: executor {median(whole):.2f} s, bare ledger "
          f"{median(bare):.2f} s")  # fmt: skip
    return median(whole) / median(bare)


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
            "executor on recorded answers at most 1.3 times the bare ledger": (
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
