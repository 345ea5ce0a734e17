"""OpenAI Batch files: JSON lines `{custom_id, method, url, body}`, in and out.

Requests are read one line at a time and never written anew from their parsed form: a limit is put
into the line as text, so that every other byte of it, number formats and escapes included, is what
the caller wrote.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from tempfile import mkstemp
from typing import IO, Any

import orjson

from shadowprice.errors import InputError
from shadowprice.types import Query

# What limits the answer, and where the question is, by the end of the url.
_ENDPOINTS = {
    "/chat/completions": ("max_completion_tokens", "messages"),
    "/completions": ("max_tokens", "prompt"),
    "/responses": ("max_output_tokens", "input"),
}
_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")


@dataclass(frozen=True)
class Request:
    """One line of a batch file."""

    line: int
    raw: bytes
    query: Query
    limit_field: str  # the field of the body that limits the answer
    older_limit: bool  # a chat that carries `max_tokens`, which OpenAI refuses beside the newer field


def read_requests(path: str | os.PathLike[str]) -> Iterator[Request]:
    """The requests of a file, in order. Blank lines are passed over; anything else wrong is an error."""
    seen: set[str] = set()
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            raw = line.removeprefix(b"\xef\xbb\xbf").strip() if number == 1 else line.strip()
            if not raw:
                continue
            try:
                request = _parse(raw, number)
            except _BadRequest as error:
                raise InputError(error.args[0], fix=error.args[1], path=path, line=number) from None
            if request.query.id in seen:
                raise InputError(
                    f"custom_id {request.query.id!r} was used before",
                    fix="give every request its own",
                    path=path,
                    line=number,
                )
            seen.add(request.query.id)
            yield request


class _BadRequest(Exception):
    """Problem and fix; `read_requests` adds the place."""


def _parse(raw: bytes, number: int) -> Request:
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
    if not body.get(question):
        raise _BadRequest(f"no {question} in the body", "a request needs a question")
    limits = [limit for field in _LIMITS if (limit := _whole(body, field)) is not None]
    answers = _whole(body, "n") or 1
    if endpoint == "/completions":  # `best_of` answers are generated, `n` of them are returned
        prompts = body["prompt"] if isinstance(body["prompt"], list) else [body["prompt"]]
        answers = max(answers, _whole(body, "best_of") or 1) * (
            len(prompts) if isinstance(prompts[0], str | list) else 1
        )
    query = Query(name, _text(body[question]), min(limits, default=None), answers)
    older = endpoint == "/chat/completions" and body.get("max_tokens") is not None
    return Request(number, raw, query, limit_field, older)


def _whole(body: dict[str, Any], field: str) -> int | None:
    value = body.get(field)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _BadRequest(f"{field} is {value!r}", "give a whole number of at least 1, or leave it out")
    return value


def _text(question: Any) -> str:
    """All the text in messages, content parts or a plain prompt."""
    if isinstance(question, str):
        return question
    if isinstance(question, dict):
        return _text(question.get("content") or question.get("text") or "")
    if isinstance(question, list):
        return "\n".join(filter(None, map(_text, question)))
    return ""


# --- limits into lines -------------------------------------------------------------------------

_decode = json.JSONDecoder().raw_decode
_blank = re.compile(r"[ \t\n\r]*")


def with_limit(raw: bytes, field: str, limit: int) -> bytes:
    """The line with `field` of its body set to `limit`; every other byte as it was."""
    text = raw.decode()
    body = next(start for key, start, _ in reversed(list(_members(text, 0))) if key == "body")
    present = [(start, end) for key, start, end in _members(text, body) if key == field]
    for start, end in reversed(present):
        text = f"{text[:start]}{limit}{text[end:]}"
    if not present:
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


@contextmanager
def replacing(paths: Sequence[str | os.PathLike[str]]) -> Iterator[list[IO[bytes]]]:
    """Files to write to that take the place of `paths` only if everything went well."""
    with ExitStack() as stack:
        files: list[IO[bytes]] = []
        names: list[str] = []
        for path in paths:
            target = os.path.abspath(path)
            if os.path.isdir(target):
                raise InputError("is a folder", path=path, fix="name a file to write")
            try:
                descriptor, name = mkstemp(dir=os.path.dirname(target), prefix=".shadowprice-")
            except OSError as error:
                raise InputError(
                    f"cannot be written: {error.strerror}", path=path, fix="choose another place"
                ) from None
            stack.callback(_remove, name)
            files.append(stack.enter_context(open(descriptor, "wb")))
            names.append(name)
        yield files
        for file in files:
            file.flush()
            os.fsync(file.fileno())
        for name, path in zip(names, paths, strict=True):
            os.chmod(name, 0o666 & ~_umask())
            os.replace(name, path)


def _remove(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
