"""POST requests with JSON over aiohttp. What their failures mean is in `_failures`.

Nothing that a server sends takes more memory than it was allowed: responses are decompressed here, in small steps
(compression is not asked for, but some proxies do it anyway), and reading stops at a number of bytes.
"""

from __future__ import annotations

import asyncio
import base64
import io
import ipaddress
import json
import urllib.request
import uuid
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from shadowprice.backends._connections import Connections
from shadowprice.backends._events import Malformed, TooLong, parse_json
from shadowprice.backends._failures import StatusError
from shadowprice.errors import InputError, MissingExtra
from shadowprice.redact import register_login, register_query, register_secret

try:
    import aiohttp
    from yarl import URL
except ImportError:
    raise MissingExtra("openai", "talking to an OpenAI-compatible server") from None

__all__ = ["Body", "Client"]

_LONGEST_REASON = 2**16  # bytes that are read of an error
_REASON_TIMEOUT = 5.0  # seconds
_LARGE = 2**20  # bytes; aiohttp wants larger requests as files
_STEP = 2**16  # bytes that are decompressed at a time
_SILENCE = 1.0  # seconds after which the connection of a response is looked at


class Client:
    """Requests to one server, through the proxy of the environment unless the server is on this machine."""

    def __init__(self, base_url: str, api_key: str, *, connect_timeout: float) -> None:
        url = _address(base_url)
        key = _key(api_key)
        register_secret(key)
        register_query(url.query.items())
        self._headers = {
            "Authorization": f"Bearer {key}",
            "Content-Type": "application/json",
            "Accept": "text/event-stream, application/json",
            "Accept-Encoding": "identity",
        }
        if url.user:
            self._headers["Authorization"] = _basic(url)
        self._base = url.with_user(None)
        self._proxy, self._proxy_headers = _proxy(self._base), None
        if self._proxy and self._proxy.user:
            # Through a tunnel the request itself must not carry them: the server would read it.
            headers = {"Proxy-Authorization": _basic(self._proxy)}
            if url.scheme == "http":
                self._headers |= headers
            else:
                self._proxy_headers = headers
            self._proxy = self._proxy.with_user(None)
        self._connections = Connections(connect_timeout)

    @property
    def url(self) -> str:
        """The address of the server, without credentials."""
        return str(self._base.with_query(None))

    @property
    def root(self) -> str:
        """The address without the version at its end."""
        return self.url.rstrip("/").removesuffix("/v1")

    async def post(
        self, path: str, body: Mapping[str, Any], *, watch: bool = False, key: str = "", method: str = "POST"
    ) -> aiohttp.ClientResponse:
        """The response to a request, which the caller releases; raises StatusError for a status that is not 2xx.

        path    relative to the base URL, or a complete URL
        watch   whether this is a request like most others: it may show how the server treats connections
        key     its Idempotency-Key; "": one of its own
        """
        url = URL(path) if "://" in path else (self._base / path.removeprefix("/")).with_query(self._base.query)
        # Every request is new: a server or a gateway that knows these keys must not send an old answer.
        headers = {**self._headers, "Idempotency-Key": key or str(uuid.uuid4())}
        response = await self._connections.request(
            method,
            url,
            headers,
            watch=watch,
            data=_encoded(body),
            proxy=self._proxy,
            proxy_headers=self._proxy_headers,
            allow_redirects=False,
        )
        if 200 <= response.status < 300:
            return response
        try:
            raise await _status_error(response)
        finally:
            self.release(response)

    async def finish(self, response: aiohttp.ClientResponse) -> None:
        """For a response whose last event has come."""
        await self._connections.finish(response)

    def release(self, response: aiohttp.ClientResponse) -> None:
        self._connections.release(response)

    async def close(self) -> None:
        await self._connections.close()


# --- what is sent ------------------------------------------------------------------------------


def _address(text: str) -> URL:
    fix = "write it as http://127.0.0.1:8000/v1"
    try:
        url = URL(text.strip())
    except ValueError as error:
        port = "port" in str(error).lower()
        raise InputError(f"the base URL is invalid{': its port is not one of 1 to 65535' * port}", fix=fix) from None
    if url.scheme not in ("http", "https") or not url.host or any(map(str.isspace, url.host)):
        raise InputError("the base URL is invalid", fix=fix)
    return url


def _key(key: str) -> str:
    """The key as it is sent; an error about it does not show it."""
    if any(ord(character) > 255 for character in key) or not key.replace("\xa0", "").isprintable():
        raise InputError("the API key contains characters that no header can carry", fix="copy it again, as one line")
    return key


