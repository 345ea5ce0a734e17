"""Recorded answers that come with the package, as sets of traces by the name of their model.

    qwen2.5-coder-1.5b  Qwen2.5-Coder-1.5B-Instruct on mathematics and programs; recorded by `scripts/record.py`
    smollm2-135m        SmolLM2-135M-Instruct on the tasks of `shadowprice.datasets.tasks`; by `scripts/traces.py`

A set has the splits `train` and `eval`, of different questions, and may have others. `recorded.json` says what is in
every file and where its questions come from. Nothing in the files was written by hand.
"""

from __future__ import annotations

import json
from importlib.resources import as_file, files
from typing import Any

from shadowprice.errors import InputError
from shadowprice.formats.files import sha256_of
from shadowprice.formats.traces import read_traces
from shadowprice.types import Trace

SMALL = "smollm2-135m"
DEFAULT_SET = "qwen2.5-coder-1.5b"
_ALIASES = {"smollm2": SMALL}


def shipped_sets() -> dict[str, dict[str, dict[str, Any]]]:
    """What `recorded.json` says: set -> split -> about its file."""
    sets: dict[str, dict[str, dict[str, Any]]] = json.loads((files(__package__) / "recorded.json").read_text())["sets"]
    return sets


def known_set(name: str) -> str | None:
    """The full name of a set, or None."""
    name = _ALIASES.get(name, name)
    return name if name in shipped_sets() else None


def shipped_traces(split: str, name: str = DEFAULT_SET) -> list[Trace]:
    """The traces of a split: `train`, `eval`, or another one that the set has."""
    with as_file(files(__package__) / _file(split, name)) as path:
        return list(read_traces(path))


def shipped_hash(split: str, name: str = DEFAULT_SET) -> str:
    """The SHA-256 of the file of a split."""
    with as_file(files(__package__) / _file(split, name)) as path:
        return sha256_of(path)


def _file(split: str, name: str) -> str:
    sets = shipped_sets()
    full = known_set(name)
    if full is None:
        raise InputError(f"no recorded answers are called {name!r}", fix=f"choose one of {', '.join(sets)}")
    if split not in sets[full]:
        raise InputError(f"{full} has no split {split!r}", fix=f"choose one of {', '.join(sets[full])}")
    return str(sets[full][split]["file"])
