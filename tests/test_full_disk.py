"""A full disk stops a run with one line that says so; nothing is lost, and with room again it can be resumed."""

import os
import subprocess
import sys
import zlib

import pytest

from shadowprice.accounts.sqlite import Ledger

from . import test_crash
from .backends import hostile
from .test_crash import CAP, Run, Starter

REQUESTS = [f"q{i}" for i in range(48)]
SIZES = [0, 4, *range(16, 184, 8)]  # kB


async def tells_a_long_story(request, reply):
    seed = zlib.crc32(request.body["messages"][0]["content"].encode())
    count = min(request.limit, 1 + seed % 30)
    await reply.head()
    for _ in range(count):
        await reply.piece("lorem ")
    await reply.finish("length" if request.limit < 1 + seed % 30 else "stop")
    await reply.usage(count)
    await reply.end()


@pytest.fixture
def disk(tmp_path):
    """A small disk of its own, in memory; gives the function that changes its size in kB."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", place], capture_output=True)
    if made.returncode:
        pytest.skip("no disk can be mounted here")

    (place / "ballast").write_bytes(bytes(8192))  # a size of 0 would be no limit

    def resize(size):
        subprocess.run(["mount", "-o", f"remount,size={size}k", place], check=True)
        return place

    yield resize
    subprocess.run(["umount", "-l", place], check=True)


def test_a_run_on_a_disk_of_any_size_says_that_it_is_full_and_can_be_resumed(disk, tmp_path, monkeypatch):
    monkeypatch.setattr(test_crash, "REQUESTS", REQUESTS)
    stops = []
    with hostile.Server(tells_a_long_story) as server, Starter() as starter:
        for size in SIZES:
            run = Run(tmp_path / f"run {size}", starter, server, CAP * len(REQUESTS), "uniform")
            run.budget = 2 * CAP * len(REQUESTS)
            place = disk(65536) / str(size)
            place.mkdir()
            moved = [str(each).replace(str(run.folder), str(place)) for each in run.arguments[2:]]
            run.arguments = ["run", run.arguments[1], *moved]
            run.arguments[run.arguments.index("--budget") + 1] = run.budget
            disk(used(place.parent) + size)
            starter.start(run.folder / "log", run.arguments)
            code, printed = starter.wait(), (run.folder / "log").read_text()
            assert "Traceback" not in printed, printed
            if code in (0, 3):
                continue
            assert len(printed.splitlines()) == 1, printed
            assert "no space left: " in printed, printed
            assert " bytes free on the device of " in printed, printed
            assert str(place) in printed
            stops.append(printed.split(": ")[1])
            disk(65536)
            resumed = (place / "run").exists()
            starter.start(run.folder / "log", [*run.arguments, *(["--resume"] if resumed else [])])
            assert starter.wait() in (0, 3), (run.folder / "log").read_text()
            with Ledger.reopen(place / "run" / "ledger.sqlite") as ledger:
                assert (ledger.reserved, ledger.overspent) == (0, 0)
                assert server.generated - run.before <= ledger.spent <= ledger.budget
                charged = dict.fromkeys(("settle", "orphan"), 0)
                for entry in ledger.entries():
                    if entry.kind in charged:
                        charged[entry.kind] += entry.units
                assert ledger.spent == sum(charged.values())
                assert charged["settle"] <= server.generated - run.before
                assert {name for name, _ in ledger.results()} == set(REQUESTS)
            assert len((place / "out").read_text().splitlines()) == len(REQUESTS)
    assert len(stops) >= 20
    assert {os.path.basename(path) for path in stops} >= {"manifest.json", "ledger.sqlite"}


def used(place) -> int:
    found = os.statvfs(place)
    return (found.f_blocks - found.f_bfree) * found.f_frsize // 1024


# RLIMIT_FSIZE: for the process, every disk ends where the file would grow beyond it.
LIMITED = """
import resource, signal, sys
from shadowprice.accounts.sqlite import Ledger
from shadowprice.errors import LedgerError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
ledger = Ledger.create(sys.argv[1], 10**6)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    for i in range(10**4):
        if i % 2:
            ledger.settle(ledger.reserve(f"q{i}", 10), 5, result=b"x" * 1000)
        else:
            with ledger.together():
                ledger.settle(ledger.reserve(f"q{i}", 10), 5, result=b"x" * 1000)
        print(i, flush=True)
except LedgerError as error:
    print(error, file=sys.stderr)
"""


@pytest.mark.parametrize("limit", [40_000, 80_000, 150_000, 400_000])
def test_a_file_that_cannot_grow_closes_the_ledger_and_loses_nothing(tmp_path, limit):
    path = tmp_path / "ledger.db"
    done = subprocess.run([sys.executable, "-c", LIMITED, path, str(limit)], capture_output=True, text=True)
    (message,) = done.stderr.splitlines()
    assert message.startswith(f"{path}: cannot be written: ")
    acknowledged = len(done.stdout.splitlines())
    assert acknowledged > 1
    with Ledger.reopen(path) as ledger:
        known = dict(ledger.results())
        assert all(f"q{i}" in known for i in range(acknowledged))
        assert len(known) <= acknowledged + 1
        assert ledger.spent in (5 * acknowledged, 5 * acknowledged + 5, 5 * acknowledged + 10)
