"""Any OpenAI-compatible server. Its limits and its token counts are checked, not trusted.

Answers are always streamed, so that a server which ignores its limit can be stopped. A chunk of the
stream that contains text is a piece: of the content, of reasoning, of the arguments of a call. A piece holds one token
or several, so the number of pieces never exceeds the number of tokens. Where pieces hold several, the length of the
text shows how many there must be: at most 10 characters to a token and 64 in all on top, until answers of this server
have shown what its tokens hold (`_charging`).

What an answer is charged (`limit`: what was sent, not more than the grant):

    more pieces than the limit, or a text too long for it     the estimate; the stream is closed   limit_ignored
    the model's own tokenizer counts more than the limit      its count                            limit_ignored
    usage above the limit                                     the usage                            limit_ignored
    usage from what pieces and text show up to the limit      the usage
    usage too low for the pieces, the text or the reasoning   the limit, or more if estimated      usage_wrong
    it says it has; negative; not a number
    no usage after the text, and the text is estimated at     the estimate                         usage_estimated
    1.5 times the limit or more
    no usage after the text                                   the limit

A usage counts the text before and beside it. If more text follows, it shows only what was generated at least.

The estimate is the number of pieces if they have 7 characters or fewer on average, else 4 characters to a token
or what was learned. The tokenizer (`_tokenizer`) is asked if the estimate exceeds what would be charged.

Parts of an answer that do not follow the protocol are left out, and the answer has the flag `malformed`. An answer that
is complete but for its finish_reason has it, too. What cannot be written to a file (half characters, integers beyond
64 bits, hundreds of levels) is replaced.

Nothing more is sent to a server that ignored a limit: what it would generate cannot be bounded.

What a server can generate without being noticed, if its texts have c characters a token (4.5 in English, 3 in code):

    what it shows, one token a piece            nothing: every piece is counted
    what it shows, several tokens a piece       usage below the truth: 10/c times the usage (English: 2.2), 8/c to
                                                15/c once its tokens are known, and 64/c tokens more in an answer
                                                no usage: 7/c times the limit in short pieces, 6/c in long ones;
                                                above that it is charged 4 characters a token: c/4 of the truth
                                                where c is below 4
    what it does not show                       anything that it does not count: hidden reasoning; text in fields that
                                                no model writes (ids, signatures, annotations, audio) is not counted
    after a limit was exceeded                  what arrives until the stream is closed, and what other requests
                                                in flight generate

What failures cost is in `_failures`.

A cut answer is continued from its text: a plain prompt is sent again with the text after it, a chat with
the text as an unfinished assistant message (`continue_final_message`). llama.cpp, vLLM and SGLang continue
from there; other servers start over, which shows: the prompt they count is longer than the old one and its
answer. Text is not tokens: a model that wrote a word in unusual tokens reads it in the usual ones, and may
continue differently. White space at the end is held back, since some chat templates remove it; the model
writes it again.

A suffix is sent after that text. As long as it is unknown whether the server continues a chat, an answer to
a suffix has the flag `continuation_unverified`: the tokens of the suffix were not counted, so the server's
count of its prompt does not show whether it continued.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from shadowprice.backends._charging import Density
from shadowprice.backends._continuing import continuation, final_text
from shadowprice.backends._events import EventParser, Malformed, mapping, parse_json, read_body, read_event, whole
from shadowprice.backends._failures import NoCompletion, StatusError, checked_after_generating, failure
from shadowprice.backends._http import Body, Client
from shadowprice.backends._stream import Answer
from shadowprice.backends._tokenizer import Tokenizer
from shadowprice.backends.base import (
    ATTEMPT,
    AsyncContext,
    can_be_continued,
    effective_limit,
    stops_of,
    with_text,
)
from shadowprice.errors import BackendError, InputError, LimitViolated, Refused, Unavailable
from shadowprice.formats.limits import ENDPOINTS, LIMIT_FIELDS
from shadowprice.types import Completion

if TYPE_CHECKING:
    from aiohttp import ClientResponse

__all__ = ["OpenAIBackend"]

_CONNECT_TIMEOUT = 10.0  # seconds
_MAX_STOPS = 4  # stop texts; OpenAI accepts no more
_USAGE = {"stream_options": {"include_usage": True}}
_MAX_FETCHED = 2**26  # bytes
_ACCOUNT_TIMEOUT = 10.0  # seconds to say what an attempt has cost
_GATEWAY = "x-shadowprice-decision"  # a header of every answer of our own gateway
_REPLACED = {*LIMIT_FIELDS, "stream_options"}  # fields of a request that are not sent as they are


class OpenAIBackend(AsyncContext):
    """A model behind an OpenAI-compatible endpoint.

    base_url       with the version: http://127.0.0.1:8000/v1
    model          its name there; "" leaves the name to each request
    api_key        None: the environment's OPENAI_API_KEY, else "none", which local servers accept
    timeout        seconds for a whole answer, including the wait for its first word
    stall_timeout  seconds from one word to the next
    limit_field    the field that limits a chat. Newer servers want max_completion_tokens; some older ones only
                   know max_tokens, or ignore the other. Plain completions always use max_tokens.
    continues      whether it continues a chat that was cut; None: unknown until the first one is continued
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        timeout: float = 600.0,
        stall_timeout: float = 60.0,
        limit_field: Literal["max_completion_tokens", "max_tokens"] = "max_completion_tokens",
        continues: bool | None = None,
    ) -> None:
        if limit_field not in ("max_completion_tokens", "max_tokens"):
            raise InputError(f"limit field {limit_field!r}", fix="choose max_completion_tokens or max_tokens")
        self.model = model
        self._timeout, self._stall_timeout = timeout, stall_timeout
        self._limit_field, self._continues = limit_field, continues
        self._requests_usage = True
        self._keeps_account: bool | None = None  # whether the server can tell what an attempt has cost; None: unknown
        self._violation = ""
        self._under_way: set[Answer] = set()
        self._density = Density()
        key = (api_key or "").strip() or os.environ.get("OPENAI_API_KEY", "").strip() or "none"
        # Shorter than the timeout of the answer: what was never connected cost nothing.
        self._client = Client(base_url, key, connect_timeout=min(0.9 * timeout, _CONNECT_TIMEOUT))
        self._tokenizer = Tokenizer(self._client)

    def can_continue(self, body: Mapping[str, Any]) -> bool | None:
        if not can_be_continued(body):
            return False
        if "messages" not in body:
            return isinstance(body.get("prompt"), str)
        messages = body["messages"]
        if not isinstance(messages, list) or not messages or not isinstance(messages[-1], Mapping):
            return False
        return self._continues if messages[-1].get("role") != "assistant" else False

    async def complete(
        self, body: Mapping[str, Any], limit: int, *, continue_from: Completion | None = None, suffix: str = ""
    ) -> Completion:
        limit = effective_limit(body, limit)
        if continue_from is not None and not continue_from.tokens and not continue_from.text:
            continue_from = None
        if continue_from is None and not suffix:
            return await self._answer(body, limit)
        if (known := self.can_continue(body)) is False:
            raise Refused("an answer to this request cannot be continued", code="not_continued", sent=False)
        try:
            return await self._continue(body, limit, continue_from, suffix)
        except Refused:
            if known is None:
                self._continues = bool(self._continues)  # another request may have shown it meanwhile
            raise

    async def generating(self) -> int:
        """Tokens that answers in flight have so far, at least: a piece may hold several."""
        return sum(answer.pieces for answer in self._under_way)

    async def cost_of(self, body: Mapping[str, Any], attempt: str) -> int | None:
        """The tokens that an attempt at `body` has cost, if the server records attempts; None: unknown.

        Our own gateway does, under the key that it has charged: an attempt has one such key at most.
        """
        for key in _keys(attempt):
            if (cost := await self._ask_cost(_path(body), key)) is not None:
                return cost
        return None

    async def _ask_cost(self, path: str, key: str) -> int | None:
        if self._keeps_account is False:
            return None
        try:
            async with asyncio.timeout(_ACCOUNT_TIMEOUT):
                response = await self._client.post(path, {}, key=key, method="GET")
                try:
                    reply = mapping(parse_json(await Body(response, 2**16).all()))
                finally:
                    self._client.release(response)
        except Exception as error:  # whatever it is: the cost is unknown
            if isinstance(error, StatusError) and error.status < 500:
                self._keeps_account = False
            return None
        self._keeps_account = reply.get("object") == "shadowprice.cost"
        cost = reply.get("tokens")
        return cost if self._keeps_account and whole(cost) else None

    async def fetch(self, url: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The JSON that another endpoint of the server answers with; fails as `complete` does."""
        try:
            async with asyncio.timeout(self._timeout):
                response = await self._client.post(url, body)
                try:
                    return mapping(parse_json(await Body(response, _MAX_FETCHED).all()))
                finally:
                    self._client.release(response)
        except Exception as error:
            raise failure(error, body) from None

    async def close(self) -> None:
        await self._client.close()

    async def _answer(self, body: Mapping[str, Any], limit: int) -> Completion:
        if self._violation:
            raise LimitViolated(self._violation)
        answer = Answer(body, limit, self._density)
        self._under_way.add(answer)
        try:
            failed = await self._receive(self._request(body, limit), answer)
        finally:
            self._under_way.discard(answer)
        # What breaks after the last word does not matter: the answer is complete.
        if answer.finish is None and not answer.overrun:
            cause = "a stream without an end"
            failed = failed or Unavailable("the stream ended without a finish_reason", tokens=None, cause=cause)
            if failed.tokens is None and self._keeps_account and (attempt := ATTEMPT.get()):
                failed.tokens = await self.cost_of(body, attempt)
            raise failed
        if answer.finish in ("abort", "error"):  # vLLM, SGLang
            raise Unavailable(f"the server stopped with finish_reason {answer.finish}", tokens=None)
        if not answer.overrun and answer.is_doubtful:
            model = self.model or str(body.get("model", ""))
            answer.counted = await self._tokenizer.count(answer.text(), model)
        done = answer.completion(self.model)
        if "limit_ignored" in done.flags:
            self._violation = f"the server at {self._client.url} ignored a limit of {limit:,} tokens: {done.tokens:,}"
        return done

    def _request(self, body: Mapping[str, Any], limit: int) -> dict[str, Any]:
        request = {field: value for field, value in body.items() if field not in _REPLACED}
        request[self._limit_field if "messages" in body else ENDPOINTS["/completions"].limit_field] = limit
        if self.model:
            request["model"] = self.model
        request["stream"] = True
        return request

    async def _receive(self, request: dict[str, Any], answer: Answer) -> BackendError | None:
        """Read the answer to its end, or to its limit; returns what cut it short, if anything did."""
        deadline = asyncio.get_running_loop().time() + self._timeout
        try:
            async with asyncio.timeout_at(deadline) as clock:
                response = await self._open(request)
                if _GATEWAY in response.headers:
                    self._keeps_account = True
                try:
                    bounds = _bounds(request, answer.limit)
                    body = Body(response, bounds.stream)
                    first = await body.some()
                    start = first.lstrip()
                    is_json = response.content_type.endswith("json") and not start.startswith((b"data:", b":"))
                    is_stream = response.content_type == "text/event-stream"
                    if not is_stream and (not first or start.startswith(b"<")):
                        raise NoCompletion(response.content_type, first)
                    if is_json or start.startswith(b"{"):
                        body.most = bounds.event
                        content = first + await body.all()
                        events = read_body(content)  # of a server that does not stream
                        if not any(isinstance(event, dict) and "choices" in event for event in events):
                            raise NoCompletion(response.content_type, content)
                        for event in events:
                            answer.add(event)
                        answer.end()
                        await self._client.finish(response)
                    elif await self._read_stream(first, body, EventParser(bounds.event), answer, clock):
                        await self._client.finish(response)
                    elif not is_stream and b'"choices"' not in first:
                        raise NoCompletion(response.content_type, first)
                finally:
                    self._client.release(response)
        except Exception as error:  # aiohttp and the parsers raise many kinds for bytes that are not an answer
            return failure(error, request, begun=answer.begun)
        return None

    async def _read_stream(
        self, chunk: bytes, body: Body, parser: EventParser, answer: Answer, clock: asyncio.Timeout
    ) -> bool:
        """Whether it was a stream of events."""
        loop = asyncio.get_running_loop()
        deadline = clock.when() or loop.time()
        while True:
            events = parser.feed(chunk) if chunk else parser.end()
            for kind, data in events:
                try:
                    event = read_event(kind, data)
                except Malformed:
                    if chunk:
                        raise
                    break  # cut off within an event: the end of the stream says more than half an event
                answer.add(event)
            if answer.overrun:  # what has already arrived is still counted; nothing more is waited for
                clock.reschedule(loop.time())
            elif events and answer.pieces:  # before the first piece a model may think, or wait its turn
                clock.reschedule(min(deadline, loop.time() + self._stall_timeout))
            if parser.complete:
                answer.end()
            if parser.done:
                return parser.started
            chunk = await body.some()

    async def _open(self, request: dict[str, Any]) -> ClientResponse:
        path, (key, second_key) = _path(request), _keys(ATTEMPT.get())
        if self._requests_usage:
            try:
                return await self._client.post(path, {**request, **_USAGE}, watch=True, key=key)
            except StatusError as error:
                if error.status not in (400, 422) or "stream_options" not in error.content:
                    raise
                self._requests_usage = False
                if error.generated or checked_after_generating(request):
                    raise
            # This refusal generated nothing: asking again is still the same attempt.
            key = second_key
        return await self._client.post(path, request, watch=True, key=key)

    async def _continue(self, body: Mapping[str, Any], limit: int, first: Completion | None, suffix: str) -> Completion:
        """The next part, after `first` and the suffix."""
        chat = "messages" in body
        known = self.can_continue(body)
        whole = (first.text if first else "") + suffix
        sent = whole.rstrip() if chat else whole
        if not sent or (first and _has_more_than_text(first)):
            raise Refused("the server cannot continue this answer", code="not_continued", sent=False)
        request = continuation(body, sent)
        if suffix:
            request["stop"] = stops_of(suffix)[:_MAX_STOPS]
        more = await self._answer(request, limit)
        if known is None and first and not suffix:
            self._continues = _continued(first, sent, more)
            if not self._continues:
                raise Refused("the server started over", tokens=more.tokens, code="not_continued")
        elif known is None:
            more = replace(more, flags=(*more.flags, "continuation_unverified"))
        text = final_text(suffix, whole[len(sent) :], more.text, more.finish)
        return with_text(more, text)


class _Bounds(NamedTuple):
    """Bytes that an answer can have: as a stream, and as one event or one body of JSON."""

    stream: int
    event: int


def _bounds(body: Mapping[str, Any], limit: int) -> _Bounds:
    """Generous: an event around a token takes 1 kB on some servers, its 20 alternatives or its sound several."""
    if any(value and ("logprobs" in field or field in ("modalities", "audio")) for field, value in body.items()):
        most = 2**24 + 2**14 * limit
        return _Bounds(min(most, 2**28), min(most, 2**26))
    return _Bounds(min(2**22 + 2**11 * limit, 2**28), min(2**20 + 2**8 * limit, 2**26))


# --- continuing --------------------------------------------------------------------------------


def _has_more_than_text(answer: Completion) -> bool:
    """Whether an answer has reasoning or tool calls, which cannot be sent back."""
    (choice,) = answer.body["choices"]
    message = choice.get("message", {})
    return not message.keys() <= {"role", "content"} or not isinstance(message.get("content", ""), str)


def _continued(first: Completion, sent: str, more: Completion) -> bool:
    """Whether `more` continues `first`.

    A server that starts over counts the first part and the frame around it as its prompt, or repeats the part.
    """
    if first.usage_source != "server" or more.usage_source != "server":
        return False
    before, after = (part.body["usage"]["prompt_tokens"] for part in (first, more))
    repeats = more.text and (more.text.startswith(sent) or sent.startswith(more.text))
    return before < after <= before + first.tokens and not repeats


def _path(body: Mapping[str, Any]) -> str:
    return "/chat/completions" if "messages" in body else "/completions"


def _keys(attempt: str) -> tuple[str, str]:
    """The Idempotency-Keys of an attempt: a request that is sent again without a field has another."""
    return (attempt, f"{attempt}-again") if attempt else ("", "")
