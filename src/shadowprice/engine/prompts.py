"""Prompts that state the limit (TALE-EP, the paper's eq. 24)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def with_limit(body: Mapping[str, Any], grant: int) -> dict[str, Any]:
    """A copy of the body whose last user message asks to stay within `grant` tokens.

    A plain prompt begins with these words, because the answer continues where the prompt ends. A prompt of
    token ids is not changed: there is no text to add to.
    """
    order = f"Keep the entire response within at most {grant} tokens."
    if "messages" in body:
        return {**body, "messages": _with_words(body["messages"], order)}
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        return {**body, "prompt": f"{order}\n\n{prompt}"}
    if isinstance(prompt, list) and all(isinstance(each, str) for each in prompt):
        return {**body, "prompt": [f"{order}\n\n{each}" for each in prompt]}
    return dict(body)


def _with_words(messages: Sequence[Mapping[str, Any]], order: str) -> list[Mapping[str, Any]]:
    """The messages, with these words at the end of the last user message."""
    copied = list(messages)
    for at in reversed(range(len(copied))):
        content = copied[at].get("content")
        if copied[at].get("role") != "user":
            continue
        if isinstance(content, str):
            copied[at] = {**copied[at], "content": f"{content}\n\n{order}"}
            return copied
        if isinstance(content, list):
            copied[at] = {**copied[at], "content": [*content, {"type": "text", "text": order}]}
            return copied
    return [*copied, {"role": "user", "content": order}]
