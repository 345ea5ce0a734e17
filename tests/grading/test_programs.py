"""Programs in the sandbox: correct ones pass, and wrong ones neither pass nor escape."""

import gzip
import json
import os
import random
import shutil
import socket
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from shadowprice.grading import Limits, grade, levels, sandbox
from shadowprice.grading.levels import LEVELS, problem_of
from shadowprice.grading.programs import readings

QUESTIONS = Path(__file__).parents[3] / "shared" / "questions"
LIMITS = Limits(seconds=4)
SOON = Limits(seconds=0.5)
GOOD = "def f(x):\n    return x + 1\n"
BAD = "def f(x):\n    return x\n"
TESTS = "assert f(1) == 2\nassert f(-1) == 0\n"


def interpreter(level):
    """Without namespaces root needs one that another user may read."""
    return "/usr/bin/python3" if level == "process" and os.geteuid() == 0 else ""


@pytest.fixture(params=LEVELS)
def box(request):
    """Grades a program at one level, whichever can be had here."""
    level, python = request.param, interpreter(request.param)
    if problem := problem_of(level, python):
        pytest.skip(f"{level}: {problem}")

    def run(answer, tests=TESTS, limits=LIMITS, **options):
        return grade("code", answer, tests, limits=limits, level=level, python=python, unsafe=True, **options)

    return run


@pytest.fixture(autouse=True)
def nothing_is_left_behind(monkeypatch, tmp_path_factory):
    """In a folder for temporary files that other tests do not use at the same time."""
    tmp_path_factory.getbasetemp()  # before the place of temporary files changes
    place = tempfile.mkdtemp(prefix="sp-", dir="/tmp" if os.path.isdir("/tmp") else None)
    os.chmod(place, 0o755)
    monkeypatch.setattr(tempfile, "tempdir", place)

    def folders():
        return {name for name in os.listdir(tempfile.gettempdir()) if name.startswith("shadowprice-box-")}

    def children():
        return {pid for task in Path("/proc/self/task").glob("*/children") for pid in task.read_text().split()}

    before = folders(), children()
    yield
    assert folders() <= before[0]
    assert children() <= before[1]  # neither running nor as zombies
    shutil.rmtree(place, ignore_errors=True)


CORRECT = {
    "plain": GOOD,
    "fenced": f"Here it is:\n\n```python\n{GOOD}```\nHope this helps!",
    "fenced without a language": f"```\n{GOOD}```",
    "a fence that never closes": f"```python\n{GOOD}",
    "tildes": f"~~~py\n{GOOD}~~~",
    "prose before it": f"Sure!\n\n{GOOD}",
    "two fences, the second fixes the first": f"```python\n{BAD}```\nOops:\n```python\n{GOOD}```",
    "an example of its output": f"```python\n{GOOD}```\nOutput:\n```text\n>>> 2\n```",
    "shell commands beside it": f"```bash\npip install f\n```\n```python\n{GOOD}```",
    "a demonstration that would read stdin": GOOD + "if __name__ == '__main__':\n    print(f(int(input())))\n",
    "giant prints": GOOD + "print('x' * 100_000_000)\n",
    "stdout closed": GOOD + "import os, sys\nsys.stdout.close()\nos.close(1)\nos.close(2)\n",
    "its folder deleted": GOOD + "import os, shutil\ntry: shutil.rmtree(os.getcwd())\nexcept OSError: pass\n",
    "a thread that never ends": GOOD
    + "import threading, time\nthreading.Thread(target=time.sleep, args=(999,)).start()\n",
    "a child that never ends": GOOD + "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(999)\n",
    "a function called check": "def check(x):\n    return x\ndef f(x):\n    return check(x) + 1\n",
    "standard library": "import math, decimal, json\nfrom dataclasses import dataclass\n" + GOOD,
    "a dataclass": "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: 'int'\n" + GOOD,
    "files in its own folder": GOOD + "open('a.txt', 'w').write('1')\nassert open('a.txt').read() == '1'\n",
}


