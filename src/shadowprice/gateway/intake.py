"""Bounds on what comes in: bodies by size and time, connections by number.

a body above `_LARGEST` bytes        413, before it is read if it says its length
a body that takes longer             408, after `_PATIENCE` seconds
bodies of many clients together      503 above `_TOGETHER` bytes in memory
headers that do not end              the connection is closed after `_HEADERS` seconds
connections above `CONNECTIONS`      closed at once
"""

from __future__ import annotations

import asyncio
import logging
import resource
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

from shadowprice.errors import MissingExtra

try:
    from aiohttp import web
    from aiohttp.http import HttpProcessingError
except ImportError:
    raise MissingExtra("gateway", "the gateway") from None

__all__ = ["CONNECTIONS", "Intake", "Refusal", "Server"]

CONNECTIONS = 12_000
_HEADERS = 30.0  # seconds
_LINGER = 2.0  # seconds for which the rest of a body that was refused is read
_LARGEST = 16 * 2**20
_PATIENCE = 30.0
_TOGETHER = 256 * 2**20
_SPARE = 512  # files beside the connections: those to upstreams have a limit of their own
_LOG = logging.getLogger("shadowprice.gateway.http")
# Requests that are not HTTP are answered with 400. The error quotes what came, which may contain a key.
_LOG.addFilter(lambda record: not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError)))


class Refusal(Exception):
    """A request that is refused before it is understood."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class Intake:
    """Reads bodies, and counts what is in memory."""

    def __init__(self) -> None:
        self.held = 0  # bytes

    def body(self, request: web.BaseRequest) -> _Body:
        """The body of a request; it counts as in memory until the block ends."""
        return _Body(self, request)


class _Body(AbstractAsyncContextManager[bytes]):
    def __init__(self, intake: Intake, request: web.BaseRequest) -> None:
        self._intake, self._request = intake, request
        self._size = 0

    async def __aenter__(self) -> bytes:
        try:
            return await self._read()
        except BaseException as error:
            self._end()
            if isinstance(error, TimeoutError):
                raise Refusal(408, "timeout", f"the body did not arrive within {_PATIENCE:.0f} seconds") from None
            if isinstance(error, web.RequestPayloadError):
                raise Refusal(400, "invalid_request_error", f"the body cannot be read: {error}"[:200]) from None
            raise

    async def __aexit__(self, *error: object) -> None:
        self._end()

    def _end(self) -> None:
        self._intake.held -= self._size

    async def _read(self) -> bytes:
        if (self._request.content_length or 0) > _LARGEST:
            raise Refusal(413, "request_too_large", f"the body has more than {_LARGEST} bytes")
        content = self._request.content
        if content.is_eof():  # it has arrived: nothing to wait for
            return self._counted(content.read_nowait())
        if self._request.headers.get("Expect", "").lower() == "100-continue" and self._request.version >= (1, 1):
            await self._request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")  # the client waits for it
            self._request.writer.output_size = 0  # it is not part of the response
        parts = []
        async with asyncio.timeout(_PATIENCE):
            while chunk := await content.readany():
                parts.append(self._counted(chunk))
        return b"".join(parts)

    def _counted(self, chunk: bytes) -> bytes:
        self._size += len(chunk)
        self._intake.held += len(chunk)
        if self._size > _LARGEST:
            raise Refusal(413, "request_too_large", f"the body has more than {_LARGEST} bytes")
        if self._intake.held > _TOGETHER:
            raise Refusal(503, "overloaded", "too many large requests at a time: try again later")
        return chunk


class Server(web.Server):
    """Closes connections above a limit at once, so that one client cannot use up all files of the process."""

    def __init__(self, handle: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]) -> None:
        super().__init__(
            handle,
            handler_cancellation=True,  # a client that leaves ends its request
            keepalive_timeout=_HEADERS,
            lingering_time=_LINGER,
            access_log=None,
            logger=_LOG,
        )
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard == resource.RLIM_INFINITY or soft < hard:
            wanted = 65_536 if hard == resource.RLIM_INFINITY else hard
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self.most = max(16, min(CONNECTIONS, (files - _SPARE) * 2 // 3))
        self.refused = 0

    def __call__(self) -> asyncio.Protocol:  # type: ignore[override]
        if len(self.connections) >= self.most:
            self.refused += 1
            return _Closed()
        return super().__call__()


class _Closed(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()
