"""A chat server that answers at once, in its own process: what is measured against it is the client.

It keeps limits, and continues an answer that a limit cut.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from multiprocessing.connection import Connection

import orjson


@contextmanager
def instant_server(tokens: int = 16) -> Iterator[str]:
    """The base URL of a server whose answers have this many tokens, one event each."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    server = multiprocessing.get_context("spawn").Process(target=_serve, args=(sender, tokens), daemon=True)
    server.start()
    try:
        yield f"http://127.0.0.1:{receiver.recv()}/v1"
    finally:
        server.kill()
        server.join()


@cache
def _response(tokens: int, done: int, limit: int) -> bytes:
    """What comes after the first `done` tokens of an answer: one event per token, the finish reason, the usage."""

    def event(choices: list[dict], **fields: object) -> bytes:
        head = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        return b"data: " + json.dumps({**head, "choices": choices, **fields}).encode() + b"\n\n"

    end = min(tokens, done + limit)
    words = [event([{"index": 0, "delta": {"content": f"word{i} "}, "finish_reason": None}]) for i in range(done, end)]
    usage = {"prompt_tokens": 9 + done, "completion_tokens": end - done, "total_tokens": 9 + end}
    last = event([{"index": 0, "delta": {}, "finish_reason": "stop" if end == tokens else "length"}])
    body = b"".join([*words, last, event([], usage=usage), b"data: [DONE]\n\n"])
    head = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


class _InstantServer(asyncio.Protocol):
    """Answers as soon as a request is complete, on a connection that stays open if the client wants that."""

    tokens = 0

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
            asked = orjson.loads(body[:length])
            last = asked["messages"][-1]
            done = last["content"].count("word") if last["role"] == "assistant" else 0
            self.transport.write(_response(self.tokens, done, asked["max_completion_tokens"]))
            if b"connection: close" in head:
                self.transport.close()


def _serve(report: Connection, tokens: int) -> None:
    async def run() -> None:
        _InstantServer.tokens = tokens
        server = await asyncio.get_running_loop().create_server(_InstantServer, "127.0.0.1", 0, backlog=1024)
        report.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())
