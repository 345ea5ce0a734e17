"""Programs that try to get out of the box do not, at any level of the sandbox, whether root or a normal user grades."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

import shadowprice
from shadowprice.grading.levels import _open_to_all

from .escapes import DOING, FORGING, SEEING, attempt

UID = 54321  # a user without any rights, for tests that run as root
SECRET = "sk-hunter2-hunter2"
LEVELS = ("bubblewrap", "namespaces")
GRADER = """
import json, sys
from shadowprice.grading import Limits, grade
from shadowprice.grading.levels import problem_of
for line in sys.stdin:
    kind, *rest = json.loads(line)
    if kind == "problem":
        found = problem_of(*rest)
    else:
        answer, tests, level, seconds = rest
        grade_ = grade("code", answer, tests, level=level, limits=Limits(seconds=seconds))
        found = [grade_.correct, grade_.reason, grade_.detail]
    print(json.dumps(found), flush=True)
"""


class World:
    """What a user has outside the box, and a process of theirs that grades."""

    def __init__(self, stack: ExitStack, uid: int) -> None:
        self.top = Path(tempfile.mkdtemp(prefix="esc-"))
        stack.callback(shutil.rmtree, self.top)
        self.top.chmod(0o755)
        home, folder = self.top / "home", self.top / "open"
        home.mkdir()
        folder.mkdir()
        (home / "private").write_text(SECRET)
        (home / "private").chmod(0o600)
        (folder / "precious").write_text("kept")
        self.listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = self.listener.getsockname()[1]
        self.udp = self._bound(stack, socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", port))
        self.unix = self._bound(stack, socket.AF_UNIX, socket.SOCK_STREAM, str(folder / "socket"))
        self.datagrams = self._bound(stack, socket.AF_UNIX, socket.SOCK_DGRAM, str(folder / "datagrams"))
        self.abstract = self._bound(stack, socket.AF_UNIX, socket.SOCK_STREAM, f"\0{self.top.name}")
        os.mkfifo(folder / "fifo")
        self.fifo = os.open(folder / "fifo", os.O_RDWR | os.O_NONBLOCK)
        stack.callback(os.close, self.fifo)
        for path in (home, home / "private", folder, *folder.iterdir()):
            os.chown(path, uid, -1)
        for path in (folder, *folder.iterdir()):
            path.chmod(0o777 if path.is_dir() else 0o666)
        who = {"user": uid, "group": uid, "extra_groups": []} if uid != os.geteuid() else {}
        environment = {"PATH": os.environ["PATH"], "OPENAI_API_KEY": SECRET, "HOME": str(home)}
        started = {"env": environment, "cwd": home, **who}
        self.victim = stack.enter_context(subprocess.Popen(["sleep", "1000"], **started))
        stack.callback(self.victim.kill)
        environment["PYTHONPATH"] = str(Path(shadowprice.__file__).parents[1])
        self.python = sys.executable if not who else "/usr/bin/python3"
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.grader = stack.enter_context(subprocess.Popen([self.python, "-c", GRADER], **pipes, **started))
        stack.callback(self.grader.kill)
        self.started = started
        self.facts = {
            "secret": SECRET,
            "home": str(home),
            "private": str(home / "private"),
            "folder": str(folder),
            "socket": str(folder / "socket"),
            "datagrams": str(folder / "datagrams"),
            "abstract": self.top.name,
            "fifo": str(folder / "fifo"),
            "port": port,
            "victim": self.victim.pid,
            "grader": self.grader.pid,
            "marker": f"marker-{self.top.name}",
            "name": self.top.name,
        }
        self.files = self._files()

    def _bound(self, stack, family, kind, address):
        each = stack.enter_context(socket.socket(family, kind))
        each.bind(address)
        if kind == socket.SOCK_STREAM:
            each.listen()
        return each

    def ask(self, *question):
        self.grader.stdin.write(json.dumps(question) + "\n")
        self.grader.stdin.flush()
        return json.loads(self.grader.stdout.readline())

    def grade(self, answer, tests, level, seconds=4.0):
        correct, reason, detail = self.ask("grade", answer, tests, level, seconds)
        return SimpleNamespace(correct=correct, reason=reason, detail=detail)

    def _files(self):
        return {path: path.read_text() if path.is_file() else "" for path in sorted(self.top.rglob("*"))}

    def check(self) -> None:
        """Everything is as it was, and nothing has arrived."""
        assert self.victim.poll() is None
        assert self.grader.poll() is None
        assert self._files() == self.files
        for each in (self.listener, self.unix, self.abstract):
            each.setblocking(False)
            with pytest.raises(BlockingIOError):
                each.accept()
        for each in (self.udp, self.datagrams):
            each.setblocking(False)
            with pytest.raises(BlockingIOError):
                each.recv(100)
        with pytest.raises(BlockingIOError):
            os.read(self.fifo, 100)
        marker = f"*{self.facts['marker']}*"
        assert [*Path("/tmp").glob(marker), *Path("/dev/shm").glob(marker)] == []
        assert self.running() == 0

    def running(self) -> int:
        """How many processes of attempts there are, inside a box or outside."""
        count = 0
        for path in Path("/proc").glob("[0-9]*/comm"):
            with suppress(OSError):  # it has just ended
                count += path.read_text().strip() == self.facts["name"]
        return count

    def restore(self) -> None:
        """After attempts that were meant to succeed."""
        for path in sorted(set(self._files()) - set(self.files)):
            path.unlink()
        for path, text in self.files.items():
            if path.is_file():
                path.write_text(text)
        for each in (self.listener, self.unix, self.abstract):
            each.setblocking(False)
            with suppress(BlockingIOError):
                while True:
                    each.accept()[0].close()
        for each in (self.udp, self.datagrams):
            each.setblocking(False)
            with suppress(BlockingIOError):
                while True:
                    each.recv(100)
        with suppress(BlockingIOError):
            os.read(self.fifo, 100)


@pytest.fixture(scope="module", params=["root", "user"])
def world(request):
    """Of root, if tests run as root, and of a normal user."""
    if request.param == "root" and os.geteuid() != 0:
        pytest.skip("tests do not run as root")
    if request.param == "user" and os.geteuid() == 0 and not _usable("/usr/bin/python3"):
        pytest.skip("no interpreter and package that a normal user may read")
    uid = 0 if request.param == "root" else os.geteuid() or UID
    with ExitStack() as stack:
        yield World(stack, uid)


def _usable(python: str) -> bool:
    if not (os.path.exists(python) and _open_to_all(python) and _open_to_all(str(Path(shadowprice.__file__).parent))):
        return False
    recent = "import sys; sys.exit(sys.version_info < (3, 11))"
    return subprocess.run([python, "-c", recent], check=False).returncode == 0


@pytest.fixture(params=LEVELS)
def level(request, world):
    """Of the sandbox, if it can be had here."""
    if problem := world.ask("problem", request.param):
        pytest.skip(f"{request.param}: {problem}")
    return request.param


@pytest.mark.parametrize("body", [*SEEING.values(), *DOING.values()], ids=[*SEEING, *DOING])
def test_an_attempt_fails(body, world, level):
    found = world.grade(attempt(body, world.facts), "loot = f(0)\nassert not loot, loot", level)
    assert found.correct, found
    world.check()


def test_nothing_happens_later(world, level):
    world.grade(attempt(DOING["a daemon that writes when all is over"], world.facts), "f(0)\nassert 1", level)
    time.sleep(1.5)
    world.check()


@pytest.mark.parametrize("program", FORGING.values(), ids=FORGING)
def test_a_verdict_is_not_forged(program, world, level):
    found = world.grade(textwrap.dedent(program), "assert f(1) == 2", level, seconds=1.0)
    assert found.correct is False, found
    world.check()


@pytest.mark.parametrize("body", SEEING.values(), ids=SEEING)
def test_outside_the_box_the_attempt_succeeds(body, world):
    """So it is the box that makes it fail."""
    with tempfile.TemporaryDirectory() as folder:
        os.chown(folder, world.top.joinpath("home").stat().st_uid, -1)
        program = attempt(body, world.facts) + "\nprint(f(0))"
        where = {**world.started, "cwd": folder}
        done = subprocess.run([world.python, "-c", program], capture_output=True, text=True, check=False, **where)
    world.restore()
    assert done.stdout.strip() not in ("", "None", "False", "[]"), done
