"""What a worker holds of the ledger."""

import asyncio

import pytest

from shadowprice.accounts.sqlite import Settlement
from shadowprice.distributed.coordinator import SHORT, TAKEN, Reply
from shadowprice.distributed.leases import Leases
from shadowprice.engine.granted import Granted
from shadowprice.engine.progress import Progress
from shadowprice.errors import Overdrawn
from shadowprice.types import Request, Usage


def leases(replies, names=("a", "b"), most=2, **options):
    scheduler = Granted()
    scheduler.add([Request(name, name, max_tokens=20) for name in names])
    messages = []

    async def exchange(message):
        messages.append(message)
        return replies.pop(0)

    return Leases(Progress(100), exchange, scheduler, most=most, **options), messages


def test_work_is_sent_once_the_coordinator_has_given_its_units():
    async def main():
        held, messages = leases([Reply([5, TAKEN]), Reply([]), Reply([])])
        assert (held.available, held.next(100), held.open) == (0, None, True)
        supply = asyncio.create_task(held.supply())
        await asyncio.sleep(0.01)
        assert messages[0].wanted == [("a", 20), ("b", 20)]
        assert (held.available, held.ended, held.open) == (20, {"b"}, False)
        assert held.next(20).request.id == "a"
        (number,) = held.reserve_many([("a", 20)])
        assert held.available == 0
        held.settle_many([Settlement("void", number, 0, None, None)])
        assert held.available == 20  # it generated nothing, and is sent again
        (number,) = held.reserve_many([("a", 20)])
        held.settle_many([Settlement("settle", number, 7, Usage(7), b"{}")])
        held.finish()
        await supply
        assert messages[1].settled == [("a", 5, 7, Usage(7), b"{}", "result", 0)]
        assert (held.available, held.spent, held.ended) == (0, 7, {"a", "b"})

    asyncio.run(main())


def test_no_more_is_reserved_than_was_taken():
    async def main():
        held, _ = leases([])
        with pytest.raises(Overdrawn):
            held.reserve_many([("a", 20)])

    asyncio.run(main())


def test_no_more_is_taken_than_is_allowed():
    async def main():
        held, messages = leases([Reply([5])], allowance=25)
        supply = asyncio.create_task(held.supply())
        await asyncio.sleep(0.01)
        assert messages[0].wanted == [("a", 20)]
        supply.cancel()

    asyncio.run(main())


def test_what_is_not_affordable_stays_with_the_scheduler():
    async def main():
        held, messages = leases([Reply([SHORT, SHORT])])
        supply = asyncio.create_task(held.supply())
        await asyncio.sleep(0.01)
        assert len(messages) == 1
        assert not held.open
        assert [result.outcome for result in held.close()] == ["declined"] * 2
        supply.cancel()

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
        assert [result.outcome for result in held.close("stopped")] == ["failed"] * 2

    asyncio.run(main())
