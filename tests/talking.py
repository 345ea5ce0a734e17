"""Servers with something to say, for tests of whole runs; `backends.hostile` has the server itself."""

from __future__ import annotations

import asyncio

from .backends import hostile


def talks(words: int, pause: float = 0.0) -> hostile.Behaviour:
    """An honest server whose every answer has this many tokens."""

    async def behave(request: hostile.Request, reply: hostile.Reply) -> None:
        count = min(request.limit, words)
        await reply.head()
        for _ in range(count):
            await reply.piece("word ")
            await asyncio.sleep(pause)
        await reply.finish("length" if request.limit < words else "stop")
        await reply.usage(count)
        await reply.end()

    return behave


def overshoots(by: int) -> hostile.Behaviour:
    """A server that generates more than its limit, and says so."""

    async def behave(request: hostile.Request, reply: hostile.Reply) -> None:
        await reply.head()
        await reply.piece("word ", tokens=request.limit + by)
        await reply.finish("length")
        await reply.usage(request.limit + by)
        await reply.end()

    return behave


async def knows_only_max_tokens(request: hostile.Request, reply: hostile.Reply) -> None:
    heeded = {"max_tokens": request.body.get("max_tokens", 30)}
    await talks(30)(hostile.Request(request.path, request.headers, heeded), reply)
