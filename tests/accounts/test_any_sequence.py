"""Any sequence of operations leaves a ledger with the balances that a model keeps by hand."""

import shutil
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from shadowprice.accounts.sqlite import Ledger, Settlement
from shadowprice.errors import LedgerError, Overdrawn
from shadowprice.types import Usage

from .conftest import MEMORY, balances, crash

REQUESTS = ["a", "b", "c", "d", "e"]
requests = st.sampled_from(REQUESTS)
grants = st.integers(1, 40)
costs = st.integers(0, 60)
usages = st.builds(Usage, st.integers(0, 60), st.integers(0, 60), st.integers(0, 60))
lines = st.binary(max_size=5)


class MemoryMachine(RuleBasedStateMachine):
    """A ledger in memory beside a model that pays one unit at a time."""

    reservations = Bundle("reservations")

    def make(self, budget):
        self.ledger = Ledger.in_memory(budget)

    @initialize(budget=st.integers(0, 120))
    def create(self, budget):
        self.make(budget)
        self.budget = self.available = budget
        self.spent = self.debt = self.beyond = self.exposed = 0
        self.usage = Usage()
        self.open: dict[int, tuple[str, int]] = {}
        self.results: dict[str, bytes] = {}
        self.chunks: list[tuple[str, bytes]] = []
        self.notes: dict[str, bytes] = {}
        self.rows = 1

    def end(self, reservation, units, usage=None):
        _, grant = self.open.pop(reservation)
        purse = self.available + grant
        paid = min(purse, self.debt + units)
        self.available, self.spent, self.debt = purse - paid, self.spent + paid, self.debt + units - paid
        self.beyond += max(0, units - grant)
        self.usage += usage or Usage()
        self.rows += 1

    def answer(self, request, result):
        self.results[request] = result
        self.notes.pop(request, None)

    @rule(target=reservations, items=st.lists(st.tuples(requests, grants), max_size=3))
    def reserve_many(self, items):
        if sum(units for _, units in items) > self.available:
            with pytest.raises(Overdrawn):
                self.ledger.reserve_many(items)
            return multiple()
        numbers = self.ledger.reserve_many(items)
        for number, (request, units) in zip(numbers, items, strict=True):
            assert number not in self.open
            self.open[number] = request, units
            self.available -= units
        self.rows += len(items)
        return multiple(*numbers)

    @rule(target=reservations, request=requests, units=grants)
    def reserve(self, request, units):
        if units > self.available:
            with pytest.raises(Overdrawn):
                self.ledger.reserve(request, units)
            return multiple()
        number = self.ledger.reserve(request, units)
        self.open[number] = request, units
        self.available -= units
        self.rows += 1
        return number

    @rule(reservation=reservations, units=costs, usage=usages, result=st.none() | lines)
    def settle(self, reservation, units, usage, result):
        request, _ = self.open.get(reservation, ("", 0))
        if reservation not in self.open or (result is not None and request in self.results):
            with pytest.raises(LedgerError):
                self.ledger.settle(reservation, units, usage, result)
            return
        self.ledger.settle(reservation, units, usage, result)
        self.end(reservation, units, usage)
        if result is not None:
            self.answer(request, result)

    @rule(reservation=reservations, units=costs, usage=usages, chunk=lines)
    def settle_chunk(self, reservation, units, usage, chunk):
        request, _ = self.open.get(reservation, ("", 0))
        if reservation not in self.open or request in self.results:
            with pytest.raises(LedgerError):
                self.ledger.settle_chunk(reservation, units, usage, chunk)
            return
        self.ledger.settle_chunk(reservation, units, usage, chunk)
        self.end(reservation, units, usage)
        self.chunks.append((request, chunk))

    @rule(reservation=consumes(reservations))
    def void(self, reservation):
        if reservation not in self.open:
            with pytest.raises(LedgerError):
                self.ledger.void(reservation)
            return
        self.ledger.void(reservation)
        self.end(reservation, 0)

    @rule(reservation=consumes(reservations), many=st.booleans())
    def free(self, reservation, many):
        def act():
            if many:
                self.ledger.settle_many([Settlement("free", reservation, 0, None, None)])
            else:
                self.ledger.free(reservation)

        if reservation not in self.open:
            with pytest.raises(LedgerError):
                act()
            return
        act()
        self.exposed += self.open[reservation][1]
        self.end(reservation, 0)

    @rule(request=requests, result=lines)
    def record(self, request, result):
        if request in self.results:
            with pytest.raises(LedgerError):
                self.ledger.record(request, result)
            return
        self.ledger.record(request, result)
        self.answer(request, result)
        self.rows += 1

    @rule(items=st.lists(st.tuples(requests, lines), max_size=3))
    def note_many(self, items):
        if any(request in self.results for request, _ in items):
            with pytest.raises(LedgerError):
                self.ledger.note_many(items)
            return
        self.ledger.note_many(items)
        for request, line in items:
            self.notes.pop(request, None)
            self.notes[request] = line
        self.rows += len(items)

    @invariant()
    def the_ledger_agrees(self):
        reserved = sum(grant for _, grant in self.open.values())
        assert balances(self.ledger) == (self.available, reserved, self.spent, self.debt)
        assert self.ledger.budget == self.budget
        assert self.ledger.usage == self.usage
        assert self.ledger.beyond_grants == self.beyond
        assert self.ledger.exposed == self.exposed
        assert list(self.ledger.results()) == list(self.results.items())
        assert list(self.ledger.chunks()) == self.chunks
        assert list(self.ledger.notes()) == list(self.notes.items())
        assert all(self.ledger.has_result(request) == (request in self.results) for request in REQUESTS)

    @invariant()
    def the_journal_agrees(self):
        entries = list(self.ledger.entries())
        assert [entry.id for entry in entries] == list(range(1, self.rows + 1))
        assert sum((entry.usage for entry in entries if entry.usage), Usage()) == self.usage
        ended = {entry.reservation for entry in entries}
        opened = {e.id: (e.request, e.units) for e in entries if e.kind == "reserve" and e.id not in ended}
        assert opened == self.open
        assert {entry.request for entry in entries if entry.answered} == self.results.keys()

    def teardown(self):
        if hasattr(self, "ledger"):
            self.ledger.close()


