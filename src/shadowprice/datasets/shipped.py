"""Recorded answers that the package ships: SmolLM2-135M-Instruct on the tasks of `shadowprice.datasets.tasks`.

Made by `scripts/traces.py`; nothing in them was written by hand.
"""

from __future__ import annotations

from importlib.resources import as_file, files

from shadowprice.formats.files import sha256_of
from shadowprice.formats.traces import read_traces
from shadowprice.types import Trace


def shipped_traces(split: str) -> list[Trace]:
    """The `train` or the `eval` traces."""
    with as_file(files("shadowprice.datasets") / f"smollm2-135m.{split}.jsonl.gz") as path:
        return list(read_traces(path))


def shipped_hash(split: str) -> str:
    """The SHA-256 of the file of a split."""
    with as_file(files("shadowprice.datasets") / f"smollm2-135m.{split}.jsonl.gz") as path:
        return sha256_of(path)
