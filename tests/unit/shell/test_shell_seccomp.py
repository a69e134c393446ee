"""The seccomp filter, run by a small interpreter: what it answers to each call, on every architecture it knows."""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct

import pytest
from for_each import for_each

from fusebackend.shell import seccomp
from fusebackend.shell.seccomp import ARCHITECTURES, CLONE_NEWUSER

ALLOW = 0
"""No errno."""

Words = tuple[int, ...]


def answer(machine: str, number: int, *arguments: int, audit: int | None = None, counted: bool = True) -> int:
    """The errno that the filter answers a call with (seccomp(2), Documentation/networking/filter.rst)."""
    program = seccomp.program(machine, counted=counted)
    assert program is not None
    audit = ARCHITECTURES[machine].audit if audit is None else audit
    data = struct.pack("=IIQ6Q", number, audit, 0, *(arguments + (0,) * 6)[:6])
    steps = list(struct.iter_unpack("=HBBI", program))
    at = accumulator = 0
    while True:
        code, if_true, if_false, value = steps[at]
        at += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, value)
        elif code == 0x06:
            assert value == 0x7FFF0000 or value >> 16 == 0x0005
            return ALLOW if value == 0x7FFF0000 else value & 0xFFFF
        else:
            true = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}[code]
            at += if_true if true else if_false


@pytest.fixture(params=sorted(ARCHITECTURES))
def machine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_machine_that_is_not_known_has_none() -> None:
    assert seccomp.program("vax") is None


def test_every_jump_ends_in_an_answer(machine: str) -> None:
    steps = list(struct.iter_unpack("=HBBI", seccomp.program(machine)))
    for at, (code, if_true, if_false, _) in enumerate(steps):
        assert code in (0x20, 0x06, 0x15, 0x35, 0x45)
        assert code in (0x20, 0x06) or at + 1 + max(if_true, if_false) < len(steps)
    assert steps[-1][0] == 0x06
    assert len(steps) < 4096, "BPF_MAXINSNS"


def test_what_is_not_named_is_allowed(machine: str) -> None:
    named = set(ARCHITECTURES[machine].calls.values())
    assert {answer(machine, number, *[0xFFFFFFFF] * 6) for number in range(500) if number not in named} == {ALLOW}


def test_what_is_refused(machine: str) -> None:
    calls = ARCHITECTURES[machine].calls
    assert {answer(machine, calls[name]) for name in seccomp.REFUSED} == {errno.EPERM}
    assert {answer(machine, calls[name]) for name in seccomp.ABSENT} == {errno.ENOSYS}


def test_no_user_namespace_and_any_process(machine: str) -> None:
    calls = ARCHITECTURES[machine].calls
    for name in ("clone", "unshare"):
        assert answer(machine, calls[name], CLONE_NEWUSER) == errno.EPERM
        assert answer(machine, calls[name], CLONE_NEWUSER | 17) == errno.EPERM
        assert answer(machine, calls[name], 0x003D0F00) == ALLOW, "what a thread is made with"
        assert answer(machine, calls[name], 0, CLONE_NEWUSER) == ALLOW, "the stack"


def test_families_of_sockets(machine: str) -> None:
    number = ARCHITECTURES[machine].calls["socket"]
    allowed = {family for family in range(64) if answer(machine, number, family, 0xFFFF, 0xFFFF) == ALLOW}
    assert allowed == {socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK}
    assert answer(machine, number, socket.AF_VSOCK) == errno.EAFNOSUPPORT


def having(**arguments: int) -> list[tuple[str, str, int]]:
    """Architecture, call, and how many arguments come before the one that matters; some have only the newer calls."""
    return [
        (machine, name, before)
        for machine, architecture in ARCHITECTURES.items()
        for name, before in arguments.items()
        if name in architecture.calls
    ]


WRITE, NEW, UNNAMED = os.O_WRONLY, os.O_CREAT | os.O_WRONLY, os.O_TMPFILE | os.O_WRONLY
SETID = {
    "of what may be a directory": (
        having(chmod=1, fchmod=1, fchmodat=2, fchmodat2=2),
        [(0o4755,), (stat.S_IFREG | 0o6755,)],
        [(0o3777,)],
    ),
    "of what is no directory": (
        having(mknod=1, mknodat=2, creat=1),
        [(0o4755,), (0o2755,), (stat.S_IFREG | 0o6755,), (stat.S_IFIFO | 0o2644,)],
        [(stat.S_IFREG | 0o1777,)],
    ),
    "of new files": (
        having(open=1, openat=2),
        [(NEW, 0o4755), (NEW, 0o2755), (UNNAMED, 0o4755), (UNNAMED, 0o2755)],
        [(os.O_DIRECTORY, 0o4755), (NEW, 0o755), (WRITE, 0o4755)],  # without O_CREAT, there is no mode
    ),
}


@for_each(("calls", "refused", "allowed"), SETID.values(), ids=SETID)
def test_setid_modes(calls: list[tuple[str, str, int]], refused: list[Words], allowed: list[Words]) -> None:
    for machine, name, before in calls:
        for expected, every in ((errno.EPERM, refused), (ALLOW, allowed)):
            path = [0x7FFF_0C40] * before  # a pointer may have any bit
            answers = {answer(machine, ARCHITECTURES[machine].calls[name], *path, *words) for words in every}
            assert answers == {expected}, (machine, name)


def test_what_is_counted_by_user_or_machine(machine: str) -> None:
    calls = ARCHITECTURES[machine].calls
    assert answer(machine, calls["io_setup"]) == errno.EAGAIN
    for counted, expected in ((True, ALLOW), (False, errno.EMFILE)):
        answers = {answer(machine, calls[name], counted=counted) for name in seccomp.COUNTED_BY_USER if name in calls}
        assert answers == {expected}


def test_calls_of_other_architectures(machine: str) -> None:
    assert answer(machine, 1, audit=0x40000003) == errno.ENOSYS, "i386"
    if machine == "x86_64":
        assert answer(machine, 0x40000000 | 39) == errno.ENOSYS, "x32"
