"""The box a candidate program runs in; `levels.py` starts this file as a process of its own.

    box        outside; asks the kernel for new namespaces and waits (bubblewrap does this at its level)
    └─ init    first process inside; mounts, enforces the time limit; its end kills all inside
       └─ judge   without privileges; loads the program and runs its tests (`_judge.py`)

At the level "process" there are no namespaces: the box itself is the judge's parent and kills the
processes that it leaves behind. stdin is a file with two lines of JSON: the first is the job for this
code, the second is read by the judge. The outcome is JSON on stdout. Nothing of shadowprice is
imported: the file must run alone.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import time
from contextlib import suppress
from typing import Any, NoReturn

_NEWNS, _NEWCGROUP, _NEWUTS, _NEWIPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
_NEWUSER, _NEWPID, _NEWNET = 0x10000000, 0x20000000, 0x40000000
_NOSUID, _NODEV, _BIND, _REC, _PRIVATE = 2, 4, 0x1000, 0x4000, 1 << 18
_DETACH = 2  # of umount2
_PDEATHSIG, _DUMPABLE, _SECCOMP, _SUBREAPER, _NO_NEW_PRIVS = 1, 4, 22, 36, 38  # of prctl
_MAX_REPORT = 4096  # bytes that are read; a judge that writes more blocks until its time is up
_DEVICES = ("null", "zero", "full", "random", "urandom")

_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: Any) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _prctl(option: int, value: int) -> None:
    if hasattr(_libc, "prctl"):  # only Linux has it
        _call("prctl", option, value, 0, 0, 0)


# --- the user of the program -------------------------------------------------------------------


def _become(uid: int, gid: int) -> None:
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)


def _tasks(uid: int) -> int:
    """How many processes and threads a user has; they count towards the limit of processes."""
    count = 0
    for name in filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else []):
        with suppress(OSError):
            if os.stat(f"/proc/{name}").st_uid == uid:
                count += len(os.listdir(f"/proc/{name}/task"))
    return count


# --- the file system of the program ------------------------------------------------------------


def _unshare() -> None:
    flags = _NEWNS | _NEWCGROUP | _NEWUTS | _NEWIPC | _NEWPID | _NEWNET
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0:
        _call("unshare", flags)
        return
    _call("unshare", flags | _NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def _mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    _call(
        "mount",
        source.encode(),
        target.encode(),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        options.encode() or None,
    )


class _Attributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns")]


def _set_attributes(target: str, *, add: int = 0, remove: int = 0, recursive: bool = False) -> None:
    """mount_setattr(2), by its number: the C library does not always have it."""
    attributes = _Attributes(add, remove, 0, 0)
    _call(
        "syscall",
        ctypes.c_long(442),
        ctypes.c_int(-100),
        ctypes.c_char_p(target.encode()),
        ctypes.c_uint(0x8000 if recursive else 0),
        ctypes.byref(attributes),
        ctypes.c_size_t(ctypes.sizeof(attributes)),
    )


def _mount_root(job: dict[str, Any]) -> None:
    """Mounts a new root, with only the paths of the job: read-only, except for folders in memory."""
    read_only, root = 1, job["root"]
    os.umask(0o022)
    _mount("none", "/", None, _REC | _PRIVATE)
    _mount("tmpfs", root, "tmpfs", _NOSUID | _NODEV, "size=1m,mode=755")
    folders = [root + folder for folder in job["folders"]]
    for folder in folders:  # first, because paths of the job may be inside /tmp
        os.makedirs(folder)
        _mount("tmpfs", folder, "tmpfs", _NOSUID | _NODEV, f"size={job['disk']},nr_inodes=10000,mode=1777")
    for path, target in job["shown"]:
        _show(path, target, root)
    for name in _DEVICES:
        _show(f"/dev/{name}", "", root)
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        os.symlink(f"/proc/self/fd{target}", f"{root}/dev/{name}")
    os.mkdir(f"{root}/proc")
    try:
        _mount("proc", f"{root}/proc", "proc", _NOSUID | _NODEV)
    except OSError:  # a container that hides parts of /proc does not allow it: /proc stays empty
        _mount("tmpfs", f"{root}/proc", "tmpfs", _NOSUID | _NODEV, "size=4k")
    _set_attributes(root, add=read_only | _NOSUID, recursive=True)
    for folder in folders:
        _set_attributes(folder, remove=read_only)
    os.chdir(root)
    _call("pivot_root", b".", b".")  # the old root is now on top of the new one
    _call("umount2", b".", _DETACH)


def _show(path: str, target: str, root: str) -> None:
    """Shows a path at the same place in the new root: as a link if there is a target, else as a mount."""
    place = root + path
    os.makedirs(os.path.dirname(place), exist_ok=True)
    if target:
        os.symlink(target, place)
        return
    if os.path.isdir(path):
        os.makedirs(place, exist_ok=True)
    else:
        os.close(os.open(place, os.O_CREAT | os.O_WRONLY, 0o644))
    _mount(path, place, None, _BIND | _REC)


# --- running and watching ----------------------------------------------------------------------


def _start(job: dict[str, Any], others: int = 0) -> tuple[int, int]:
    """The judge's pid and the pipe its report comes through. `others`: tasks that count towards its limit."""
    _prctl(_DUMPABLE, 0)  # the judge may have our uid: it can neither read our memory nor open our files
    reading, writing = os.pipe()
    token, token_in = os.pipe()
    os.write(token_in, job["token"].encode())
    os.close(token_in)
    pid = os.fork()
    if pid:
        os.close(writing)
        os.close(token)
        return pid, reading
    try:
        _run_judge(job, writing, token, others)
    except BaseException as error:
        os.write(writing, f"setup: {error!r}"[:300].encode())
    os._exit(1)


