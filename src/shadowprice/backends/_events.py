"""Parses server-sent events from bytes, and JSON from events, with bounded size and depth. No I/O."""

from __future__ import annotations

import json
from typing import Any, TypeGuard

import orjson

__all__ = [
    "EventParser", "Malformed", "ServerError", "TooLong", "mapping", "parse_json", "read_body", "read_event", "reason",
    "whole",
]  # fmt: skip

MAX_TOKENS = 2**24  # no model writes more in one answer: a higher count is not a count


class Malformed(ValueError):
    """An event that does not follow the protocol."""


class TooLong(Exception):
    """More bytes than an answer can have: an endless line, or a body that grows when it is decompressed."""


class ServerError(Exception):
    """The server reported an error instead of the rest of its answer: the event, as JSON and as it came."""

    def __init__(self, event: Any, data: bytes) -> None:
        super().__init__(reason(event))
        self.event, self.data = event, data


class EventParser:
    """Server-sent events from bytes, however these are cut into chunks, up to OpenAI's [DONE].

    Lines may end in LF, CR or CRLF; comments and unknown fields are ignored. An event of more than `most` bytes
    raises TooLong, before it has arrived completely.
    """

    def __init__(self, most: int = 2**26) -> None:
        self.done = False  # no more events will come
        self.complete = False  # since [DONE] came
        self.started = False  # at least one event came
        self._most = most
        self._pending: list[bytes] = []  # of a line whose end has not arrived
        self._waiting = 0  # bytes in `_pending`
        self._size = 0  # bytes in `_data`
        self._after_cr = False  # an LF that comes next belongs to the CR before it
        self._data: list[bytes] = []
        self._kind = b""
        self._first = True

    def feed(self, chunk: bytes) -> list[tuple[bytes, bytes]]:
        """Kind and data of each event that `chunk` completes."""
        if self._is_one_line(chunk):
            self.started, self._first = True, False
            return [(b"", chunk[6:-2])]
        if self._first:
            self._first = False
            chunk = chunk.removeprefix(b"\xef\xbb\xbf")
        if self._after_cr and chunk:
            self._after_cr = False
            chunk = chunk.removeprefix(b"\n")
        end = max(chunk.rfind(b"\n"), chunk.rfind(b"\r")) + 1
        events: list[tuple[bytes, bytes]] = []
        if end:
            lines = b"".join((*self._pending, chunk[:end]))
            self._pending, self._waiting = [], 0
            self._after_cr = lines.endswith(b"\r")
            for line in lines.splitlines():
                if line:
                    self._add(line)
                else:
                    self._end_event(events)
        if end < len(chunk):
            self._pending.append(chunk[end:])
            self._waiting += len(chunk) - end
            self._check()
        return events

    def _is_one_line(self, chunk: bytes) -> bool:
        """Whether the chunk is one event in one line, as nearly all are: these need no parsing."""
        return (
            chunk.startswith(b"data: {")
            and chunk.endswith(b"}\n\n")
            and chunk.find(b"\n") == len(chunk) - 2
            and b"\r" not in chunk
            and not (self.done or self._pending or self._data or self._kind or self._after_cr)
            and len(chunk) <= self._most
        )

    def end(self) -> list[tuple[bytes, bytes]]:
        """The last event, if the stream ended without an empty line after it."""
        events: list[tuple[bytes, bytes]] = []
        if line := b"".join(self._pending):
            self._add(line)
        self._end_event(events)
        self.done = True
        return events

    def _check(self) -> None:
        if self._size + self._waiting > self._most:
            raise TooLong(f"an event of more than {self._most:,} bytes")

    def _add(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
            self._size += len(line)
            self._check()
        elif name == b"event":
            self._kind = value.strip()[:100]

    def _end_event(self, events: list[tuple[bytes, bytes]]) -> None:
        if self._data and not self.done:
            data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
            self.started = True
            if data.startswith(b"[DONE]"):
                self.done = self.complete = True
            else:
                events.append((self._kind, data))
        self._data, self._kind, self._size = [], b"", 0


def read_event(kind: bytes, data: bytes) -> object:
    """The JSON of an event; raises ServerError for an error that is sent as one."""
    if kind == b"error":
        try:
            raise ServerError(parse_json(data), data)
        except Malformed:
            raise ServerError(data[:1000].decode(errors="replace"), data) from None
    event = parse_json(data)
    if isinstance(event, dict) and event.get("error"):
        raise ServerError(event, data)
    return event


def read_body(data: bytes) -> list[object]:
    """The events of a body that is not a stream of events: one JSON value, or one per line."""
    try:
        return [read_event(b"", data)]
    except Malformed:
        lines = [line for line in data.splitlines() if line.strip() not in (b"", b"[DONE]")]
        if len(lines) < 2:
            raise
        return [read_event(b"", line) for line in lines]


def parse_json(data: bytes) -> Any:
    """JSON as lenient as servers are: with NaN, half characters, huge numbers, or bytes that are not UTF-8."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        pass
    try:
        return json.loads(data.decode(errors="replace"), parse_int=_integer)
    except RecursionError:
        raise Malformed("JSON that is nested too deep") from None
    except ValueError as error:
        raise Malformed(str(error)) from None


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) < 4000 else float(digits)  # Python refuses to read longer ones


def reason(event: Any) -> object:
    """The message of an error, in any of the forms that servers use."""
    error = event.get("error") or event if isinstance(event, dict) else event
    problem = (error.get("message") or error.get("detail") or error) if isinstance(error, dict) else error
    if isinstance(problem, list) and problem and all(isinstance(item, dict) and item.get("msg") for item in problem):
        return "; ".join(f"{_place(item.get('loc'))}{item['msg']}" for item in problem)  # FastAPI
    return problem


def _place(loc: object) -> str:
    return f"{'.'.join(map(str, loc))}: " if isinstance(loc, list) else ""


# --- forms -------------------------------------------------------------------------------------


def whole(value: object, most: int = MAX_TOKENS) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= most


def mapping(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Malformed(f"{value!r:.40} where an object is expected")
    return value
