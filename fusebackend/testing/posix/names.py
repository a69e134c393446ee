"""Names and paths: bytes and lengths that Linux allows in a name, and making and removing directories."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

from fusebackend.testing.each import each, needs
from fusebackend.testing.posix.case import Case, all_refused, fresh, make, opened, refused, tree, umask

ODD_NAMES = {
    "newline": b"two\nlines",
    "space": b" leading and trailing ",
    "invalid-utf8": b"\xff\xfe\x80broken",
    "overlong": b"\xc0\xaf",
    "latin1": b"caf\xe9",
    "utf8": "한글-文件-ñ-🗂".encode(),
    "decomposed": "e\u0301".encode(),
    "backslash": b"back\\slash",
    "control": bytes(range(1, 32)),
    "delete": b"\x7f",
    "glob": b"*?[a-z]{x,y}",
    "quote": b"'\"`$(x)",
    "dash": b"-rf",
    "tilde": b"~root",
    "dots": b"...",
    "hidden": b".hidden",
    "colon": b"C:",
    "percent": b"%2F%00%s",
    "fuse-hidden": b".fuse_hidden0000",
    "255 letters": b"n" * 255,
    "255 bytes in 128 characters": "ñ".encode() * 127 + b"x",
    "255 times 0xff": b"\xff" * 255,
}


class NameCases(Case):
    def test_a_name_is_any_bytes(self, d: Path) -> None:
        for case in each(ODD_NAMES):
            with case as name, fresh(d) as own:
                home = os.fsencode(own)
                path, other = home + b"/" + name, home + b"/other"
                if not self.limits.byte_names and not _is_utf8(name):
                    refused(errno.EILSEQ, os.mkdir, path)
                    continue
                with opened(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as fd:
                    os.write(fd, b"content")
                assert os.listdir(home) == [name]
                with opened(path, os.O_RDONLY) as fd:
                    assert os.read(fd, 100) == b"content"
                os.rename(path, other)
                os.rename(other, path)
                assert os.listdir(home) == [name]
                os.rename(path, other)
                os.mkdir(path)
                os.mkdir(path + b"/" + name)
                assert os.listdir(path) == [name]
                os.rmdir(path + b"/" + name)
                os.rmdir(path)
                assert os.listdir(home) == [b"other"]

    @needs("symlinks")
    def test_a_symlink_may_point_at_any_bytes(self, d: Path) -> None:
        link = os.fsencode(d) + b"/link"
        os.symlink(b"\xff\n/\xfe", link)
        assert os.readlink(link) == b"\xff\n/\xfe"

    def test_a_name_of_256_bytes_is_enametoolong(self, d: Path, file: Path) -> None:
        rows: list[tuple[Any, ...]] = []
        for size in (256, 1000, 1024, 1025, 2000):
            long = d / ("n" * size)
            rows += [
                (errno.ENAMETOOLONG, os.stat, long),
                (errno.ENAMETOOLONG, os.open, long, os.O_WRONLY | os.O_CREAT),
                (errno.ENAMETOOLONG, os.mkdir, long),
                (errno.ENAMETOOLONG, os.rename, file, long),
                (errno.ENAMETOOLONG, os.unlink, long),
                (errno.ENAMETOOLONG, os.rmdir, long),
            ]
        all_refused(*rows)
        assert os.listdir(d) == ["file"]

    @needs("symlinks", "links", "special_files")
    def test_a_link_of_256_bytes_is_enametoolong(self, d: Path, file: Path) -> None:
        long = d / ("n" * 256)
        all_refused(
            (errno.ENAMETOOLONG, os.symlink, "file", long),
            (errno.ENAMETOOLONG, os.link, file, long),
            (errno.ENAMETOOLONG, os.mkfifo, long),
        )

    def test_a_tree_of_200_levels(self, d: Path) -> None:
        name = "level-" + "x" * 24  # 200 levels of it are a path longer than PATH_MAX
        handles = [os.open(d, os.O_RDONLY | os.O_DIRECTORY)]
        try:
            for _ in range(200):
                os.mkdir(name, dir_fd=handles[-1])
                handles.append(os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=handles[-1]))
            with opened("leaf", os.O_WRONLY | os.O_CREAT, dir_fd=handles[-1]) as fd:
                os.write(fd, b"deep")
            assert os.stat("/".join([name] * 100), dir_fd=handles[100]).st_ino == os.fstat(handles[200]).st_ino
            assert os.stat("../" * 100, dir_fd=handles[200]).st_ino == os.fstat(handles[100]).st_ino
            assert os.stat("leaf", dir_fd=handles[200]).st_size == 4
            os.unlink("leaf", dir_fd=handles[-1])
            while len(handles) > 1:
                os.close(handles.pop())
                os.rmdir(name, dir_fd=handles[-1])
        finally:
            for fd in handles:
                os.close(fd)
        assert os.listdir(d) == []

    def test_names_that_differ_in_case_differ(self, d: Path) -> None:
        for name in ("name", "Name", "NAME"):
            (d / name).write_text(name)
        assert sorted(os.listdir(d)) == ["NAME", "Name", "name"]
        assert (d / "Name").read_text() == "Name"

    def test_a_missing_name_that_is_then_made_is_found(self, d: Path) -> None:
        for number in range(20):  # creating the name must invalidate a negative dentry
            assert not (d / f"name-{number}").exists()
            (d / f"name-{number}").write_bytes(b"x")
            assert (d / f"name-{number}").exists()
            os.unlink(d / f"name-{number}")
            assert not (d / f"name-{number}").exists()

    def test_rmdir_errors(self, d: Path) -> None:
        make(d, {"full/below": None, "file": b"x"})
        all_refused(
            ((errno.ENOTEMPTY, errno.EEXIST), os.rmdir, d / "full"),
            (errno.ENOTDIR, os.rmdir, d / "file"),
            (errno.ENOENT, os.rmdir, d / "missing"),
            (errno.EINVAL, os.rmdir, f"{d}/full/."),
            ((errno.ENOTEMPTY, errno.EEXIST), os.rmdir, f"{d}/full/below/.."),
        )
        assert tree(d) == {"file": b"x", "full": None, "full/below": None}

    @needs("persistent_modes")
    def test_mkdir_applies_the_umask(self, d: Path) -> None:
        with umask(0o027):
            os.mkdir(d / "dir", 0o777)
        assert (d / "dir").stat().st_mode & 0o7777 == 0o750


def _is_utf8(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True
