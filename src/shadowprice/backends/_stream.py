"""What a server sends: parsed from bytes to events, and from events to one `Completion`, without I/O."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, Literal, TypeGuard

import orjson

from shadowprice.backends.base import response
from shadowprice.types import Completion

__all__ = ["Answer", "EventParser", "Malformed", "ServerError", "mapping", "parse_json", "read_event"]

_MAX_TOKENS = 2**24  # no model writes more in one answer: a higher count is not a count
_LONGEST_TOKEN = 128  # characters; the longest in the vocabularies in use are runs of 128 spaces
_TEXT_FIELDS = {"content", "reasoning_content", "reasoning", "refusal"}  # of a delta: each is generated text
_HEAD_FIELDS = {"id", "created", "model", "system_fingerprint"}  # of every event: the first of each counts


class Malformed(ValueError):
    """An event that is not in the form of the protocol."""


class ServerError(Exception):
    """The server reported an error instead of the rest of its answer."""


# --- events ------------------------------------------------------------------------------------


class EventParser:
    """Server-sent events from bytes, however these are cut into chunks, up to OpenAI's [DONE].

    Lines may end in LF, CR or CRLF and be of any length; comments and unknown fields are ignored.
    """

    def __init__(self) -> None:
        self.done = False  # no more events will come
        self._pending: list[bytes] = []  # of a line whose end has not arrived
        self._after_cr = False  # an LF that comes next belongs to the CR before it
        self._data: list[bytes] = []
        self._kind = b""
        self._started = False

    def feed(self, chunk: bytes) -> list[tuple[bytes, bytes]]:
        """Kind and data of each event that `chunk` completes."""
        if not self._started:
            self._started = True
            chunk = chunk.removeprefix(b"\xef\xbb\xbf")
        if self._after_cr and chunk:
            self._after_cr = False
            chunk = chunk.removeprefix(b"\n")
        end = max(chunk.rfind(b"\n"), chunk.rfind(b"\r")) + 1
        if end == 0:
            self._pending.append(chunk)
            return []
        lines = b"".join((*self._pending, chunk[:end]))
        self._pending = [chunk[end:]]
        self._after_cr = lines.endswith(b"\r")
        events: list[tuple[bytes, bytes]] = []
        for line in lines.splitlines():
            if line:
                self._add(line)
            else:
                self._end_event(events)
        return events

    def end(self) -> list[tuple[bytes, bytes]]:
        """The last event, if the stream ended without an empty line after it."""
        events: list[tuple[bytes, bytes]] = []
        if line := b"".join(self._pending):
            self._add(line)
        self._end_event(events)
        self.done = True
        return events

    def _add(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
        elif name == b"event":
            self._kind = value.strip()

    def _end_event(self, events: list[tuple[bytes, bytes]]) -> None:
        if self._data and not self.done:
            data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
            if data.startswith(b"[DONE]"):
                self.done = True
            else:
                events.append((self._kind, data))
        self._data, self._kind = [], b""


def read_event(kind: bytes, data: bytes) -> object:
    """The JSON of an event; raises ServerError for an error that is sent as one."""
    if kind == b"error":
        try:
            raise ServerError(_reason(parse_json(data)))
        except ValueError:
            raise ServerError(data.decode(errors="replace")) from None
    event = parse_json(data)
    if isinstance(event, dict) and event.get("error"):
        raise ServerError(_reason(event))
    return event


def parse_json(data: bytes) -> Any:
    """JSON as lenient as servers are: with NaN, half characters, or bytes that are not UTF-8."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return json.loads(data.decode(errors="replace"))


def _reason(event: Any) -> object:
    said = event.get("error") or event if isinstance(event, dict) else event
    return (said.get("message") or said.get("detail") or said) if isinstance(said, dict) else said


# --- the answer --------------------------------------------------------------------------------


