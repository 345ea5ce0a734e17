"""What each stage of a job on Ray costs a row, and what a large cluster would do with one coordinator.

    python benchmarks/scale.py [ROWS]

First every stage is measured in this process, in processor time: rows to requests with forecasts, the price, a worker
on a backend that answers at once, the coordinator. Then a cluster is simulated with these costs: workers with 64
requests in flight each, whose answers take 10 seconds (log-normal, spread 0.5), and one coordinator, which answers all
messages that wait at the same time, with one wait of 3 ms for the disk.
"""

from __future__ import annotations

import asyncio
import heapq
import sys
import tempfile
import time
import tracemalloc
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from coordinator import rows_a_second

from shadowprice.distributed.coordinator import Coordinator, Message, Reply
from shadowprice.distributed.tables import FORECAST, NUMBERS, Prepare, Reading, forecast_from
from shadowprice.distributed.worker import Terms, serve
from shadowprice.market.policies import allocate, expected_curves
from shadowprice.market.sharded import allocate_shards
from shadowprice.market.shards import LocalShards, Shard
from shadowprice.types import Completion, Request

GRANT, IN_FLIGHT, SECONDS, SPREAD = 200, 64, 10.0, 0.5


class Instant:
    """A backend that answers at once."""

    model = "m"

    def can_continue(self, body: object) -> bool:
        return False

    async def complete(self, body: object, limit: int, **_: object) -> Completion:
        await asyncio.sleep(0)
        answer = {"choices": [{"message": {"content": "yes"}}]}
        return Completion("yes", 1, "stop", "server", body=answer)

    async def close(self) -> None: ...


def of_forecasts(rows: int) -> float:
    prepare = Prepare(Reading())
    some = [{"id": str(i), "question": f"A farmer has {i} cows and buys {i % 97} more. How many?"} for i in range(rows)]
    prepare.columns(some[:100])
    start = time.process_time()
    for first in range(0, rows, 4096):
        prepare.columns(some[first : first + 4096])
    return (time.process_time() - start) / rows


def of_prices(rows: int) -> tuple[float, float]:
    """On one node, and in eight shards one after the other."""
    rng = np.random.default_rng(0)
    numbers = {name: np.full(rows, np.inf) for name in FORECAST}
    numbers |= {name: rng.lognormal(6, 0.8, rows) for name in ("tokens", "solved_tokens")}
    numbers |= {name: rng.uniform(0.2, 1, rows) for name in ("spread", "solve", "solved_spread")}
    forecast, cap = forecast_from(numbers), np.full(rows, 4096.0)
    start = time.process_time()
    allocate(forecast, 300 * rows, "expected", max_tokens=cap)
    one = time.process_time() - start
    parts = np.array_split(np.arange(rows), 8)
    start = time.process_time()
    shards = [Shard(expected_curves(forecast.take(part), cap[part])) for part in parts]
    allocate_shards(LocalShards(shards), 300 * rows)
    return one / rows, (time.process_time() - start) / rows


def of_a_worker(rows: int) -> float:
    """The coordinator's part is subtracted: it answers from memory."""
    requests = [Request(f"r{i}", "", body={"messages": [{"role": "user", "content": "Why?"}]}) for i in range(rows)]
    numbers = iter(range(1, 10**9))

    async def exchange(message: Message) -> Reply:
        await asyncio.sleep(0)
        return Reply([next(numbers) for _ in message.wanted])

    terms = Terms(GRANT * rows, concurrency=IN_FLIGHT)
    start = time.process_time()
    asyncio.run(serve(requests, np.full(rows, GRANT), Instant(), exchange, terms))
    return (time.process_time() - start) / rows


def of_the_ledger(rows: int, folder: Path) -> tuple[float, float]:
    """Bytes a row, in memory and on the disk."""
    path = folder / "memory"
    rows_a_second(path, rows, 64, 8)
    disk = sum(each.stat().st_size for each in folder.glob("memory*"))
    tracemalloc.start()
    coordinator = Coordinator(path)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    coordinator.close()
    return held / rows, disk / rows


@dataclass
class Cluster:
    """Answers and messages as events in time; what waits when the coordinator is idle is one group."""

    workers: int
    per_row: float  # seconds of the coordinator: taking and settling
    per_group: float  # and to wait for the disk
    rng: np.random.Generator

    def run(self, seconds: float) -> tuple[float, float]:
        """Rows a second in the second half, and the mean time that a slot waits for its next row."""
        ended = [(0.0, worker) for worker in range(self.workers) for _ in range(IN_FLIGHT)]  # ends of answers
        heapq.heapify(ended)
        clock, rows, waited = 0.0, 0, 0.0
        while clock < seconds:
            clock = max(clock, ended[0][0])
            group = []
            while ended and ended[0][0] <= clock:
                group.append(heapq.heappop(ended))
            done = clock + self.per_group + self.per_row * len(group)
            lengths = SECONDS * np.exp(SPREAD * self.rng.standard_normal(len(group)))
            for (end, worker), length in zip(group, lengths, strict=True):
                heapq.heappush(ended, (done + length, worker))
                if clock > seconds / 2:
                    rows += 1
                    waited += done - end
            clock = done
        return rows / (seconds / 2), waited / max(1, rows)


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    with tempfile.TemporaryDirectory(dir=".") as folder:
        forecasts, (one, sharded) = of_forecasts(rows // 2), of_prices(25 * rows)
        worker = of_a_worker(rows // 2)
        _, rate = rows_a_second(Path(folder, "ledger"), rows, 64, 8)
        memory, disk = of_the_ledger(2 * rows, Path(folder))
    print("processor time a row, in microseconds")
    for name, seconds in {
        "rows to requests with forecasts": forecasts,
        "the price, on one node": one,
        "the price, in shards": sharded,
        "a worker, without HTTP": worker,
        "the coordinator": 1 / rate,
    }.items():
        print(f"  {1e6 * seconds:8.1f}  {name}")
    print(f"bytes a row: {8 * (len(NUMBERS) + 1)} gathered, {memory:.0f} in the coordinator, {disk:,.0f} on its disk")
    mean = SECONDS * np.exp(SPREAD**2 / 2)
    print(f"\n{'nodes':>6} {'in flight':>10} {'could send':>11} {'rows/s':>8} {'a slot waits':>13}")
    for workers in (10, 100, 1000, 3000, 10_000):
        cluster = Cluster(workers, 1 / rate, 0.003, np.random.default_rng(0))
        found, waited = cluster.run(60.0)
        in_flight = workers * IN_FLIGHT
        print(f"{workers:6,} {in_flight:10,} {in_flight / mean:9,.0f}/s {found:8,.0f} {1e3 * waited:10,.1f} ms")


if __name__ == "__main__":
    main()
