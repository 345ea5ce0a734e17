"""Signals while a model is asked: a line, an exit code, and a run that can be resumed."""

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time

import pytest

from shadowprice.accounts.sqlite import Ledger
from shadowprice.cli import main

from ..backends import hostile
from ..conftest import request_line
from ..talking import talks

ENDED = "shadowprice: interrupted; the same command with --resume continues it (requests.answers.jsonl.run)"


@pytest.fixture
def command(batch, tmp_path):
    """The command for ten requests, in a folder of its own."""
    batch([request_line(f"q{i}") for i in range(10)])

    def made(url, *more, script=None):
        given = ["run", "requests.jsonl", "--budget", "10k", "--base-url", url, "--model", "m", *more]
        return [sys.executable, *(["-c", script] if script else ["-m", "shadowprice"]), *given]

    return made


@pytest.fixture
def start(tmp_path):
    started = []

    def make(command, **options):
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True, **options))
        return started[-1]

    yield make
    for process in started:
        process.kill()
        process.communicate()


def until(holds, seconds=30):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


def account(tmp_path):
    with Ledger.reopen(tmp_path / "requests.answers.jsonl.run" / "ledger.sqlite") as ledger:
        return ledger.spent, [entry.kind for entry in ledger.entries()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("policy", ["uniform", "tale"])
def test_other_signals_finish_what_is_under_way(command, start, tmp_path, number, policy):
    with hostile.Server(talks(10, pause=0.05)) as server:
        process = start(command(server.url, "--quiet", "--policy", policy))
        until(lambda: server.generated)
        process.send_signal(number)
        _, error = process.communicate(timeout=30)
        assert (process.returncode, error.splitlines()[-1]) == (130, ENDED)
        spent, kinds = account(tmp_path)
        assert "orphan" not in kinds
        assert spent >= server.generated
        if policy == "uniform":
            assert spent == server.generated


async def never_ends(request, reply):
    await reply.head()
    await reply.piece("word ")
    await asyncio.sleep(60)


def test_after_a_while_other_signals_cancel(command, start, tmp_path):
    script = "import sys, shadowprice.cli as cli, shadowprice.cli.live as live; live._GRACE = 0.5; sys.exit(cli.main())"
    with hostile.Server(never_ends) as server:
        process = start(command(server.url, "--quiet", script=script))
        until(lambda: server.generated)
        process.send_signal(signal.SIGTERM)
        _, error = process.communicate(timeout=20)
    assert (process.returncode, error.splitlines()[-1]) == (130, ENDED)
    assert "orphan" in account(tmp_path)[1]


def test_what_a_crash_cost_is_said_in_one_line(command, start, tmp_path):
    with hostile.Server(never_ends) as server:
        process = start(command(server.url, "--quiet", "--policy", "uniform"))
        until(lambda: len(server.requests) == 8)
        process.kill()
        process.communicate()
    with hostile.Server(talks(5)) as server:
        process = start(command(server.url, "--quiet", "--policy", "uniform", "--resume"))
        printed, _ = process.communicate(timeout=60)
        assert "  lost       8,000 tokens, charged in full for what was in flight when the run was cut off\n" in printed
        finished = start(command(server.url, "--quiet", "--policy", "uniform", "--resume", "--json"))
        assert json.loads(finished.communicate(timeout=60)[0])["lost"] == 8000


def test_hang_ups_are_ignored_under_nohup(command, start):
    with hostile.Server(talks(10, pause=0.05)) as server:
        ignore = lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)  # noqa: E731
        process = start(command(server.url, "--quiet"), preexec_fn=ignore)
        until(lambda: server.generated)
        process.send_signal(signal.SIGHUP)
        printed, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (0, "")
    assert "answered   10 requests" in printed


def test_a_terminal_that_is_closed_loses_nothing(command, tmp_path):
    with hostile.Server(talks(10, pause=0.05)) as server:
        arguments = command(server.url, "--policy", "uniform", "--concurrency", "2")
        process, terminal = pty.fork()
        if process == 0:
            os.chdir(tmp_path)
            os.execv(arguments[0], arguments)
        until(lambda: server.generated)
        os.close(terminal)
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 130
        spent, kinds = account(tmp_path)
        assert (spent, "orphan" in kinds) == (server.generated, False)


