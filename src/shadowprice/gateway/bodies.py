"""What a request asks for, and its limit written into it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from shadowprice.errors import InputError
from shadowprice.formats.batch import text_of
from shadowprice.formats.limits import ENDPOINTS, LIMIT_FIELDS

__all__ = ["Ask", "limited", "parse_ask"]

_MOST = 2**31  # tokens or answers


@dataclass(frozen=True, slots=True)
class Ask:
    """A request for answers: `own` is its own limit for each of them, `usage` whether it asks to be shown the usage."""

    body: Mapping[str, Any]
    endpoint: str  # a key of ENDPOINTS
    text: str
    own: int | None
    answers: int
    stream: bool
    usage: bool


def parse_ask(content: bytes, endpoint: str) -> Ask:
    """The request in a body; raises InputError if its tokens cannot be bounded."""
    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise InputError(f"the body is not JSON: {error}"[:200], fix="send valid JSON in UTF-8") from None
    if not isinstance(body, dict):
        raise InputError("the body is not a JSON object", fix="send {...}")
    question = body.get(ENDPOINTS[endpoint].question_field)
    own = [limit for field in LIMIT_FIELDS if (limit := _whole(body, field)) is not None]
    answers = max(_whole(body, "n") or 1, _whole(body, "best_of") or 1)
    if endpoint == "/completions" and isinstance(question, list) and question and not isinstance(question[0], int):
        answers *= len(question)
    if body.get("echo"):
        raise InputError("echo is set: the prompt would be counted as part of the answer", fix="leave it out")
    options = body.get("stream_options")
    usage = isinstance(options, dict) and bool(options.get("include_usage"))
    return Ask(body, endpoint, text_of(question), min(own, default=None), answers, bool(body.get("stream")), usage)


def limited(ask: Ask, grant: int) -> dict[str, Any]:
    """The body with the grant as its limit: every limit in it is lowered, none is raised; all else is as it was."""
    body = dict(ask.body)
    given = [field for field in LIMIT_FIELDS if body.get(field) is not None]
    for field in given or [ENDPOINTS[ask.endpoint].limit_field]:
        body[field] = grant
    if ask.stream and ask.endpoint != "/responses" and not ask.usage:  # what it cost must be known
        options = body.get("stream_options")
        body["stream_options"] = {**(options if isinstance(options, dict) else {}), "include_usage": True}
    return body


def _whole(body: Mapping[str, Any], field: str) -> int | None:
    value = body.get(field)
    if value is None:
        return None
    if type(value) is not int or not 1 <= value <= _MOST:
        raise InputError(f"{field} is {value!r:.40}", fix=f"give a whole number from 1 to {_MOST}, or leave it out")
    return value
