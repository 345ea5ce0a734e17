"""The question and the correct answer of every request, as a run folder keeps them for reports."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import orjson

from shadowprice.errors import InputError
from shadowprice.formats.jsonl import read_objects
from shadowprice.formats.questions import Gold
from shadowprice.types import Request


class Asked(NamedTuple):
    """The text of a request, and its correct answer; empty if that is unknown."""

    question: str = ""
    gold: str = ""


def asked_lines(requests: Iterable[Request], gold: Gold | None = None) -> Iterator[bytes]:
    """A line `{custom_id, question, gold, grader}` per request; the last two only if they are known."""
    for request in requests:
        record = {"custom_id": request.id, "question": request.text.encode(errors="replace").decode()}
        if gold and request.id in gold:
            record["gold"], record["grader"] = gold[request.id]
        yield orjson.dumps(record) + b"\n"


def read_asked(path: str | os.PathLike[str]) -> Iterator[tuple[str, Asked]]:
    """Questions by request, in order. Ends without an error if the file is missing or damaged: only reports use it."""
    if not os.path.isfile(path):
        return
    try:
        for _, line in read_objects(path):
            yield str(line["custom_id"]), Asked(str(line.get("question") or ""), str(line.get("gold") or ""))
    except (OSError, InputError, KeyError):
        return
