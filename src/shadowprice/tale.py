"""TALE-EP: a teacher model estimates what each query needs, and prompts tell the limit (paper, eq. 21 to 24).

    ask          puts every query to the teacher, who answers with a number of tokens
    Taught       forecasts with these numbers, which policy `tale` divides the budget in proportion to
    BudgetAware  writes each grant into the prompt, and sends it as the hard limit too

Asking is a run like any other, under the reserved names of `ESTIMATE`: an estimate is granted `LIMIT`
tokens, reserved before it is sent, and kept in the ledger, so that a run which goes on neither asks nor
pays again. A query is asked twice at most, crashes included: again, more strictly, where the teacher
gave no number or nobody knows what it gave. A query without a number keeps the forecast it had.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import orjson

from shadowprice.accounts.sqlite import Ledger
from shadowprice.backends.base import Backend, granted
from shadowprice.errors import InputError
from shadowprice.forecast import Predictor, PromptLength
from shadowprice.formats.batch import BatchLine
from shadowprice.runner import Progress, Settings, refuse_several_answers, run
from shadowprice.types import Completion, Forecast, Request

ESTIMATE = "shadowprice.estimate:"  # what the names of estimates in a ledger begin with
LIMIT = 16  # tokens of one estimate
ASKS = 2  # estimates asked for of one query
_MOST = 2**31  # tokens; as in a batch file, more is a slip

# --- the teacher's number ----------------------------------------------------------------------

_ASK = (
    "How many tokens does a complete answer to this request need, reasoning included? "
    "Reply with one whole number; do not answer the request.\n\nRequest: {text}"
)
_ENDINGS = ("\n\nNumber of tokens:", "\n\nThe number of tokens, in digits only:")  # the first time, and the second
# Small models take the request for their task, whatever they are told; examples show them what is wanted.
_EXAMPLES = (("Name a primary colour.", "8"), ("Prove that the square root of two is irrational.", "420"))
_NUMBER = re.compile(r"([1-9]\d{0,2}(?:[,_]\d{3}){1,3}|[1-9]\d{0,9})(?:\s*tokens?)?", re.ASCII | re.IGNORECASE)


def parse_estimate(text: str) -> int | None:
    """The number, if the text is one positive whole number, as in `1,200` or `1200 tokens`, and nothing else."""
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        return None
    number = int(re.sub("[,_]", "", match[1]))
    return number if number <= _MOST else None


def question(request: BatchLine, turn: int) -> BatchLine:
    """What the teacher is asked about a request the first time (turn 0) and the second."""
    messages: list[dict[str, str]] = []
    for text, tokens in _EXAMPLES:
        messages += [_user(_ASK.format(text=text)), {"role": "assistant", "content": tokens}]
    messages.append(_user(_ASK.format(text=request.query.text) + _ENDINGS[turn]))
    body: dict[str, Any] = {"messages": messages, "temperature": 0}
    if model := orjson.loads(request.raw)["body"].get("model"):
        body["model"] = model
    query = Request(_name(request, turn), request.query.text)
    raw = orjson.dumps({"custom_id": query.id, "body": body})
    return BatchLine(request.line, raw, query, "max_completion_tokens", False)


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _name(request: BatchLine, turn: int) -> str:
    return f"{ESTIMATE}{turn + 1}:{request.query.id}"


def refuse_reserved_names(requests: Sequence[BatchLine], path: str | os.PathLike[str]) -> None:
    for request in requests:
        if request.query.id.startswith(ESTIMATE):
            problem = f"custom_id {request.query.id!r:.80} begins with {ESTIMATE!r}, which is reserved"
            raise InputError(problem, path=path, line=request.line, fix="give it another name")


# --- asking ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Estimates:
    """What a ledger knows of the teacher's answers."""

    found: Mapping[str, int]  # by query id
    asked: int  # queries
    retried: int  # of them, asked a second time
    fell_back: int  # queries without an estimate, asked or not
    tokens: int  # that the teacher generated, or may have
    flags: dict[str, int]  # what was wrong with its server, and how often


