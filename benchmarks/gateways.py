"""Gateways in their own processes, for benchmarks: ours, LiteLLM's proxy, Portkey's, and a bare pass-through.

LiteLLM is not a dependency: `make build/litellm/bin/litellm` installs it into an environment of its own. Its budget
is that of a key, in dollars, with rates that make an output token cost $0.000001; no database is needed for that.
Portkey's neither (`make build/portkey/node_modules/@portkey-ai/gateway`); the open one has no budgets.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LITELLM = ROOT / "build" / "litellm" / "bin" / "litellm"
PORTKEY = ROOT / "build/portkey/node_modules/@portkey-ai/gateway/build/start-server.js"
_SCHEDULED = 2  # kind of clock of a process: the CPU time that it was given, as in clock_getcpuclockid(3)
_LITELLM_CONFIG = """\
model_list:
  - model_name: m
    litellm_params:
      model: openai/m
      api_base: "{url}"
      api_key: none
      input_cost_per_token: 0
      output_cost_per_token: 0.000001
litellm_settings: {{num_retries: 0, request_timeout: 600, telemetry: false{cache}}}
router_settings: {{num_retries: 0, disable_cooldowns: true{router}}}
general_settings: {{custom_auth: auth.user_api_key_auth, custom_auth_run_common_checks: true}}
"""
_LITELLM_AUTH = """\
from litellm.proxy._types import UserAPIKeyAuth


async def user_api_key_auth(request, api_key):
    return UserAPIKeyAuth(api_key="a" * 64, token="a" * 64, max_budget={budget}, spend=0.0)
"""
_PASS_THROUGH = """\
import sys

import aiohttp
from aiohttp import web

UPSTREAM = sys.argv[1]


async def handle(request):
    body = await request.read()
    headers = {"content-type": "application/json"}
    async with client.post(UPSTREAM + "/chat/completions", data=body, headers=headers) as answer:
        reply = web.StreamResponse(status=answer.status, headers={"content-type": answer.headers["content-type"]})
        await reply.prepare(request)
        async for chunk in answer.content.iter_any():
            await reply.write(chunk)
        await reply.write_eof()
        return reply


async def main():
    global client
    import asyncio

    client = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
    runner = web.ServerRunner(web.Server(handle, access_log=None))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", int(sys.argv[2]), backlog=4096)
    await site.start()
    await asyncio.Event().wait()


import asyncio

asyncio.run(main())
"""


@dataclass
class Running:
    """url: with /v1; process: the first of its processes; headers: that requests must have."""

    url: str
    process: subprocess.Popen
    headers: dict[str, str] = field(default_factory=dict)

    def cpu(self) -> float:
        """Seconds of all its processes so far; the ticks of /proc are too coarse for short rounds."""
        return sum(time.clock_gettime(~pid << 3 | _SCHEDULED) for pid in self._pids())

    def memory(self) -> float:
        """Megabytes of all its processes."""
        pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self._pids())
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def kill(self) -> None:
        """All processes, as by kill -9."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def _pids(self) -> list[int]:
        pids = [self.process.pid]
        for pid in pids:
            for task in Path(f"/proc/{pid}/task").iterdir():
                pids += map(int, (task / "children").read_text().split())
        return pids


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def _started(command: list[str], port: int, health: str, folder: Path, **environment: str) -> Iterator[Running]:
    with open(folder / f"log-{port}", "wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, stdout=log, stderr=log, env={**os.environ, **environment}, start_new_session=True
        )
        try:
            for _ in range(6000):
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}{health}", timeout=5):
                        break
                except urllib.error.HTTPError:
                    break
                except OSError:
                    if process.poll() is not None:
                        raise RuntimeError((folder / f"log-{port}").read_text()[-2000:]) from None
                    time.sleep(0.1)
            running = Running(f"http://127.0.0.1:{port}/v1", process)
            for _ in range(90):  # until all of its processes have started, and wait
                before = running.cpu()
                time.sleep(1.0)
                if running.cpu() - before < 0.1:
                    break
            yield running
        finally:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(40)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()


@contextmanager
def shadowprice(upstream: str, budget: str, folder: Path, *options: str) -> Iterator[Running]:
    """Ours; `folder` keeps its ledger."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    command = [sys.executable, "-m", "shadowprice", "serve", "--upstream", upstream, "--budget", budget]
    command += ["--port", str(port), "--ledger", str(folder), *options]
    with _started(command, port, "/healthz", folder, OPENAI_API_KEY="") as running:
        yield running


@contextmanager
def litellm(
    upstream: str, budget: int, folder: Path, *, workers: int = 1, redis: int = 0, fast: bool = False
) -> Iterator[Running]:
    """LiteLLM's proxy with a budget of so many output tokens; `redis`: the port of one; `fast`: its fastest server."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    place = f"host: 127.0.0.1, port: {redis}"
    router = f", redis_host: 127.0.0.1, redis_port: {redis}" if redis else ""
    cache = f", cache: true, cache_params: {{type: redis, {place}, supported_call_types: []}}" if redis else ""
    settings = _LITELLM_CONFIG.format(url=upstream, router=router, cache=cache)
    (folder / "config.yaml").write_text(settings)
    (folder / "auth.py").write_text(_LITELLM_AUTH.format(budget=budget / 1e6))
    command = [str(LITELLM), "--config", "config.yaml", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--num_workers", str(workers), "--timeout_worker_healthcheck", "300"]
    command += ["--run_granian"] if fast else []
    quiet = {
        "LITELLM_LOG": "ERROR",
        "LITELLM_MODE": "PRODUCTION",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_MASTER_KEY": f"sk-{secrets.token_hex(32)}",
    }
    with _started(command, port, "/health/liveliness", folder, **quiet) as running:
        yield running


@contextmanager
def portkey(upstream: str, folder: Path) -> Iterator[Running]:
    """Portkey's gateway; a request names the server that it is for."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    command = ["node", str(PORTKEY), f"--port={port}", "--headless"]
    with _started(command, port, "/", folder, TRUSTED_CUSTOM_HOSTS="127.0.0.1") as running:
        running.headers = {"x-portkey-provider": "openai", "x-portkey-custom-host": upstream}
        yield running


@contextmanager
def pass_through(upstream: str, folder: Path) -> Iterator[Running]:
    """aiohttp as server and client, and nothing in between."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    (folder / "pass_through.py").write_text(_PASS_THROUGH)
    command = [sys.executable, "pass_through.py", upstream, str(port)]
    with _started(command, port, "/", folder) as running:
        yield running
