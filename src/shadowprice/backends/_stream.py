"""One answer out of the events of its stream, without I/O."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any, TypeVar

import orjson

from shadowprice.backends._charging import Charge, Density, Seen, charge, is_doubtful, is_over, length, surplus
from shadowprice.backends._events import Malformed, mapping, whole
from shadowprice.backends._merge import Message, generated_texts
from shadowprice.backends.base import response
from shadowprice.redact import holds_secret, redacted_value
from shadowprice.types import Completion

__all__ = ["Answer", "writable"]

_HEAD_FIELDS = ("id", "created", "model", "system_fingerprint")  # of every event: the first of each counts
_FIELDS, _FIELDS_PER_TOKEN = 10_000, 100  # of all deltas together; a token has ten or so
_MOST_HIDDEN = 2**20  # tokens that only a total shows: a total beyond that counts something else
_HIDES, _SHORT = 1.5, 16  # times an estimate of tokens, and tokens: by so much it may be too low
_DEEPEST = 200  # levels of a body
_T = TypeVar("_T")
_AROUND = 16  # levels that a file may put around it; orjson writes 254


class Answer:
    """What has arrived of one answer, and what it is charged: see `shadowprice.backends.openai`."""

    def __init__(self, body: Mapping[str, Any], limit: int, density: Density | None = None) -> None:
        self.body, self.limit = body, limit
        self.density = density or Density()
        self.finish: str | None = None
        self.pieces = 0
        self.overrun = False
        self.counted: int | None = None  # by the server's tokenizer, where one was asked
        self._longest = self.density.longest(limit)
        self._characters = 0
        self._unmeasured: list[str] = []  # texts whose runs of one sign are counted in full so far
        self._message = Message(_FIELDS + _FIELDS_PER_TOKEN * limit)
        self._logprobs: dict[str, list[Any]] = {}
        self._head: dict[str, Any] = {}
        self._missing: tuple[str, ...] = _HEAD_FIELDS
        self._usage: dict[str, Any] = {}
        self._used: int | None = None
        self._early = False  # text came after the usage
        self._hidden = self._reasoning = 0
        self._usage_wrong = False
        self._malformed = False

    # --- what arrives --------------------------------------------------------------------------

    def add(self, event: object) -> None:
        """Adds an event. What is not in the form of the protocol is left out, and the answer is flagged."""
        fields = event if isinstance(event, dict) else self._left_out({})
        for field in self._missing:
            if (value := fields.get(field)) and isinstance(value, str | int):
                self._head[field] = value
                self._missing = tuple(name for name in self._missing if name != field)
        choices = fields.get("choices") or ()
        for choice in choices if isinstance(choices, list | tuple) else self._left_out(()):
            self._add_choice(choice if isinstance(choice, dict) else self._left_out({}))
        if fields.get("usage") is not None:  # it counts the text beside it
            self._add_usage(fields["usage"])

    def _add_usage(self, usage: object) -> None:
        try:
            used, hidden, reasoning = _used(usage)
        except Malformed:
            self._usage_wrong = True
            return
        if used is not None:  # some servers send a running count with every chunk
            if used >= (self._used or 0):
                self._used, self._hidden = used, hidden
            self._reasoning = max(reasoning, self._reasoning)
            self._usage = mapping(usage)
            self._early = False

    def _add_choice(self, choice: dict[str, Any]) -> None:
        # a chunk of a chat, a whole chat, or either of a plain completion
        forms = choice.get("delta"), choice.get("message"), choice.get("text")
        delta = forms[0] or forms[1] or {"content": forms[2]}
        if not isinstance(delta, dict):
            delta = self._left_out({})
        self._count(delta if sum(map(bool, forms)) < 2 else dict(enumerate(forms)))
        index = choice.get("index")
        if self.overrun or (index and type(index) is int):  # an unrequested answer is only counted
            return
        self._message.add(delta)
        if logprobs := choice.get("logprobs"):
            for field, values in (logprobs if isinstance(logprobs, dict) else self._left_out({})).items():
                if isinstance(values, list):
                    self._logprobs.setdefault(field, []).extend(values)
        if finish := choice.get("finish_reason"):
            self.finish = finish if isinstance(finish, str) else self._left_out("stop")

    def end(self) -> None:
        """The answer has ended as it should: a missing finish_reason is no reason to drop what it says."""
        if self.finish is None and self.pieces and not self.overrun:
            reached = max(self.pieces, self._used or 0) >= self.limit
            self.finish = self._left_out("length" if reached else "stop")

    @property
    def begun(self) -> bool:
        """Whether the server has shown that it generates."""
        return bool(self.pieces or self._used)

    @property
    def used(self) -> int | None:
        """The server's count of what has arrived so far; None: it has given none."""
        return None if self._early else self._used

    @property
    def hides(self) -> bool:
        """Whether the server has reasoned without showing it: its count is far above what the text looks like."""
        if not (self._reasoning or self._hidden):
            return False
        return (self._used or 0) > _HIDES * self.density.estimate(self.pieces, self._characters) + _SHORT

    def _left_out(self, instead: _T) -> _T:
        """What is used instead of something that is not in the form of the protocol."""
        self._malformed = True
        return instead

    def _count(self, delta: dict[Any, Any]) -> None:
        # nearly all that ever comes
        if isinstance(content := delta.get("content"), str) and len(delta) == 1 + ("role" in delta):
            texts, size = [content], length(content)
        else:  # some servers send reasoning twice, under two names: the same text in one delta counts once
            texts = [*dict.fromkeys(generated_texts(delta))]
            size = sum(map(length, texts))
        if size:
            self.pieces += 1
            self._early = self._used is not None
            self._characters += size
            self._unmeasured += texts
            if self._characters > self._longest:
                self._measure()
            self.overrun = self.overrun or self.pieces > self.limit or self._characters > self._longest

    def _measure(self) -> None:
        """Counts runs of one sign as few characters, in what was counted in full so far."""
        self._characters -= surplus("".join(self._unmeasured))
        self._unmeasured.clear()

    # --- what it adds up to --------------------------------------------------------------------

    @property
    def is_doubtful(self) -> bool:
        """Whether it would help to count the tokens of the text."""
        return is_doubtful(self._seen(), self.limit, self.density)

    def text(self) -> str:
        """Everything that the model wrote, in the order of the fields."""
        return "".join(generated_texts(self._message.fields()))

    def charged(self) -> tuple[Charge, int, int]:
        """What it is charged, the tokens of its prompt, and how many of these came from a cache."""
        seen = self._seen()
        charged = charge(seen, self.limit, self.density)
        if charged.source == "server" and not charged.flags:
            self._teach(seen)
        return charged, *_prompt_tokens(self._usage)

    def completion(self, model: str) -> Completion:
        finish = "length" if is_over(self._seen(), self.limit, self.density) else self.finish or "stop"
        charged, prompt, cached = self.charged()
        fields = self._message.fields()
        content = fields.pop("content", "")
        body = response(
            self.body,
            name=str(self._head.get("id", "")),
            model=str(self._head.get("model", model)),
            text=content,
            finish=finish,
            tokens=charged.tokens,
            prompt_tokens=prompt,
            created=created if whole(created := self._head.get("created"), 2**53) else int(time.time()),
        )
        if "system_fingerprint" in self._head:
            body["system_fingerprint"] = self._head["system_fingerprint"]
        choice = body["choices"][0]
        choice["logprobs"] = self._logprobs or None
        if "message" in choice:
            choice["message"].update(fields)
        body["usage"] = {**self._usage, **body["usage"]}
        body = writable(body)
        choice = body["choices"][0]
        final = choice["message"]["content"] if "message" in choice else choice["text"]
        return Completion(
            final if isinstance(final, str) else _text_of(final),
            charged.tokens,
            "length" if finish == "length" else "stop",
            charged.source,
            (*charged.flags, *(("malformed",) if self._malformed or self._message.malformed else ())),
            body,
            input_tokens=prompt - cached,
            cached_tokens=cached,
            least=charged.least,
        )

    def _seen(self) -> Seen:
        if self._characters > 4 * min(self.limit, self._used or self.limit):
            self._measure()
        return Seen(
            self.pieces,
            self._characters,
            self._used,
            self._reasoning,
            self._usage_wrong,
            self.finish == "length",
            self.counted,
            self._early,
            self._hidden,
        )

    def _teach(self, seen: Seen) -> None:
        """What a credible answer shows about the server's tokens, if all of them are in its text."""
        total, prompt = self._usage.get("total_tokens"), self._usage.get("prompt_tokens")
        complete = not (whole(total) and whole(prompt)) or total == prompt + self._usage["completion_tokens"]
        if complete and seen.used and not seen.reasoning:
            self.density.learn(seen.characters, seen.used)


