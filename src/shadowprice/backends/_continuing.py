"""How an answer is continued from its text, and what stands between its parts. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shadowprice.backends.base import opens_box

__all__ = ["continuation", "final_text"]


def continuation(body: Mapping[str, Any], sent: str) -> dict[str, Any]:
    """The request for what comes after `sent`."""
    if "messages" not in body:
        return {**body, "prompt": body["prompt"] + sent}
    messages = [*body["messages"], {"role": "assistant", "content": sent}]
    return {**body, "messages": messages, "continue_final_message": True, "add_generation_prompt": False}


def final_text(suffix: str, held: str, text: str, finish: str) -> str:
    """The text after the suffix: without the white space that was held back, and with the box closed."""
    text = _without(held, text)
    # The end of the box was part of the stop text.
    return text + "}" if opens_box(suffix) and finish == "stop" and _is_open(text) else text


def _without(held: str, text: str) -> str:
    """The text without the white space that was held back, as far as the model has written it again."""
    return "" if held.startswith(text) else text.removeprefix(held)


def _is_open(text: str) -> bool:
    """Whether a box that was opened before `text` is still open after it."""
    plain = text.replace("\\{", "").replace("\\}", "")
    return plain.count("{") >= plain.count("}")
