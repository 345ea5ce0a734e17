"""Attempts that were in flight when their run crashed or was cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from shadowprice.accounts.sqlite import Ledger
from shadowprice.engine._attempts import attempt_name
from shadowprice.types import Usage


async def settle_lost(
    ledger: Ledger, backend: object, execution: str, bodies: Mapping[str, Mapping[str, Any]], *, priced: bool
) -> None:
    """Charges what the server says that they cost, if it records attempts; otherwise their whole grants.

    backend    the backend; a routing of several is not asked
    execution  the name of the execution that sent them
    bodies     of the requests, by id
    priced     whether prompts cost, too: the server does not record those
    """
    cost_of = getattr(backend, "cost_of", None)
    if cost_of and execution:
        lost = ledger.open_reservations()
        asked = [(number, bodies[name]) for name, (number, _) in lost.items() if name in bodies]
        costs = await asyncio.gather(*(cost_of(body, attempt_name(execution, number)) for number, body in asked))
        for (number, _), tokens in zip(asked, costs, strict=True):
            if tokens == 0:
                ledger.free(number)
            elif tokens is not None and not priced:
                ledger.settle(number, tokens, Usage(output=tokens))
    ledger.charge_lost()
