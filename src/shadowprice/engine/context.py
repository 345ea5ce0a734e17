"""What the context of a local model leaves for answers. Other backends do not say."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from shadowprice.backends.base import Backend
from shadowprice.errors import BackendError, Refused
from shadowprice.types import Request


async def within_context(
    requests: Sequence[Request], backend: Backend, max_tokens: int | None, concurrency: int
) -> tuple[Sequence[Request], dict[int, Refused]]:
    """The requests, limited to what the context leaves for their answers; and, by place, why some do not fit."""
    room = getattr(backend, "room", None)
    if room is None:
        return requests, {}
    gate = asyncio.Semaphore(concurrency)
    refused: dict[int, Refused] = {}

    async def fitted(place: int, request: Request) -> Request:
        own = request.max_tokens
        async with gate:
            try:
                left = await room(request.body, max_tokens if own is None else own)
            except Refused as error:
                refused[place] = error
                return request
            except BackendError:  # will be raised again when the request is sent
                return request
        return request if left is None or own is not None else replace(request, max_tokens=left)

    return [*await asyncio.gather(*(fitted(*each) for each in enumerate(requests)))], refused
