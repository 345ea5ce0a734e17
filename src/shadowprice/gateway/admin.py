"""What operators see and change, with the admin key: tenants, budgets, prices, the latest requests, draining.

    GET    /admin                      the dashboard
    GET    /admin/state                everything it shows, as JSON
    GET    /admin/budgets              every account: limit, available, reserved, spent
    GET    /admin/prices               posted prices over time: ?account=...&since=SECONDS
    GET    /admin/requests             the latest requests, and why each was granted, shrunk or declined
    GET    /admin/tenants              all tenants
    POST   /admin/tenants              adds a tenant, and makes its key, which is shown once
    PUT    /admin/tenants/NAME         changes its budgets, value, models
    POST   /admin/tenants/NAME/key     makes a new key, and ends the old one
    DELETE /admin/tenants/NAME         ends its key
    POST   /admin/drain                accept no new requests in any process of this gateway, and finish those in flight

The key is given as `Authorization: Bearer ...`; for GET also as the password of HTTP basic authentication, for
browsers. A browser also sends that with requests of other sites, so it cannot be used to change anything.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import math
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from importlib.resources import files
from typing import Any

import orjson

from shadowprice.accounts.windows import Account
from shadowprice.errors import InputError, MissingExtra
from shadowprice.gateway.relay import error_response
from shadowprice.gateway.server import Gateway, bearer
from shadowprice.gateway.tenants import Tenant, digest, new_key, parse_tenant

try:
    from aiohttp import web
except ImportError:
    raise MissingExtra("gateway", "the gateway") from None

__all__ = ["Admin"]

_POINTS = 240  # of a line on the dashboard
_ACCOUNTS = 100  # on the dashboard
_LATEST = 60
# Methods by whether a tenant is named, and which part of it.
_TENANTS = {(False, ""): "GET, POST", (True, ""): "PUT, DELETE", (True, "key"): "POST"}


class Admin:
    """Answers requests under /admin. `group` names this gateway among those that share its ledger."""

    def __init__(self, gateway: Gateway, group: str) -> None:
        self._gateway, self._notes, self._directory = gateway, gateway.notes, gateway.directory
        self.drain_signal = f"drain {group}"

    def allows(self, request: web.BaseRequest) -> bool:
        """Whether a request carries the admin key; the time this takes says nothing about the key."""
        given = bearer(request)
        scheme, _, value = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "basic" and request.method in ("GET", "HEAD"):
            with suppress(binascii.Error, UnicodeDecodeError):
                given = base64.b64decode(value, validate=True).decode().partition(":")[2]
        expected = self._gateway.config.admin_key
        same = hmac.compare_digest(sha256(given.encode(errors="replace")).digest(), sha256(expected.encode()).digest())
        return bool(expected) and same

    async def handle(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        if not self.allows(request):
            ask = {"WWW-Authenticate": 'Basic realm="shadowprice admin", charset="UTF-8"'}
            return error_response(401, "invalid_api_key", "give the admin key ($SHADOWPRICE_ADMIN_KEY)", ask)
        parts = path.removeprefix("/admin").strip("/").split("/")
        if (what := parts[0]) == "tenants" and len(parts) <= 3:
            return await self._tenants(request, *parts[1:])
        known: dict[tuple[str, str], Callable[[web.BaseRequest], Any]] = {
            ("GET", ""): self._page,
            ("GET", "state"): self._state,
            ("GET", "budgets"): self._budgets,
            ("GET", "prices"): self._prices,
            ("GET", "requests"): self._requests,
            ("POST", "drain"): self._drain,
        }
        handler = known.get((request.method, what)) if len(parts) == 1 else None
        if not handler:
            allowed = [method for method, name in known if name == what and len(parts) == 1]
            if allowed:
                return error_response(405, "method_not_allowed", f"use {allowed[0]}", {"Allow": allowed[0]})
            return error_response(404, "not_found", "docs/gateway.md lists the admin endpoints")
        reply: web.StreamResponse = await handler(request)
        return reply

    async def _page(self, request: web.BaseRequest) -> web.Response:
        page = files("shadowprice.gateway").joinpath("dashboard.html").read_text(encoding="utf-8")
        policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
        headers = {"Content-Security-Policy": policy, "Cache-Control": "no-store", "X-Frame-Options": "DENY"}
        return web.Response(text=page, content_type="text/html", headers=headers)

    # --- state ---------------------------------------------------------------------------------

    async def _budgets(self, request: web.BaseRequest) -> web.Response:
        return web.json_response(
            {balance["account"]: balance for balance in self._balances(self._directory.accounts())}
        )

    def _balances(self, accounts: list[Account]) -> list[dict[str, Any]]:
        tree, balances = self._gateway.tree, []
        now, prices = tree.clock(), self._gateway.prices.current()
        for account in accounts:
            bounds = account.window.span(now)
            balances.append(
                {
                    "account": account.name,
                    "unit": "nano-dollar" if account.money else "token",
                    **tree.balance(account)._asdict(),
                    "window": list(bounds) if bounds else None,
                    "price": prices.get(account.name, 0.0),
                }
            )
        return balances

    async def _prices(self, request: web.BaseRequest) -> web.Response:
        try:
            since = float(request.query.get("since", "0"))
        except ValueError:
            since = math.nan
        if not math.isfinite(since):
            raise InputError("since is not a number", fix="give seconds since 1970")
        rows = await asyncio.to_thread(self._notes.prices, since, request.query.get("account"))
        return web.json_response({"prices": [row._asdict() for row in rows]})

    async def _requests(self, request: web.BaseRequest) -> web.Response:
        return web.json_response({"requests": await asyncio.to_thread(self._notes.latest, 500)})

    async def _state(self, request: web.BaseRequest) -> web.Response:
        gateway, now = self._gateway, self._gateway.tree.clock()
        accounts = self._balances(self._directory.accounts()[:_ACCOUNTS])
        lengths = [account["window"][1] - account["window"][0] for account in accounts if account["window"]]
        since = now - min(max([3600.0, *lengths]), 86_400.0)
        prices = await asyncio.to_thread(self._notes.prices, since)
        lines: dict[str, list[tuple[float, float, int]]] = {}
        for row in prices:
            lines.setdefault(row.account, []).append((row.at, row.price, row.available))
        state = {
            "now": now,
            "mode": "shadow" if gateway.config.shadow else "enforce",
            "policy": gateway.config.policy,
            "draining": gateway.draining,
            "open": gateway.open,
            "processes": gateway.prices.workers,
            "accounts": accounts,
            "prices": {name: rows[:: max(1, len(rows) // _POINTS)] for name, rows in lines.items()},
            "minutes": await asyncio.to_thread(self._notes.minutes, int(now // 60) - 60),
            "requests": await asyncio.to_thread(self._notes.latest, _LATEST),
            "tenants": [self._shown(tenant) for tenant in list(self._directory.tenants.values())[:_ACCOUNTS]],
            "routes": gateway.upstreams.state(),
        }
        return web.Response(body=orjson.dumps(state), content_type="application/json")

    async def _drain(self, request: web.BaseRequest) -> web.Response:
        self._gateway.draining = True  # the other processes see the signal within a second
        await asyncio.to_thread(self._notes.signal, self.drain_signal)
        return web.json_response({"draining": True, "open": self._gateway.open})

    # --- tenants -------------------------------------------------------------------------------

    def _shown(self, tenant: Tenant) -> dict[str, Any]:
        return {
            "name": tenant.name,
            "team": tenant.team,
            "accounts": [account.name for account in tenant.path],
            "value": tenant.value,
            "max_value": tenant.max_value,
            "max_tokens": tenant.cap,
            "models": None if tenant.models is None else sorted(tenant.models),
            "configured": self._directory.is_fixed(tenant.name),
        }

    async def _tenants(self, request: web.BaseRequest, name: str = "", key: str = "") -> web.Response:
        kind = (request.method, bool(name), key)
        if kind == ("GET", False, ""):
            return web.json_response({"tenants": [self._shown(each) for each in self._directory.tenants.values()]})
        if (allowed := _TENANTS.get(kind[1:])) is None:
            return error_response(404, "not_found", "docs/gateway.md lists the admin endpoints")
        if request.method not in allowed.split(", "):
            return error_response(405, "method_not_allowed", f"use {allowed}", {"Allow": allowed})
        if not self._directory.require_keys:
            return error_response(409, "no_keys", "this gateway needs no keys: start it with --require-keys")
        record = await self._record(request) if kind[2] == "" and kind[0] != "DELETE" else {}
        name = name or str(record.get("name", ""))
        records = await asyncio.to_thread(self._notes.tenants)
        if self._directory.is_fixed(name) or (kind[:2] == ("POST", False) and name in records):
            reason = "belongs to the configuration file" if self._directory.is_fixed(name) else "exists"
            return error_response(409, "conflict", f"tenant {name!r:.60} {reason}")
        if kind[1] and name not in records:
            return error_response(404, "not_found", f"no tenant {name!r:.60}")
        if request.method == "DELETE":
            await asyncio.to_thread(self._notes.remove_tenant, name)
            del records[name]
            self._directory.replace(records)
            return web.json_response({"deleted": name})
        new = new_key() if request.method == "POST" else ""
        old = records.get(name, {})
        record = {**({} if request.method == "PUT" else old), **record, "name": name}
        record["key_sha256"] = digest(new) if new else old["key_sha256"]
        tenant = parse_tenant(record, self._directory.everyone, self._directory.teams)
        if not tenant.path:
            raise InputError("the tenant has no budget", fix='give it one, as "budgets": ["1M/day"]')
        if any(account.money for account in tenant.path) and any(r.rates is None for r in self._gateway.config.routes):
            raise InputError("a budget is in dollars, and a route has no rates", fix="give a budget in tokens")
        await asyncio.to_thread(self._notes.put_tenant, name, record)
        self._directory.replace({**records, name: record})
        shown = {**self._shown(tenant), **({"key": new} if new else {})}
        return web.json_response(shown, status=201 if kind[:2] == ("POST", False) else 200)

    async def _record(self, request: web.BaseRequest) -> dict[str, Any]:
        async with self._gateway.intake.body(request) as content:
            try:
                record = orjson.loads(content)
            except orjson.JSONDecodeError as error:
                raise InputError(f"the body is not JSON: {error}"[:200], fix="send valid JSON") from None
        if not isinstance(record, dict) or "key_sha256" in record:
            raise InputError("the body is not a tenant", fix='send {"name": "...", "budgets": ["1M/day"]}')
        return record
