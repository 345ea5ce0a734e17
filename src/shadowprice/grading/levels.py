"""The sandbox that programs are graded in, called the box: which level works here, and running a job in it.

bubblewrap  `bwrap`, where it is installed, makes the namespaces described next.
namespaces  The program sees a file system of its own: the system's programs and libraries, the interpreter
            and its packages, all read-only, and three empty folders in memory (its own, /tmp, /dev/shm).
            Nothing else of the caller's exists there: no files, sockets or pipes, no processes (own /proc),
            no network, not even 127.0.0.1. When the first process of the box ends, the kernel kills
            every other. Linux 5.12 or newer.
process     Not a sandbox, and only used if the caller gives `unsafe`: Python itself refuses sockets, other
            programs, ctypes and writing outside the folder, which stops accidents and not attacks. The
            program can read all files that the caller can read. Processes that it leaves are killed.
none        Neither of the first two works here, so programs are not graded.

At every level: limits on time, CPU, memory, file size, number of processes; an empty environment, no open
files but those of the judge, output discarded, `python -I`, no way to gain privileges, and a filter on
system calls (`_filter.py`; for x86_64 and aarch64, elsewhere only `process` works). Run by root, each
program has a user id of its own. All its processes together may use `processes` times `memory`, and at the
level bubblewrap the number of files is not limited, only their size.

Kernels have bugs: run programs that are hostile by intent in a virtual machine.
"""

from __future__ import annotations

import functools
import json
import os
import secrets
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shadowprice.errors import InputError
from shadowprice.grading._filter import system_call_filter

LEVELS = ("bubblewrap", "namespaces", "process")

_BOX = Path(__file__).with_name("_box.py")
_JUDGE = Path(__file__).with_name("_judge.py")
_PATIENCE = 60.0  # seconds beyond the limit for a busy machine to set up and clean up
_WORK = "/box"  # the program's own folder, where it has a file system of its own
_FOLDERS = (_WORK, "/tmp", "/dev/shm")  # that it may write to
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store")
_ETC = (
    *("alternatives", "fonts", "group", "hosts", "ld.so.cache", "localtime", "mime.types", "nsswitch.conf"),
    *("passwd", "protocols", "services", "ssl/certs", "timezone"),
)


@dataclass(frozen=True)
class Limits:
    """What one program may use. `seconds` is wall time, and CPU time of each process."""

    seconds: float = 10.0
    memory: int = 512 << 20  # bytes of address space, each process
    file_size: int = 16 << 20  # bytes, each file
    disk: int = 64 << 20  # bytes of files in each folder (not at the level process)
    processes: int = 16  # threads count


class SandboxError(Exception):
    """Nothing could be run, and that is not the program's fault."""


def sandbox(unsafe: bool = False, python: str = "") -> str:
    """The level programs are graded at on this machine; see the top of this module. `process` only if `unsafe`."""
    return next((level for level in _allowed(unsafe) if not problem_of(level, python)), "none")


def check_code_grading(unsafe: bool = False, python: str = "") -> str:
    """The level of the sandbox; raises InputError without one. Call it before answers are paid for."""
    level = sandbox(unsafe, python)
    if level == "none":
        problems = "; ".join(f"{level}: {problem_of(level, python)}" for level in _allowed(unsafe))
        unsafely = "" if unsafe else ", or give --unsafe-code (in Python, unsafe=True) to run them without one"
        raise InputError(
            f"no sandbox for the programs in answers ({problems})",
            fix=f"install bubblewrap{unsafely}",
        )
    return level


def _allowed(unsafe: bool) -> tuple[str, ...]:
    return LEVELS if unsafe else LEVELS[:2]


@functools.cache
def problem_of(level: str, python: str = "") -> str:
    """Why a level does not work here, found by trying it; empty if it works."""
    if level != "process" and not system_call_filter():
        return "no system call filter for this machine"
    program = "import threading\nx = threading.Thread(target=int)\nx.start()\n"
    judged = {"programs": [program], "tests": "x.join()", "entry_point": ""}
    try:
        outcome = run_in_box(judged, "yes", Limits(seconds=30), level, python)
    except SandboxError as error:
        return str(error)
    return "" if outcome["report"] == "yes" else f"nothing runs in it: {outcome['report'] or outcome['end']}"


def run_in_box(judged: dict[str, Any], token: str, limits: Limits, level: str, python: str = "") -> dict[str, str]:
    """How it ended (exit, killed, timeout), and what was reported: the token if all tests passed, or an error."""
    uid, gid, own = _identity()
    packages = "" if python else _packages()
    executable, prefixes = _interpreter(python)
    if level == "process" and os.geteuid() == 0 and not _open_to_all(executable):
        raise SandboxError(f"only root may read {executable}, and programs do not run as root")
    with _folder() as folder, tempfile.TemporaryFile() as file:
        job = {
            "level": level,
            "token": token,
            **asdict(limits),
            "uid": uid,
            "gid": gid,
            "own_uid": own,
            "root": f"{folder}/root",
            "work": f"{folder}/work" if level == "process" else _WORK,
            "folders": _FOLDERS,
            "shown": _shown(executable, prefixes, packages),
            "filter": system_call_filter().hex(),
            "python": executable,
            "judge": _JUDGE.read_text(),
        }
        for part in (job, {**judged, "level": level, "work": job["work"], "packages": packages}):
            file.write(json.dumps(part).encode(errors="surrogatepass") + b"\n")
        file.seek(0)
        command = [sys.executable, "-I", "-S", str(_BOX)]
        if level == "bubblewrap":
            command = [*_bubblewrap(job), executable, "-I", "-S", "-c", _BOX.read_text()]
        outcome = _outcome(command, file.fileno(), limits.seconds + _PATIENCE)
    if outcome["end"] == "setup" or outcome["report"].startswith("setup: "):
        raise SandboxError(outcome["report"].removeprefix("setup: "))
    return outcome


