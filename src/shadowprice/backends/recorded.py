"""Recorded generations, served as if a model wrote them anew."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from shadowprice.backends.base import granted, response
from shadowprice.errors import InputError, Refused
from shadowprice.formats.batch import text_of
from shadowprice.types import Completion, Trace


class ReplayBackend:
    """Answers from traces of one model, found by the text of the prompt or of the last user message.

    For greedy traces this is exact, not a simulation: greedy decoding is deterministic, so a smaller
    limit cuts the same answer short. For sampled traces it is one of the answers the model gave:
    the samples of a prompt are served in turn, by sample number, then from the first again.

    The text of a cut answer is exact where the trace says how many characters each token has
    (`token_chars`, a list); without that it is as long a prefix as its share of the tokens, about
    where the model would have been cut.

    A trace that was itself cut cannot tell how it would have gone on. Asked for more, it gives what
    there is, with the flag `trace_truncated`.
    """

    def __init__(self, traces: Iterable[Trace]) -> None:
        samples: defaultdict[str, list[Trace]] = defaultdict(list)
        models = set()
        for trace in traces:
            samples[trace.prompt].append(trace)
            models.add(trace.model)
        if len(models) > 1:
            raise InputError(f"traces of {len(models)} models: {', '.join(sorted(models))}", fix="replay one at a time")
        for found in samples.values():
            found.sort(key=lambda trace: trace.sample)
        self.model = models.pop() if models else ""
        self._samples = dict(samples)
        self._served: dict[str, int] = {}

    async def complete(self, body: Mapping[str, Any], limit: int) -> Completion:
        limit = granted(body, limit)
        prompt, samples = self._found(body)
        turn = self._served.get(prompt, 0)
        self._served[prompt] = turn + 1
        return _part(body, samples[turn % len(samples)], 0, limit)

    def resumes(self, body: Mapping[str, Any]) -> bool:
        return True

    async def extend(self, body: Mapping[str, Any], so_far: Completion | None, limit: int) -> Completion:
        if so_far is None:
            return await self.complete(body, limit)
        limit = granted(body, limit)
        _, samples = self._found(body)
        begun = next((sample for sample in samples if _name(sample) == so_far.body["id"]), samples[0])
        return _part(body, begun, so_far.tokens, limit)

    def _found(self, body: Mapping[str, Any]) -> tuple[str, list[Trace]]:
        prompt = _question(body)
        samples = self._samples.get(prompt)
        if samples is None:
            raise Refused(f"no trace of the prompt {prompt!r:.60}", code="no_trace")
        return prompt, samples

    async def close(self) -> None:
        pass


def _part(body: Mapping[str, Any], trace: Trace, start: int, limit: int) -> Completion:
    """What the trace says after its first `start` tokens, up to `limit` tokens of it."""
    stop = min(start + limit, trace.tokens)
    cut = stop < trace.tokens
    text = (_prefix(trace, stop) if cut else trace.response or "")[len(_prefix(trace, start)) :]
    finish: Literal["stop", "length"] = "length" if cut or trace.truncated else "stop"
    tokens = stop - start
    return Completion(
        text=text,
        tokens=tokens,
        finish=finish,
        usage_source="server",
        flags=("trace_truncated",) if trace.truncated and start + limit > trace.tokens else (),
        body=response(body, name=_name(trace), model=trace.model, text=text, finish=finish, tokens=tokens),
    )


def _name(trace: Trace) -> str:
    return f"replay-{trace.id}-{trace.sample}"


def _question(body: Mapping[str, Any]) -> str:
    """The prompt, or the text of the last message a user wrote."""
    asked = body.get("prompt")
    if "messages" in body:
        asked = next((said for said in reversed(body["messages"]) if said.get("role") == "user"), None)
    text = text_of(asked)
    if not text:
        raise Refused(f"no text to find a trace by: {asked!r:.60}", code="no_trace")
    return text


def _prefix(trace: Trace, tokens: int) -> str:
    """What the first `tokens` tokens of a longer answer say."""
    text = trace.response or ""
    sizes = trace.extra.get("token_chars")
    if isinstance(sizes, list) and len(sizes) >= tokens and all(isinstance(size, int) for size in sizes):
        return text[: sum(sizes[:tokens])]
    return text[: len(text) * tokens // max(1, trace.tokens)]
