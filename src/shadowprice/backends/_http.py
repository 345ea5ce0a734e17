"""POST requests with JSON over aiohttp, and what their failures mean.

Every request has its own connection. A reused one that its server has just closed looks like an answer that
was lost, and would be charged as one; a new connection costs little compared with an answer.
"""

from __future__ import annotations

import asyncio
import base64
import io
import ipaddress
import json
import time
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any

import orjson

from shadowprice.backends._stream import ServerError, parse_json
from shadowprice.errors import BackendError, InputError, MissingExtra, Refused, Unavailable

try:
    import aiohttp
    from yarl import URL
except ImportError:
    raise MissingExtra("openai", "talking to an OpenAI-compatible server") from None

__all__ = ["Client", "StatusError"]

_LONGEST_DELAY = 300.0  # seconds; a server that asks for more is asked again after this
_LONGEST_REASON = 2**16  # bytes that are read of an error
_LONGEST_HEADER = 2**16  # bytes
_LARGE = 2**20  # bytes; aiohttp wants larger requests as files
_SHORTEST_SECRET = 6  # characters; shorter keys are placeholders such as "none"

# Raised before a request is sent. The connection timeout is the only one that aiohttp keeps here.
_NOTHING_SENT = (aiohttp.ClientConnectorError, aiohttp.ServerTimeoutError, aiohttp.ClientHttpProxyError)


class StatusError(Exception):
    """A response with a status other than 2xx."""

    def __init__(self, status: int, headers: Mapping[str, str], content: Any) -> None:
        super().__init__(status)
        self.status, self.headers, self.content = status, headers, str(content)
        content = content.get("error") or content if isinstance(content, dict) else content
        self.codes = {content.get("code"), content.get("type")} if isinstance(content, dict) else set()
        self.reason = content
        if isinstance(content, dict):
            self.reason = content.get("message") or content.get("detail") or content


