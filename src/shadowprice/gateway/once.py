"""The same Idempotency-Key is answered once, whatever races: the first request is sent, and all get its answer.

What is kept is in the ledger's database, so that it holds across processes. A request that generated nothing can be
repeated with its key; one of unknown outcome cannot, since it may have been charged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import NamedTuple

import orjson

from shadowprice.accounts.owner import Owner
from shadowprice.errors import InputError, LedgerError, MissingExtra
from shadowprice.gateway.relay import error_response

try:
    from aiohttp import web
except ImportError:
    raise MissingExtra("gateway", "the gateway") from None

__all__ = ["Answered", "once"]

_MISSING = 100  # looks, 50 ms apart
# What is kept of a request whose client left, or whose upstream failed: it may have been charged.
_UNKNOWN = '[409,"application/json","{\\"error\\":{\\"code\\":\\"outcome_unknown\\"}}"]'


class Answered(NamedTuple):
    """An answer, whether it cost anything, and what was sent of a stream that has ended."""

    reply: web.StreamResponse
    charged: bool
    sent: bytes | None


async def once(
    owner: Owner,
    worker: str,
    whose: tuple[str, ...],
    content: bytes,
    answer: Callable[[], Awaitable[Answered]],
) -> web.StreamResponse:
    """The answer to the first request of this name (tenant, endpoint, key), for all of them."""
    digest = sha256(content).hexdigest()
    name = sha256("\0".join(whose).encode(errors="replace")).hexdigest()
    missing = 0
    while kept := await asyncio.to_thread(owner.keep, name, digest, worker):
        if kept.digest != digest:
            return error_response(422, "idempotency_mismatch", "the Idempotency-Key was used for another request")
        if kept.answer is not None:
            status, kind, text = orjson.loads(kept.answer)
            return web.Response(status=status, body=text.encode("latin-1"), headers={"Content-Type": kind})
        # A process that answers holds units: one that does not for seconds has ended.
        alive = kept.worker == worker or kept.worker in await asyncio.to_thread(owner.workers)
        missing = 0 if alive else missing + 1
        if missing > _MISSING:
            return error_response(409, "outcome_unknown", "the first request with this key was interrupted")
        await asyncio.sleep(0.05)
    result: str | None = _UNKNOWN
    try:
        reply, charged, sent = await answer()
        if reply.status == 200:
            body = reply.body if isinstance(reply, web.Response) else sent
            if isinstance(body, bytes):
                kind = reply.headers.get("Content-Type", "application/json")
                result = orjson.dumps([200, kind, body.decode("latin-1")]).decode()
        elif not charged:  # nothing was generated: it can be retried
            result = None
        return reply
    except (InputError, LedgerError):
        result = None
        raise
    finally:
        await asyncio.shield(asyncio.to_thread(owner.answered, name, result))
