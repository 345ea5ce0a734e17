"""Every path of the gateway, and the process around it: housekeeping, signals, several workers.

/v1/...                        requests (`server`)
/admin...                      operators (`admin`)
/healthz, /readyz, /metrics    for probes and Prometheus
/openapi.json                  the interface, as an OpenAPI document
"""

from __future__ import annotations

import asyncio
import gc
import logging
import re
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from shadowprice.accounts.notes import Notes
from shadowprice.accounts.tree import Tree
from shadowprice.errors import InputError, LedgerError, MissingExtra
from shadowprice.forecast import Predictor
from shadowprice.gateway.admin import Admin
from shadowprice.gateway.config import Config
from shadowprice.gateway.intake import Refusal, Server
from shadowprice.gateway.metrics import Telemetry, exposition
from shadowprice.gateway.openapi import document
from shadowprice.gateway.records import Records
from shadowprice.gateway.relay import error_response
from shadowprice.gateway.server import Gateway

try:
    from aiohttp import web
except ImportError:
    raise MissingExtra("gateway", "the gateway") from None

__all__ = ["App", "run"]

_LOOK, _WRITE = 0.2, 1.0  # seconds: how often other processes' wants are looked at, and notes are written
_END = 30.0  # seconds in which requests in flight may end


class App:
    """`handle` answers every HTTP request."""

    def __init__(
        self, config: Config, tree: Tree, forecaster: Predictor, group: str, log: Callable[[str], None]
    ) -> None:
        self.config, self.tree = config, tree
        self.telemetry = Telemetry() if config.otel else None
        self.records = Records(log if config.log else None, self.telemetry)
        self.notes = Notes(tree.owner, tree.worker)
        self.gateway = Gateway(config, tree, self.notes, forecaster, self.records)
        self.admin = Admin(self.gateway, group)
        self.server = Server(self.handle)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.path.rstrip("/")
        if "//" in path:
            path = re.sub("/+", "/", path)
        try:
            if path.startswith("/v1/"):
                return await self.gateway.v1(request, path.removeprefix("/v1"))
            if path == "/admin" or path.startswith("/admin/"):
                return await self.admin.handle(request, path)
            if path in ("/healthz", "/readyz", "/metrics", "/openapi.json"):
                if request.method not in ("GET", "HEAD"):
                    return error_response(405, "method_not_allowed", "use GET", {"Allow": "GET"})
                return self._about(request, path)
            return error_response(404, "not_found", f"no such path: {path[:100]}")
        except Refusal as refusal:
            return error_response(refusal.status, refusal.code, str(refusal))
        except InputError as error:
            return error_response(400, "invalid_request_error", str(error))
        except LedgerError as error:
            return error_response(503, "ledger_unavailable", str(error))
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception as error:  # a mistake of ours: the client gets an answer, and the log the place
            logging.getLogger("shadowprice.gateway").exception("a request failed")
            return error_response(500, "internal_error", f"{type(error).__name__} in the gateway")

    def _about(self, request: web.BaseRequest, path: str) -> web.Response:
        if path == "/healthz":
            return web.Response(text="ok\n")
        if path == "/openapi.json":
            return web.json_response(document())
        if path == "/readyz":
            draining = self.gateway.draining
            return web.Response(status=503 if draining else 200, text="draining\n" if draining else "ok\n")
        return web.Response(text=self._metrics(self.admin.allows(request)), content_type="text/plain")

    def _metrics(self, trusted: bool) -> str:
        gateway, records = self.gateway, self.records
        prices = gateway.prices.current()
        everyone = {account.name: account for account in gateway.directory.everyone}
        shown = {account.name: account for account in gateway.directory.accounts()} if trusted else everyone
        available = {name: float(self.tree.available(account)) for name, account in shown.items() if name in prices}
        counters = {
            **gateway.counts,
            "tokens": sum(records.tokens.values()),
            "connections_refused": self.server.refused,
        }
        gauges = {"open_requests": float(gateway.open), "connections": float(len(self.server.connections))}
        return exposition(
            records.total,
            counters,
            gauges,
            records.statuses,
            gateway.seconds,
            {"available": available, "price": {name: prices[name] for name in available}},
            records.tokens if trusted else {},
        )

    # --- housekeeping --------------------------------------------------------------------------

    async def keep(self, stop: asyncio.Event) -> None:
        """Returns units that other processes need, writes notes and reads theirs, until `stop`."""
        written = 0.0
        while not stop.is_set():
            try:
                self.tree.trim(await asyncio.to_thread(self.tree.owner.wanted))
                if (now := asyncio.get_running_loop().time()) - written >= _WRITE:
                    written = now
                    await self.look_and_write()
            except LedgerError as error:
                self.gateway.counts["ledger_errors"] += 1
                self.records.event("ledger_error", reason=str(error))
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), _LOOK)

    async def look_and_write(self) -> None:
        minutes, latest = self.records.taken()
        prices = self.gateway.prices.history()
        if minutes or latest or prices:
            await asyncio.to_thread(self.notes.write, prices, minutes, latest)
        keys = self.gateway.directory.require_keys

        def look() -> tuple[dict[str, dict[str, Any]], set[str], list[str]]:
            return self.notes.tenants() if keys else {}, self.notes.signals(), self.tree.owner.workers()

        tenants, signals, workers = await asyncio.to_thread(look)
        self.gateway.directory.replace(tenants)
        if self.admin.drain_signal in signals:
            self.gateway.draining = True
        self.gateway.prices.workers = max(1, len(workers))
        if len(workers) > 1:
            self.tree.refresh()

    async def close(self) -> None:
        with suppress(LedgerError):
            await self.look_and_write()
        await self.gateway.close()
        if self.telemetry:
            await asyncio.to_thread(self.telemetry.close)


async def run(
    config: Config,
    tree: Tree,
    forecaster: Predictor,
    listener: socket.socket,
    *,
    group: str,
    ready: Callable[[], None],
    log: Callable[[str], None],
) -> None:
    """Serves until SIGTERM or SIGINT. Calls `ready` when it accepts requests."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    app = App(config, tree, forecaster, group, log)
    runner = web.ServerRunner(app.server, shutdown_timeout=_END)
    try:
        await app.look_and_write()  # tenants that were added before
        await runner.setup()
        await web.SockSite(runner, listener, backlog=4096).start()
        ready()
        gc.collect()
        gc.freeze()  # what was loaded lives as long as the process: the collector need not look at it again
        await app.keep(stop)
        app.gateway.draining = True
        await runner.cleanup()  # requests in flight end, within `_END` seconds
    finally:
        await app.close()
        tree.close()
