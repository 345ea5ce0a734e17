"""Hostile clients: is each refused in bounded time and memory, and are others served meanwhile?

    python benchmarks/hostile.py [--idle 10000]

For each kind: how the gateway answered, the seconds until all were refused or closed, its memory (MB, the most while
they were there), and the slowest of the ordinary requests that were sent meanwhile, one every 0.2 seconds. The exit
code is 1 if an ordinary request fails, if a hostile one is served, or if memory exceeds 600 MB.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import aiohttp
from counting_server import counting_server
from gateways import Running, shadowprice

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
MOST_MEMORY = 600.0
QUESTION = {"model": "m", "messages": [{"role": "user", "content": "What is 2 + 3?"}], "max_tokens": 10}


async def raw(port: int, *parts: bytes, pause: float = 0.0, patience: float = 60.0) -> str:
    """Sends these bytes and waits for the end: the status, `closed`, or `open` if nothing happens in time."""
    writer = None
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        listening = asyncio.create_task(reader.read(2**16))
        with suppress(ConnectionError):
            for part in parts:
                writer.write(part)
                await asyncio.wait_for(writer.drain(), patience)
                if listening.done():
                    break
                await asyncio.sleep(pause)
        line = await asyncio.wait_for(listening, patience)
        return line[9:12].decode() if line.startswith(b"HTTP/1.1 ") else "closed"
    except ConnectionError:
        return "closed"
    except TimeoutError:
        return "open"
    finally:
        if writer:
            writer.transport.abort()


def many(count: int, attack: Callable[[int], Awaitable[str]]) -> Callable[[int], Awaitable[Counter[str]]]:
    async def all_of_them(port: int) -> Counter[str]:
        return Counter(await asyncio.gather(*(attack(port) for _ in range(count))))

    return all_of_them


def body(content: bytes) -> Callable[[int], Awaitable[str]]:
    pieces = [content[at : at + 2**18] for at in range(0, len(content), 2**18)]
    length = b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(content)
    return lambda port: raw(port, HEAD + length, *pieces)


def chunked(count: int) -> Callable[[int], Awaitable[str]]:
    chunk = b"%x\r\n%s\r\n" % (2**20, b" " * 2**20)
    return lambda port: raw(port, HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *[chunk] * count)


def attacks(idle: int) -> dict[str, Callable[[int], Awaitable[Counter[str]]]]:
    trickled = HEAD + b"".join(b"X-%d: y\r\n" % i for i in range(1000))
    return {
        "no UTF-8": many(100, body(b'{"messages": "\xc3\x28"}')),
        "JSON of a million levels": many(100, body(b"[" * 10**6)),
        "bodies of 20 MB": many(40, body(b" " * 20_000_000)),
        "bodies of 20 MB, without a length": many(40, chunked(20)),
        "bodies of 15 MB, 40 at a time": many(40, body(b'{"messages": "' + b"x" * 15_000_000)),
        "headers of 1 MB": many(100, lambda port: raw(port, HEAD + b"X: " + b"y" * 2**20)),
        "slow headers": many(500, lambda port: raw(port, *(trickled[i : i + 9] for i in range(0, 900, 9)), pause=1.0)),
        "slow bodies": many(
            500, lambda port: raw(port, HEAD + b"Content-Length: 1000\r\n\r\n", *[b" "] * 100, pause=1.0)
        ),
        f"{idle:,} idle connections": many(idle, lambda port: raw(port, patience=120.0)),
    }


async def ordinary(url: str, stop: asyncio.Event) -> tuple[float, int]:
    """The slowest of the requests until `stop`, and how many failed."""
    slowest, failed = 0.0, 0
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
        while not stop.is_set():
            start = time.perf_counter()
            try:
                async with session.post(f"{url}/chat/completions", json=QUESTION) as answer:
                    await answer.read()
                    failed += answer.status != 200
            except (aiohttp.ClientError, TimeoutError):
                failed += 1
            slowest = max(slowest, time.perf_counter() - start)
            await asyncio.sleep(0.2)
    return slowest, failed


async def measured(
    gateway: Running, attack: Callable[[int], Awaitable[Counter[str]]]
) -> tuple[Counter[str], list[float]]:
    stop, memory = asyncio.Event(), [gateway.memory()]

    async def watch() -> None:
        while not stop.is_set():
            memory.append(gateway.memory())
            await asyncio.sleep(0.1)

    others, watching = asyncio.create_task(ordinary(gateway.url, stop)), asyncio.create_task(watch())
    start = time.perf_counter()
    answers = await attack(int(gateway.url.split(":")[2].split("/")[0]))
    seconds = time.perf_counter() - start
    await asyncio.sleep(0.5)
    stop.set()
    slowest, failed = await others
    await watching
    return answers, [seconds, max(memory), slowest, failed]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--idle", type=int, default=10_000)
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    held = True
    print("| clients | answered | seconds | memory, MB | slowest of others, s | failed of others |")
    print("|---|---|---|---|---|---|")
    with counting_server() as server, tempfile.TemporaryDirectory() as folder:
        for name, attack in attacks(options.idle).items():
            with shadowprice(server.url, "1M/day", Path(folder)) as gateway:
                answers, (seconds, memory, slowest, failed) = asyncio.run(measured(gateway, attack))
            shown = ", ".join(f"{count} × {status}" for status, count in sorted(answers.items()))
            print(f"| {name} | {shown} | {seconds:.1f} | {memory:.0f} | {slowest:.2f} | {failed:.0f} |", flush=True)
            held &= not failed and memory < MOST_MEMORY and not answers["200"] and not answers["open"]
    print(f"\n{'ok  ' if held else 'MISS'}  all refused, others served, memory below {MOST_MEMORY:.0f} MB")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
