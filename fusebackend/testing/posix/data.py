"""read, write, truncate, seek and the calls that move data between files."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from fusebackend.testing.each import each, needs
from fusebackend.testing.posix.case import Case, fresh, opened, refused

RDWR_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL


COPIES: dict[str, Callable[[int, int, int, int], int]] = {
    "sendfile": lambda source, target, offset, count: os.sendfile(target, source, offset, count),
    "copy_file_range": lambda source, target, offset, count: os.copy_file_range(source, target, count, offset),
}


class DataCases(Case):
    def test_what_is_written_is_read(self, d: Path) -> None:
        for case in each((0, 1, 4095, 4096, 4097, 131_071, 131_072, 131_073, 1_048_577, 3_000_000)):
            with case as size, fresh(d) as own:
                data = os.urandom(size)
                (own / "file").write_bytes(data)
                assert (own / "file").stat().st_size == size
                assert (own / "file").read_bytes() == data

    def test_pread_far_beyond_the_end_is_empty(self, d: Path) -> None:
        (d / "file").write_bytes(b"abc")
        with opened(d / "file", os.O_RDONLY) as fd:
            for offset in (4, 4096, 1 << 31, 1 << 40, (1 << 62) - 1):
                assert os.pread(fd, 100, offset) == b""

    def test_overwriting_in_the_middle(self, d: Path) -> None:
        data = bytearray(os.urandom(300_000))
        (d / "file").write_bytes(data)
        with opened(d / "file", os.O_RDWR) as fd:
            for offset, size in ((0, 1), (4095, 2), (131_000, 500), (131_072, 131_072), (299_999, 1), (70_000, 0)):
                part = os.urandom(size)
                assert os.pwrite(fd, part, offset) == size
                data[offset : offset + size] = part
            assert os.pread(fd, len(data) + 1, 0) == data
        assert (d / "file").read_bytes() == data

    def test_a_write_across_the_end_extends(self, d: Path) -> None:
        (d / "file").write_bytes(b"abcdef")
        with opened(d / "file", os.O_WRONLY) as fd:
            os.pwrite(fd, b"XYZ", 4)
        assert (d / "file").read_bytes() == b"abcdXYZ"

    def test_a_hole_reads_as_zeros(self, d: Path) -> None:
        with opened(d / "file", RDWR_NEW) as fd:
            os.pwrite(fd, b"start", 0)
            os.pwrite(fd, b"end", 1_000_000)
            assert os.fstat(fd).st_size == 1_000_003
            assert os.pread(fd, 10, 0) == b"start" + bytes(5)
            assert os.pread(fd, 8, 999_997) == bytes(3) + b"end"
        assert (d / "file").read_bytes() == b"start" + bytes(999_995) + b"end"

    @needs("random_writes", "sparse")
    def test_a_hole_takes_no_blocks(self, fd: int) -> None:
        os.ftruncate(fd, 1 << 30)
        os.pwrite(fd, b"x", 1 << 29)
        os.fsync(fd)
        assert os.fstat(fd).st_blocks * 512 < 4 << 20

    @needs("random_writes")
    def test_blocks_grow_with_the_data(self, fd: int) -> None:
        os.write(fd, os.urandom(1 << 20))
        os.fsync(fd)
        assert os.fstat(fd).st_blocks * 512 >= 1 << 20

    def test_truncate_shortens(self, d: Path) -> None:
        (d / "file").write_bytes(b"x" * 200_000)
        for size in (131_073, 131_072, 131_071, 4097, 5, 0):
            os.truncate(d / "file", size)
            assert (d / "file").stat().st_size == size
            assert (d / "file").read_bytes() == b"x" * size

    def test_what_was_cut_does_not_come_back(self, d: Path) -> None:
        for case in each((3, 4096, 100_000, 131_072)):
            with case as cut, fresh(d) as own, opened(own / "file", RDWR_NEW) as fd:
                os.write(fd, b"s" * 200_000)
                os.fsync(fd)
                os.ftruncate(fd, cut)
                os.ftruncate(fd, 200_000)
                assert os.pread(fd, 200_001, 0) == b"s" * cut + bytes(200_000 - cut)
                os.ftruncate(fd, cut)
                os.pwrite(fd, b"end", 199_997)
                assert os.pread(fd, 200_001, 0) == b"s" * cut + bytes(199_997 - cut) + b"end"

    def test_truncate_to_the_same_size_keeps_the_data(self, d: Path) -> None:
        (d / "file").write_bytes(b"abc")
        os.truncate(d / "file", 3)
        assert (d / "file").read_bytes() == b"abc"

    @needs("random_writes", "huge_files")
    def test_a_sparse_file_of_2_to_the_50(self, d: Path) -> None:
        huge = 1 << 50
        with opened(d / "file", RDWR_NEW) as fd:
            os.ftruncate(fd, huge)
            assert os.fstat(fd).st_size == huge
            os.pwrite(fd, b"far", huge - 3)
            assert os.pread(fd, 10, huge - 5) == bytes(2) + b"far"
            assert os.pread(fd, 10, huge // 2) == bytes(10)
            os.ftruncate(fd, huge // 2)
            assert os.pread(fd, 10, huge // 2 - 5) == bytes(5)
        os.unlink(d / "file")
        assert os.listdir(d) == []

    @needs("random_writes")
    def test_an_offset_near_the_largest_is_refused_or_kept(self, d: Path) -> None:
        (d / "file").write_bytes(b"abc")
        with opened(d / "file", os.O_RDWR) as fd:
            for offset in ((1 << 63) - 1, (1 << 63) - 2, (1 << 63) - 4097):
                try:
                    written = os.pwrite(fd, b"x", offset)
                except OSError as error:
                    assert error.errno in (errno.EFBIG, errno.EINVAL, errno.ENOSPC)
                else:
                    os.fsync(fd)
                    assert (written, os.fstat(fd).st_size) == (1, offset + 1)
                    assert os.pread(fd, 1, offset) == b"x"
                    os.ftruncate(fd, 3)
            assert os.pread(fd, 10, 0) == b"abc"
        assert (d / "file").read_bytes() == b"abc"

    @needs("random_writes")
    def test_a_size_near_the_largest_is_refused_or_kept(self, d: Path) -> None:
        (d / "file").write_bytes(b"abc")
        try:
            os.truncate(d / "file", (1 << 63) - 1)
        except OSError as error:
            assert error.errno in (errno.EFBIG, errno.EINVAL)
        else:
            assert (d / "file").stat().st_size == (1 << 63) - 1
            os.truncate(d / "file", 3)
        assert (d / "file").read_bytes() == b"abc"

    def test_seek_end_knows_what_another_handle_wrote(self, d: Path) -> None:
        with opened(d / "file", RDWR_NEW) as first, opened(d / "file", os.O_RDWR) as second:
            os.write(first, b"x" * 5000)
            assert os.lseek(second, 0, os.SEEK_END) == 5000

    @needs("random_writes")
    def test_seek_data_and_seek_hole_describe_the_file(self, fd: int) -> None:
        size = 4 << 20
        os.ftruncate(fd, size)
        os.pwrite(fd, b"D" * 65536, 2 << 20)
        # A file system may report everything as data, but no data as a hole.
        data = os.lseek(fd, 0, os.SEEK_DATA)
        assert 0 <= data <= 2 << 20
        hole = os.lseek(fd, 2 << 20, os.SEEK_HOLE)
        assert (2 << 20) + 65536 <= hole <= size
        refused(errno.ENXIO, os.lseek, fd, size, os.SEEK_DATA)
        refused(errno.ENXIO, os.lseek, fd, size + 1, os.SEEK_HOLE)

    @needs("random_writes")
    def test_fallocate_makes_room(self, fd: int) -> None:
        os.write(fd, b"abc")
        os.posix_fallocate(fd, 0, 100_000)  # glibc writes zeros itself where the file system has no fallocate
        assert os.fstat(fd).st_size == 100_000
        assert os.pread(fd, 100_001, 0) == b"abc" + bytes(99_997)

    def test_sendfile_and_copy_file_range(self, d: Path) -> None:
        data = os.urandom(400_000)
        (d / "source").write_bytes(data)
        for case in each(COPIES):
            with (
                case as copy,
                opened(d / "source", os.O_RDONLY) as source,
                opened(d / "target", os.O_RDWR | os.O_CREAT | os.O_TRUNC) as target,
            ):
                copied = 0
                while copied < len(data):
                    step = copy(source, target, copied, len(data) - copied)
                    assert step > 0
                    copied += step
                assert copy(source, target, copied, 10) == 0
                assert (d / "target").read_bytes() == data

    def test_fsync_of_a_file_and_its_directory(self, d: Path) -> None:
        with opened(d / "file", RDWR_NEW) as fd:
            os.write(fd, b"x" * 100_000)
            os.fsync(fd)
            os.fdatasync(fd)
            os.write(fd, b"y")
            os.fsync(fd)
        with opened(d, os.O_RDONLY | os.O_DIRECTORY) as directory:
            os.fsync(directory)
            os.fdatasync(directory)
        with opened(d / "file", os.O_RDONLY) as reader:
            os.fsync(reader)
        assert (d / "file").stat().st_size == 100_001

    @needs("random_writes")
    def test_o_sync_writes(self, d: Path) -> None:
        with opened(d / "file", RDWR_NEW | os.O_SYNC) as fd:
            for number in range(5):
                os.write(fd, b"%d" % number)
        assert (d / "file").read_bytes() == b"01234"

    @needs("random_writes")
    def test_many_small_writes_out_of_order(self, d: Path) -> None:
        model = bytearray(100_000)
        with opened(d / "file", RDWR_NEW) as fd:
            os.ftruncate(fd, len(model))
            for step in range(500):
                offset = step * 7919 % (len(model) - 100)
                part = bytes([step % 251]) * (1 + step % 97)
                os.pwrite(fd, part, offset)
                model[offset : offset + len(part)] = part
                if step % 50 == 0:
                    os.fsync(fd)
                    assert os.pread(fd, 200, offset) == model[offset : offset + 200]
        assert (d / "file").read_bytes() == model
