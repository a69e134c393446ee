"""The loop between pyfuse3 and trio: a read that finds nothing is no failure."""

from __future__ import annotations

import errno
import os

import pytest
import trio

from fusebackend.fuse.pyfuse3_patches.cached_opendir import CachedOpendir
from fusebackend.fuse.pyfuse3_patches.cpu_latency import CpuLatency
from fusebackend.fuse.pyfuse3_patches.eager_loop import BURST, EagerTrio


def eager() -> EagerTrio:
    return EagerTrio(CachedOpendir(None), CpuLatency())


@pytest.mark.trio
async def test_a_worker_that_had_nothing_to_read_goes_on():
    runs = []

    async def worker(nursery, number):
        runs.append(number)
        if len(runs) < 3:
            raise OSError(errno.EAGAIN, "fuse_session_receive_buf failed")
        if len(runs) == 3:
            nursery.start_soon(worker, nursery, 2, name="another")

    async with eager().open_nursery() as nursery:
        nursery.start_soon(worker, nursery, 1)
    assert runs == [1, 1, 1, 2]


def test_any_other_failure_is_one():
    async def worker():
        raise OSError(errno.EIO, "fuse_session_receive_buf failed")

    async def main():
        async with eager().open_nursery() as nursery:
            nursery.start_soon(worker)

    with pytest.raises(ExceptionGroup) as failed:
        trio.run(main)
    assert failed.group_contains(OSError, match="receive_buf")


def test_waiting_leaves_a_descriptor_that_does_not_block():
    reader, writer = os.pipe()

    async def main():
        await eager().lowlevel.wait_readable(reader)

    try:
        os.write(writer, b"x")
        trio.run(main)
        assert not os.get_blocking(reader)
    finally:
        os.close(reader)
        os.close(writer)


def test_the_end_is_seen_also_by_a_worker_that_lets_others_go_first():
    reader, writer = os.pipe()

    async def main():
        lowlevel = eager().lowlevel
        os.write(writer, b"x")
        for _ in range(BURST - 1):
            await lowlevel.wait_readable(reader)
        os.read(reader, 1)
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lowlevel.wait_readable, reader)
                await trio.lowlevel.checkpoint()  # it has begun, and lets others go first
                lowlevel.notify_closing(reader)

    try:
        with pytest.raises(ExceptionGroup) as ended:
            trio.run(main)
        assert ended.group_contains(trio.ClosedResourceError)
    finally:
        os.close(reader)
        os.close(writer)
