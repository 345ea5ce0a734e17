"""Loads a candidate program, runs its tests on it, and reports. Runs alone, inside the box.

The token that means "passed" is written only after the last test, so a program that exits early never
passes. The token is not in this process before that, so searching memory and stack frames does not find
it. But the program shares the interpreter with this code, and one that knows this file can forge a pass.
"""

from __future__ import annotations

import ast
import json
import os
import sys
import types
from collections.abc import Callable
from contextlib import suppress
from typing import Any


def _forbid(work: str) -> None:
    """An audit hook, which is all that the level process has instead of a sandbox.

    With it Python itself refuses sockets, other programs, foreign code, reading other processes, signals to
    them, and writing outside the folder. It stops accidents, not attacks: there are ways around it.
    """
    refused = ("socket.", "ctypes.", "subprocess.", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.killpg")
    folders = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "shutil.")
    files = ("os.truncate", "os.chmod", "os.chown", "os.utime")
    within = work + os.sep
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    real, decode, session, session_of = os.path.realpath, os.fsdecode, os.getsid(0), os.getsid

    def inside(path: Any) -> bool:
        return not isinstance(path, str | bytes) or (real(decode(path)) + os.sep).startswith(within)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event.startswith(refused):
            raise PermissionError(f"{event} is not allowed here")
        if event == "os.kill" and (arguments[0] <= 0 or session_of(arguments[0]) != session):
            raise PermissionError(f"process {arguments[0]} is not one of this program")  # -1 is every process
        if event == "open":
            path, mode, flags = arguments
            opened_to_write = any(c in mode for c in "wax+") if isinstance(mode, str) else flags & writing
            if opened_to_write and path != os.devnull and not inside(path):
                raise PermissionError(f"{path!r} is outside the folder of this program")
            if isinstance(path, str | bytes) and real(decode(path)).startswith("/proc/"):  # environments of others
                raise PermissionError(f"{path!r} is not readable for this program")
        elif event.startswith(folders + files):
            for path in arguments[:2]:
                if not inside(path):
                    raise PermissionError(f"{path!r} is outside the folder of this program")

    sys.addaudithook(hook)


def _use(folder: str) -> None:
    """Packages of an environment replace the interpreter's own, which may be of other versions."""
    if os.access(folder, os.R_OK | os.X_OK):
        sys.path[:] = [p for p in sys.path if os.path.basename(p) not in ("site-packages", "dist-packages")] + [folder]


def _import_ahead(tests: str) -> None:
    """Import what the tests import at their top level, before ctypes is refused: NumPy needs it."""
    for statement in ast.parse(tests).body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            with suppress(Exception):  # the tests will raise it again
                exec(compile(ast.Module([statement], []), "<tests>", "exec", dont_inherit=True), {})


def _compiled(programs: list[str]) -> types.CodeType:
    """The first of the programs that compiles."""
    problem: Exception = SyntaxError("no program")
    for program in programs:
        try:
            return compile(program, "<answer>", "exec", dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            problem = error
    raise problem


def _description(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:300]
    except BaseException:  # __str__ is the program's own code
        return "an error that cannot be printed"


def main() -> None:
    with open(0, "rb", closefd=False) as file:
        job = json.load(file)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    # Local names for what is needed after the program ran: it may replace the global ones.
    run: Callable[..., None] = exec
    read, write, leave, describe, entry = os.read, os.write, os._exit, _description, job["entry_point"]
    tests = compile(job["tests"], "<tests>", "exec", dont_inherit=True)
    module = types.ModuleType("candidate")  # not __main__: code under `if __name__ == "__main__"` does not run
    sys.modules["candidate"] = module
    if job["packages"]:
        _use(job["packages"])
    if job["level"] == "process":
        _import_ahead(job["tests"])
        _forbid(os.path.realpath(job["work"]))
    programs = job.pop("programs")
    job.clear()
    try:
        run(_compiled(programs), module.__dict__)
        names = dict(module.__dict__)  # a copy for the tests, which may define a `check` of their own
        if entry and entry not in names:
            raise NameError(f"{entry} is not defined")
        run(tests, names)
        if entry:
            names["check"](module.__dict__[entry])
        verdict = read(4, 100)
    except BaseException as error:
        verdict = describe(error).encode(errors="replace")
    write(3, verdict)
    leave(0)


if __name__ == "__main__":
    main()
