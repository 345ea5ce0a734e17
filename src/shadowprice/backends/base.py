"""Models that answer, behind one protocol.

    openai   any OpenAI-compatible server
    local    a model on this machine, in a process of its own
    replay   recorded generations

Import the one you need: `shadowprice.backends.base` itself loads none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from shadowprice.errors import Refused
from shadowprice.types import Completion

__all__ = ["LANDING", "Backend", "PausingBackend", "granted", "joined", "pausable", "response", "with_text"]

# What is written into a model's mouth so that it states its final answer.
LANDING = "\n\nTherefore, the final answer is \\boxed{"
# Every name servers know for the limit; llama.cpp's own `n_predict` outranks the others there.
LIMIT_FIELDS = ("max_completion_tokens", "max_tokens", "n_predict")
# What applies to an answer as a whole, so that its parts would not add up to the same answer.
_OF_THE_WHOLE = (
    "stop", "tools", "functions", "response_format", "grammar", "json_schema", "structured_outputs", "guided_json",
    "guided_regex", "guided_choice", "guided_grammar", "logprobs", "min_tokens", "presence_penalty",
    "frequency_penalty", "repetition_penalty",
)  # fmt: skip


class Backend(Protocol):
    """One model."""

    model: str

    async def complete(self, body: Mapping[str, Any], limit: int) -> Completion:
        """Answer an OpenAI request body (`messages` or `prompt`) with at most `limit` tokens, one or more.

        A smaller limit of the body's own is kept. One call is one attempt: what fails raises
        `Unavailable` or `Refused`, with what the attempt cost, and is never tried again in here. An
        answer above its limit has the flag `limit_ignored`; calls after it raise `Distrusted`.
        """
        ...

    async def close(self) -> None:
        """Let go of connections and memory; the backend is of no use afterwards."""
        ...


class PausingBackend(Backend, Protocol):
    """One whose answers can be generated in parts, with others in between."""

    def resumes(self, body: Mapping[str, Any]) -> bool | None:
        """Whether a part of an answer to `body` can be gone on from. None: nobody knows before it is tried."""
        ...

    async def extend(self, body: Mapping[str, Any], so_far: Completion | None, limit: int) -> Completion:
        """The next part, with at most `limit` tokens, of the answer to `body` that has come `so_far`.

        Tokens and text are those of the new part alone. Otherwise as `complete`; `Refused` with the
        code `not_continued` where there is no going on.
        """
        ...


def pausable(body: Mapping[str, Any]) -> bool:
    """Whether an answer to `body` can be generated in parts at all: nothing in it is for the answer as a whole."""
    return not any(body.get(field) for field in _OF_THE_WHOLE)


def joined(so_far: Completion | None, more: Completion) -> Completion:
    """One answer from two parts of it."""
    if so_far is None:
        return more
    tokens, prompt = so_far.tokens + more.tokens, so_far.body["usage"]["prompt_tokens"]
    whole = with_text(more, so_far.text + more.text)
    usage = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
    return replace(
        whole,
        tokens=tokens,
        usage_source=more.usage_source if so_far.usage_source == "server" else so_far.usage_source,
        flags=tuple(dict.fromkeys(so_far.flags + more.flags)),
        body={**whole.body, "usage": usage},
        ids=so_far.ids + more.ids,
    )


def with_text(answer: Completion, text: str) -> Completion:
    """The same answer with another text."""
    (choice,) = answer.body["choices"]
    said = {"message": {**choice["message"], "content": text}} if "message" in choice else {"text": text}
    return replace(answer, text=text, body={**answer.body, "choices": [{**choice, **said}]})


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
