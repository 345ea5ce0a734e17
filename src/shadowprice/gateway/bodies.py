"""What a request asks for, and its limit written into it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import orjson

from shadowprice.errors import InputError
from shadowprice.formats.batch import text_of
from shadowprice.formats.limits import ENDPOINTS, LIMIT_FIELDS

__all__ = ["EMBEDDINGS", "Ask", "limited", "parse_ask"]

EMBEDDINGS = "/embeddings"
_MOST = 2**31  # tokens or answers
_UNDERSTOOD = {  # limits that every server of an endpoint keeps
    "/chat/completions": {"max_completion_tokens", "max_tokens"},
    "/completions": {"max_tokens"},
    "/responses": {"max_output_tokens"},
}
_ANSWERS = ("n", "best_of", "n_cmpl")  # how many answers; in llama.cpp its own `n_cmpl` overrides `n`
_FRAME = 256  # tokens that a chat template may add to a prompt
# Parts of a message, and items of an input, whose tokens their bytes bound; and tools that the client runs.
_TEXT = {"text", "input_text", "output_text", "refusal"}
_ITEMS = {
    None, "message", "reasoning", "function_call", "function_call_output", "custom_tool_call",
    "custom_tool_call_output",
}  # fmt: skip
_TOOLS = {None, "function", "custom"}
_ELSEWHERE = {"previous_response_id", "conversation", "web_search_options"}  # the prompt has more than is in the body


class Ask(NamedTuple):
    """A request for answers.

    own      its own limit for each of them
    usage    whether it asks to be shown the usage
    size     bytes of its body
    prompts  how many it has: each can be as long as the context of a route
    """

    body: Mapping[str, Any]
    endpoint: str  # a key of ENDPOINTS, or EMBEDDINGS
    text: str
    own: int | None
    answers: int
    stream: bool
    usage: bool
    size: int = 0
    prompts: int = 1

    @property
    def prompt(self) -> int | None:
        """The most tokens that its prompt can have, as far as it is text; None: images, files, earlier answers."""
        return None if _is_elsewhere(self.body) else self.size + _FRAME  # no tokenizer makes more tokens than bytes

    @property
    def hosted(self) -> bool:
        """Whether the server runs a tool for it, and reads again what that finds."""
        tools = self.body.get("tools")
        return isinstance(tools, list) and any(isinstance(each, dict) and not _is_of(each, _TOOLS) for each in tools)

    @property
    def begun(self) -> str:
        """The beginning of the answer, which the server is to continue: the assistant has the last word of a chat."""
        messages = self.body.get("messages")
        last = messages[-1] if isinstance(messages, list) and messages else None
        return text_of(last) if isinstance(last, dict) and last.get("role") == "assistant" else ""

    @property
    def model(self) -> object:
        return self.body.get("model")


def parse_ask(content: bytes, endpoint: str) -> Ask:
    """The request in a body; raises InputError if its tokens cannot be bounded."""
    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise InputError(f"the body is not JSON: {error}"[:200], fix="send valid JSON in UTF-8") from None
    if not isinstance(body, dict):
        raise InputError("the body is not a JSON object", fix="send {...}")
    if endpoint == EMBEDDINGS:
        return Ask(body, endpoint, "", None, 1, False, False, len(content), _prompts(body.get("input")))
    question = body.get(ENDPOINTS[endpoint].question_field)
    prompts = _prompts(question) if endpoint == "/completions" else 1
    own = [limit for field in LIMIT_FIELDS if field in body and (limit := _whole(body, field)) is not None]
    answers = prompts * max(_whole(body, field) or 1 for field in _ANSWERS)
    if body.get("echo"):
        raise InputError("echo is set: the prompt would be counted as part of the answer", fix="leave it out")
    options = body.get("stream_options")
    usage = isinstance(options, dict) and bool(options.get("include_usage"))
    try:
        text = text_of(question)
    except RecursionError:
        raise too_deep() from None
    stream = bool(body.get("stream"))
    return Ask(body, endpoint, text, min(own, default=None), answers, stream, usage, len(content), prompts)


def limited(ask: Ask, grant: int, chat_field: str = "") -> dict[str, Any]:
    """The body with the grant as its limit: every limit in it is lowered, none is raised; all else is as it was.

    chat_field  of the two fields for the limit of a chat, the only one that the server knows; "": it knows both
    """
    body = dict(ask.body)
    if chat_field and ask.endpoint == "/chat/completions":
        for field in _UNDERSTOOD[ask.endpoint]:
            body.pop(field, None)
        body[chat_field] = grant
    given = [field for field in LIMIT_FIELDS if body.get(field) is not None]
    if not _UNDERSTOOD[ask.endpoint].intersection(given):  # a server ignores a limit of another endpoint
        given.append(ENDPOINTS[ask.endpoint].limit_field)
    for field in given:
        body[field] = grant
    if ask.stream and ask.endpoint != "/responses" and not ask.usage:  # what it cost must be known
        options = body.get("stream_options")
        body["stream_options"] = {**(options if isinstance(options, dict) else {}), "include_usage": True}
    return body


def written(body: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(body)
    except TypeError:
        raise too_deep() from None


def too_deep() -> InputError:
    return InputError("the body is nested too deep", fix="send less than 250 levels")


def _prompts(question: object) -> int:
    """A list has several, unless it is one in tokens."""
    return len(question) if isinstance(question, list) and question and not isinstance(question[0], int) else 1


def _is_elsewhere(body: Mapping[str, Any]) -> bool:
    """Whether the prompt has more in it than text in the body."""
    if not _ELSEWHERE.isdisjoint(body) and any(body.get(name) for name in _ELSEWHERE):
        return True
    if isinstance(body.get("prompt"), dict):
        return True
    questions = (body.get(name) for name in ("messages", "input"))
    return any(_has_more(each) for question in questions if isinstance(question, list) for each in question)


def _has_more(message: object) -> bool:
    """Whether a message, or an item of an input, has more than text."""
    if not isinstance(message, dict):
        return False
    if not _is_of(message, _ITEMS) or message.get("audio"):
        return True
    for content in (message.get("content"), message.get("output")):
        parts = content if isinstance(content, list) else [content]
        if any(isinstance(each, dict) and not _is_of(each, _TEXT) for each in parts):
            return True
    return False


def _is_of(item: Mapping[str, Any], types: Collection[str | None]) -> bool:
    kind = item.get("type")
    return (kind is None or isinstance(kind, str)) and kind in types


def _whole(body: Mapping[str, Any], field: str) -> int | None:
    value = body.get(field)
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():  # in JSON 5.0 is a whole number
        value = int(value)
    if type(value) is not int or not 1 <= value <= _MOST:
        raise InputError(f"{field} is {value!r:.40}", fix=f"give a whole number from 1 to {_MOST}, or leave it out")
    return value
