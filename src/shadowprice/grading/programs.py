"""Programs, graded by running their tests in a sandbox, called the box.

How strong it is depends on what the kernel grants; `sandbox()` returns which of the two levels it is here:

namespaces  Own network (none, not even 127.0.0.1), own processes, the whole file system read-only but
            for a temporary folder in memory, services' sockets hidden. When the first process of the
            box ends, the kernel kills every other.
process     Python itself refuses sockets, other programs, ctypes and writing outside the folder (an
            audit hook: it stops Python code, not C code). All processes that the program starts are
            found and killed. What the caller may read, the program may read.

At both levels: limits on time, CPU, memory, file size, number of processes; an empty environment,
nothing on stdin, output discarded, `python -I`, no way to gain privileges. Root gives the program
a user id of its own. All the program's processes together may use `processes` times `memory`.

This contains accidents and casual malice, not a determined attacker. In particular a program can cheat
its tests, which share an interpreter with it: by objects equal to everything, or by searching for the
token that stands for a pass. Grade what you do not trust in a virtual machine.
"""

from __future__ import annotations

import ast
import functools
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shadowprice.grading.grades import Grade

_BOX = Path(__file__).with_name("_box.py")
_JUDGE = Path(__file__).with_name("_judge.py")
_PATIENCE = 60.0  # seconds beyond the limit for a busy machine to set up and clean up
_LONGEST = 1_000_000  # characters of a program

_FENCE = re.compile(
    r"^[ \t]*(`{3,}|~{3,})[ \t]*([\w+-]*)[^\n]*\n(.*?)(?:^[ \t]*\1[ \t]*$|\Z)", re.MULTILINE | re.DOTALL
)
_PYTHON = {"", "python", "py", "python3"}


@dataclass(frozen=True)
class Limits:
    """What one program may use. `seconds` is wall time, and CPU time of each process."""

    seconds: float = 10.0
    memory: int = 512 << 20  # bytes of address space, each process
    file_size: int = 16 << 20  # bytes, each file
    disk: int = 64 << 20  # bytes of files in all (namespaces only)
    processes: int = 16  # threads count


def grade_code(
    answer: str,
    tests: str,
    *,
    prompt: str = "",
    entry_point: str = "",
    limits: Limits = Limits(),  # noqa: B008  (frozen)
    python: str = "",
    level: str = "",
) -> Grade:
    """Correct if every test passes on the program in the answer.

    HumanEval style: `tests` define `check(candidate)`, which is called with `entry_point`; the answer may
    continue `prompt`. MBPP style: `tests` are assert lines, without an entry point. Both may import what is
    installed beside shadowprice. `python` is an interpreter to use instead of ours, readable by every user.
    `level` is a sandbox to use instead of the one `sandbox()` chooses.
    """
    problem = _test_problem(tests, entry_point)
    if problem:
        return Grade(None, "error", problem)
    if not answer.strip():
        return Grade(False, "no_answer")
    if len(answer) > _LONGEST:
        return Grade(False, "wrong", f"an answer of {len(answer)} characters")
    token = secrets.token_hex(16)
    job = {
        "programs": readings(answer, prompt, entry_point),
        "tests": tests,
        "entry_point": entry_point,
        "token": token,
        **asdict(limits),
    }
    try:
        outcome = _run(job, python, level or sandbox(python))
    except _NoBox as error:
        return Grade(None, "error", str(error))
    if outcome["report"] == token and outcome["end"] == "exit":
        return Grade(True, "correct")
    if outcome["end"] == "timeout":
        return Grade(False, "timeout", f"not done within {limits.seconds:g} s")
    report = outcome["report"].replace(token, "")[:300]
    return Grade(False, "wrong", report or f"ended before its tests did ({outcome['end']})")


def _test_problem(tests: str, entry_point: str) -> str:
    """Why the tests cannot grade anything: they would pass on every program, or fail; empty if they can."""
    try:
        statements = ast.parse(tests).body
    except (SyntaxError, ValueError) as error:
        return f"the tests are not valid Python: {error}"
    has_check = any(isinstance(s, ast.FunctionDef) and s.name == "check" for s in statements)
    if entry_point and not has_check:
        return "there is an entry_point, but the tests do not define check(candidate)"
    if not entry_point and has_check:
        return "the tests define check(candidate), but there is no entry_point"
    if not entry_point and not any(isinstance(node, ast.Assert) for s in statements for node in ast.walk(s)):
        return "the tests assert nothing"
    return ""


# --- the program in an answer ------------------------------------------------------------------


