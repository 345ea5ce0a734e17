"""Requests for a run: from texts, OpenAI bodies or a batch file, and checks before anything is sent."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from shadowprice.errors import InputError
from shadowprice.formats.batch import as_batch, parse_batch, read_batch
from shadowprice.formats.results import ESTIMATE, ROUTES
from shadowprice.types import Request


def requests_from(
    source: Sequence[str | Mapping[str, Any] | Request] | str | os.PathLike[str], label: str | None = None
) -> list[Request]:
    """Requests from a batch file, or from texts, OpenAI bodies and batch lines; errors name the file by `label`."""
    if not isinstance(source, str | os.PathLike):
        source = list(source)
    if isinstance(source, str | os.PathLike):
        return [line.request for line in read_batch(source, label)]
    requests = [item for item in source if isinstance(item, Request)]
    plain = [item for item in source if not isinstance(item, Request)]
    if requests and plain:
        raise InputError("requests are both Request objects and others", path=label, fix="give all in one form")
    if requests:
        return requests
    return [line.request for line in parse_batch(as_batch(plain), label or "requests")]


def check_requests(requests: Sequence[Request], *, priced: bool) -> None:
    """Raises InputError if ids are not unique, or if prompts cost something and the cost of one has no bound."""
    if not requests:
        raise InputError("has no requests", fix="give one or more")
    _refuse_several_answers(requests)
    _refuse_reserved_names(requests)
    _refuse_same_names(requests)
    if priced:
        for request in requests:
            refuse_unbounded_prompt(request)


def refuse_unbounded_prompt(request: Request) -> None:
    """A few bytes can name an image, a file or a sound that is read as thousands of tokens."""
    for message in request.body.get("messages") or ():
        content = message.get("content") if isinstance(message, Mapping) else None
        parts = content if isinstance(content, list) else []
        if any(isinstance(part, Mapping) and part.get("type", "text") not in ("text", "refusal") for part in parts):
            problem = f"request {request.id!r:.80} has more than text, whose cost has no bound"
            raise InputError(problem, fix="use a budget of output tokens")


def _refuse_several_answers(requests: Sequence[Request]) -> None:
    if several := next((r for r in requests if r.answers > 1), None):
        raise InputError(
            f"request {several.id!r} asks for several answers (n)", fix="ask for one; --samples makes more"
        )


def _refuse_reserved_names(requests: Sequence[Request]) -> None:
    if named := next((r for r in requests if r.id.startswith(ESTIMATE)), None):
        raise InputError(f"custom_id {named.id!r:.80} begins with {ESTIMATE!r}, which is reserved", fix="rename it")
    if any(request.id == ROUTES for request in requests):
        raise InputError(f"custom_id {ROUTES!r} is reserved", fix="rename it")


def _refuse_same_names(requests: Sequence[Request]) -> None:
    name, times = Counter(request.id for request in requests).most_common(1)[0]
    if times > 1:
        raise InputError(f"custom_id {name!r:.80} is used {times} times", fix="give every request its own")
