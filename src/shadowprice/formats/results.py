"""Results as JSON lines: the only place that writes and reads them.

An answer is a line of an OpenAI Batch output file; a request without an answer is a line of the error file. Fields
that the format does not have are under `shadowprice`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, NamedTuple, TypeVar, get_args

import orjson

from shadowprice.errors import InputError
from shadowprice.formats.fixes import fix_for
from shadowprice.types import Completion, Failure, Outcome, Result, Usage

# The code of a declined request in the error file.
DECLINED = "budget_abandoned"
# In a ledger, names with this prefix are estimates of a request's length, not requests of the run.
ESTIMATE = "shadowprice.estimate:"
# In a ledger, notes under this name are not about a request: they say which routes reservations are for.
ROUTES = "shadowprice.routes"


def result_line(result: Result) -> bytes:
    """The line of a result, without its newline."""
    usage = result.usage
    own: dict[str, Any] = {
        "outcome": result.outcome,
        "cost": result.cost,
        "usage": {"output": usage.output, "input": usage.input, "cached": usage.cached},
        "correct": result.correct,
    }
    if result.completion is None:
        failure = result.failure or Failure(result.outcome, result.outcome.replace("_", " "))
        error = {"code": failure.code, "message": failure.message, **failure.details}
        if result.outcome in ("failed", "not_sent"):
            error["fix"] = fix_for(failure.code, failure.message)
        record = {"id": None, "custom_id": result.id, "response": None, "error": error}
        return orjson.dumps({**record, "shadowprice": {**own, **result.extra}})
    answer = result.completion
    own["finish"], own["tokens"] = answer.finish, answer.tokens
    own["usage_source"], own["flags"] = answer.usage_source, answer.flags
    if answer.least is not None:
        own["least"] = answer.least
    if result.failure:
        own["failure"] = asdict(result.failure)
    return orjson.dumps(
        {
            "id": f"shadowprice-{result.id}",
            "custom_id": result.id,
            "response": {"status_code": 200, "request_id": answer.body.get("id", ""), "body": answer.body},
            "error": None,
            "shadowprice": {**own, **result.extra},
        }
    )


_OWN = {"outcome", "cost", "usage", "correct", "finish", "tokens", "usage_source", "flags", "failure", "least"}


def parse_result(line: bytes) -> Result:
    """What `result_line` wrote; InputError for anything else."""
    try:
        return _parse_result(line)
    except _WRONG:
        raise InputError(f"a row of the ledger is not a result: {line!r:.60}", fix="start a new run") from None


def _parse_result(line: bytes) -> Result:
    record = orjson.loads(line)
    own = record["shadowprice"]
    answer, failure = None, None
    if record["error"]:
        details = {name: value for name, value in record["error"].items() if name not in ("code", "message", "fix")}
        failure = Failure(_of(record["error"]["code"], str), _of(record["error"]["message"], str), details)
    else:
        body = record["response"]["body"]
        failure = Failure(**own["failure"]) if "failure" in own else None
        answer = Completion(
            text=text_of_response(body),
            tokens=_of(own["tokens"], int),
            finish=own["finish"],
            usage_source=own["usage_source"],
            flags=_texts(own["flags"]),
            body=body,
            least=_of(own["least"], int) if "least" in own else None,
        )
    if own["outcome"] not in get_args(Outcome) or own["correct"] not in (True, False, None):
        raise ValueError("not an outcome")
    return Result(
        id=_of(record["custom_id"], str),
        outcome=own["outcome"],
        usage=_usage(own["usage"]),
        cost=_of(own["cost"], int),
        completion=answer,
        failure=failure,
        correct=own["correct"],
        extra={name: value for name, value in own.items() if name not in _OWN},
    )


def text_of_response(body: dict[str, Any]) -> str:
    """The text of the first answer in a response of OpenAI's form."""
    choice = (body.get("choices") or [{}])[0]
    text = choice["message"].get("content") if "message" in choice else choice.get("text")
    return str(text or "")


# --- parts of answers --------------------------------------------------------------------------


class StoredPart(NamedTuple):
    """A part of an answer, as the ledger keeps it until the answer is complete.

    landing  it is a final answer to the parts before it
    route    that gave it; empty where there is only one
    anew     it continues no part: parts before it were dropped
    """

    part: Completion
    sample: int = 0
    landing: bool = False
    route: str = ""
    anew: bool = False


def chunk_line(part: Completion, *, sample: int, landing: bool, route: str = "", anew: bool = False) -> bytes:
    """The line of a part of an answer."""
    more = {**({"route": route} if route else {}), **({"anew": True} if anew else {})}
    return orjson.dumps({"sample": sample, "landing": landing, "part": asdict(part), **more})


def parse_chunk(line: bytes) -> StoredPart:
    """What `chunk_line` wrote; InputError for anything else."""
    try:
        record = orjson.loads(line)
        part = record["part"]
        fields = {**part, "text": _of(part["text"], str), "tokens": _of(part["tokens"], int)}
        answer = Completion(**{**fields, "flags": _texts(part["flags"]), "ids": tuple(part["ids"])})
        route, anew = _of(record.get("route", ""), str), _of(record.get("anew", False), bool)
        return StoredPart(answer, _of(record["sample"], int), _of(record["landing"], bool), route, anew)
    except _WRONG:
        problem = f"a row of the ledger is not a part of an answer: {line!r:.60}"
        raise InputError(problem, fix="start a new run") from None


def dropped_parts(stored: Iterable[tuple[str, StoredPart]]) -> set[int]:
    """Which of these parts, given with their requests, were dropped: a later part of the same answer is its first.

    With a part its landings are dropped, too.
    """
    dropped: set[int] = set()
    answers: dict[tuple[str, str, int], list[int]] = {}
    for number, (name, each) in enumerate(stored):
        so_far = answers.setdefault((name, each.route, each.sample), [])
        if each.anew:
            dropped.update(so_far)
            so_far.clear()
        if so_far or not each.landing:  # a landing without a part is not dropped with later parts
            so_far.append(number)
    return dropped


# --- the routes of reservations ----------------------------------------------------------------


def routes_line(routes: Mapping[int, str]) -> bytes:
    """A note on the routes of reservations, given by their numbers."""
    numbers: dict[str, list[int]] = {}
    for number, route in routes.items():
        numbers.setdefault(route, []).append(number)
    return orjson.dumps(numbers)


def parse_routes(line: bytes) -> dict[int, str]:
    """What `routes_line` wrote; InputError for anything else."""
    try:
        found = {_of(number, int): route for route, numbers in orjson.loads(line).items() for number in numbers}
    except _WRONG:
        problem = f"a row of the ledger does not name routes: {line!r:.60}"
        raise InputError(problem, fix="start a new run") from None
    return found


# --- types -------------------------------------------------------------------------------------

_WRONG = (KeyError, IndexError, TypeError, ValueError, AttributeError)
_T = TypeVar("_T")


def _of(value: Any, kind: type[_T]) -> _T:
    if type(value) is not kind:
        raise TypeError(f"{value!r:.40}")
    return value


def _texts(values: Any) -> tuple[str, ...]:
    return tuple(_of(item, str) for item in _of(values, list))


def _usage(counts: Any) -> Usage:
    return Usage(**{name: _of(count, int) for name, count in counts.items()})
