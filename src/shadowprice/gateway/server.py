"""The endpoint: reserve, forward, relay, settle.

Tokens are reserved in every account, durably, before a byte is sent, and the request is sent with its grant as its
limit. What answers and
failures cost is in `relay`.
"""

from __future__ import annotations

import asyncio
import hmac
import io
import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256

import orjson

from shadowprice.accounts.owner import Shortage
from shadowprice.accounts.tree import Reservation, Tree
from shadowprice.accounts.windows import Account
from shadowprice.backends._charging import Density
from shadowprice.backends._failures import failure
from shadowprice.errors import InputError, LedgerError, MissingExtra
from shadowprice.forecast import Predictor
from shadowprice.formats.limits import ENDPOINTS
from shadowprice.gateway.admission import Decision, decide
from shadowprice.gateway.bodies import limited, parse_ask
from shadowprice.gateway.relay import HOP, Attempt, error_response, kept_headers
from shadowprice.types import Request

try:
    import aiohttp
    from aiohttp import web
except ImportError:
    raise MissingExtra("gateway", "the gateway") from None

__all__ = ["Gateway", "Settings"]

_LARGEST = 16 * 2**20  # bytes of a request
_LARGE = 2**20  # bytes; aiohttp wants larger requests as files
_MISSING = 100  # looks, 50 ms apart
# What is kept of a request whose client left, or whose upstream failed: it may have been charged.
_UNKNOWN = '[409,"application/json","{\\"error\\":{\\"code\\":\\"outcome_unknown\\"}}"]'
_PATIENCE = 30.0  # seconds in which a request must have arrived
# They generate, in a form in which no limit can be written.
_UNBOUNDED = re.compile(r"completion|messages|responses|generate|chat", re.IGNORECASE)


@dataclass(frozen=True)
class Settings:
    """upstream: with the version, http://127.0.0.1:8000/v1; shadow: decide and report, enforce nothing."""

    upstream: str
    accounts: Sequence[Account]
    api_key: str = ""  # for the upstream; "": that of the client is passed on
    admin_key: str = ""  # "": no admin endpoints
    price: float = 0.0  # utility per token
    cap: int = 4096  # tokens of an answer without a limit of its own, and of any other
    shadow: bool = False


