"""One attempt at a request: what arrives is passed on, counted, and charged.

What an answer is charged is decided as for runs (`backends.openai`), what a failure costs too
(`backends._failures`):

    the answer ended                              what the server counted, if that is plausible, else the grant
    several answers, counted as if there was one  what their texts and cuts show
    the server exceeds the limit in a stream      what arrived; the stream is cut, and nothing more is sent there
    the server says that it generated nothing     nothing
    any other failure                             the grant
    the client leaves within a stream             what arrived and `_AHEAD` tokens; the upstream is closed
    the same, of a server that hides reasoning    what it has counted so far and `_AHEAD` tokens, else the grant
    the client leaves before anything arrived     the grant

A client that does not read for `_STALL` seconds has left. A server that does not stop within `_AHEAD` tokens of a
closed connection is outside this promise.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from shadowprice.backends._charging import Density, length
from shadowprice.backends._events import EventParser, Malformed, ServerError, TooLong, parse_json, read_event
from shadowprice.backends._failures import StatusError, failure
from shadowprice.backends._merge import generated_texts
from shadowprice.backends._stream import Answer
from shadowprice.errors import BackendError, MissingExtra
from shadowprice.gateway.bodies import EMBEDDINGS, Ask, written
from shadowprice.gateway.connections import Response
from shadowprice.gateway.upstreams import HOP, Upstream, Upstreams
from shadowprice.types import Usage

try:
    import aiohttp
    from aiohttp import web
except ImportError:
    raise MissingExtra("gateway", "the gateway") from None

__all__ = ["Attempt", "as_chat", "error_response", "kept_headers", "pass_on", "split_events"]

_AHEAD = 16  # tokens that a server may generate before it notices that nobody listens
_STALL = 60.0  # seconds
_ANSWER = 2**26  # bytes of an answer
_EVENT = 2**24  # bytes of an event
_DOUBT = 1.5  # times what was counted, that several answers look like
_SMALL = 2**14  # bytes: an empty buffer takes so many
_END = re.compile(rb"\n\r?\n|\r\r")  # of an event: two ends of lines


class Attempt:
    """One request on its way to one server: what has arrived, and what it used.

    limit    output tokens that were reserved; prompt: tokens of its prompt that were
    headers  for the client, known when the response is
    new      whether it is not the request of the client: a server must not take it for that
    usage    what is charged: all that was reserved, unless more is known
    failure  why there is no answer, if there is none and nothing was sent to the client
    """

    def __init__(
        self,
        upstreams: Upstreams,
        upstream: Upstream,
        ask: Ask,
        limit: int,
        prompt: int,
        headers: Callable[[], dict[str, str]],
        *,
        enforced: bool = True,
        new: bool = False,
    ) -> None:
        self._upstreams, self._upstream, self._ask, self._headers = upstreams, upstream, ask, headers
        self._limit, self._prompt, self._enforced, self._new = limit, prompt, enforced, new
        # What is counted of several answers teaches nothing: some servers count one of them only.
        self._answer = Answer(ask.body, limit, upstream.density if ask.answers == 1 else Density())
        self.usage = Usage(limit, prompt)
        self.failure: BackendError | None = None
        self.left = False
        self.first: float | None = None  # when the first part of a stream arrived
        self.sent: bytes | None = None  # of a stream that has an Idempotency-Key, when it has ended

    async def run(self, request: web.BaseRequest, body: dict[str, Any]) -> web.StreamResponse:
        try:
            content, query = written(self._upstream.rewritten(body)), request.rel_url.raw_query_string
            given: Mapping[str, str] = request.headers
            if self._new:
                given = {name: value for name, value in given.items() if name.lower() != "idempotency-key"}
            async with self._upstreams.open(
                self._upstream, "POST", self._ask.endpoint, query, given, content
            ) as response:
                if not 200 <= response.status < 300:
                    return await self._refused(response)
                if self._ask.stream and response.content_type == "text/event-stream":
                    return await self._relay(request, response)
                return await self._whole(response)
        except (aiohttp.ClientError, TimeoutError, TooLong) as error:
            self._failed(failure(error, self._ask.body))
            return error_response(502, "upstream_unavailable", str(self.failure), self._headers())
        except asyncio.CancelledError:  # so that the connection to the upstream is closed
            self._leave()
            raise

    def _failed(self, failed: BackendError) -> None:
        self.failure = failed
        self._upstream.failed(failed)
        if failed.tokens is not None:
            self.usage = Usage(failed.tokens, self._prompt if failed.tokens else 0)

    async def _refused(self, response: Response) -> web.Response:
        content = await _some(response, 2**20)
        text = content.decode(errors="replace")
        try:
            parsed = parse_json(content)
        except Malformed:
            parsed = None
        self._failed(failure(StatusError(response.status, response.headers, text, parsed), self._ask.body))
        headers = kept_headers(response, self._headers())
        return web.Response(status=response.status, body=content, headers=headers)

    async def _whole(self, response: Response) -> web.Response:
        content = await _some(response, _ANSWER)
        try:
            parsed = parse_json(content)
        except Malformed:
            parsed = {}  # no count: all that was reserved is charged
        if self._ask.endpoint == EMBEDDINGS:
            self._charge_read(parsed)
        else:
            self._answer.add(without_beginning(as_chat(parsed), self._ask.begun))
            self._charge()
            if self._ask.answers > 1:
                self._charge_several(parsed)
        headers = kept_headers(response, self._headers())
        return web.Response(status=response.status, body=content, headers=headers)

    async def _relay(self, request: web.BaseRequest, response: Response) -> web.StreamResponse:
        reply = web.StreamResponse(status=response.status, headers=kept_headers(response, self._headers()))
        await reply.prepare(request)
        parser, rest, keep = EventParser(_EVENT), b"", "Idempotency-Key" in request.headers
        sent: list[bytes] = []
        try:
            async for chunk in response.content.iter_any():
                *events, rest = split_events(rest + chunk)
                shown = b"".join([raw for raw in events if self._add(parser, raw)])
                if self._answer.overrun and self._enforced:
                    break
                if len(rest) > _EVENT:
                    raise TooLong("an event of more than 16 MB")
                if shown:
                    self.first = self.first or asyncio.get_running_loop().time()
                    try:
                        if len(shown) < _SMALL and request.transport and not request.transport.get_write_buffer_size():
                            await reply.write(shown)  # does not wait: the client has read all that came before
                        else:
                            async with asyncio.timeout(_STALL):
                                await reply.write(shown)
                    except (ConnectionError, TimeoutError):
                        self._leave()
                        if request.transport:
                            request.transport.abort()
                        return reply
                    if keep:
                        sent.append(shown)
        except (aiohttp.ClientError, TimeoutError, TooLong) as error:  # the client sees that the answer has no end
            self._upstream.failed(failure(error, self._ask.body, begun=True))
            if request.transport:
                request.transport.close()
            return reply
        finally:
            if not response.content.at_eof():
                response.close()
        cut = self._answer.overrun and self._enforced
        if rest and (cut or not self._add(parser, rest + b"\n\n")):  # some servers leave out the last empty line
            rest = b""
        self._charge()
        self.sent = b"".join([*sent, rest])
        with suppress(ConnectionError):
            await reply.write_eof(rest)
        return reply

    def _leave(self) -> None:
        """The client has left: what arrived is charged, or the grant if that is nothing or not all."""
        self.left = True
        used = self._answer.used
        if self._answer.pieces and not (used is None and self._upstream.hides):
            seen = max(used or 0, self._upstream.density.estimate(self._answer.pieces, len(self._answer.text())))
            self.usage = Usage(max(used or 0, min(self._limit, seen + _AHEAD)), self._prompt)

    def _add(self, parser: EventParser, raw: bytes) -> bool:
        """Counts an event; whether the client is shown it."""
        shown = True
        for kind, data in parser.feed(raw):
            try:
                event = as_chat(read_event(kind if kind == b"error" else b"", data))
            except (Malformed, ServerError):
                continue
            self._answer.add(event)
            if not self._ask.usage and isinstance(event, dict) and event.get("usage") and event.get("choices") == []:
                shown = self._ask.endpoint == "/responses"
        return shown

    def _charge(self) -> None:
        charge, prompt, cached = self._answer.charged()
        # Without a count the prompt is charged as it was reserved.
        read = (prompt - cached, cached) if prompt else (self._prompt, 0)
        self.usage = Usage(charge.tokens, *read)
        self._upstream.hides |= self._answer.hides
        if "limit_ignored" in charge.flags and self._enforced:
            self._upstream.violation = f"the upstream ignored a limit of {self._limit:,} tokens: {charge.tokens:,}"

    def _charge_several(self, parsed: Any) -> None:
        """Charges several answers by their texts and cuts, if the server seems to have counted one of them only."""
        choices = parsed.get("choices") if isinstance(parsed, dict) else None
        each, cut, total = self._limit // self._ask.answers, 0, 0
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict):
                is_cut = choice.get("finish_reason") == "length"
                texts = generated_texts(choice.get("message") or choice.get("text") or "")
                cut += each * is_cut
                total += each if is_cut else min(each, Density().estimate(1, sum(map(length, texts))))
        if cut > self.usage.output or total > _DOUBT * self.usage.output:
            self.usage = Usage(max(total, self.usage.output), self._prompt)

    def _charge_read(self, parsed: Any) -> None:
        usage = parsed.get("usage") if isinstance(parsed, dict) else None
        read = usage.get("prompt_tokens", usage.get("total_tokens")) if isinstance(usage, dict) else None
        if type(read) is int and read > 0:
            self.usage = Usage(0, read)


async def pass_on(
    upstreams: Upstreams, upstream: Upstream, request: web.BaseRequest, end: str, content: bytes
) -> web.StreamResponse:
    """Everything that is not understood: there and back unchanged."""
    try:
        async with upstreams.open(
            upstream, request.method, end, request.rel_url.raw_query_string, request.headers, content
        ) as response:
            reply = web.StreamResponse(status=response.status, headers=kept_headers(response))
            await reply.prepare(request)
            async for chunk in response.content.iter_any():
                async with asyncio.timeout(_STALL):
                    await reply.write(chunk)
            await reply.write_eof()
            return reply
    except ConnectionResetError:
        raise asyncio.CancelledError from None  # the client has left
    except (aiohttp.ClientError, TimeoutError) as error:
        return error_response(502, "upstream_unavailable", str(failure(error)))


# --- forms -------------------------------------------------------------------------------------


def as_chat(event: object) -> object:
    """An event or body of /v1/responses in the form of a chat; any other as it is."""
    if not isinstance(event, dict) or "choices" in event:
        return event
    whole = event.get("response") if isinstance(event.get("response"), dict) else event
    usage = whole.get("usage") if isinstance(whole, dict) else None
    made: dict[str, Any] = {"choices": []}
    if isinstance(event.get("delta"), str):
        made["choices"] = [{"index": 0, "delta": {"content": event["delta"]}}]
    if isinstance(usage, dict) and "output_tokens" in usage:
        made["usage"] = {"prompt_tokens": usage.get("input_tokens"), "completion_tokens": usage["output_tokens"]}
        if details := usage.get("input_tokens_details"):
            made["usage"]["prompt_tokens_details"] = details
        if details := usage.get("output_tokens_details"):
            made["usage"]["completion_tokens_details"] = details
    elif usage is not None:
        made["usage"] = usage
    return made


def without_beginning(event: object, begun: str) -> object:
    """A whole answer without what the request began it with: llama.cpp repeats that, and has not generated it."""
    if not begun or not isinstance(event, dict) or not isinstance(event.get("choices"), list):
        return event
    choices = []
    for choice in event["choices"]:
        message = choice.get("message") if isinstance(choice, dict) else None
        if isinstance(message, dict) and isinstance(content := message.get("content"), str):
            choice = {**choice, "message": {**message, "content": content.removeprefix(begun)}}
        choices.append(choice)
    return {**event, "choices": choices}


def split_events(data: bytes) -> list[bytes]:
    """Whole events with what separates them, and at last what is left."""
    found, start = [], 0
    for match in _END.finditer(data):
        found.append(data[start : match.end()])
        start = match.end()
    return [*found, data[start:]]


async def _some(response: Response, most: int) -> bytes:
    if response.content.is_eof() and response.content.total_bytes <= most:  # it has arrived: nothing to wait for
        return response.content.read_nowait(-1)
    parts, size = [], 0
    async for chunk in response.content.iter_any():
        parts.append(chunk)
        if (size := size + len(chunk)) > most:
            raise TooLong(f"more than {most:,} bytes")
    return b"".join(parts)


def kept_headers(response: Response, ours: Mapping[str, str] | None = None) -> list[tuple[str, str]]:
    """The headers of a response that concern the client, and `ours`, in lower case, instead of those of these names."""
    ours = ours or {}
    theirs = response.headers.items()  # several may have one name
    # With a control character in a header no response can be written.
    kept = [
        each for each in theirs if (name := each[0].lower()) not in HOP and name not in ours and each[1].isprintable()
    ]
    return [*kept, *ours.items()]


def error_response(
    status: int, code: str, message: str, headers: Mapping[str, str] | None = None, **more: Any
) -> web.Response:
    """An error in the form in which OpenAI's clients expect it."""
    error = {"message": message, "type": code, "code": code, "param": None, **more}
    return web.json_response({"error": error}, status=status, headers=headers)
