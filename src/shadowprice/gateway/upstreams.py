"""Which server gets a request, and which one if that fails.

A request names a route or the model of one, and is sent to it; if that route fails before anything was answered, to
its fallbacks in turn. A route without a model takes any name, and passes it on. Every attempt is decided, reserved and
charged on its own (`server`), so that fallbacks stay inside the same budgets.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from shadowprice.backends._charging import Density
from shadowprice.cost import Rates
from shadowprice.errors import BackendError, Denied, Unavailable
from shadowprice.formats.landings import Landing
from shadowprice.gateway.connections import Connections, Response

__all__ = ["AUTO", "HOP", "Route", "Upstream", "Upstreams", "can_fall_back"]

AUTO = "auto"  # the model of a request that leaves the choice to the gateway

_PAUSE = 5.0  # seconds in which a route that cannot be reached comes after its fallbacks
# Headers that belong to one connection, and those that are for the gateway.
HOP = {
    "connection", "content-encoding", "content-length", "expect", "host", "keep-alive", "proxy-authorization", "te",
    "trailer", "transfer-encoding", "upgrade", "accept-encoding",
}  # fmt: skip
_HOP_AND_KEYS = HOP | {"authorization", "api-key", "x-api-key", "cookie"}


@dataclass(frozen=True)
class Route:
    """A model behind an endpoint.

    base_url   with the version: http://127.0.0.1:8000/v1
    model      the name that the server knows; "": whatever the request names
    rates      None: unknown, and budgets can only be in tokens
    context    the most tokens of a prompt and its answer; None: unknown
    api_key    "": the client's own is passed on, if the gateway has no keys of its own
    """

    name: str
    base_url: str
    model: str = ""
    rates: Rates | None = None
    context: int | None = None
    api_key: str = ""
    max_concurrency: int | None = None
    fallbacks: tuple[str, ...] = ()
    forecaster: str = ""  # a folder; "": that of the gateway
    landing: Landing | None = None  # of answers that are cut; only for servers that continue them
    limit_field: str = ""  # for the limit of a chat; "": the request's own, else max_completion_tokens


class Upstream:
    """A route, and the state of its server."""

    def __init__(self, route: Route) -> None:
        self.route = route
        self.url = route.base_url.rstrip("/")
        self.density = Density()
        self.hides = False  # it has generated reasoning that it did not show
        self.violation = ""  # it ignored a limit: nothing more is sent there
        self.down = 0.0  # until then, as far as is known
        self._free = asyncio.Semaphore(route.max_concurrency) if route.max_concurrency else None

    @property
    def busy(self) -> bool:
        return self._free is not None and self._free.locked()

    def slot(self) -> AbstractAsyncContextManager[Any]:
        """Waits until the server may get another request."""
        return self._free or nullcontext()

    def failed(self, error: BackendError) -> None:
        if isinstance(error, Unavailable) and not error.sent:
            self.down = time.monotonic() + _PAUSE

    def rewritten(self, body: dict[str, Any]) -> dict[str, Any]:
        """The body with the name of the model that the server knows."""
        if self.route.model and body.get("model") != self.route.model:
            return {**body, "model": self.route.model}
        return body


class Upstreams:
    """All routes, and the connections to them; `keys`: whether clients authenticate with keys of the gateway."""

    def __init__(self, routes: Sequence[Route], *, keys: bool) -> None:
        self._all = {route.name: Upstream(route) for route in routes}
        named = [upstream for upstream in self._all.values() if upstream.route.model]
        # The routes among which `auto` chooses, if there are several and none has that name.
        self.choices = named if len(named) > 1 and AUTO not in self._all else []
        # The route that takes any model, if there is one.
        self.takes_any = next((upstream for upstream in self._all.values() if not upstream.route.model), None)
        self._by_model = {upstream.route.model: upstream for upstream in reversed(named)} | self._all
        self._keys = keys
        self._connections = Connections()

    async def close(self) -> None:
        await self._connections.close()

    @property
    def names(self) -> list[str]:
        return list(self._all)

    def choose(self, model: object) -> list[Upstream]:
        """The routes for a model, the preferred first; empty if there are none."""
        upstream = self._by_model.get(model) if isinstance(model, str) else None
        upstream = upstream or self.takes_any
        if not upstream and model is None and len(self._all) == 1:  # a client that leaves the model to the server
            (upstream,) = self._all.values()
        if not upstream:
            return []
        if not upstream.route.fallbacks:
            return [upstream]
        return self.usable([upstream, *(self._all[name] for name in upstream.route.fallbacks)])

    def usable(self, routes: Sequence[Upstream]) -> list[Upstream]:
        """The routes in this order, but those that cannot be reached or have as many requests as they may come last."""
        now = time.monotonic()
        return sorted(
            dict.fromkeys(routes), key=lambda upstream: bool(upstream.violation) or upstream.down > now or upstream.busy
        )

    def state(self) -> list[dict[str, Any]]:
        """The state of every route, for operators."""
        now = time.monotonic()
        return [
            {
                "name": name,
                "model": upstream.route.model,
                "unreachable": upstream.down > now,
                "violation": upstream.violation,
            }
            for name, upstream in self._all.items()
        ]

    def open(
        self, upstream: Upstream, method: str, end: str, query: str, given: Mapping[str, str], content: bytes
    ) -> AbstractAsyncContextManager[Response]:
        """The server's response, whatever its status; `query` as it is in a URL."""
        route = upstream.route
        dropped = _HOP_AND_KEYS if self._keys or route.api_key else HOP
        headers = [
            (name, value)
            for name, value in given.items()
            if (lower := name.lower()) not in dropped and not lower.startswith("x-shadowprice-")
        ]
        headers.append(("Accept-Encoding", "identity"))
        if route.api_key:
            headers.append(("Authorization", f"Bearer {route.api_key}"))
        return self._connections.request(method, f"{upstream.url}{end}{'?' if query else ''}{query}", headers, content)


def can_fall_back(error: BackendError) -> bool:
    """Whether another route may answer: the request itself is not at fault."""
    return isinstance(error, Unavailable | Denied)
