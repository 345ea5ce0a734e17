"""A forecaster on disk: a folder of data, described by its `forecaster.json`.

Nothing in it is ever executed: a forecaster saves only JSON, plain arrays and safetensors. The description names
every other file with its hash, so that damage is found before anything is used.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shadowprice.errors import InputError
from shadowprice.formats.files import sha256_of

FORMAT = 1  # raised when an older version could misread what a newer one writes
_DESCRIPTION = "forecaster.json"
_FIX = "train it again, or give another folder"


@contextmanager
def written(folder: str | os.PathLike[str], kind: str, about: Mapping[str, Any]) -> Iterator[Path]:
    """A scratch folder to fill, which replaces `folder` if no error occurs.

    `about` is what the forecaster stores in its description. An existing folder is replaced only if it
    holds a forecaster.
    """
    place = Path(os.path.realpath(folder))
    refuse_others(folder)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".shadowprice-", dir=place.parent) as scratch:
            fresh = Path(scratch) / "fresh"
            fresh.mkdir()
            yield fresh
            files = {str(file.relative_to(fresh)): sha256_of(file) for file in _files(fresh)}
            description = {"format": FORMAT, "kind": kind, "files": files, "about": dict(about)}
            (fresh / _DESCRIPTION).write_text(json.dumps(description, indent=1, allow_nan=False) + "\n")
            if place.exists():
                place.rename(Path(scratch) / "old")
            fresh.rename(place)
    except OSError as error:
        raise InputError(
            f"cannot be written: {error.strerror or error}", path=folder, fix="give another folder"
        ) from None


def refuse_others(folder: str | os.PathLike[str]) -> None:
    """Raises InputError if the folder holds anything but a forecaster; to be called before a long training."""
    place = Path(folder)
    if place.exists() and not ((place / _DESCRIPTION).is_file() or (place.is_dir() and not any(place.iterdir()))):
        raise InputError("holds something other than a forecaster", path=folder, fix="name a new folder")


def fingerprint(folder: str | os.PathLike[str]) -> str:
    """Identifies a forecaster: the hash of its description, which names every file with its hash."""
    return sha256_of(Path(folder, _DESCRIPTION))


def description(folder: str | os.PathLike[str]) -> tuple[str, dict[str, Any]]:
    """The kind of the forecaster in a folder and the `about` it stored; every file is checked first."""
    path = Path(folder, _DESCRIPTION)

    def bad(problem: str, fix: str = _FIX) -> InputError:
        return InputError(problem, path=path, fix=fix)

    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"holds no {_DESCRIPTION}", path=folder, fix="name a folder made by `train`") from None
    except OSError as error:
        raise bad(f"cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise bad("damaged: not JSON") from None
    if not isinstance(record, dict) or not isinstance(record.get("format"), int):
        raise bad("damaged: no format")
    if record["format"] > FORMAT:
        raise bad(f"made by a newer version (format {record['format']}, this one reads {FORMAT})", "update shadowprice")
    kind, files, about = (record.get(name) for name in ("kind", "files", "about"))
    if not isinstance(kind, str) or not isinstance(files, dict) or not isinstance(about, dict):
        raise bad("damaged: kind, files or about is missing")
    root = Path(folder).resolve()
    for name, digest in files.items():
        file = (root / name).resolve()
        if not file.is_relative_to(root) or not file.is_file():
            raise bad(f"damaged: {name} is missing")
        if sha256_of(file) != digest:
            raise InputError("damaged: the file has changed since it was saved", path=file, fix=_FIX)
    if extra := [file for file in _files(root) if str(file.relative_to(root)) not in (*files, _DESCRIPTION)]:
        raise InputError("not part of the forecaster that was saved", path=extra[0], fix="remove it")
    return kind, about


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if not path.is_dir())
