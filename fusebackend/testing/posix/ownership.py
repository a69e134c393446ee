"""Owners and groups: chown, files made by another user, set-group-ID directories, the sticky bit. Needs root."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path

from fusebackend.testing.each import each, needs
from fusebackend.testing.posix.case import (
    NOBODY,
    Case,
    as_user,
    drop_capabilities,
    fresh,
    in_child,
    opened,
    refused,
)

OTHER = 12345


def _write(path: str, flags: int) -> None:
    with opened(path, flags) as fd:
        if not flags & os.O_TRUNC:
            os.write(fd, b"patched")


def _ftruncate(path: str) -> None:
    with opened(path, os.O_RDWR) as fd:
        os.ftruncate(fd, 10)


def _without_capabilities(change: Callable[[str], None], path: str) -> None:
    drop_capabilities()
    change(path)


CHANGES_OF_CONTENTS: dict[str, Callable[[str], None]] = {
    "write": lambda path: _write(path, os.O_WRONLY),
    "write in a file that can be read": lambda path: _write(path, os.O_RDWR),
    "append": lambda path: _write(path, os.O_WRONLY | os.O_APPEND),
    "O_TRUNC": lambda path: _write(path, os.O_WRONLY | os.O_TRUNC),
    "truncate": lambda path: os.truncate(path, 10),
    "ftruncate": _ftruncate,
}


class OwnershipCases(Case):
    @needs("root", "persistent_modes")
    def test_chown_sets_owner_and_group(self, file: Path) -> None:
        os.chown(file, OTHER, OTHER + 1)
        status = file.stat()
        assert (status.st_uid, status.st_gid) == (OTHER, OTHER + 1)
        os.chown(file, -1, 7)
        os.chown(file, 8, -1)
        status = file.stat()
        assert (status.st_uid, status.st_gid) == (8, 7)

    @needs("root", "persistent_modes", "symlinks")
    def test_lchown_changes_the_symlink(self, d: Path, file: Path) -> None:
        os.symlink("file", d / "link")
        os.lchown(d / "link", OTHER, OTHER)
        assert ((d / "link").lstat().st_uid, file.stat().st_uid) == (OTHER, 0)
        os.chown(d / "link", 9, 9)
        assert ((d / "link").lstat().st_uid, file.stat().st_uid) == (OTHER, 9)

    @needs("root", "persistent_modes")
    def test_large_ids(self, file: Path) -> None:
        os.chown(file, 4_294_967_294, 4_294_967_293)
        status = file.stat()
        assert (status.st_uid, status.st_gid) == (4_294_967_294, 4_294_967_293)

    @needs("root", "persistent_modes")
    def test_chown_clears_set_user_id(self, file: Path) -> None:
        os.chmod(file, 0o6755)
        os.chown(file, OTHER, OTHER)
        assert stat.S_IMODE(file.stat().st_mode) == 0o755

    @needs("root", "persistent_modes", "other_users")
    def test_files_of_another_user_belong_to_it(self, d: Path) -> None:
        os.chmod(d, 0o777)

        def make() -> None:
            os.close(os.open("file", os.O_WRONLY | os.O_CREAT))
            os.mkdir("dir")

        as_user(d, make)
        for name in ("file", "dir"):
            assert ((d / name).stat().st_uid, (d / name).stat().st_gid) == (NOBODY, NOBODY)

    @needs("root", "persistent_modes", "other_users", "symlinks", "special_files")
    def test_special_files_of_another_user_belong_to_it(self, d: Path) -> None:
        os.chmod(d, 0o777)

        def make() -> None:
            os.symlink("x", "link")
            os.mkfifo("fifo")

        as_user(d, make)
        for name in ("link", "fifo"):
            assert ((d / name).lstat().st_uid, (d / name).lstat().st_gid) == (NOBODY, NOBODY)

    @needs("root", "persistent_modes", "other_users")
    def test_a_setgid_directory_passes_its_group_on(self, d: Path) -> None:
        (d / "shared").mkdir()
        os.chown(d / "shared", 0, OTHER)
        os.chmod(d / "shared", 0o2777)

        def make() -> None:
            os.close(os.open("file", os.O_WRONLY | os.O_CREAT))
            os.mkdir("dir")
            os.close(os.open("dir/below", os.O_WRONLY | os.O_CREAT))

        as_user(d / "shared", make)
        shared = d / "shared"
        for name in ("file", "dir", "dir/below"):
            assert ((shared / name).stat().st_uid, (shared / name).stat().st_gid) == (NOBODY, OTHER)
        assert (shared / "dir").stat().st_mode & stat.S_ISGID
        assert not (shared / "file").stat().st_mode & stat.S_ISGID

    @needs("root", "persistent_modes", "special_files", "symlinks")
    def test_a_setgid_directory_passes_its_group_to_special_files(self, d: Path) -> None:
        (d / "shared").mkdir()
        os.chown(d / "shared", 0, OTHER)
        os.chmod(d / "shared", 0o2755)
        os.mkfifo(d / "shared" / "fifo")
        os.symlink("x", d / "shared" / "link")
        assert (d / "shared" / "fifo").stat().st_gid == OTHER
        assert (d / "shared" / "link").lstat().st_gid == OTHER

    @needs("root", "persistent_modes", "other_users")
    def test_modes_keep_another_user_out(self, d: Path) -> None:
        (d / "secret").write_bytes(b"x")
        os.chmod(d / "secret", 0o600)
        (d / "closed").mkdir()
        (d / "closed" / "file").write_bytes(b"x")
        os.chmod(d / "closed", 0o700)
        (d / "readable").write_bytes(b"open")
        os.chmod(d / "readable", 0o644)

        def try_all() -> None:
            for path, flags in (
                ("secret", os.O_RDONLY),
                ("secret", os.O_WRONLY),
                ("readable", os.O_RDWR),
                ("closed/file", os.O_RDONLY),
                ("new", os.O_WRONLY | os.O_CREAT),
            ):
                refused(errno.EACCES, os.open, path, flags)
            refused(errno.EACCES, os.listdir, "closed")
            refused(errno.EACCES, os.unlink, "secret")
            with opened("readable", os.O_RDONLY) as fd:
                assert os.read(fd, 10) == b"open"

        as_user(d, try_all)

    @needs("root", "persistent_modes", "other_users")
    def test_changing_contents_without_privileges_clears_the_bits(self, d: Path) -> None:
        """POSIX, write() and truncate(). Linux keeps a set-group-ID bit without group execute permission."""
        bits = ((0o4755, 0o755), (0o2755, 0o755), (0o6755, 0o755), (0o6745, 0o2745), (0o644, 0o644))
        for case in each(product(CHANGES_OF_CONTENTS, bits)):
            with case as (how, (mode, left)), fresh(d) as own:
                (own / "file").write_bytes(b"x" * 100)
                os.chown(own / "file", NOBODY, NOBODY)
                os.chmod(own / "file", mode)
                as_user(own, partial(CHANGES_OF_CONTENTS[how], "file"))
                assert oct(stat.S_IMODE((own / "file").stat().st_mode)) == oct(left)

    @needs("root", "persistent_modes")
    def test_root_may_change_them_and_leave_the_bits(self, d: Path) -> None:
        for case in each(product(CHANGES_OF_CONTENTS, (0o4755, 0o2755, 0o6745))):
            with case as (how, mode), fresh(d) as own:
                (own / "file").write_bytes(b"x" * 100)
                os.chmod(own / "file", mode)
                CHANGES_OF_CONTENTS[how](str(own / "file"))
                assert oct(stat.S_IMODE((own / "file").stat().st_mode)) == oct(mode)

    @needs("root", "persistent_modes", "other_users")
    def test_a_handle_opened_before_the_bits_were_set_clears_them_too(self, d: Path) -> None:
        (d / "file").write_bytes(b"x" * 100)
        os.chown(d / "file", NOBODY, NOBODY)

        def write() -> None:
            with opened("file", os.O_RDWR) as fd:
                os.fchmod(fd, 0o4755)
                os.write(fd, b"patched")
                assert stat.S_IMODE(os.fstat(fd).st_mode) == 0o755
                os.write(fd, b"again")

        as_user(d, write)
        assert stat.S_IMODE((d / "file").stat().st_mode) == 0o755

    @needs("root", "persistent_modes", "other_users")
    def test_a_stranger_to_the_group_clears_its_bit(self, d: Path) -> None:
        """A set-group-ID bit without group execute permission stays if the writing user is in the file's group."""
        groups_of_both = ((0, (), 0o666), (OTHER, (), 0o666), (OTHER, (OTHER,), 0o2666))
        for case in each(product(CHANGES_OF_CONTENTS, groups_of_both)):
            with case as (how, (group, groups, left)), fresh(d) as own:
                (own / "file").write_bytes(b"x" * 100)
                os.chown(own / "file", OTHER, group)
                os.chmod(own / "file", 0o2666)
                as_user(own, partial(CHANGES_OF_CONTENTS[how], "file"), groups=groups)
                assert oct(stat.S_IMODE((own / "file").stat().st_mode)) == oct(left)

    @needs("root", "persistent_modes")
    def test_root_without_its_capabilities_clears_the_bits(self, d: Path) -> None:
        for case in each(CHANGES_OF_CONTENTS):
            with case as change, fresh(d) as own:
                (own / "file").write_bytes(b"x" * 100)
                os.chmod(own / "file", 0o6755)
                in_child(partial(_without_capabilities, change, str(own / "file")))
                assert oct(stat.S_IMODE((own / "file").stat().st_mode)) == oct(0o755)

    @needs("root", "persistent_modes", "other_users", "special_files")
    def test_chown_to_nobody_in_particular_clears_the_bits(self, d: Path) -> None:
        """`chown` with -1 for both changes no owner, and counts as a change (POSIX, chown())."""
        bits = ((0o6755, 0o755), (0o2755, 0o755), (0o4644, 0o644), (0o755, 0o755))
        for case in each(product((stat.S_IFREG, stat.S_IFIFO), bits)):
            with case as (kind, (mode, left)), fresh(d) as own:
                for uid in (0, NOBODY):
                    os.mknod(own / "file", kind | 0o644)
                    os.chown(own / "file", NOBODY, NOBODY)
                    os.chmod(own / "file", mode)
                    as_user(own, partial(os.chown, "file", -1, -1), uid=uid)
                    assert oct(stat.S_IMODE((own / "file").stat().st_mode)) == oct(left)
                    os.unlink(own / "file")

    @needs("root", "persistent_modes")
    def test_chown_leaves_the_bits_of_a_directory(self, d: Path) -> None:
        (d / "dir").mkdir()
        os.chmod(d / "dir", 0o6755)
        os.chown(d / "dir", OTHER, OTHER)
        os.chown(d / "dir", -1, -1)
        assert stat.S_IMODE((d / "dir").stat().st_mode) == 0o6755
