"""Keeps secrets out of messages and files: keys and passwords are registered once, and removed wherever they occur.

Backends register what they send; `BackendError` passes its message and its cause through `redact`, answers pass
through `redacted_value` before they leave a backend. Processes that need no keys are started with `clean_environment`.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, quote_plus

__all__ = [
    "clean_environment",
    "holds_secret",
    "redact",
    "redacted_value",
    "register_login",
    "register_query",
    "register_secret",
]

_HIDDEN = "***"
_SHORTEST = 6  # characters; a shorter word may occur in messages for other reasons
_SHORTEST_IN_ANSWERS = 8  # longer than in messages, since an answer should not be changed by mistake
# Ordinary words that users give to local servers instead of a key.
_PLACEHOLDERS = {
    "anything", "dummy", "dummy-key", "empty", "local", "lm-studio", "no-key", "no-key-required", "none", "not-needed",
    "ollama", "placeholder", "sk-no-key-required", "your-api-key",
}  # fmt: skip
_secrets: dict[str, None] = {}  # in every form in which they may occur, the longest first


def register_secret(value: str | None) -> None:
    """Makes a value a secret, also in the forms that it has in URLs, JSON, base64 and hex."""
    if not value or len(value) < _SHORTEST or value.lower() in _PLACEHOLDERS:
        return
    percent = quote(value, safe="", errors="replace")
    forms = {value, percent, quote(value, errors="replace"), quote_plus(value, errors="replace")}
    forms |= {re.sub("%..", lambda code: code[0].lower(), percent), json.dumps(value)[1:-1]}
    forms |= {json.dumps(value, ensure_ascii=False)[1:-1]}
    forms |= {form.replace("/", "\\/") for form in forms}  # as PHP and others write JSON
    data = value.encode(errors="replace")
    _add(forms | _in_base64(data) | {data.hex(), data.hex().upper()})


def _in_base64(value: bytes) -> set[str]:
    """The value in base64: alone, and as part of a longer text, where its form depends on its position."""
    forms = {base64.b64encode(value)}
    for before in range(3):
        whole = base64.b64encode(bytes(before) + value)
        # A character has 6 bits: keep only characters whose bits all belong to the value.
        forms.add(whole[-(-8 * before // 6) : 8 * (before + len(value)) // 6])
    forms |= {form.translate(bytes.maketrans(b"+/", b"-_")) for form in forms}
    return {form.decode() for form in forms}


def register_login(user: str, password: str) -> None:
    """Makes a password a secret, and the header that carries it with the user name."""
    register_secret(password)
    if password:
        _add({base64.b64encode(f"{user}:{password}".encode(errors="replace")).decode()})


def register_query(parameters: Iterable[tuple[str, str]]) -> None:
    """Makes the parameters of a URL secrets if they have names like `key` or `api-key`."""
    for name, value in parameters:
        if _SECRET_NAMES.search(name):
            register_secret(value)


def _add(forms: set[str]) -> None:
    everything = sorted({*_secrets, *forms}, key=len, reverse=True)
    _secrets.clear()
    _secrets.update(dict.fromkeys(everything))


def redact(text: str) -> str:
    """The text with *** in place of every secret."""
    for secret in _secrets:
        if secret in text:
            text = text.replace(secret, _HIDDEN)
    return text


def holds_secret(text: bytes) -> bool:
    """Whether an answer, written as JSON, contains a secret."""
    return any(len(secret) >= _SHORTEST_IN_ANSWERS and secret.encode(errors="replace") in text for secret in _secrets)


def redacted_value(value: Any) -> Any:
    """The JSON value with *** in place of every secret in its strings and keys."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, list):
        return [redacted_value(item) for item in value]
    if isinstance(value, dict):
        return {redact(name): redacted_value(item) for name, item in value.items()}
    return value


_SECRET_NAMES = re.compile(
    r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH|SIGNATURE|^SIG$|^(AWS|AZURE|GOOGLE|OPENAI|ANTHROPIC|HF)_", re.IGNORECASE
)
_LOGIN = re.compile(r"://[^/\s]*@")  # in an address


def clean_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment without variables that may be secrets, by their name or because they hold a URL with a login."""
    full = os.environ if environment is None else environment
    return {name: value for name, value in full.items() if not _SECRET_NAMES.search(name) and not _LOGIN.search(value)}
