"""What every ledger does, in a file and in memory."""

import threading

import numpy as np
import pytest

from shadowprice.accounts.sqlite import Ledger, Settlement
from shadowprice.errors import LedgerError, Overdrawn
from shadowprice.types import Usage

from .conftest import MOST, balances, interrupted_write, state


@pytest.fixture(params=["file", "memory"])
def create(request, path):
    """Makes a ledger with the given budget."""
    made = []

    def create(budget):
        ledger = Ledger.create(path, budget) if request.param == "file" else Ledger.in_memory(budget)
        made.append(ledger)
        return ledger

    yield create
    for ledger in made:
        ledger.close()


@pytest.fixture
def ledger(create):
    return create(100)


class TestBalances:
    def test_at_first_everything_is_available(self, ledger):
        assert ledger.budget == 100
        assert balances(ledger) == (100, 0, 0, 0)
        assert ledger.usage == Usage()
        assert ledger.beyond_grants == 0

    def test_reserved_units_are_not_available(self, ledger):
        ledger.reserve("a", 60)
        assert balances(ledger) == (40, 60, 0, 0)

    def test_unused_units_are_available_again(self, ledger):
        ledger.settle(ledger.reserve("a", 60), 25, result=b"answer")
        assert balances(ledger) == (75, 0, 25, 0)
        assert list(ledger.results()) == [("a", b"answer")]

    def test_a_void_attempt_costs_nothing(self, ledger):
        ledger.void(ledger.reserve("a", 60))
        assert balances(ledger) == (100, 0, 0, 0)
        assert not ledger.has_result("a")

    def test_a_free_attempt_costs_nothing_and_its_grant_is_what_servers_were_believed(self, ledger):
        first, second, third = ledger.reserve_many([("a", 30), ("b", 20), ("c", 10)])
        ledger.free(first)
        ledger.settle_many([Settlement("free", second, 0, None, None), Settlement("void", third, 0, None, None)])
        assert balances(ledger) == (100, 0, 0, 0)
        assert ledger.exposed == 50
        assert not ledger.has_result("a")

    def test_a_request_may_take_several_attempts(self, ledger):
        ledger.void(ledger.reserve("a", 30))
        ledger.settle(ledger.reserve("a", 30), 30)
        ledger.settle(ledger.reserve("a", 30), 10, Usage(), b"answer")
        assert balances(ledger) == (60, 0, 40, 0)
        assert list(ledger.results()) == [("a", b"answer")]

    def test_a_result_can_cost_nothing(self, ledger):
        ledger.record("a", b"from a cache")
        assert balances(ledger) == (100, 0, 0, 0)
        assert ledger.has_result("a")

    def test_the_journal_has_everything(self, ledger):
        first, second, third = ledger.reserve_many([("a", 60), ("b", 10), ("c", 10)])
        ledger.settle(first, 25, Usage(25, 7, 3), b"answer")
        ledger.void(second)
        ledger.note("b", b"declined")
        ledger.record("b", b"answer")
        ledger.settle_chunk(third, 5, Usage(5), b"Once ")
        ledger.settle(ledger.reserve("c", 1), 1)
        assert list(ledger.entries()) == [
            (1, "budget", None, None, 100, None, False),
            (2, "reserve", "a", None, 60, None, False),
            (3, "reserve", "b", None, 10, None, False),
            (4, "reserve", "c", None, 10, None, False),
            (5, "settle", "a", first, 25, Usage(25, 7, 3), True),
            (6, "void", "b", second, 0, None, False),
            (7, "note", "b", None, 0, None, False),
            (8, "record", "b", None, 0, None, True),
            (9, "chunk", "c", third, 5, Usage(5), False),
            (10, "reserve", "c", None, 1, None, False),
            (11, "settle", "c", 10, 1, Usage(), False),
        ]

    def test_without_a_budget_only_free_results_are_possible(self, create):
        ledger = create(0)
        with pytest.raises(Overdrawn):
            ledger.reserve("a", 1)
        ledger.record("a", b"answer")
        assert balances(ledger) == (0, 0, 0, 0)

    def test_the_largest_budget(self, create):
        ledger = create(MOST)
        first, second = ledger.reserve_many([("a", MOST - 1), ("b", 1)])
        assert balances(ledger) == (0, MOST, 0, 0)
        ledger.settle(first, MOST, Usage(MOST, MOST, MOST))
        ledger.settle(second, MOST, Usage(MOST, MOST, MOST))
        assert balances(ledger) == (0, 0, MOST, MOST)
        assert ledger.usage == Usage(2 * MOST, 2 * MOST, 2 * MOST)

    def test_numpy_integers_are_integers(self, ledger):
        ledger.settle(ledger.reserve("a", np.int64(60)), np.int32(25), Usage(np.int64(25), np.uint8(7)))
        assert balances(ledger) == (75, 0, 25, 0)
        usage = list(ledger.entries())[-1].usage
        assert usage == Usage(25, 7, 0)
        assert {type(usage.output), type(usage.input)} == {int}

    @pytest.mark.parametrize("budget", [-1, True, 1.5, "100", None, MOST + 1, 10**5000, -(10**5000)], ids=type)
    def test_an_invalid_budget(self, create, budget, path):
        with pytest.raises(LedgerError, match="a budget must be a whole number from 0"):
            create(budget)
        assert not path.exists()


