"""The answer to `opendir` on its way to the kernel: what is set in it, and what goes through unchanged."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator

import pytest

from fusebackend.fuse.pyfuse3_patches.cached_opendir import FOPEN_CACHE_DIR, FOPEN_KEEP_CACHE, CachedOpendir
from fusebackend.fuse.pyfuse3_patches.diversion import Diversion

UNIQUE, HANDLE = 5, 77


class Notices:
    """In flight or not, as the test says."""

    def __init__(self) -> None:
        self.in_flight = self.held = False

    def hold(self) -> bool:
        if self.in_flight:
            return False
        self.held = True
        return True

    def go_on(self) -> None:
        assert self.held
        self.held = False


class Wire:
    """The kernel's end of a descriptor like that of /dev/fuse, which keeps messages apart; and libfuse's."""

    def __init__(self) -> None:
        self.kernel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.kernel.settimeout(10)
        self.descriptor = theirs.detach()
        self.diversion = Diversion(self.descriptor)
        self.notices = Notices()
        self.cached_opendir = CachedOpendir(self.notices)

    def close(self) -> None:
        self.cached_opendir.close()
        self.diversion.close()
        self.kernel.close()
        os.close(self.descriptor)


@pytest.fixture
def wire() -> Iterator[Wire]:
    with contextlib.closing(Wire()) as wire:
        yield wire


def opened(flags: int, error: int = 0) -> bytes:
    return struct.pack("=IiQQII", 32, error, UNIQUE, HANDLE, flags, 0)


def refused(error: int) -> bytes:
    return struct.pack("=IiQ", 16, -error, UNIQUE)


def test_the_kernel_may_keep_the_listing_of_what_is_opened_between_begin_and_end(wire: Wire) -> None:
    wire.cached_opendir.prepare(wire.diversion)
    wire.cached_opendir.begin()
    os.write(wire.descriptor, opened(0))
    assert wire.notices.held
    wire.cached_opendir.end()
    assert wire.kernel.recv(100) == opened(FOPEN_KEEP_CACHE | FOPEN_CACHE_DIR)
    assert not wire.notices.held
    os.write(wire.descriptor, opened(0))
    assert wire.kernel.recv(100) == opened(0)


@pytest.mark.parametrize("message", [refused(2), opened(0, error=-5), b"x", opened(0) + b"more"])
def test_what_is_no_such_answer_stays_as_it_is(wire: Wire, message: bytes) -> None:
    wire.cached_opendir.prepare(wire.diversion)
    wire.cached_opendir.begin()
    os.write(wire.descriptor, message)
    wire.cached_opendir.end()
    assert wire.kernel.recv(100) == message


def test_while_a_notice_is_on_its_way_nothing_is_diverted(wire: Wire) -> None:
    wire.cached_opendir.prepare(wire.diversion)
    wire.notices.in_flight = True
    wire.cached_opendir.begin()
    assert not wire.cached_opendir.is_on
    os.write(wire.descriptor, opened(0))
    assert wire.kernel.recv(100) == opened(0)


def test_before_it_is_prepared_and_after_it_is_closed_nothing_is_diverted(wire: Wire) -> None:
    wire.cached_opendir.begin()
    os.write(wire.descriptor, opened(0))
    assert wire.kernel.recv(100) == opened(0)
    wire.cached_opendir.prepare(wire.diversion)
    wire.cached_opendir.close()
    wire.cached_opendir.close()
    wire.cached_opendir.begin()
    os.write(wire.descriptor, opened(0))
    assert wire.kernel.recv(100) == opened(0)


def test_an_answer_that_waits_when_the_mount_ends_is_given(wire: Wire) -> None:
    wire.cached_opendir.prepare(wire.diversion)
    wire.cached_opendir.begin()
    os.write(wire.descriptor, opened(0))
    wire.cached_opendir.close()
    assert wire.kernel.recv(100) == opened(FOPEN_KEEP_CACHE | FOPEN_CACHE_DIR)
    assert not wire.notices.held


def test_whoever_has_gone_meanwhile_harms_nobody(wire: Wire) -> None:
    wire.cached_opendir.prepare(wire.diversion)
    wire.cached_opendir.begin()
    wire.cached_opendir.end()  # with no answer at all
    assert not wire.notices.held
    wire.cached_opendir.begin()
    os.write(wire.descriptor, opened(0))
    wire.cached_opendir.end()
    assert wire.kernel.recv(100) == opened(FOPEN_KEEP_CACHE | FOPEN_CACHE_DIR)
