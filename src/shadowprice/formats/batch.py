"""OpenAI Batch files: JSON lines `{custom_id, method, url, body}`.

Requests are read one line at a time. A line is never rewritten from its parsed form: a limit is put into its text, so
every other byte, including number formats and escapes, is what the caller wrote.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from shadowprice.errors import InputError
from shadowprice.formats.jsonl import located, parse_object, read_lines, too_deep
from shadowprice.formats.limits import ENDPOINTS, LIMIT_FIELDS
from shadowprice.types import Request

_FORM = '{"custom_id": ..., "method": "POST", "url": ..., "body": {...}}'
_LARGEST = 2**31  # tokens or answers in one request; more is a mistake


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One line of a batch file.

    limit_field  the field of the body that limits the answer
    older_limit  whether it is a chat with `max_tokens`, which OpenAI rejects beside the newer field
    """

    number: int
    raw: bytes
    request: Request
    limit_field: str
    older_limit: bool


def read_batch(path: str | os.PathLike[str], label: str | None = None) -> Iterator[BatchLine]:
    """The requests of a file, in order; a line that is not a request is an InputError with its place.

    Errors name the file by `label` if it is given.
    """
    return parse_batch(read_lines(path, label), label or path)


def parse_batch(lines: Iterable[tuple[int, bytes]], label: str | os.PathLike[str]) -> Iterator[BatchLine]:
    """The requests in numbered lines."""
    seen: set[str] = set()
    for number, raw in lines:
        try:
            line = _parse(raw, number)
            if line.request.id in seen:
                raise InputError(f"custom_id {line.request.id!r} was used before", fix="give every request its own")
        except InputError as error:
            raise located(error, label, number) from None
        except RecursionError:
            raise located(too_deep(), label, number) from None
        seen.add(line.request.id)
        yield line


def as_batch(requests: Iterable[object], label: str = "requests") -> Iterator[tuple[int, bytes]]:
    """Numbered batch lines for questions (texts), request bodies and parsed batch lines.

    A question becomes a chat with one message. Requests without a `custom_id` are called request-1, request-2 and so
    on, by their position.
    """
    for number, request in enumerate(requests, start=1):
        try:
            record = _as_record(request, number)
            line = json.dumps(record, ensure_ascii=False, allow_nan=False).encode()
        except InputError as error:
            raise located(error, label, number) from None
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(f"cannot be written as JSON: {error}", path=label, line=number, fix="fix it") from None
        yield number, line


def _as_record(request: object, number: int) -> dict[str, Any]:
    named = {"custom_id": f"request-{number}", "method": "POST"}
    if isinstance(request, str):
        if not request.strip():
            raise InputError("the question is empty", fix="give a question")
        request = {"messages": [{"role": "user", "content": request}]}
    if not isinstance(request, Mapping):
        raise InputError(
            f"a request cannot be of type {type(request).__name__}",
            fix="give a question, a request body or a batch line",
        )
    if "body" in request:
        return {**named, **request}
    for end, (_, question_field) in ENDPOINTS.items():
        if question_field in request:
            body = dict(request)
            named["custom_id"] = body.pop("custom_id", named["custom_id"])
            return {**named, "url": f"/v1{end}", "body": body}
    raise InputError("no messages, prompt or input", fix="give a question, a request body or a batch line")


def _parse(raw: bytes, number: int) -> BatchLine:
    record = parse_object(raw, form=_FORM)
    name, body = record.get("custom_id"), record.get("body")
    if isinstance(name, int) and not isinstance(name, bool):
        name = str(name)
    if not isinstance(name, str) or not name:
        raise InputError("no custom_id", fix="give every request its own, as a string")
    if not isinstance(body, dict):
        raise InputError("no body", fix='put the request into "body": {"model": ..., "messages": [...]}')
    url = record.get("url") or ("/v1/chat/completions" if "messages" in body else "/v1/completions")
    end = next((end for end in ENDPOINTS if isinstance(url, str) and url.endswith(end)), None)
    if end is None:
        raise InputError(f"url {url!r} takes no token limit", fix="use chat completions, completions or responses")
    limit_field, question_field = ENDPOINTS[end]
    question = body.get(question_field)
    if not question:
        raise InputError(f"no {question_field} in the body", fix="a request needs a question")
    chat = question_field == "messages"
    if not isinstance(question, list if chat else str | list) or (
        chat and not all(isinstance(message, dict) for message in question)
    ):
        raise InputError(f"{question_field} is {question!r:.40}", fix="give a list of messages, or a text if allowed")
    limits = limits_in(body)
    answers = _whole(body, "n") or 1
    if end == "/completions":  # `best_of` answers are generated, `n` of them are returned
        prompts = question if isinstance(question, list) else [question]
        answers = max(answers, _whole(body, "best_of") or 1) * (
            len(prompts) if isinstance(prompts[0], str | list) else 1
        )
    request = Request(name, text_of(question), min(limits, default=None), answers, body)
    return BatchLine(number, raw, request, limit_field, chat and body.get("max_tokens") is not None)


def limits_in(body: Mapping[str, Any]) -> list[int]:
    """The limits that the caller set; one that is not a number of tokens is an InputError."""
    return [limit for field in LIMIT_FIELDS if field in body and (limit := _whole(body, field))]


def _whole(body: Mapping[str, Any], field: str) -> int | None:
    value = body.get(field)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _LARGEST:
        raise InputError(f"{field} is {value!r}", fix=f"give a whole number from 1 to {_LARGEST}, or leave it out")
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


def with_limit(raw: bytes, field: str, limit: int, *, lower_others: bool = False) -> bytes:
    """The line with `field` of its body set to `limit`; every other byte stays.

    `lower_others` lowers the other limits in the body too. llama.cpp's `n_predict` is always lowered, because it
    overrides the others.
    """
    text = raw.decode()
    body = next(start for key, start, _ in reversed(list(_members(text, 0))) if key == "body")
    others = LIMIT_FIELDS if lower_others else ("n_predict",)
    present = [
        (key, start, end)
        for key, start, end in _members(text, body)
        if key == field or (key in others and not _is_within(text[start:end], limit))
    ]
    for _, start, end in reversed(present):
        text = f"{text[:start]}{limit}{text[end:]}"
    if field not in (key for key, _, _ in present):
        comma = "" if text[_after_space(text, body + 1)] == "}" else ", "
        text = f'{text[: body + 1]}"{field}": {limit}{comma}{text[body + 1 :]}'
    return text.encode()


def _is_within(value: str, limit: int) -> bool:
    return value == "null" or (value.isdecimal() and int(value) <= limit)


def _members(text: str, start: int) -> Iterator[tuple[str, int, int]]:
    """Key, start and end of the value of each member of the (valid) JSON object at `start`."""
    at = _after_space(text, start + 1)
    while text[at] != "}":
        key, at = _decode(text, at)
        start = _after_space(text, text.index(":", at) + 1)
        _, at = _decode(text, start)
        yield key, start, at
        at = _after_space(text, at)
        if text[at] == ",":
            at = _after_space(text, at + 1)


def _after_space(text: str, at: int) -> int:
    while text[at] in " \t\n\r":
        at += 1
    return at