def _basic(url: URL) -> str:
    """The credentials of an address as a header; they are secrets from now on."""
    user, password = url.user or "", url.password or ""
    register_login(user, password)
    register_secret(url.raw_password)
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def _encoded(body: Mapping[str, Any]) -> bytes | io.BytesIO:
    try:
        data = orjson.dumps(body)
    except TypeError:  # integers beyond 64 bits, half characters
        data = json.dumps(body).encode()
    return data if len(data) < _LARGE else io.BytesIO(data)


def _proxy(url: URL) -> URL | None:
    """The proxy that the environment sets for `url`; none for this machine, which no proxy can reach."""
    host = url.host or ""
    if _is_local(host) or urllib.request.proxy_bypass(host):
        return None
    proxies = urllib.request.getproxies()
    address = proxies.get(url.scheme) or proxies.get("all")
    if not address:
        return None
    proxy = URL(address if "://" in address else f"http://{address}")
    if proxy.scheme not in ("http", "https"):
        raise InputError(
            f"the environment sets a {proxy.scheme} proxy, which is not supported",
            fix=f"set {url.scheme.upper()}_PROXY to an http:// address, or list {host} in NO_PROXY",
        )
    return proxy


def _is_local(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


# --- what is received --------------------------------------------------------------------------


class Body:
    """The body of a response as it arrives, decompressed; more than `most` bytes raise TooLong."""

    def __init__(self, response: aiohttp.ClientResponse, most: int) -> None:
        self._response, self.most = response, most
        self._decompress = _decompressor(response.headers.get("Content-Encoding", "").strip().lower())
        self._parts: Iterator[bytes] = iter(())
        self._received = self._given = 0

    async def some(self) -> bytes:
        """What comes next, nothing at the end."""
        while (part := next(self._parts, None)) is None:
            chunk = await self._chunk()
            if not chunk:
                return b""
            self._received += len(chunk)
            self._check()
            self._parts = self._decompress(chunk)
        self._given += len(part)
        self._check()
        return part

    async def all(self) -> bytes:
        parts = []
        while part := await self.some():
            parts.append(part)
        return b"".join(parts)

    async def _chunk(self) -> bytes:
        """What arrives next. On an invalid chunk, aiohttp closes the connection and lets its reader wait."""
        while True:
            try:
                async with asyncio.timeout(_SILENCE):
                    return await self._response.content.readany()
            except TimeoutError:
                connection = self._response.connection
                if connection and (connection.transport is None or connection.transport.is_closing()):
                    raise aiohttp.ClientPayloadError from None

    def _check(self) -> None:
        if max(self._received, self._given) > self.most:
            raise TooLong(f"more than {self.most:,} bytes")


class _Inflate:
    """Decompresses gzip and deflate in small steps, whatever they grow to."""

    def __init__(self) -> None:
        self._stream: Any = None

    def __call__(self, data: bytes) -> Iterator[bytes]:
        while data:
            if self._stream is None:
                bare = data[0] != 0x1F and data[0] & 0x0F != 8  # deflate without the header it should have
                self._stream = zlib.decompressobj(-zlib.MAX_WBITS if bare else zlib.MAX_WBITS | 32)
            try:
                part = self._stream.decompress(data, _STEP)
            except zlib.error as error:
                raise Malformed(f"compressed badly: {error}") from None
            if part:
                yield part
            data = self._stream.unconsumed_tail
            if self._stream.eof:
                data, self._stream = self._stream.unused_data, None


def _decompressor(encoding: str) -> Any:
    if encoding in ("", "identity"):
        return lambda chunk: iter((chunk,))
    if encoding in ("gzip", "x-gzip", "deflate"):
        return _Inflate()
    raise Malformed(f"compressed as {encoding[:20]}, which was not asked for")


async def _status_error(response: aiohttp.ClientResponse) -> StatusError:
    """With as much of the reason as comes soon: the status is known already."""
    content, truncated = b"", False
    try:
        async with asyncio.timeout(_REASON_TIMEOUT):
            body = Body(response, 2**20)
            while not truncated and (chunk := await body.some()):
                content += chunk
                truncated = len(content) > _LONGEST_REASON
    except (TooLong, Malformed, TimeoutError):
        truncated = True
    try:
        parsed = parse_json(content)
    except Malformed:
        parsed = None
    return StatusError(response.status, response.headers, content.decode(errors="replace"), parsed, truncated=truncated)