class Gateway:
    """`handle` answers one HTTP request."""

    def __init__(self, settings: Settings, tree: Tree, forecaster: Predictor) -> None:
        self.settings, self.tree, self._forecaster = settings, tree, forecaster
        self.draining = False
        self.counts: Counter[tuple[str, str]] = Counter()
        self.density = Density()
        self.violation = ""
        self._leasing = asyncio.Lock()
        timeout = aiohttp.ClientTimeout(total=600, sock_connect=10)
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=30)
        self._client = aiohttp.ClientSession(timeout=timeout, connector=connector, auto_decompress=True)

    async def close(self) -> None:
        await self._client.close()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        path = re.sub("/+", "/", request.path).rstrip("/")
        try:
            if path == "/healthz":
                return web.Response(text="ok\n")
            if path == "/readyz":
                return web.Response(
                    status=503 if self.draining else 200, text="draining\n" if self.draining else "ok\n"
                )
            if path == "/metrics":
                return web.Response(text=self._metrics(), content_type="text/plain")
            if path.startswith("/admin"):
                return self._admin(request, path)
            if not path.startswith("/v1/"):
                return error_response(404, "not_found", f"no such path: {path[:100]}")
            if self.draining:
                return error_response(503, "draining", "the gateway is shutting down")
            end = path.removeprefix("/v1")
            if request.method == "POST" and end in ENDPOINTS:
                content = await _content(request)
                if key := request.headers.get("Idempotency-Key"):
                    return await self._once(request, end, content, key)
                return await self._answer(request, end, content)
            if request.method == "POST" and _UNBOUNDED.search(end):
                return error_response(404, "not_found", f"{path[:100]} generates tokens that cannot be limited here")
            return await self._pass(request, end)
        except InputError as error:
            return error_response(400, "invalid_request_error", str(error))
        except LedgerError as error:
            self.counts["ledger_errors", ""] += 1
            return error_response(503, "ledger_unavailable", f"nothing was sent: {error}")

    # --- requests for answers ------------------------------------------------------------------

    async def _once(self, request: web.BaseRequest, end: str, content: bytes, key: str) -> web.StreamResponse:
        """The answer to the first request with this Idempotency-Key, for all of them."""
        owner, digest = self.tree.owner, sha256(content).hexdigest()
        sender = request.headers.get("Authorization", "")
        name = sha256("\0".join((sender, end, key)).encode(errors="replace")).hexdigest()
        missing = 0
        while kept := await asyncio.to_thread(owner.keep, name, digest, self.tree.worker):
            if kept.digest != digest:
                return error_response(422, "idempotency_mismatch", "the Idempotency-Key was used for another request")
            if kept.answer is not None:
                status, kind, text = orjson.loads(kept.answer)
                return web.Response(status=status, body=text.encode("latin-1"), headers={"Content-Type": kind})
            # A process that answers holds units: one that does not for seconds has ended.
            alive = kept.worker == self.tree.worker or kept.worker in await asyncio.to_thread(owner.workers)
            missing = 0 if alive else missing + 1
            if missing > _MISSING:
                return error_response(409, "outcome_unknown", "the first request with this key was interrupted")
            await asyncio.sleep(0.05)
        answer: str | None = _UNKNOWN
        try:
            reply = await self._answer(request, end, content)
            if reply.status == 200:
                body = reply.body if isinstance(reply, web.Response) else reply.get("sent")
                if isinstance(body, bytes):
                    kind = reply.headers.get("Content-Type", "application/json")
                    answer = orjson.dumps([200, kind, body.decode("latin-1")]).decode()
            elif not reply.get("cost"):  # nothing was generated: it can be retried
                answer = None
            return reply
        except (InputError, LedgerError):
            answer = None
            raise
        finally:
            await asyncio.shield(asyncio.to_thread(owner.answered, name, answer))

    async def _answer(self, request: web.BaseRequest, end: str, content: bytes) -> web.StreamResponse:
        ask = parse_ask(content, end)
        value = _value(request.headers.get("x-shadowprice-value", "1"))
        if self.violation:
            return error_response(503, "limit_ignored", self.violation)
        forecast = self._forecaster.predict([Request("", ask.text)])

        def decided(available: int) -> Decision:
            return decide(
                forecast,
                price=self.settings.price,
                value=value,
                own=ask.own,
                cap=self.settings.cap,
                available=available,
                answers=ask.answers,
            )

        decision, held = await self._reserve(decided, ask.answers)
        self.counts["requests", decision.kind] += 1
        if held is None and not self.settings.shadow:
            return self._declined(decision)
        grant = decision.grant
        body = dict(ask.body) if self.settings.shadow else limited(ask, grant)
        units = self.settings.cap * ask.answers if self.settings.shadow else grant * ask.answers
        attempt = Attempt(self, ask, decision, units, held)
        try:
            reply = await attempt.run(request, body)
            reply["cost"] = attempt.cost
            return reply
        finally:
            attempt.settle()

    async def _reserve(self, decided: Callable[[int], Decision], answers: int) -> tuple[Decision, Reservation | None]:
        """The decision, and what it reserved; None if it reserves nothing."""
        accounts = self.settings.accounts
        for attempt in range(3):
            if attempt == 2:  # other processes may hold what is needed: they return it when they look
                await asyncio.sleep(0.3)
            decision = decided(min(map(self.tree.available, accounts)))
            if decision.kind == "exhausted" and attempt < 2:
                async with self._leasing:
                    self.tree.refresh()
                    decision = decided(min(map(self.tree.available, accounts)))
                if decision.kind == "exhausted" and len(self.tree.owner.workers()) > 1:
                    with suppress(Shortage):  # asks other processes for what they do not use
                        self.tree.void(await self._held(answers))
                    continue
            if not decision.grant or self.settings.shadow:
                return decision, None
            try:
                return decision, await self._held(decision.grant * answers)
            except Shortage as short:
                self.tree.refresh()
                if not short.elsewhere and attempt == 1:
                    break
        return Decision("exhausted", 0, decision.price, decision.forecast), None

    async def _held(self, units: int) -> Reservation:
        accounts = self.settings.accounts
        if found := self.tree.reserve_held(accounts, units):
            return found
        async with self._leasing:
            while (found := self.tree.reserve_held(accounts, units)) is None:
                wants = self.tree.wants(accounts, units)
                self.tree.add(wants, await asyncio.to_thread(self.tree.owner.lease, self.tree.worker, wants))
        return found

    def _declined(self, decision: Decision) -> web.Response:
        now = self.tree.clock()
        spans = [account.window.bounds(now) for account in self.settings.accounts]
        ends = [span[1] - now for span in spans if span]
        code = "budget_declined" if decision.kind == "declined" else "budget_exhausted"
        error = {
            "message": "the budget is used up" if decision.kind == "exhausted" else "not worth the posted price",
            "type": "insufficient_quota",
            "code": code,
            "price": decision.price,
            "forecast": round(decision.forecast),
            "retry_after": round(max(ends), 1) if ends else None,
        }
        return web.json_response({"error": error}, status=402, headers=self.headers(decision))

    def headers(self, decision: Decision) -> dict[str, str]:
        now = self.tree.clock()
        tightest = min(self.settings.accounts, key=self.tree.available)
        bounds = tightest.window.bounds(now)
        return {
            "x-ratelimit-limit-tokens": str(tightest.limit),
            "x-ratelimit-remaining-tokens": str(self.tree.available(tightest)),
            "x-ratelimit-reset-tokens": f"{bounds[1] - now:.0f}s" if bounds else "never",
            "x-shadowprice-price": f"{decision.price:.6g}",
            "x-shadowprice-grant": str(decision.grant),
            "x-shadowprice-forecast": f"{decision.forecast:.0f}",
            "x-shadowprice-decision": decision.kind,
            **({"x-should-retry": "false"} if not decision.grant else {}),
        }

    # --- everything else -----------------------------------------------------------------------

    async def open(self, request: web.BaseRequest, end: str, content: bytes) -> aiohttp.ClientResponse:
        """The upstream's response, whatever its status."""
        headers = {k: v for k, v in request.headers.items() if k.lower() not in HOP}
        headers["Accept-Encoding"] = "identity"
        if self.settings.api_key:
            headers["Authorization"] = f"Bearer {self.settings.api_key}"
        query = f"?{request.query_string}" if request.query_string else ""
        url = self.settings.upstream.rstrip("/") + end + query
        data = io.BytesIO(content) if len(content) > _LARGE else content or None
        return await self._client.request(request.method, url, data=data, headers=headers, allow_redirects=False)

    async def _pass(self, request: web.BaseRequest, end: str) -> web.StreamResponse:
        content = await _content(request)
        try:
            async with await self.open(request, end, content) as response:
                return web.Response(status=response.status, body=await response.read(), headers=kept_headers(response))
        except (aiohttp.ClientError, TimeoutError) as error:
            return error_response(502, "upstream_unavailable", str(failure(error)))

    def _admin(self, request: web.BaseRequest, path: str) -> web.Response:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ").encode()
        if not self.settings.admin_key or not hmac.compare_digest(given, self.settings.admin_key.encode()):
            return error_response(401, "invalid_api_key", "give the admin key: Authorization: Bearer ...")
        if path == "/admin/budgets" and request.method == "GET":
            balances = {account.name: self.tree.balance(account)._asdict() for account in self.settings.accounts}
            return web.json_response(balances)
        if path == "/admin/drain" and request.method == "POST":
            self.draining = True
            return web.json_response({"draining": True})
        return error_response(404, "not_found", "there are GET /admin/budgets and POST /admin/drain")

    def _metrics(self) -> str:
        lines = ["# TYPE shadowprice_requests_total counter"]
        kinds = ("granted", "shrunk", "declined", "exhausted")
        lines += [f'shadowprice_requests_total{{decision="{k}"}} {self.counts["requests", k]}' for k in kinds]
        for name in ("tokens", "ledger_errors", "clients_left"):
            lines += [f"# TYPE shadowprice_{name}_total counter", f"shadowprice_{name}_total {self.counts[name, '']}"]
        lines += ["# TYPE shadowprice_price gauge", f"shadowprice_price {self.settings.price:.6g}"]
        lines.append("# TYPE shadowprice_available_tokens gauge")
        for account in self.settings.accounts:
            lines.append(f'shadowprice_available_tokens{{account="{account.name}"}} {self.tree.available(account)}')
        return "\n".join(lines) + "\n"


# --- forms -------------------------------------------------------------------------------------


async def _content(request: web.BaseRequest) -> bytes:
    """The body of a request: bounded in size and time."""
    if (request.content_length or 0) > _LARGEST:
        raise InputError(f"the body has more than {_LARGEST} bytes", fix="send less")
    parts, size = [], 0
    try:
        async with asyncio.timeout(_PATIENCE):
            while chunk := await request.content.readany():
                size += len(chunk)
                if size > _LARGEST:
                    raise InputError(f"the body has more than {_LARGEST} bytes", fix="send less")
                parts.append(chunk)
    except TimeoutError:
        raise InputError("the body did not arrive in time", fix="send it faster") from None
    return b"".join(parts)


def _value(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1e9:
        raise InputError(f"x-shadowprice-value is {text!r:.40}", fix="give a number from 0 to 1e9")
    return value
