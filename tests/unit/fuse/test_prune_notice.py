"""The notice that drops inodes: what the kernel hears."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
from collections.abc import Iterator

import pytest

from fusebackend.fuse.pyfuse3_patches.diversion import Diversion
from fusebackend.fuse.pyfuse3_patches.prune_notice import FUSE_NOTIFY_PRUNE, PruneNotice

INODES = [7, 1 << 48 | 9, (1 << 64) - 1]


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The kernel's end of a descriptor like that of /dev/fuse, which keeps messages apart, and libfuse's."""
    kernel, libfuse = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    kernel.setblocking(False)
    with kernel, libfuse:
        yield kernel, libfuse


@pytest.fixture
def diversion(pair: tuple[socket.socket, socket.socket]) -> Iterator[Diversion]:
    with contextlib.closing(Diversion(pair[1].fileno())) as diversion:
        yield diversion


def test_the_message(pair: tuple[socket.socket, socket.socket], diversion: Diversion) -> None:
    PruneNotice(diversion).send(INODES)
    message = pair[0].recv(1 << 16)
    length, code, unique, count, padding, spare, *inodes = struct.unpack("=IiQIIQ3Q", message)
    assert (length, code, unique) == (len(message), FUSE_NOTIFY_PRUNE, 0)
    assert (count, padding, spare, inodes) == (len(INODES), 0, 0, INODES)


def test_it_goes_past_an_answer_that_is_diverted(
    pair: tuple[socket.socket, socket.socket], diversion: Diversion
) -> None:
    diversion.begin()
    PruneNotice(diversion).send(INODES)
    assert struct.unpack_from("=Ii", pair[0].recv(1 << 16))[1] == FUSE_NOTIFY_PRUNE
    with pytest.raises(BlockingIOError):
        diversion.ours.recv(1)


def test_the_descriptor_of_libfuse_stays_open_and_ours_do_not(pair: tuple[socket.socket, socket.socket]) -> None:
    before = set(os.listdir("/proc/self/fd"))
    diversion = Diversion(pair[1].fileno())
    diversion.close()
    diversion.close()
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_kernel_that_refuses_is_not_asked_again(
    pair: tuple[socket.socket, socket.socket], diversion: Diversion, caplog: pytest.LogCaptureFixture
) -> None:
    notice = PruneNotice(diversion)
    pair[0].close()
    with caplog.at_level(logging.ERROR):
        notice.send(INODES)
        notice.send(INODES)
    assert [record.getMessage() for record in caplog.records] == [
        "the kernel can't be asked to drop inodes: [Errno 32] Broken pipe"
    ]


def test_a_mount_that_has_ended_hears_nothing(pair: tuple[socket.socket, socket.socket], diversion: Diversion) -> None:
    diversion.close()
    PruneNotice(diversion).send(INODES)
    with pytest.raises(BlockingIOError):
        pair[0].recv(1 << 16)