async def ask(
    requests: Sequence[BatchLine],
    ledger: Ledger,
    teacher: Backend,
    settings: Settings,
    *,
    most: int,
    tell: Callable[[Progress], None] = lambda progress: None,
) -> None:
    """Asks for estimates of those requests that `ledger` has none of, for `most` tokens in all.

    Of `settings` only concurrency, attempts and patience matter. Where the room for estimates ends, or
    the teacher fails everyone who is asked first, the others are not asked.
    """
    refuse_several_answers(requests)  # before anything is paid for them
    settings = replace(settings, policy="uniform", options={}, max_tokens=LIMIT, reclaim=False, samples=1)
    able = [request for request in requests if request.query.text.strip()]
    for turn in range(ASKS):
        heard = _heard(ledger)
        due = [question(r, turn) for r in able if _is_due(r, turn, heard)]
        size = settings.concurrency  # until somebody has got an answer; then as many as there is room for
        while size := min(size, len(due), max(0, min(most - heard.tokens, ledger.available)) // LIMIT):
            now, due = due[:size], due[size:]
            await run(now, ledger, teacher, PromptLength(), settings, tell=tell)
            heard = _heard(ledger)
            answered = any(heard.of[q.query.id].answered for q in now if q.query.id in heard.of)
            size = len(due) if answered else 0


def _is_due(request: BatchLine, turn: int, heard: _Heard) -> bool:
    """Not asked this time, but every time before, and never with success."""
    before = [heard.of.get(_name(request, earlier)) for earlier in range(turn)]
    return _name(request, turn) not in heard.of and all(s is not None and s.number is None for s in before)


def estimates_in(ledger: Ledger, requests: Sequence[BatchLine]) -> Estimates:
    heard = _heard(ledger)
    said = [[heard.of[name] for turn in range(ASKS) if (name := _name(r, turn)) in heard.of] for r in requests]
    found = {r.query.id: each[-1].number for r, each in zip(requests, said, strict=True) if each and each[-1].number}
    return Estimates(
        found=found,
        asked=sum(len(each) > 0 for each in said),
        retried=sum(len(each) > 1 for each in said),
        fell_back=len(requests) - len(found),
        tokens=heard.tokens,
        flags=dict(Counter(flag for each in heard.of.values() for flag in each.flags)),
    )


class _Said(NamedTuple):
    answered: bool = False
    number: int | None = None
    flags: Sequence[str] = ()


@dataclass
class _Heard:
    of: dict[str, _Said] = field(default_factory=dict)  # by name of the estimate, once it was sent
    tokens: int = 0


def _heard(ledger: Ledger) -> _Heard:
    heard = _Heard()
    for entry in ledger.entries():
        if entry.query and entry.query.startswith(ESTIMATE) and entry.kind in ("settle", "orphan"):
            heard.of[entry.query] = _Said()
            heard.tokens += entry.tokens
    for name, line in ledger.results():
        if name.startswith(ESTIMATE):
            heard.of[name] = _understood(orjson.loads(line))
    return heard


def _understood(record: dict[str, Any]) -> _Said:
    if record["error"]:
        return _Said()
    text, told = record["response"]["body"]["choices"][0]["message"]["content"], record["shadowprice"]
    # A number that was cut off is another number.
    return _Said(True, parse_estimate(text or "") if told["finish"] == "stop" else None, told["flags"])


@dataclass(frozen=True)
class Taught:
    """Forecasts the teacher's estimates, and where there is none what `fallback` forecasts."""

    fallback: Predictor
    estimates: Mapping[str, int]

    def predict(self, queries: Sequence[Request]) -> Forecast:
        own = self.fallback.predict(queries)
        tokens = [self.estimates.get(query.id, mine) for query, mine in zip(queries, own.tokens, strict=True)]
        return Forecast(tokens, own.spread, own.solve, own.tail)


# --- prompts that tell the limit ---------------------------------------------------------------


class BudgetAware:
    """A backend that tells the model what its limit is, each attempt its own."""

    def __init__(self, backend: Backend) -> None:
        self.backend, self.model = backend, backend.model

    async def complete(self, body: Mapping[str, Any], limit: int) -> Completion:
        return await self.backend.complete(with_budget(body, granted(body, limit)), limit)

    async def close(self) -> None:
        await self.backend.close()


def with_budget(body: Mapping[str, Any], grant: int) -> dict[str, Any]:
    """A copy of the body that asks, where the user speaks last, to stay within `grant` tokens.

    A plain prompt begins with it, because the answer goes on where the prompt ends. A prompt of token
    numbers is left as it is: there is no text to add to.
    """
    told = f"Keep the entire response within at most {grant} tokens."
    if "messages" in body:
        return {**body, "messages": _with_words(body["messages"], told)}
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        return {**body, "prompt": f"{told}\n\n{prompt}"}
    if isinstance(prompt, list) and all(isinstance(each, str) for each in prompt):
        return {**body, "prompt": [f"{told}\n\n{each}" for each in prompt]}
    return dict(body)


def _with_words(messages: Sequence[Mapping[str, Any]], told: str) -> list[Mapping[str, Any]]:
    """The messages, with these words at the end of the last one of the user's."""
    said = list(messages)
    for at in reversed(range(len(said))):
        content = said[at].get("content")
        if said[at].get("role") != "user":
            continue
        if isinstance(content, str):
            said[at] = {**said[at], "content": f"{content}\n\n{told}"}
            return said
        if isinstance(content, list):
            said[at] = {**said[at], "content": [*content, {"type": "text", "text": told}]}
            return said
    return [*said, _user(told)]
