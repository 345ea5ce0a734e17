"""The system calls that a candidate program may not make, as a seccomp filter: BPF instructions for the kernel.

Namespaces decide what the program can see; the filter keeps it from making new ones and from parts of the
kernel that no graded program needs and that bugs were found in (io_uring, keyrings, bpf, perf events).
"""

from __future__ import annotations

import platform
import struct

_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _ENOSYS, _EAFNOSUPPORT = 1, 38, 97
_NUMBER, _ARCHITECTURE, _FIRST, _SECOND = 0, 4, 16, 24  # offsets in seccomp_data; arguments: their lower halves
_NEW_NAMESPACES = 0x7E020000  # flags of clone
_FAMILIES = (1, 2, 10)  # of sockets: unix, IPv4, IPv6; others (vsock, netlink) are not bound to a network namespace
_TERMINAL_INPUT = (0x5412, 0x541C)  # ioctls that type into a terminal: TIOCSTI, TIOCLINUX

# From 424 on, numbers are the same on all machines. What is newer than this list is refused as unknown.
_FIRST_UNKNOWN = 468
_CLONE3 = 435  # refused as unknown: its flags are in memory, which a filter cannot read
_NEW = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429,
    "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "pidfd_getfd": 438, "process_madvise": 440,
    "mount_setattr": 442, "quotactl_fd": 443, "memfd_secret": 447, "process_mrelease": 448, "statmount": 457,
    "listmount": 458, "open_tree_attr": 467,
}  # fmt: skip

# By `platform.machine()`: how the kernel names the architecture, calls whose arguments are looked at, calls refused.
_MACHINES = {
    "x86_64": (
        0xC000003E,
        {"clone": 56, "socket": 41, "ioctl": 16},
        {
            "ptrace": 101, "syslog": 103, "uselib": 134, "vhangup": 153, "modify_ldt": 154, "pivot_root": 155,
            "adjtimex": 159, "chroot": 161, "acct": 163, "settimeofday": 164, "mount": 165, "umount2": 166,
            "swapon": 167, "swapoff": 168, "reboot": 169, "sethostname": 170, "setdomainname": 171, "iopl": 172,
            "ioperm": 173, "create_module": 174, "init_module": 175, "delete_module": 176, "quotactl": 179,
            "nfsservctl": 180, "lookup_dcookie": 212, "clock_settime": 227, "kexec_load": 246, "add_key": 248,
            "request_key": 249, "keyctl": 250, "migrate_pages": 256, "unshare": 272, "move_pages": 279,
            "perf_event_open": 298, "fanotify_init": 300, "name_to_handle_at": 303, "open_by_handle_at": 304,
            "clock_adjtime": 305, "setns": 308, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312,
            "finit_module": 313, "kexec_file_load": 320, "bpf": 321, "userfaultfd": 323,
        },
    ),
    "aarch64": (
        0xC00000B7,
        {"clone": 220, "socket": 198, "ioctl": 29},
        {
            "lookup_dcookie": 18, "umount2": 39, "mount": 40, "pivot_root": 41, "nfsservctl": 42, "chroot": 51,
            "vhangup": 58, "quotactl": 60, "acct": 89, "unshare": 97, "kexec_load": 104, "init_module": 105,
            "delete_module": 106, "clock_settime": 112, "syslog": 116, "ptrace": 117, "reboot": 142,
            "sethostname": 161, "setdomainname": 162, "settimeofday": 170, "adjtimex": 171, "add_key": 217,
            "request_key": 218, "keyctl": 219, "swapon": 224, "swapoff": 225, "migrate_pages": 238,
            "move_pages": 239, "perf_event_open": 241, "fanotify_init": 262, "name_to_handle_at": 264,
            "open_by_handle_at": 265, "clock_adjtime": 266, "setns": 268, "process_vm_readv": 270,
            "process_vm_writev": 271, "kcmp": 272, "finit_module": 273, "bpf": 280, "userfaultfd": 282,
            "kexec_file_load": 294,
        },
    ),
}  # fmt: skip


def system_call_filter(machine: str = "") -> bytes:
    """The filter for this machine (or the one named), as the kernel takes it; empty where none is known."""
    machine = machine or platform.machine()
    if machine not in _MACHINES:
        return b""
    architecture, looked_at, refused = _MACHINES[machine]
    # Calls of another architecture (32 bits) have other numbers; those of x32 are above all that are known.
    parts = [
        _load(_ARCHITECTURE),
        _step(_JUMP_EQUAL, architecture, 1, 0),
        _step(_RETURN, _KILL),
        _load(_NUMBER),
        *_if(_JUMP_AT_LEAST, _FIRST_UNKNOWN, [_error(_ENOSYS)]),
        *_if(_JUMP_EQUAL, _CLONE3, [_error(_ENOSYS)]),
    ]
    for number in sorted({**refused, **_NEW}.values()):
        parts += _if(_JUMP_EQUAL, number, [_error(_EPERM)])
    parts += _if(
        _JUMP_EQUAL,
        looked_at["clone"],
        [_load(_FIRST), *_if(_JUMP_ANY_BIT, _NEW_NAMESPACES, [_error(_EPERM)]), _step(_RETURN, _ALLOW)],
    )
    allowed = [step for family in _FAMILIES for step in _if(_JUMP_EQUAL, family, [_step(_RETURN, _ALLOW)])]
    parts += _if(_JUMP_EQUAL, looked_at["socket"], [_load(_FIRST), *allowed, _error(_EAFNOSUPPORT)])
    typing = [step for code in _TERMINAL_INPUT for step in _if(_JUMP_EQUAL, code, [_error(_EPERM)])]
    parts += _if(_JUMP_EQUAL, looked_at["ioctl"], [_load(_SECOND), *typing, _step(_RETURN, _ALLOW)])
    return b"".join([*parts, _step(_RETURN, _ALLOW)])


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _load(offset: int) -> bytes:
    return _step(_LOAD, offset)


def _error(number: int) -> bytes:
    return _step(_RETURN, _ERROR | number)


def _if(comparison: int, value: int, then: list[bytes]) -> list[bytes]:
    """Runs `then` if the comparison holds, else jumps over it."""
    return [_step(comparison, value, 0, len(then)), *then]
