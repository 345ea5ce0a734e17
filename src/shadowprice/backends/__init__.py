"""Models that answer, behind one protocol.

    openai   any OpenAI-compatible server
    local    a model on this machine, in a process of its own
    replay   recorded generations

Import the one you need: `shadowprice.backends` itself loads none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from shadowprice.errors import Refused
from shadowprice.types import Completion

__all__ = ["Backend", "granted", "response"]

# Every name servers know for the limit; llama.cpp's own `n_predict` outranks the others there.
LIMIT_FIELDS = ("max_completion_tokens", "max_tokens", "n_predict")


class Backend(Protocol):
    """One model."""

    model: str

    async def complete(self, body: Mapping[str, Any], limit: int) -> Completion:
        """Answer an OpenAI request body (`messages` or `prompt`) with at most `limit` tokens, one or more.

        A smaller limit of the body's own is kept. One call is one attempt: what fails raises
        `Unavailable` or `Refused`, with what the attempt cost, and is never tried again in here.
        """
        ...

    async def close(self) -> None:
        """Let go of connections and memory; the backend is of no use afterwards."""
        ...


def granted(body: Mapping[str, Any], limit: int) -> int:
    """The grant, or the caller's own limit where that is smaller.

    Refuses what a grant cannot be the limit of: several answers, or no question at all.
    """
    if limit < 1:
        raise ValueError(f"a limit of {limit} tokens: a query without a grant must not be sent")
    if "messages" not in body and "prompt" not in body:
        raise Refused("neither messages nor a prompt in the body")
    for field in ("n", "best_of"):
        if body.get(field) not in (None, 1):
            raise Refused(f"{field} is {body[field]!r}: one request, one answer")
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) > 1 and not isinstance(prompt[0], int):  # whole numbers: one prompt
        raise Refused(f"{len(prompt)} prompts in one request: one request, one answer")
    if body.get("echo"):
        raise Refused("echo is set: the prompt would be counted as part of the answer")
    for field in LIMIT_FIELDS:
        own = body.get(field)
        if own is None:
            continue
        if isinstance(own, bool) or not isinstance(own, int) or own < 1:
            raise Refused(f"{field} is {own!r}, not a whole number from 1 on")
        limit = min(limit, own)
    return limit


def response(
    body: Mapping[str, Any],
    *,
    name: str,
    model: str,
    text: str,
    finish: str,
    tokens: int,
    prompt_tokens: int = 0,
    created: int = 0,
) -> dict[str, Any]:
    """The answer to `body` in the form OpenAI gives it."""
    chat = "messages" in body
    answer = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    return {
        "id": name,
        "object": "chat.completion" if chat else "text_completion",
        "created": created,
        "model": model,
        "choices": [{"index": 0, **answer, "logprobs": None, "finish_reason": finish}],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": tokens,
            "total_tokens": prompt_tokens + tokens,
        },
    }