class Answer:
    """What has arrived of one answer, and what it is charged: see `shadowprice.backends.openai`."""

    def __init__(self, body: Mapping[str, Any], limit: int) -> None:
        self.body, self.limit = body, limit
        self.finish: str | None = None
        self.pieces = 0
        self._characters = 0
        self._texts: dict[str, list[str]] = {}
        self._calls: dict[int, dict[str, Any]] = {}
        self._logprobs: dict[str, list[Any]] = {}
        self._head: dict[str, Any] = {}
        self._usage: dict[str, Any] = {}
        self._used: int | None = None
        self._usage_wrong = False

    @property
    def seen(self) -> int:
        """Tokens that arrived for certain: one per piece, more if the pieces are too long for that."""
        return max(self.pieces, -(-self._characters // _LONGEST_TOKEN))

    @property
    def overrun(self) -> bool:
        return self.seen > self.limit

    def add(self, event: object) -> None:
        fields = mapping(event)
        for field in _HEAD_FIELDS - self._head.keys():
            if (value := fields.get(field)) and isinstance(value, str | int):
                self._head[field] = value
        if fields.get("usage") is not None:
            self._add_usage(fields["usage"])
        for choice in _list(fields.get("choices")):
            self._add_choice(mapping(choice))

    def _add_usage(self, usage: object) -> None:
        try:
            used = _used(usage)
        except Malformed:
            self._usage_wrong = True
            return
        if used is not None:  # some servers send a running count with every chunk
            self._used = max(used, self._used or 0)
            self._usage = mapping(usage)

    def _add_choice(self, choice: dict[str, Any]) -> None:
        # a chunk of a chat, a whole chat, or either of a plain completion
        delta = mapping(choice.get("delta") or choice.get("message") or {"content": choice.get("text")})
        texts = [(field, text) for field in delta if field in _TEXT_FIELDS and (text := _string(delta[field]))]
        size = sum([len(text) for _, text in texts])
        calls, functions = [], []
        if delta.get("tool_calls"):
            calls = [mapping(call) for call in _list(delta["tool_calls"])]
            functions = [mapping(call.get("function") or {}) for call in calls]
            size += sum(len(_string(function.get("arguments"))) for function in functions)
        self.pieces += size > 0
        self._characters += size
        if self.overrun or choice.get("index") not in (0, None):  # an unrequested answer is only counted
            return
        for field, text in texts:
            self._texts.setdefault(field, []).append(text)
        for place, (call, function) in enumerate(zip(calls, functions, strict=True)):
            self._add_call(place, call, function)
        if choice.get("logprobs"):
            for field, values in mapping(choice["logprobs"]).items():
                if isinstance(values, list):
                    self._logprobs.setdefault(field, []).extend(values)
        self.finish = _string(choice.get("finish_reason")) or self.finish

    def _add_call(self, place: int, call: dict[str, Any], function: dict[str, Any]) -> None:
        index = call.get("index", place)
        if not isinstance(index, int):
            raise Malformed(f"a tool call with index {index!r:.40}")
        known = self._calls.setdefault(index, {"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
        known["id"] = known["id"] or _string(call.get("id"))
        for field in ("name", "arguments"):
            known["function"][field] += _string(function.get(field))

    def completion(self, model: str) -> Completion:
        finish = "length" if self.overrun else self.finish or "stop"
        tokens, source, flags = self._charge()
        texts = {field: "".join(parts) for field, parts in self._texts.items()}
        text = texts.pop("content", "")
        prompt, cached = _prompt_tokens(self._usage)
        body = response(
            self.body,
            name=str(self._head.get("id", "")),
            model=str(self._head.get("model", model)),
            text=text,
            finish=finish,
            tokens=tokens,
            prompt_tokens=prompt,
            created=created if _whole(created := self._head.get("created"), 2**53) else int(time.time()),
        )
        if "system_fingerprint" in self._head:
            body["system_fingerprint"] = self._head["system_fingerprint"]
        choice = body["choices"][0]
        choice["logprobs"] = self._logprobs or None
        if "message" in choice:
            choice["message"].update(texts)
            if self._calls:
                choice["message"]["tool_calls"] = [call for _, call in sorted(self._calls.items())]
        body["usage"] = {**self._usage, **body["usage"]}
        body = _writable(body)
        choice = body["choices"][0]
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        return Completion(
            text,
            tokens,
            "length" if finish == "length" else "stop",
            source,
            flags,
            body,
            input_tokens=prompt - cached,
            cached_tokens=cached,
        )

    def _charge(self) -> tuple[int, Literal["server", "counted", "assumed"], tuple[str, ...]]:
        if self.overrun:
            return max(self.seen, self._used or 0), "counted", ("limit_ignored",)
        # An answer that was cut at its limit cannot have been empty, even if none of it was shown.
        low = max(self.seen, self.finish == "length")
        if self._usage_wrong or (self._used is not None and self._used < low):
            return self.limit, "assumed", ("usage_wrong",)
        if self._used is None:
            return self.limit, "assumed", ()
        return self._used, "server", ("limit_ignored",) if self._used > self.limit else ()


def _used(usage: object) -> int | None:
    """The server's count of what it generated, None if it gives none."""
    fields = mapping(usage)
    used, prompt, total = (fields.get(f"{kind}_tokens") for kind in ("completion", "prompt", "total"))
    if used is None:
        return None
    if not _whole(used):
        raise Malformed(f"a usage of {used!r:.40}")
    # Some services leave reasoning out of the answer's count (Gemini, xAI), but not out of the total.
    return max(used, total - prompt) if _whole(total) and _whole(prompt) else used


def _prompt_tokens(usage: Mapping[str, Any]) -> tuple[int, int]:
    """Tokens of the prompt, and how many of these came from a cache."""
    prompt, details = usage.get("prompt_tokens"), usage.get("prompt_tokens_details")
    if not _whole(prompt):
        return 0, 0
    cached = details.get("cached_tokens") if isinstance(details, dict) else 0
    return prompt, min(cached, prompt) if _whole(cached) else 0


def _writable(body: dict[str, Any]) -> dict[str, Any]:
    """The body unchanged if it can be written as JSON; else without half characters and integers beyond 64 bits."""
    try:
        orjson.dumps(body)
    except TypeError:
        text = json.dumps(body, ensure_ascii=False).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        return dict(json.loads(text, parse_int=lambda digits: int(digits) if len(digits) < 19 else float(digits)))
    return body


# --- forms -------------------------------------------------------------------------------------


def _whole(value: object, most: int = _MAX_TOKENS) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= most


def mapping(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Malformed(f"{value!r:.40} where an object is expected")
    return value


def _list(value: object) -> list[Any]:
    if not isinstance(value, list | None):
        raise Malformed(f"{value!r:.40} where a list is expected")
    return value or []


def _string(value: object) -> str:
    if not isinstance(value, str | None):
        raise Malformed(f"{value!r:.40} where a string is expected")
    return value or ""
