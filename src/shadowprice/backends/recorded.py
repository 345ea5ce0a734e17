"""Recorded answers, served as if a model generated them now."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any, Literal

from shadowprice.backends.base import AsyncContext, effective_limit, opens_box, response
from shadowprice.errors import InputError, Refused
from shadowprice.formats.batch import text_of
from shadowprice.formats.probes import latest_probe, probes_of
from shadowprice.types import Completion, Trace

__all__ = ["RecordedBackend"]


class RecordedBackend(AsyncContext):
    """Answers from traces of one model, found by the text of the prompt or of the last user message.

    For greedy traces this is exact: greedy decoding is deterministic, so a smaller limit cuts the same
    answer. For sampled traces it is one of the answers that the model gave: the samples of a prompt are
    served in the order of their numbers, and then from the first again.

    The text of a cut answer is exact where the trace lists how many characters each token has
    (`token_chars`); otherwise the text is cut in proportion to the tokens.

    A trace that was truncated when it was recorded cannot give more: a larger limit returns what was
    recorded, with the flag `trace_truncated`.

    A landing (a suffix that ends in ``\\boxed{``) is taken from the trace's `landed` field, at the
    nearest age not above the tokens it continues from. Any other suffix, and a trace without such an
    age, raises `Refused` with the code `not_recorded`.
    """

    def __init__(self, traces: Iterable[Trace]) -> None:
        samples: defaultdict[str, list[_Sample]] = defaultdict(list)
        models = set()
        for trace in traces:
            samples[trace.prompt].append(_Sample(trace))
            models.add(trace.model)
        if len(models) > 1:
            raise InputError(f"traces of {len(models)} models: {', '.join(sorted(models))}", fix="use one at a time")
        for of_prompt in samples.values():
            of_prompt.sort(key=lambda sample: sample.trace.sample)
        self.model = models.pop() if models else ""
        self._samples = dict(samples)
        self._served: dict[str, int] = {}

    def can_continue(self, body: Mapping[str, Any]) -> bool:
        return True

    async def complete(
        self, body: Mapping[str, Any], limit: int, *, continue_from: Completion | None = None, suffix: str = ""
    ) -> Completion:
        limit = effective_limit(body, limit)
        prompt = _question(body)
        samples = self._samples.get(prompt)
        if samples is None:
            raise Refused(f"no trace of the prompt {prompt!r:.60}", code="no_trace")
        if continue_from is None:
            turn = self._served.get(prompt, 0)
            sample, start = samples[turn % len(samples)], 0
        else:
            name, start = continue_from.body["id"], continue_from.tokens
            sample = next((candidate for candidate in samples if candidate.name == name), samples[0])
        done = sample.landed(body, start, limit, suffix) if suffix else sample.part(body, start, limit)
        if continue_from is None:
            self._served[prompt] = turn + 1
        return done

    async def close(self) -> None:
        pass


class _Sample:
    """One trace, and where its tokens end."""

    __slots__ = ("_ends", "name", "trace")

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.name = f"recorded-{trace.id}-{trace.sample}"
        self._ends: list[int] | None = None  # computed when first needed

    def part(self, body: Mapping[str, Any], start: int, limit: int) -> Completion:
        """Up to `limit` tokens after the first `start`."""
        trace = self.trace
        stop = min(start + limit, trace.tokens)
        cut = stop < trace.tokens
        text = trace.response or ""
        if text and (start or cut):
            text = text[self._end(start) : self._end(stop) if cut else None]
        return self._completion(
            body,
            text,
            max(0, stop - start),
            "length" if cut or trace.truncated else "stop",
            ("trace_truncated",) if trace.truncated and start + limit > trace.tokens else (),
        )

    def landed(self, body: Mapping[str, Any], start: int, limit: int, suffix: str) -> Completion:
        """The final answer that the model stated after its first `start` tokens, or the last recorded before."""
        probe = latest_probe(probes_of(self.trace), start)
        if probe is None or not opens_box(suffix):
            raise Refused(f"no final answer of {self.trace.id!r} at {start} tokens is recorded", code="not_recorded")
        _, tokens, stated = probe
        if stated is None:  # the box was not closed
            return self._completion(body, "", min(tokens, limit), "length")
        if tokens > limit:
            return self._completion(body, stated[: len(stated) * limit // tokens], limit, "length")
        return self._completion(body, stated + "}", tokens, "stop")

    def _end(self, tokens: int) -> int:
        """The length of the text of the first `tokens` tokens."""
        trace = self.trace
        if self._ends is None:
            sizes = trace.extra.get("token_chars")
            valid = isinstance(sizes, list) and all(isinstance(size, int) for size in sizes)
            self._ends = [0, *accumulate(sizes)] if valid and sizes else []
        if tokens < len(self._ends):
            return self._ends[tokens]
        return len(trace.response or "") * tokens // max(1, trace.tokens)

    def _completion(
        self,
        body: Mapping[str, Any],
        text: str,
        tokens: int,
        finish: Literal["stop", "length"],
        flags: tuple[str, ...] = (),
    ) -> Completion:
        form = response(body, name=self.name, model=self.trace.model, text=text, finish=finish, tokens=tokens)
        return Completion(text, tokens, finish, "server", flags, form)


def _question(body: Mapping[str, Any]) -> str:
    """The prompt, or the text of the last user message."""
    asked = body.get("prompt")
    if "messages" in body:
        asked = None
        for message in body["messages"]:
            if message.get("role") == "user":
                asked = message
    text = text_of(asked)
    if not text:
        raise Refused(f"no text to find a trace by: {asked!r:.60}", code="no_trace")
    return text
