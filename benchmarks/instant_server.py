"""A chat server that answers at once, in its own process: what is measured against it is the client."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection


@contextmanager
def instant_server(tokens: int = 16) -> Iterator[str]:
    """The base URL of a server whose answers have so many tokens, one event each."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    server = multiprocessing.get_context("spawn").Process(target=_serve, args=(sender, tokens), daemon=True)
    server.start()
    try:
        yield f"http://127.0.0.1:{receiver.recv()}/v1"
    finally:
        server.kill()
        server.join()


def _answer(tokens: int) -> bytes:
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


class _InstantServer(asyncio.Protocol):
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


def _serve(report: Connection, tokens: int) -> None:
    async def run() -> None:
        _InstantServer.response = _answer(tokens)
        server = await asyncio.get_running_loop().create_server(_InstantServer, "127.0.0.1", 0, backlog=1024)
        report.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())
