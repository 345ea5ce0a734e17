"""The account: nothing is lost, nothing is charged twice, nothing is under-charged."""

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

import shadowprice.accounts.sqlite
from shadowprice.accounts.sqlite import Ledger
from shadowprice.errors import LedgerError, Overdrawn

MOST = 2**63 - 1
# Waiting for a disk is what a ledger spends its time on, so that most tests keep theirs in memory.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@pytest.fixture
def path():
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        yield Path(folder, "ledger.db")


@pytest.fixture
def ledger(path):
    with Ledger.create(path, 100) as ledger:
        yield ledger


def balances(ledger) -> tuple[int, int, int, int]:
    assert ledger.available + ledger.reserved + ledger.spent == ledger.budget
    assert min(ledger.available, ledger.reserved, ledger.spent, ledger.overspent) >= 0
    return ledger.available, ledger.reserved, ledger.spent, ledger.overspent


def state(ledger):
    return balances(ledger), list(ledger.entries()), list(ledger.results())


def crash(path, folder) -> Path:
    """What a killed process leaves, in another folder: the files as they are now."""
    folder.mkdir(exist_ok=True)
    for suffix in ("", "-wal"):
        if os.path.exists(f"{path}{suffix}"):
            shutil.copy(f"{path}{suffix}", folder)
    return folder / path.name


def tamper(path, *statements):
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for statement in statements:
            db.execute(statement)