def test_progress_on_a_terminal_of_80_columns(command, tmp_path):
    """A bar, the budget and the requests, drawn again and again in the same place; no line is wrapped."""
    with hostile.Server(talks(60, pause=0.05)) as server:
        arguments = command(
            server.url, "--policy", "uniform", "--concurrency", "2", "--rate-in", "1", "--rate-out", "2"
        )
        process, terminal = pty.fork()
        if process == 0:
            os.chdir(tmp_path)
            os.environ.update(TERM="xterm", LANG="C.UTF-8")
            os.execv(arguments[0], arguments)
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        drawn = b""
        with contextlib.suppress(OSError):  # how the end of a terminal is reported
            while piece := os.read(terminal, 65536):
                drawn += piece
        os.close(terminal)
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    frames = [frame.splitlines() for frame in re.split(r"\r(?:\x1b\[\d+A)?\x1b\[J", drawn.decode())]
    bars = [frame for frame in frames if "in flight" in "".join(frame)]
    assert len(bars) > 10
    for frame in bars:
        assert re.match(r" *\d+% [█░#-]{40}  \d:\d\d", frame[0])
        assert re.match(r" +[\d,]+ of 10,000 tokens used, \d+ per second", frame[1])
        assert re.match(r" +\d+ of 10 answered, 0 cut, 0 declined, 0 failed; \d in flight", frame[2])
        assert max(map(len, frame)) < 80
    assert len({frame[1] for frame in bars}) > 10  # it moves while answers are being generated


@pytest.mark.parametrize("more", [[], ["--teacher-url", "http://127.0.0.1:9/v1"]])
def test_ctrl_c_while_the_teacher_is_asked(command, start, more):
    with hostile.Server(talks(10, pause=0.05)) as server:
        teacher = ["--teacher-url", f"{server.url}/", "--teacher-model", "t"] if more else []
        process = start(command(server.url, "--quiet", "--policy", "tale", *teacher))
        until(lambda: server.generated)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=30)
        assert (process.returncode, error.splitlines()[-1]) == (130, ENDED)
        assert "Traceback" not in error
        again = start(command(server.url, "--quiet", "--policy", "tale", *teacher, "--resume"))
        assert "answered   10 requests" in again.communicate(timeout=60)[0]


@pytest.mark.parametrize("module", ["shadowprice.cli", "numpy", "aiohttp", "shadowprice.backends.openai"])
def test_ctrl_c_while_it_starts(command, start, module):
    script = f"""
import os, signal, sys
class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupts())
from shadowprice.__main__ import main
sys.exit(main())
"""
    process = start(command("http://127.0.0.1:9/v1", "--quiet", script=script))
    _, error = process.communicate(timeout=30)
    # Python itself ends by the signal if the interrupt came while it ran generated code; shells show 130 then, too.
    assert process.returncode in (130, -signal.SIGINT)
    assert error == "shadowprice: interrupted; nothing was written\n"


def test_ctrl_c_after_the_work_shows_nothing(start):
    script = """
import atexit, os, signal, sys
atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))
sys.argv = ["shadowprice", "--version"]
from shadowprice.__main__ import main
import shadowprice.cli
shadowprice.cli.main = lambda: 3
sys.exit(main())
"""
    process = start([sys.executable, "-c", script])
    assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == 3


def test_an_empty_address_is_not_taken_for_a_model_on_this_machine(batch, capsys):
    """As in --base-url "$URL" with a variable that is not set."""
    path = batch([request_line("q")])
    assert main(["run", str(path), "--budget", "100", "--base-url", "", "--quiet"]) == 2
    assert "the base URL is invalid" in capsys.readouterr().err


def test_an_address_that_names_no_host_is_not_waited_for(batch, capsys):
    path = batch([request_line("q")])
    assert main(["run", str(path), "--budget", "100", "--base-url", "http://my server/v1", "--quiet"]) == 2
    assert "the base URL is invalid" in capsys.readouterr().err
