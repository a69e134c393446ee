"""The first two messages of a mount: what is agreed on beyond what libfuse knows, and what goes through unchanged."""

from __future__ import annotations

import os
import socket
import struct

import pytest
import trio

from fusebackend.fuse.pyfuse3_patches.init_flags import (
    FUSE_HANDLE_KILLPRIV_V2,
    FUSE_PARALLEL_DIROPS,
    WANTED,
    WANTED_FOR_ACLS,
    InitFlags,
)

UNIQUE = 2


def question(flags: int, opcode: int = 26) -> bytes:
    return struct.pack("=IIQQIIIHH IIII", 56, opcode, UNIQUE, 0, 0, 0, 0, 0, 0, 7, 45, 131072, flags)


def answer(flags: int, error: int = 0) -> bytes:
    body = struct.pack("=IIIIHHIIHH8I", 7, 31, 131072, flags, 0, 0, 1 << 20, 1, 256, 0, *[0] * 8)
    return struct.pack("=IiQ", 16 + len(body), error, UNIQUE) + body


@pytest.fixture
def kernel():
    """The kernel's end of a descriptor like that of /dev/fuse, which keeps messages apart, and libfuse's."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(10)
    with ours:
        descriptor = theirs.detach()
        try:
            yield ours, descriptor
        finally:
            os.close(descriptor)


def meet(kernel, asked: bytes, answered: bytes, *, acls: bool = False) -> tuple[InitFlags, bytes]:
    """Both messages, with libfuse in its place; gives what the kernel hears."""
    ours, descriptor = kernel

    async def talk() -> InitFlags:
        init_flags = InitFlags(descriptor, acls=acls)
        with trio.fail_after(10):
            await init_flags.go_on()
            assert os.read(descriptor, 1 << 20) == asked, "libfuse is asked what the kernel asks"
            os.write(descriptor, answered)
            await init_flags.go_on()
        assert init_flags.is_over
        init_flags.diversion.close()
        return init_flags

    ours.send(asked)
    init_flags = trio.run(talk)
    return init_flags, ours.recv(1 << 20)


def test_what_the_kernel_offers_is_added_and_nothing_else_touched(kernel):
    init_flags, heard = meet(kernel, question(WANTED | WANTED_FOR_ACLS | 0xF0), answer(0x70))
    assert heard == answer(0x70 | WANTED)
    assert init_flags.is_over
    assert init_flags.agreed == WANTED
    assert init_flags.minor == 45


def test_acls_are_agreed_on_where_they_are_asked_for(kernel):
    asked = WANTED | WANTED_FOR_ACLS
    assert meet(kernel, question(asked), answer(0x30), acls=True)[1] == answer(0x30 | asked)


def test_an_older_kernel_is_not_told_what_it_does_not_know(kernel):
    init_flags, heard = meet(kernel, question(FUSE_PARALLEL_DIROPS), answer(0x70))
    assert heard == answer(0x70 | FUSE_PARALLEL_DIROPS)
    assert not init_flags.agreed & FUSE_HANDLE_KILLPRIV_V2


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        (question(0), answer(0x70)),
        (question(WANTED, opcode=1), answer(0x70)),
        (question(WANTED), answer(0x70, error=-71)),
        (question(WANTED), answer(0x70) + b"more"),
        (question(WANTED), b"short"),
        (b"short", answer(0x70)),
    ],
    ids=["offers nothing", "no INIT", "an error", "a wrong length", "a short answer", "a short question"],
)
def test_what_is_not_expected_goes_through_unchanged(kernel, asked, answered):
    init_flags, heard = meet(kernel, asked, answered)
    assert heard == answered
    assert init_flags.agreed == 0


def test_from_then_on_libfuse_speaks_to_the_kernel_itself(kernel):
    meet(kernel, question(WANTED), answer(0))
    ours, descriptor = kernel
    ours.send(b"a request")
    assert os.read(descriptor, 100) == b"a request"
    os.write(descriptor, b"an answer")
    assert ours.recv(100) == b"an answer"


def test_a_mount_that_ends_before_it_has_begun_leaves_nothing_behind(kernel):
    ours, descriptor = kernel
    before = len(os.listdir("/proc/self/fd"))
    init_flags = InitFlags(descriptor)
    init_flags.diversion.close()
    init_flags.diversion.close()
    assert len(os.listdir("/proc/self/fd")) == before
    ours.send(b"again")
    assert os.read(descriptor, 100) == b"again"
