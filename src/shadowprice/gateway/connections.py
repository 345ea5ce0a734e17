"""Connections to upstreams: aiohttp's, without the layers of its client that a gateway does not need.

A ClientSession follows redirects, keeps cookies, encodes bodies, traces and retries. Here a request is one write; the
pool of connections, TLS and the parser of responses are aiohttp's (`TCPConnector.connect`, `ResponseHandler`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from functools import lru_cache

from shadowprice.errors import InputError, MissingExtra

try:
    import aiohttp
    from aiohttp.connector import Connection
    from aiohttp.http import HttpProcessingError
    from multidict import CIMultiDict, CIMultiDictProxy
    from yarl import URL
except ImportError:
    raise MissingExtra("gateway", "the gateway") from None

__all__ = ["Connections", "Response"]

_TOTAL = 600.0  # seconds, for a request and its whole answer, and
_SWEEP = 10.0  # between two looks for those that have taken longer: a timer for each would cost more
_CONNECT = aiohttp.ClientTimeout(sock_connect=10)
_IDLE = 30.0  # seconds for which a connection is kept
_WITHOUT_BODY = {"GET", "HEAD", "OPTIONS", "DELETE"}  # as a rule: their length is stated only if they have one


class Response:
    """What a server answers; its body is read from `content`."""

    content: aiohttp.StreamReader

    def __init__(self, connection: Connection) -> None:
        assert connection.protocol is not None
        self._connection, self.protocol = connection, connection.protocol
        self.status = 0
        self.headers: CIMultiDictProxy[str] = CIMultiDictProxy(CIMultiDict())

    @property
    def content_type(self) -> str:
        return self.headers.get("Content-Type", "").partition(";")[0].strip().lower()

    async def begin(self) -> None:
        """Reads status and headers."""
        while not self.status:
            message, self.content = await self.protocol.read()
            if message.code >= 200:  # those below announce another
                self.status, self.headers = message.code, message.headers

    def expire(self) -> None:
        """Ends the wait for the rest, with a TimeoutError."""
        for waiting in (self.protocol, self.content) if self.status else (self.protocol,):
            waiting.set_exception(TimeoutError())

    def release(self) -> None:
        """Returns the connection, or closes it if something of the response is still to come."""
        self._connection.release()

    def close(self) -> None:
        """Closes the connection: the server sees that nobody wants the rest."""
        self._connection.close()


class Connections:
    """To all servers. A connection is used again if its response was read to the end."""

    def __init__(self) -> None:
        self.connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE)
        self._servers: dict[str, tuple[aiohttp.ClientRequest, list[tuple[str, str]]]] = {}
        self._open: dict[Response, float] = {}  # those under way, the oldest first, and when they expire
        self._sweeping: asyncio.TimerHandle | None = None

    async def close(self) -> None:
        if self._sweeping:
            self._sweeping.cancel()
        await self.connector.close()

    def request(self, method: str, url: str, headers: Sequence[tuple[str, str]], content: bytes) -> _Exchange:
        """The response of a server. Within the block its body can be read; after it the connection is returned."""
        server, target = _parts(url)
        like, first = self._servers.get(server) or self._server(server)
        sent = _written(method, target, [*first, *headers], content)
        return _Exchange(self, like, method == "HEAD", sent)

    def began(self, response: Response) -> None:
        loop = asyncio.get_running_loop()
        self._open[response] = loop.time() + _TOTAL
        if not self._sweeping:
            self._sweeping = loop.call_later(_SWEEP, self._sweep)

    def ended(self, response: Response) -> None:
        del self._open[response]

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        for response, end in self._open.items():
            if end > loop.time():
                break
            response.expire()
        self._sweeping = loop.call_later(_SWEEP, self._sweep) if self._open else None

    def _server(self, server: str) -> tuple[aiohttp.ClientRequest, list[tuple[str, str]]]:
        """A request like all to this server, by which aiohttp finds its connections, and the headers of all of them."""
        like = aiohttp.ClientRequest("GET", URL(server), loop=asyncio.get_running_loop())
        first = [(name, like.headers[name]) for name in ("Host", "Authorization") if name in like.headers]
        self._servers[server] = like, first
        return like, first


class _Exchange(AbstractAsyncContextManager[Response]):
    """A request and its response, on a connection of their own until the block ends."""

    def __init__(self, connections: Connections, like: aiohttp.ClientRequest, head: bool, sent: bytes) -> None:
        self._connections, self._like, self._head, self._sent = connections, like, head, sent

    async def __aenter__(self) -> Response:
        try:
            connection = await self._connections.connector.connect(self._like, [], _CONNECT)
        except TimeoutError as error:
            raise aiohttp.ConnectionTimeoutError(f"no connection to {self._like.url}") from error
        self._response = response = Response(connection)
        response.protocol.set_response_params(skip_payload=self._head, read_until_eof=True)
        self._connections.began(response)
        try:
            assert connection.transport is not None
            connection.transport.write(self._sent)
            await response.begin()
        except BaseException as error:
            self._end(error)
            raise
        return response

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._end(error)

    def _end(self, error: BaseException | None) -> None:
        self._connections.ended(self._response)
        if error is None:
            self._response.release()
            return
        self._response.close()
        if isinstance(error, HttpProcessingError):
            raise aiohttp.ClientResponseError(self._like.request_info, (), message=error.message) from error


@lru_cache(256)
def _parts(url: str) -> tuple[str, str]:
    """Scheme, host and port of a URL, and what is asked for there."""
    parsed = URL(url)
    return str(parsed.with_path("/")), parsed.raw_path_qs


def _written(method: str, target: str, headers: Sequence[tuple[str, str]], content: bytes) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", *[f"{name}: {value}" for name, value in headers]]
    if content or method not in _WITHOUT_BODY:
        lines.append(f"Content-Length: {len(content)}")
    head = "\r\n".join(lines)
    if not head.count("\r") == head.count("\n") == len(lines) - 1:  # a header of a client must not become two
        raise InputError("a header has a line break in it", fix="leave it out")
    return head.encode(errors="surrogateescape") + b"\r\n\r\n" + content
