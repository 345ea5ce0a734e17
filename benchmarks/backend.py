"""What a request costs in OpenAIBackend, against the `openai` client making the same streaming call.

    python benchmarks/backend.py [--requests 2000] [--concurrency 64] [--tokens 16] [--rounds 3]

Needs `pip install openai`. The server is a raw asyncio protocol in its own process that answers every request at
once, so that the client is what is measured. The two take turns; the best round of each counts, since other processes
only slow it down. The table shows requests per second, milliseconds of CPU time per request, and the ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable

from instant_server import instant_server

from shadowprice.backends.openai import OpenAIBackend

BODY = {"messages": [{"role": "user", "content": "What is 2 + 3?"}], "temperature": 0}
ROUND = tuple[float, float]  # seconds, seconds of CPU time


# --- the clients -------------------------------------------------------------------------------


async def measured(call: Callable[[], Awaitable[int]], requests: int, concurrency: int, tokens: int) -> ROUND:
    """Seconds and seconds of CPU time for so many calls, of which `concurrency` run at a time."""
    left = requests

    async def worker() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            assert await call() == tokens

    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(worker() for _ in range(concurrency)))
    return time.perf_counter() - wall, time.process_time() - cpu


async def with_backend(url: str, requests: int, concurrency: int, tokens: int) -> ROUND:
    backend = OpenAIBackend(url, "m", api_key="none")

    async def call() -> int:
        return (await backend.complete(BODY, 4096)).tokens

    try:
        await measured(call, concurrency, concurrency, tokens)  # warm up
        return await measured(call, requests, concurrency, tokens)
    finally:
        await backend.close()


async def with_openai(url: str, requests: int, concurrency: int, tokens: int) -> ROUND:
    import openai

    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=600) as client:

        async def call() -> int:
            stream = await client.chat.completions.create(
                model="m", max_completion_tokens=4096, stream=True, stream_options={"include_usage": True}, **BODY
            )
            used, text = 0, []
            async for chunk in stream:
                text += [choice.delta.content or "" for choice in chunk.choices]
                used = chunk.usage.completion_tokens if chunk.usage else used
            return used

        await measured(call, concurrency, concurrency, tokens)
        return await measured(call, requests, concurrency, tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=16, help="of each answer, one event each")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with instant_server(options.tokens) as url:
        clients = {"OpenAIBackend": with_backend, "openai": with_openai}
        rounds: dict[str, list[ROUND]] = {name: [] for name in clients}
        for _ in range(options.rounds):
            for name, client in clients.items():
                rounds[name].append(asyncio.run(client(url, options.requests, options.concurrency, options.tokens)))
    best = {name: tuple(min(column) for column in zip(*found, strict=True)) for name, found in rounds.items()}
    print(f"{options.tokens} tokens an answer, {options.concurrency} at a time")
    for name, (wall, cpu) in best.items():
        print(f"{name:14} {options.requests / wall:8,.0f} requests/s {1000 * cpu / options.requests:8.3f} ms CPU each")
    (wall, cpu), (their_wall, their_cpu) = best["OpenAIBackend"], best["openai"]
    print(f"{'ratio':14} {their_wall / wall:8.1f} x requests/s {their_cpu / cpu:7.1f} x less CPU")


if __name__ == "__main__":
    main()
