"""The ledger in a file: nothing is lost, nothing is charged twice, nothing is charged too little."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import pytest

from shadowprice.accounts.sqlite import Ledger
from shadowprice.errors import LedgerError
from shadowprice.types import Usage

from .conftest import MEMORY, balances, crash, forge, refused, restart_the_machine, state, tamper


@pytest.fixture
def ledger(path):
    with Ledger.create(path, 100) as ledger:
        yield ledger


def fill(ledger):
    """One entry of every kind but `orphan`, and an open reservation."""
    first, second, third, _ = ledger.reserve_many([("a", 20), ("b", 10), ("c", 10), ("d", 30)])
    ledger.settle(first, 25, Usage(25, 7, 3), b"answer")
    ledger.settle_chunk(second, 5, Usage(5, 2), b"Once ")
    ledger.void(third)
    ledger.note("c", b"failed")
    ledger.note("c", b"declined")
    ledger.note("e", b"failed")
    ledger.record("e", b"answer")
    ledger.free(ledger.reserve("f", 10))


class TestReopening:
    def test_everything_is_as_it_was(self, ledger, path):
        fill(ledger)
        ledger.void(5)
        before = state(ledger)
        assert ledger.beyond_grants == 5
        ledger.close()
        with Ledger.reopen(path) as reopened:
            assert state(reopened) == before
            assert reopened.has_result("a")
            assert reopened.exposed == 10
            assert list(reopened.notes()) == [("c", b"declined")]
            reopened.settle(reopened.reserve("c", 10), 1, Usage(1), b"answer")
            assert list(reopened.notes()) == []

    def test_results_are_any_bytes(self, ledger, path):
        kept = [("", b""), ("a\0b", bytes(range(256))), ("ünï\n💡", b"x" * 100_000), ("'; DROP TABLE journal", b"\0")]
        for request, line in kept:
            ledger.note(request, line)
            ledger.settle_chunk(ledger.reserve(request, 1), 1, Usage(1), line)
            ledger.settle(ledger.reserve(request, 1), 1, Usage(1), line)
        ledger.close()
        with Ledger.reopen(path) as reopened:
            assert list(reopened.results()) == kept
            assert list(reopened.chunks()) == kept

    def test_a_debt_is_remembered(self, ledger, path):
        ledger.settle(ledger.reserve("a", 10), 170)
        before = state(ledger)
        ledger.close()
        with Ledger.reopen(path) as reopened:
            assert state(reopened) == before

    def test_an_open_reservation_is_charged_in_full(self, path):
        with Ledger.create(path, 100) as ledger:
            ledger.settle(ledger.reserve("a", 20), 5)
            orphan = ledger.reserve("b", 30)
        for _ in range(2):  # once, however often it is reopened
            with Ledger.reopen(path) as ledger:
                assert balances(ledger) == (65, 0, 35, 0)
                assert list(ledger.entries())[-1] == (5, "orphan", "b", orphan, 30, None, False)
                with pytest.raises(LedgerError, match="no open reservation"):
                    ledger.settle(orphan, 10)

    def test_a_refusal_leaves_no_trace_in_the_file(self, ledger, path):
        reservation = ledger.reserve("a", 10)
        ledger.record("a", b"answer")
        before = list(ledger.entries())
        for act in (
            lambda: ledger.reserve("b", 91),
            lambda: ledger.reserve_many([("b", 1), ("c", 0)]),
            lambda: ledger.settle(reservation, 5, Usage(5), b"second"),
            lambda: ledger.note_many([("b", b"declined"), ("a", b"declined")]),
        ):
            with pytest.raises(LedgerError):
                act()
        with closing(Ledger.reopen(crash(path, path.parent / "elsewhere"))) as reopened:
            assert list(reopened.entries())[:-1] == before


class TestOpening:
    def test_a_file_that_exists_is_not_overwritten(self, path):
        path.write_text("precious")
        with pytest.raises(LedgerError, match=r"ledger\.db: exists \(resume that run, or choose another path\)$"):
            Ledger.create(path, 1)
        assert path.read_text() == "precious"

    def test_a_folder_that_does_not_exist(self, tmp_path):
        with pytest.raises(LedgerError, match="No such file or directory"):
            Ledger.create(tmp_path / "nowhere" / "ledger.db", 1)

    def test_a_missing_file(self, path):
        assert refused(path).startswith("no such ledger (")
        assert refused(path.parent).startswith("no such ledger (")
        assert list(path.parent.iterdir()) == []

    def test_names_that_mean_something_in_a_uri(self, tmp_path):
        path = tmp_path / "50%20?mode=memory#x.db"
        Ledger.create(path, 1).close()
        assert path.exists()
        with Ledger.reopen(str(path)) as ledger:
            assert ledger.path == path

    def test_what_a_crash_in_create_leaves_does_no_harm(self, path):
        path.with_name("ledger.db.new").write_bytes(b"half a led")
        with Ledger.create(path, 7) as ledger:
            assert ledger.budget == 7

    def test_the_log_of_a_deleted_ledger_is_not_replayed(self, path, tmp_path):
        with Ledger.create(path, 100) as ledger:
            ledger.reserve("old", 60)
            left = crash(path, tmp_path / "elsewhere")
        left.unlink()
        assert left.with_name("ledger.db-wal").exists()
        with Ledger.create(left, 7) as ledger:
            assert balances(ledger) == (7, 0, 0, 0)


# The table that older versions wrote, as far as it matters.
OLD = (
    "CREATE TABLE journal (id INTEGER PRIMARY KEY, kind TEXT NOT NULL, query TEXT, reservation INTEGER UNIQUE, "
    "tokens INTEGER NOT NULL, result BLOB)",
    "INSERT INTO journal VALUES (1, 'budget', NULL, NULL, 100, NULL)",
)


class TestDamage:
    def test_a_file_that_is_not_a_database(self, path):
        path.write_text("requests\n" * 1000)
        assert refused(path) == (
            "not a valid ledger: file is not a database (start a new run with what is left of the budget)"
        )

    def test_a_database_that_is_not_a_ledger(self, path):
        tamper(path, "CREATE TABLE journal (id, kind)")
        before = path.read_bytes()
        assert refused(path).startswith("not a valid ledger: its tables are not those of a ledger (")
        assert path.read_bytes() == before

    def test_a_ledger_of_an_older_version(self, path):
        tamper(path, *OLD)
        before = path.read_bytes()
        for _ in range(2):
            assert refused(path) == "was written by an older version of shadowprice (start a new run)"
        assert path.read_bytes() == before

    def test_an_empty_file(self, path):
        path.touch()
        assert "its tables are not those of a ledger" in refused(path)

    @pytest.mark.parametrize(
        ("statement", "message"),
        [
            ("DELETE FROM journal WHERE id = 2", "entry 2 is missing"),
            ("DELETE FROM journal WHERE id = 3", "entry 3 is missing"),
            ("DELETE FROM journal WHERE id = 1", "it has no budget"),
            ("DELETE FROM journal", "it has no budget"),
            ("UPDATE journal SET units = 10 WHERE id = 1", "entry 2 reserves more than was available"),
            ("UPDATE journal SET units = 101 WHERE id = 2", "entry 2 reserves more than was available"),
            ("UPDATE journal SET units = 5 WHERE kind = 'orphan'", "entry 15 does not fit its reservation"),
            ("UPDATE journal SET request = 'x' WHERE id = 6", "entry 6 does not fit its reservation"),
            ("UPDATE journal SET reservation = 1 WHERE id = 6", "no open reservation 1"),
            ("UPDATE journal SET request = 'a' WHERE id = 9", "entry 9 follows the result of request 'a'"),
            ("UPDATE journal SET kind = 'gift' WHERE id = 6", "CHECK constraint failed"),
            ("UPDATE journal SET kind = 'record' WHERE id = 7", "CHECK constraint failed"),
            ("UPDATE journal SET units = -5 WHERE id = 6", "CHECK constraint failed"),
            ("UPDATE journal SET units = 'five' WHERE id = 6", "CHECK constraint failed"),
            ("UPDATE journal SET units = 5 WHERE kind = 'note'", "CHECK constraint failed"),
            ("UPDATE journal SET units = 5 WHERE kind = 'free'", "CHECK constraint failed"),
            ("UPDATE journal SET result = NULL WHERE kind = 'note'", "CHECK constraint failed"),
            ("UPDATE journal SET result = NULL WHERE kind = 'chunk'", "CHECK constraint failed"),
            ("UPDATE journal SET output = NULL WHERE kind = 'settle'", "CHECK constraint failed"),
            ("UPDATE journal SET cached = NULL WHERE kind = 'chunk'", "CHECK constraint failed"),
            ("UPDATE journal SET input = 0 WHERE kind = 'reserve'", "CHECK constraint failed"),
            ("UPDATE journal SET output = 0, input = 0, cached = 0 WHERE kind = 'void'", "CHECK constraint failed"),
            ("UPDATE journal SET input = -1 WHERE kind = 'settle'", "CHECK constraint failed"),
            ("UPDATE journal SET cached = 0.5 WHERE kind = 'settle'", "CHECK constraint failed"),
            ("UPDATE journal SET output = 'five' WHERE kind = 'chunk'", "CHECK constraint failed"),
        ],
    )
    def test_a_journal_that_does_not_add_up(self, path, statement, message):
        with Ledger.create(path, 100) as ledger:
            fill(ledger)
        Ledger.reopen(path).close()
        forge(path, statement, chained=True)
        found = refused(path)
        assert found.startswith("not a valid ledger: ")
        assert message in found

    @pytest.mark.parametrize(
        ("statement", "valid"),
        [
            ("UPDATE journal SET result = x'00' WHERE id = 6", 5),
            ("UPDATE journal SET units = 19 WHERE id = 2", 1),
            ("UPDATE journal SET units = 26 WHERE id = 6", 5),
            ("UPDATE journal SET cached = 4 WHERE id = 6", 5),
            ("UPDATE journal SET request = 'A' WHERE request = 'a'", 1),
            ("UPDATE journal SET kind = 'void' WHERE kind = 'free'", 13),
            ("UPDATE journal SET digest = zeroblob(16) WHERE id = 7", 6),
            ("DELETE FROM journal WHERE id = 9", 8),
            ("INSERT INTO journal SELECT 16, kind, request, NULL, units, NULL, NULL, NULL, digest, result FROM journal "
             "WHERE id = 9", 15),
        ],
    )  # fmt: skip
    def test_a_row_that_was_changed_removed_or_added_by_others(self, path, statement, valid):
        with Ledger.create(path, 100) as ledger:
            fill(ledger)
        Ledger.reopen(path).close()
        forge(path, statement, chained=False)
        assert f"(--accept-loss keeps the first {valid} entries" in refused(path)

    def test_two_rows_that_were_exchanged(self, path):
        with Ledger.create(path, 100) as ledger:
            ledger.note_many([("a", b"1"), ("b", b"2"), ("a", b"3")])
        forge(path, "UPDATE journal SET id = CASE id WHEN 2 THEN -4 ELSE -2 END WHERE id IN (2, 4)", chained=False)
        forge(path, "UPDATE journal SET id = -id WHERE id < 0", chained=False)
        assert "entry 2 was changed" in refused(path)

    @pytest.mark.parametrize("dropped", ["no_delete", "no_update", "no_replace"])
    def test_a_ledger_without_its_triggers(self, path, dropped):
        Ledger.create(path, 100).close()
        tamper(path, f"DROP TRIGGER {dropped}")
        assert "its tables are not those of a ledger" in refused(path)

    def test_any_bytes_overwritten_or_cut_off(self):
        with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
            path = Path(folder, "ledger.db")
            with Ledger.create(path, 10_000) as ledger:
                for i in range(40):
                    ledger.note(f"q{i}", b"waits")
                    ledger.settle(ledger.reserve(f"q{i}", 100), i, Usage(i, 10, 5), b"answer " * i)
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
                        state(ledger)
                except LedgerError as error:
                    refusals.append(str(error))
            assert len(refusals) > 100
            assert not any("\n" in message for message in refusals)


class TestTheJournalIsAppendOnly:
    """Whoever writes to the file; a careless user of the `sqlite3` shell is stopped as well."""

    @pytest.mark.parametrize(
        "statement",
        [
            "UPDATE journal SET units = 0 WHERE kind = 'settle'",
            "UPDATE journal SET result = NULL",
            "DELETE FROM journal WHERE id = 3",
            "DELETE FROM journal",
            "INSERT OR REPLACE INTO journal VALUES (3, 'settle', 'a', 2, 0, 0, 0, 0, randomblob(16), NULL)",
            "REPLACE INTO journal VALUES (1, 'budget', NULL, NULL, 1000, NULL, NULL, NULL, randomblob(16), NULL)",
            "INSERT INTO journal VALUES (4, 'note', 'b', NULL, 0, NULL, NULL, NULL, x'00', x'00')",
            "INSERT INTO journal VALUES (4, 'note', 'b', NULL, 0, NULL, NULL, NULL, NULL, x'00')",
            "INSERT INTO journal VALUES (9, 'reserve', 'b', NULL, 10, NULL, NULL, NULL, randomblob(16), NULL)",
            "INSERT INTO journal (kind, request, units, digest) VALUES ('reserve', 'b', 10, randomblob(16))",
            "INSERT INTO journal VALUES (4, 'record', 'b', NULL, 10, NULL, NULL, NULL, randomblob(16), x'00')",
            "INSERT INTO journal VALUES (4, 'record', 'b', NULL, 0, 1, 1, 1, randomblob(16), x'00')",
            "INSERT INTO journal VALUES (4, 'budget', NULL, NULL, 10, NULL, NULL, NULL, randomblob(16), NULL)",
        ],
    )
    def test_no_row_is_changed_removed_or_inserted_between_others(self, path, statement):
        with Ledger.create(path, 100) as ledger:
            ledger.settle(ledger.reserve("a", 60), 25, Usage(25), b"answer")
            before = state(ledger)
        with pytest.raises(sqlite3.IntegrityError):
            tamper(path, statement)
        with Ledger.reopen(path) as ledger:
            assert state(ledger) == before

    @pytest.mark.parametrize(
        "values",
        [
            "'settle', 'a', 2, 0, 0, 0, 0, randomblob(16), NULL",
            "'record', 'a', NULL, 0, NULL, NULL, NULL, randomblob(16), x'00'",
            "'note', 'a', NULL, 0, NULL, NULL, NULL, randomblob(16), x'00'",
            "'loss', NULL, NULL, 1, NULL, NULL, NULL, randomblob(16), NULL",
            "'reserve', 'b', NULL, 1, NULL, NULL, NULL, (SELECT digest FROM journal WHERE id = 3), NULL",
        ],
    )
    def test_a_row_that_others_appended_is_noticed(self, path, values):
        with Ledger.create(path, 100) as ledger:
            ledger.settle(ledger.reserve("a", 60), 25, Usage(25), b"answer")
        tamper(path, f"INSERT OR REPLACE INTO journal VALUES (4, {values})")
        assert refused(path).startswith("not a valid ledger: entry 4 was changed (--accept-loss keeps the first 3 ")


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

    def test_an_interrupt_in_the_middle_of_a_write(self, ledger, path, monkeypatch):
        reservation = ledger.reserve("a", 60)

        def interrupted(*_):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr("shadowprice.accounts.journal.Balances.add", interrupted)
            with pytest.raises(KeyboardInterrupt):
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


# --- processes ---------------------------------------------------------------------------------


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
from shadowprice.types import Usage
rng = random.Random(int(sys.argv[2]))
with Ledger.reopen(sys.argv[1]) as ledger:
    while True:
        name = sys.argv[2] + "-" + str(rng.random())
        for number in ledger.reserve_many((name + c, 50) for c in "ab"[: rng.randint(1, 2)]):
            print("reserved", number, 50, flush=True)
            units = rng.randint(0, 60)
            if units == 0:
                ledger.void(number)
            elif units % 3 == 0:
                ledger.settle_chunk(number, units, Usage(units), str(number).encode())
            else:
                ledger.settle(number, units, Usage(units), str(number).encode() if units % 2 else None)
            print("settled", number, units, flush=True)
        ledger.note_many([(name, name.encode()), (name + "-", b"")])
        print("noted", name, 0, flush=True)
"""


