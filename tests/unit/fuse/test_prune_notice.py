"""The notice that drops inodes: what the kernel hears, and from which version on."""

from __future__ import annotations

import logging
import os
import socket
import struct
from collections.abc import Iterator

import pytest

from fusebackend.fuse.pyfuse3_patches.prune_notice import FUSE_NOTIFY_PRUNE, MINOR, PruneNotice

INODES = [7, 1 << 48 | 9, (1 << 64) - 1]


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The kernel's end of a descriptor like that of /dev/fuse, which keeps messages apart, and libfuse's."""
    kernel, libfuse = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    kernel.setblocking(False)
    with kernel, libfuse:
        yield kernel, libfuse


def test_the_message(pair: tuple[socket.socket, socket.socket]) -> None:
    kernel, libfuse = pair
    notice = PruneNotice()
    notice.prepare(libfuse.fileno(), MINOR)
    assert notice.is_known
    notice.send(INODES)
    message = kernel.recv(1 << 16)
    length, code, unique, count, padding, spare, *inodes = struct.unpack("=IiQIIQ3Q", message)
    assert (length, code, unique) == (len(message), FUSE_NOTIFY_PRUNE, 0)
    assert (count, padding, spare, inodes) == (len(INODES), 0, 0, INODES)
    notice.close()
    assert not notice.is_known


def test_an_older_kernel_hears_nothing(pair: tuple[socket.socket, socket.socket]) -> None:
    kernel, libfuse = pair
    notice = PruneNotice()
    notice.prepare(libfuse.fileno(), MINOR - 1)
    assert not notice.is_known
    notice.send(INODES)
    with pytest.raises(BlockingIOError):
        kernel.recv(1 << 16)


def test_the_descriptor_of_libfuse_stays_open_and_ours_does_not(pair: tuple[socket.socket, socket.socket]) -> None:
    before = set(os.listdir("/proc/self/fd"))
    notice = PruneNotice()
    notice.prepare(pair[1].fileno(), MINOR)
    notice.close()
    notice.close()
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_kernel_that_refuses_is_not_asked_again(
    pair: tuple[socket.socket, socket.socket], caplog: pytest.LogCaptureFixture
) -> None:
    kernel, libfuse = pair
    notice = PruneNotice()
    notice.prepare(libfuse.fileno(), MINOR)
    kernel.close()
    with caplog.at_level(logging.ERROR):
        notice.send(INODES)
        notice.send(INODES)
    assert not notice.is_known
    assert [record.getMessage() for record in caplog.records] == [
        "the kernel can't be asked to drop inodes: [Errno 32] Broken pipe"
    ]
