"""Workers that serve blocks on leases from one coordinator, in one process: the same code runs under Ray."""

import asyncio

import numpy as np
import pytest

from shadowprice.accounts.sqlite import Ledger
from shadowprice.distributed.coordinator import Coordinator
from shadowprice.distributed.worker import ENDED, WAITS, Terms, serve
from shadowprice.engine.executor import Tolerance
from shadowprice.errors import Refused, Unavailable
from shadowprice.formats.results import parse_result
from shadowprice.types import Completion, Request


class Model:
    """Answers with as many words as the request asks for, and counts what it generated."""

    model = "m"

    def __init__(self, fault=None):
        self.fault, self.generated, self.asked, self.under_way, self.most = fault, 0, [], 0, 0

    def can_continue(self, body):
        return False

    async def complete(self, body, limit, *, continue_from=None, suffix=""):
        name = body["messages"][0]["content"]
        self.asked.append(name)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await asyncio.sleep(0.001)
            if self.fault and (error := self.fault(name, self.asked.count(name))):
                raise error
        finally:
            self.under_way -= 1
        tokens = min(limit, 10)
        self.generated += tokens
        text = "word " * tokens
        body = {"choices": [{"message": {"content": text}}]}
        return Completion(text, tokens, "stop" if tokens == 10 else "length", "server", body=body)

    async def close(self):
        pass


def requests(count, start=0):
    return [
        Request(f"q{i}", f"q{i}", body={"messages": [{"role": "user", "content": f"q{i}"}]})
        for i in range(start, start + count)
    ]


class Office:
    """A coordinator on a file, reached through awaitable messages."""

    def __init__(self, path, budget):
        self.path, self.messages = path, []
        Ledger.create(path, budget).close()
        self.coordinator = Coordinator(path)

    async def exchange(self, message):
        await asyncio.sleep(0.001)
        self.messages.append(message)
        return self.coordinator.exchange([message])[0]

    def restart(self):
        """What kill -9 and a new process come to: nothing is closed properly."""
        self.coordinator._ledger._store.close()
        self.coordinator = Coordinator(self.path)

    def results(self):
        self.coordinator.charge_lost()
        self.coordinator.close()
        with Ledger.reopen(self.path) as ledger:
            lines = {name: parse_result(line) for name, line in [*ledger.results(), *ledger.notes()]}
            return lines, ledger.spent, ledger.available


@pytest.fixture
def office(tmp_path):
    made = []

    def make(budget):
        made.append(Office(tmp_path / "ledger.sqlite", budget))
        return made[0]

    yield make
    for each in made:
        each.coordinator._ledger._store.close()


def run(office, model, some, grants, *, again=False, **terms):
    terms = Terms(office.coordinator.balance().budget, **{"concurrency": 8, **terms})
    return asyncio.run(serve(some, np.asarray(grants), model, office.exchange, terms, again=again))


def test_every_request_with_a_grant_is_answered_and_settled(office):
    office, model = office(1000), Model()
    grants = np.tile([20, 0, 5], 10)
    served = run(office, model, requests(30), grants)
    results, spent, available = office.results()
    assert len(results) == 20
    assert spent == model.generated == 10 * 10 + 10 * 5
    assert available == 1000 - spent
    assert {result.outcome for result in results.values()} == {"finished", "truncated"}
    assert np.array_equal(served.state, np.where(grants > 0, ENDED, WAITS))
    assert served.outcomes == {"finished": 10, "truncated": 10}
    assert model.most == 8


def test_no_more_is_held_than_may_be_under_way(office):
    office, model = office(10_000), Model()
    held, most = set(), 0
    exchange = office.exchange

    async def watched(message):
        nonlocal most
        reply = await exchange(message)
        held.difference_update(each.request for each in message.settled)
        held.update(name for (name, _), number in zip(message.wanted, reply.taken, strict=True) if number > 0)
        most = max(most, len(held))
        return reply

    office.exchange = watched
    run(office, model, requests(200), [10] * 200, concurrency=16)
    assert most == 16
    assert not held
    assert len(office.messages) < 100  # several requests in each message


