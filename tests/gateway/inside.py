"""A gateway inside the test's own process, with a real ledger and real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from shadowprice.accounts.owner import SqliteOwner
from shadowprice.accounts.tree import Tree
from shadowprice.gateway.app import App
from shadowprice.gateway.config import Config, read_config
from shadowprice.types import Forecast

ADMIN = {"Authorization": "Bearer admin-secret-key"}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "What is 2 + 3?"}]}


class Alike:
    """The same forecast for every request."""

    def __init__(self, tokens: float = 200.0, solve: float = 0.8) -> None:
        self._tokens, self._solve = tokens, solve

    def predict(self, requests):
        return Forecast([self._tokens] * len(requests), 0.5, self._solve)


class Client:
    def __init__(self, session: aiohttp.ClientSession, root: str, app: App) -> None:
        self.session, self.root, self.app = session, root, app

    async def ask(
        self, method: str, path: str, body: Any = None, key: str = "", **headers: str
    ) -> tuple[int, Any, Any]:
        """Status, JSON and headers."""
        if key:
            headers["Authorization"] = f"Bearer {key}"
        async with self.session.request(method, self.root + path, json=body, headers=headers) as response:
            kind = response.content_type
            content = await response.json() if kind == "application/json" else await response.text()
            return response.status, content, response.headers

    async def chat(self, key: str = "", headers: dict[str, str] | None = None, **fields: Any) -> tuple[int, Any, Any]:
        return await self.ask("POST", "/v1/chat/completions", {**CHAT, **fields}, key, **(headers or {}))

    async def spent(self, account: str) -> int:
        _, balances, _ = await self.ask("GET", "/admin/budgets", **ADMIN)
        return balances[account]["spent"] + balances[account]["reserved"]


@asynccontextmanager
async def served(config: Config, folder: Path, forecaster: Any = None, clock: Any = None) -> AsyncIterator[Client]:
    config = replace(config, admin_key="admin-secret-key")
    lines: list[str] = []
    folder.mkdir(exist_ok=True)
    owner = SqliteOwner(folder / "accounts.sqlite")
    tree = Tree(owner, folder / "workers", **({"clock": clock} if clock else {}))
    app = App(config, tree, forecaster or Alike(), "group", lines.append)
    await app.look_and_write()
    runner = web.ServerRunner(app.server, shutdown_timeout=5)
    await runner.setup()
    listener = socket.create_server(("127.0.0.1", 0))
    await web.SockSite(runner, listener).start()
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
            client = Client(session, f"http://127.0.0.1:{listener.getsockname()[1]}", app)
            client.lines = lines
            yield client
    finally:
        await runner.cleanup()
        await app.close()
        tree.close()
        owner.close()


def configured(folder: Path, text: str) -> Config:
    path = folder / "gateway.toml"
    path.write_text(text)
    return read_config(path)


def run(work: Any) -> Any:
    return asyncio.run(work)