def refused(path) -> str:
    with pytest.raises(LedgerError) as caught:
        Ledger.reopen(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message.removeprefix(f"{path}: ")


class TestAnAccount:
    def test_starts_with_everything_available(self, ledger):
        assert ledger.budget == 100
        assert balances(ledger) == (100, 0, 0, 0)

    def test_what_is_reserved_is_not_available(self, ledger):
        ledger.reserve("a", 60)
        assert balances(ledger) == (40, 60, 0, 0)

    def test_what_was_not_used_flows_back(self, ledger):
        ledger.settle(ledger.reserve("a", 60), 25, b"answer")
        assert balances(ledger) == (75, 0, 25, 0)
        assert list(ledger.results()) == [("a", b"answer")]

    def test_an_attempt_that_generated_nothing_costs_nothing(self, ledger):
        ledger.void(ledger.reserve("a", 60))
        assert balances(ledger) == (100, 0, 0, 0)
        assert not ledger.has_result("a")

    def test_a_query_may_take_several_attempts(self, ledger):
        ledger.void(ledger.reserve("a", 30))
        ledger.settle(ledger.reserve("a", 30), 30)
        ledger.settle(ledger.reserve("a", 30), 10, b"answer")
        assert balances(ledger) == (60, 0, 40, 0)
        assert list(ledger.results()) == [("a", b"answer")]

    def test_a_result_can_cost_nothing(self, ledger):
        ledger.record("a", b"abandoned")
        assert balances(ledger) == (100, 0, 0, 0)
        assert ledger.has_result("a")

    def test_results_are_bytes_of_any_kind(self, ledger, path):
        kept = [("", b""), ("a\0b", bytes(range(256))), ("ünï\n💡", b"x" * 100_000), ("'; DROP TABLE journal", b"\0")]
        for query, result in kept:
            ledger.settle(ledger.reserve(query, 1), 1, result)
        ledger.close()
        with Ledger.reopen(path) as reopened:
            assert list(reopened.results()) == kept

    def test_the_journal_tells_it_all(self, ledger):
        first, second = ledger.reserve_many([("a", 60), ("b", 10)])
        ledger.settle(first, 25, b"answer")
        ledger.void(second)
        ledger.record("b", b"refused")
        assert list(ledger.entries()) == [
            (1, "budget", None, None, 100, False),
            (2, "reserve", "a", None, 60, False),
            (3, "reserve", "b", None, 10, False),
            (4, "settle", "a", first, 25, True),
            (5, "void", "b", second, 0, False),
            (6, "record", "b", None, 0, True),
        ]

    def test_survives_closing(self, ledger, path):
        ledger.settle(ledger.reserve("a", 60), 25, b"answer")
        before = state(ledger)
        ledger.close()
        with Ledger.reopen(path) as reopened:
            assert state(reopened) == before
            assert reopened.has_result("a")

    def test_without_a_budget_only_free_results_are_possible(self, path):
        with Ledger.create(path, 0) as ledger:
            with pytest.raises(Overdrawn):
                ledger.reserve("a", 1)
            ledger.record("a", b"abandoned")
            assert balances(ledger) == (0, 0, 0, 0)

    def test_the_largest_budget(self, path):
        with Ledger.create(path, MOST) as ledger:
            first, second = ledger.reserve_many([("a", MOST - 1), ("b", 1)])
            assert balances(ledger) == (0, MOST, 0, 0)
            ledger.settle(first, MOST)
            ledger.settle(second, MOST)
        with Ledger.reopen(path) as ledger:
            assert balances(ledger) == (0, 0, MOST, MOST)

    def test_numpy_integers_are_integers(self, ledger):
        ledger.settle(ledger.reserve("a", np.int64(60)), np.int32(25))
        assert balances(ledger) == (75, 0, 25, 0)


class TestPauses:
    """An answer that is generated in parts: each is kept with what it cost."""

    def test_parts_are_kept_in_order_and_paid_for(self, ledger, path):
        for part in (b"Once ", b"upon "):
            ledger.pause(ledger.reserve("a", 30), 10, part)
        ledger.pause(ledger.reserve("b", 30), 7, b"It ")
        assert balances(ledger) == (73, 0, 27, 0)
        assert not ledger.has_result("a")
        assert list(ledger.results()) == []
        ledger.close()
        with Ledger.reopen(path) as again:
            assert list(again.parts()) == [("a", b"Once "), ("a", b"upon "), ("b", b"It ")]
            assert balances(again) == (73, 0, 27, 0)
            again.settle(again.reserve("a", 30), 3, b"answer")
            assert list(again.results()) == [("a", b"answer")]

    def test_an_answer_that_has_ended_does_not_go_on(self, ledger):
        first, second = ledger.reserve("a", 30), ledger.reserve("a", 30)
        ledger.settle(first, 10, b"answer")
        with pytest.raises(LedgerError, match="has a result already"):
            ledger.pause(second, 10, b"more")
        assert balances(ledger) == (60, 30, 10, 0)


class TestReservingMany:
    def test_is_reserving_each(self, ledger):
        numbers = ledger.reserve_many((name, 20) for name in "abc")
        assert len(set(numbers)) == 3
        assert balances(ledger) == (40, 60, 0, 0)
        ledger.settle(numbers[1], 5, b"answer")
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
    """A server that generates more than it was granted is charged for it."""

    def test_the_excess_is_taken_from_what_is_available(self, ledger):
        ledger.settle(ledger.reserve("a", 10), 70, b"long")
        assert balances(ledger) == (30, 0, 70, 0)

    def test_what_is_not_covered_is_told(self, ledger):
        ledger.settle(ledger.reserve("a", 10), 170)
        assert balances(ledger) == (0, 0, 100, 70)
        with pytest.raises(Overdrawn):
            ledger.reserve("b", 1)

    def test_grants_of_others_are_not_touched_and_what_they_leave_pays_the_debt(self, ledger):
        greedy, modest, idle = ledger.reserve_many([("a", 10), ("b", 50), ("c", 30)])
        ledger.settle(greedy, 45)  # 10 granted, 10 available, 25 from nowhere
        assert balances(ledger) == (0, 80, 20, 25)
        ledger.settle(modest, 35)  # leaves 15
        assert balances(ledger) == (0, 30, 70, 10)
        ledger.void(idle)  # leaves 30, of which 10 are owed
        assert balances(ledger) == (20, 0, 80, 0)
        assert sum(entry.tokens for entry in ledger.entries() if entry.kind == "settle") == 80

    def test_is_remembered(self, ledger, path):
        ledger.settle(ledger.reserve("a", 10), 170)
        before = state(ledger)
        ledger.close()
        with Ledger.reopen(path) as reopened:
            assert state(reopened) == before


class TestRefusals:
    """Each is a LedgerError, and changes nothing."""

    @pytest.fixture(autouse=True)
    def unchanged(self, ledger, path):
        self.settled, self.open = ledger.reserve_many([("a", 10), ("b", 10)])
        ledger.settle(self.settled, 5, b"answer")
        before = state(ledger)
        yield
        assert state(ledger) == before
        with closing(Ledger.reopen(crash(path, path.parent / "elsewhere"))) as reopened:
            assert list(reopened.entries())[:-1] == before[1]

    def test_more_than_available(self, ledger):
        with pytest.raises(Overdrawn, match="query 'c' asks for 86 tokens, 85 of 100 are available"):
            ledger.reserve("c", 86)

    @pytest.mark.parametrize("tokens", [0, -1, True, 1.0, "1", None, MOST + 1, float("nan"), np.True_, np.float64(1)])
    def test_what_cannot_be_reserved(self, ledger, tokens):
        with pytest.raises(LedgerError, match="whole number"):
            ledger.reserve("c", tokens)

    @pytest.mark.parametrize("spent", [-1, False, 0.5, "1", None, MOST + 1])
    def test_what_cannot_have_been_spent(self, ledger, spent):
        with pytest.raises(LedgerError, match="whole number"):
            ledger.settle(self.open, spent)

    @pytest.mark.parametrize("query", [None, 7, b"c", "\ud800"])
    def test_what_is_no_name_of_a_query(self, ledger, query):
        with pytest.raises(LedgerError, match="named by a text"):
            ledger.reserve(query, 1)
        with pytest.raises(LedgerError, match="named by a text"):
            ledger.record(query, b"")

    @pytest.mark.parametrize("result", ["text", 7, bytearray(b"answer"), bytes(2**29 + 1)], ids=type)
    def test_what_is_no_result(self, ledger, result):
        with pytest.raises(LedgerError, match="bytes"):
            ledger.settle(self.open, 5, result)

    @pytest.mark.parametrize("reservation", [0, 1, True, 99, -1, None, "b", 3.0, np.int64(3), [3]], ids=repr)
    def test_an_unknown_reservation(self, ledger, reservation):
        assert self.open == 3
        with pytest.raises(LedgerError, match="no open reservation"):
            ledger.settle(reservation, 5, b"answer")
        with pytest.raises(LedgerError, match="no open reservation"):
            ledger.void(reservation)

    def test_settling_or_voiding_what_was_settled(self, ledger):
        with pytest.raises(LedgerError, match="no open reservation"):
            ledger.settle(self.settled, 5)
        with pytest.raises(LedgerError, match="no open reservation"):
            ledger.void(self.settled)

    def test_a_second_result(self, ledger):
        with pytest.raises(LedgerError, match="query 'a' has a result already"):
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


def test_a_second_result_does_not_settle_the_attempt_it_came_with(ledger):
    reservation = ledger.reserve("a", 10)
    ledger.record("a", b"first")
    with pytest.raises(LedgerError, match="query 'a' has a result already"):
        ledger.settle(reservation, 5, b"second")
    assert balances(ledger) == (90, 10, 0, 0)
    ledger.settle(reservation, 5)
    assert list(ledger.results()) == [("a", b"first")]


class TestOpening:
    @pytest.mark.parametrize("budget", [-1, True, 1.5, "100", None, MOST + 1, 10**5000, -(10**5000)], ids=type)
    def test_what_is_no_budget(self, path, budget):
        with pytest.raises(LedgerError, match="a budget is a whole number of tokens"):
            Ledger.create(path, budget)
        assert not path.exists()

    def test_a_file_that_exists_is_not_overwritten(self, path):
        path.write_text("precious")
        with pytest.raises(LedgerError, match="exists already"):
            Ledger.create(path, 1)
        assert path.read_text() == "precious"

    def test_a_folder_that_does_not_exist(self, tmp_path):
        with pytest.raises(LedgerError, match="No such file or directory"):
            Ledger.create(tmp_path / "nowhere" / "ledger.db", 1)

    def test_a_missing_file(self, path):
        assert refused(path) == "no such ledger"
        assert refused(path.parent) == "no such ledger"
        assert list(path.parent.iterdir()) == []

    def test_names_that_mean_something_in_a_uri(self, tmp_path):
        path = tmp_path / "50%20?mode=memory#x.db"
        Ledger.create(path, 1).close()
        assert path.exists()
        Ledger.reopen(str(path)).close()

    def test_what_a_crash_while_creating_leaves_is_no_hindrance(self, path):
        path.with_name("ledger.db.new").write_bytes(b"half a led")
        with Ledger.create(path, 7) as ledger:
            assert ledger.budget == 7

    def test_the_leavings_of_a_deleted_ledger_are_not_taken_over(self, path, tmp_path):
        with Ledger.create(path, 100) as ledger:
            ledger.reserve("old", 60)
            left = crash(path, tmp_path / "elsewhere")
        left.unlink()
        assert left.with_name("ledger.db-wal").exists()
        with Ledger.create(left, 7) as ledger:
            assert balances(ledger) == (7, 0, 0, 0)

    def test_once_closed_it_does_nothing_but_tell_its_balances(self, path):
        with Ledger.create(path, 100) as ledger:
            reservation = ledger.reserve("a", 10)
        ledger.close()
        assert balances(ledger) == (90, 10, 0, 0)
        for act in (
            lambda: ledger.reserve("a", 1),
            lambda: ledger.settle(reservation, 1),
            lambda: ledger.void(reservation),
            lambda: ledger.record("a", b""),
            lambda: list(ledger.results()),
            lambda: list(ledger.entries()),
        ):
            with pytest.raises(LedgerError, match="closed"):
                act()

    def test_a_reservation_left_open_is_charged_in_full(self, path):
        with Ledger.create(path, 100) as ledger:
            ledger.settle(ledger.reserve("a", 20), 5)
            orphan = ledger.reserve("b", 30)
        for _ in range(2):  # once, however often it is reopened
            with Ledger.reopen(path) as ledger:
                assert balances(ledger) == (65, 0, 35, 0)
                assert list(ledger.entries())[-1] == (5, "orphan", "b", orphan, 30, False)
                with pytest.raises(LedgerError, match="no open reservation"):
                    ledger.settle(orphan, 10)


class TestDamage:
    def test_a_file_that_is_no_database(self, path):
        path.write_text("requests\n" * 1000)
        assert refused(path) == "not a sound ledger: file is not a database"

    def test_a_database_that_is_no_ledger(self, path):
        tamper(path, "CREATE TABLE journal (id, kind)")
        before = path.read_bytes()
        assert "its tables are others" in refused(path)
        assert path.read_bytes() == before

    def test_an_empty_file(self, path):
        path.touch()
        assert "its tables are others" in refused(path)

    @pytest.mark.parametrize(
        ("statement", "told"),
        [
            ("DELETE FROM journal WHERE id = 2", "entry 2 is missing"),
            ("DELETE FROM journal WHERE id = 3", "entry 3 is missing"),
            ("DELETE FROM journal WHERE id = 1", "it has no budget"),
            ("DELETE FROM journal", "it has no budget"),
            ("UPDATE journal SET tokens = 10 WHERE id = 1", "entry 2 reserves more than was available"),
            ("UPDATE journal SET tokens = 101 WHERE id = 2", "entry 2 reserves more than was available"),
            ("UPDATE journal SET tokens = 5 WHERE kind = 'orphan'", "entry 5 does not fit its reservation"),
            ("UPDATE journal SET query = 'x' WHERE id = 4", "entry 4 does not fit its reservation"),
            ("UPDATE journal SET reservation = 1 WHERE id = 4", "no open reservation 1"),
            ("UPDATE journal SET kind = 'gift' WHERE id = 4", "CHECK constraint failed"),
            ("UPDATE journal SET tokens = -5 WHERE id = 4", "CHECK constraint failed"),
            ("UPDATE journal SET tokens = 'five' WHERE id = 4", "CHECK constraint failed"),
        ],
    )
    def test_a_journal_that_does_not_add_up(self, path, statement, told):
        with Ledger.create(path, 100) as ledger:
            first, _ = ledger.reserve_many([("a", 60), ("b", 10)])
            ledger.settle(first, 5, b"answer")
        Ledger.reopen(path).close()
        with closing(sqlite3.connect(path)) as db:
            triggers = db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        tamper(
            path,
            "PRAGMA ignore_check_constraints = 1",
            *(f"DROP TRIGGER {name}" for name, _ in triggers),
            statement,
            *(sql for _, sql in triggers),
        )
        message = refused(path)
        assert message.startswith("not a sound ledger: ")
        assert told in message

    def test_a_ledger_without_its_triggers(self, path):
        Ledger.create(path, 100).close()
        tamper(path, "DROP TRIGGER no_delete")
        assert "its tables are others" in refused(path)

    def test_any_bytes_overwritten_or_cut_off(self):
        with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
            path = Path(folder, "ledger.db")
            with Ledger.create(path, 10_000) as ledger:
                for i in range(40):
                    ledger.settle(ledger.reserve(f"q{i}", 100), i, b"answer " * i)
            whole, rng, refusals = path.read_bytes(), random.Random(0), []
            for _ in range(300):
                damaged = bytearray(whole)
                if rng.random() < 0.2:
                    del damaged[rng.randrange(len(damaged)) :]
                else:
                    at = rng.randrange(len(damaged) - 64)
                    damaged[at : at + 64] = rng.randbytes(64)
                path.write_bytes(damaged)
                try:
                    with Ledger.reopen(path) as ledger:
                        balances(ledger)
                        list(ledger.entries())
                        list(ledger.results())
                except LedgerError as error:
                    refusals.append(str(error))
            assert len(refusals) > 100
            assert not any("\n" in message for message in refusals)


class TestTheJournalIsAppendOnly:
    """Whoever writes to the file; an honest `sqlite3` shell is stopped as well."""

    @pytest.mark.parametrize(
        "statement",
        [
            "UPDATE journal SET tokens = 0 WHERE kind = 'settle'",
            "UPDATE journal SET result = NULL",
            "DELETE FROM journal WHERE id = 3",
            "DELETE FROM journal",
            "INSERT OR REPLACE INTO journal VALUES (3, 'settle', 'a', 2, 0, NULL)",
            "INSERT OR REPLACE INTO journal VALUES (4, 'settle', 'a', 2, 0, NULL)",
            "INSERT OR REPLACE INTO journal VALUES (4, 'record', 'a', NULL, 0, x'00')",
            "REPLACE INTO journal VALUES (1, 'budget', NULL, NULL, 1000, NULL)",
            "INSERT INTO journal VALUES (9, 'reserve', 'b', NULL, 10, NULL)",
            "INSERT INTO journal (kind, query, tokens) VALUES ('reserve', 'b', 10)",
            "INSERT INTO journal VALUES (4, 'record', 'b', NULL, 10, x'00')",
            "INSERT INTO journal VALUES (4, 'budget', NULL, NULL, 10, NULL)",
        ],
    )
    def test_no_row_is_changed_removed_or_put_between(self, path, statement):
        with Ledger.create(path, 100) as ledger:
            ledger.settle(ledger.reserve("a", 60), 25, b"answer")
            before = state(ledger)
        with pytest.raises(sqlite3.IntegrityError):
            tamper(path, statement)
        with Ledger.reopen(path) as ledger:
            assert state(ledger) == before


class TestFailingWrites:
    def test_a_full_disk_closes_the_ledger_and_the_open_attempt_is_charged_in_full(self, ledger, path):
        reservation = ledger.reserve("a", 60)
        ledger._db.execute("PRAGMA max_page_count = 1")
        with pytest.raises(LedgerError, match=r"cannot be written: database or disk is full"):
            ledger.settle(reservation, 25, b"x" * 100_000)
        with pytest.raises(LedgerError, match="closed"):
            ledger.void(reservation)
        with Ledger.reopen(path) as reopened:
            assert balances(reopened) == (40, 0, 60, 0)
            assert not reopened.has_result("a")

    def test_an_interrupt_in_the_middle_of_a_write(self, ledger, path, monkeypatch):
        reservation = ledger.reserve("a", 60)

        def interrupted(*_):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(shadowprice.accounts.sqlite._Account, "add", interrupted)
            with pytest.raises(KeyboardInterrupt):
                ledger.settle(reservation, 25, b"answer")
        with pytest.raises(LedgerError, match="closed"):
            ledger.reserve("b", 1)
        with Ledger.reopen(path) as reopened:
            assert balances(reopened) == (75, 0, 25, 0)
            assert reopened.has_result("a")

    def test_what_must_outlive_a_power_cut_waits_for_the_disk(self, ledger):
        def waited() -> bool:
            return ledger._db.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL

        first, second, third = ledger.reserve_many([("a", 10), ("b", 10), ("c", 10)])
        assert waited()
        ledger.settle(first, 10, b"answer")
        assert not waited()
        ledger.settle(second, 11)
        assert waited()
        ledger.void(third)
        assert not waited()
        ledger.reserve("a", 1)
        assert waited()
        ledger._waited -= 2
        ledger.record("b", b"late")
        assert waited()

    def test_settlements_lost_to_a_power_cut_are_charged_in_full(self):
        """What was written last may be missing, up to the last thing that waited for the disk."""
        rng = random.Random(0)
        with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
            path, log = Path(folder, "ledger.db"), Path(folder, "ledger.db-wal")
            with Ledger.create(path, 10_000) as ledger:
                reservations = ledger.reserve_many((f"q{i}", 100) for i in range(30))
                safe = log.stat().st_size
                for reservation in reservations:
                    ledger.settle(reservation, rng.randint(0, 100), rng.randbytes(300))
                spent, size = ledger.spent, log.stat().st_size
                for _ in range(40):
                    left = crash(path, Path(folder, "elsewhere"))
                    os.truncate(f"{left}-wal", rng.randint(safe, size))
                    with Ledger.reopen(left) as reopened:
                        balances(reopened)
                        assert spent <= reopened.spent <= 3000


# --- processes -----------------------------------------------------------------------------------


def start(script: str, *arguments) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


HOLD = """
import sys
from shadowprice.accounts.sqlite import Ledger
ledger = Ledger.reopen(sys.argv[1])
print("open", flush=True)
sys.stdin.read()
"""

HOLD_WITH_A_CHILD = """
import os, sys, time
from shadowprice.accounts.sqlite import Ledger
ledger = Ledger.reopen(sys.argv[1])
child = os.fork()
if child:
    print(child, flush=True)
time.sleep(60)
"""

WORK = """
import random, sys
from shadowprice.accounts.sqlite import Ledger
rng = random.Random(int(sys.argv[2]))
with Ledger.reopen(sys.argv[1]) as ledger:
    while True:
        name = sys.argv[2] + "-" + str(rng.random())
        for number in ledger.reserve_many((name + c, 50) for c in "ab"[: rng.randint(1, 2)]):
            print("reserved", number, 50, flush=True)
            spent = rng.randint(0, 60)
            if spent == 0:
                ledger.void(number)
            else:
                ledger.settle(number, spent, str(number).encode() if spent % 2 else None)
            print("settled", number, spent, flush=True)
"""


class TestOneWriter:
    def test_another_process_is_refused_until_the_first_is_gone(self, path):
        Ledger.create(path, 100).close()
        with start(HOLD, path) as holder:
            assert holder.stdout.readline() == "open\n"
            began = time.monotonic()
            assert refused(path) == "in use by another process"
            assert time.monotonic() - began < 1
            with closing(sqlite3.connect(path)) as reader:
                assert reader.execute("SELECT tokens FROM journal").fetchall() == [(100,)]
            holder.kill()
        with Ledger.reopen(path) as ledger:
            assert ledger.budget == 100

    def test_a_child_that_outlives_a_killed_run_does_not_keep_it_locked(self, path):
        Ledger.create(path, 100).close()
        with start(HOLD_WITH_A_CHILD, path) as holder:
            child = int(holder.stdout.readline())
            try:
                holder.kill()
                holder.wait()
                os.kill(child, 0)
                Ledger.reopen(path).close()
            finally:
                os.kill(child, signal.SIGKILL)

    def test_the_same_process_is_refused_too(self, ledger, path):
        with pytest.raises(LedgerError, match="in use by this process already"):
            Ledger.create(path, 1)
        link = path.with_name("link.db")
        link.symlink_to(path)
        for _ in range(2):  # and asking does not free the lock
            assert refused(path) == "in use by this process already"
            assert refused(link) == "in use by this process already"
        assert subprocess.run([sys.executable, "-c", HOLD, path], capture_output=True, input=b"").returncode == 1

    def test_a_refused_file_is_not_kept_locked(self, path):
        path.touch()
        for _ in range(2):
            assert "its tables are others" in refused(path)


def test_killed_at_any_moment_it_loses_nothing_it_acknowledged(tmp_path):
    """kill -9, ten times over on one ledger, on a disk."""
    path = tmp_path / "ledger.db"
    Ledger.create(path, 10**9).close()
    rng = random.Random()
    reserved: dict[int, int] = {}
    settled: dict[int, int] = {}
    for life in range(10):
        with start(WORK, path, life) as worker:
            acknowledged = [worker.stdout.readline()]
            time.sleep(rng.uniform(0, 0.15))
            worker.kill()
            acknowledged += worker.stdout.readlines()
        for line in acknowledged:
            if line.endswith("\n"):
                what, number, tokens = line.split()
                (reserved if what == "reserved" else settled)[int(number)] = int(tokens)
        with Ledger.reopen(path) as ledger:
            balances(ledger)
            assert ledger.reserved == ledger.overspent == 0
            entries, results = list(ledger.entries()), list(ledger.results())
            assert ledger.spent == sum(e.tokens for e in entries if e.kind in ("settle", "orphan"))
        charged = {entry.reservation: entry for entry in entries if entry.reservation}
        assert all(number in charged for number in reserved)
        assert {number: charged[number].tokens for number in settled} == settled
        # a result is there exactly when its settlement is
        assert {int(result) for _, result in results} == {n for n, e in charged.items() if e.tokens % 2}
        assert len({query for query, _ in results}) == len(results)
    assert len(settled) > 20


# --- any sequence of operations --------------------------------------------------------------------

counts = st.integers(1, 40)
answers = st.none() | st.binary(max_size=5)


class Accounts(RuleBasedStateMachine):
    """The ledger beside a model that keeps its balances by hand, one coin at a time."""

    reservations = Bundle("reservations")
    queries = st.sampled_from(["a", "b", "c", "d", "e"])

    @initialize(budget=st.integers(0, 120))
    def create(self, budget):
        self.folder = Path(tempfile.mkdtemp(dir=MEMORY))
        self.lives = 0
        self.path = self.folder / "ledger.db"
        self.ledger = Ledger.create(self.path, budget)
        self.budget = self.available = budget
        self.spent = self.debt = 0
        self.open: dict[int, tuple[str, int]] = {}
        self.answers: dict[str, bytes] = {}
        self.parts: list[tuple[str, bytes]] = []
        self.rows = 1

    def _end(self, reservation, spent):
        _, grant = self.open.pop(reservation)
        purse = self.available + grant
        paid = min(purse, self.debt + spent)
        self.available, self.spent, self.debt = purse - paid, self.spent + paid, self.debt + spent - paid
        self.rows += 1

    @rule(target=reservations, items=st.lists(st.tuples(queries, counts), max_size=3))
    def reserve_many(self, items):
        if sum(tokens for _, tokens in items) > self.available:
            with pytest.raises(Overdrawn):
                self.ledger.reserve_many(items)
            return multiple()
        numbers = self.ledger.reserve_many(items)
        for number, (query, tokens) in zip(numbers, items, strict=True):
            assert number not in self.open
            self.open[number] = query, tokens
            self.available -= tokens
        self.rows += len(items)
        return multiple(*numbers)

    @rule(target=reservations, query=queries, tokens=counts)
    def reserve(self, query, tokens):
        if tokens > self.available:
            with pytest.raises(Overdrawn):
                self.ledger.reserve(query, tokens)
            return multiple()
        number = self.ledger.reserve(query, tokens)
        self.open[number] = query, tokens
        self.available -= tokens
        self.rows += 1
        return number

    @rule(reservation=reservations, spent=st.integers(0, 60), result=answers)
    def settle(self, reservation, spent, result):
        query, _ = self.open.get(reservation, ("", 0))
        if reservation not in self.open or (result is not None and query in self.answers):
            with pytest.raises(LedgerError):
                self.ledger.settle(reservation, spent, result)
            return
        self.ledger.settle(reservation, spent, result)
        self._end(reservation, spent)
        if result is not None:
            self.answers[query] = result

    @rule(reservation=reservations, spent=st.integers(0, 60), part=st.binary(max_size=5))
    def pause(self, reservation, spent, part):
        query, _ = self.open.get(reservation, ("", 0))
        if reservation not in self.open or query in self.answers:
            with pytest.raises(LedgerError):
                self.ledger.pause(reservation, spent, part)
            return
        self.ledger.pause(reservation, spent, part)
        self._end(reservation, spent)
        self.parts.append((query, part))

    @rule(reservation=consumes(reservations))
    def void(self, reservation):
        if reservation not in self.open:
            with pytest.raises(LedgerError):
                self.ledger.void(reservation)
            return
        self.ledger.void(reservation)
        self._end(reservation, 0)

    @rule(query=queries, result=st.binary(max_size=5))
    def record(self, query, result):
        if query in self.answers:
            with pytest.raises(LedgerError):
                self.ledger.record(query, result)
            return
        self.ledger.record(query, result)
        self.answers[query] = result
        self.rows += 1

    def _orphans(self):
        for reservation, (_, grant) in list(self.open.items()):
            self._end(reservation, grant)

    @rule()
    def close_and_reopen(self):
        self.ledger.close()
        self.ledger = Ledger.reopen(self.path)
        self._orphans()

    @rule()
    def crash_and_reopen(self):
        self.lives += 1
        left = crash(self.path, self.folder / str(self.lives))
        self.ledger.close()
        self.path = left
        self.ledger = Ledger.reopen(self.path)
        self._orphans()

    @invariant()
    def the_ledger_agrees(self):
        reserved = sum(grant for _, grant in self.open.values())
        assert balances(self.ledger) == (self.available, reserved, self.spent, self.debt)
        assert self.ledger.budget == self.budget
        assert dict(self.ledger.results()) == self.answers
        assert list(self.ledger.parts()) == self.parts
        assert all(self.ledger.has_result(query) == (query in self.answers) for query in "abcde")

    @invariant()
    def the_file_agrees(self):
        with closing(sqlite3.connect(f"{self.path.as_uri()}?mode=ro", uri=True)) as db:
            rows = db.execute("SELECT id, kind, query, reservation, tokens, result FROM journal ORDER BY id").fetchall()
        assert len(rows) == self.rows
        assert rows[0][4] == self.budget
        ended = {reservation for _, _, _, reservation, _, _ in rows}
        open_ones = {row[0]: (row[2], row[4]) for row in rows if row[1] == "reserve" and row[0] not in ended}
        assert open_ones == self.open
        generated = sum(row[4] for row in rows if row[1] in ("settle", "pause", "orphan"))
        assert generated == self.spent + self.debt
        reserved = sum(grant for _, grant in open_ones.values())
        assert self.available == max(0, self.budget - reserved - generated)
        results = [(row[2], row[5]) for row in rows if row[5] is not None and row[1] != "pause"]
        assert results == list(self.answers.items())

    def teardown(self):
        if hasattr(self, "ledger"):
            self.ledger.close()
            shutil.rmtree(self.folder)


TestAnySequence = Accounts.TestCase
TestAnySequence.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@settings(max_examples=40, deadline=None)
@given(
    budget=st.integers(0, 300),
    grants=st.lists(st.integers(1, 50), max_size=12),
    data=st.data(),
)
def test_when_all_is_settled_the_balance_does_not_depend_on_the_order(budget, grants, data):
    """Whoever ends first: what was generated is charged, up to the budget, and the rest is owed."""
    while sum(grants) > budget:
        grants.pop()
    spends = [data.draw(st.integers(0, 80)) for _ in grants]
    order = data.draw(st.permutations(range(len(grants))))
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder, Ledger.create(Path(folder, "l.db"), budget) as ledger:
        numbers = ledger.reserve_many((f"q{i}", grant) for i, grant in enumerate(grants))
        for i in order:
            ledger.settle(numbers[i], spends[i])
        total = sum(spends)
        assert balances(ledger) == (max(0, budget - total), 0, min(total, budget), max(0, total - budget))
