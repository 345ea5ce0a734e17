"""Prompts that state the limit (TALE-EP, the paper's eq. 24)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def with_limit(body: Mapping[str, Any], grant: int) -> dict[str, Any]:
    """A copy of the body whose last user message asks to stay within `grant` tokens.

    A plain prompt begins with this instruction, because the answer continues where the prompt ends. A prompt of
    token ids is not changed: it has no text to add to.
    """
    instruction = f"Keep the entire response within at most {grant} tokens."
    if "messages" in body:
        return {**body, "messages": _with_instruction(body["messages"], instruction)}
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        return {**body, "prompt": f"{instruction}\n\n{prompt}"}
    if isinstance(prompt, list) and all(isinstance(part, str) for part in prompt):
        return {**body, "prompt": [f"{instruction}\n\n{part}" for part in prompt]}
    return dict(body)


def _with_instruction(messages: Sequence[Mapping[str, Any]], instruction: str) -> list[Mapping[str, Any]]:
    """The messages, with the instruction at the end of the last user message."""
    copied = list(messages)
    for i in reversed(range(len(copied))):
        content = copied[i].get("content")
        if copied[i].get("role") != "user":
            continue
        if isinstance(content, str):
            copied[i] = {**copied[i], "content": f"{content}\n\n{instruction}"}
            return copied
        if isinstance(content, list):
            copied[i] = {**copied[i], "content": [*content, {"type": "text", "text": instruction}]}
            return copied
    return [*copied, {"role": "user", "content": instruction}]
