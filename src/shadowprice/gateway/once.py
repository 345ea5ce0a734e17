"""Every Idempotency-Key is answered once, even in a race: the first request is sent, and all get its answer.

Answers are kept in the ledger's database, so this holds across processes. A request that generated nothing can be
retried with its key; one of unknown outcome cannot, since it may have been charged. A client that lost its answer can
ask what it has cost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import NamedTuple

import orjson

from shadowprice.accounts.owner import Owner
from shadowprice.errors import InputError, LedgerError, MarketError, MissingExtra
from shadowprice.gateway.relay import error_response

try:
    from aiohttp import web
except ImportError:
    raise MissingExtra("gateway", "the gateway") from None

__all__ = ["Answered", "cost_of", "once"]

_MISSING = 100  # looks, 50 ms apart
# The answer for a request whose client left, or whose upstream failed: it may have been charged.
_UNKNOWN = (409, {"content-type": "application/json"}, '{"error":{"code":"outcome_unknown"}}')
_KEPT = ("content-type", "x-shadowprice-", "x-ratelimit-")  # headers: what was decided then


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
    tokens: Callable[[], int],
) -> web.StreamResponse:
    """The answer to the first request of this name (tenant, endpoint, key), for all of them.

    `tokens` gives what it has cost after `answer` ended, in whatever way.
    """
    digest, name = sha256(content).hexdigest(), _name(whose)
    missing = 0
    while kept := await asyncio.to_thread(owner.keep, name, digest, worker):
        if kept.digest != digest:
            return error_response(422, "idempotency_mismatch", "the Idempotency-Key was used for another request")
        if kept.answer is not None:
            status, headers, text, _ = orjson.loads(kept.answer)
            return web.Response(status=status, body=text.encode("latin-1"), headers=headers)
        # A process that answers holds units: one that does not for seconds has ended.
        alive = kept.worker == worker or kept.worker in await asyncio.to_thread(owner.workers)
        missing = 0 if alive else missing + 1
        if missing > _MISSING:
            return error_response(409, "outcome_unknown", "the first request with this key was interrupted")
        await asyncio.sleep(0.05)
    result: tuple[int, dict[str, str], str] | None = _UNKNOWN
    try:
        reply, charged, sent = await answer()
        if reply.status == 200:
            body = reply.body if isinstance(reply, web.Response) else sent
            if isinstance(body, bytes):
                named = ((name.lower(), value) for name, value in reply.headers.items())
                headers = {name: value for name, value in named if name.startswith(_KEPT)}
                result = 200, headers, body.decode("latin-1")
        elif not charged:  # nothing was generated: it can be retried
            result = None
        return reply
    except (InputError, LedgerError, MarketError):  # nothing was sent
        result = None
        raise
    finally:
        kept_answer = orjson.dumps((*result, tokens())).decode() if result else None
        await asyncio.shield(asyncio.to_thread(owner.answered, name, kept_answer))


async def cost_of(owner: Owner, whose: tuple[str, ...]) -> web.Response:
    """The tokens that the request of this name was charged; null: unknown, or no such request has arrived."""
    for _ in range(_MISSING):
        kept = await asyncio.to_thread(owner.kept, _name(whose))
        if kept is None or kept.answer is not None:
            break
        await asyncio.sleep(0.05)  # it is in flight: its client may have left a moment ago
    tokens = orjson.loads(kept.answer)[-1] if kept and kept.answer else None
    return web.json_response({"object": "shadowprice.cost", "tokens": tokens})


def _name(whose: tuple[str, ...]) -> str:
    return sha256("\0".join(whose).encode(errors="replace")).hexdigest()
