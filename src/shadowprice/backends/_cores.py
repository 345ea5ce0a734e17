"""How many threads a model on this machine should compute with."""

from __future__ import annotations

import os
from pathlib import Path

_CPUS, _QUOTA = Path("/sys/devices/system/cpu"), Path("/sys/fs/cgroup/cpu.max")


def default_threads() -> int:
    """$OMP_NUM_THREADS, as other libraries have it, or the physical cores that this process may use.

    Two threads on one core, or more threads than a container has time for, wait for each other at every step.
    """
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if asked.isdecimal() and int(asked) > 0:
        return int(asked)
    return max(1, min(_physical_cores(), _quota()))


def _physical_cores() -> int:
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    return len({_core(cpu) for cpu in os.sched_getaffinity(0)})


def _core(cpu: int) -> str:
    """Identifies a core: the CPUs that share it."""
    try:
        return (_CPUS / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)


def _quota() -> int:
    """How many cores a container may use, by its time quota."""
    try:
        quota, period = _QUOTA.read_text().split()
        return -(-int(quota) // int(period))
    except (OSError, ValueError, ZeroDivisionError):
        return os.cpu_count() or 1
