"""A damaged ledger is never believed: whatever happens to the files of a killed run is noticed, or does no harm.

One process writes and is killed; each test damages a copy of what it left. `truth` is what it was told.
"""

import errno
import os
import random
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from shadowprice.accounts.mark import MarkFile, read_mark
from shadowprice.accounts.sqlite import Ledger
from shadowprice.errors import LedgerError

from .conftest import MEMORY, refused, restart_the_machine

BUDGET, TURNS = 10**6, 400
FILES = ("", "-wal", "-shm", ".mark")

# Reports a result once `settle` has returned; in between, everything else that a ledger does.
WRITER = """
import shutil, sys
from shadowprice.accounts.sqlite import Ledger
from shadowprice.types import Usage
path = sys.argv[1]
with Ledger.create(path, int(sys.argv[2])) as ledger:
    for i in range(int(sys.argv[3])):
        first, second, third = ledger.reserve_many([(f"a{i}", 50), (f"b{i}", 50), (f"c{i}", 50)])
        ledger.settle(first, i % 50, Usage(i % 50), b"answer %d " % i * 20)
        if i % 3 == 0:
            ledger.free(second)
        elif i % 3 == 1:
            ledger.settle_chunk(second, 60, Usage(60), b"chunk")
        ledger.void(third)
        if i == 200:
            for suffix in ("", "-wal", ".mark"):
                shutil.copy(path + suffix, path + suffix + ".older")
        print(f"a{i}", i % 50, ledger.available, flush=True)
    sys.stdin.read()
"""


