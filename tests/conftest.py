"""Batch files to plan, and recorded generations that are not part of the project."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

# Tests run side by side, and their vectors are short: threads that wait for each other only cost time.
# Read when NumPy or Torch is first imported, which is after this.
for _threads in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(_threads, "1")


# Minutes each, on a real model: they go first, so that at the end no process is left alone with one of them.
LONGEST = ("test_live.py", "test_metered_run.py", "test_crash.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONGEST)


def request_line(name: str, text: str = "What is 2 + 3?", **body) -> dict:
    return {
        "custom_id": name,
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": "m", "messages": [{"role": "user", "content": text}], **body},
    }


@pytest.fixture
def batch(tmp_path: Path):
    """Writes lines (dicts or raw text) to a batch file."""

    def write(lines: list, name: str = "requests.jsonl") -> Path:
        path = tmp_path / name
        path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
        return path

    return write


def read_jsonl(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def shared_traces(name: str) -> Path:
    """A file of recorded generations of larger models; the test is skipped where it is not beside the project."""
    path = Path(__file__).parents[2] / "shared" / "traces" / f"{name}.jsonl.gz"
    if not path.exists():
        pytest.skip(f"{name} is not beside the project")
    return path
