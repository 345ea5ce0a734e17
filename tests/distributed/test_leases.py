"""What a worker holds of the ledger."""

import asyncio

import pytest

from shadowprice.accounts.sqlite import Settlement
from shadowprice.distributed.coordinator import TAKEN, Reply
from shadowprice.distributed.leases import Leases
from shadowprice.engine.executor import Progress
from shadowprice.engine.granted import Granted
from shadowprice.errors import Overdrawn
from shadowprice.types import Request, Usage


def leases(replies, names=("a", "b"), most=2):
    scheduler = Granted()
    scheduler.add([Request(name, name, max_tokens=20) for name in names])
    messages = []

    async def exchange(message):
        messages.append(message)
        return replies.pop(0)

    return Leases(Progress(100), exchange, scheduler, names, range(len(names)), most=most), messages


def test_units_are_there_once_the_coordinator_has_answered():
    async def main():
        held, messages = leases([Reply([5, TAKEN]), Reply([])])
        assert held.available == 0
        assert held.open
        supply = asyncio.create_task(held.supply())
        await asyncio.sleep(0.01)
        assert messages[0].wanted == [("a", 20), ("b", 20)]
        assert (held.available, held.skipped, held.open) == (20, {1: TAKEN}, False)
        (number,) = held.reserve_many([("a", 20)])
        assert held.available == 0
        held.settle_many([Settlement("void", number, 0, None, None)])
        assert held.available == 20  # it generated nothing, and is sent again
        (number,) = held.reserve_many([("a", 20)])
        held.settle_many([Settlement("settle", number, 7, Usage(7), b"{}")])
        await supply
        assert messages[1].settled == [("a", 5, 7, Usage(7), b"{}", True, 0)]
        assert (held.available, held.spent, held.ended) == (0, 7, {"a"})

    asyncio.run(main())


def test_no_more_is_reserved_than_was_taken():
    async def main():
        held, _ = leases([])
        with pytest.raises(Overdrawn):
            held.reserve_many([("a", 20)])

    asyncio.run(main())


def test_what_was_not_sent_is_given_back():
    async def main():
        held, messages = leases([Reply([5, 6]), Reply([])])
        supply = asyncio.create_task(held.supply())
        await asyncio.sleep(0.01)
        held.finish()
        await supply
        assert [(each.request, each.units, each.line) for each in messages[1].settled] == [
            ("a", 0, None),
            ("b", 0, None),
        ]
        assert not held.ended

    asyncio.run(main())