def _run_judge(job: dict[str, Any], report: int, token: int, others: int) -> NoReturn:
    os.setsid()
    os.chdir(job["work"])
    os.lseek(0, job["start"], os.SEEK_SET)
    nowhere = os.open(os.devnull, os.O_RDWR)
    report, token = os.dup(report), os.dup(token)  # now both are above 4
    for number, source in ((3, report), (4, token), (1, nowhere), (2, nowhere)):
        os.dup2(source, number)
    seconds, processes = int(job["seconds"]) + 1, job["processes"] + others
    limits = {
        "RLIMIT_CPU": (seconds, seconds + 1),  # SIGXCPU first, then SIGKILL
        "RLIMIT_AS": (job["memory"], job["memory"]),
        "RLIMIT_FSIZE": (job["file_size"], job["file_size"]),
        "RLIMIT_NPROC": (processes, processes),
        "RLIMIT_NOFILE": (128, 128),
        "RLIMIT_CORE": (0, 0),
    }
    for name, limit in limits.items():
        with suppress(ValueError, OSError):  # the limit is already lower, or the system does not have it
            resource.setrlimit(getattr(resource, name), limit)
    _become(job["uid"], job["gid"])
    _prctl(_NO_NEW_PRIVS, 1)
    _prctl(_PDEATHSIG, signal.SIGKILL)
    os.closerange(5, 1 << 20)  # nothing above 4 is inherited
    _filter_calls(bytes.fromhex(job["filter"]))
    os.execve(job["python"], [job["python"], "-I", "-c", job["judge"]], _environment(job))


def _filter_calls(instructions: bytes) -> None:
    """From here on the kernel refuses system calls, in this process and all that it starts (see `_filter.py`)."""

    class Filter(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]

    if instructions:
        filter_mode, wanted = 2, Filter(len(instructions) // 8, instructions)
        _call("prctl", _SECCOMP, ctypes.c_ulong(filter_mode), ctypes.byref(wanted))


def _environment(job: dict[str, Any]) -> dict[str, str]:
    work = job["work"]
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": work,
        "TMPDIR": work,
        "LANG": "C.UTF-8",
        "MALLOC_ARENA_MAX": "1",  # a thread does not take 64 MB of address space
        "OMP_NUM_THREADS": "1",  # NumPy would start one per core, and exceed the limits where there are many
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def _watch(judge: int, report: int, seconds: float) -> dict[str, str]:
    """Waits for the judge: how it ended (exit, killed, timeout), and its report."""
    deadline = time.monotonic() + seconds
    text, pipes, end = b"", [report], ""
    while not end:
        ready, _, _ = select.select(pipes, [], [], 0.01)
        if ready:
            piece = os.read(report, _MAX_REPORT)
            text += piece
            if not piece or len(text) > _MAX_REPORT:
                pipes = []
        while not end:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if not pid:
                break
            if pid == judge:
                spent = usage.ru_utime + usage.ru_stime > seconds
                end = "exit" if os.WIFEXITED(status) else "timeout" if spent else "killed"
        if not end and time.monotonic() > deadline:
            end = "timeout"
    if pipes and select.select(pipes, [], [], 0)[0]:
        text += os.read(report, _MAX_REPORT)
    return {"end": end, "report": text.decode(errors="replace")}


def _sweep(judge: int, uid: int, own: bool) -> None:
    """Without namespaces: kills all processes that the judge left."""
    with suppress(OSError):
        os.killpg(judge, signal.SIGKILL)
    if own:  # the uid is used by this box alone, so one call reaches all its processes
        pid = os.fork()
        if pid == 0:
            with suppress(OSError):
                _become(uid, uid)
                os.kill(-1, signal.SIGKILL)
            os._exit(0)
        os.waitpid(pid, 0)
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:  # orphans become our children, so this ends when none is left
        with suppress(OSError), open(f"/proc/self/task/{os.getpid()}/children") as children:
            for child in children.read().split():
                with suppress(OSError):
                    os.kill(int(child), signal.SIGKILL)
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.001)
        except ChildProcessError:
            return


def _inside_namespaces(job: dict[str, Any]) -> None:
    _unshare()
    pid = os.fork()
    if pid == 0:
        try:
            _prctl(_PDEATHSIG, signal.SIGKILL)
            _mount_root(job)
            _inside_bubblewrap(job)
        except BaseException as error:
            _write({"end": "setup", "report": repr(error)[:300]})
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def _inside_bubblewrap(job: dict[str, Any]) -> None:
    """This process is init: bubblewrap has done the rest."""
    _write(_watch(*_start(job), job["seconds"]))


def _inside_a_process(job: dict[str, Any]) -> None:
    uid, gid = job["uid"], job["gid"]
    os.chown(job["work"], uid, gid)
    _prctl(_SUBREAPER, 1)
    judge, report = _start(job, others=0 if os.geteuid() == 0 else _tasks(uid))
    outcome = _watch(judge, report, job["seconds"])
    _sweep(judge, uid, job["own_uid"])
    _write(outcome)


def _write(outcome: dict[str, str]) -> None:
    os.write(1, json.dumps(outcome).encode())


_INSIDE = {"bubblewrap": _inside_bubblewrap, "namespaces": _inside_namespaces, "process": _inside_a_process}


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # only signals that Python handles would reach init from inside
    with open(0, "rb", closefd=False) as file:
        line = file.readline()
    job = json.loads(line)
    job["start"] = len(line)  # of what the judge reads
    try:
        _INSIDE[job["level"]](job)
    except OSError as error:
        _write({"end": "setup", "report": repr(error)[:300]})


if __name__ == "__main__":
    main()