class TestUsage:
    def test_tokens_are_summed_by_kind(self, ledger):
        ledger.settle(ledger.reserve("a", 30), 10, Usage(10, 200, 0))
        ledger.settle_chunk(ledger.reserve("b", 30), 5, Usage(5, 20, 180), b"Once ")
        ledger.settle(ledger.reserve("b", 30), 1, Usage(output=1), b"answer")
        ledger.void(ledger.reserve("c", 30))
        assert ledger.usage == Usage(16, 220, 180)

    def test_it_is_not_what_is_charged(self, ledger):
        """Units may be money."""
        ledger.settle(ledger.reserve("a", 30), 12, Usage(1_000_000, 0, 0))
        assert balances(ledger) == (88, 0, 12, 0)


class TestChunks:
    """An answer that is generated in chunks: each is kept with its cost."""

    def test_they_are_kept_in_order_and_paid_for(self, ledger):
        for chunk in (b"Once ", b"upon "):
            ledger.settle_chunk(ledger.reserve("a", 30), 10, Usage(10), chunk)
        ledger.settle_chunk(ledger.reserve("b", 30), 7, Usage(7), b"It ")
        assert balances(ledger) == (73, 0, 27, 0)
        assert not ledger.has_result("a")
        assert list(ledger.results()) == []
        ledger.settle(ledger.reserve("a", 30), 3, Usage(3), b"answer")
        assert list(ledger.results()) == [("a", b"answer")]
        assert list(ledger.chunks()) == [("a", b"Once "), ("a", b"upon "), ("b", b"It ")]

    def test_a_complete_answer_does_not_continue(self, ledger):
        first, second = ledger.reserve("a", 30), ledger.reserve("a", 30)
        ledger.settle(first, 10, Usage(10), b"answer")
        with pytest.raises(LedgerError, match="already has a result"):
            ledger.settle_chunk(second, 10, Usage(10), b"more")
        assert balances(ledger) == (60, 30, 10, 0)


class TestNotes:
    """What is known of a request without an answer."""

    def test_the_latest_is_given(self, ledger):
        ledger.note("a", b"failed")
        ledger.note("b", b"declined")
        ledger.note("a", b"declined")
        assert list(ledger.notes()) == [("b", b"declined"), ("a", b"declined")]
        assert balances(ledger) == (100, 0, 0, 0)

    def test_a_request_has_one_line_the_result_or_the_latest_note(self, ledger):
        assert ledger.line("a") is None
        ledger.note("a", b"first")
        ledger.note("a", b"second")
        assert ledger.line("a") == b"second"
        ledger.settle(ledger.reserve("a", 5), 3, result=b"result")
        assert ledger.line("a") == b"result"

    def test_all_notes_on_a_request_can_be_read(self, ledger):
        ledger.note("a", b"first")
        ledger.note("b", b"other")
        ledger.note("a", b"second")
        ledger.settle(ledger.reserve("a", 5), 3, result=b"result")
        assert list(ledger.notes_on("a")) == [b"first", b"second"]
        assert list(ledger.notes_on("c")) == []

    def test_a_note_is_not_a_result(self, ledger):
        ledger.note("a", b"declined")
        assert not ledger.has_result("a")
        assert list(ledger.results()) == []

    def test_a_request_with_notes_can_be_tried_again(self, ledger):
        ledger.note_many([("a", b"not sent"), ("b", b"not sent"), ("c", b"not sent")])
        ledger.settle(ledger.reserve("a", 10), 5, Usage(5), b"answer")
        ledger.settle_chunk(ledger.reserve("b", 10), 5, Usage(5), b"Once ")
        ledger.record("c", b"answer")
        assert list(ledger.notes()) == [("b", b"not sent")]
        assert dict(ledger.results()) == {"a": b"answer", "c": b"answer"}

    def test_none_after_a_result(self, ledger):
        ledger.record("a", b"answer")
        before = state(ledger)
        with pytest.raises(LedgerError, match="request 'a' already has a result"):
            ledger.note("a", b"declined")
        assert state(ledger) == before

    def test_many_are_all_or_none(self, ledger):
        ledger.record("b", b"answer")
        before = state(ledger)
        for bad in [("b", b"declined"), ("c", "text"), ("\ud800", b"declined"), (None, b"declined")]:
            with pytest.raises(LedgerError):
                ledger.note_many([("a", b"declined"), bad])
        assert state(ledger) == before
        ledger.note_many([])
        assert state(ledger) == before

    def test_of_very_many_requests(self, ledger):
        ledger.note_many((f"q{i}", b"declined") for i in range(20_000))
        assert sum(1 for _ in ledger.notes()) == 20_000


