"""A chat server that keeps limits and counts what it generates, in its own process.

    with counting_server(tokens=100) as server:
        server.url, server.count()

Every answer has the same number of tokens, unless its limit is lower. A stream sends one token per event, `pause`
seconds apart. What a client does not wait for is not counted: a stream ends where its client left.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection

import orjson

LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")


@dataclass
class Counting:
    url: str

    def count(self) -> tuple[int, int]:
        """Tokens that were generated, and requests."""
        with urllib.request.urlopen(self.url.removesuffix("/v1") + "/count", timeout=60) as answer:
            reply = json.load(answer)
        return reply["tokens"], reply["requests"]


@contextmanager
def counting_server(tokens: int = 16, pause: float = 0.0) -> Iterator[Counting]:
    receiver, sender = multiprocessing.Pipe(duplex=False)
    context = multiprocessing.get_context("spawn")
    server = context.Process(target=_serve, args=(sender, tokens, pause), daemon=True)
    server.start()
    try:
        yield Counting(f"http://127.0.0.1:{receiver.recv()}/v1")
    finally:
        server.kill()
        server.join()


class _Server(asyncio.Protocol):
    tokens, pause = 16, 0.0
    generated = requests = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport, self.received = transport, b""
        self.task: asyncio.Task[None] | None = None

    def connection_lost(self, error: Exception | None) -> None:
        if self.task:
            self.task.cancel()

    def data_received(self, data: bytes) -> None:
        self.received += data
        head, blank, body = self.received.partition(b"\r\n\r\n")
        if not blank:
            return
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
        if len(body) < length:
            return
        self.received = body[length:]
        if head.startswith(b"GET /count"):
            self._json({"tokens": _Server.generated, "requests": _Server.requests})
        elif head.startswith(b"GET"):
            self._json({"object": "list", "data": [{"id": "m", "object": "model"}]})
        else:
            self._answer(orjson.loads(body[:length]))

    def _json(self, content: object) -> None:
        body = orjson.dumps(content)
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        self.transport.write(head.encode() + body)

    def _answer(self, asked: dict) -> None:
        _Server.requests += 1
        tokens = min([self.tokens, *(asked[name] for name in LIMITS if asked.get(name))])
        if asked.get("stream"):
            self.task = asyncio.create_task(self._stream(tokens, bool(asked.get("stream_options"))))
            return
        _Server.generated += tokens
        finish = "stop" if tokens == self.tokens else "length"
        message = {"role": "assistant", "content": "word " * tokens}
        usage = {"prompt_tokens": 9, "completion_tokens": tokens, "total_tokens": 9 + tokens}
        choice = {"index": 0, "message": message, "finish_reason": finish}
        self._json(
            {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}
        )

    async def _stream(self, tokens: int, usage: bool) -> None:
        def event(choices: list, **more: object) -> bytes:
            head = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices}
            data = b"data: " + orjson.dumps({**head, **more}) + b"\n\n"
            return b"%x\r\n%s\r\n" % (len(data), data)

        self.transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        for _ in range(tokens):
            if self.transport.is_closing():
                return
            _Server.generated += 1
            self.transport.write(event([{"index": 0, "delta": {"content": "word "}, "finish_reason": None}]))
            if self.pause:
                await asyncio.sleep(self.pause)
        end = event([{"index": 0, "delta": {}, "finish_reason": "stop" if tokens == self.tokens else "length"}])
        counted = {"prompt_tokens": 9, "completion_tokens": tokens, "total_tokens": 9 + tokens}
        end += event([], usage=counted) if usage else b""
        self.transport.write(end + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")


def _serve(report: Connection, tokens: int, pause: float) -> None:
    async def run() -> None:
        _Server.tokens, _Server.pause = tokens, pause
        server = await asyncio.get_running_loop().create_server(_Server, "127.0.0.1", 0, backlog=4096)
        report.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    with suppress(KeyboardInterrupt):
        asyncio.run(run())
