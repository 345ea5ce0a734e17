"""A file has one writer: until it lets go, or its process has ended."""

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from shadowprice.accounts.lock import Lock, beside
from shadowprice.accounts.sqlite import Ledger
from shadowprice.errors import LedgerError

from .conftest import refused, start

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


class TestOneWriter:
    def test_another_process_is_refused_until_the_first_has_ended(self, path):
        Ledger.create(path, 100).close()
        with start(HOLD, path) as holder:
            assert holder.stdout.readline() == "open\n"
            assert refused(path) == "in use by another process"
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

    def test_the_same_process_is_refused_too(self, path):
        ledger = Ledger.create(path, 100)
        with pytest.raises(LedgerError, match="in use by this process"):
            Ledger.create(path, 1)
        link = path.with_name("link.db")
        link.symlink_to(path)
        for _ in range(2):  # and asking does not free the lock
            assert refused(path) == "in use by this process"
            assert refused(link) == "in use by this process"
        assert subprocess.run([sys.executable, "-c", HOLD, path], capture_output=True, input=b"").returncode == 1
        ledger.close()

    def test_a_refused_file_is_not_kept_locked(self, path):
        path.touch()
        for _ in range(2):
            assert "its tables are not those of a ledger" in refused(path)


class TestALock:
    def test_can_be_taken_again_once_it_is_released(self, path):
        for _ in range(2):
            lock = Lock(path)
            with pytest.raises(LedgerError) as caught:
                Lock(path)
            assert str(caught.value) == f"{path}: in use by this process"
            lock.release()

    def test_may_be_released_twice_without_freeing_the_next(self, path):
        first = Lock(path)
        first.release()
        second = Lock(path)
        first.release()
        with pytest.raises(LedgerError, match="in use by this process"):
            Lock(path)
        second.release()

    def test_is_a_file_beside_the_one_it_protects(self, path):
        path.write_bytes(b"content")
        lock = Lock(path)
        assert sorted(each.name for each in path.parent.iterdir()) == ["ledger.db", "ledger.db.lock"]
        assert path.read_bytes() == b"content"
        lock.release()

    def test_of_another_file_is_another(self, path):
        locks = [Lock(path), Lock(path.with_name("other.db"))]
        for lock in locks:
            lock.release()

    def test_that_cannot_be_made_is_refused_and_not_kept(self, path):
        beside(path, ".lock").mkdir()
        for _ in range(2):
            with pytest.raises(LedgerError, match=r"ledger\.db: cannot be locked: Is a directory$"):
                Lock(path)
        beside(path, ".lock").rmdir()
        Lock(path).release()


def test_links_are_resolved_to_find_what_is_beside_a_file(path):
    (path.parent / "folder").mkdir()
    link = path.parent / "folder" / "link.db"
    link.symlink_to(path)
    assert beside(link, ".mark") == beside(path, ".mark") == Path(os.path.realpath(path.parent)) / "ledger.db.mark"
