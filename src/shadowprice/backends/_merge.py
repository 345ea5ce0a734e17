"""The message that the deltas of a stream add up to, whatever is in them: nothing that was paid for is dropped.

texts      are put together: content, reasoning, arguments of calls, and every text of an unknown name
names      such as ids and roles are repeated in every delta: the first counts
lists      are put together; entries with the same `index` are one entry
numbers    the last counts
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shadowprice.backends._events import TooLong

__all__ = ["Message", "generated_texts"]

# Repeated, not continued.
_NAMES = {"role", "id", "type", "format", "object", "status", "mime_type", "file_id", "model"}
# Sent along with a text, but not written by the model as text: what is in these is kept, and not counted.
_NOT_TEXT = _NAMES | {
    "annotations", "b64_json", "citations", "data", "encrypted_content", "image_url", "images", "obfuscation",
    "search_results", "signature", "thought_signature", "title", "url",
}  # fmt: skip
_DEEPEST = 64  # levels of a delta; deeper ones are left out


class _Text(list[str]):
    """A text in pieces: they are put together once, at the end."""


class _Entries(list[Any]):
    """A list, and where in it the entry of each index is."""

    def __init__(self, entries: list[Any] | None = None) -> None:
        super().__init__(entries or [])
        self.places: dict[int, int] = {}


def generated_texts(value: Any, depth: int = 0) -> Iterator[str]:
    """Every text in a delta that the model wrote."""
    if isinstance(value, str):
        yield value
    elif depth > _DEEPEST:  # left out of the message as well
        return
    elif isinstance(value, list):
        for item in value:
            yield from generated_texts(item, depth + 1)
    elif isinstance(value, dict):
        for name, item in value.items():
            if name not in _NOT_TEXT and item:
                yield from generated_texts(item, depth + 1)


class Message:
    """What has arrived of one message; more than `most` fields and entries of lists raise TooLong.

    What cannot be part of a message is left out, and `malformed` is true from then on.
    """

    def __init__(self, most: int) -> None:
        self._fields: dict[str, Any] = {}
        self._left = most
        self.malformed = False

    def add(self, delta: dict[str, Any]) -> None:
        for name, value in delta.items():
            if value is None or name == "role":
                continue
            known = self._fields.get(name)
            if name == "content" and isinstance(value, str) and type(known) is _Text:  # nearly all that ever comes
                known.append(value)
                continue
            if name == "content" and isinstance(value, dict):
                value = [value]
            if name == "tool_calls":
                calls = value if isinstance(value, list) else [value]
                value = [_call(place, call) for place, call in enumerate(calls) if isinstance(call, dict)]
                self.malformed |= len(value) < len(calls)
            elif name == "content" and not isinstance(value, str | list):
                self.malformed = True
                continue
            self._fields[name] = self._merged(known, value, name)

    def fields(self) -> dict[str, Any]:
        """Without the role, and without what is empty."""
        merged = {name: _frozen(value) for name, value in self._fields.items()}
        if calls := merged.get("tool_calls"):
            merged["tool_calls"] = [_whole_call(call) for call in sorted(calls, key=lambda call: call["index"])]
        return {name: value for name, value in merged.items() if value not in ("", [], {})}

    def _merged(self, known: Any, new: Any, name: str, depth: int = 0) -> Any:
        """What is known of a field, with what is new of it."""
        self._left -= 1
        if self._left < 0:
            raise TooLong("more fields than a message has")
        if depth > _DEEPEST:
            self.malformed = True
            return known
        if new is None:
            return known
        if known is None:
            known = _empty(new)
        if isinstance(new, str) and isinstance(known, _Text):
            repeated = name in _NAMES or (name == "name" and known == [new])
            if new and not (known and repeated):
                known.append(new)
        elif isinstance(new, dict) and isinstance(known, dict):
            for field, value in new.items():
                known[field] = self._merged(known.get(field), value, field, depth + 1)
        elif isinstance(new, list) and isinstance(known, _Entries):
            for value in new:
                self._add_entry(known, value, name, depth + 1)
        elif isinstance(new, str | dict | list):  # of another kind than before
            more = [self._merged(None, entry, name, depth + 1) for entry in _entries(new)]
            return _Entries([*_entries(known), *more])
        elif not isinstance(known, _Text | dict | list):
            return new
        return known

    def _add_entry(self, known: _Entries, value: Any, name: str, depth: int) -> None:
        index = value.get("index") if isinstance(value, dict) else None
        if type(index) is int and (place := known.places.setdefault(index, len(known))) < len(known):
            self._merged(known[place], value, name, depth)
        else:
            known.append(self._merged(None, value, "", depth))


def _call(place: int, call: dict[str, Any]) -> dict[str, Any]:
    """A part of a tool call, with its index: its place in the delta if it names none."""
    index = call.get("index")
    return {**call, "index": index if type(index) is int else place}


def _whole_call(call: dict[str, Any]) -> dict[str, Any]:
    """A tool call in OpenAI's form, with whatever else is in it."""
    rest = {name: value for name, value in call.items() if name not in ("id", "type", "function", "index")}
    function = call.get("function") or {}
    if isinstance(function, dict):
        function = {"name": "", "arguments": "", **function}
    # Calls of other kinds have no function.
    about = {"function": function} if call.get("function") or not rest else {}
    return {"id": call.get("id") or "", "type": call.get("type") or "function", **about, **rest}


def _empty(like: Any) -> Any:
    if isinstance(like, str):
        return _Text()
    return {} if isinstance(like, dict) else _Entries() if isinstance(like, list) else None


def _entries(value: Any) -> list[Any]:
    """A text as a part of a message, beside parts of other kinds."""
    if isinstance(value, _Text | str):
        return [{"type": "text", "text": "".join(value)}] if value else []
    return value if isinstance(value, list) else [value]


def _frozen(value: Any) -> Any:
    if isinstance(value, _Text):
        return "".join(value)
    if isinstance(value, list):
        return [_frozen(item) for item in value]
    if isinstance(value, dict):
        return {name: _frozen(item) for name, item in value.items()}
    return value