@dataclass
class Killed:
    """What a killed process had been told."""

    folder: Path
    available: int = BUDGET
    results: dict[str, int] = field(default_factory=dict)


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("killed")
    command = [sys.executable, "-c", WRITER, str(folder / "ledger.db"), str(BUDGET), str(TURNS)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        truth = Killed(folder)
        for _ in range(TURNS):
            name, units, available = writer.stdout.readline().split()
            truth.results[name], truth.available = int(units), int(available)
        writer.kill()
    assert os.path.getsize(folder / "ledger.db-wal") > 100_000
    assert os.path.getsize(folder / "ledger.db") > 100_000
    return truth


@pytest.fixture
def left(killed):
    """A copy of what it left, to be damaged."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        shutil.copytree(killed.folder, folder, dirs_exist_ok=True)
        yield Path(folder, "ledger.db")


def check(path, truth) -> bool:
    """Whether the damage is noticed; if not, that it does no harm. Then, that its loss can be accepted safely."""
    try:
        ledger = Ledger.reopen(path)
    except LedgerError as error:
        message = str(error)
        assert message.startswith(f"{path}: "), message
        assert "\n" not in message
        with suppress(LedgerError), Ledger.reopen(path, accept_loss=True) as accepted:
            assert accepted.available <= truth.available
            assert accepted.reserved == 0
            assert {name for name, _ in accepted.results()} <= truth.results.keys()
        return True
    with ledger:
        assert ledger.available <= truth.available
        assert truth.results.keys() <= {name for name, _ in ledger.results()}
        assert all(line.startswith(f"answer {name[1:]} ".encode()) for name, line in ledger.results())
    return False


def flip(path, at, bit=0):
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << bit]))


def test_undamaged_it_is_as_it_was(left, killed):
    assert not check(left, killed)


class TestTheLog:
    @staticmethod
    def end(killed):
        """Where the last frame begins that matters; SQLite does not shorten a log that it starts anew."""
        log = (killed.folder / "ledger.db-wal").read_bytes()
        salt = log[16:24]
        frame = 24 + 4096
        return max(at for at in range(32, len(log) - frame + 1, frame) if log[at + 8 : at + 16] == salt)

    @pytest.mark.parametrize("part", range(20))
    def test_cut_anywhere_it_is_noticed(self, left, killed, part):
        log = f"{left}-wal"
        os.truncate(log, self.end(killed) * part // 20)
        assert check(left, killed)

    @pytest.mark.parametrize("part", range(30))
    def test_a_flipped_bit_is_noticed_or_harmless(self, left, killed, part):
        log = f"{left}-wal"
        flip(log, self.end(killed) * part // 30, part % 8)
        assert check(left, killed) or part == 0  # its first bit tells how it counts

    def test_without_it_the_ledger_is_refused_and_says_what_is_lost(self, left, killed):
        os.unlink(f"{left}-wal")
        message = refused(left)
        confirmed = read_mark(left).written
        assert f"but {confirmed.id:,} had been confirmed: the last " in message
        assert "entries are lost (--accept-loss keeps the first " in message
        assert refused(left) == message  # asking changes nothing
        with Ledger.reopen(left, accept_loss=True) as ledger:
            assert ledger.available <= killed.available
            assert BUDGET - ledger.available == max(confirmed.committed, ledger.spent)
            assert ledger.lost > 0
            spent = ledger.spent
        assert left.with_name("ledger.db.damaged").exists()
        with Ledger.reopen(left) as ledger:  # it was accepted once and for all
            assert ledger.spent == spent
            ledger.settle(ledger.reserve("new", 10), 3)

    def test_an_older_one_is_noticed(self, left, killed):
        shutil.copy(f"{left}-wal.older", f"{left}-wal")
        assert check(left, killed)

    def test_zeros_are_noticed(self, left, killed):
        size = self.end(killed)
        with open(f"{left}-wal", "r+b") as log:
            log.seek(size // 2)
            log.write(bytes(4096))
        assert check(left, killed)


class TestTheIndexOfTheLog:
    """The -shm file, which SQLite makes anew."""

    @pytest.mark.parametrize("content", [b"", b"x", bytes(32768), b"\xff" * 32768, "random", None])
    def test_whatever_it_contains_does_no_harm(self, left, killed, content):
        path = Path(f"{left}-shm")
        if content is None:
            path.unlink()
        else:
            path.write_bytes(random.Random(0).randbytes(32768) if content == "random" else content)
        assert not check(left, killed)


class TestTheDatabase:
    @pytest.mark.parametrize("part", range(30))
    def test_a_flipped_bit_is_noticed_or_harmless(self, left, killed, part):
        flip(left, int(os.path.getsize(left) * part / 30) + 100, part % 8)
        check(left, killed)

    @pytest.mark.parametrize("part", range(10))
    def test_cut_anywhere_it_is_noticed(self, left, killed, part):
        os.truncate(left, int(os.path.getsize(left) * part / 10))
        assert check(left, killed)

    @pytest.mark.parametrize("part", range(10))
    def test_a_page_of_zeros_is_noticed_or_harmless(self, left, killed, part):
        with open(left, "r+b") as file:
            file.seek(os.path.getsize(left) // 4096 * part // 10 * 4096)
            file.write(bytes(4096))
        check(left, killed)

    def test_a_flipped_bit_in_a_result_is_noticed_and_what_comes_before_is_kept(self, left, killed):
        Ledger.reopen(left).close()  # all in one file
        at = left.read_bytes().index(b"answer 300 answer 300")
        flip(left, at + 7, 1)
        message = refused(left)
        assert "was changed (--accept-loss keeps the first " in message
        with Ledger.reopen(left, accept_loss=True) as ledger:
            results = dict(ledger.results())
            assert results.keys() == {f"a{i}" for i in range(300)}
            assert ledger.available <= killed.available

    def test_an_older_one_with_the_latest_log_is_noticed_or_harmless(self, left, killed):
        shutil.copy(f"{left}.older", left)
        check(left, killed)

    @pytest.mark.parametrize("log", ["", "-wal"])
    def test_an_older_one_with_or_without_its_log_is_noticed(self, left, killed, log):
        shutil.copy(f"{left}.older", left)
        if log:
            shutil.copy(f"{left}-wal.older", f"{left}-wal")
        else:
            os.unlink(f"{left}-wal")
        assert check(left, killed)

    @pytest.mark.parametrize("content", [None, b"", b"no database" * 1000])
    def test_without_it_the_mark_says_what_is_left_of_the_budget(self, left, killed, content):
        Path(f"{left}-wal").unlink()
        left.unlink() if content is None else left.write_bytes(content)
        assert refused(left).endswith(f"by its mark, {BUDGET - killed.available:,} units were spent or reserved)")


class TestTheMark:
    @pytest.mark.parametrize("content", [None, b"", b"x" * 1024, b"spmark 1"])
    def test_without_it_nothing_can_be_said_and_accepting_that_charges_everything(self, left, killed, content):
        mark = Path(f"{left}.mark")
        mark.unlink() if content is None else mark.write_bytes(content)
        assert "its mark is missing or damaged" in refused(left)
        with Ledger.reopen(left, accept_loss=True) as ledger:
            assert ledger.available == 0
            assert killed.results.keys() == {name for name, _ in ledger.results()}

    @pytest.mark.parametrize("at", [0, 9, 20, 60, 130, 512, 521, 580, 647])
    def test_a_flipped_bit_leaves_the_other_slot(self, left, killed, at):
        flip(Path(f"{left}.mark"), at)
        assert not check(left, killed)

    @pytest.mark.parametrize("at", [20, 580])
    def test_with_a_damaged_slot_it_does_not_say_what_a_cut_log_has_lost(self, left, killed, at):
        flip(Path(f"{left}.mark"), at)
        os.truncate(f"{left}-wal", 50_000)
        assert check(left, killed)
        with Ledger.reopen(left) as ledger:
            assert ledger.available == 0

    def test_an_older_one_is_behind_the_journal_and_does_no_harm(self, left, killed):
        shutil.copy(f"{left}.mark.older", f"{left}.mark")
        assert not check(left, killed)

    def test_that_of_another_ledger_is_noticed(self, left, killed, tmp_path):
        with Ledger.create(tmp_path / "other.db", 100) as other:
            other.reserve("x", 10)
        shutil.copy(tmp_path / "other.db.mark", f"{left}.mark")
        assert "entry 2 is not the one that had been confirmed" in refused(left)
        assert check(left, killed)


def test_after_a_restart_of_the_machine_a_lost_settlement_is_not_damage(tmp_path, monkeypatch):
    """Settlements do not wait for the disk; those that a power cut took are charged in full."""
    path = tmp_path / "ledger.db"
    with Ledger.create(path, 100) as ledger:
        first, _ = ledger.reserve_many([("a", 20), ("b", 30)])
        size = os.path.getsize(f"{path}-wal")
        ledger.settle(first, 5)
        for suffix in FILES:
            shutil.copy(f"{path}{suffix}", f"{tmp_path / 'copy.db'}{suffix}")
    copy = tmp_path / "copy.db"
    os.truncate(f"{copy}-wal", size)
    assert "the journal ends at entry 3, but 4 had been confirmed: the last 1 entries are lost" in refused(copy)
    restart_the_machine(monkeypatch)
    with Ledger.reopen(copy) as ledger:
        assert ledger.spent == 50


def test_after_a_restart_of_the_machine_a_lost_reservation_is_noticed(tmp_path, monkeypatch):
    path, copy = tmp_path / "ledger.db", tmp_path / "copy.db"
    with Ledger.create(path, 100) as ledger:
        ledger.reserve("a", 20)
        size = os.path.getsize(f"{path}-wal")
        ledger.reserve("b", 30)
        for suffix in FILES:
            shutil.copy(f"{path}{suffix}", f"{copy}{suffix}")
    os.truncate(f"{copy}-wal", size)
    restart_the_machine(monkeypatch)
    assert "the journal ends at entry 2, but 3 had been confirmed" in refused(copy)
    with Ledger.reopen(copy, accept_loss=True) as ledger:
        assert (ledger.available, ledger.lost) == (50, 30)


def test_random_damage_in_several_places(killed, left):
    rng, noticed, path = random.Random(1), 0, left
    for _ in range(40):
        shutil.rmtree(left.parent)
        shutil.copytree(killed.folder, left.parent)
        for _ in range(rng.randint(1, 3)):
            victim = f"{path}{rng.choice(['', '-wal'])}"
            if not os.path.exists(victim) or not (size := os.path.getsize(victim)):
                continue
            how = rng.randrange(4)
            if how == 0:
                os.truncate(victim, rng.randrange(size))
            elif how == 1:
                flip(victim, rng.randrange(size), rng.randrange(8))
            else:
                with open(victim, "r+b") as file:
                    file.seek(rng.randrange(size))
                    file.write(rng.randbytes(rng.randint(1, 5000)))
        noticed += check(path, killed)
    assert noticed > 25


@pytest.mark.parametrize("moment", range(5))
def test_accepting_a_loss_can_be_interrupted(left, killed, monkeypatch, moment):
    """Whatever was done by then, the ledger is refused as before, or its loss was accepted."""
    os.unlink(f"{left}-wal")
    steps = iter(range(100))

    def stops(wrapped):
        def act(*arguments, **options):
            if next(steps) == moment:
                raise KeyboardInterrupt
            return wrapped(*arguments, **options)

        return act

    with monkeypatch.context() as patch:
        patch.setattr("os.link", stops(os.link))
        patch.setattr("pathlib.Path.replace", stops(Path.replace))
        patch.setattr("shadowprice.accounts.damage.MarkFile.create", stops(MarkFile.create))
        with suppress(KeyboardInterrupt):
            Ledger.reopen(left, accept_loss=True).close()
    check(left, killed)
    with Ledger.reopen(left, accept_loss=True) as ledger:
        assert ledger.available <= killed.available


def test_a_write_error_at_the_end_of_together_leaves_nothing_of_it(tmp_path):
    path = tmp_path / "ledger.db"
    with Ledger.create(path, 1000) as ledger:
        first = ledger.reserve("a", 100)
        ledger._store._db.execute("PRAGMA max_page_count = 1")

        def act():
            with ledger.together():
                ledger.settle(first, 30, result=b"x" * 100_000)
                ledger.reserve("b", 200)

        with pytest.raises(LedgerError, match="no space left"):
            act()
        with pytest.raises(LedgerError, match="closed"):
            ledger.reserve("c", 1)
    with Ledger.reopen(path) as ledger:
        assert [entry.kind for entry in ledger.entries()] == ["budget", "reserve", "orphan"]
        assert (ledger.available, list(ledger.results())) == (900, [])


def test_a_mark_that_cannot_be_written_closes_the_ledger_and_loses_nothing(tmp_path, monkeypatch):
    path = tmp_path / "ledger.db"

    def fails(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with Ledger.create(path, 1000) as ledger, monkeypatch.context() as patch:
        first = ledger.reserve("a", 100)
        patch.setattr("os.pwrite", fails)
        with pytest.raises(LedgerError, match="no space left"):
            ledger.settle(first, 30, result=b"answer")
    with Ledger.reopen(path) as ledger:
        assert (ledger.available, dict(ledger.results())) == (970, {"a": b"answer"})
