"""TALE-EP: a teacher model estimates how many tokens each request needs (paper, eq. 21 to 24).

    ask              asks the teacher
    with_estimates   the forecast with its numbers; policy `tale` divides the budget in proportion to them

The scheduler of policy `tale` states each grant in the prompt and also sends it as the hard limit.

Estimates are executed like requests, under reserved names that begin with `ESTIMATE`. Each is granted `LIMIT` tokens,
reserved before it is sent, and kept in the ledger, so a resumed run neither asks nor pays again. The teacher is asked
about a request at most twice, crashes included. The second question is stricter; it is sent if the first reply was not
a number or is unknown. A request without an estimate keeps its forecast.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from shadowprice.accounts.sqlite import Ledger
from shadowprice.backends.base import Backend
from shadowprice.cost import TOKENS, Rates
from shadowprice.engine.executor import USUAL, Progress, Tolerance, execute
from shadowprice.engine.fixed import Fixed
from shadowprice.formats.results import ESTIMATE, parse_result
from shadowprice.types import Forecast, Request

LIMIT = 16  # tokens of one estimate
ASKS = 2  # the most questions about one request
_LARGEST = 2**31  # tokens; as in a batch file, larger numbers count as mistakes

# --- the teacher's number ----------------------------------------------------------------------

_ASK = (
    "How many tokens does a complete answer to this request need, reasoning included? "
    "Reply with one whole number; do not answer the request.\n\nRequest: {text}"
)
_ENDINGS = ("\n\nNumber of tokens:", "\n\nThe number of tokens, in digits only:")  # of the first and second question
# Small models tend to answer the request itself; examples show them the expected reply.
_EXAMPLES = (("Name a primary colour.", "8"), ("Prove that the square root of two is irrational.", "420"))
_NUMBER = re.compile(r"([1-9]\d{0,2}(?:[,_]\d{3}){1,3}|[1-9]\d{0,9})(?:\s*tokens?)?", re.ASCII | re.IGNORECASE)


def parse_estimate(text: str) -> int | None:
    """The number, if the text is one positive whole number, as in `1,200` or `1200 tokens`, and nothing else."""
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        return None
    number = int(re.sub("[,_]", "", match[1]))
    return number if number <= _LARGEST else None


def question(request: Request, turn: int) -> Request:
    """The question to the teacher about a request: the first (turn 0) or the second (turn 1)."""
    messages: list[dict[str, str]] = []
    for text, tokens in _EXAMPLES:
        messages += [_user(_ASK.format(text=text)), {"role": "assistant", "content": tokens}]
    messages.append(_user(_ASK.format(text=request.text) + _ENDINGS[turn]))
    body: dict[str, Any] = {"messages": messages, "temperature": 0}
    if model := request.body.get("model"):
        body["model"] = model
    return Request(_name(request, turn), request.text, body=body)


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _name(request: Request, turn: int) -> str:
    return f"{ESTIMATE}{turn + 1}:{request.id}"


# --- asking ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Estimates:
    """The teacher's estimates in a ledger."""

    tokens_of: Mapping[str, int]  # the estimates, by request id
    asked: int  # requests that the teacher was asked about
    retried: int  # requests that it was asked about twice
    fell_back: int  # requests without an estimate, asked or not
    tokens: int  # that the teacher generated, or may have generated
    flags: dict[str, int]  # violations by its server, and how often each occurred


async def ask(
    requests: Sequence[Request],
    ledger: Ledger,
    teacher: Backend,
    *,
    most: int,
    concurrency: int = 8,
    attempts: int = 4,
    tolerance: Tolerance = USUAL,
    rates: Rates = TOKENS,
    progress: Progress | None = None,
    on_event: Callable[[Progress], None] = lambda progress: None,
) -> None:
    """Asks for estimates of the requests that have none in `ledger`, for at most `most` units in total.

    Asking ends when these units are spent, or if the teacher fails on all of the first questions. Attempts that are
    known to have generated nothing are retried and do not count.
    """
    with_text = [request for request in requests if request.text.strip()]
    for turn in range(ASKS):
        known = _read(ledger)
        due = [question(r, turn) for r in with_text if _is_due(r, turn, known)]
        scheduler = Fixed(LIMIT, give_up_after=concurrency, most=most - known.units, attempts=1, rates=rates)
        scheduler.add(due)
        await execute(
            scheduler,
            ledger,
            teacher,
            concurrency=concurrency,
            attempts=attempts,
            tolerance=tolerance,
            rates=rates,
            progress=progress,
            on_event=on_event,
            record_rest=False,
        )


def _is_due(request: Request, turn: int, known: _Known) -> bool:
    """Whether this question is due: all earlier ones were asked, and none was answered with a number."""
    before = [known.of.get(_name(request, earlier)) for earlier in range(turn)]
    return _name(request, turn) not in known.of and all(r is not None and r.number is None for r in before)


def estimates_in(ledger: Ledger, requests: Sequence[Request]) -> Estimates:
    known = _read(ledger)
    replies = [[known.of[name] for turn in range(ASKS) if (name := _name(r, turn)) in known.of] for r in requests]
    tokens_of = {
        request.id: number
        for request, of_request in zip(requests, replies, strict=True)
        if of_request and (number := of_request[-1].number)
    }
    return Estimates(
        tokens_of=tokens_of,
        asked=sum(len(of_request) > 0 for of_request in replies),
        retried=sum(len(of_request) > 1 for of_request in replies),
        fell_back=len(requests) - len(tokens_of),
        tokens=known.tokens,
        flags=dict(Counter(flag for reply in known.of.values() for flag in reply.flags)),
    )


def with_estimates(forecast: Forecast, requests: Sequence[Request], estimates: Mapping[str, int]) -> Forecast:
    """The forecast with the teacher's numbers as medians, for requests that have one."""
    tokens = np.array([estimates.get(r.id, own) for r, own in zip(requests, forecast.tokens, strict=True)])
    return replace(forecast, tokens=tokens, shape=None)


class _Reply(NamedTuple):
    number: int | None = None
    flags: Sequence[str] = ()


@dataclass
class _Known:
    of: dict[str, _Reply] = field(default_factory=dict)  # by the name of the estimate; only those that were sent
    tokens: int = 0
    units: int = 0


def _read(ledger: Ledger) -> _Known:
    known = _Known()
    for entry in ledger.entries():
        if entry.request and entry.request.startswith(ESTIMATE) and entry.kind in ("settle", "orphan"):
            known.of[entry.request] = _Reply()
            known.units += entry.units
            used = entry.usage.output if entry.usage else 0
            known.tokens += used if entry.answered or used else LIMIT
    for name, line in ledger.results():
        if name.startswith(ESTIMATE) and (answer := parse_result(line).completion):
            # A number that was cut off is a different number.
            number = parse_estimate(answer.text) if answer.finish == "stop" else None
            known.of[name] = _Reply(number, answer.flags)
    return known