@pytest.mark.parametrize("answer", CORRECT.values(), ids=CORRECT)
def test_correct_programs_pass(answer, box):
    found = box(answer)
    assert (found.correct, found.reason) == (True, "correct"), found


WRONG = {
    "wrong": (BAD, "AssertionError"),
    "a syntax error": ("def f(x:\n", "SyntaxError"),
    "prose": ("I cannot help with that.", "SyntaxError"),
    "a missing function": ("x = 1", "NameError"),
    "sys.exit(0) at once": ("import sys\nsys.exit(0)\n", "SystemExit"),
    "sys.exit(0) in the function": ("import sys\ndef f(x):\n    sys.exit(0)\n", "SystemExit"),
    "os._exit(0)": ("import os\nos._exit(0)\n", "ended before"),
    "os._exit(0) in the function": ("import os\ndef f(x):\n    os._exit(0)\n", "ended before"),
    "says that it passed": ("import os\nos.write(3, b'passed')\nos._exit(0)\n", "passed"),
    "kills itself": ("import os\nos.kill(os.getpid(), 9)\n", "ended before"),
    "kills its parent": ("import os\ntry: os.kill(os.getppid(), 9)\nexcept OSError: pass\nos._exit(0)", ""),
    "kills everyone": ("import os\nos.kill(-1, 9)\nos._exit(0)", ""),
    "another AssertionError": (
        "import builtins\nclass E(BaseException): pass\nbuiltins.AssertionError = E\n" + BAD,
        "",
    ),
    "another check": (BAD + "def check(f): pass\n", "AssertionError"),
    "exec and compile patched": (
        "import builtins\nbuiltins.exec = builtins.compile = lambda *a, **k: None\n" + BAD,
        "",
    ),
    "an exception that cannot be printed": (
        "class E(Exception):\n    def __str__(self): raise SystemExit(0)\ndef f(x): raise E\n",
        "cannot be printed",
    ),
    "reads stdin": (BAD + "input()\n", "EOFError"),
    "endless recursion": ("def f(x): return f(x)\n", "RecursionError"),
    "all descriptors closed": (GOOD + "import os\nos.closerange(0, 100)\n", ""),
    "a memory bomb": ("def f(x): return bytearray(1 << 40)\n", "MemoryError"),
    "a creeping memory bomb": ("def f(x):\n    a = [0] * 10\n    while True: a += a\n", "MemoryError"),
    "an endless file": ("def f(x):\n    with open('a', 'wb') as a:\n        while True: a.write(b'x' * 1000000)\n", ""),
    "a megabyte of nonsense": ("(" * 999_999, ""),
    "more than a megabyte": ("#" * 1_000_001, "characters"),
    "null characters": ("\x00def f(x): return x + 1\n", ""),
    "half a surrogate": ("x = '\ud800'\n" + BAD, ""),
}


@pytest.mark.parametrize(("answer", "detail"), WRONG.values(), ids=WRONG)
def test_wrong_programs_fail(answer, detail, box):
    found = box(answer)
    assert (found.correct, found.reason) == (False, "wrong"), found
    assert detail in found.detail


ENDLESS = {
    "a loop": "while True: pass\n",
    "sleep": "import time\ntime.sleep(999)\n",
    "a loop that catches everything": "while True:\n  try:\n    while True: pass\n  except BaseException: pass\n",
    "signals ignored": "from signal import *\nfor s in set(Signals) - {9, 19}: signal(s, SIG_IGN)\nwhile True: pass\n",
    "a fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass\n",
    "a fork bomb in new sessions": "import os\nwhile True:\n  try: os.fork() or os.setsid()\n  except OSError: pass\n",
    "a report without end": "import os\nwhile True: os.write(3, b'x' * 65536)\n",
    "one step of C code": "x = 9 ** 9 ** 9\n",
    "a regular expression": "import re\nre.match('(a|a)*b', 'a' * 60)\n",
}


def processes() -> int:
    """How many programs are in a box, and whatever they forked."""
    count = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has just ended
            count += b"def _forbid(" in path.read_bytes()  # the judge, whose text is its command line
    return count


