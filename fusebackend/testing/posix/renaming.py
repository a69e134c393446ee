"""rename(2) and renameat2(2): over targets of each kind, into itself, and while files are open."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from fusebackend.protocol import RENAME_EXCHANGE, RENAME_NOREPLACE
from fusebackend.testing.each import needs
from fusebackend.testing.posix.case import Case, fork, make, opened, refused, renameat2, tree


class RenameCases(Case):
    def test_rename_a_file(self, d: Path) -> None:
        make(d, {"old": b"data"})
        inode = (d / "old").stat().st_ino
        os.rename(d / "old", d / "new")
        assert tree(d) == {"new": b"data"}
        assert (d / "new").stat().st_ino == inode or not self.features.rename

    def test_rename_a_directory_with_all_below(self, d: Path) -> None:
        make(d, {"old/a/b/file": b"deep"})
        os.rename(d / "old", d / "new")
        assert tree(d) == {"new": None, "new/a": None, "new/a/b": None, "new/a/b/file": b"deep"}
        assert not (d / "old" / "a" / "b" / "file").exists()

    def test_rename_into_another_directory(self, d: Path) -> None:
        make(d, {"from/file": b"data", "to": None})
        os.rename(d / "from" / "file", d / "to" / "file")
        assert tree(d) == {"from": None, "to": None, "to/file": b"data"}

    def test_a_moved_directory_knows_its_new_parent(self, d: Path) -> None:
        make(d, {"from/dir": None, "to": None})
        with opened(d / "from" / "dir", os.O_RDONLY | os.O_DIRECTORY) as fd:
            os.rename(d / "from" / "dir", d / "to" / "dir")
            assert os.stat("..", dir_fd=fd).st_ino == (d / "to").stat().st_ino

    def test_rename_over_a_file(self, d: Path) -> None:
        make(d, {"old": b"new content", "target": b"x" * 10_000})
        os.rename(d / "old", d / "target")
        assert tree(d) == {"target": b"new content"}

    def test_rename_over_an_open_file_keeps_the_old_data_for_its_handle(self, d: Path) -> None:
        make(d, {"source": b"new", "target": b"old"})
        with opened(d / "target", os.O_RDWR) as fd:
            os.rename(d / "source", d / "target")
            assert os.pread(fd, 10, 0) == b"old"
            os.pwrite(fd, b"OLD", 0)
            assert os.fstat(fd).st_nlink == 0
        assert (d / "target").read_bytes() == b"new"

    def test_rename_of_an_open_file_keeps_its_handle(self, d: Path) -> None:
        with opened(d / "old", os.O_RDWR | os.O_CREAT) as fd:
            os.write(fd, b"before ")
            os.rename(d / "old", d / "new")
            os.write(fd, b"after")
        assert (d / "new").read_bytes() == b"before after"

    def test_rename_over_an_empty_directory(self, d: Path) -> None:
        make(d, {"old/file": b"x", "target": None})
        os.rename(d / "old", d / "target")
        assert tree(d) == {"target": None, "target/file": b"x"}

    def test_rename_over_a_directory_that_is_not_empty(self, d: Path) -> None:
        make(d, {"old": None, "target/file": b"kept"})
        refused((errno.ENOTEMPTY, errno.EEXIST), os.rename, d / "old", d / "target")
        assert tree(d) == {"old": None, "target": None, "target/file": b"kept"}

    @needs("symlinks")
    def test_rename_moves_a_symlink_and_not_its_target(self, d: Path, file: Path) -> None:
        os.symlink("file", d / "link")
        os.rename(d / "link", d / "moved")
        assert os.readlink(d / "moved") == "file"
        make(d, {"other": b"y"})
        os.rename(d / "other", d / "moved")
        assert tree(d) == {"file": b"x", "moved": b"y"}
        assert not (d / "moved").is_symlink()

    @needs("rename")
    def test_the_target_of_a_rename_is_never_missing(self, d: Path) -> None:
        (d / "target").write_bytes(b"0")

        def replace() -> None:
            for number in range(150):
                (d / "next").write_bytes(b"%d" % number)
                os.rename(d / "next", d / "target")

        child = fork(replace)
        for _ in range(300):
            content = (d / "target").read_bytes()
            assert content and int(content) < 150
        child.result()
        assert (d / "target").read_bytes() == b"149"

    @needs("rename")
    def test_noreplace_refuses_an_existing_target(self, d: Path) -> None:
        make(d, {"one": b"1", "two": b"2", "dir": None})
        refused(errno.EEXIST, renameat2, d / "one", d / "two", RENAME_NOREPLACE)
        refused(errno.EEXIST, renameat2, d / "one", d / "dir", RENAME_NOREPLACE)
        renameat2(d / "one", d / "three", RENAME_NOREPLACE)
        assert tree(d) == {"dir": None, "three": b"1", "two": b"2"}

    @needs("rename")
    def test_exchange_swaps_two_files(self, d: Path) -> None:
        make(d, {"one": b"1", "two": b"22"})
        inodes = (d / "one").stat().st_ino, (d / "two").stat().st_ino
        renameat2(d / "one", d / "two", RENAME_EXCHANGE)
        assert tree(d) == {"one": b"22", "two": b"1"}
        assert ((d / "two").stat().st_ino, (d / "one").stat().st_ino) == inodes

    @needs("rename")
    def test_exchange_swaps_a_file_and_a_full_directory(self, d: Path, file: Path) -> None:
        make(d, {"a/dir/below": b"y"})
        counts = d.stat().st_nlink, (d / "a").stat().st_nlink
        renameat2(file, d / "a" / "dir", RENAME_EXCHANGE)
        assert tree(d) == {"a": None, "a/dir": b"x", "file": None, "file/below": b"y"}
        assert os.stat(f"{d}/file/..").st_ino == d.stat().st_ino
        if counts[0] > 1:
            assert (d.stat().st_nlink, (d / "a").stat().st_nlink) == (counts[0] + 1, counts[1] - 1)
