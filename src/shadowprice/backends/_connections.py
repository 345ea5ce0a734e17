"""The connections to one server, reused if that is safe.

A new connection for every request takes about half of the time of a short answer. But if a connection is reused just
when its server closes it, that looks like a lost answer, and is charged as one. Some servers (llama.cpp) close every
connection after a stream although they announce to keep it. So one connection is watched first: if it is still open a
moment after its answer, connections are reused, each within a second of its last answer. Reuse ends for good with the
first connection that is lost before any byte of a response.
"""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from shadowprice.errors import MissingExtra

try:
    import aiohttp
except ImportError:
    raise MissingExtra("openai", "talking to an OpenAI-compatible server") from None

__all__ = ["Connections"]

_LONGEST_HEADER = 2**16  # bytes
_IDLE = 1.0  # seconds that a connection waits for its next request; servers wait 5 or longer
_WATCHED = 0.1  # seconds after an answer that show whether its connection is kept
_LAST_WORD = 0.05  # seconds to wait for the end of a response after its last event
_MAX_LATE = 3  # give up waiting after so many responses in a row whose end did not come


class Connections:
    def __init__(self, connect_timeout: float) -> None:
        self._timeout = connect_timeout
        self._kept: aiohttp.ClientSession | None = None  # with connections that are used again
        self._fresh: aiohttp.ClientSession | None = None  # with a new one for every request
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reuse: Literal["unknown", "watching", "safe", "unsafe"] = "unknown"
        self._watched: aiohttp.ClientResponse | None = None
        self._late = 0

    async def request(
        self, method: str, url: Any, headers: dict[str, str], *, watch: bool, **options: Any
    ) -> aiohttp.ClientResponse:
        """The response, for `release`; `watch` if it is one whose connection may be watched."""
        self._enter()
        watching = watch and self._reuse == "unknown"
        if watching:
            self._reuse = "watching"
        elif self._reuse != "safe":
            headers = {**headers, "Connection": "close"}
        reused = self._reuse == "safe"
        try:
            if watching and self._kept:  # it may have the connection of a refusal, which the server closes
                before, self._kept = self._kept, None
                await before.close()
            response = await self._session(watching or reused).request(method, url, headers=headers, **options)
        except BaseException as error:
            lost = isinstance(error, aiohttp.ClientConnectionError) and not isinstance(
                error, aiohttp.ClientConnectorError | aiohttp.ServerTimeoutError
            )
            if watching:
                self._reuse = "unknown"
            elif reused and lost:
                self._reuse = "unsafe"
            raise
        if watching:
            self._watched = response
        return response

    async def finish(self, response: aiohttp.ClientResponse) -> None:
        """Wait a moment for the end of a response whose last event has come: only then can its connection be kept."""
        if self._late >= _MAX_LATE or (response is not self._watched and self._reuse != "safe"):
            return
        ended = response.content.at_eof()
        if not ended:
            try:
                async with asyncio.timeout(_LAST_WORD):
                    ended = not await response.content.readany()
            except (TimeoutError, aiohttp.ClientError):
                ended = False
        self._late = 0 if ended else self._late + 1
        if ended and response is self._watched:
            self._watched = None
            asyncio.get_running_loop().call_later(_WATCHED, self._judge, self._connector.transport)

    def release(self, response: aiohttp.ClientResponse) -> None:
        """End a response; its connection is closed unless the response has come to its end."""
        if response is self._watched:
            self._watched, self._reuse = None, "unknown"
        response.close()

    async def close(self) -> None:
        for session in (self._kept, self._fresh):
            if session:
                await session.close()

    def __del__(self) -> None:
        self._detach()

    def _judge(self, transport: asyncio.Transport | None) -> None:
        if self._reuse == "watching":
            self._reuse = "safe" if transport and not transport.is_closing() else "unsafe"

    def _enter(self) -> None:
        """Drops sessions of another event loop: a session belongs to one loop."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._detach()
            self._loop, self._kept, self._fresh, self._watched = loop, None, None, None
            self._reuse = "unknown" if self._reuse == "watching" else self._reuse

    def _detach(self) -> None:
        """Detaches the sessions, so that a backend that was not closed causes no warning."""
        for name in ("_kept", "_fresh"):
            session: aiohttp.ClientSession | None = getattr(self, name, None)
            if session:
                session.detach()

    def _session(self, kept: bool) -> aiohttp.ClientSession:
        if not kept:
            self._fresh = self._fresh or self._opened(aiohttp.TCPConnector(limit=0, force_close=True))
            return self._fresh
        if self._kept is None:
            self._connector = _Connector(limit=0, keepalive_timeout=_IDLE)
            self._kept = self._opened(self._connector)
        return self._kept

    def _opened(self, connector: aiohttp.TCPConnector) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=connector,  # without a limit: the executor limits concurrency
            # The rest is timed elsewhere, and nothing is rounded up to whole seconds.
            timeout=aiohttp.ClientTimeout(total=None, connect=self._timeout, ceil_threshold=float("inf")),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            max_line_size=_LONGEST_HEADER,
            max_field_size=_LONGEST_HEADER,
        )


class _Connector(aiohttp.TCPConnector):
    """Remembers the transport of the last connection: a response that is complete does not know its own any more."""

    transport: asyncio.Transport | None = None

    async def connect(self, *args: Any, **options: Any) -> aiohttp.connector.Connection:
        connection = await super().connect(*args, **options)
        self.transport = connection.transport
        return connection

    def __del__(self, *_: object) -> None:
        """No message about idle connections when a backend was not closed: they end with it."""