@pytest.mark.parametrize("answer", ENDLESS.values(), ids=ENDLESS)
def test_endless_programs_end(answer, box):
    started, before = time.monotonic(), processes()
    found = box(answer + GOOD, limits=SOON)
    assert (found.correct, found.reason) == (False, "timeout"), found
    while processes() > before and time.monotonic() - started < 45:  # other tests have theirs at the same time
        time.sleep(0.05)
    assert processes() <= before


def test_a_fork_bomb_stays_small(box):
    """Counts what it could start: at most the limit."""
    program = """
import os, time
started = 0
try:
    for _ in range(200):
        if os.fork() == 0:
            time.sleep(60)
        started += 1
except OSError:
    pass
def f(x): return started
"""
    assert box(program, "assert 1 <= f(0) <= 16, f(0)").correct


# --- out of the box ----------------------------------------------------------------------------


@pytest.fixture
def outside():
    """A folder anyone may write to, and a file in it."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    (folder / "precious").write_text("kept")
    (folder / "precious").chmod(0o666)
    yield folder
    (folder / "precious").unlink()
    folder.rmdir()  # fails if anything was left in it


@pytest.mark.parametrize(
    "attempt",
    [
        "open('{0}/new', 'w').write('x')",
        "open('{0}/precious', 'w').write('x')",
        "os.open('{0}/new', os.O_CREAT | os.O_WRONLY)",
        "os.remove('{0}/precious')",
        "os.rename('{0}/precious', '{0}/moved')",
        "os.truncate('{0}/precious', 0)",
        "os.mkdir('{0}/folder')",
        "os.symlink('{0}/precious', 'link'); open('link', 'w').write('x')",
        "os.link('{0}/precious', '{0}/hard')",
        "shutil.rmtree('{0}')",
        "subprocess.run(['rm', '{0}/precious'], check=True)",
        "os.chdir('{0}'); open('new', 'w').write('x')",
    ],
)
def test_writing_outside_fails(attempt, box, outside):
    program = f"import os, shutil, subprocess\n{attempt.format(outside)}\n" + GOOD
    assert not box(program).correct
    assert (outside / "precious").read_text() == "kept"
    assert sorted(os.listdir(outside)) == ["precious"]


def test_secrets_of_the_environment_are_out_of_reach(box, monkeypatch):
    monkeypatch.setenv("SECRET_KEY", "hunter2")
    program = f"""
import glob, os
def f(x):
    seen = str(os.environ)
    for pid in ({os.getpid()}, os.getppid(), 'self'):
        try: seen += open(f'/proc/{{pid}}/environ').read()
        except OSError: pass
    return seen
