"""Run folders whose ledgers tests write themselves: lines of results, chunks and notes, and a run that was killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shadowprice.formats.results import chunk_line, result_line
from shadowprice.types import Completion, Failure, Outcome, Result, Usage


def part(tokens: int, finish: Any = "stop", flags: Sequence[str] = (), text: str = "Paris") -> Completion:
    body = {"choices": [{"message": {"content": text}}]}
    return Completion(text, tokens, finish, "server", tuple(flags), body)


def answer(
    name: str,
    tokens: int,
    outcome: Outcome = "finished",
    flags: Sequence[str] = (),
    text: str = "Paris",
    correct: bool | None = None,
    **extra: Any,
) -> bytes:
    found = part(tokens, "length" if outcome == "truncated" else "stop", flags, text)
    return result_line(Result(name, outcome, Usage(tokens), tokens, found, correct=correct, extra=extra))


def note(name: str, outcome: Outcome, code: str, message: str, **details: Any) -> bytes:
    return result_line(Result(name, outcome, failure=Failure(code, message, details)))


def chunk(tokens: int, text: str = "Paris", flags: Sequence[str] = (), sample: int = 0) -> bytes:
    return chunk_line(part(tokens, "length", flags, text), sample=sample, landing=False)


def listing(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


_KILLED = """
import sys, time
from shadowprice.run_folder import RunFolder
from shadowprice.types import Usage
from tests.run_folders import answer
ledger = RunFolder.create(sys.argv[1], 100, {}).ledger
first, second = ledger.reserve_many([("a", 10), ("b", 20)])
ledger.settle(first, 7, Usage(7), answer("a", 7))
print("ready", flush=True)
time.sleep(60)
"""


def killed_run(folder: Path) -> Path:
    """What kill -9 leaves of a run with a budget of 100, of which `a` used 7 while `b` had 20 reserved."""
    with subprocess.Popen([sys.executable, "-c", _KILLED, str(folder)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGKILL)
    assert (folder / "ledger.sqlite-wal").exists()
    return folder
