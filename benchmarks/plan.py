"""What planning a file costs: memory, and CPU time compared with parsing and rewriting the file with orjson.

python benchmarks/plan.py [LINES]      default 1,000,000, a few minutes

The forecaster is the one that ships; the questions are problems and chat of the usual length.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import orjson


def write_requests(path: Path, lines: int) -> None:
    rng = random.Random(0)
    with path.open("w") as out:
        for i in range(lines):
            text = "How much is seven times six? " * rng.randint(1, 20)
            body = {"model": "m", "messages": [{"role": "user", "content": text}], "temperature": 0.7}
            if i % 7 == 0:
                body["max_completion_tokens"] = rng.randint(1, 900)
            line = {"custom_id": f"request-{i}", "method": "POST", "url": "/v1/chat/completions", "body": body}
            out.write(json.dumps(line) + "\n")


def rewrite(source: Path, target: Path) -> float:
    start = time.process_time()
    with source.open("rb") as lines, target.open("wb") as out:
        for line in lines:
            out.write(orjson.dumps(orjson.loads(line)) + b"\n")
    return time.process_time() - start


def plan(source: Path, policy: str) -> tuple[float, float]:
    """CPU seconds, and megabytes at most."""
    command = [
        sys.executable,
        "-m",
        "shadowprice",
        "plan",
        str(source),
        "--budget=100/query",
        "--force",
        "--policy",
        policy,
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 3):
        raise SystemExit("plan failed")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024  # kilobytes on Linux


def main() -> None:
    lines = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "requests.jsonl"
        write_requests(source, lines)
        plain = min(rewrite(source, Path(folder) / "copy.jsonl") for _ in range(3))
        size = source.stat().st_size / 1e6
        print(f"{lines:,} lines, {size:.0f} MB; parsed and rewritten with orjson in {plain:.1f} s")
        for policy in ("clear", "expected"):
            seconds, peak = plan(source, policy)
            print(
                f"plan --policy {policy}: {seconds:.1f} s, {seconds / plain:.1f} times as long; {peak:.0f} MB at most"
            )


if __name__ == "__main__":
    main()
