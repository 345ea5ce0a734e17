"""OpenAI Batch files: JSON lines `{custom_id, method, url, body}`, in and out.

Requests are read one line at a time and never written anew from their parsed form: a limit is put
into the line as text, so that every other byte of it, number formats and escapes included, is what
the caller wrote.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from shadowprice.errors import InputError
from shadowprice.types import Forecast, Request

# What limits the answer, and where the question is, by the end of the url.
_ENDPOINTS = {
    "/chat/completions": ("max_completion_tokens", "messages"),
    "/completions": ("max_tokens", "prompt"),
    "/responses": ("max_output_tokens", "input"),
}
_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
_MOST = 2**31  # of tokens or answers in one request; more is a slip of the pen


@dataclass(frozen=True)
class BatchLine:
    """One line of a batch file."""

    line: int
    raw: bytes
    query: Request
    limit_field: str  # the field of the body that limits the answer
    older_limit: bool  # a chat that carries `max_tokens`, which OpenAI refuses beside the newer field


def read_requests(path: str | os.PathLike[str], *, label: str | None = None) -> Iterator[BatchLine]:
    """The requests of a file, in order. Blank lines are passed over; anything else wrong is an error.

    Errors name the file by `label` where it is given.
    """
    name = label or path
    seen: set[str] = set()
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            raw = line.removeprefix(b"\xef\xbb\xbf").strip() if number == 1 else line.strip()
            if not raw:
                continue
            try:
                request = _parse(raw, number)
            except _BadRequest as error:
                raise InputError(error.args[0], fix=error.args[1], path=name, line=number) from None
            except RecursionError:
                raise InputError("nested too deeply", fix="mend the line", path=name, line=number) from None
            if request.query.id in seen:
                raise InputError(
                    f"custom_id {request.query.id!r} was used before",
                    fix="give every request its own",
                    path=name,
                    line=number,
                )
            seen.add(request.query.id)
            yield request


class _BadRequest(Exception):
    """Problem and fix; `read_requests` adds the place."""


def _parse(raw: bytes, number: int) -> BatchLine:
    try:
        record = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise _BadRequest(f"not JSON: {error.msg} at column {error.colno}", "mend or remove the line") from None
    if not isinstance(record, dict):
        raise _BadRequest("not a JSON object", 'write {"custom_id": ..., "method": "POST", "url": ..., "body": {...}}')
    name, body = record.get("custom_id"), record.get("body")
    if not isinstance(name, str) or not name:
        raise _BadRequest("no custom_id", "give every request its own, as a string")
    if not isinstance(body, dict):
        raise _BadRequest("no body", 'put the request into "body": {"model": ..., "messages": [...]}')
    url = record.get("url") or ("/v1/chat/completions" if "messages" in body else "/v1/completions")
    endpoint = next((end for end in _ENDPOINTS if isinstance(url, str) and url.endswith(end)), None)
    if endpoint is None:
        raise _BadRequest(f"url {url!r} takes no token limit", "plan chat completions, completions or responses")
    limit_field, question = _ENDPOINTS[endpoint]
    asked = body.get(question)
    if not asked:
        raise _BadRequest(f"no {question} in the body", "a request needs a question")
    if not isinstance(asked, list if question == "messages" else str | list) or (
        question == "messages" and not all(isinstance(message, dict) for message in asked)
    ):
        raise _BadRequest(f"{question} is {asked!r:.40}", "give a list of messages, or a text where that is allowed")
    limits = [limit for field in _LIMITS if (limit := _whole(body, field)) is not None]
    answers = _whole(body, "n") or 1
    if endpoint == "/completions":  # `best_of` answers are generated, `n` of them are returned
        prompts = asked if isinstance(asked, list) else [asked]
        answers = max(answers, _whole(body, "best_of") or 1) * (
            len(prompts) if isinstance(prompts[0], str | list) else 1
        )
    query = Request(name, text_of(asked), min(limits, default=None), answers)
    older = endpoint == "/chat/completions" and body.get("max_tokens") is not None
    return BatchLine(number, raw, query, limit_field, older)


def _whole(body: dict[str, Any], field: str) -> int | None:
    value = body.get(field)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST:
        raise _BadRequest(f"{field} is {value!r}", f"give a whole number from 1 to {_MOST}, or leave it out")
    return value


def text_of(question: Any) -> str:
    """All the text in messages, content parts or a plain prompt."""
    if isinstance(question, str):
        return question
    if isinstance(question, dict):
        return text_of(question.get("content") or question.get("text") or "")
    if isinstance(question, list):
        return "\n".join(filter(None, map(text_of, question)))
    return ""


# --- limits into lines -------------------------------------------------------------------------

_decode = json.JSONDecoder().raw_decode
_blank = re.compile(r"[ \t\n\r]*")


def with_limit(raw: bytes, field: str, limit: int, *, lower_others: bool = False) -> bytes:
    """The line with `field` of its body set to `limit`; every other byte as it was.

    `lower_others` sets the other limits of the body too, where they are above it.
    """
    text = raw.decode()
    body = next(start for key, start, _ in reversed(list(_members(text, 0))) if key == "body")
    others = _LIMITS if lower_others else ()
    found = [
        (key, start, end)
        for key, start, end in _members(text, body)
        if key == field or (key in others and text[start:end] != "null" and int(text[start:end]) > limit)
    ]
    for _, start, end in reversed(found):
        text = f"{text[:start]}{limit}{text[end:]}"
    if field not in (key for key, _, _ in found):
        comma = "" if text[_skip(text, body + 1)] == "}" else ", "
        text = f'{text[: body + 1]}"{field}": {limit}{comma}{text[body + 1 :]}'
    return text.encode()


def _members(text: str, start: int) -> Iterator[tuple[str, int, int]]:
    """Key, start and end of the value of each member of the (valid) JSON object at `start`."""
    at = _skip(text, start + 1)
    while text[at] != "}":
        key, at = _decode(text, at)
        value = _skip(text, _skip(text, at) + 1)  # past the colon
        _, end = _decode(text, value)
        yield key, value, end
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    match = _blank.match(text, at)
    return match.end() if match else at


def error_line(custom_id: str, code: str, message: str, **details: Any) -> bytes:
    """A line of the error file: what became of a request that got no answer."""
    error = {"code": code, "message": message, **details}
    return orjson.dumps({"id": None, "custom_id": custom_id, "response": None, "error": error})


def abandoned_line(custom_id: str, forecast: Forecast, query: int, price: float | None) -> bytes:
    """The line of the error file for a query that could not pay the price."""
    of_all = {name: getattr(forecast, name) for name in ("tokens", "spread", "solve")}
    told = {name: float(values[query] if values.ndim else values) for name, values in of_all.items()}
    message = "abandoned: its tokens buy more elsewhere; try it again with a larger budget"
    return error_line(custom_id, "budget_abandoned", message, forecast=told, price=price)
