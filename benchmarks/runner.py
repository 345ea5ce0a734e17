"""What running costs beside the account it keeps: 10,000 queries on recorded answers.

    python benchmarks/runner.py [QUERIES]

The bare ledger reserves and settles the same grants in the same groups, and does nothing else.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

import orjson

from shadowprice import Forecast, Request
from shadowprice.accounts.sqlite import Ledger
from shadowprice.backends.recorded import ReplayBackend
from shadowprice.formats.batch import BatchLine
from shadowprice.runner import Settings, run
from shadowprice.types import Trace


class Alike:
    def predict(self, queries: list[Request]) -> Forecast:
        return Forecast([20.0] * len(queries))


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    traces = [Trace(f"q{i}", f"Question {i}?", 20, response="word " * 20) for i in range(count)]
    requests = []
    for i, trace in enumerate(traces):
        body = {"messages": [{"role": "user", "content": trace.prompt}]}
        raw = orjson.dumps({"custom_id": trace.id, "body": body})
        requests.append(BatchLine(i + 1, raw, Request(trace.id, trace.prompt), "max_completion_tokens", False))
    settings = Settings(policy="uniform", concurrency=8)
    with tempfile.TemporaryDirectory(dir=".") as folder:
        with Ledger.create(Path(folder) / "run", 20 * count) as ledger:
            start = time.perf_counter()
            asyncio.run(run(requests, ledger, ReplayBackend(traces), Alike(), settings))
            whole = time.perf_counter() - start
            results = dict(ledger.results())
        with Ledger.create(Path(folder) / "bare", 20 * count) as ledger:
            start = time.perf_counter()
            for first in range(0, count, settings.concurrency):
                some = traces[first : first + settings.concurrency]
                for trace, number in zip(some, ledger.reserve_many((t.id, 20) for t in some), strict=True):
                    ledger.settle(number, 20, results[trace.id])
            bare = time.perf_counter() - start
    ratio = whole / bare
    print(f"{count:,} queries: run {whole:.2f} s, bare ledger {bare:.2f} s, ratio {ratio:.2f} (at most 2)")
    return 0 if ratio <= 2 else 1


if __name__ == "__main__":
    sys.exit(main())