class TestReservingMany:
    def test_is_reserving_each(self, ledger):
        numbers = ledger.reserve_many((name, 20) for name in "abc")
        assert len(set(numbers)) == 3
        assert balances(ledger) == (40, 60, 0, 0)
        ledger.settle(numbers[1], 5, Usage(5), b"answer")
        assert list(ledger.results()) == [("b", b"answer")]

    def test_of_nothing(self, ledger):
        assert ledger.reserve_many([]) == []

    @pytest.mark.parametrize("items", [[("a", 60), ("b", 41)], [("a", 1), ("b", 0)], [("a", 1), ("\ud800", 1)]])
    def test_is_all_or_nothing(self, ledger, items):
        before = state(ledger)
        with pytest.raises(LedgerError):
            ledger.reserve_many(items)
        assert state(ledger) == before
        ledger.reserve("a", 100)


class TestOverspending:
    """A server that uses more than it was granted is charged for it."""

    def test_the_excess_is_taken_from_what_is_available(self, ledger):
        ledger.settle(ledger.reserve("a", 10), 70, Usage(70), b"long")
        assert balances(ledger) == (30, 0, 70, 0)
        assert ledger.beyond_grants == 60

    def test_what_the_budget_does_not_cover_is_overspent(self, ledger):
        ledger.settle(ledger.reserve("a", 10), 170)
        assert balances(ledger) == (0, 0, 100, 70)
        assert ledger.beyond_grants == 160
        with pytest.raises(Overdrawn):
            ledger.reserve("b", 1)

    def test_a_request_below_its_grant_does_not_make_up_for_another_above_it(self, ledger):
        modest, greedy, chunk = ledger.reserve_many([("a", 30), ("b", 30), ("c", 30)])
        ledger.settle(modest, 10)
        ledger.settle(greedy, 35)
        ledger.settle_chunk(chunk, 31, Usage(31), b"Once ")
        assert ledger.beyond_grants == 6

    def test_grants_of_others_are_not_touched_and_what_they_leave_pays_the_debt(self, ledger):
        greedy, modest, idle = ledger.reserve_many([("a", 10), ("b", 50), ("c", 30)])
        ledger.settle(greedy, 45)  # 10 granted, 10 available, 25 from nowhere
        assert balances(ledger) == (0, 80, 20, 25)
        ledger.settle(modest, 35)  # leaves 15
        assert balances(ledger) == (0, 30, 70, 10)
        ledger.void(idle)  # leaves 30, of which 10 are owed
        assert balances(ledger) == (20, 0, 80, 0)
        assert sum(entry.units for entry in ledger.entries() if entry.kind == "settle") == 80


