"""Attempts at pieces of work: what the executor knows of them, and how they are settled in the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import orjson

from shadowprice.accounts.book import Book
from shadowprice.accounts.sqlite import Settlement
from shadowprice.backends.base import join
from shadowprice.engine.scheduler import Report, Work
from shadowprice.errors import BackendError, Unavailable
from shadowprice.formats.results import ROUTES, chunk_line, result_line, routes_line
from shadowprice.types import Completion, Result, Usage


class Attempt(NamedTuple):
    """An attempt at a piece of work."""

    reservation: int
    work: Work
    tried: int  # attempts before it that count
    turn: int  # of the breaker when it was sent


def attempt_name(execution: str, reservation: int) -> str:
    """The name by which a server may know an attempt; "" if the execution has no name."""
    return f"{execution}-{reservation}" if execution else ""


class Retry(NamedTuple):
    """A piece of work that generated nothing and will be sent again, at `due` or later."""

    work: Work
    tried: int
    error: BackendError
    due: float


def note_routes(ledger: Book, reservations: Sequence[int], routes: Sequence[str]) -> None:
    """Notes which routes these attempts go to, so that a resumed run knows what each route was charged."""
    named = {number: route for number, route in zip(reservations, routes, strict=True) if route}
    if named:
        ledger.note(ROUTES, routes_line(named))


def settlement(reservation: int, report: Report, result: Result | None) -> Settlement:
    """How an attempt is settled: with an answer, with a part of one, or with its cost alone."""
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
            part = chunk_line(
                report.completion,
                sample=work.sample,
                landing=bool(work.suffix),
                route=work.route,
                anew=work.so_far is None,
            )
            return Settlement("chunk", reservation, report.cost, usage, part)
    line = result_line(result) if result is not None and answered else None
    return Settlement("settle", reservation, report.cost, usage, line)


def failure(problem: BaseException) -> BackendError:
    """The error for an exception that no backend should raise: what was generated before it is unknown."""
    line = " ".join(f"{type(problem).__name__}: {problem}".split())
    return Unavailable(line[:300], tokens=None)


def checked(work: Work, part: Completion) -> Completion:
    """The answer so far, with this part; raises if it cannot be charged, continued or written."""
    if not isinstance(part, Completion):
        raise TypeError(f"the backend gave {type(part).__name__}, not a Completion")
    counts = output, input, cached = part.tokens, part.input_tokens, part.cached_tokens
    if not type(output) is type(input) is type(cached) is int or min(counts) < 0:
        raise ValueError(f"the backend counted {counts} tokens")
    orjson.dumps((part.text, part.body, part.flags, part.ids))
    return part if work.probe else join(work.so_far, part, work.suffix)
