"""Rows a second of the coordinator, by the number of rows in a message and of workers that write together.

    python benchmarks/coordinator.py [ROWS]

No Ray and no model: messages are method calls, on a ledger on this disk. Each row is taken and settled with an answer
of 1 kB. Every message, or group of messages that arrived together, waits for the disk once.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from shadowprice.accounts.sqlite import Ledger
from shadowprice.distributed.coordinator import Coordinator, Message, Settled
from shadowprice.formats.results import result_line
from shadowprice.types import Completion, Result, Usage

TOKENS = 200


def answer(name: str) -> bytes:
    text = "word " * TOKENS
    body = {"choices": [{"message": {"content": text}}]}
    return result_line(
        Result(name, "finished", Usage(TOKENS), TOKENS, Completion(text, TOKENS, "stop", "server", body=body))
    )


def rows_a_second(path: Path, rows: int, batch: int, together: int) -> tuple[float, float]:
    """By the clock, and of processor time."""
    Ledger.create(path, 10**12).close()
    coordinator = Coordinator(path)
    held: list[list[Settled]] = [[] for _ in range(together)]
    names = iter(range(10**9))
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(max(1, rows // (batch * together))):
        wanted = [[(f"row-{next(names)}", TOKENS) for _ in range(batch)] for _ in range(together)]
        replies = coordinator.exchange([Message(*each) for each in zip(held, wanted, strict=True)])
        held = [
            [
                Settled(name, number, TOKENS, Usage(TOKENS), answer(name), "result")
                for (name, _), number in zip(some, reply.taken, strict=True)
            ]
            for some, reply in zip(wanted, replies, strict=True)
        ]
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    coordinator.close()
    count = next(names)
    return count / wall, count / cpu


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    print(f"{'rows in a message':>18} {'messages together':>18} {'rows/s':>9} {'rows per CPU second':>20}")
    with tempfile.TemporaryDirectory(dir=".") as folder:
        for number, (batch, together) in enumerate([(1, 1), (4, 1), (16, 1), (64, 1), (16, 8), (64, 8), (64, 64)]):
            count = min(rows, 600 * batch * together)
            wall, cpu = rows_a_second(Path(folder, f"ledger-{number}"), count, batch, together)
            print(f"{batch:18} {together:18} {wall:9,.0f} {cpu:20,.0f}")


if __name__ == "__main__":
    main()
