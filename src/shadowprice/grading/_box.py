"""The box a candidate program runs in; `programs.py` starts this file as a process of its own.

    box        outside; asks the kernel for new namespaces and waits
    └─ init    first process inside; mounts, keeps the clock; when it ends, the kernel kills all inside
       └─ judge   without privileges; loads the program and runs its tests (`_judge.py`)

At the level "process" the kernel grants no namespaces: the box itself is the judge's parent and kills
what it leaves. The job is JSON on stdin (a file, which the judge reads again), the outcome is JSON on
stdout. Nothing of shadowprice is imported: the file must run alone.
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

_NEWNS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = 0x20000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
_NOSUID, _NODEV, _BIND, _REC, _PRIVATE = 2, 4, 0x1000, 0x4000, 1 << 18
_PDEATHSIG, _SUBREAPER, _NO_NEW_PRIVS = 1, 36, 38  # of prctl
_REPORT_MOST = 4096  # bytes of report that are read; a judge that writes more blocks until its time is up

_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: Any) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _prctl(option: int, value: int) -> None:
    if hasattr(_libc, "prctl"):  # only Linux has it
        _call("prctl", option, value, 0, 0, 0)


# --- the user of the program -------------------------------------------------------------------


def _identity() -> tuple[int, int, bool]:
    """Uid and gid of the judge, and whether the uid is its alone.

    Root gives every box a uid of its own: the limit on processes does not bind root, and counts by
    user. Where such uids do not exist (some containers), it is `nobody`.
    """
    if os.geteuid() != 0:
        return os.geteuid(), os.getegid(), False
    own = 1_000_000_000 + os.getpid()
    with suppress(OSError), open("/proc/self/uid_map") as ranges:
        for line in ranges:
            first, _, count = map(int, line.split())
            if first <= own < first + count:
                return own, own, True
    return 65534, 65534, False


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
    flags = _NEWNS | _NEWIPC | _NEWPID | _NEWNET
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


def _furnish(job: dict[str, Any], uid: int, gid: int) -> None:
    """Mounts everything read-only except a small folder in memory; hides other processes and sockets."""
    read_only, work = 1, job["work"]
    _mount("none", "/", None, _REC | _PRIVATE)
    if job["library"]:  # the interpreter is where only root may read
        _mount(job["library"], job["python_folder"], None, _BIND | _REC)
    if job["packages"] and os.geteuid() == 0:  # they may be there too
        _mount(job["packages"], job["packages_folder"], None, _BIND | _REC)
    size = f"size={job['disk']},nr_inodes=10000"
    _mount("tmpfs", work, "tmpfs", _NOSUID | _NODEV, f"{size},mode=700,uid={uid},gid={gid}")
    writable = [work]
    if os.path.isdir("/dev/shm"):
        _mount("tmpfs", "/dev/shm", "tmpfs", _NOSUID | _NODEV, f"{size},mode=1777")
        writable.append("/dev/shm")
    if os.path.isdir("/run"):  # where services have their sockets
        _mount("tmpfs", "/run", "tmpfs", _NOSUID | _NODEV, "size=4k")
    try:
        _mount("proc", "/proc", "proc", _NOSUID | _NODEV)
    except OSError:  # a container that hides parts of it
        _mount("tmpfs", "/proc", "tmpfs", _NOSUID | _NODEV, "size=4k")
    _set_attributes("/", add=read_only | _NOSUID, recursive=True)
    for folder in writable:
        _set_attributes(folder, remove=read_only)


# --- running and watching ----------------------------------------------------------------------


def _start(job: dict[str, Any], uid: int, gid: int, processes: int) -> tuple[int, int]:
    """The judge's pid and the pipe its report comes through."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    try:
        _run_judge(job, uid, gid, processes, writing)
    except BaseException as error:
        os.write(writing, f"setup: {error!r}"[:300].encode())
    os._exit(1)


def _run_judge(job: dict[str, Any], uid: int, gid: int, processes: int, report: int) -> NoReturn:
    os.setsid()
    os.chdir(job["work"])
    os.lseek(0, 0, os.SEEK_SET)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number, source in ((3, os.dup(report)), (1, nowhere), (2, nowhere)):  # nothing above 3 is inherited
        os.dup2(source, number)
    seconds = int(job["seconds"]) + 1
    limits = {
        "RLIMIT_CPU": (seconds, seconds + 1),  # SIGXCPU first, then SIGKILL
        "RLIMIT_AS": (job["memory"], job["memory"]),
        "RLIMIT_FSIZE": (job["file_size"], job["file_size"]),
        "RLIMIT_NPROC": (processes, processes),
        "RLIMIT_NOFILE": (128, 128),
        "RLIMIT_CORE": (0, 0),
    }
    for name, limit in limits.items():
        with suppress(ValueError, OSError):  # a lower limit is in force, or the system does not have this one
            resource.setrlimit(getattr(resource, name), limit)
    _become(uid, gid)
    _prctl(_NO_NEW_PRIVS, 1)
    _prctl(_PDEATHSIG, signal.SIGKILL)
    os.closerange(4, 4096)
    os.execve(job["python"], [job["python"], "-I", "-c", job["judge"]], _environment(job))


def _environment(job: dict[str, Any]) -> dict[str, str]:
    work = job["work"]
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": work,
        "TMPDIR": work,
        "LANG": "C.UTF-8",
        "LD_LIBRARY_PATH": f"{job['python_folder']}/lib" if job["library"] else "",
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
            piece = os.read(report, _REPORT_MOST)
            text += piece
            if not piece or len(text) > _REPORT_MOST:
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
        text += os.read(report, _REPORT_MOST)
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
    uid, gid, _ = _identity()
    _unshare()
    pid = os.fork()
    if pid == 0:
        try:
            _prctl(_PDEATHSIG, signal.SIGKILL)
            _furnish(job, uid, gid)
            _write(_watch(*_start(job, uid, gid, job["processes"]), job["seconds"]))
        except BaseException as error:
            _write({"end": "setup", "report": repr(error)[:300]})
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def _inside_a_process(job: dict[str, Any]) -> None:
    uid, gid, own = _identity()
    os.chown(job["work"], uid, gid)
    _prctl(_SUBREAPER, 1)
    others = 0 if os.geteuid() == 0 else _tasks(uid)
    judge, report = _start(job, uid, gid, job["processes"] + others)
    outcome = _watch(judge, report, job["seconds"])
    _sweep(judge, uid, own)
    _write(outcome)


def _write(outcome: dict[str, str]) -> None:
    os.write(1, json.dumps(outcome).encode())


def main() -> None:
    with open(0, "rb", closefd=False) as file:
        job = json.load(file)
    try:
        if job["level"] == "namespaces":
            _inside_namespaces(job)
        else:
            _inside_a_process(job)
    except OSError as error:
        _write({"end": "setup", "report": repr(error)[:300]})


if __name__ == "__main__":
    main()
