"""Pages that the kernel drops and reads again while write(2) is between copying its bytes and sending its request."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from eventually import eventually
from mounts import Serve
from stalling import Control

import fusebackend

pytestmark = pytest.mark.mounted

PAGE = mmap.PAGESIZE
LAST = 20
"""The page that is being read while the write comes to it."""

FIRST_BYTE = 50
"""Of the write: the bytes before it, in the same page, are another's."""


@pytest.fixture
def stall(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Control]:
    """Make the control of the stalling volume. Request it before `serve`."""
    control = Control(tmp_path, monkeypatch)
    yield control
    control.resume()


def opened(path: Path) -> int:
    """Open a file for reading and writing, without reading ahead."""
    fd = os.open(path, os.O_RDWR)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    return fd


def test_a_write_is_seen_though_its_pages_were_read_again_before_it_arrived(stall: Control, serve: Serve) -> None:
    server = serve("python:stalling:backend")
    path = server.path / "file"
    path.write_bytes(bytes((LAST + 1) * PAGE))
    writer, reader, mapper = opened(path), opened(path), opened(path)
    data = b"x" * (LAST * PAGE)
    with (
        fusebackend.connect(server.path) as client,
        mmap.mmap(mapper, (LAST + 1) * PAGE) as mapped,
        ThreadPoolExecutor(3) as threads,
    ):
        mapped.madvise(mmap.MADV_RANDOM)
        for page in range(LAST):
            os.pread(reader, PAGE, page * PAGE)
        stall.hang("read", LAST * PAGE)
        reading = threads.submit(os.pread, reader, PAGE, LAST * PAGE)
        eventually(lambda: client.status()["routes"][0]["health"].get("running", 0) == 1)
        writing = threads.submit(os.pwrite, writer, data, FIRST_BYTE)
        eventually(lambda: mapped[(LAST - 1) * PAGE] == ord("x"))  # it has copied its bytes up to the page that is read
        dropping = threads.submit(client.invalidate, "/")
        eventually(lambda: mapped[FIRST_BYTE] == mapped[3 * PAGE] == 0)  # read again, as the volume still has them
        mapped[0] = ord("m")  # the page is written back as a whole
        assert not (reading.done() or writing.done() or dropping.done())
        stall.resume()
        assert writing.result(60) == len(data)
        assert mapped[FIRST_BYTE] == mapped[3 * PAGE] == ord("x")
        reading.result(60), dropping.result(60)
        whole = b"m" + bytes(FIRST_BYTE - 1) + data + bytes(PAGE - FIRST_BYTE)
        assert mapped[:] == whole
        mapped.flush()
        assert client.download_files(["/file"])[0].content == whole
    for fd in (writer, reader, mapper):
        os.close(fd)