def _used(usage: object) -> tuple[int | None, int, int]:
    """The server's count of what it generated, None if it gives none.

    And how much of it shows only in the total, and how much was reasoning.
    """
    fields = mapping(usage)
    used, prompt, total = (fields.get(f"{kind}_tokens") for kind in ("completion", "prompt", "total"))
    details = fields.get("completion_tokens_details")
    reasoning = details.get("reasoning_tokens") if isinstance(details, dict) else None
    if used is None:
        return None, 0, 0
    if not whole(used) or not (reasoning is None or whole(reasoning)):
        raise Malformed(f"a usage of {used!r:.40}")
    reasoning = reasoning or 0
    if not whole(total) or not whole(prompt):
        return used, 0, reasoning
    # Some services leave reasoning out of the answer's count (Gemini, xAI), but not out of the total.
    more = max(0, total - prompt - used)
    hidden = more if more > reasoning else 0
    if hidden > _MOST_HIDDEN:
        raise Malformed(f"a usage of {used} in a total of {total}")
    return used + more, hidden, reasoning


def _prompt_tokens(usage: Mapping[str, Any]) -> tuple[int, int]:
    """Tokens of the prompt, and how many of these came from a cache."""
    prompt, details = usage.get("prompt_tokens"), usage.get("prompt_tokens_details")
    if not whole(prompt):
        return 0, 0
    cached = details.get("cached_tokens") if isinstance(details, dict) else 0
    return prompt, min(cached, prompt) if whole(cached) else 0


def _text_of(parts: list[Any]) -> str:
    """The text of a message in parts, without its reasoning."""
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    return "".join(text for text in texts if isinstance(text, str))


# --- bodies that can be written ----------------------------------------------------------------


def writable(body: dict[str, Any]) -> dict[str, Any]:
    """The body as it is if it can be written as JSON and holds no secret; else with as little replaced as possible."""
    wrapped: Any = body
    for _ in range(_AROUND):
        wrapped = (wrapped,)
    try:
        written = orjson.dumps(wrapped)
    except TypeError:
        body = _cleaned(body, 0)
        written = orjson.dumps(body)
    return dict(redacted_value(body)) if holds_secret(written) else body


def _cleaned(value: Any, depth: int) -> Any:
    """Without half characters, integers beyond 64 bits and levels that are too deep."""
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if depth > _DEEPEST:
        return None
    if isinstance(value, dict):
        return {_cleaned(name, depth + 1): _cleaned(item, depth + 1) for name, item in value.items()}
    if isinstance(value, list):
        return [_cleaned(item, depth + 1) for item in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return float(value) if abs(value) < 2**1023 else math.inf if value > 0 else -math.inf
    return value
