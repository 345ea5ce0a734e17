"""The covers that Ray makes processes of, without Ray."""

import asyncio

import numpy as np
import pytest

from shadowprice.accounts.sqlite import Ledger
from shadowprice.cost import TOKENS, Rates
from shadowprice.distributed.actors import CoordinatorActor, ShardActor, numbers_in
from shadowprice.distributed.coordinator import Message
from shadowprice.market.sharded import allocate_shards
from shadowprice.market.shards import LocalShards
from shadowprice.types import Forecast

pyarrow = pytest.importorskip("pyarrow")


def test_messages_that_arrive_together_are_written_together(tmp_path):
    path = tmp_path / "ledger.sqlite"
    Ledger.create(path, 100).close()
    actor = CoordinatorActor(str(path), {})
    sizes, exchange = [], actor._inner.exchange

    def counted(messages):
        sizes.append(len(messages))
        return exchange(messages)

    actor._inner.exchange = counted

    async def main():
        replies = await asyncio.gather(*(actor.exchange(Message([], [(f"r{i}", 5)])) for i in range(8)))
        assert len({reply.taken[0] for reply in replies}) == 8
        assert (await actor.balance()).reserved == 40
        await actor.close()

    asyncio.run(main())
    assert sizes == [8]


def test_an_error_of_the_ledger_reaches_every_worker(tmp_path):
    path = tmp_path / "ledger.sqlite"
    Ledger.create(path, 100).close()
    actor = CoordinatorActor(str(path), {})

    async def main():
        await actor.close()
        replies = await asyncio.gather(
            *(actor.exchange(Message([], [("a", 5)])) for _ in range(3)), return_exceptions=True
        )
        assert all("closed" in str(reply) for reply in replies)

    asyncio.run(main())


def table(rng, size, prompt=0.0):
    forecast = Forecast(rng.uniform(20, 400, size), 0.4, rng.uniform(0.2, 1, size))
    from shadowprice.distributed.tables import forecast_columns

    numbers = {"cap": np.full(size, 500.0), "prompt": np.full(size, prompt), "name": np.arange(size, dtype=np.uint64)}
    return numbers_in(pyarrow.table({**forecast_columns(forecast), **numbers}))


@pytest.mark.parametrize("rates", [TOKENS, Rates.dollars("1", "2")])
def test_a_shard_grants_whole_tokens_to_rows_that_wait(rates):
    rng = np.random.default_rng(0)
    actors = [ShardActor(table(rng, 30, 10.0), table(rng, 20, 10.0)), ShardActor(table(rng, 50, 10.0))]
    ended = [[np.arange(30) < 5, np.zeros(20, dtype=bool)], [np.zeros(50, dtype=bool)]]
    assert [actor.build(rates, some) for actor, some in zip(actors, ended, strict=True)] == [45, 50]
    allocate_shards(LocalShards([actor._shard for actor in actors]), 6000)
    grants = [block for actor in actors for block in actor.grants()]
    assert [len(block) for block in grants] == [30, 20, 50]
    assert not grants[0][:5].any()
    total = sum(int(block.sum()) for block in grants)
    first = 0 if not rates.priced else 5 * sum(int(np.count_nonzero(block)) for block in grants)
    assert 5000 < total + first <= 6000
