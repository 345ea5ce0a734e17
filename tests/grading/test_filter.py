"""The filter on system calls, run by an interpreter of its instructions: machines differ, and only one is here."""

import struct

import pytest

from shadowprice.grading._filter import _MACHINES, _NEW, system_call_filter

ALLOWED, KILLED = "allowed", "killed"
EPERM, ENOSYS = 1, 38
NEW_USER_NAMESPACE, CHILD = 0x10000000, 17


def verdict(machine, number, *arguments, architecture=None):
    """What the kernel would do with a call: allow it, kill the program, or return an error."""
    data = struct.pack("=IIQ6Q", number, architecture or _MACHINES[machine][0], 0, *(*arguments, *[0] * 6)[:6])
    steps = list(struct.iter_unpack("=HBBI", system_call_filter(machine)))
    place = value = 0
    while True:
        code, if_true, if_false, operand = steps[place]
        place += 1
        if code == 0x20:
            (value,) = struct.unpack_from("=I", data, operand)
        elif code == 0x06:
            return {0x7FFF0000: ALLOWED, 0x80000000: KILLED}.get(operand, operand & 0xFFFF)
        else:
            true = {0x15: value == operand, 0x35: value >= operand, 0x45: bool(value & operand)}[code]
            place += if_true if true else if_false


@pytest.fixture(params=_MACHINES)
def machine(request):
    return request.param


def test_calls_are_refused(machine):
    for number in {**_MACHINES[machine][2], **_NEW}.values():
        assert verdict(machine, number) == EPERM


def test_what_programs_need_is_allowed(machine):
    _, looked_at, refused = _MACHINES[machine]
    for number in set(range(424)) - {*refused.values(), *looked_at.values()}:
        assert verdict(machine, number) == ALLOWED


def test_processes_and_threads_but_no_namespaces(machine):
    clone = _MACHINES[machine][1]["clone"]
    assert verdict(machine, clone, CHILD) == ALLOWED
    assert verdict(machine, clone, 0x3D0F00) == ALLOWED  # the flags of a thread
    assert verdict(machine, clone, CHILD | NEW_USER_NAMESPACE) == EPERM
    assert verdict(machine, 435) == ENOSYS  # clone3


@pytest.mark.parametrize(("family", "expected"), [(1, ALLOWED), (2, ALLOWED), (10, ALLOWED), (16, 97), (40, 97)])
def test_sockets_by_their_family(machine, family, expected):
    assert verdict(machine, _MACHINES[machine][1]["socket"], family) == expected


def test_nothing_is_typed_into_a_terminal(machine):
    ioctl = _MACHINES[machine][1]["ioctl"]
    assert verdict(machine, ioctl, 0, 0x5412) == EPERM
    assert verdict(machine, ioctl, 0, 0x5401) == ALLOWED


def test_calls_of_another_architecture_or_a_newer_kernel(machine):
    assert verdict(machine, 1, architecture=0x40000003) == KILLED  # 32 bits
    assert verdict(machine, 0x40000000 + 39) == ENOSYS  # x32
    assert verdict(machine, 468) == ENOSYS


def test_other_machines_have_no_filter():
    assert system_call_filter("s390x") == b""