def readings(answer: str, prompt: str = "", entry_point: str = "") -> list[str]:
    """The programs that the answer may contain, best guess first; the first that compiles is run.

    Code comes from markdown fences if there are any. Code that defines the entry point is put after
    the prompt (for its imports and helpers), or used alone; other code continues the prompt, with
    its indentation fixed where the model lost it.
    """
    blocks = [body for _, language, body in _FENCE.findall(answer) if language.lower() in _PYTHON]
    if not blocks:
        start = re.search(r"^(?:(?:async )?def |class |import |from |@)", answer, re.MULTILINE)
        candidates = [answer, answer[start.start() :]] if start else [answer]
    elif entry_point:
        candidates = [block for block in reversed(blocks) if _defines(block, entry_point)] or blocks[-1:]
        candidates = [candidates[0], "\n".join(blocks)]
    else:
        candidates = ["\n".join(blocks), *reversed(blocks)]
    if not prompt:
        return candidates
    found = []
    for code in candidates:
        if not entry_point or _defines(code, entry_point):
            found += [f"{prompt}\n{code}", code]
        else:
            indent = _indent(prompt)
            found += [prompt + code, prompt + indent + code.lstrip(), prompt + textwrap.indent(code, indent)]
            body = re.match(r"(?:[ \t]+[^\n]*(?:\n|\Z)|[ \t]*\n)+", code)
            if body:  # base models continue after the function
                found.append(prompt + body[0])
    return found


def _defines(code: str, name: str) -> bool:
    return (
        re.search(rf"^(?:(?:async\s+)?def\s+{re.escape(name)}\b|{re.escape(name)}\s*=)", code, re.MULTILINE) is not None
    )


def _indent(prompt: str) -> str:
    last = next((line for line in reversed(prompt.splitlines()) if line.strip()), "")
    return last[: len(last) - len(last.lstrip())] or "    "


# --- the box -----------------------------------------------------------------------------------


class _NoBox(Exception):
    """Nothing could be run, and that is not the program's fault."""


@functools.cache
def sandbox(python: str = "") -> str:
    """`namespaces` or `process`: the level of the sandbox on this machine; see the top of this module."""
    limits = Limits(seconds=30)
    job = {"programs": ["x = 1"], "tests": "assert x", "entry_point": "", "token": "yes", **asdict(limits)}
    try:
        outcome = _run(job, python, "namespaces")
    except _NoBox:
        return "process"
    return "namespaces" if outcome["report"] == "yes" else "process"


def _run(job: dict[str, Any], python: str, level: str) -> dict[str, str]:
    with _folder() as folder, tempfile.TemporaryFile() as file:
        job |= {"level": level, "work": f"{folder}/work", "judge": _JUDGE.read_text()}
        job |= _interpreter(python, level, f"{folder}/python")
        job |= {"packages": "" if python else _packages(), "packages_folder": f"{folder}/packages"}
        file.write(json.dumps(job).encode(errors="surrogatepass"))
        file.seek(0)
        with subprocess.Popen(
            [sys.executable, "-I", "-S", str(_BOX)],
            stdin=file,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
            cwd="/",
            start_new_session=True,  # Ctrl-C is for the caller, which kills the box
        ) as box:
            try:
                text, _ = box.communicate(timeout=job["seconds"] + _PATIENCE)
            except subprocess.TimeoutExpired:
                raise _NoBox("the sandbox did not end in time") from None
            finally:
                box.kill()
    outcome: dict[str, str] = json.loads(text or b'{"end": "setup", "report": "the sandbox died"}')
    if outcome["end"] == "setup" or outcome["report"].startswith("setup: "):
        raise _NoBox(f"no sandbox: {outcome['report']}")
    return outcome


@contextmanager
def _folder() -> Iterator[str]:
    """A temporary folder: `work` for the program, the others to mount the interpreter and its packages on."""
    folder = os.path.realpath(tempfile.mkdtemp(prefix="shadowprice-box-"))
    try:
        os.chmod(folder, 0o711)
        for name in ("work", "python", "packages"):
            os.mkdir(f"{folder}/{name}", 0o700)
        yield folder
    finally:
        with suppress(OSError, RecursionError):
            shutil.rmtree(folder)
        if os.path.exists(folder):  # folders without permissions, or nested without end
            for command in (["chmod", "-R", "u+rwX"], ["rm", "-rf"]):
                subprocess.run([*command, folder], stderr=subprocess.DEVNULL, timeout=60, check=False)


def _interpreter(python: str, level: str, place: str) -> dict[str, str]:
    """The interpreter that runs the program; one that only root may read is mounted at `place`."""
    ours = os.path.realpath(sys.executable)
    python = os.path.abspath(python) if python else ours
    found = {"python": python, "library": "", "python_folder": place}
    if os.geteuid() != 0 or _open_to_all(python):
        return found
    if level != "namespaces" or python != ours or not ours.startswith(sys.base_prefix + os.sep):
        raise _NoBox(f"no sandbox: only root may read {python}, and programs do not run as root")
    return {**found, "library": sys.base_prefix, "python": place + ours.removeprefix(sys.base_prefix)}


def _packages() -> str:
    """The packages of our own environment: tests import some (NumPy), and its bare interpreter has none."""
    return "" if sys.prefix == sys.base_prefix else sysconfig.get_path("platlib")


def _open_to_all(path: str) -> bool:
    real = Path(os.path.realpath(path))
    return all(place.stat().st_mode & 0o001 for place in (real, *real.parents, *Path(path).parents))
