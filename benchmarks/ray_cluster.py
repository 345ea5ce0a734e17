"""Price and speed on a real Ray cluster on this machine, in a network namespace of its own.

    python benchmarks/ray_cluster.py [--rows 10000000]

Price: random forecasts, policy expected, 300 tokens a row, in shards of two million rows and, for a million rows, in
four shards beside one node. Speed: rows a second after start-up with answers of 100 ms, 16 requests in flight per
worker, for one worker and two. The exit code is 1 if two workers are less than 1.8 times one, a process has more than
2.5 GB, or the prices differ.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ["STORE"] = str(2_500_000_000)  # bytes: the numbers of ten million rows, twice

from tests.distributed.conftest import Cluster, why_not


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    rows = parser.parse_args().rows
    if reason := why_not():
        print(reason)
        return 2
    cluster = Cluster(sys.stderr)
    million = cluster("prices", rows=1_000_000, block=125_000, shard=250_000, budget=3e8, one=True)
    many = cluster("prices", rows=rows, block=500_000, shard=2_000_000, budget=300.0 * rows, one=False)
    for count, found in ((1_000_000, million), (rows, many)):
        memory = max(found["memory of the driver"], found["memory of the shards"]) / 1e9
        print(
            f"{count:,} rows: actors start in {found['seconds to start']:.1f} s, price and limits in "
            f"{found['seconds']:.1f} s, price {found['price']:.10g}, {found['admitted']:,} admitted, most memory of a "
            f"process {memory:.2f} GB"
        )
    print(
        f"one node: gathered in {million['seconds to gather']:.1f} s, price and limits in "
        f"{million['one: seconds']:.1f} s, price {million['one: price']:.10g}, {million['one: admitted']:,} admitted, "
        f"{million['one: memory of the driver'] / 1e9:.2f} GB"
    )
    one, two = (cluster("speed", workers=n, rows=600 * n, concurrency=16, pause=0.1) for n in (1, 2))
    ratio = two["rows a second"] / one["rows a second"]
    print(f"one worker {one['rows a second']:.0f} rows/s, two {two['rows a second']:.0f}: {ratio:.2f} times as many")
    cluster.process.stdin.close()
    cluster.process.wait(60)
    same = million["admitted"] == million["one: admitted"] and abs(million["price"] / million["one: price"] - 1) < 1e-9
    return 0 if ratio >= 1.8 and memory <= 2.5 and same else 1


if __name__ == "__main__":
    sys.exit(main())
