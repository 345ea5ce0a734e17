"""One request on its way: what arrives is passed on, counted, and charged.

What an answer is charged is decided as for runs (`backends.openai`), what a failure costs too
(`backends._failures`):

    the answer ended                              what the server counted, if that is plausible, else the grant
    the server exceeds the limit in a stream      what arrived; the stream is cut, and nothing more is sent there
    the server says that it generated nothing     nothing
    any other failure                             the grant
    the client leaves within a stream             what arrived and `_AHEAD` tokens; the upstream is closed
    the client leaves before anything arrived     the grant

A server that does not stop within `_AHEAD` tokens of a closed connection is outside this promise.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import orjson

from shadowprice.accounts.tree import Reservation
from shadowprice.backends._events import EventParser, Malformed, ServerError, TooLong, parse_json, read_event
from shadowprice.backends._failures import StatusError, failure
from shadowprice.backends._stream import Answer
from shadowprice.errors import MissingExtra
from shadowprice.gateway.admission import Decision
from shadowprice.gateway.bodies import Ask

try:
    import aiohttp
    from aiohttp import web
except ImportError:
    raise MissingExtra("gateway", "the gateway") from None

if TYPE_CHECKING:
    from shadowprice.gateway.server import Gateway

__all__ = ["HOP", "Attempt", "as_chat", "error_response", "kept_headers", "split_events"]

_AHEAD = 16  # tokens that a server may generate before it notices that nobody listens
_ANSWER = 2**26  # bytes of an answer
_EVENT = 2**24  # bytes of an event
_END = re.compile(rb"\r?\n\r?\n")
# Headers that belong to one connection.
HOP = {
    "connection", "content-encoding", "content-length", "host", "keep-alive", "proxy-authorization", "te", "trailer",
    "transfer-encoding", "upgrade", "accept-encoding",
}  # fmt: skip


class Attempt:
    """One request on its way: what has arrived, and what it is charged."""

    def __init__(self, gateway: Gateway, ask: Ask, decision: Decision, units: int, held: Reservation | None) -> None:
        self._gateway, self._ask, self._decision, self._units, self._held = gateway, ask, decision, units, held
        self._answer = Answer(ask.body, units, gateway.density)
        self.cost = units  # unless more is known
        self.sent: list[bytes] = []  # of a stream that is kept

    def settle(self) -> None:
        gateway = self._gateway
        gateway.counts["tokens", ""] += self.cost
        if self._held:
            gateway.tree.settle(self._held, self.cost)
        else:
            gateway.tree.charge(gateway.settings.accounts, self.cost)

    async def run(self, request: web.BaseRequest, body: dict[str, Any]) -> web.StreamResponse:
        try:
            async with await self._gateway.open(request, self._ask.endpoint, orjson.dumps(body)) as response:
                if not 200 <= response.status < 300:
                    return await self._refused(response)
                if self._ask.stream and response.content_type == "text/event-stream":
                    return await self._relay(request, response)
                return await self._whole(response)
        except (aiohttp.ClientError, TimeoutError, TooLong) as error:
            failed = failure(error, body)
            self.cost = self._units if failed.tokens is None else failed.tokens
            headers = self._gateway.headers(self._decision)
            return error_response(502, "upstream_unavailable", str(failed), headers)
        except asyncio.CancelledError:  # so that the connection to the upstream is closed
            self._left()
            raise

    async def _refused(self, response: aiohttp.ClientResponse) -> web.Response:
        content = await _some(response, 2**20)
        text = content.decode(errors="replace")
        try:
            parsed = parse_json(content)
        except Malformed:
            parsed = None
        failed = failure(StatusError(response.status, response.headers, text, parsed), self._ask.body)
        self.cost = self._units if failed.tokens is None else failed.tokens
        headers = {**kept_headers(response), **self._gateway.headers(self._decision)}
        return web.Response(status=response.status, body=content, headers=headers)

    async def _whole(self, response: aiohttp.ClientResponse) -> web.Response:
        content = await _some(response, _ANSWER)
        try:
            self._answer.add(as_chat(parse_json(content)))
        except Malformed:
            self._answer.add({})  # no count: the grant is charged
        self._charge()
        return web.Response(
            status=response.status,
            body=content,
            headers={**kept_headers(response), **self._gateway.headers(self._decision)},
        )

    async def _relay(self, request: web.BaseRequest, response: aiohttp.ClientResponse) -> web.StreamResponse:
        headers = {**kept_headers(response), **self._gateway.headers(self._decision)}
        reply = web.StreamResponse(status=response.status, headers=headers)
        await reply.prepare(request)
        parser, rest = EventParser(_EVENT), b""
        try:
            async for chunk in response.content.iter_any():
                *events, rest = split_events(rest + chunk)
                shown = [raw for raw in events if self._add(parser, raw)]
                if self._answer.overrun and not self._gateway.settings.shadow:
                    break
                if len(rest) > _EVENT:
                    raise TooLong("an event of more than 16 MB")
                if shown:
                    try:
                        await reply.write(b"".join(shown))
                        if request.headers.get("Idempotency-Key"):
                            self.sent += shown
                    except ConnectionError:
                        self._left()
                        return reply
        except (aiohttp.ClientError, TimeoutError, TooLong):  # the client sees that the answer has no end
            if request.transport:
                request.transport.close()
            return reply
        finally:
            if not response.content.at_eof():
                response.close()
        self._charge()
        reply["sent"] = b"".join(self.sent)
        with suppress(ConnectionError):
            await reply.write_eof()
        return reply

    def _left(self) -> None:
        """The client has left: what arrived is charged, or the grant if nothing has."""
        self._gateway.counts["clients_left", ""] += 1
        if self._answer.pieces:
            seen = self._gateway.density.estimate(self._answer.pieces, len(self._answer.text()))
            self.cost = min(self._units, seen + _AHEAD)

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
        done = self._answer.completion("")
        self.cost = done.tokens
        if "limit_ignored" in done.flags and not self._gateway.settings.shadow:
            self._gateway.violation = f"the upstream ignored a limit of {self._units:,} tokens: {done.tokens:,}"


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
    elif usage is not None:
        made["usage"] = usage
    return made


def split_events(data: bytes) -> list[bytes]:
    """Whole events with what separates them, and at last what is left."""
    found, start = [], 0
    for match in _END.finditer(data):
        found.append(data[start : match.end()])
        start = match.end()
    return [*found, data[start:]]


async def _some(response: aiohttp.ClientResponse, most: int) -> bytes:
    parts, size = [], 0
    async for chunk in response.content.iter_any():
        parts.append(chunk)
        if (size := size + len(chunk)) > most:
            raise TooLong(f"more than {most:,} bytes")
    return b"".join(parts)


def kept_headers(response: aiohttp.ClientResponse) -> dict[str, str]:
    return {name: value for name, value in response.headers.items() if name.lower() not in HOP}


def error_response(status: int, code: str, message: str, headers: dict[str, str] | None = None) -> web.Response:
    error = {"message": message, "type": code, "code": code}
    return web.json_response({"error": error}, status=status, headers=headers)
