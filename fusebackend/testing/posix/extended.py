"""Extended attributes."""

from __future__ import annotations

import errno
import os
from functools import partial
from pathlib import Path

from fusebackend.testing.each import each, needs
from fusebackend.testing.posix.case import Case, all_refused, fresh, opened, refused

CAPABILITIES = bytes.fromhex("0100000200040000000000000000000000000000")
"""cap_net_bind_service, effective and permitted, as setcap(8) writes it."""

WAYS_TO_WRITE = (
    os.O_WRONLY,
    os.O_RDWR,
    os.O_WRONLY | os.O_APPEND,
    os.O_RDWR | os.O_APPEND,
    os.O_WRONLY | os.O_TRUNC,
)


class ExtendedAttributeCases(Case):
    @needs("xattrs")
    def test_set_get_list_and_remove(self, file: Path) -> None:
        os.setxattr(file, "user.one", b"1")
        os.setxattr(file, "user.two", b"\x00\xff binary")
        assert os.getxattr(file, "user.one") == b"1"
        assert os.getxattr(file, "user.two") == b"\x00\xff binary"
        assert sorted(_listed(file)) == ["user.one", "user.two"]
        os.removexattr(file, "user.one")
        assert _listed(file) == ["user.two"]

    @needs("xattrs")
    def test_a_value_is_replaced(self, file: Path) -> None:
        for value in (b"first", b"a longer second", b"", b"z"):
            os.setxattr(file, "user.value", value)
            assert os.getxattr(file, "user.value") == value

    @needs("xattrs")
    def test_create_and_replace_flags(self, file: Path) -> None:
        refused(errno.ENODATA, os.setxattr, file, "user.a", b"1", os.XATTR_REPLACE)
        os.setxattr(file, "user.a", b"1", os.XATTR_CREATE)
        refused(errno.EEXIST, os.setxattr, file, "user.a", b"2", os.XATTR_CREATE)
        assert os.getxattr(file, "user.a") == b"1"
        os.setxattr(file, "user.a", b"3", os.XATTR_REPLACE)
        assert os.getxattr(file, "user.a") == b"3"

    @needs("xattrs")
    def test_a_missing_attribute_is_enodata(self, d: Path, file: Path) -> None:
        all_refused(
            (errno.ENODATA, os.getxattr, file, "user.none"),
            (errno.ENODATA, os.removexattr, file, "user.none"),
            (errno.ENOENT, os.getxattr, d / "missing", "user.none"),
        )
        assert _listed(file) == []

    @needs("xattrs")
    def test_attributes_of_a_directory(self, d: Path) -> None:
        (d / "dir").mkdir()
        os.setxattr(d / "dir", "user.note", b"on a directory")
        (d / "dir" / "file").touch()
        assert os.getxattr(d / "dir", "user.note") == b"on a directory"
        assert _listed(d / "dir" / "file") == []

    @needs("xattrs")
    def test_attributes_through_a_handle(self, d: Path, fd: int) -> None:
        os.setxattr(fd, "user.a", b"1")
        os.unlink(d / "file")
        assert os.getxattr(fd, "user.a") == b"1"
        os.setxattr(fd, "user.b", b"2")
        assert sorted(name for name in os.listxattr(fd) if name.startswith("user.")) == ["user.a", "user.b"]

    @needs("xattrs")
    def test_attributes_stay_with_the_file(self, d: Path, file: Path) -> None:
        os.setxattr(file, "user.a", b"1")
        os.rename(file, d / "moved")
        assert os.getxattr(d / "moved", "user.a") == b"1"
        (d / "moved").write_bytes(b"rewritten")
        assert os.getxattr(d / "moved", "user.a") == b"1"
        os.unlink(d / "moved")
        (d / "moved").write_bytes(b"another file")
        assert _listed(d / "moved") == []

    @needs("xattrs", "links")
    def test_attributes_are_shared_by_links(self, d: Path) -> None:
        (d / "one").write_bytes(b"x")
        os.link(d / "one", d / "two")
        os.setxattr(d / "one", "user.a", b"1")
        assert os.getxattr(d / "two", "user.a") == b"1"

    @needs("xattrs")
    def test_a_large_value(self, file: Path) -> None:
        value = os.urandom(self.limits.xattr_value_bytes)
        os.setxattr(file, "user.large", value)
        assert os.getxattr(file, "user.large") == value
        os.setxattr(file, "user.large", b"small again")
        assert os.getxattr(file, "user.large") == b"small again"

    @needs("xattrs")
    def test_long_and_odd_names(self, file: Path) -> None:
        longest = "user." + "n" * 250
        os.setxattr(file, longest, b"1")
        os.setxattr(file, b"user.\xff\n", b"2")
        assert os.getxattr(file, longest) == b"1"
        assert os.getxattr(file, b"user.\xff\n") == b"2"
        assert sorted(map(os.fsencode, _listed(file))) == sorted([longest.encode(), b"user.\xff\n"])
        refused(errno.ERANGE, os.setxattr, file, "user." + "n" * 251, b"1")

    @needs("xattrs")
    def test_many_attributes(self, file: Path) -> None:
        for number in range(50):
            os.setxattr(file, f"user.{number:02}", b"%d" % number)
        assert sorted(_listed(file)) == [f"user.{number:02}" for number in range(50)]
        assert os.getxattr(file, "user.49") == b"49"

    @needs("xattrs", "root")
    def test_a_write_takes_the_capabilities_of_a_file(self, d: Path) -> None:
        for case in each(WAYS_TO_WRITE):
            with case as flags, fresh(d) as own:
                for _ in range(2):  # the second time, the kernel has the inode cached
                    (own / "file").write_bytes(b"x")
                    os.setxattr(own / "file", "security.capability", CAPABILITIES)
                    assert os.getxattr(own / "file", "security.capability") == CAPABILITIES
                    with opened(own / "file", flags) as fd:
                        os.write(fd, b"changed")
                    refused(errno.ENODATA, os.getxattr, own / "file", "security.capability")

    @needs("xattrs", "root")
    def test_a_write_takes_capabilities_that_were_set_meanwhile(self, d: Path) -> None:
        with opened(d / "file", os.O_WRONLY | os.O_CREAT) as fd:
            for _ in range(2):
                os.write(fd, b"x")
                os.setxattr(d / "file", "security.capability", CAPABILITIES)
                os.write(fd, b"y")
                refused(errno.ENODATA, os.getxattr, d / "file", "security.capability")

    @needs("xattrs", "root")
    def test_truncate_and_chown_take_the_capabilities_of_a_file(self, d: Path) -> None:
        (d / "file").write_bytes(b"xyz")
        for change in (partial(os.truncate, d / "file", 1), partial(os.chown, d / "file", 5, 5)):
            os.setxattr(d / "file", "security.capability", CAPABILITIES)
            change()
            refused(errno.ENODATA, os.getxattr, d / "file", "security.capability")


def _listed(path: Path) -> list[str]:
    """Return the names in the `user.` namespace; a security module may add names in others."""
    return [name for name in os.listxattr(path) if name.startswith("user.")]
