"""What each route was charged: with every restart, and whatever comes of the attempts, the sums are what was spent."""

import asyncio
import random
from collections import Counter
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice import Forecast, Request
from shadowprice.accounts.sqlite import Ledger, Settlement
from shadowprice.backends.base import ATTEMPT, response
from shadowprice.cost import Rates
from shadowprice.engine.executor import Channel, Progress, Tolerance, execute
from shadowprice.engine.routed import Routed
from shadowprice.errors import Refused, Unavailable
from shadowprice.formats.results import ROUTES, chunk_line, parse_result, parse_routes
from shadowprice.formats.routes import Route
from shadowprice.run_folder import restore
from shadowprice.types import Completion

ROUTE = {
    "one": Route("one", Rates.dollars("1", "1"), "http://one/v1"),
    "two": Route("two", Rates.dollars("2", "3", "0.5"), "http://two/v1"),
}
NAMES, CAP, AMPLE = [*ROUTE], 200, 10**12
FAST = Tolerance(patience=0.02, pause=0.001)


class Killed(BaseException):
    """What kill -9 does to an execution."""


class Servers:
    """Both routes. They know which attempt each request to them is, and so which route its reservation was for."""

    def __init__(self, ends, *, counts=True, continues=True, fails=0.0, seed=0):
        self.ends, self.counts, self.continues, self.fails = ends, counts, continues, fails
        self.random, self.kill_at = random.Random(seed), -1
        self.route_of: dict[int, str] = {}  # by reservation
        self.requests = [
            Request(f"r{i}", "", body={"messages": [{"role": "user", "content": f"{i}"}]}) for i in range(len(ends))
        ]

    async def complete(self, name, body, limit, so_far):
        reservation = int(ATTEMPT.get().rpartition("-")[2])
        assert reservation not in self.route_of
        self.route_of[reservation] = name
        await asyncio.sleep(0)
        self.kill_at -= 1
        if not self.kill_at:
            raise Killed
        if self.random.random() < self.fails:
            lost, busy = Unavailable("lost", tokens=None), Unavailable("busy", tokens=0)
            raise self.random.choice([lost, lost, busy, Refused("no")])
        age = so_far.tokens if so_far else 0
        rest = self.ends[int(body["messages"][0]["content"])] - age
        tokens, finish = min(rest, limit), "stop" if rest <= limit else "length"
        form = response(body, name="r", model="m", text="x" * tokens, finish=finish, tokens=tokens)
        read = 9 + age if self.counts else 0
        return Completion("x" * tokens, tokens, finish, "server", body=form, input_tokens=read)

    def channels(self):
        return {name: Channel(_Server(self, name), route.rates) for name, route in ROUTE.items()}

    def scheduler(self, samples=1, spread=0.3):
        says = {name: lambda request: self.continues for name in NAMES}
        scheduler = Routed([*ROUTE.values()], max_tokens=CAP, attempts=2, samples=samples, can_continue=says)
        n = len(self.ends)
        forecasts = [Forecast(np.full(n, 60.0), spread, solve) for solve in (0.5, 0.8)]
        scheduler.add(self.requests, forecasts, voted=[samples > 1] * n)
        return scheduler


class _Server:
    model = ""

    def __init__(self, servers, name):
        self.servers, self.name = servers, name

    def can_continue(self, body):
        return self.servers.continues

    async def complete(self, body, limit, *, continue_from=None, suffix=""):
        return await self.servers.complete(self.name, body, limit, continue_from)


def executed(servers, ledger, *, samples=1, spread=0.3, stop_at=None):
    """One execution, that of a resumed run if the ledger has something; returns its scheduler."""
    scheduler, progress = servers.scheduler(samples, spread), Progress(ledger.budget)
    restore(scheduler, ledger, servers.requests, progress, vote=lambda name, answer: str(answer.tokens % 3))

    def event(progress):
        if stop_at is not None and len(servers.route_of) >= stop_at:
            progress.stop("enough")

    options: dict[str, Any] = {"concurrency": 3, "attempts": 2, "tolerance": FAST, "name": "run", "progress": progress}
    vote = (lambda name, answer: str(answer.tokens % 3)) if samples > 1 else None
    asyncio.run(execute(scheduler, ledger, servers.channels(), vote=vote, on_event=event, **options))
    return scheduler


def by_route_in(ledger, servers):
    """What the ledger was charged, by the route that got each attempt."""
    units = Counter()
    for entry in ledger.entries():
        if entry.reservation is not None:
            units[servers.route_of[entry.reservation]] += entry.units
    return units


def by_route_of(results):
    units = Counter()
    for result in results:
        units.update(result.extra.get("charged", {}))
    return units


def results_in(ledger, servers):
    lines = [ledger.line(request.id) for request in servers.requests]
    assert None not in lines
    return [parse_result(line) for line in lines]


def killed_and_resumed(path, servers, budget, kills, **options):
    Ledger.create(path, budget).close()
    for kill_at in [*kills, -1]:
        servers.kill_at = kill_at
        with Ledger.reopen(path) as ledger:
            try:
                return executed(servers, ledger, **options)
            except Killed:
                pass
    raise AssertionError


