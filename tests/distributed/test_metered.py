"""Metered accounting in rounds: one price for all shares, and no unit spent twice."""

import asyncio
import zlib

import numpy as np
import pytest

from shadowprice.accounts.sqlite import Ledger
from shadowprice.distributed.coordinator import Coordinator
from shadowprice.distributed.metered import Demand, allowances, demand_of, price_of
from shadowprice.distributed.worker import Share, Terms
from shadowprice.engine.metered import Metered
from shadowprice.formats.results import parse_result
from shadowprice.types import Completion, Forecast, Request


def demand(*chunks):
    index, cost = zip(*chunks, strict=True)
    return Demand(np.array(index, dtype=float), np.array(cost, dtype=float))


def test_all_shares_have_one_price():
    shares = [demand((0.9, 100), (0.5, 100), (0.1, 100)), demand((0.8, 100), (0.2, 100))]
    assert price_of(shares, 250) == 0.5
    assert price_of(shares, 10_000) == 0.0


def test_units_go_where_chunks_are_worth_the_price():
    shares = [demand((0.9, 100), (0.5, 100)), demand((0.8, 100), (0.01, 900)), demand((0.001, 50))]
    price, units = allowances(shares, 150, 300)
    assert price == 0.01 or price == 0.5
    price, units = allowances(shares, 150, 299)
    assert (price, units) == (0.5, [100, 50, 0])
    assert sum(allowances(shares, 151, 299)[1]) == 151


def test_many_chunks_are_put_together_without_losing_tokens():
    rng = np.random.default_rng(0)
    scheduler = Metered(max_tokens=4000)
    requests = [Request(f"r{i}", "") for i in range(3000)]
    scheduler.add(requests, Forecast(rng.uniform(50, 900, 3000), 0.6, rng.uniform(0.1, 1, 3000)))
    whole, short = scheduler.waiting_chunks(), demand_of(scheduler)
    assert short.index.size <= 4096 < len(whole)
    assert short.cost.sum() == pytest.approx(whole.cost.sum())
    assert (np.diff(short.index) <= 0).all()
    tokens = 0.3 * whole.cost.sum()
    assert price_of([short], tokens) == pytest.approx(whole.price(tokens), rel=0.02)


class Storyteller:
    """Continues its answers; how long they are depends on the question alone."""

    model = "m"

    def __init__(self):
        self.generated = 0

    def can_continue(self, body):
        return True

    async def complete(self, body, limit, *, continue_from=None, suffix=""):
        await asyncio.sleep(0.0005)
        whole = 20 + zlib.crc32(body["messages"][0]["content"].encode()) % 400
        done = continue_from.tokens if continue_from else 0
        count = min(limit, whole - done)
        self.generated += count
        text = "w " * count
        response = {"choices": [{"message": {"content": text}}], "usage": {"prompt_tokens": 1}}
        return Completion(text, count, "stop" if done + count == whole else "length", "server", body=response)


@pytest.mark.parametrize("dies", [False, True])
def test_shares_spend_one_budget_in_rounds(tmp_path, dies):
    budget, path = 8000, tmp_path / "ledger.sqlite"
    Ledger.create(path, budget).close()
    coordinator, model = Coordinator(path), Storyteller()
    terms = Terms(budget, concurrency=8)
    rng = np.random.default_rng(0)
    forecasts = [Forecast(rng.uniform(50, 300, 50), 0.5, rng.uniform(0.3, 1, 50)) for _ in range(2)]

    async def exchange(message):
        await asyncio.sleep(0.0005)
        return coordinator.exchange([message])[0]

    def share(at, again=False):
        body = [{"messages": [{"role": "user", "content": f"q{at}-{i}"}]} for i in range(50)]
        requests = [Request(f"q{at}-{i}", "", body=body[i]) for i in range(50)]
        return Share(requests, forecasts[at], model, exchange, terms, again=again)

    async def main():
        shares = [share(0), share(1)]
        ended = await asyncio.gather(*(each.round(0) for each in shares))
        for number in range(8):
            if (available := coordinator.charge_lost().available) <= 0:
                break
            units = available // 2 if number < 3 else available
            _, allowed = allowances([each.demand for each in ended], units, available)
            if dies and number == 1:  # in mid-round; another process continues from the ledger
                task = asyncio.create_task(shares[0].round(allowed[0]))
                before = model.generated
                while model.generated < before + 200:
                    await asyncio.sleep(0.0002)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                shares[0] = share(0, again=True)
                shares[0].restore(coordinator.parts({f"q0-{i}" for i in range(50)}))
            ended = await asyncio.gather(*(each.round(some) for each, some in zip(shares, allowed, strict=True)))
            assert dies or sum(each.spent for each in ended) == units
        await asyncio.gather(*(each.round(0, last=True) for each in shares))

    asyncio.run(main())
    coordinator.close()
    with Ledger.reopen(path) as ledger:
        results = [parse_result(line) for _, line in [*ledger.results(), *ledger.notes()]]
        assert len(results) == 100
        outcomes = [result.outcome for result in results]
        assert ledger.overspent == 0
        assert model.generated <= ledger.spent <= budget
        lost = budget - model.generated
        assert lost <= 8 * 256 if dies else lost == 0
    assert outcomes.count("finished") > 20
    assert outcomes.count("declined") > 20
    assert outcomes.count("failed") <= 8 * dies
