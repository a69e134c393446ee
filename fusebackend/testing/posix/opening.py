"""open(2), creat and the promises of an open file: flags, modes, appenders, files unlinked while open."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from functools import partial
from pathlib import Path

from fusebackend.testing.each import each, needs
from fusebackend.testing.posix.case import Case, fork, fresh, opened, refused, umask


class OpenCases(Case):
    @needs("persistent_modes")
    def test_creat_applies_the_umask(self, d: Path) -> None:
        with umask(0o027), opened(d / "file", os.O_WRONLY | os.O_CREAT, 0o666) as fd:
            assert stat.S_IMODE(os.fstat(fd).st_mode) == 0o640
        assert stat.S_IMODE((d / "file").stat().st_mode) == 0o640

    @needs("persistent_modes")
    def test_creat_with_a_mode_that_forbids_writing_still_writes(self, d: Path) -> None:
        with opened(d / "file", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o444) as fd:
            assert os.write(fd, b"written") == 7
        assert (d / "file").read_bytes() == b"written"
        assert stat.S_IMODE((d / "file").stat().st_mode) == 0o444

    def test_o_creat_opens_an_existing_file_as_it_is(self, d: Path) -> None:
        (d / "file").write_bytes(b"kept")
        before = (d / "file").stat()
        with opened(d / "file", os.O_RDWR | os.O_CREAT, 0o600) as fd:
            assert os.read(fd, 10) == b"kept"
        after = (d / "file").stat()
        assert (after.st_ino, after.st_mode, after.st_size) == (before.st_ino, before.st_mode, 4)

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

        children = [fork(attempt) for _ in range(4)]
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

    def test_o_append_writes_at_the_end_whatever_the_offset(self, d: Path) -> None:
        (d / "file").write_bytes(b"start")
        with opened(d / "file", os.O_WRONLY | os.O_APPEND) as fd:
            os.lseek(fd, 0, os.SEEK_SET)
            os.write(fd, b"-one")
            assert os.lseek(fd, 0, os.SEEK_CUR) == 9
            os.lseek(fd, 2, os.SEEK_SET)
            os.write(fd, b"-two")
        assert (d / "file").read_bytes() == b"start-one-two"

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

        children = [fork(partial(append, who)) for who in ("first", "second")]
        for child in children:
            child.result()
        lines = [line.split()[:2] for line in (d / "log").read_text().splitlines()]
        assert len(lines) == 2 * rounds
        for who in ("first", "second"):
            assert [number for name, number in lines if name == who] == [str(n) for n in range(rounds)]

    def test_o_append_set_by_fcntl(self, d: Path) -> None:
        (d / "file").write_bytes(b"start")
        with opened(d / "file", os.O_WRONLY) as fd:
            fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)
            os.write(fd, b"-end")
        assert (d / "file").read_bytes() == b"start-end"

    def test_o_append_taken_back_by_fcntl(self, d: Path) -> None:
        for case in each((os.O_WRONLY, os.O_RDWR)):
            with case as access, fresh(d) as own:
                (own / "file").write_bytes(b"start")
                with opened(own / "file", access | os.O_APPEND) as fd:
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

    def test_many_handles_on_one_file(self, d: Path) -> None:
        (d / "file").write_bytes(b"shared")
        handles = [os.open(d / "file", os.O_RDONLY) for _ in range(200)]
        try:
            assert {os.read(fd, 10) for fd in handles} == {b"shared"}
        finally:
            for fd in handles:
                os.close(fd)

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
            aligned = _aligned(block)
            assert os.preadv(raw, [aligned], 0) == block
            assert bytes(aligned) == b"c" * block
            aligned[:] = b"d" * block
            assert os.pwritev(raw, [aligned], block) == block
            assert os.pread(cached, 2 * block, 0) == b"c" * block + b"d" * block


def _aligned(size: int) -> memoryview:
    """Return a page-aligned buffer, as O_DIRECT on a disk requires."""
    import mmap

    return memoryview(mmap.mmap(-1, size))
