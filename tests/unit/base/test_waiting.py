"""Calls that are tried where nothing may wait, and made again elsewhere."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import threading
from collections.abc import Iterator

import pytest
from eventually import eventually
from together import together

from fusebackend.base.deadline import is_readable
from fusebackend.base.waiting import Lock, Turns, WouldWait, at_once, will_wait
from fusebackend.protocol import Features, Volume
from fusebackend.remote import parallel
from fusebackend.vfs.calls.executor import RouteExecutor


def test_only_an_attempt_may_not_wait() -> None:
    will_wait()
    for waits in (will_wait, lambda: parallel.each(str, [1])):
        with pytest.raises(WouldWait):
            at_once(waits)
    will_wait()
    assert at_once(lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        at_once(lambda: 1 // 0)
    will_wait()


def test_an_attempt_does_not_bind_other_threads() -> None:
    ended = []

    def other() -> None:
        will_wait()
        ended.append(True)

    at_once(lambda: together(other))
    assert ended == [True]


def test_a_lock_is_taken_at_once_or_waited_for() -> None:
    lock = Lock()
    with lock:
        at_once(lambda: lock.__enter__())  # its own
        lock.__exit__(None, None, None)
        outcome: list[str] = []

        def other() -> None:
            try:
                at_once(lambda: lock.__enter__())
            except WouldWait:
                outcome.append("would wait")
            with lock:
                outcome.append("waited")

        thread = threading.Thread(target=other)
        thread.start()
        eventually(lambda: outcome == ["would wait"])
    thread.join(30)
    assert outcome == ["would wait", "waited"]


class Waiting(Volume):
    """Waits when told to. Counts the threads it was called in."""

    features = Features(blocking=True)
    at_once = frozenset({"write"})

    def __init__(self) -> None:
        self.waits = False
        self.threads: list[str] = []

    def _called(self) -> None:
        if self.waits:
            will_wait()
        self.threads.append(threading.current_thread().name)

    def lookup(self, parent, name):  # type: ignore[no-untyped-def]
        self._called()
        raise OSError(errno.ENOENT, "x")

    def read(self, node, offset, size):  # type: ignore[no-untyped-def]
        self._called()
        return b"data"

    def write(self, node, offset, data):  # type: ignore[no-untyped-def]
        self._called()
        return len(data)

    def unlink(self, parent, name):  # type: ignore[no-untyped-def]
        self._called()

    def readdir(self, node, after, limit):  # type: ignore[no-untyped-def]
        return ()

    def getattr(self, node):  # type: ignore[no-untyped-def]
        raise OSError(errno.ESTALE, "x")

    def statfs(self):  # type: ignore[no-untyped-def]
        raise OSError(errno.ENOSYS, "x")


@pytest.mark.trio
async def test_what_need_not_wait_is_done_on_the_loop_and_all_else_in_threads() -> None:
    volume = Waiting()

    route_executor = RouteExecutor(True, volume)
    here = threading.current_thread().name
    assert await route_executor.ask(volume.read, 1, 0, 4) == b"data"
    assert await route_executor.call(volume.write, 1, 0, b"xyz") == 3
    with pytest.raises(FileNotFoundError):
        await route_executor.ask(volume.lookup, 1, b"name")
    assert volume.threads == [here] * 3
    await route_executor.call(volume.unlink, 1, b"name")  # not a call that would wait before it changes anything
    volume.waits = True
    assert await route_executor.ask(volume.read, 1, 0, 4) == b"data"
    assert await route_executor.call(volume.write, 1, 0, b"xyz") == 3
    assert len(volume.threads) == 6 and here not in volume.threads[3:]


@pytest.mark.trio
async def test_nothing_is_tried_on_the_loop_for_a_volume_that_does_not_say_so() -> None:
    volume = Waiting()
    volume.at_once = frozenset()  # type: ignore[misc]

    route_executor = RouteExecutor(True, volume)
    await route_executor.ask(volume.read, 1, 0, 4)
    assert threading.current_thread().name not in volume.threads


def test_a_place_goes_to_the_one_that_has_waited_longest() -> None:
    turns, order = Turns(1), list[int]()

    def wait(number: int) -> None:
        assert turns.take(60.0)
        order.append(number)
        turns.leave()

    assert turns.take(0)
    waiting = [threading.Thread(target=wait, args=(number,)) for number in range(3)]
    for number, thread in enumerate(waiting, 1):
        thread.start()
        eventually(lambda number=number: len(turns._waiting) == number)
    turns.leave()
    assert order or not turns.take(0), "a thread that asks next is not before those that wait"
    for thread in waiting:
        thread.join()
    assert order == [0, 1, 2]
    assert turns.take(0)
    assert not turns.take(0.01), "there is one place, and it is taken"


# -- a wait for one descriptor -----------------------------------------------------------------------------------------


TOO_LARGE = 1024
"""The first descriptor that select(2) does not take."""


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe whose reading end is a large descriptor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 2 * TOO_LARGE)), hard))
    small, write = os.pipe()
    read = fcntl.fcntl(small, fcntl.F_DUPFD_CLOEXEC, TOO_LARGE)
    os.close(small)
    yield read, write
    os.close(read)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_large_descriptor_is_waited_for(pipe: tuple[int, int]) -> None:
    read, write = pipe
    assert read >= TOO_LARGE
    assert not is_readable(read, 0.01)
    assert not is_readable(read, -1), "a time that is over is no time"
    os.write(write, b"x")
    assert is_readable(read, 10)
    os.read(read, 1)
    os.close(write)
    assert is_readable(read, 10), "its other side has hung up"
