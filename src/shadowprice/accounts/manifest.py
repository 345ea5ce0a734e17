"""manifest.json of a run folder: read and checked, so that its users need not check it again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shadowprice.errors import InputError
from shadowprice.formats.files import read_regular

MANIFEST = "manifest.json"
FORMAT = 3  # of a run folder, as its manifest says

_NUMBER, _NONE = (int, float), type(None)
_Shape = Mapping[str, tuple[type, ...]]  # field: its types; a field may be missing if one of them is NoneType
_WHOLE: _Shape = {
    "budget": (int,), "asked": (dict,), "rounds": (list,), "done": (bool,), "created": (str, _NONE),
    "shadowprice": (str, _NONE), "summary": (dict, _NONE), "teacher": (dict, _NONE), "files": (dict, _NONE),
    "sandboxes": (list, _NONE), "execution": (str, _NONE),
}  # fmt: skip
_ASKED: _Shape = {
    "policy": (str, _NONE), "accounting": (str, _NONE), "reclaim": (bool, _NONE), "samples": (int, _NONE),
    "max_tokens": (int, _NONE), "options": (dict, _NONE), "rates": (dict, _NONE),
}  # fmt: skip
_ROUND: _Shape = {
    "budget": (int,), "queries": (int,), "admitted": (int,), "granted": (int,), "price": (*_NUMBER, _NONE),
    "status": (str, _NONE),
}  # fmt: skip
_SUMMARY: _Shape = {
    "requests": (int,), "outcomes": (dict, _NONE), "stopped": (str, _NONE), "rounds": (list, _NONE),
}  # fmt: skip
_TEACHER: _Shape = {
    "asked": (int,), "retried": (int,), "fell_back": (int,), "tokens": (int,), "charged": (bool,), "flags": (dict,),
}  # fmt: skip


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a run; FileNotFoundError without one, InputError if `run` did not write it."""
    path = folder / MANIFEST
    try:
        manifest = json.loads(read_regular(path))  # not orjson: a name may hold half a character
        if isinstance(manifest, dict) and manifest.get("format") != FORMAT:
            raise InputError("was made by an older version of shadowprice", path=folder, fix="start a new run")
        _check(manifest)
    except (TypeError, RecursionError, UnicodeDecodeError, json.JSONDecodeError):
        raise InputError("damaged: `run` did not write this", path=path, fix="start a new run") from None
    return dict(manifest)


def _check(manifest: Any) -> None:
    _shaped(manifest, _WHOLE, "it")
    _shaped(manifest["asked"], _ASKED, "asked")
    summary, teacher = manifest.get("summary") or {}, manifest.get("teacher")
    for clearing in (*manifest["rounds"], *(summary.get("rounds") or ())):
        _shaped(clearing, _ROUND, "a round")
        if clearing.keys() != _ROUND.keys():
            raise TypeError("a round has other fields")
    if summary:
        _shaped(summary, _SUMMARY, "summary")
        _all(summary.get("outcomes") or {}, int, "outcomes")
    if teacher:
        _shaped(teacher, _TEACHER, "teacher")
        _all(teacher["flags"], int, "flags")
    _all(manifest.get("files") or {}, str, "files")
    rates = manifest["asked"].get("rates") or {}
    _all({name: rate for name, rate in rates.items() if name != "unit"}, int, "rates")
    if rates.get("output", 1) < 1 or min(rates.get("input", 0), rates.get("cached", 0)) < 0:
        raise TypeError("its rates are not prices")
    _all(dict(enumerate(manifest.get("sandboxes") or ())), str, "sandboxes")
    if manifest["budget"] < 0:
        raise TypeError("its budget is negative")


def _shaped(value: Any, shape: _Shape, name: str) -> None:
    if not isinstance(value, dict):
        raise TypeError(f"{name} is not an object")
    for field, types in shape.items():
        content = value.get(field)
        if not isinstance(content, types) or (isinstance(content, bool) and bool not in types):
            raise TypeError(f"{name} has {content!r:.40} as {field}")


def _all(values: Mapping[Any, Any], kind: type, name: str) -> None:
    for entry in values.values():
        if type(entry) is not kind:
            raise TypeError(f"{name} has {entry!r:.40}")
