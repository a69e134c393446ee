"""`deadline.is_readable`: a wait for one descriptor."""

from __future__ import annotations

import fcntl
import os
import resource
from collections.abc import Iterator

import pytest

from fusebackend.base.deadline import is_readable

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
    os.write(write, b"x")
    assert is_readable(read, 10)
    os.read(read, 1)
    os.close(write)
    assert is_readable(read, 10), "its other side has hung up"


def test_a_time_that_is_over_is_no_time(pipe: tuple[int, int]) -> None:
    read, write = pipe
    assert not is_readable(read, -1)
    os.close(write)