"""
    found = box(program, "assert 'hunter2' not in f(0), 'seen'\nassert 'SECRET' not in f(0)")
    assert found.correct, found


def test_there_is_no_network(box):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        port = server.getsockname()[1]
        program = (
            f"import socket\ndef f(x):\n    socket.create_connection(('127.0.0.1', {port}), 2)\n    return x + 1\n"
        )
        found = box(program)
        assert (found.correct, found.reason) == (False, "wrong")
        with pytest.raises(TimeoutError):
            server.accept()


def test_the_program_is_not_root(box):
    assert box("import os\ndef f(x): return os.getuid()\n", "assert f(0) != 0").correct


def test_folders_without_permissions_are_cleared_away(box):
    deep = "import os\nfor _ in range(1500):\n    os.mkdir('d')\n    os.chdir('d')\nos.chmod('.', 0)\n"
    box(deep + GOOD)  # the fixture looks


# --- HumanEval and MBPP ------------------------------------------------------------------------

CHECK = "def check(candidate):\n    assert candidate(1) == 2\n"
PROMPT = 'import math\n\ndef f(x):\n    """ One more. """\n'


@pytest.mark.parametrize(
    "answer",
    [
        "    return x + 1\n",
        "return x + 1",
        "y = x\nreturn y + 1\n",
        "    y = x\n    return y + 1\n\nprint(f(1)\n\nand that is that",
        "```python\n    return x + 1\n```",
        "```python\nreturn x + 1\n```",
        "def f(x):\n    return math.floor(x) + 1\n",
        "```python\nfrom __future__ import annotations\ndef f(x):\n    return x + 1\n```",
        "```python\ndef f(x):\n    return x + 1\n```\nFor example:\n```python\nprint(f(1))\n```",
    ],
)
def test_completions_and_whole_functions(answer):
    found = grade("code", answer, CHECK, prompt=PROMPT, entry_point="f", limits=LIMITS)
    assert found.correct, found
    assert not grade("code", answer.replace("1", "2"), CHECK, prompt=PROMPT, entry_point="f", limits=LIMITS).correct


def test_an_entry_point_called_check():
    tests = "def check(candidate):\n    assert candidate(1) == 2\n"
    assert grade("code", "def check(x): return x + 1", tests, entry_point="check").correct
    assert not grade("code", "def check(x): return x", tests, entry_point="check").correct


def test_a_megabyte_of_fences_is_read():
    answer = "```\n" * 250_000 + f"```python\n{GOOD}```\n"
    assert any(reading.endswith(GOOD) for reading in readings(answer, PROMPT, "f"))
    unclosed = "``` a" * 200_000
    assert readings(unclosed, PROMPT, "f")[0] == PROMPT + unclosed


@pytest.mark.parametrize(
    ("tests", "entry_point"),
    [("", ""), ("f(1)", ""), (CHECK, ""), (TESTS, "f"), ("assert (", "")],
)
def test_tests_that_would_pass_on_anything_grade_nothing(tests, entry_point):
    found = grade("code", GOOD, tests, entry_point=entry_point)
    assert (found.correct, found.reason) == (None, "error")


def test_tests_may_import_what_programs_may_not(box):
    """NumPy loads C code; at the weaker level programs may not."""
    tests = "import ctypes\nassert f(1) == 2"
    assert box(GOOD, tests).correct
    found = box("import ctypes\n\ndef f(x):\n    return ctypes.CDLL(None) and x\n", tests)
    assert (found.correct, found.reason) == (False, "wrong")


@pytest.mark.skipif(sandbox() == "none", reason="no sandbox here")
def test_packages_beside_shadowprice_can_be_imported(tmp_path, monkeypatch):
    tests = "import numpy, only_here\nassert numpy.array(f(1)) == 2"
    assert grade("code", GOOD, tests).detail == "ModuleNotFoundError: No module named 'only_here'"
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "only_here.py").write_text("")
    (packages / "numpy.py").write_text("array = int")  # where there are packages, the interpreter's own are not seen
    monkeypatch.setattr(levels, "_packages", lambda: str(packages))
    found = grade("code", "import only_here\n" + GOOD, tests)
    assert found.correct, found


def test_no_answer():
    assert grade("code", "  \n", TESTS).reason == "no_answer"


# References that fail their own tests in a bare interpreter.
BROKEN = {f"MBPP/{n}" for n in (64, 160, 341, 367, 596, 601, 607, 631, 642, 927, 966)}


@pytest.mark.parametrize("name", ["humaneval", "mbpp"])
def test_reference_solutions_pass_and_mutilated_ones_fail(name):
    path = QUESTIONS / f"{name}.jsonl.gz"
    if not path.exists():
        pytest.skip(f"no questions at {path}")
    with gzip.open(path) as lines:
        questions = [json.loads(line) for line in lines]
    questions = random.Random(5).sample([q for q in questions if q["id"] not in BROKEN], 12)

    def run(question, answer):
        found = grade("code", answer, question["test"], prompt=question["problem"], entry_point=question["entry_point"])
        return found.correct

    def mutilated(question):
        return question["gold"].replace("return ", "return None and ")

    with ThreadPoolExecutor(2) as threads:
        assert all(threads.map(lambda q: run(q, q["gold"]), questions))
        assert not any(threads.map(lambda q: run(q, mutilated(q)), questions))


def test_many_threads_at_once(box):
    before = threading.active_count()
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda n: box(GOOD if n % 2 else BAD).correct, range(16)))
    assert found == [n % 2 == 1 for n in range(16)]
    assert threading.active_count() <= before