class TestOneWriter:
    def test_another_process_is_refused_until_the_first_has_ended(self, path):
        Ledger.create(path, 100).close()
        with start(HOLD, path) as holder:
            assert holder.stdout.readline() == "open\n"
            began = time.monotonic()
            assert refused(path) == "in use by another process"
            assert time.monotonic() - began < 1
            with closing(sqlite3.connect(path)) as reader:
                assert reader.execute("SELECT units FROM journal").fetchall() == [(100,)]
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
        with pytest.raises(LedgerError, match="in use by this process"):
            Ledger.create(path, 1)
        link = path.with_name("link.db")
        link.symlink_to(path)
        for _ in range(2):  # and asking does not free the lock
            assert refused(path) == "in use by this process"
            assert refused(link) == "in use by this process"
        assert subprocess.run([sys.executable, "-c", HOLD, path], capture_output=True, input=b"").returncode == 1

    def test_a_refused_file_is_not_kept_locked(self, path):
        path.touch()
        for _ in range(2):
            assert "its tables are not those of a ledger" in refused(path)


def test_killed_at_any_moment_it_loses_nothing_it_acknowledged(tmp_path):
    """kill -9, ten times over on one ledger, on a disk."""
    path = tmp_path / "ledger.db"
    Ledger.create(path, 10**9).close()
    rng = random.Random()
    reserved: dict[int, int] = {}
    settled: dict[int, int] = {}
    noted: set[str] = set()
    for life in range(10):
        with start(WORK, path, life) as worker:
            acknowledged = [worker.stdout.readline()]
            time.sleep(rng.uniform(0, 0.15))
            worker.kill()
            acknowledged += worker.stdout.readlines()
        for line in acknowledged:
            if line.endswith("\n"):
                what, name, units = line.split()
                if what == "noted":
                    noted.add(name)
                else:
                    (reserved if what == "reserved" else settled)[int(name)] = int(units)
        with Ledger.reopen(path) as ledger:
            balances(ledger)
            assert ledger.reserved == ledger.overspent == 0
            entries, results, chunks = list(ledger.entries()), list(ledger.results()), list(ledger.chunks())
            notes = dict(ledger.notes())
            assert ledger.spent == sum(e.units for e in entries if e.kind in ("settle", "chunk", "orphan"))
            assert ledger.usage.output == sum(e.units for e in entries if e.kind in ("settle", "chunk"))
        charged = {entry.reservation: entry for entry in entries if entry.reservation}
        assert all(number in charged for number in reserved)
        assert {number: charged[number].units for number in settled} == settled
        # a result or chunk is there exactly when its settlement is
        ended = {number: entry.units for number, entry in charged.items() if entry.kind in ("settle", "chunk")}
        assert {int(chunk) for _, chunk in chunks} == {n for n, units in ended.items() if units % 3 == 0}
        assert {int(result) for _, result in results} == {n for n, u in ended.items() if u % 2 and u % 3}
        assert len({request for request, _ in results}) == len(results)
        assert noted <= notes.keys()
        assert all(f"{name}-" in notes for name in notes if notes[name])  # both notes of a transaction
    assert len(settled) > 20
    assert len(noted) > 10
