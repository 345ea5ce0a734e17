"""What a failed request means: what it cost, whether to retry it, and whether others would fail in the same way.

    what came                                                   cost       error
    no connection: refused, unknown host, TLS, not in time      nothing    Unavailable, sent=False
    401, 402, 403, 404, 405, 501, a redirect,                   nothing    Denied
    insufficient_quota
    400, 422 about the key or the name of the model             nothing    Denied
    413                                                         nothing    Refused
    429, 503                                                    nothing    Unavailable
    400, 422 to a plain request                                 nothing    Refused
    400, 422 to a request for tools or structured output        unknown    Refused
    other 4xx                                                   unknown    Refused
    408, 409, 500, 502, 504, other 5xx                          unknown    Unavailable
    2xx, but no completion: a page in HTML, JSON of another     nothing    Unavailable
    form, nothing at all
    2xx: an error that names a status, before any text          as the status
    2xx: another error, a cut, empty or malformed stream, too   unknown    Unavailable
    many bytes
    a connection that breaks, or no answer in time              unknown    Unavailable

An unknown cost is charged in full. So is every status above whose body contains a completion, or the count of one:
the server has generated, in spite of its status. Some servers check structured output after they generated it, and
refuse it with 400. A connection that is lost before the first byte of a response has an unknown cost even if it was
used before and may have been closed while the request was on its way: the server may have received it.

`cause` is the same for failures of the same kind: a status, the server's code for it and its reason, without numbers
and ids, which differ from one request to the next.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from html import unescape
from typing import Any

from shadowprice.backends._events import Malformed, ServerError, TooLong, parse_json, reason
from shadowprice.errors import BackendError, Denied, MissingExtra, Refused, Unavailable
from shadowprice.redact import redact

try:
    import aiohttp
except ImportError:
    raise MissingExtra("openai", "talking to an OpenAI-compatible server") from None

__all__ = ["NoCompletion", "StatusError", "checked_after_generating", "failure", "line"]

_LONGEST_DELAY = 300.0  # seconds; a server that asks for more is asked again after this
# Raised before a request is sent. The connection timeout is the only one that aiohttp keeps here.
_NOTHING_SENT = (aiohttp.ClientConnectorError, aiohttp.ServerTimeoutError, aiohttp.ClientHttpProxyError)
_DENIED = {401, 402, 403, 404, 405, 501}  # the last: no POST here, as 405; plain file servers send it
_BUSY = {429, 503}  # nobody took the request: overloaded, or the model is still loading
_QUOTA = "insufficient_quota"  # OpenAI's code for an account that is empty
_STATUS_OF = {"rate_limit_exceeded": 429, _QUOTA: 429, "invalid_api_key": 401, "model_not_found": 404}
# What some services (LiteLLM, Mistral, DeepSeek, Gemini) answer with 400: other requests would get the same.
_SHARED = re.compile(
    r"model_not_found|(invalid|unknown|unsupported) model\b|\bmodel\b.{0,80}\bnot (exist|found)"
    r"|provide a model\b|\bmodel( \w+)? is (required|missing)|missing .{0,20}\bmodel\b"
    r"|(invalid|incorrect) api.key|api.key (not valid|is invalid)|no_db_connection",
    re.IGNORECASE,
)
_GENERATED = re.compile(r'"(choices|completion_tokens|failed_generation)"\s*:')
_STRUCTURED = {
    "ebnf", "format", "functions", "grammar", "json_schema", "regex", "response_format", "structural_tag",
    "structured_outputs", "tools",
}  # fmt: skip


class StatusError(Exception):
    """A response with a status other than 2xx.

    content  its body as text; truncated: only the beginning of it
    """

    def __init__(
        self, status: int, headers: Mapping[str, str], content: str, parsed: Any = None, *, truncated: bool = False
    ) -> None:
        super().__init__(status)
        self.status, self.headers, self.content = status, headers, content
        about = parsed.get("error") or parsed if isinstance(parsed, dict) else parsed
        codes = [about.get("code"), about.get("type")] if isinstance(about, dict) else []
        self.codes = [code for code in codes if isinstance(code, str)]
        self.reason = reason(parsed) if parsed else _readable(content, status)
        # A refusal is short: whatever is long, and no page, may be an answer.
        self.generated = bool(_GENERATED.search(content)) or (truncated and content.lstrip()[:1] in ("{", "["))


class NoCompletion(Exception):
    """A response with status 2xx that is not a completion: its content type, and the bytes that arrived."""

    def __init__(self, kind: str, content: bytes) -> None:
        super().__init__(kind)
        text = content.decode(errors="replace")
        self.generated = bool(_GENERATED.search(text))
        self.says = _says(content, text)


def checked_after_generating(body: Mapping[str, Any]) -> bool:
    """Whether a server may generate an answer to `body` and refuse the request because of what it generated."""
    for field, value in body.items():
        if value and (field in _STRUCTURED or field.startswith("guided_")) and value != {"type": "text"}:
            return True
    return False


def failure(error: Exception, body: Mapping[str, Any] | None = None, *, begun: bool = False) -> BackendError:
    """The error to raise for what went wrong with a request for `body`; begun: after a part of an answer."""
    if isinstance(error, ServerError) and not begun and (status := _named_status(error.event)):
        error = StatusError(status, {}, error.data.decode(errors="replace"), error.event)
    if isinstance(error, StatusError):
        return _refusal(error, body or {})
    if isinstance(error, _NOTHING_SENT):
        cause, detail = _unconnected(error)
        return Unavailable(f"{cause}{detail}", tokens=0, cause=cause, sent=False)
    if isinstance(error, NoCompletion):
        what = f"not a completion ({line(error)[:60]})" + f": {error.says}" * bool(error.says)
        tokens = None if error.generated else 0
        return Unavailable(f"the server's answer is {what}", tokens=tokens, cause=_stable(what))
    if isinstance(error, TimeoutError):
        if begun:
            return Unavailable("the server stopped within its answer", tokens=None, cause="stopped within its answer")
        return Unavailable("the server did not answer in time", tokens=None, cause="no answer in time")
    if isinstance(error, TooLong):
        return Unavailable(f"the server sends too much: {line(error)}", tokens=None, cause="too many bytes")
    if isinstance(error, ServerError):
        message = line(error)
        return Unavailable(f"the server reported an error: {message}", tokens=None, cause=f"error: {_stable(message)}")
    if isinstance(error, aiohttp.ClientResponseError):
        return Unavailable(f"not an answer: {line(error.message)}", tokens=None, cause="not an answer")
    if isinstance(error, aiohttp.ClientPayloadError):  # whose text names a status, 400, that nobody sent
        return Unavailable("the connection broke within the answer", tokens=None, cause="the connection broke")
    if isinstance(error, aiohttp.ClientError | OSError):
        return Unavailable(f"the connection broke: {line(error)}", tokens=None, cause="the connection broke")
    return Unavailable(f"not an answer: {line(error)}", tokens=None, cause="not an answer")


def _named_status(event: Any) -> int | None:
    """The status that an error names in an event: as a number, or by a code that OpenAI sends with one status."""
    about = event.get("error", event) if isinstance(event, dict) else None
    if not isinstance(about, dict):
        return None
    for name in ("status", "status_code", "code", "type"):
        named = about.get(name)
        status = _STATUS_OF.get(named, named) if isinstance(named, str) else named
        status = int(status) if isinstance(status, str) and re.fullmatch("[45][0-9][0-9]", status) else status
        if type(status) is int and 400 <= status < 600:
            return status
    return None


def _refusal(error: StatusError, body: Mapping[str, Any]) -> BackendError:
    status, why = error.status, line(error.reason or "no reason given")
    message, delay = f"{status}: {why}", _delay(error.headers)
    code = next((code for code in error.codes if code.lower() not in f"error {why}".lower()), "")
    cause = ": ".join(filter(None, (str(status), _stable(line(code)) if code else "", _stable(why))))
    unknown = None if error.generated else 0  # usually nothing is charged
    if 300 <= status < 400:
        where = line(error.headers.get("location", "nowhere"))
        return Denied(f"{status}: the server redirects to {where}", tokens=unknown, cause=f"redirect to {where[:100]}")
    shared = status in (400, 422) and _SHARED.search(f"{error.codes} {why}") and not checked_after_generating(body)
    if status in _DENIED or _QUOTA in error.codes or shared:
        return Denied(message, tokens=unknown, cause=cause)
    if status in _BUSY:
        return Unavailable(message, tokens=unknown, cause=cause, delay=delay)
    if status in (408, 409) or status >= 500:
        return Unavailable(message, tokens=None, cause=cause, delay=delay)
    if status == 413 or (status in (400, 422) and not checked_after_generating(body)):
        return Refused(message, tokens=unknown, cause=cause)
    return Refused(message, tokens=None, cause=cause)


def _unconnected(error: Exception) -> tuple[str, str]:
    """Why there is no connection, and further details."""
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return f"refused by the proxy: {error.status}", f" {line(error.message)}"
    if not isinstance(error, aiohttp.ClientConnectorError):
        return "no connection in time", ""
    where = f"{error.host}:{error.port}"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return f"unknown host ({error.host})", ""
    if isinstance(error, aiohttp.ClientSSLError | aiohttp.ClientConnectorCertificateError):
        return f"no secure connection ({where})", f": {line(error)}"
    if isinstance(error.os_error, ConnectionRefusedError):
        return f"connection refused ({where})", ""
    return f"no connection ({where})", f": {line(error.os_error)}"


def line(value: object) -> str:
    """Anything as one line of limited length, without secrets."""
    return redact(" ".join((str(value) or type(value).__name__).split()))[:300]


_HEX = re.compile(r"[0-9a-fA-F]{8,}")
_DURATION = re.compile(r"\b(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+\b")
_NUMBER = re.compile(r"(?<![A-Za-z\d-])\d[\d.,:]*\d|(?<![A-Za-z\d-])\d")


def _stable(text: str) -> str:
    """The first words of a reason, without what differs from one request to the next."""
    words = ("…" if _is_id(word.strip("\"'`.,:;!?()[]{}")) else word for word in text.split(" "))
    short = _NUMBER.sub("N", _DURATION.sub("N", " ".join(words)))
    return short if len(short) <= 80 else short[:80].rsplit(" ", 1)[0] + " …"


def _is_id(word: str) -> bool:
    return (len(word) >= 12 and any(map(str.isdigit, word))) or bool(_HEX.fullmatch(word))


_READABLE = 8192  # characters
_TITLE = re.compile(r"<title[^>]*>(.*?)</title>", re.IGNORECASE | re.DOTALL)
_MARKUP = re.compile(r"<(script|style)\b.*?</\1>|<[^>]*>", re.IGNORECASE | re.DOTALL)


def _readable(content: str, status: int) -> str:
    """What a page in HTML says, or any other text as it is: `Bad Gateway`."""
    if not content.lstrip().startswith("<"):
        return content
    content = content[:_READABLE]  # searching takes the square of it, where tags are not closed
    title = _TITLE.search(content)
    words = " ".join(unescape(title[1] if title else _MARKUP.sub(" ", content)).split())
    return words.removeprefix(str(status)).strip(" :-") or content


def _says(content: bytes, text: str) -> str:
    """The beginning of what a server says instead of an answer: it often names what is wrong."""
    try:
        message = reason(parse_json(content))
    except Malformed:
        message = _readable(text, 200)
    said = message if isinstance(message, str) else text
    return line(said)[:100] if said else ""


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
