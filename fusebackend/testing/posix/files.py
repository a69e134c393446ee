"""Open files: flags and promises of open(2), data, mmap, and locks."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import mmap
import os
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from fusebackend.testing.each import each, needs
from fusebackend.testing.posix.case import Case, ForkedChild, fresh, in_child, opened, refused, umask

# -- open(2), creat and the promises of an open file: flags, modes, appenders, files unlinked while open ---------


class OpenCases(Case):
    @needs("persistent_modes")
    def test_creat_and_mkdir_apply_the_umask(self, d: Path) -> None:
        with umask(0o027), opened(d / "file", os.O_WRONLY | os.O_CREAT, 0o666) as fd:
            assert stat.S_IMODE(os.fstat(fd).st_mode) == 0o640
            os.mkdir(d / "dir", 0o777)
        assert stat.S_IMODE((d / "file").stat().st_mode) == 0o640
        assert stat.S_IMODE((d / "dir").stat().st_mode) == 0o750

    @needs("persistent_modes")
    def test_creat_with_a_mode_that_forbids_writing_still_writes(self, d: Path) -> None:
        with opened(d / "file", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o444) as fd:
            assert os.write(fd, b"written") == 7
        assert (d / "file").read_bytes() == b"written"
        assert stat.S_IMODE((d / "file").stat().st_mode) == 0o444

    def test_o_creat_opens_an_existing_file_as_it_is(self, file: Path) -> None:
        before = file.stat()
        with opened(file, os.O_RDWR | os.O_CREAT, 0o600) as fd:
            assert os.read(fd, 10) == b"x"
        after = file.stat()
        assert (after.st_ino, after.st_mode, after.st_size) == (before.st_ino, before.st_mode, 1)

    @needs("symlinks")
    def test_o_creat_follows_a_dangling_symlink(self, d: Path) -> None:
        os.symlink("target", d / "link")
        with opened(d / "link", os.O_WRONLY | os.O_CREAT) as fd:
            os.write(fd, b"through")
        assert (d / "target").read_bytes() == b"through"

    def test_o_excl_lets_one_of_many_win(self, d: Path) -> None:
        def attempt() -> int:
            wins = 0
            for number in range(20):
                try:
                    os.close(os.open(d / f"prize-{number}", os.O_WRONLY | os.O_CREAT | os.O_EXCL))
                    wins += 1
                except FileExistsError:
                    pass
            return wins

        children = [ForkedChild(attempt) for _ in range(4)]
        assert sum(child.result() for child in children) == 20
        assert len(os.listdir(d)) == 20

    def test_o_trunc_is_seen_by_another_open_handle(self, d: Path) -> None:
        (d / "file").write_bytes(b"x" * 10_000)
        with opened(d / "file", os.O_RDONLY) as reader:
            assert os.pread(reader, 4, 0) == b"xxxx"
            with opened(d / "file", os.O_WRONLY | os.O_TRUNC) as writer:
                assert os.fstat(reader).st_size == 0
                assert os.pread(reader, 4, 0) == b""
                os.write(writer, b"new")
            assert os.pread(reader, 10, 0) == b"new"

    def test_o_append_writes_at_the_end_whatever_the_offset(self, file: Path) -> None:
        with opened(file, os.O_WRONLY | os.O_APPEND) as fd:
            os.lseek(fd, 0, os.SEEK_SET)
            os.write(fd, b"-one")
            assert os.lseek(fd, 0, os.SEEK_CUR) == 5
            os.lseek(fd, 2, os.SEEK_SET)
            os.write(fd, b"-two")
        assert file.read_bytes() == b"x-one-two"

    def test_two_appending_handles_take_turns(self, d: Path) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        with opened(d / "log", flags) as first, opened(d / "log", flags) as second:
            for number in range(50):
                os.write(first, f"first {number}\n".encode())
                os.write(second, f"second {number}\n".encode())
        lines = (d / "log").read_text().splitlines()
        assert lines == [f"{who} {number}" for number in range(50) for who in ("first", "second")]

    @needs("random_writes")
    def test_two_appending_processes_lose_nothing(self, d: Path) -> None:
        rounds = 200

        def append(who: str) -> None:
            with opened(d / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT) as fd:
                for number in range(rounds):
                    os.write(fd, f"{who} {number} {'.' * (number % 50)}\n".encode())

        children = [ForkedChild(partial(append, who)) for who in ("first", "second")]
        for child in children:
            child.result()
        lines = [line.split()[:2] for line in (d / "log").read_text().splitlines()]
        assert len(lines) == 2 * rounds
        for who in ("first", "second"):
            assert [number for name, number in lines if name == who] == [str(n) for n in range(rounds)]

    def test_o_append_set_and_taken_back_by_fcntl(self, d: Path) -> None:
        for case in each(itertools.product((os.O_WRONLY, os.O_RDWR), (0, os.O_APPEND))):
            with case as (access, append), fresh(d) as own:
                (own / "file").write_bytes(b"start")
                with opened(own / "file", access | append) as fd:
                    fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)
                    os.write(fd, b"-one")
                    fcntl.fcntl(fd, fcntl.F_SETFL, 0)
                    os.pwrite(fd, b"S", 0)
                    assert os.lseek(fd, 0, os.SEEK_CUR) == 9
                    os.lseek(fd, 6, os.SEEK_SET)
                    os.write(fd, b"ONE-and-more")
                    os.pwrite(fd, b"far", 20)
                    fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)
                    os.lseek(fd, 0, os.SEEK_SET)
                    os.write(fd, b"-end")
                assert (own / "file").read_bytes() == b"Start-ONE-and-more\0\0far-end"

    @needs("persistent_modes", "noatime")
    def test_o_noatime_leaves_the_access_time(self, d: Path) -> None:
        for case in each((100, 300_000)):
            with case as size, fresh(d) as own:
                (own / "file").write_bytes(b"x" * size)
                os.utime(own / "file", ns=(10**18, 2 * 10**18))
                with opened(own / "file", os.O_RDONLY | os.O_NOATIME) as fd:
                    assert os.read(fd, 10) == b"x" * 10
                    assert os.fstat(fd).st_atime_ns == 10**18
                assert (own / "file").stat().st_atime_ns == 10**18

    def test_a_write_is_read_by_another_handle_at_once(self, d: Path) -> None:
        with opened(d / "file", os.O_RDWR | os.O_CREAT) as writer, opened(d / "file", os.O_RDONLY) as reader:
            for number in range(20):
                os.pwrite(writer, f"{number:04}".encode(), number * 4)
                assert os.lseek(reader, 0, os.SEEK_END) == number * 4 + 4
                assert os.pread(reader, 4, number * 4) == f"{number:04}".encode()
                assert os.fstat(reader).st_size == number * 4 + 4

    def test_a_file_unlinked_while_open_lives_on(self, d: Path) -> None:
        with opened(d / "file", os.O_RDWR | os.O_CREAT) as fd:
            os.write(fd, b"before")
            os.unlink(d / "file")
            assert os.listdir(d) == []
            os.write(fd, b" and after")
            assert os.pread(fd, 100, 0) == b"before and after"
            status = os.fstat(fd)
            assert (status.st_nlink, status.st_size) == (0, 16)
            os.ftruncate(fd, 6)
            assert os.pread(fd, 100, 0) == b"before"
            os.fsync(fd)
        assert os.listdir(d) == []

    def test_a_name_can_be_reused_while_the_old_file_is_open(self, d: Path) -> None:
        with opened(d / "file", os.O_RDWR | os.O_CREAT) as old:
            os.write(old, b"old")
            os.unlink(d / "file")
            with opened(d / "file", os.O_RDWR | os.O_CREAT | os.O_EXCL) as new:
                os.write(new, b"newer")
                assert os.fstat(old).st_ino != os.fstat(new).st_ino
                assert os.pread(old, 10, 0) == b"old"
        assert (d / "file").read_bytes() == b"newer"

    @needs("persistent_modes")
    def test_attributes_of_an_unlinked_open_file_can_change(self, d: Path, fd: int) -> None:
        os.unlink(d / "file")
        os.fchmod(fd, 0o600)
        os.utime(fd, ns=(10**9, 2 * 10**9))
        status = os.fstat(fd)
        assert (stat.S_IMODE(status.st_mode), status.st_mtime_ns) == (0o600, 2 * 10**9)

    @needs("links")
    def test_an_unlinked_open_file_is_not_linked_back(self, d: Path) -> None:
        with opened(d, os.O_RDONLY | os.O_DIRECTORY) as directory, opened(d / "file", os.O_RDWR | os.O_CREAT) as fd:
            os.write(fd, b"x")
            os.unlink(d / "file")
            refused(
                errno.ENOENT, os.link, f"/proc/self/fd/{fd}", "again", src_dir_fd=directory, dst_dir_fd=directory
            )  # with a directory handle, Python calls linkat, which follows the link
        assert os.listdir(d) == []

    def test_many_handles_on_one_file(self, file: Path) -> None:
        with contextlib.ExitStack() as stack:
            handles = [stack.enter_context(opened(file, os.O_RDONLY)) for _ in range(200)]
            assert {os.read(fd, 10) for fd in handles} == {b"x"}

    @needs("random_writes")
    def test_o_direct_of_odd_sizes(self, d: Path) -> None:
        for case in each((1, 511, 512, 4095, 4096, 4097, 100_001)):
            with case as size, fresh(d) as own:
                data = os.urandom(size)
                (own / "file").write_bytes(b"")
                with opened(own / "file", os.O_RDWR | os.O_DIRECT) as fd:
                    try:
                        assert os.pwrite(fd, data, 0) == size
                    except OSError as error:
                        assert error.errno == errno.EINVAL and not self.limits.direct_any_size
                        assert os.fstat(fd).st_size == 0
                        continue
                    assert os.fstat(fd).st_size == size
                    if self.limits.direct_any_size:
                        assert os.pread(fd, size + 10, 0) == data
                        assert os.pread(fd, 7, size // 2) == data[size // 2 : size // 2 + 7]
                assert (own / "file").read_bytes() == data

    @needs("random_writes")
    def test_o_direct_and_the_page_cache_agree(self, d: Path) -> None:
        block = 4096
        with opened(d / "file", os.O_RDWR | os.O_CREAT) as cached, opened(d / "file", os.O_RDWR | os.O_DIRECT) as raw:
            os.pwrite(cached, b"c" * 2 * block, 0)
            aligned = memoryview(mmap.mmap(-1, block))  # at a page, as O_DIRECT on a disk requires
            assert os.preadv(raw, [aligned], 0) == block
            assert bytes(aligned) == b"c" * block
            aligned[:] = b"d" * block
            assert os.pwritev(raw, [aligned], block) == block
            assert os.pread(cached, 2 * block, 0) == b"c" * block + b"d" * block


# -- read, write, truncate, seek and the calls that move data between files --------------------------------------


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

    def test_pread_far_beyond_the_end_is_empty(self, file: Path) -> None:
        with opened(file, os.O_RDONLY) as fd:
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
        for size in (200_000, 131_073, 131_072, 131_071, 4097, 5, 5, 0):  # one of the same size changes nothing
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
    def test_an_offset_near_the_largest_is_refused_or_kept(self, file: Path) -> None:
        with opened(file, os.O_RDWR) as fd:
            for offset in ((1 << 63) - 1, (1 << 63) - 2, (1 << 63) - 4097):
                try:
                    written = os.pwrite(fd, b"x", offset)
                except OSError as error:
                    assert error.errno in (errno.EFBIG, errno.EINVAL, errno.ENOSPC)
                else:
                    os.fsync(fd)
                    assert (written, os.fstat(fd).st_size) == (1, offset + 1)
                    assert os.pread(fd, 1, offset) == b"x"
                    os.ftruncate(fd, 1)
            assert os.pread(fd, 10, 0) == b"x"
        assert file.read_bytes() == b"x"

    @needs("random_writes")
    def test_a_size_near_the_largest_is_refused_or_kept(self, file: Path) -> None:
        try:
            os.truncate(file, (1 << 63) - 1)
        except OSError as error:
            assert error.errno in (errno.EFBIG, errno.EINVAL)
        else:
            assert file.stat().st_size == (1 << 63) - 1
            os.truncate(file, 1)
        assert file.read_bytes() == b"x"

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


# -- mmap: pages of a file as memory, shared with read and write -------------------------------------------------


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


# -- flock(2) and fcntl(2) record locks between processes of one machine -----------------------------------------


BUSY = (errno.EAGAIN, errno.EACCES)
WAITERS = 20


class LockCases(Case):
    def test_flock_excludes_another_handle(self, d: Path) -> None:
        with opened(d / "file", os.O_RDWR | os.O_CREAT) as first, opened(d / "file", os.O_RDWR) as second:
            fcntl.flock(first, fcntl.LOCK_EX)
            refused(errno.EAGAIN, fcntl.flock, second, fcntl.LOCK_EX | fcntl.LOCK_NB)
            refused(errno.EAGAIN, fcntl.flock, second, fcntl.LOCK_SH | fcntl.LOCK_NB)
            fcntl.flock(first, fcntl.LOCK_UN)
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def test_twenty_waiters_on_one_flock(self, d: Path, file: Path) -> None:
        (d / "count").write_text("0")

        def count_up() -> None:
            with opened(file, os.O_RDWR) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                value = int((d / "count").read_text())
                (d / "count").write_text(str(value + 1))

        with ThreadPoolExecutor(WAITERS) as threads, opened(file, os.O_RDWR) as mine:
            fcntl.flock(mine, fcntl.LOCK_EX)
            waiters = [threads.submit(count_up) for _ in range(WAITERS)]
            # The mount must serve other requests while all of them wait.
            (d / "meanwhile").write_bytes(b"x")
            assert (d / "count").read_text() == "0"
            fcntl.flock(mine, fcntl.LOCK_UN)
            for waiter in waiters:
                waiter.result(60)
        assert (d / "count").read_text() == str(WAITERS)

    def test_record_locks_exclude_another_process(self, file: Path) -> None:
        def attempt() -> list[bool]:
            with opened(file, os.O_RDWR) as fd:
                return [_try_lock(fd, start, 10) for start in (0, 5, 10, 95)]

        with opened(file, os.O_RDWR) as fd:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 0)
            assert in_child(attempt) == [False, False, True, True]
            fcntl.lockf(fd, fcntl.LOCK_UN, 10, 0)
            assert in_child(attempt) == [True, True, True, True]


def _try_lock(fd: int, start: int, length: int) -> bool:
    """Return whether this process can take the lock; release it at once."""
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, length, start)
    except OSError as error:
        assert error.errno in BUSY
        return False
    fcntl.lockf(fd, fcntl.LOCK_UN, length, start)
    return True