def test_what_generated_nothing_is_repeated_and_what_is_unknown_is_charged(office):
    office = office(1000)

    def fault(name, attempt):
        if name == "q1" and attempt < 3:
            return Unavailable("busy", tokens=0)
        if name == "q2":
            return Unavailable("the connection was lost", tokens=None)
        if name == "q3":
            return Refused("too long")
        return None

    model = Model(fault)
    run(office, model, requests(5), [20] * 5, tolerance=Tolerance(pause=0.01))
    results, spent, _ = office.results()
    assert [results[f"q{i}"].outcome for i in range(5)] == ["finished", "finished", "failed", "failed", "finished"]
    assert model.asked.count("q1") == 3
    assert model.asked.count("q2") == 1
    assert spent == 3 * 10 + 20


def test_a_block_that_is_served_again_sends_nothing_twice(office):
    office, model = office(1000), Model()
    run(office, model, requests(10), [20] * 10)
    served = run(office, model, requests(20), [20] * 20, again=True)
    assert sorted(model.asked) == sorted(f"q{i}" for i in range(20))
    assert (served.state == ENDED).all()
    assert len(office.results()[0]) == 20


def test_requests_of_a_worker_that_died_are_charged_and_not_sent_again(office):
    office, model = office(1000), Model()

    async def dies():
        terms = Terms(1000, concurrency=4)
        task = asyncio.create_task(serve(requests(20), np.full(20, 20), model, office.exchange, terms))
        while len(model.asked) < 10:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(dies())
    run(office, model, requests(20), [20] * 20, again=True)
    results, spent, _ = office.results()
    assert len(model.asked) == len(set(model.asked))
    assert len(results) == 20
    lost = sum(result.outcome == "failed" for result in results.values())
    assert 0 < lost <= 4
    assert model.generated <= spent == 10 * (20 - lost) + 20 * lost


def test_a_coordinator_that_is_started_again_loses_nothing(office):
    office, model = office(10_000), Model()
    exchange, count = office.exchange, 0

    async def dies_often(message):
        """Every third message is lost, or its answer is; then it is sent again, as Ray does."""
        nonlocal count
        count += 1
        if count % 6 == 3:
            office.restart()
        if count % 6 == 0:
            await exchange(message)
            office.restart()
        return await exchange(message)

    office.exchange = dies_often
    served = run(office, model, requests(100), [20] * 100)
    results, spent, _ = office.results()
    assert count > 12
    assert len(results) == 100
    assert (served.state == ENDED).all()
    assert len(model.asked) == 100
    assert spent == model.generated == 1000


def test_what_the_budget_does_not_cover_waits(office):
    office, model = office(55), Model()
    served = run(office, model, requests(10), [20] * 10, concurrency=1)
    results, spent, _ = office.results()
    assert spent == model.generated == 40
    assert len(results) == 4
    assert np.count_nonzero(served.state == WAITS) == 6


def test_a_job_that_is_stopped_sends_nothing_more_and_gives_back_what_it_took(office):
    office = office(1000)
    model = Model(lambda name, attempt: office.coordinator.stop("enough") if name == "q5" else None)
    served = run(office, model, requests(40), [20] * 40, concurrency=4)
    results, spent, available = office.results()
    assert served.stopped == "enough"
    assert len(model.asked) < 15
    assert spent == model.generated == 10 * len(results)
    assert available == 1000 - spent
    assert np.count_nonzero(served.state == ENDED) == len(results)


def test_servers_whose_word_is_not_enough_stop_the_job(office):
    office = office(1000)
    model = Model(lambda name, attempt: Refused("no"))
    served = run(office, model, requests(200), [20] * 200, concurrency=4)
    assert "cost nothing" in served.stopped
    assert len(model.asked) < 20
