"""Names and paths: bytes and lengths that Linux allows in a name, and making and removing directories."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from fusebackend.testing.each import each
from fusebackend.testing.posix.case import Case, all_refused, fails, fresh, needs, opened, refused

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
}


class NameCases(Case):
    def test_a_name_is_any_bytes(self, d: Path) -> None:
        for case in each(ODD_NAMES):
            with case as name, fresh(d) as own:
                home, other = os.fsencode(own), name + b"2"
                path = home + b"/" + name
                if not self.limits.byte_names and not _is_utf8(name):
                    refused(errno.EILSEQ, os.mkdir, path)
                    continue
                with opened(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as fd:
                    os.write(fd, b"content")
                assert os.listdir(home) == [name]
                with opened(path, os.O_RDONLY) as fd:
                    assert os.read(fd, 100) == b"content"
                os.rename(path, home + b"/" + other)
                assert os.listdir(home) == [other]
                os.mkdir(path)
                os.mkdir(path + b"/" + name)
                assert os.listdir(path) == [name]
                os.rmdir(path + b"/" + name)
                os.rmdir(path)
                os.unlink(home + b"/" + other)
                assert os.listdir(home) == []

    @needs("symlinks")
    def test_a_symlink_may_point_at_any_bytes(self, d: Path) -> None:
        link = os.fsencode(d) + b"/link"
        os.symlink(b"\xff\n/\xfe", link)
        assert os.readlink(link) == b"\xff\n/\xfe"

    def test_a_name_of_255_bytes(self, d: Path) -> None:
        for case in each({"a": b"n" * 255, "utf8": "ñ".encode() * 127 + b"x", "ff": b"\xff" * 255}):
            with case as name, fresh(d) as own:
                assert len(name) == 255
                path = os.fsencode(own) + b"/" + name
                if not self.limits.byte_names and not _is_utf8(name):
                    refused(errno.EILSEQ, os.mkdir, path)
                    continue
                os.mkdir(path)
                with opened(path + b"/" + name, os.O_WRONLY | os.O_CREAT) as fd:
                    os.write(fd, b"x")
                assert os.listdir(os.fsencode(own)) == os.listdir(path) == [name]
                assert os.stat(path + b"/" + name).st_size == 1

    def test_a_name_of_256_bytes_is_enametoolong(self, d: Path, file: Path) -> None:
        long = d / ("n" * 256)
        all_refused(
            (errno.ENAMETOOLONG, long.stat),
            (errno.ENAMETOOLONG, os.open, long, os.O_WRONLY | os.O_CREAT),
            (errno.ENAMETOOLONG, long.mkdir),
            (errno.ENAMETOOLONG, os.rename, file, long),
            (errno.ENAMETOOLONG, os.unlink, long),
            (errno.ENAMETOOLONG, os.rmdir, long),
        )
        assert os.listdir(d) == ["file"]

    @needs("symlinks", "links", "special_files")
    def test_a_link_of_256_bytes_is_enametoolong(self, d: Path, file: Path) -> None:
        long = d / ("n" * 256)
        all_refused(
            (errno.ENAMETOOLONG, os.symlink, "file", long),
            (errno.ENAMETOOLONG, os.link, file, long),
            (errno.ENAMETOOLONG, os.mkfifo, long),
        )

    def test_far_longer_names_are_enametoolong(self, d: Path) -> None:
        for case in each((1000, 1024, 1025, 2000)):
            with case as size:
                refused(errno.ENAMETOOLONG, os.stat, d / ("n" * size))
                refused(errno.ENAMETOOLONG, os.mkdir, d / ("n" * size))

    def test_a_path_of_4095_bytes_works_and_4096_does_not(self, d: Path, file: Path) -> None:
        path = os.fsencode(file)
        # Repeated slashes lengthen the path without another directory.
        start, end = os.fsencode(d), b"file"
        longest = start + b"/" * (4095 - len(start) - len(end)) + end
        assert len(longest) == 4095 and os.stat(longest).st_ino == os.stat(path).st_ino
        with fails(errno.ENAMETOOLONG):
            os.stat(longest.replace(b"/file", b"//file"))

    def test_a_path_of_4096_bytes_of_names_is_enametoolong(self, d: Path) -> None:
        path = os.fsencode(d)
        while len(path) < 4096:
            path += b"/" + b"n" * 200
        refused(errno.ENAMETOOLONG, os.mkdir, path)
        refused(errno.ENAMETOOLONG, os.open, path, os.O_RDONLY)

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

    def test_dot_and_dot_dot(self, d: Path) -> None:
        (d / "a").mkdir()
        (d / "a" / "b").mkdir()
        assert os.stat(f"{d}/a/b/..").st_ino == os.stat(d / "a").st_ino
        assert os.stat(f"{d}/a/b/../../a/.").st_ino == os.stat(d / "a").st_ino
        refused(errno.EEXIST, os.mkdir, f"{d}/a/.")
        refused(errno.EEXIST, os.mkdir, f"{d}/a/..")

    def test_a_trailing_slash_means_a_directory(self, d: Path, file: Path) -> None:
        (d / "dir").mkdir()
        assert os.stat(f"{d}/dir/").st_ino == os.stat(d / "dir").st_ino
        refused(errno.ENOTDIR, os.stat, f"{d}/file/")
        refused(errno.EISDIR, os.open, f"{d}/new/", os.O_WRONLY | os.O_CREAT)
        os.mkdir(f"{d}/other/")
        assert sorted(os.listdir(d)) == ["dir", "file", "other"]

    def test_an_empty_path_is_enoent(self, d: Path) -> None:
        refused(errno.ENOENT, os.stat, "")
        with opened(d, os.O_RDONLY | os.O_DIRECTORY) as fd, fails(errno.ENOENT):
            os.mkdir("", dir_fd=fd)

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

    def test_mkdir_errors(self, d: Path, file: Path) -> None:
        (d / "dir").mkdir()
        all_refused(
            (errno.EEXIST, os.mkdir, d / "dir"),
            (errno.EEXIST, os.mkdir, file),
            (errno.ENOENT, os.mkdir, d / "missing" / "below"),
            (errno.ENOTDIR, os.mkdir, file / "below"),
        )

    @needs("symlinks")
    def test_mkdir_over_a_dangling_symlink_is_eexist(self, d: Path) -> None:
        os.symlink("nowhere", d / "link")
        refused(errno.EEXIST, os.mkdir, d / "link")

    def test_rmdir_errors(self, d: Path) -> None:
        (d / "full" / "below").mkdir(parents=True)
        (d / "file").write_bytes(b"x")
        all_refused(
            ((errno.ENOTEMPTY, errno.EEXIST), os.rmdir, d / "full"),
            (errno.ENOTDIR, os.rmdir, d / "file"),
            (errno.ENOENT, os.rmdir, d / "missing"),
            (errno.EINVAL, os.rmdir, f"{d}/full/."),
            ((errno.ENOTEMPTY, errno.EEXIST), os.rmdir, f"{d}/full/below/.."),
        )
        assert sorted(os.listdir(d)) == ["file", "full"]

    @needs("symlinks")
    def test_rmdir_of_a_symlink_is_enotdir(self, d: Path) -> None:
        (d / "dir").mkdir()
        os.symlink("dir", d / "link")
        refused(errno.ENOTDIR, os.rmdir, d / "link")

    def test_unlink_errors(self, d: Path, file: Path) -> None:
        (d / "dir").mkdir()
        all_refused(
            ((errno.EISDIR, errno.EPERM), os.unlink, d / "dir"),
            (errno.ENOENT, os.unlink, d / "missing"),
            (errno.ENOTDIR, os.unlink, file / "below"),
            (errno.ENOTDIR, os.unlink, f"{d}/file/"),
        )
        assert sorted(os.listdir(d)) == ["dir", "file"]

    @needs("persistent_modes")
    def test_mkdir_applies_the_umask(self, d: Path) -> None:
        before = os.umask(0o027)
        try:
            os.mkdir(d / "dir", 0o777)
        finally:
            os.umask(before)
        assert (d / "dir").stat().st_mode & 0o7777 == 0o750


def _is_utf8(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True