class Client:
    """Requests to one server, through the proxy of the environment unless the server is on this machine."""

    def __init__(self, base_url: str, api_key: str, *, connect_timeout: float) -> None:
        try:
            url = URL(base_url)
        except ValueError:
            url = URL()
        if url.scheme not in ("http", "https") or not url.host:
            raise InputError("the base URL is invalid", fix="write it as http://127.0.0.1:8000/v1")
        self._secrets = [api_key, url.password, url.raw_password]
        self._headers = {
            "Authorization": f"Bearer {api_key}",
            "Content-Type": "application/json",
            "Accept": "text/event-stream, application/json",
            "Accept-Encoding": "identity",
            "Connection": "close",
        }
        if url.user:
            self._headers["Authorization"] = _basic(url)
        self._base = url.with_user(None)
        self._proxy, self._proxy_headers = _proxy(self._base), None
        if self._proxy and self._proxy.user:
            self._secrets += [self._proxy.password, self._proxy.raw_password]
            # Through a tunnel the request itself must not carry them: the server would read it.
            headers = {"Proxy-Authorization": _basic(self._proxy)}
            if url.scheme == "http":
                self._headers |= headers
            else:
                self._proxy_headers = headers
            self._proxy = self._proxy.with_user(None)
        self._connect_timeout = connect_timeout
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def url(self) -> str:
        """The address of the server, without credentials."""
        return str(self._base.with_query(None))

    async def post(self, path: str, body: Mapping[str, Any]) -> aiohttp.ClientResponse:
        """The response to a request, which the caller closes; raises StatusError for a status that is not 2xx.

        path    relative to the base URL, or a complete URL
        """
        url = URL(path) if "://" in path else (self._base / path.removeprefix("/")).with_query(self._base.query)
        response = await self._opened().post(
            url,
            data=_encoded(body),
            headers=self._headers,
            proxy=self._proxy,
            proxy_headers=self._proxy_headers,
            allow_redirects=False,
        )
        if 200 <= response.status < 300:
            return response
        try:
            raise await _status_error(response)
        finally:
            response.close()

    async def close(self) -> None:
        if self._session:
            await self._session.close()

    def __del__(self) -> None:
        session: aiohttp.ClientSession | None = getattr(self, "_session", None)
        if session:  # no connection is kept, so a backend that was not closed needs no warning
            session.detach()

    def failure(self, error: Exception, *, silence: str = "did not answer in time") -> BackendError:
        """What an error of a request means: whether to retry, and what it may have cost."""
        if isinstance(error, StatusError):
            return self._refusal(error)
        if isinstance(error, _NOTHING_SENT):
            return Unavailable(f"no connection: {self._line(error)}", tokens=0)
        if isinstance(error, TimeoutError):
            return Unavailable(f"the server {silence}", tokens=None)
        if isinstance(error, aiohttp.ClientResponseError):
            return Unavailable(f"not an answer: {self._line(error.message)}", tokens=None)
        if isinstance(error, aiohttp.ClientError | OSError):
            return Unavailable(f"the connection broke: {self._line(error)}", tokens=None)
        if isinstance(error, ServerError):
            return Unavailable(f"the server reported an error: {self._line(error)}", tokens=None)
        return Unavailable(f"not an answer: {self._line(error)}", tokens=None)

    def _refusal(self, error: StatusError) -> BackendError:
        status, message = error.status, f"{error.status}: {self._line(error.reason or 'no reason given')}"
        if status == 429 and "insufficient_quota" not in error.codes:  # OpenAI's code for an account that is empty
            return Unavailable(message, tokens=0, delay=_delay(error.headers))
        if status == 503:  # nobody took the request: overloaded, or the model is still loading
            return Unavailable(message, tokens=0, delay=_delay(error.headers))
        if status in (408, 409) or status >= 500:
            return Unavailable(message, tokens=None, delay=_delay(error.headers))
        if 300 <= status < 400:
            message = f"{status}: the server redirects to {self._line(error.headers.get('location', 'nowhere'))}"
        return Refused(message)

    def _line(self, said: object) -> str:
        """Anything as one line of limited length, without secrets."""
        line = " ".join((str(said) or type(said).__name__).split())
        for secret in self._secrets:
            if secret and len(secret) >= _SHORTEST_SECRET:
                line = line.replace(secret, "***")
        return line[:300]

    def _opened(self) -> aiohttp.ClientSession:
        """The session of the running event loop."""
        loop = asyncio.get_running_loop()
        if self._session is None or self._loop is not loop:
            if self._session:
                self._session.detach()  # its loop is closed, and it holds no connection
            self._loop = loop
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, force_close=True),  # the executor limits concurrency
                # The rest is timed elsewhere, and nothing is rounded up to whole seconds.
                timeout=aiohttp.ClientTimeout(total=None, connect=self._connect_timeout, ceil_threshold=float("inf")),
                cookie_jar=aiohttp.DummyCookieJar(),
                max_line_size=_LONGEST_HEADER,
                max_field_size=_LONGEST_HEADER,
            )
        return self._session


def _encoded(body: Mapping[str, Any]) -> bytes | io.BytesIO:
    try:
        data = orjson.dumps(body)
    except TypeError:  # integers beyond 64 bits, half characters
        data = json.dumps(body).encode()
    return data if len(data) < _LARGE else io.BytesIO(data)


async def _status_error(response: aiohttp.ClientResponse) -> StatusError:
    content = bytearray()
    while len(content) < _LONGEST_REASON and (chunk := await response.content.readany()):
        content += chunk
    said: Any
    try:
        said = parse_json(bytes(content))
    except (ValueError, RecursionError):
        said = content.decode(errors="replace")
    return StatusError(response.status, response.headers, said)


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


def _basic(url: URL) -> str:
    """The credentials of an address as a header."""
    return "Basic " + base64.b64encode(f"{url.user}:{url.password or ''}".encode()).decode()


def _is_local(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def _delay(headers: Mapping[str, str]) -> float | None:
    """The seconds a server asks to wait, at most `_LONGEST_DELAY`."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        with suppress(KeyError, ValueError):
            if (seconds := float(headers[name]) * unit) >= 0:
                return min(seconds, _LONGEST_DELAY)
    with suppress(KeyError, ValueError, TypeError, OverflowError):
        seconds = parsedate_to_datetime(headers["retry-after"]).timestamp() - time.time()
        return min(max(seconds, 0.0), _LONGEST_DELAY)
    return None
