"""Attempts at pieces of work: what the loop of the executor keeps of them, and how they end in the ledger."""

from __future__ import annotations

from typing import NamedTuple

import orjson

from shadowprice.accounts.sqlite import Settlement
from shadowprice.backends.base import join
from shadowprice.engine.scheduler import Report, Work
from shadowprice.errors import BackendError, Unavailable
from shadowprice.formats.results import chunk_line, result_line
from shadowprice.types import Completion, Result, Usage


class Attempt(NamedTuple):
    """An attempt at a piece of work: the number of those before it that count, and when it was sent."""

    reservation: int
    work: Work
    tried: int
    turn: int


def attempt_name(execution: str, reservation: int) -> str:
    """The name of an attempt, by which a server may know it; "" if the execution has none."""
    return f"{execution}-{reservation}" if execution else ""


class Repetition(NamedTuple):
    """A piece of work that generated nothing and is sent again, from `due` on."""

    work: Work
    tried: int
    error: BackendError
    due: float


def settlement(reservation: int, report: Report, result: Result | None) -> Settlement:
    """How an attempt ends in the ledger: with an answer, with a part of one, or with its cost alone."""
    answered = result is not None and result.completion is not None
    if report.completion is None:
        if report.cost == 0 and not answered:
            sent = report.error is not None and report.error.sent
            return Settlement("free" if sent else "void", reservation, 0, None, None)
        usage = Usage(output=report.error.tokens or 0) if report.error else Usage()
    else:
        usage = report.completion.usage
        if result is None:
            work = report.work
            part = chunk_line(report.completion, sample=work.sample, landing=bool(work.suffix), route=work.route)
            return Settlement("chunk", reservation, report.cost, usage, part)
    line = result_line(result) if result is not None and answered else None
    return Settlement("settle", reservation, report.cost, usage, line)


def failure(problem: BaseException) -> BackendError:
    """For an exception that no backend should raise: what was generated before it is unknown."""
    line = " ".join(f"{type(problem).__name__}: {problem}".split())
    return Unavailable(line[:300], tokens=None)


def checked(work: Work, found: Completion) -> Completion:
    """The answer so far; raises if it cannot be charged, continued or written."""
    if not isinstance(found, Completion):
        raise TypeError(f"the backend gave {type(found).__name__}, not a Completion")
    counts = output, input, cached = found.tokens, found.input_tokens, found.cached_tokens
    if not type(output) is type(input) is type(cached) is int or min(counts) < 0:
        raise ValueError(f"the backend counted {counts} tokens")
    orjson.dumps((found.text, found.body, found.flags, found.ids))
    return found if work.probe else join(work.so_far, found, work.suffix)
