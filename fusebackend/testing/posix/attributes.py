"""chmod, access, statvfs, and the attributes of a new file."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from fusebackend.testing.each import each, needs
from fusebackend.testing.posix.case import Case, fresh, opened


class AttributeCases(Case):
    @needs("persistent_modes")
    def test_chmod_of_a_file(self, d: Path) -> None:
        for case in each((0o000, 0o400, 0o644, 0o755, 0o777, 0o1777, 0o2755, 0o4755, 0o7777)):
            with case as mode, fresh(d) as own:
                (own / "file").write_bytes(b"x")
                os.chmod(own / "file", mode)
                assert stat.S_IMODE((own / "file").stat().st_mode) == mode
                assert stat.S_ISREG((own / "file").stat().st_mode)

    @needs("persistent_modes")
    def test_chmod_of_a_directory(self, d: Path) -> None:
        (d / "dir").mkdir()
        for mode in (0o700, 0o1777, 0o2755, 0o755):
            os.chmod(d / "dir", mode)
            assert stat.S_IMODE((d / "dir").stat().st_mode) == mode

    @needs("persistent_modes")
    def test_fchmod(self, d: Path) -> None:
        with opened(d / "file", os.O_RDWR | os.O_CREAT) as fd:
            os.fchmod(fd, 0o751)
            assert stat.S_IMODE(os.fstat(fd).st_mode) == 0o751
        assert stat.S_IMODE((d / "file").stat().st_mode) == 0o751

    @needs("persistent_modes", "links")
    def test_chmod_is_seen_through_every_link(self, d: Path) -> None:
        (d / "one").write_bytes(b"x")
        os.link(d / "one", d / "two")
        (d / "two").stat()
        os.chmod(d / "one", 0o640)
        assert stat.S_IMODE((d / "two").stat().st_mode) == 0o640

    @needs("persistent_modes")
    def test_chmod_leaves_the_data_and_its_time(self, d: Path) -> None:
        (d / "file").write_bytes(b"data")
        before = (d / "file").stat()
        os.chmod(d / "file", 0o600)
        after = (d / "file").stat()
        assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
        assert (d / "file").read_bytes() == b"data"

    def test_statvfs_is_plausible(self, d: Path) -> None:
        status = os.statvfs(d)
        assert status.f_namemax == 255
        assert status.f_bsize > 0 and status.f_frsize > 0
        assert 0 < status.f_bfree <= status.f_blocks
        assert status.f_bavail <= status.f_blocks
        with opened(d / "file", os.O_WRONLY | os.O_CREAT) as fd:
            assert os.fstatvfs(fd).f_namemax == 255

    def test_stat_of_a_new_file(self, d: Path) -> None:
        (d / "file").write_bytes(b"12345")
        status = (d / "file").stat()
        assert (status.st_size, status.st_nlink) == (5, 1)
        assert (status.st_uid, status.st_gid) == (os.geteuid(), os.getegid())
        assert status.st_blksize > 0
        assert status.st_dev == d.stat().st_dev
        assert status.st_ino > 0
