"""A real browser without a window, spoken to over its own protocol."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Page:
    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._numbers = socket, itertools.count(1)
        self.errors: list[str] = []

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        async for message in self._socket:
            found = json.loads(message.data)
            if found.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.errors.append(json.dumps(found["params"])[:500])
            if found.get("id") == number:
                return found.get("result", {})
        raise ConnectionError("the browser has ended")

    async def value(self, expression: str) -> Any:
        result = await self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        return result["result"].get("value")

    async def until(self, expression: str, seconds: float = 60.0) -> None:
        for _ in range(int(seconds / 0.1)):
            if await self.value(expression):
                return
            await asyncio.sleep(0.1)
        raise AssertionError(f"never: {expression}")


@asynccontextmanager
async def browser(address: str, width: int, height: int = 900) -> AsyncIterator[Page]:
    """A page of this width."""
    assert CHROMIUM
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        options = ("--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", "--no-first-run")
        process = await asyncio.create_subprocess_exec(
            CHROMIUM, *options, f"--user-data-dir={folder}", "about:blank",
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            place = Path(folder, "DevToolsActivePort")
            for _ in range(600):
                if place.exists() and place.read_text().count("\n"):
                    break
                await asyncio.sleep(0.1)
            port = place.read_text().split("\n")[0]
            async with aiohttp.ClientSession() as session:
                async with session.put(f"http://127.0.0.1:{port}/json/new?about:blank") as answer:
                    target = (await answer.json())["webSocketDebuggerUrl"]
                async with session.ws_connect(target, max_msg_size=2**26) as socket:
                    page = Page(socket)
                    await page.call("Runtime.enable")
                    await page.call("Log.enable")
                    await page.call(
                        "Emulation.setDeviceMetricsOverride",
                        width=width,
                        height=height,
                        deviceScaleFactor=1,
                        mobile=False,
                    )
                    await page.call("Page.navigate", url=address)
                    yield page
        finally:
            process.terminate()
            await process.wait()
