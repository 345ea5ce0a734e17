"""Does the budget hold? By the server's own count, ours beside LiteLLM's proxy.

    python benchmarks/overspend.py                    all cases, of both where LiteLLM is installed
    python benchmarks/overspend.py --ours [--kills 50] [--clients 1000]
    python benchmarks/overspend.py --cases barrier,killed

The server keeps limits and counts what it generates; every answer has 100 tokens unless its limit is lower. The
budget is 2,000 tokens, the demand 5 times that or more. `over`: tokens beyond the budget, in any window. `served`:
answers. The exit code is 1 if ours is ever over.

    own limit       100 clients at one moment, each with max_tokens 100
    no limit        the same without a limit of their own
    last tokens     a budget of 2,050: what is left is less than what a request asks for
    two workers     two processes of one gateway
    restarted       the same, with all processes killed (kill -9) and started again after every 100 requests
    later           two workers; LiteLLM's share a Redis, whose counters expire: again after 75 seconds
    barrier         1,000 clients that start at one moment: streams and not, some leave, some retry; two workers
    killed          kill -9 and restart in the middle of streams, repeatedly
    roll-over       a budget per minute, and requests all the time while two minutes end: three budgets in all
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import aiohttp
from counting_server import Counting, counting_server
from gateways import LITELLM, Running, free_port, litellm, shadowprice

BUDGET = 2000
QUESTION = [{"role": "user", "content": "What is 2 + 3? Explain step by step."}]
Start = Callable[[str, int, Path, int], AbstractContextManager[Running]]


def _ours(upstream: str, budget: int, folder: Path, workers: int) -> AbstractContextManager[Running]:
    return shadowprice(upstream, str(budget), folder, "--workers", str(workers))


def _theirs(upstream: str, budget: int, folder: Path, workers: int) -> AbstractContextManager[Running]:
    return litellm(upstream, budget, folder, workers=workers)


GATEWAYS: dict[str, Start] = {"shadowprice": _ours, "litellm": _theirs}


async def ask(session: aiohttp.ClientSession, url: str, leave: float = 0.0, **fields: object) -> int:
    """The status; `leave`: seconds after which the client closes the connection."""
    body = {"model": "m", "messages": QUESTION, **fields}
    headers = {"Authorization": "Bearer sk-any"}
    try:
        async with asyncio.timeout(leave or None):
            async with session.post(f"{url}/chat/completions", json=body, headers=headers) as answer:
                await answer.read()
                return answer.status
    except (TimeoutError, aiohttp.ClientError):
        return 0


async def together(url: str, count: int, **fields: object) -> list[int]:
    timeout = aiohttp.ClientTimeout(total=300)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        return list(await asyncio.gather(*(ask(session, url, **fields) for _ in range(count))))


@contextmanager
def case(pause: float = 0.0) -> Iterator[tuple[Counting, Path]]:
    with counting_server(100, pause) as server, tempfile.TemporaryDirectory() as folder:
        yield server, Path(folder)


def at_once(start: Start, *, workers: int = 1, budget: int = BUDGET, **fields: object) -> tuple[int, int]:
    with case() as (server, folder), start(server.url, budget, folder, workers) as gateway:
        asyncio.run(together(gateway.url, 100, **fields))
        for _ in range(3):
            asyncio.run(together(gateway.url, 10, **fields))
        return server.count()


def restarted(start: Start) -> tuple[int, int]:
    with case() as (server, folder):
        for _ in range(3):
            with start(server.url, BUDGET, folder, 2) as gateway:
                asyncio.run(together(gateway.url, 100, max_tokens=100))
                gateway.kill()
        return server.count()


def later(start: Start) -> tuple[int, int]:
    with case() as (server, folder), start(server.url, BUDGET, folder, 2) as gateway:
        asyncio.run(together(gateway.url, 100, max_tokens=100))
        time.sleep(75.0)
        asyncio.run(together(gateway.url, 100, max_tokens=100))
        return server.count()


@contextmanager
def _with_redis(upstream: str, budget: int, folder: Path, workers: int) -> Iterator[Running]:
    port = free_port()
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as redis:
        try:
            with litellm(upstream, budget, folder, workers=workers, redis=port) as running:
                yield running
        finally:
            redis.terminate()


def barrier(clients: int) -> tuple[int, int]:
    """At most 5 of 100 units may stay unused; the count is taken when everything has ended."""

    async def go(url: str) -> None:
        gate = asyncio.Event()
        timeout = aiohttp.ClientTimeout(total=600)
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:

            async def client(number: int) -> None:
                await gate.wait()
                fields: dict[str, object] = {"stream": True} if number % 2 else {}
                if number % 3:
                    fields["max_tokens"] = 100
                leaves = 0.3 if number % 7 == 3 else 0.0
                for _ in range(2 if number % 5 == 0 else 1):  # some retry, whatever the answer was
                    await ask(session, url, leaves, **fields)

            tasks = [asyncio.create_task(client(number)) for number in range(clients)]
            await asyncio.sleep(0.5)
            gate.set()
            await asyncio.gather(*tasks)

    budget = clients * 20  # a fifth of what they would use
    with case(pause=0.002) as (server, folder), _ours(server.url, budget, folder, 2) as gateway:
        asyncio.run(go(gateway.url))
        time.sleep(1.0)
        tokens, requests = server.count()
        return BUDGET + tokens - budget, requests


def killed(kills: int) -> tuple[int, int]:
    """A kill costs the 1,200 tokens at most that are reserved: the budget leaves some for the end."""
    budget = 1300 * kills

    async def go(gateway: Running) -> None:
        before = server.count()[0]
        tasks = asyncio.create_task(together(gateway.url, 12, stream=True, max_tokens=100))
        for _ in range(100):  # somewhere within the answers
            await asyncio.sleep(0.03)
            if (await asyncio.to_thread(server.count))[0] > before + 300:
                break
        gateway.kill()
        await tasks

    with case(pause=0.01) as (server, folder):
        for _ in range(kills):
            with _ours(server.url, budget, folder, 1) as gateway:
                asyncio.run(go(gateway))
        with _ours(server.url, budget, folder, 1) as gateway:  # what is left is spent, and no more
            for _ in range(1000):
                if 402 in asyncio.run(together(gateway.url, 8, max_tokens=100)):
                    break
        tokens, requests = server.count()
        print(f"  {kills} kills: {tokens:,} of {budget:,} tokens generated", file=sys.stderr)
        return BUDGET + tokens - budget, requests


def roll_over() -> tuple[int, int]:
    """From the middle of one minute to the middle of the next but one: each has its own budget, and no more."""

    async def flood(url: str, until: float) -> None:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

            async def client(number: int) -> None:
                while time.time() < until:
                    if await ask(session, url, stream=bool(number % 2)) != 200:
                        await asyncio.sleep(0.1)

            await asyncio.gather(*(client(number) for number in range(40)))

    with (
        case(pause=0.002) as (server, folder),
        shadowprice(server.url, f"{BUDGET}/minute", folder, "--price", "0") as gateway,
    ):
        first = time.time() // 60
        asyncio.run(flood(gateway.url, (first + 2) * 60 + 5))
        tokens, requests = server.count()
        print(f"  {tokens:,} of {3 * BUDGET:,} tokens generated in three minutes", file=sys.stderr)
        assert time.time() // 60 == first + 2
        return BUDGET + tokens - 3 * BUDGET, requests


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ours", action="store_true")
    parser.add_argument("--cases", default="", metavar="NAME,...", help="only these")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--clients", type=int, default=1000)
    options = parser.parse_args()
    names = ["shadowprice", *(["litellm"] if LITELLM.exists() and not options.ours else [])]
    cases: dict[str, Callable[[Start], tuple[int, int]]] = {
        "own limit": lambda start: at_once(start, max_tokens=100),
        "no limit": lambda start: at_once(start),
        "last tokens": lambda start: at_once(start, max_tokens=100, budget=BUDGET + 50),
        "two workers": lambda start: at_once(start, workers=2, max_tokens=100),
        "restarted": restarted,
        "later": later,
    }
    alone: dict[str, Callable[[], tuple[int, int]]] = {
        "barrier": lambda: barrier(options.clients),
        "killed": lambda: killed(options.kills),
        "roll-over": roll_over,
    }
    if chosen := [each.strip() for each in options.cases.split(",") if each.strip()]:
        cases = {name: run for name, run in cases.items() if name in chosen}
        alone = {name: run for name, run in alone.items() if name in chosen}
    held = True
    print("| case | gateway | over | served |\n|---|---|---|---|")
    for name, run in cases.items():
        for gateway in names:
            budget = BUDGET + 50 if name == "last tokens" else BUDGET
            start = _with_redis if name == "later" and gateway == "litellm" else GATEWAYS[gateway]
            if start is _with_redis and not shutil.which("redis-server"):
                continue
            tokens, served = run(start)
            held &= gateway != "shadowprice" or tokens <= budget
            print(f"| {name} | {gateway} | {max(0, tokens - budget):,} | {served:,} |", flush=True)
    for name, single in alone.items():
        tokens, served = single()
        held &= tokens <= BUDGET
        print(f"| {name} | shadowprice | {max(0, tokens - BUDGET):,} | {served:,} |", flush=True)
    print(f"\n{'ok  ' if held else 'MISS'}  the budget holds")
    return 0 if held else 1


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main())
