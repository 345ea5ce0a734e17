"""A crash costs what was under way, and no more: the sum of open reservations at any moment is what it would charge."""

from __future__ import annotations

import asyncio

import pytest

from shadowprice import Forecast, RecordedBackend, Request, Trace
from shadowprice.accounts.sqlite import Ledger
from shadowprice.engine import Settings, make_scheduler
from shadowprice.engine.executor import Progress, Tolerance, execute
from shadowprice.errors import Unavailable

N, LENGTH = 40, 1000


class Watched(RecordedBackend):
    """Notes what is reserved whenever it is asked; fails as often as told first."""

    def __init__(self, ledger, failures=0):
        super().__init__(Trace(f"q{i}", f"q{i}", LENGTH, response="word " * LENGTH) for i in range(N))
        self.ledger, self.failures, self.limits, self.waiting = ledger, failures, [], []

    async def complete(self, body, limit, **more):
        await asyncio.sleep(0)
        if self.failures:
            self.failures -= 1
            raise Unavailable("503: loading", tokens=0, cause="503")
        self.limits.append(limit)
        return await super().complete(body, limit, **more)


def executed(settings, failures=0, concurrency=8):
    requests = [Request(f"q{i}", f"q{i}", body={"prompt": f"q{i}"}) for i in range(N)]
    scheduler = make_scheduler(settings, lambda request: True)
    scheduler.add(requests, Forecast([float(LENGTH)] * N, 0.5, 0.9))
    ledger = Ledger.in_memory(N * LENGTH)
    backend = Watched(ledger, failures)

    def event(progress: Progress) -> None:
        if progress.waiting:
            backend.waiting.append((progress.running, ledger.reserved))

    tolerance = Tolerance(pause=0.01)
    asyncio.run(execute(scheduler, ledger, backend, concurrency=concurrency, tolerance=tolerance, on_event=event))
    return backend


@pytest.mark.parametrize("policy", ["index", "expected", "uniform"])
def test_answers_that_can_be_continued_are_under_way_in_pieces_of_256_tokens_at_most(policy):
    backend = executed(Settings(policy, "metered", max_tokens=2000))
    assert max(backend.limits) <= 256
    assert sum(backend.limits) >= N * LENGTH


def test_an_answer_that_cannot_be_continued_is_under_way_as_a_whole():
    backend = executed(Settings("uniform", max_tokens=2000))
    assert max(backend.limits) == LENGTH


def test_during_an_outage_nothing_is_reserved_but_the_probe():
    backend = executed(Settings("uniform", max_tokens=2000), failures=12)
    assert backend.waiting
    assert {reserved for running, reserved in backend.waiting if not running} == {0}
    assert max(reserved for running, reserved in backend.waiting if running == 1) == LENGTH
