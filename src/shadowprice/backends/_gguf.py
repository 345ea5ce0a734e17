"""What the head of a GGUF file says about its model, read before anything is loaded."""

from __future__ import annotations

import os
import struct
from typing import IO, Any

# Types of values, by their number in the file; 8 is a text and 9 a list.
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _LIST = 8, 9
_LONGEST = 1 << 20  # bytes of a text or items of a list: a damaged file must not fill the memory


def trained_context(path: str | os.PathLike[str]) -> int | None:
    """The tokens that the model was trained to read and write together; None if the file does not say."""
    try:
        with open(path, "rb") as file:
            return _find_context(file)
    except (OSError, struct.error, ValueError, KeyError):
        return None  # llama.cpp reports what is wrong


def _find_context(file: IO[bytes]) -> int | None:
    if file.read(4) != b"GGUF":
        return None
    version, _, fields = _unpack(file, "IQQ")
    if version < 2:
        return None
    for _ in range(fields):
        name = _text(file)
        value = _value(file, _unpack(file, "I")[0])
        if name.endswith(b".context_length") and isinstance(value, int) and value > 0:
            return value
    return None


def _value(file: IO[bytes], kind: int) -> Any:
    """A number or a text; lists are skipped."""
    if kind == _TEXT:
        return _text(file)
    if kind != _LIST:
        return _unpack(file, _NUMBERS[kind])[0]
    items, length = _unpack(file, "IQ")
    if length > _LONGEST:
        raise ValueError("a list that no model has")
    if items in _NUMBERS:
        file.seek(length * struct.calcsize(_NUMBERS[items]), os.SEEK_CUR)
    else:
        for _ in range(length):
            _value(file, items)
    return None


def _text(file: IO[bytes]) -> bytes:
    (length,) = _unpack(file, "Q")
    if length > _LONGEST:
        raise ValueError("a text that no model has")
    return file.read(length)


def _unpack(file: IO[bytes], form: str) -> tuple[Any, ...]:
    return struct.unpack(f"<{form}", file.read(struct.calcsize(f"<{form}")))
