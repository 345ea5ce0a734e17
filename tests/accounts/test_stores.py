"""A journal is kept in the same way in memory and in a file; a file survives what happens to it."""

import os
import random
import tempfile
from pathlib import Path

import pytest

from shadowprice.accounts.journal import Entry
from shadowprice.accounts.sqlite import Ledger
from shadowprice.accounts.stores import FileStore, MemoryStore
from shadowprice.errors import LedgerError
from shadowprice.types import Usage

from .conftest import MEMORY, balances, crash, interrupted_write, restart_the_machine


@pytest.fixture(params=["file", "memory"])
def store(request, path):
    if request.param == "file":
        FileStore.create(path, 100)
        store = FileStore(path)
    else:
        store = MemoryStore(100)
    yield store
    store.close()


ROWS = [
    (Entry(2, "reserve", "a", None, 10), None),
    (Entry(3, "chunk", "a", 2, 4, Usage(4, 7, 1)), b"Once "),
    (Entry(4, "note", "b", None, 0), b"failed"),
    (Entry(5, "reserve", "a", None, 10), None),
    (Entry(6, "settle", "a", 5, 9, Usage(9), True), b"answer"),
    (Entry(7, "record", "b", None, 0, None, True), b"free"),
]


class TestAnyStore:
    def test_a_new_one_has_its_budget(self, store):
        assert list(store.entries()) == [Entry(1, "budget", None, None, 100)]
        assert list(store.lines("settle", "record", "note", "chunk")) == []

    @pytest.mark.parametrize("at_once", [1, 2, 6])
    def test_what_is_appended_is_read_back_in_order(self, store, at_once):
        for start in range(0, len(ROWS), at_once):
            store.append(ROWS[start : start + at_once], wait=start == 0)
        store.confirm(13)
        store.wait()
        assert list(store.entries())[1:] == [entry for entry, _ in ROWS]
        assert list(store.lines("settle", "record")) == [(6, "a", b"answer"), (7, "b", b"free")]
        assert list(store.lines("chunk")) == [(3, "a", b"Once ")]
        assert list(store.lines("reserve", "void")) == []

    def test_its_name_is_where_it_is(self, store):
        assert str(store) == ("ledger in memory" if store.path is None else str(store.path))


class TestAFile:
    def test_is_opened_again_with_its_balances(self, path):
        FileStore.create(path, 100)
        store = FileStore(path)
        store.append(ROWS, wait=True)
        store.confirm(13)
        store.close()
        again = FileStore(path)
        assert (again.balances.spent, again.balances.last, again.balances.answered) == (13, 7, {"a": 6, "b": 7})
        again.append([(Entry(8, "note", "c", None, 0), b"waits")], wait=False)
        again.confirm(13)
        assert list(again.lines("note")) == [(4, "b", b"failed"), (8, "c", b"waits")]
        again.close()

    def test_of_several_rows_all_or_none_are_written(self, path):
        FileStore.create(path, 100)
        store = FileStore(path)
        wrong = (Entry(5, "note", "b", None, 0), b"number 4 is missing")
        with pytest.raises(LedgerError, match=r"ledger\.db: cannot be written: .* \(fix that and reopen it\)$"):
            store.append([*ROWS[:2], wrong], wait=True)
        store.close()
        again = FileStore(path)
        assert list(again.entries()) == [Entry(1, "budget", None, None, 100)]
        again.close()

    def test_is_closed_twice_without_an_error(self, path):
        FileStore.create(path, 100)
        store = FileStore(path)
        store.close()
        store.close()
        FileStore(path).close()


# --- a ledger whose writes fail ----------------------------------------------------------------


@pytest.fixture
def ledger(path):
    with Ledger.create(path, 100) as ledger:
        yield ledger


class TestFailingWrites:
    def test_a_full_disk_closes_the_ledger_and_the_open_attempt_is_charged_in_full(self, ledger, path):
        reservation = ledger.reserve("a", 60)
        ledger._store._db.execute("PRAGMA max_page_count = 1")
        with pytest.raises(LedgerError, match=r"no space left: [\d,]+ bytes free on the device of .* \(fix that"):
            ledger.settle(reservation, 25, Usage(25), b"x" * 100_000)
        with pytest.raises(LedgerError, match="closed"):
            ledger.void(reservation)
        with Ledger.reopen(path) as reopened:
            assert balances(reopened) == (40, 0, 60, 0)
            assert not reopened.has_result("a")

    def test_of_many_notes_all_or_none_are_written(self, ledger, path):
        ledger._store._db.execute("PRAGMA max_page_count = 20")
        with pytest.raises(LedgerError, match="cannot be written"):
            ledger.note_many((f"q{i}", b"x" * 1000) for i in range(1000))
        with Ledger.reopen(path) as reopened:
            assert list(reopened.notes()) == []

    def test_an_interrupt_right_after_a_write_does_not_undo_it(self, ledger, path, monkeypatch):
        reservation = ledger.reserve("a", 60)
        with interrupted_write(monkeypatch):
            ledger.settle(reservation, 25, Usage(25), b"answer")
        with Ledger.reopen(path) as reopened:
            assert balances(reopened) == (75, 0, 25, 0)
            assert reopened.usage == Usage(25)
            assert reopened.has_result("a")

    def test_what_must_survive_a_power_cut_waits_for_the_disk(self, ledger):
        def waited() -> bool:
            return ledger._store._db.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL

        first, second, third, fourth, fifth = ledger.reserve_many((name, 10) for name in "abcde")
        assert waited()
        ledger.settle(first, 10, Usage(10), b"answer")
        assert not waited()
        ledger.settle(second, 11)
        assert waited()
        ledger.void(third)
        assert not waited()
        ledger.settle_chunk(fourth, 11, Usage(11), b"Once ")
        assert waited()
        ledger.settle_chunk(fifth, 10, Usage(10), b"Once ")
        assert not waited()
        ledger.reserve("a", 1)
        assert waited()
        ledger.note("b", b"declined")
        assert not waited()
        ledger._store._waited -= 2
        ledger.record("b", b"late")
        assert waited()

    def test_settlements_lost_to_a_power_cut_are_charged_in_full(self, monkeypatch):
        """What was written last may be missing, up to the last thing that waited for the disk."""
        rng = random.Random(0)
        with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
            path, log = Path(folder, "ledger.db"), Path(folder, "ledger.db-wal")
            with Ledger.create(path, 10_000) as ledger:
                reservations = ledger.reserve_many((f"q{i}", 100) for i in range(30))
                safe = log.stat().st_size
                for reservation in reservations:
                    units = rng.randint(0, 100)
                    ledger.settle(reservation, units, Usage(units), rng.randbytes(300))
                spent, size = ledger.spent, log.stat().st_size
                for _ in range(40):
                    left = crash(path, Path(folder, "elsewhere"))
                    os.truncate(f"{left}-wal", rng.randint(safe, size))
                    restart_the_machine(monkeypatch)
                    with Ledger.reopen(left) as reopened:
                        balances(reopened)
                        assert reopened.usage.output <= spent <= reopened.spent <= 3000
