"""What a request costs in OpenAIBackend, against the `openai` client making the same streaming call.

    python benchmarks/backend.py [--requests 2000] [--concurrency 64] [--tokens 16] [--rounds 3]

Needs `pip install openai`. The server is a raw asyncio protocol in its own process that answers every request at
once, so that the client is what is measured. The two take turns; the best round of each counts, since other processes
only slow it down. The table shows requests per second, milliseconds of CPU time per request, and the ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection

from shadowprice.backends.openai import OpenAIBackend

BODY = {"messages": [{"role": "user", "content": "What is 2 + 3?"}], "temperature": 0}
ROUND = tuple[float, float]  # seconds, seconds of CPU time


# --- the server --------------------------------------------------------------------------------


def answer(tokens: int) -> bytes:
    """A whole response: one event per token, the finish reason, the usage."""

    def event(choices: list[dict], **fields: object) -> bytes:
        head = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        return b"data: " + json.dumps({**head, "choices": choices, **fields}).encode() + b"\n\n"

    words = [event([{"index": 0, "delta": {"content": f"word{i} "}, "finish_reason": None}]) for i in range(tokens)]
    usage = {"prompt_tokens": 9, "completion_tokens": tokens, "total_tokens": 9 + tokens}
    end = [event([{"index": 0, "delta": {}, "finish_reason": "stop"}]), event([], usage=usage), b"data: [DONE]\n\n"]
    body = b"".join(words + end)
    head = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


class InstantServer(asyncio.Protocol):
    """Answers as soon as a request is complete, on a connection that stays open if the client wants that."""

    response = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport, self.received = transport, b""

    def data_received(self, data: bytes) -> None:
        self.received += data
        head, blank, body = self.received.partition(b"\r\n\r\n")
        if not blank:
            return
        head = head.lower()
        length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
        if len(body) >= length:
            self.received = body[length:]
            self.transport.write(self.response)
            if b"connection: close" in head:
                self.transport.close()


def serve(report: Connection, tokens: int) -> None:
    async def run() -> None:
        InstantServer.response = answer(tokens)
        server = await asyncio.get_running_loop().create_server(InstantServer, "127.0.0.1", 0, backlog=1024)
        report.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


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
    receiver, sender = multiprocessing.Pipe(duplex=False)
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(sender, options.tokens), daemon=True)
    server.start()
    try:
        url = f"http://127.0.0.1:{receiver.recv()}/v1"
        clients = {"OpenAIBackend": with_backend, "openai": with_openai}
        rounds: dict[str, list[ROUND]] = {name: [] for name in clients}
        for _ in range(options.rounds):
            for name, client in clients.items():
                rounds[name].append(asyncio.run(client(url, options.requests, options.concurrency, options.tokens)))
    finally:
        server.kill()
        server.join()
    best = {name: tuple(min(column) for column in zip(*found, strict=True)) for name, found in rounds.items()}
    print(f"{options.tokens} tokens an answer, {options.concurrency} at a time")
    for name, (wall, cpu) in best.items():
        print(f"{name:14} {options.requests / wall:8,.0f} requests/s {1000 * cpu / options.requests:8.3f} ms CPU each")
    (wall, cpu), (their_wall, their_cpu) = best["OpenAIBackend"], best["openai"]
    print(f"{'ratio':14} {their_wall / wall:8.1f} x requests/s {their_cpu / cpu:7.1f} x less CPU")


if __name__ == "__main__":
    main()