class FileMachine(MemoryMachine):
    """A ledger in a file, which is also closed, crashed and reopened."""

    def make(self, budget):
        self.folder = Path(tempfile.mkdtemp(dir=MEMORY))
        self.lives = 0
        self.path = self.folder / "ledger.db"
        self.ledger = Ledger.create(self.path, budget)

    def reopen(self):
        self.ledger = Ledger.reopen(self.path)
        for reservation, (_, grant) in list(self.open.items()):
            self.end(reservation, grant)

    @rule()
    def close_and_reopen(self):
        self.ledger.close()
        self.reopen()

    @rule()
    def crash_and_reopen(self):
        self.lives += 1
        left = crash(self.path, self.folder / str(self.lives))
        self.ledger.close()
        self.path = left
        self.reopen()

    @invariant()
    def the_file_agrees(self):
        with closing(sqlite3.connect(f"{self.path.as_uri()}?mode=ro", uri=True)) as db:
            rows = db.execute("SELECT id, kind, request, reservation, units, result FROM journal").fetchall()
            usage = db.execute("SELECT sum(output), sum(input), sum(cached) FROM journal").fetchone()
        assert len(rows) == self.rows
        assert rows[0][4] == self.budget
        assert Usage(*(total or 0 for total in usage)) == self.usage
        charged = sum(row[4] for row in rows if row[1] in ("settle", "chunk", "orphan"))
        assert charged == self.spent + self.debt
        reserved = sum(grant for _, grant in self.open.values())
        assert self.available == max(0, self.budget - reserved - charged)
        results = [(row[2], row[5]) for row in rows if row[5] is not None and row[1] in ("settle", "record")]
        assert results == list(self.results.items())
        notes = {row[2]: row[5] for row in rows if row[1] == "note" and row[2] not in self.results}
        assert notes == self.notes

    def teardown(self):
        super().teardown()
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)


_SETTINGS = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestAnySequenceInMemory, TestAnySequenceInAFile = MemoryMachine.TestCase, FileMachine.TestCase
TestAnySequenceInMemory.settings = TestAnySequenceInAFile.settings = _SETTINGS


@settings(max_examples=100, deadline=None)
@given(budget=st.integers(0, 300), grants=st.lists(st.integers(1, 50), max_size=12), data=st.data())
def test_when_all_is_settled_the_balance_does_not_depend_on_the_order(budget, grants, data):
    """Whoever ends first: the cost is charged, up to the budget, and the rest is owed."""
    while sum(grants) > budget:
        grants.pop()
    costs = [data.draw(st.integers(0, 80)) for _ in grants]
    order = data.draw(st.permutations(range(len(grants))))
    with Ledger.in_memory(budget) as ledger:
        numbers = ledger.reserve_many((f"q{i}", grant) for i, grant in enumerate(grants))
        for i in order:
            ledger.settle(numbers[i], costs[i])
        total = sum(costs)
        assert balances(ledger) == (max(0, budget - total), 0, min(total, budget), max(0, total - budget))
        assert ledger.beyond_grants == sum(max(0, c - g) for c, g in zip(costs, grants, strict=True))
