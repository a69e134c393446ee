"""ACLs and modes: what chmod, setfacl and a new file in a directory make of each other (fs/posix_acl.c)."""

from __future__ import annotations

import os
import stat
import struct
from pathlib import Path

import pytest
from for_each import for_each

from fusebackend.backends.memory import InMemoryBackend
from fusebackend.backends.sqlite.backend import SqliteBackend
from fusebackend.base import acl
from fusebackend.protocol import ROOT_NODE, AttrChanges, Caller
from fusebackend.rules.ruled_volume import RuledVolume
from fusebackend.rules.view import View
from fusebackend.volumes.agent_face import VolumeBackend

NOBODY = 0xFFFFFFFF
TAGS = {"u": 1, "user": 2, "g": 4, "group": 8, "m": 16, "o": 32}


def packed(text: str) -> bytes:
    """`u:7 user=5:6 m:7 …`: tag, id if it has one, permissions."""
    found = b""
    for word in text.split():
        tag, _, permissions = word.partition(":")
        tag, _, who = tag.partition("=")
        found += struct.pack("<HHI", TAGS[tag], int(permissions), int(who) if who else NOBODY)
    return struct.pack("<I", 2) + found


FULL = "u:7 user=5:6 g:5 group=8:1 m:7 o:4"
PLAIN = "u:6 g:4 o:0"


def test_the_mode_of_an_acl() -> None:
    assert acl.mode_of(packed(FULL)) == (0o774, False)
    assert acl.mode_of(packed(PLAIN)) == (0o640, True)
    assert acl.mode_of(packed("u:6 g:4 m:4 o:0")) == (0o640, False)


def test_chmod_sets_the_mask_where_there_is_one() -> None:
    assert acl.with_mode(packed(FULL), 0o150) == packed("u:1 user=5:6 g:5 group=8:1 m:5 o:0")
    assert acl.with_mode(packed(PLAIN), 0o151) == packed("u:1 g:5 o:1")


def test_a_new_file_gets_no_more_than_its_maker_asks_for() -> None:
    access, mode = acl.inherited(packed(FULL), 0o666)
    assert (access, mode) == (packed("u:6 user=5:6 g:5 group=8:1 m:6 o:4"), 0o664)
    assert acl.inherited(packed(PLAIN), 0o444) == (None, 0o440)


def test_a_view_takes_permissions_from_all() -> None:
    assert acl.masked(packed(FULL), 5) == packed("u:5 user=5:4 g:5 group=8:1 m:5 o:4")


@for_each("value", [b"", b"\2\0\0\0", packed("u:7 g:5"), packed(FULL)[:-1], b"\3" + packed(FULL)[1:]])
def test_what_is_no_acl(value: bytes) -> None:
    with pytest.raises(ValueError):
        acl.entries(value)


ME = Caller(os.getuid(), os.getgid(), os.getpid(), 0o027)


@pytest.fixture(params=["memory", "sqlite"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> VolumeBackend:
    return InMemoryBackend() if request.param == "memory" else SqliteBackend(tmp_path / "v.db")


def test_a_volume_keeps_modes_and_acls_alike(backend: VolumeBackend) -> None:
    volume = backend.volume
    node = volume.mknod(ROOT_NODE, b"file", stat.S_IFREG | 0o666, 0, ME).node
    assert stat.S_IMODE(volume.getattr(node).mode) == 0o640, "by the umask"
    volume.setxattr(node, acl.ACCESS, packed(FULL))
    assert stat.S_IMODE(volume.getattr(node).mode) == 0o774
    volume.setattr(node, AttrChanges(mode=0o600))
    assert acl.mode_of(volume.getxattr(node, acl.ACCESS)) == (0o600, False)
    assert volume.listxattr(node) == [acl.ACCESS]
    volume.setxattr(node, acl.ACCESS, packed(PLAIN))
    assert volume.listxattr(node) == [] and stat.S_IMODE(volume.getattr(node).mode) == 0o640
    with pytest.raises(OSError, match="Invalid argument"):
        volume.setxattr(node, acl.ACCESS, b"none")
    backend.close()


def test_a_volume_gives_new_files_the_default_of_their_directory(backend: VolumeBackend) -> None:
    volume = backend.volume
    volume.setxattr(ROOT_NODE, acl.DEFAULT, packed(FULL))
    node = volume.create(ROOT_NODE, b"file", 0o666, os.O_RDWR, ME).node
    assert stat.S_IMODE(volume.getattr(node).mode) == 0o664, "whatever the umask"
    assert volume.listxattr(node) == [acl.ACCESS]
    inner = volume.mkdir(ROOT_NODE, b"directory", 0o750, ME).node
    assert volume.listxattr(inner) == [acl.ACCESS, acl.DEFAULT]
    assert volume.getxattr(inner, acl.DEFAULT) == packed(FULL)
    link = volume.symlink(ROOT_NODE, b"link", b"file", ME).node
    assert volume.listxattr(link) == []
    assert backend.write("/agent", "text").error is None
    assert volume.listxattr(volume.lookup(ROOT_NODE, b"agent").node) == [acl.ACCESS]
    backend.close()


def test_a_view_masks_them_as_it_masks_modes() -> None:
    with InMemoryBackend() as backend:
        backend.write("/file", "x")
        volume = backend.volume
        volume.setxattr(volume.lookup(ROOT_NODE, b"file").node, acl.ACCESS, packed(FULL))
        shown = RuledVolume(volume, View("v", [{"operations": ["write"], "paths": ["/file"], "mode": "deny"}]))
        attr = shown.lookup(ROOT_NODE, b"file")
        assert stat.S_IMODE(attr.mode) == 0o554
        assert acl.mode_of(shown.getxattr(attr.node, acl.ACCESS)) == (0o554, False)
