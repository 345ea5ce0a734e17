"""What the commands share: exit codes, file names, words."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import IO, TYPE_CHECKING, Any

from shadowprice.cli.terminal import raw
from shadowprice.errors import InputError

if TYPE_CHECKING:
    from shadowprice.forecast import Predictor
    from shadowprice.formats.batch import BatchLine

DONE, BAD_INPUT, EXHAUSTED, INTERRUPTED = 0, 2, 3, 130


class Interrupted(Exception):
    """Ctrl-C in a run that can be resumed."""


def outputs(options: argparse.Namespace, kind: str) -> tuple[str, str]:
    """The files for answers and errors; refuses invalid names."""
    from shadowprice.cost import LARGEST

    if os.path.isdir(options.file) or not options.file:
        raise InputError("is not a file", path=options.file or "''", fix="name an OpenAI Batch file, or - to read one")
    if options.max_tokens is not None and not 1 <= options.max_tokens <= LARGEST:
        raise InputError(f"--max-tokens {options.max_tokens} is not a limit", fix=f"give 1 to {LARGEST}")
    name = "requests" if options.file == "-" else os.path.splitext(options.file)[0]
    out, errors = options.out or f"{name}.{kind}.jsonl", options.errors or f"{name}.declined.jsonl"
    refuse_same_file(input=options.file, out=out, errors=errors, forecast=options.forecast)
    return out, errors


def forecaster(options: argparse.Namespace) -> tuple[Predictor, str]:
    """The forecaster of --forecast or --forecaster, and the name that a run folder keeps for it."""
    from shadowprice.forecast import DEFAULT, load
    from shadowprice.forecast.folder import fingerprint
    from shadowprice.formats.files import sha256_of
    from shadowprice.formats.forecasts import ForecastTable

    if options.forecast:
        return ForecastTable(options.forecast), f"file {sha256_of(options.forecast)}"
    folder = options.forecaster or DEFAULT
    return load(folder), f"forecaster {fingerprint(folder)}"


def bar(options: argparse.Namespace) -> Callable[[Iterator[BatchLine], str], Iterator[BatchLine]]:
    """Shows how many requests were processed, on a terminal."""
    if options.quiet or sys.stderr is None or not sys.stderr.isatty():
        return lambda requests, label: requests
    from tqdm import tqdm

    return lambda requests, label: iter(
        tqdm(requests, desc=label, unit=" requests", unit_scale=True, leave=False, file=raw(sys.stderr))
    )


@contextmanager
def copied(source: str) -> Iterator[str]:
    """A temporary copy of standard input or a pipe."""
    with tempfile.NamedTemporaryFile(prefix="shadowprice-") as copy:
        if source == "-" and sys.stdin is None:
            raise InputError("standard input is closed", fix="name a file")
        with ExitStack() as opened:
            stream = sys.stdin.buffer if source == "-" else opened.enter_context(open(source, "rb"))
            shutil.copyfileobj(stream, copy)
        copy.flush()
        yield copy.name


def standard_output() -> IO[bytes]:
    if sys.stdout is None:
        raise InputError("standard output is closed", fix="name a file")
    return sys.stdout.buffer


def refuse_same_file(**paths: str | None) -> None:
    seen: dict[str, str] = {}
    for role, path in paths.items():
        if path is None or (path == "-" and role == "input"):
            continue
        real = path if path == "-" else os.path.realpath(path)
        if real in seen:
            raise InputError(f"is both {seen[real]} and {role}", path=path, fix="name another file")
        seen[real] = role


def option(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    try:
        return name.strip(), float(value)
    except ValueError:
        raise InputError(f"--option {text!r} is not NAME=NUMBER", fix="write it as beta=0.002") from None


def count(number: int, noun: str) -> str:
    plural = noun[:-1] + "ies" if noun.endswith("y") else noun + "s"
    return f"{number:,} {noun if number == 1 else plural}"
