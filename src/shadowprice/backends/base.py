"""The protocol `Backend`, and what all backends share. Loads none of them: import the one you need."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Protocol, Self

from shadowprice.errors import Refused
from shadowprice.formats.landings import LANDINGS
from shadowprice.formats.limits import LIMIT_FIELDS
from shadowprice.types import Completion

__all__ = [
    "ATTEMPT",
    "BOX_STOPS",
    "LANDING",
    "AsyncContext",
    "Backend",
    "can_be_continued",
    "effective_limit",
    "ended",
    "join",
    "opens_box",
    "prefix",
    "response",
    "stops_of",
    "with_text",
]

# The name of the current attempt; "" if it has none. A server that records attempts can be asked about it.
ATTEMPT: ContextVar[str] = ContextVar("ATTEMPT", default="")
# A suffix that makes a model state its final answer.
LANDING = LANDINGS["math"].text
# Texts that end a boxed answer, the most frequent first. A brace alone does not: \frac{1}{2} contains some.
BOX_STOPS = ("}$", "}.", "}\n", "}\\)", "}\\]", "} \\")
# Fields that apply to an answer as a whole: with them, the parts of an answer do not add up to the same answer.
_WHOLE_ANSWER_FIELDS = (
    "stop", "tools", "functions", "response_format", "grammar", "json_schema", "structured_outputs", "guided_json",
    "guided_regex", "guided_choice", "guided_grammar", "logprobs", "min_tokens", "presence_penalty",
    "frequency_penalty", "repetition_penalty",
)  # fmt: skip


class Backend(Protocol):
    """One model.

    A backend may have further methods: `room`, the tokens that a context leaves for an answer; `generating`, the tokens
    that answers in flight have so far, to show progress; and `cost_of`, the tokens of an earlier attempt, if the server
    can say.
    """

    model: str

    def can_continue(self, body: Mapping[str, Any]) -> bool | None:
        """Whether an answer to `body` can be continued from a part of it; None: unknown before it is tried."""
        ...

    async def complete(
        self, body: Mapping[str, Any], limit: int, *, continue_from: Completion | None = None, suffix: str = ""
    ) -> Completion:
        """Answer an OpenAI request body (`messages` or `prompt`) with at most `limit` tokens, one or more.

        continue_from  a part of the answer: only the next part is generated, and only its tokens and text
                       are returned. `prefix` makes a shorter part, `join` puts parts together.
        suffix         text that the answer continues with after `continue_from`, or after the prompt. It is not
                       in the returned text. `LANDING` asks for the final answer; the returned text of a
                       suffix that ends in ``\\boxed{`` ends with the closing brace, any other with its line.

        A smaller limit in the body applies. One call is one attempt: a failure raises `Unavailable` or
        `Refused`, with what the attempt cost, and is not retried here. An answer that cannot be continued
        raises `Refused` with the code `not_continued`. An answer above its limit has the flag
        `limit_ignored`; later calls raise `LimitViolated`.
        """
        ...

    async def close(self) -> None:
        """Release connections and memory; the backend cannot be used afterwards."""
        ...


class AsyncContext:
    """Closes a backend at the end of an `async with`."""

    async def close(self) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


# --- requests ----------------------------------------------------------------------------------


def can_be_continued(body: Mapping[str, Any]) -> bool:
    """Whether an answer to `body` can be generated in parts by any backend: no field applies to it as a whole."""
    return not any(body.get(field) for field in _WHOLE_ANSWER_FIELDS)


def effective_limit(body: Mapping[str, Any], limit: int) -> int:
    """The grant, or the caller's own limit where that is smaller.

    Refuses a request that a grant cannot limit: one for several answers, or one without a question.
    """
    if limit < 1:
        raise ValueError(f"a limit of {limit} tokens: a request without a grant must not be sent")
    if "messages" not in body and "prompt" not in body:
        raise Refused("neither messages nor a prompt in the body", sent=False)
    for field in ("n", "best_of"):
        if body.get(field) not in (None, 1):
            raise Refused(f"{field} is {body[field]!r}: only one answer per request is supported", sent=False)
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) > 1 and not isinstance(prompt[0], int):  # token ids are one prompt
        raise Refused(f"{len(prompt)} entries in prompt: only one answer per request is supported", sent=False)
    if body.get("echo"):
        raise Refused("echo is set: the prompt would be counted as part of the answer", sent=False)
    for field in LIMIT_FIELDS:
        own = body.get(field)
        if own is None:
            continue
        if isinstance(own, bool) or not isinstance(own, int) or own < 1:
            raise Refused(f"{field} is {own!r}, not a positive whole number", sent=False)
        limit = min(limit, own)
    return limit


def opens_box(suffix: str) -> bool:
    """Whether a suffix asks for a boxed answer, which ends where the box is closed."""
    return suffix.endswith("\\boxed{")


def stops_of(suffix: str) -> list[str]:
    """Texts that end the answer to a suffix: the end of the box, or of the line."""
    return list(BOX_STOPS) if opens_box(suffix) else ["\n"]


# --- answers -----------------------------------------------------------------------------------


def prefix(completion: Completion, tokens: int) -> Completion:
    """The first `tokens` tokens of an answer, to continue from; all of it if it has no more.

    Token ids are cut exactly. The text is cut in proportion, since it does not show where a token ends.
    """
    if tokens < 0:
        raise ValueError(f"a prefix of {tokens} tokens")
    if tokens >= completion.tokens:
        return completion
    short = with_text(completion, completion.text[: len(completion.text) * tokens // completion.tokens])
    (choice,) = short.body["choices"]
    return replace(
        short,
        tokens=tokens,
        finish="length",
        body={**short.body, "choices": [{**choice, "finish_reason": "length"}], "usage": _usage(completion, tokens)},
        ids=completion.ids[:tokens],
    )


def join(first: Completion | None, more: Completion, suffix: str = "") -> Completion:
    """One answer from two parts of it, with the suffix that was put between them."""
    if first is None and not suffix:
        return more
    if first is None:
        return replace(with_text(more, suffix + more.text), ids=())
    tokens = first.tokens + more.tokens
    whole = with_text(more, first.text + suffix + more.text)
    return replace(
        whole,
        tokens=tokens,
        usage_source=more.usage_source if first.usage_source == "server" else first.usage_source,
        flags=tuple(dict.fromkeys(first.flags + more.flags)),
        body={**whole.body, "usage": _usage(first, tokens)} if whole.body else {},
        ids=() if suffix else first.ids + more.ids,
        input_tokens=first.input_tokens + more.input_tokens,
        cached_tokens=first.cached_tokens + more.cached_tokens,
        least=None if first.least is more.least is None else first.certain + more.certain,
    )


def ended(answer: Completion) -> Completion:
    """The same answer as one that the model has ended: its final answer is stated, whatever would have followed."""
    if not answer.body:  # simulated
        return replace(answer, finish="stop")
    (choice,) = answer.body["choices"]
    return replace(answer, finish="stop", body={**answer.body, "choices": [{**choice, "finish_reason": "stop"}]})


def _usage(first: Completion, tokens: int) -> dict[str, int]:
    """The usage of an answer that starts with `first`: its prompt counts once, however often it was sent."""
    prompt = first.body["usage"]["prompt_tokens"]
    return {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}


def with_text(answer: Completion, text: str) -> Completion:
    """The same answer with another text."""
    if not answer.body:  # simulated
        return replace(answer, text=text)
    (choice,) = answer.body["choices"]
    field = {"message": {**choice["message"], "content": text}} if "message" in choice else {"text": text}
    return replace(answer, text=text, body={**answer.body, "choices": [{**choice, **field}]})


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
    """The answer to `body` in OpenAI's form."""
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
