"""mmap: pages of a file as memory, shared with read and write."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from fusebackend.testing.each import needs
from fusebackend.testing.posix.case import Case, opened

PAGE = mmap.PAGESIZE


class MappingCases(Case):
    def test_a_private_mapping_reads_the_file(self, d: Path) -> None:
        data = os.urandom(3 * PAGE + 17)
        (d / "file").write_bytes(data)
        with (
            opened(d / "file", os.O_RDONLY) as fd,
            mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ) as memory,
        ):
            assert memory[:] == data

    @needs("random_writes")
    def test_a_shared_mapping_writes_the_file(self, d: Path) -> None:
        (d / "file").write_bytes(b"a" * 2 * PAGE)
        with opened(d / "file", os.O_RDWR) as fd, mmap.mmap(fd, 0) as memory:
            memory[PAGE - 2 : PAGE + 2] = b"BBBB"
            memory.flush()
        assert (d / "file").read_bytes() == b"a" * (PAGE - 2) + b"BBBB" + b"a" * (PAGE - 2)

    @needs("random_writes")
    def test_read_and_write_see_a_shared_mapping_at_once(self, d: Path) -> None:
        (d / "file").write_bytes(b"a" * PAGE)
        with opened(d / "file", os.O_RDWR) as fd, mmap.mmap(fd, 0) as memory:
            memory[0:4] = b"mmap"
            assert os.pread(fd, 4, 0) == b"mmap"
            os.pwrite(fd, b"call", 8)
            assert memory[8:12] == b"call"

    @needs("random_writes")
    def test_a_mapping_outlives_its_handle_and_its_name(self, d: Path) -> None:
        (d / "file").write_bytes(b"a" * PAGE)
        with opened(d / "file", os.O_RDWR) as fd:
            memory = mmap.mmap(fd, 0)
        with memory:
            os.unlink(d / "file")
            memory[0:5] = b"still"
            memory.flush()
            assert memory[0:6] == b"stilla"
        assert os.listdir(d) == []

    @needs("random_writes")
    def test_a_mapping_changes_the_times_of_the_file(self, d: Path) -> None:
        (d / "file").write_bytes(b"a" * PAGE)
        os.utime(d / "file", ns=(10**18, 10**18))
        with opened(d / "file", os.O_RDWR) as fd, mmap.mmap(fd, 0) as memory:
            memory[0:1] = b"x"
            memory.flush()
            os.fsync(fd)
        assert (d / "file").stat().st_mtime_ns > 10**18

    @needs("random_writes")
    def test_the_tail_of_the_last_page_is_not_written(self, d: Path) -> None:
        (d / "file").write_bytes(b"abc")
        with opened(d / "file", os.O_RDWR) as fd, mmap.mmap(fd, 3) as memory:
            memory[0:3] = b"xyz"
            memory.flush()
        assert (d / "file").stat().st_size == 3
        os.truncate(d / "file", 10)
        assert (d / "file").read_bytes() == b"xyz" + bytes(7)

    @needs("random_writes")
    def test_a_mapping_of_a_file_grown_by_truncate(self, d: Path) -> None:
        with opened(d / "file", os.O_RDWR | os.O_CREAT) as fd:
            os.ftruncate(fd, 64 * PAGE)
            with mmap.mmap(fd, 64 * PAGE) as memory:
                for page in range(0, 64, 7):
                    memory[page * PAGE : page * PAGE + 4] = b"%04d" % page
                memory.flush()
            os.fsync(fd)
        data = (d / "file").read_bytes()
        assert [data[page * PAGE : page * PAGE + 4] for page in range(0, 64, 7)] == [
            b"%04d" % page for page in range(0, 64, 7)
        ]