def _outcome(command: list[str], job: int, seconds: float) -> dict[str, str]:
    with subprocess.Popen(
        command,
        stdin=job,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={},
        cwd="/",
        start_new_session=True,  # Ctrl-C is for the caller, which kills the box
    ) as box:
        try:
            text, errors = box.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise SandboxError("the sandbox did not end in time") from None
        finally:
            box.kill()
    if not text:
        raise SandboxError(errors.decode(errors="replace").strip()[-300:] or "the sandbox died")
    outcome: dict[str, str] = json.loads(text)
    return outcome


def _identity() -> tuple[int, int, bool]:
    """Uid and gid of the program, and whether no other program has this uid.

    Root gives every box a uid of its own: the limit on processes does not bind root, and counts by
    user. Where such uids do not exist (some containers), it is `nobody`.
    """
    if os.geteuid() != 0:
        return os.geteuid(), os.getegid(), False
    own = 1_000_000_000 + secrets.randbelow(1_000_000_000)
    with suppress(OSError), open("/proc/self/uid_map") as ranges:
        for line in ranges:
            first, _, count = map(int, line.split())
            if first <= own < first + count:
                return own, own, True
    return 65534, 65534, False


@contextmanager
def _folder() -> Iterator[str]:
    """A temporary folder: `work` for a program without a file system of its own, `root` to mount that on."""
    folder = os.path.realpath(tempfile.mkdtemp(prefix="shadowprice-box-"))
    try:
        os.chmod(folder, 0o711)
        for name in ("work", "root"):
            os.mkdir(f"{folder}/{name}", 0o700)
        yield folder
    finally:
        with suppress(OSError, RecursionError):
            shutil.rmtree(folder)
        if os.path.exists(folder):  # folders without permissions, or nested without end
            for command in (["chmod", "-R", "u+rwX"], ["rm", "-rf"]):
                subprocess.run([*command, folder], stderr=subprocess.DEVNULL, timeout=60, check=False)


# --- what the program can see ------------------------------------------------------------------


def _interpreter(python: str) -> tuple[str, tuple[str, ...]]:
    """The interpreter that runs the program, ours unless one is named, and where its library is."""
    if python:
        return os.path.abspath(python), _prefixes(python)
    return os.path.realpath(sys.executable), (os.path.realpath(sys.base_prefix),)


@functools.cache
def _prefixes(python: str) -> tuple[str, ...]:
    code = "import sys; print(sys.prefix); print(sys.base_prefix)"
    done = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return tuple(done.stdout.splitlines())


def _packages() -> str:
    """The packages of our own environment: tests import some (NumPy), and its bare interpreter has none."""
    return "" if sys.prefix == sys.base_prefix else os.path.realpath(sysconfig.get_path("platlib"))


def _shown(executable: str, prefixes: tuple[str, ...], packages: str) -> list[tuple[str, str]]:
    """Paths that the program can see, with the target of those that are links.

    Only the parts of the interpreter's folder that it needs: the folder may also hold files of the caller.
    """
    wanted = [*_SYSTEM, *(f"/etc/{name}" for name in _ETC)]
    wanted += [f"{prefix}/{name}" for prefix in prefixes for name in ("bin", "lib", "lib64", "pyvenv.cfg")]
    wanted += [packages, executable]
    shown: list[tuple[str, str]] = []
    for path in map(os.path.normpath, filter(os.path.lexists, wanted)):
        if any((path + os.sep).startswith(other + os.sep) for other, target in shown if not target):
            continue  # inside what is shown already
        shown.append((path, os.readlink(path) if os.path.islink(path) else ""))
    return list(dict.fromkeys(shown))


def _open_to_all(path: str) -> bool:
    real = Path(os.path.realpath(path))
    return all(place.stat().st_mode & 0o001 for place in (real, *real.parents, *Path(path).parents))


def _bubblewrap(job: dict[str, Any]) -> list[str]:
    """The command that makes the namespaces and the file system of `_box.py`, up to the program it runs."""
    bwrap = shutil.which("bwrap")
    if not bwrap:
        raise SandboxError("not installed")
    command = [bwrap, "--die-with-parent", "--as-pid-1", "--unshare-pid", "--unshare-net", "--unshare-ipc"]
    command += ["--unshare-uts", "--unshare-cgroup-try", "--dev", "/dev", "--proc", "/proc"]
    if os.geteuid() != 0:  # with a user namespace, processes outside do not count towards the limit
        command += ["--unshare-user"]
    for folder in job["folders"]:  # first: what is shown may be inside /tmp
        command += ["--perms", "1777", "--size", str(job["disk"]), "--tmpfs", folder]
    above = {str(parent) for path, _ in job["shown"] for parent in Path(path).parents} - {"/", *job["folders"]}
    for parent in sorted(above):  # bubblewrap would make them for its own user only
        command += ["--perms", "0755", "--dir", parent]
    for path, target in job["shown"]:
        command += ["--symlink", target, path] if target else ["--ro-bind", path, path]
    return [*command, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", job["work"], "--"]
