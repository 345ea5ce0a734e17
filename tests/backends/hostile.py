"""A real HTTP server on 127.0.0.1 that behaves as badly as a test wants.

    with Server(dropped_in_mid_stream) as server:
        backend = OpenAIBackend(server.url, "m", timeout=0.3)

A behaviour is an async function of the request and the reply. The server counts what it generated
(`server.generated`, tokens), keeps the requests it received and notes when a client closes the connection.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any

WORDS = [f"w{i} " for i in range(20)]  # the model's answer to every question: one token each


@dataclass
class Request:
    path: str
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def chat(self) -> bool:
        return self.path.endswith("/chat/completions")

    @property
    def limit(self) -> int:
        return self.body.get("max_completion_tokens") or self.body["max_tokens"]


@dataclass
class Reply:
    """How a behaviour answers; nothing is sent on its own."""

    server: Server
    request: Request
    writer: asyncio.StreamWriter

    async def send(self, data: bytes | str) -> None:
        self.writer.write(data.encode() if isinstance(data, str) else data)
        await self.writer.drain()

    async def head(self, status: int = 200, kind: str = "text/event-stream", **headers: str) -> None:
        lines = {"content-type": kind, "connection": "close", **headers}
        fields = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in lines.items())
        await self.send(f"HTTP/1.1 {status} -\r\n{fields}\r\n")

    async def json(self, status: int, content: Any, **headers: str) -> None:
        await self.head(status, "application/json", **headers)
        await self.send(json.dumps(content))

    async def error(self, status: int, message: str, **headers: str) -> None:
        await self.json(status, {"error": {"message": message, "type": "error", "code": None}}, **headers)

    async def event(self, content: Any) -> None:
        await self.send(f"data: {content if isinstance(content, str) else json.dumps(content)}\n\n")

    def chunk(self, choices: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self.request.chat else "text_completion"
        return {"id": "x-1", "object": kind, "created": 17, "model": "served", "choices": choices, **fields}

    def choice(self, text: str | None, finish: str | None = None) -> dict[str, Any]:
        printed = {"delta": {"content": text} if text else {}} if self.request.chat else {"text": text or ""}
        return {"index": 0, **printed, "finish_reason": finish}

    async def piece(self, text: str, tokens: int = 1) -> None:
        self.server.generated += tokens
        await self.event(self.chunk([self.choice(text)]))

    async def say(self, count: int) -> None:
        for word in WORDS[:count]:
            await self.piece(word)

    async def finish(self, reason: str = "stop") -> None:
        await self.event(self.chunk([self.choice(None, reason)]))

    async def usage(self, tokens: Any, **fields: Any) -> None:
        await self.event(self.chunk([], usage={"prompt_tokens": 5, "completion_tokens": tokens, **fields}))

    async def end(self) -> None:
        await self.event("[DONE]")


Behaviour = Callable[[Request, Reply], Awaitable[None]]


@dataclass
class Server:
    behave: Behaviour
    generated: int = 0
    requests: list[Request] = field(default_factory=list)
    url: str = ""
    tokenizer: Callable[[str], Any] | None = None  # of /tokenize, which is not there without one
    tokenized: int = 0  # requests for it, which are no requests for answers
    connections: int = 0

    def __enter__(self) -> Server:
        self._hung_up, started = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(started)))
        self._thread.start()
        assert started.wait(5)
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(5)
        assert not self._thread.is_alive()

    def saw_hang_up(self, within: float) -> bool:
        return self._hung_up.wait(within)

    async def _serve(self, started: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(self._meet, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        started.set()
        await self._stop.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._answer(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        listener = None
        self.connections += 1
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
            body = json.loads(await reader.readexactly(int(headers.get("content-length", 0))) or b"{}")
            request = Request(head[0].split()[1], headers, body)
            if request.path == "/tokenize":
                await self._tokenize(Reply(self, request, writer))
                return
            self.requests.append(request)
            listener = self._loop.create_task(self._notice_hang_up(reader))
            await self.behave(request, Reply(self, request, writer))
        except (ConnectionError, asyncio.IncompleteReadError):
            self._hung_up.set()
        finally:
            if listener is not None:
                listener.cancel()
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _tokenize(self, reply: Reply) -> None:
        self.tokenized += 1
        if self.tokenizer is None:
            await reply.error(404, "Not Found")
        else:
            await reply.json(200, self.tokenizer(reply.request.body["prompt"]))

    async def _notice_hang_up(self, reader: asyncio.StreamReader) -> None:
        with suppress(ConnectionError):
            await reader.read()
        self._hung_up.set()


# --- behaviours --------------------------------------------------------------------------------


async def well_behaved(request: Request, reply: Reply) -> None:
    count = min(request.limit, len(WORDS))
    await reply.head()
    await reply.say(count)
    await reply.finish("length" if request.limit < len(WORDS) else "stop")
    if request.body.get("stream_options", {}).get("include_usage"):
        await reply.usage(count, total_tokens=5 + count)
    await reply.end()


def says(count: int, *usages: Any, finish: str = "stop", ending: bool = True) -> Behaviour:
    """A stream of `count` words with these usages at its end, whatever they are."""

    async def behave(request: Request, reply: Reply) -> None:
        await reply.head()
        await reply.say(count)
        await reply.finish(finish)
        for usage in usages:
            await reply.event(reply.chunk([], usage=usage))
        if ending:
            await reply.end()

    return behave


async def never_ending(request: Request, reply: Reply) -> None:
    await reply.head()
    while True:
        await reply.piece("on and ")
        await asyncio.sleep(0.001)


async def ten_tokens_a_piece(request: Request, reply: Reply) -> None:
    """Twice the limit, in pieces that look like honest ones until the usage arrives."""
    await reply.head()
    for _ in range(request.limit // 5):
        await reply.piece("ten tokens " * 5, tokens=10)
    await reply.finish()
    await reply.usage(reply.server.generated)
    await reply.end()


async def a_book_in_one_piece(request: Request, reply: Reply) -> None:
    await reply.head()
    await reply.piece("x" * 10_000, tokens=5_000)
    await reply.finish()
    await reply.end()


def bundles(text: str, count: int, *, tokens: int, usage: Any = None, finish: str = "stop") -> Behaviour:
    """`count` pieces of this text, each of so many tokens, whatever the limit is."""

    async def behave(request: Request, reply: Reply) -> None:
        await reply.head()
        for _ in range(count):
            await reply.piece(text, tokens=tokens)
            await asyncio.sleep(0.002)  # so that a client can hang up
        await reply.finish(finish)
        if usage is not None:
            await reply.event(reply.chunk([], usage=usage if isinstance(usage, dict) else {"completion_tokens": usage}))
        await reply.end()

    return behave


def fails(status: int, message: str = "no", work: int = 0, **headers: str) -> Behaviour:
    async def behave(request: Request, reply: Reply) -> None:
        reply.server.generated += work
        await reply.error(status, message, **headers)

    return behave


def in_seconds(seconds: float) -> str:
    return formatdate(time.time() + seconds, usegmt=True)


def streams(*events: str, work: int = 3) -> Behaviour:
    """A few good words, then these bytes, then nothing."""

    async def behave(request: Request, reply: Reply) -> None:
        await reply.head()
        await reply.say(work)
        for event in events:
            await reply.send(event)

    return behave


async def error_in_the_stream(request: Request, reply: Reply) -> None:
    await reply.head()
    await reply.say(3)
    await reply.event({"error": {"message": "out of\nmemory", "code": 500}})


async def a_chunk_cut_off(request: Request, reply: Reply) -> None:
    """Chunked encoding that announces more than it sends."""
    await reply.head(transfer_encoding="chunked")
    reply.server.generated += 1
    await reply.send('fff\r\ndata: {"choices": [{"delta": {"con')


async def a_body_cut_off(request: Request, reply: Reply) -> None:
    """An error whose text does not arrive completely."""
    await reply.head(400, "application/json", content_length="1000")
    await reply.send('{"error": ')


async def silence(request: Request, reply: Reply) -> None:
    reply.server.generated += 4
    await asyncio.sleep(60)


async def silence_after_headers(request: Request, reply: Reply) -> None:
    await reply.head()
    await silence(request, reply)


async def silence_in_mid_stream(request: Request, reply: Reply) -> None:
    await reply.head()
    await reply.say(3)
    await asyncio.sleep(60)


async def silence_after_the_end(request: Request, reply: Reply) -> None:
    await says(3, ending=False)(request, reply)
    await asyncio.sleep(60)


async def only_keep_alives(request: Request, reply: Reply) -> None:
    await reply.head()
    await reply.say(3)
    while True:
        await reply.send(": still here\n\n")
        await asyncio.sleep(0.01)


async def slow_but_steady(request: Request, reply: Reply) -> None:
    await reply.head()
    for word in WORDS:
        await reply.piece(word)
        await asyncio.sleep(0.1)


async def hangs_up(request: Request, reply: Reply) -> None:
    reply.server.generated += 2
    reply.writer.transport.abort()


async def hangs_up_in_mid_stream(request: Request, reply: Reply) -> None:
    await reply.head(transfer_encoding="chunked")
    reply.server.generated += 1
    event = f"data: {json.dumps(reply.chunk([reply.choice('word')]))}\n\n"
    await reply.send(f"{len(event):x}\r\n{event}\r\n")
    await asyncio.sleep(0.05)
    reply.writer.transport.abort()


async def knows_no_stream_options(request: Request, reply: Reply) -> None:
    if "stream_options" in request.body:
        await reply.error(400, "Unrecognized request argument supplied: stream_options")
    else:
        await well_behaved(request, reply)


async def does_not_stream(request: Request, reply: Reply) -> None:
    reply.server.generated += 3
    printed = {"message": {"role": "assistant", "content": "w0 w1 w2 "}} if request.chat else {"text": "w0 w1 w2 "}
    choice = {"index": 0, **printed, "finish_reason": "stop"}
    usage = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
    await reply.json(200, {"id": "x-1", "model": "served", "choices": [choice], "usage": usage})


def deltas(*contents: dict[str, Any], finish: str = "stop", usage: int | None = None) -> Behaviour:
    """A chat in these deltas, one token each."""

    async def behave(request: Request, reply: Reply) -> None:
        await reply.head()
        for delta in contents:
            reply.server.generated += 1
            await reply.event(reply.chunk([{"index": 0, "delta": delta, "finish_reason": None}]))
        await reply.finish(finish)
        await reply.usage(len(contents) if usage is None else usage)
        await reply.end()

    return behave


def continues(
    *, starts_over: bool = False, trims: bool = False, refuses: bool = False, usage: bool = True
) -> Behaviour:
    """A server that continues an assistant message, or a plain prompt that starts with "hello".

    It may start over instead, trim messages as some chat templates do, or refuse fields that it does not know.
    After an open box it states the final answer 42.
    """

    async def behave(request: Request, reply: Reply) -> None:
        if refuses and "continue_final_message" in request.body:
            await reply.error(400, "Unrecognized request argument supplied: continue_final_message")
            return
        if request.chat:
            printed = "".join(m["content"] for m in request.body["messages"] if m["role"] == "assistant")
        else:
            printed = request.body["prompt"].removeprefix("hello")
        known = sum(len("".join(WORDS[:i])) < len(printed) for i in range(len(WORDS)))
        rest = list(WORDS) if starts_over else _after(WORDS, printed.rstrip() if trims else printed)
        if printed.endswith("\\boxed{") and not starts_over:
            rest = ["4", "2"] if request.body.get("stop") else ["4", "2", "}", "."]
        count = min(request.limit, len(rest))
        await reply.head()
        for token in rest[:count]:
            await reply.piece(token)
        await reply.finish("length" if count < len(rest) else "stop")
        if usage:
            prompt = 5 + known + (5 if starts_over and printed else 0)
            await reply.usage(count, prompt_tokens=prompt, prompt_tokens_details={"cached_tokens": known})
        await reply.end()

    return behave


def _after(tokens: list[str], printed: str) -> list[str]:
    """The tokens that follow what was generated; the first may be the rest of one."""
    if not "".join(tokens).startswith(printed):
        return list(tokens)
    while printed and len(tokens[0]) <= len(printed):
        printed, tokens = printed[len(tokens[0]) :], tokens[1:]
    return [tokens[0][len(printed) :], *tokens[1:]] if printed else list(tokens)