class TestRefusals:
    """Each is a LedgerError, and changes nothing."""

    @pytest.fixture(autouse=True)
    def unchanged(self, ledger):
        self.settled, self.open = ledger.reserve_many([("a", 10), ("b", 10)])
        ledger.settle(self.settled, 5, Usage(5), b"answer")
        before = state(ledger)
        yield
        assert state(ledger) == before

    def test_more_than_available(self, ledger):
        with pytest.raises(Overdrawn, match=r"^request 'c' needs 86 units, 85 of 100 are available$"):
            ledger.reserve("c", 86)
        with pytest.raises(Overdrawn, match=r"^2 requests need 86 units, 85 of 100 are available$"):
            ledger.reserve_many([("c", 43), ("d", 43)])

    @pytest.mark.parametrize("units", [0, -1, True, 1.0, "1", None, MOST + 1, float("nan"), np.True_, np.float64(1)])
    def test_an_invalid_reservation(self, ledger, units):
        with pytest.raises(LedgerError, match="a reservation must be a whole number from 1"):
            ledger.reserve("c", units)

    @pytest.mark.parametrize("units", [-1, False, 0.5, "1", None, MOST + 1])
    def test_an_invalid_cost(self, ledger, units):
        with pytest.raises(LedgerError, match="a cost must be a whole number from 0"):
            ledger.settle(self.open, units)
        with pytest.raises(LedgerError, match="a cost must be a whole number from 0"):
            ledger.settle_chunk(self.open, units, Usage(), b"Once ")

    @pytest.mark.parametrize(
        "usage", [Usage(-1), Usage(1, True), Usage(1, 1, 0.5), Usage(MOST + 1), None, 5, (1, 1, 1)]
    )
    def test_an_invalid_usage(self, ledger, usage):
        with pytest.raises(LedgerError, match="usage must be"):
            ledger.settle(self.open, 5, usage)
        with pytest.raises(LedgerError, match="usage must be"):
            ledger.settle_chunk(self.open, 5, usage, b"Once ")

    @pytest.mark.parametrize("request_id", [None, 7, b"c", "\ud800"])
    def test_an_invalid_id(self, ledger, request_id):
        for act in (
            lambda: ledger.reserve(request_id, 1),
            lambda: ledger.record(request_id, b""),
            lambda: ledger.note(request_id, b""),
        ):
            with pytest.raises(LedgerError, match="id must be valid text"):
                act()

    @pytest.mark.parametrize("line", ["text", 7, bytearray(b"answer"), bytes(2**29 + 1)], ids=type)
    def test_an_invalid_result_chunk_or_note(self, ledger, line):
        for act in (
            lambda: ledger.settle(self.open, 5, Usage(5), line),
            lambda: ledger.settle_chunk(self.open, 5, Usage(5), line),
            lambda: ledger.record("c", line),
            lambda: ledger.note("c", line),
        ):
            with pytest.raises(LedgerError, match="must be bytes"):
                act()

    def test_a_chunk_of_nothing(self, ledger):
        with pytest.raises(LedgerError, match="must be bytes"):
            ledger.settle_chunk(self.open, 5, Usage(5), None)

    @pytest.mark.parametrize("reservation", [0, 1, True, 99, -1, None, "b", 3.0, np.int64(3), [3]], ids=repr)
    def test_an_unknown_reservation(self, ledger, reservation):
        assert self.open == 3
        for act in (
            lambda: ledger.settle(reservation, 5, Usage(5), b"answer"),
            lambda: ledger.settle_chunk(reservation, 5, Usage(5), b"Once "),
            lambda: ledger.void(reservation),
        ):
            with pytest.raises(LedgerError, match="no open reservation"):
                act()

    def test_settling_or_voiding_what_was_settled(self, ledger):
        with pytest.raises(LedgerError, match="no open reservation"):
            ledger.settle(self.settled, 5)
        with pytest.raises(LedgerError, match="no open reservation"):
            ledger.void(self.settled)

    def test_a_second_result(self, ledger):
        with pytest.raises(LedgerError, match="request 'a' already has a result"):
            ledger.record("a", b"another")

    def test_another_thread(self, ledger):
        caught = []

        def meddle():
            for act in (lambda: ledger.reserve("c", 1), lambda: list(ledger.results()), ledger.close):
                with pytest.raises(LedgerError, match="thread") as error:
                    act()
                caught.append(error)

        thread = threading.Thread(target=meddle)
        thread.start()
        thread.join()
        assert len(caught) == 3


def test_a_second_result_does_not_settle_its_attempt(ledger):
    reservation = ledger.reserve("a", 10)
    ledger.record("a", b"first")
    with pytest.raises(LedgerError, match="request 'a' already has a result"):
        ledger.settle(reservation, 5, Usage(5), b"second")
    assert balances(ledger) == (90, 10, 0, 0)
    ledger.settle(reservation, 5)
    assert list(ledger.results()) == [("a", b"first")]


def test_a_closed_ledger_still_has_its_balances_and_nothing_else(create):
    with create(100) as ledger:
        reservation = ledger.reserve("a", 10)
    ledger.close()
    assert balances(ledger) == (90, 10, 0, 0)
    for act in (
        lambda: ledger.reserve("a", 1),
        lambda: ledger.settle(reservation, 1),
        lambda: ledger.settle_chunk(reservation, 1, Usage(1), b"Once "),
        lambda: ledger.void(reservation),
        lambda: ledger.record("a", b""),
        lambda: ledger.note("a", b""),
        lambda: list(ledger.results()),
        lambda: list(ledger.chunks()),
        lambda: list(ledger.notes()),
        lambda: list(ledger.entries()),
    ):
        with pytest.raises(LedgerError, match="closed"):
            act()


def test_a_ledger_in_memory_has_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Ledger.in_memory(100) as ledger, Ledger.in_memory(100) as other:
        ledger.reserve("a", 60)
        assert ledger.path is None
        assert other.available == 100
        assert list(tmp_path.iterdir()) == []


def test_an_interrupt_in_the_middle_of_a_write_closes_the_ledger(ledger, monkeypatch):
    reservation = ledger.reserve("a", 60)
    with interrupted_write(monkeypatch):
        ledger.settle(reservation, 25, Usage(25), b"answer")
    with pytest.raises(LedgerError, match="closed"):
        ledger.reserve("b", 1)
