"""The ledger in a file: nothing is lost, nothing is charged twice, nothing is charged too little."""

import random
import tempfile
import time
from contextlib import closing
from pathlib import Path

import pytest

from shadowprice.accounts.sqlite import Ledger
from shadowprice.errors import LedgerError
from shadowprice.types import Usage

from .conftest import MEMORY, balances, crash, forge, refused, start, state, tamper


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


# --- processes ---------------------------------------------------------------------------------


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
