"""An outage costs nothing but time: no token is charged for it, and the same requests are answered."""

from __future__ import annotations

import asyncio
import itertools
import random

import numpy as np
import pytest

from shadowprice import Forecast, Request
from shadowprice.accounts.sqlite import Ledger
from shadowprice.backends.base import response
from shadowprice.engine import Settings, make_scheduler
from shadowprice.engine.executor import Progress, execute
from shadowprice.errors import Refused, Unavailable
from shadowprice.types import Completion
from tests.simulator.clock import VirtualLoop

N = 200
NUMBERS = itertools.count()
CAUSES = {
    "503": lambda: Unavailable("503: overloaded", tokens=0, cause="503"),
    "429": lambda: Unavailable("429: slow down", tokens=0, cause="429", delay=1.0),
    "a login page": lambda: Unavailable("not a completion", tokens=0, cause="not a completion (text/html)"),
    "connection refused": lambda: Unavailable("no connection", tokens=0, cause="connection refused", sent=False),
    "another reason each time": lambda: Unavailable("429", tokens=0, cause=f"429: {next(NUMBERS)}"),
}
SETTINGS = {
    "reserved": Settings("expected", max_tokens=400),
    "metered": Settings("index", "metered", max_tokens=400),
}


class Server:
    """Generates 100 tokens a second per request, and is down for a while."""

    model = "m"

    def __init__(self, lengths, cause=None, start=2.0, seconds=0.0):
        self.lengths, self.cause, self.start, self.end = lengths, cause, start, start + seconds
        self.generated = self.calls = 0

    def can_continue(self, body):
        return True

    async def complete(self, body, limit, *, continue_from=None, suffix=""):
        self.calls += 1
        now = asyncio.get_running_loop().time
        if self.cause and self.start <= now() < self.end:
            await asyncio.sleep(0.005)
            raise self.cause()
        done = continue_from.tokens if continue_from else 0
        length = self.lengths[body["prompt"]]
        tokens = min(limit, length - done)
        await asyncio.sleep(tokens / 100)
        self.generated += tokens
        finish = "stop" if done + tokens == length else "length"
        form = response(body, name="r", model="m", text="x", finish=finish, tokens=tokens)
        return Completion("x" * tokens, tokens, finish, "server", body=form)

    async def close(self):
        pass


def answered(settings, server, lengths, concurrency, budget=N * 60):
    """How many were answered to the end, the ledger, and the progress."""
    rng = random.Random(1)
    forecast = Forecast([length * rng.lognormvariate(0, 0.5) for length in lengths.values()])
    scheduler = make_scheduler(settings, lambda request: server.can_continue(request.body))
    scheduler.add([Request(name, name, body={"prompt": name}) for name in lengths], forecast)
    ledger = Ledger.in_memory(budget)
    progress = Progress(ledger.budget)
    loop = VirtualLoop(rng, shuffle=False, on_step=lambda: None)
    server.start += loop.time()
    server.end += loop.time()
    try:
        loop.run_until_complete(execute(scheduler, ledger, server, concurrency=concurrency, progress=progress))
    finally:
        loop.close()
    return progress.outcomes["finished"], ledger, progress


@pytest.fixture(scope="module")
def lengths():
    rng = random.Random(0)
    return {f"q{i}": max(1, min(400, int(rng.lognormvariate(4.5, 0.8)))) for i in range(N)}


@pytest.mark.parametrize("concurrency", [8, 64])
@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize("accounting", SETTINGS)
def test_an_outage_costs_no_tokens_and_hardly_an_answer(lengths, accounting, cause, concurrency):
    settings = SETTINGS[accounting]
    undisturbed, _, _ = answered(settings, Server(lengths), lengths, concurrency)
    assert undisturbed > 50
    for seconds in (1, 10, 60):
        server = Server(lengths, CAUSES[cause], seconds=seconds)
        finished, ledger, progress = answered(settings, server, lengths, concurrency)
        assert progress.stopped == ""
        assert progress.outcomes["failed"] == 0
        assert ledger.spent == server.generated
        assert finished >= undisturbed * 0.98
        assert sum(progress.outcomes.values()) == N


@pytest.mark.parametrize("accounting", SETTINGS)
def test_an_outage_at_the_start_is_waited_out_as_well(lengths, accounting):
    settings = SETTINGS[accounting]
    undisturbed, _, _ = answered(settings, Server(lengths), lengths, 8)
    for cause in CAUSES.values():
        server = Server(lengths, cause, start=0.0, seconds=10)
        finished, ledger, progress = answered(settings, server, lengths, 8)
        assert (progress.stopped, progress.outcomes["failed"]) == ("", 0)
        assert ledger.spent == server.generated
        assert finished >= undisturbed * 0.98


AT_FAULT = {
    "a page": lambda: Unavailable("not a completion", tokens=0, cause="not a completion (text/html)"),
    "500": lambda: Unavailable("500: cannot parse", tokens=None, cause="500: cannot parse"),
}


@pytest.mark.parametrize("fault", AT_FAULT)
@pytest.mark.parametrize("shown", [True, None], ids=["continues", "may continue"])
@pytest.mark.parametrize("settings", [*SETTINGS.values(), Settings("auto", max_tokens=400)], ids=lambda s: s.policy)
def test_requests_that_always_fail_do_not_keep_the_others_from_being_answered(lengths, settings, shown, fault):
    """Also if they come first, and if nothing else is sent before one of them is answered."""
    bad = {f"q{i}" for i in np.argsort([*lengths.values()])[:4]}

    class Blocks(Server):
        shown_so_far = shown

        def can_continue(self, body):
            return self.shown_so_far

        async def complete(self, body, limit, **more):
            if body["prompt"] in bad:
                self.calls += 1
                await asyncio.sleep(0.005)
                raise AT_FAULT[fault]()
            found = await super().complete(body, limit, **more)
            self.shown_so_far = True if more.get("continue_from") else self.shown_so_far
            return found

    server = Blocks(lengths)
    finished, ledger, progress = answered(settings, server, lengths, 8, budget=400 * N)
    assert finished >= N - 4
    assert progress.outcomes["failed"] == 4
    if fault == "a page":
        assert ledger.spent == server.generated


def test_a_server_that_takes_longer_than_the_patience_ends_the_run_resumably(lengths):
    server = Server(lengths, CAUSES["503"], seconds=3600)
    _, ledger, progress = answered(SETTINGS["reserved"], server, lengths, 8)
    assert progress.stopped.startswith("the server has been unavailable for 5 min: 503")
    assert ledger.spent == server.generated
    assert progress.outcomes["declined"] == 0
    assert sum(progress.outcomes.values()) == N


def test_a_server_that_refuses_requests_is_believed_for_a_share_of_the_budget(lengths):
    """It could generate before it refuses."""

    class Refuses(Server):
        async def complete(self, body, limit, **more):
            await asyncio.sleep(0.01)
            raise Refused("400: too long", tokens=0, cause="400")

    scheduler = Settings("uniform", max_tokens=400)
    _, ledger, progress = answered(scheduler, Refuses(lengths), lengths, 4)
    assert "12,000" not in progress.stopped
    assert "more than --exposure allows; the last: 400: too long" in progress.stopped
    assert 0.1 * ledger.budget < ledger.exposed <= 0.1 * ledger.budget + 2 * 4 * 60
    assert progress.outcomes["failed"] * 60 == ledger.exposed