@settings(max_examples=60, deadline=None)
@given(
    ends=st.lists(st.integers(1, 300), min_size=1, max_size=6),
    share=st.sampled_from([0.05, 0.3, 1.0, 3.0]),
    counts=st.booleans(),
    continues=st.booleans(),
    fails=st.sampled_from([0.0, 0.2, 0.6]),
    samples=st.sampled_from([1, 3]),
    kills=st.lists(st.integers(1, 12), max_size=3),
    seed=st.integers(0, 10**6),
)
def test_the_sums_by_route_are_what_was_spent_whatever_fails_is_lost_or_is_killed(
    tmp_path_factory, ends, share, counts, continues, fails, samples, kills, seed
):
    servers = Servers(ends, counts=counts, continues=continues, fails=fails, seed=seed)
    budget = int(share * sum(ROUTE["two"].rates.bound(100, end) for end in ends))
    path = tmp_path_factory.mktemp("run") / "ledger.sqlite"
    scheduler = killed_and_resumed(path, servers, budget, kills, samples=samples)
    with Ledger.reopen(path) as ledger:
        results, true = results_in(ledger, servers), by_route_in(ledger, servers)
        assert +by_route_of(results) == +true
        assert +Counter(scheduler.units) == +true
        assert sum(true.values()) == ledger.spent == sum(result.cost for result in results)


def test_where_prompts_are_not_counted_a_stored_part_is_charged_what_the_ledger_was_charged(tmp_path):
    servers = Servers([150] * 4, counts=False)
    killed_and_resumed(tmp_path / "ledger.sqlite", servers, AMPLE, [7], spread=0.02)
    with Ledger.reopen(tmp_path / "ledger.sqlite") as ledger:
        assert list(ledger.chunks()), "answers were cut"
        results = results_in(ledger, servers)
        assert {result.outcome for result in results} == {"finished"}
        assert by_route_of(results).total() == ledger.spent
        for result in results:
            assert sum(result.extra["charged"].values()) == result.cost


def test_a_run_that_is_stopped_says_what_each_route_was_charged_for_requests_that_it_did_not_send(tmp_path):
    servers = Servers([150] * 4, fails=1.0)
    servers.random.choice = lambda errors: errors[0]  # all are lost
    with Ledger.create(tmp_path / "ledger.sqlite", AMPLE) as ledger:
        executed(servers, ledger, stop_at=3)
        results = results_in(ledger, servers)
        assert {result.outcome for result in results} <= {"failed", "not_sent"}
        assert by_route_of(results) == by_route_in(ledger, servers)
        assert by_route_of(results).total() == ledger.spent > 0
        executed(servers, ledger)
        results = results_in(ledger, servers)
        assert {result.outcome for result in results} == {"failed"}
        assert +by_route_of(results) == by_route_in(ledger, servers)


def test_a_request_that_is_declined_after_an_attempt_was_lost_says_what_that_was_charged(tmp_path):
    servers = Servers([150])
    killed_and_resumed(tmp_path / "ledger.sqlite", servers, 400_000, [1])
    with Ledger.reopen(tmp_path / "ledger.sqlite") as ledger:
        (result,) = results_in(ledger, servers)
        assert (result.outcome, result.completion) == ("declined", None)
        assert result.cost == ledger.spent > 0
        assert sum(result.extra["charged"].values()) == ledger.spent


def test_a_request_that_was_never_sent_names_no_route():
    servers = Servers([150])
    with Ledger.in_memory(10) as ledger:
        executed(servers, ledger)
        (result,) = results_in(ledger, servers)
        assert (result.outcome, result.extra) == ("declined", {})


def test_where_the_ledger_does_not_know_routes_parts_are_charged_by_their_usage():
    """It is one of an older version, or lost its latest entries."""
    servers = Servers([150])
    part = Completion("x" * 20, 20, "length", "server", body={"choices": []}, input_tokens=9)
    with Ledger.in_memory(AMPLE) as ledger:
        line = chunk_line(part, sample=0, landing=False, route="two")
        ledger.settle_many([Settlement("chunk", ledger.reserve("r0", 10**6), 10**6, part.usage, line)])
        scheduler = servers.scheduler()
        restore(scheduler, ledger, servers.requests, Progress(AMPLE), vote=lambda name, answer: None)
        assert scheduler.units == {"one": 0, "two": ROUTE["two"].rates.cost(part.usage)}
        (result,) = scheduler.close()
        assert result.cost == 10**6


def test_the_note_on_routes_is_written_with_the_reservations_that_it_names(tmp_path):
    servers = Servers([50] * 3)
    with Ledger.create(tmp_path / "ledger.sqlite", AMPLE) as ledger:
        executed(servers, ledger)
        kinds = {entry.id: entry.kind for entry in ledger.entries()}
        notes = [entry.id for entry in ledger.entries() if entry.request == ROUTES]
        named = [parse_routes(line) for line in ledger.notes_on(ROUTES)]
    assert {number: route for note in named for number, route in note.items()} == servers.route_of
    assert sorted(servers.route_of) == [number for number, kind in kinds.items() if kind == "reserve"]
    for number, note in zip(notes, named, strict=True):
        assert sorted(note) == list(range(number - len(note), number))
