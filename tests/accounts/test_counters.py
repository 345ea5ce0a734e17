import subprocess
import sys

import pytest

from shadowprice.accounts.counters import CELLS, Counters
from shadowprice.errors import LedgerError

_KILLED = """
import os, signal, sys
from pathlib import Path
from shadowprice.accounts.counters import Counters
counters = Counters(Path(sys.argv[1]), create=True)
counters[7] = 2**62 + 5
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_numbers_survive_kill_9(tmp_path):
    path = tmp_path / "a.counters"
    assert subprocess.run([sys.executable, "-c", _KILLED, path]).returncode == -9
    counters = Counters(path, create=False)
    assert [counters[6], counters[7], counters[CELLS - 1]] == [0, 2**62 + 5, 0]
    counters.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_process_holds_its_file(tmp_path):
    held = Counters(tmp_path / "a.counters", create=True)
    with pytest.raises(LedgerError, match="in use"):
        Counters(tmp_path / "a.counters", create=False)
    held.close()
    Counters(tmp_path / "a.counters", create=False).close()


def test_a_file_of_another_size_is_refused_and_not_held(tmp_path):
    path = tmp_path / "a.counters"
    path.write_bytes(b"short")
    for _ in range(2):
        with pytest.raises(LedgerError, match="cannot be used"):
            Counters(path, create=False)
