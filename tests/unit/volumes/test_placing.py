"""Earlier states of files, put into volumes of every kind."""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agentface import ME, attr_at, get, heard, node_at, put
from backend_kinds import opened_backend
from hypothesis import given, settings
from hypothesis import strategies as st
from raising import raising
from together import together

from fusebackend.backends import FilesystemBackend, InMemoryBackend, SqliteBackend, StoreBackend
from fusebackend.protocol import ROOT_NODE, AttrChanges
from fusebackend.remote.volume import volume_of
from fusebackend.testing.posix.case import fails
from fusebackend.volumes import placing
from fusebackend.volumes.contents import data_pieces, opened
from fusebackend.volumes.placing import BytesSource, KeptSource, Name, NodeSource, State, state_of
from fusebackend.volumes.storage import CHUNK_BYTES

STATE = State(stat.S_IFREG | 0o640, os.geteuid(), os.getegid(), 0, 5, 1, 10**18, 2 * 10**18 + 1, {}, b"")


class Held:
    """A backend with its volume, as the functions of `agentface` take it."""

    def __init__(self, backend) -> None:
        self.backend = backend
        self.volume = volume_of(backend)
        self.upload_files = backend.upload_files
        self.download_files = backend.download_files


@pytest.fixture(params=["memory", "sqlite", "dir", "store"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Held]:
    with opened_backend(request.param, tmp_path) as backend:
        yield Held(backend)


@pytest.fixture(params=["memory", "sqlite", "dir"])
def native(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Held]:
    with opened_backend(request.param, tmp_path) as backend:
        yield Held(backend)


@pytest.fixture
def on_disk(tmp_path: Path) -> Iterator[Held]:
    with opened_backend("dir", tmp_path) as backend:
        yield Held(backend)


def make(held: Held, source: placing.Source, name: bytes = b"file") -> placing.Placed:
    with held.volume.changing() as told:
        return placing.make(held.volume, ROOT_NODE, name, source, told, f"/{name.decode()}")


def names(held: Held) -> list[bytes]:
    return [name for name, _ in held.volume.readdir(ROOT_NODE, b"", 100)]


def test_a_file_is_made_with_its_bytes_and_attributes(native: Held) -> None:
    wanted = STATE._replace(xattrs={b"user.colour": b"red"})
    with heard(native) as changes:
        placed = make(native, BytesSource(wanted, b"hello"))
    assert state_of(native.volume, attr_at(native, "/file")) == wanted
    assert get(native, "/file") == b"hello"
    assert placed.lost == () and placed.attr.node == node_at(native, "/file")
    assert any(change.name == b"file" for change in changes), "a negative dentry of the kernel would stay"
    assert names(native) == [b"file"]


def test_a_store_takes_the_bytes(kept: Held) -> None:
    make(kept, BytesSource(STATE, b"hello"))
    assert get(kept, "/file") == b"hello"
    with kept.volume.changing() as told:
        placing.overwrite(kept.volume, node_at(kept, "/file"), BytesSource(STATE, b"bye"), told, "/file")
    assert get(kept, "/file") == b"bye"


def test_bytes_are_read_with_the_lock_free(kept: Held) -> None:
    """Of two moves between two volumes, the one way and the other, each had its target and waited for its source."""

    class Looking(BytesSource):
        def pieces(self) -> Iterator[tuple[int, bytes]]:
            together(lambda: kept.volume.getattr(ROOT_NODE), limit_s=10)
            yield from super().pieces()

    placing.make(kept.volume, ROOT_NODE, b"file", Looking(STATE, b"bytes"), [], "/file")
    assert get(kept, "/file") == b"bytes"


def test_only_a_vacant_name_is_taken(kept: Held) -> None:
    put(kept, "/file", b"theirs")
    with pytest.raises(FileExistsError):
        make(kept, BytesSource(STATE, b"ours"))
    assert get(kept, "/file") == b"theirs"
    assert names(kept) == [b"file"]


def test_links_directories_and_special_files_are_made(native: Held) -> None:
    volume = native.volume
    link = STATE._replace(mode=stat.S_IFLNK | 0o777, size=4, target=b"else")
    fifo = STATE._replace(mode=stat.S_IFIFO | 0o604, size=0)
    directory = STATE._replace(mode=stat.S_IFDIR | 0o711)
    with volume.changing() as told:
        for name, state in ((b"link", link), (b"fifo", fifo), (b"directory", directory)):
            placing.make(volume, ROOT_NODE, name, KeptSource(state), told, f"/{name.decode()}")
    assert volume.readlink(node_at(native, "/link")) == b"else"
    assert attr_at(native, "/link").mtime_ns == STATE.mtime_ns
    assert attr_at(native, "/fifo").mode == fifo.mode
    assert attr_at(native, "/directory").mode == directory.mode
    assert "/directory/" in [change.path for change in told]


def test_a_volume_without_links_says_so() -> None:
    from langgraph.store.memory import InMemoryStore

    volume = volume_of(StoreBackend(InMemoryStore()))
    link = STATE._replace(mode=stat.S_IFLNK | 0o777, target=b"else")
    with fails(errno.EPERM), volume.changing() as told:
        placing.make(volume, ROOT_NODE, b"link", KeptSource(link), told, "/link")
    assert told == []


class Failing:
    """A source that ends in the middle."""

    state = STATE._replace(size=4 << 20)

    def pieces(self) -> Iterator[tuple[int, bytes]]:
        yield 0, b"x" * (1 << 20)
        raise OSError(errno.EIO, "torn")


def test_an_error_leaves_nothing(native: Held) -> None:
    with pytest.raises(OSError, match="torn"):
        make(native, Failing())
    with pytest.raises(OSError, match="torn"), placing.staged(native.volume, ROOT_NODE, b"file", Failing()):
        pass
    assert names(native) == []


def test_a_large_file_is_written_with_the_lock_free(native: Held) -> None:
    data = os.urandom(3 << 20)
    source = BytesSource(STATE, data)
    with placing.staged(native.volume, ROOT_NODE, b"file", source) as ready:
        assert names(native) == [placing.temporary(b"file")]
        make(native, ready)
    assert get(native, "/file") == data
    assert names(native) == [b"file"]


def test_what_is_not_used_is_removed(native: Held) -> None:
    with placing.staged(native.volume, ROOT_NODE, b"file", BytesSource(STATE, bytes(range(256)) * 8192)):
        assert names(native)
    assert names(native) == []


def test_what_a_crash_has_left_is_replaced(native: Held) -> None:
    put(native, "/" + placing.temporary(b"file").decode(), b"half")
    data = bytes(range(256)) * 8192
    make(native, BytesSource(STATE, data))
    assert get(native, "/file") == data
    assert names(native) == [b"file"]


def test_files_made_in_a_row_tell_of_their_directory_once(native: Held) -> None:
    with native.volume.changing() as told:
        for name in (b"one", b"two"):
            placing.make(native.volume, ROOT_NODE, name, BytesSource(STATE, b"x"), told, f"/{name.decode()}")
    assert [change.name for change in told] == [None, b"one", b"two"]


@pytest.mark.parametrize("size", [0, 1, 70_000])
def test_a_small_file_is_made_as_one_change(tmp_path: Path, size: int) -> None:
    """The volume is flushed before or after it, never within: a crash sees all of it, with its attributes."""
    wanted = STATE._replace(size=size, xattrs={b"user.colour": b"red"})
    with SqliteBackend(tmp_path / "files.db") as backend:
        volume = backend.volume
        seen = []
        flush = volume.write_back
        volume.write_back = lambda: (flush(), seen.append(names(Held(backend))))  # type: ignore[method-assign]
        with volume.changing() as told:
            volume.setattr(ROOT_NODE, AttrChanges(mode=0o2755, gid=12345))
            placing.make(volume, ROOT_NODE, b"file", BytesSource(wanted, bytes(size)), told, "/file")
            with pytest.raises(FileExistsError):
                placing.make(volume, ROOT_NODE, b"file", BytesSource(wanted, b"other"), told, "/file")
        assert all(b"file" not in each for each in seen)
        assert state_of(volume, volume.lookup(ROOT_NODE, b"file")) == wanted
        volume.sync()
        assert state_of(volume, volume.lookup(ROOT_NODE, b"file")) == wanted
    with SqliteBackend(tmp_path / "files.db") as backend:
        assert state_of(backend.volume, backend.volume.lookup(ROOT_NODE, b"file")) == wanted
        assert get(Held(backend), "/file") == bytes(size)


def test_a_small_file_on_disk_gets_its_name_when_it_is_complete(on_disk: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    """No temporary name is seen, or left by a crash."""
    wanted = STATE._replace(xattrs={b"user.colour": b"red"}, size=70_000)
    seen: list[tuple[list[bytes], int]] = []
    link = os.link

    def linked(source: str, name: bytes, **where: Any) -> None:
        seen.append((names(on_disk), os.stat(source).st_size))
        if len(seen) == 1:
            raise OSError(errno.EIO, "the disk has failed")
        link(source, name, **where)

    monkeypatch.setattr(os, "link", linked)
    with pytest.raises(OSError, match="the disk has failed"):
        make(on_disk, BytesSource(wanted, b"x" * 70_000))
    assert names(on_disk) == []
    make(on_disk, BytesSource(wanted, b"x" * 70_000))
    assert seen == [([], 70_000)] * 2 and names(on_disk) == [b"file"]
    assert state_of(on_disk.volume, attr_at(on_disk, "/file")) == wanted
    assert get(on_disk, "/file") == b"x" * 70_000


def test_where_no_file_can_be_nameless(on_disk: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on NFS (O_TMPFILE, open(2)): a temporary name does instead."""
    wanted = STATE._replace(xattrs={b"user.colour": b"red"})
    open_it = os.open

    def opened_as_on_nfs(path: Any, flags: int, *mode: int, **where: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return open_it(path, flags, *mode, **where)

    monkeypatch.setattr(os, "open", opened_as_on_nfs)
    make(on_disk, BytesSource(wanted, b"hello"))
    assert state_of(on_disk.volume, attr_at(on_disk, "/file")) == wanted
    assert get(on_disk, "/file") == b"hello" and names(on_disk) == [b"file"]


def test_a_file_on_disk_tells_what_it_could_not_be_given(on_disk: Held, monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.setattr(os, "setxattr", raising(PermissionError(errno.EPERM, "not root")))
    assert make(on_disk, BytesSource(STATE._replace(xattrs={b"user.colour": b"red"}), b"hello")).lost == (
        "extended attributes",
    )
    assert get(on_disk, "/file") == b"hello" and names(on_disk) == [b"file"]


def test_a_file_on_disk_takes_nothing_from_its_directory(on_disk: Held, tmp_path: Path) -> None:
    """Neither the default ACL (acl(5)) of the directory, nor its group."""
    entries = [(1, 7, -1), (4, 5, -1), (0x10, 7, -1), (0x20, 0, -1), (2, 7, 12345)]
    acl = struct.pack("<I", 2) + b"".join(
        struct.pack("<HHI", tag, bits, owner & 0xFFFFFFFF) for tag, bits, owner in sorted(entries)
    )
    try:
        os.setxattr(tmp_path / "files", "system.posix_acl_default", acl)
    except OSError as error:
        pytest.skip(f"this file system has no ACLs: {error}")
    os.chmod(tmp_path / "files", 0o2755)
    make(on_disk, BytesSource(STATE, b"hello"))
    assert state_of(on_disk.volume, attr_at(on_disk, "/file")) == STATE


def test_a_kept_file_keeps_its_holes(native: Held, tmp_path: Path) -> None:
    path = tmp_path / "kept"
    with open(path, "wb") as file:
        file.write(b"begin")
        file.seek(8 << 20)
        file.write(b"middle")
        file.truncate(64 << 20)
    make(native, KeptSource(STATE._replace(size=64 << 20), str(path)))
    attr = attr_at(native, "/file")
    assert attr.size == 64 << 20 and attr.blocks * 512 < 2 << 20
    assert get(native, "/file") == path.read_bytes()


def test_contents_come_back_in_place(native: Held) -> None:
    node = put(native, "/file", b"new and longer")
    native.volume.link(node, ROOT_NODE, b"other")
    native.volume.setxattr(node, b"user.later", b"1")
    native.volume.setattr(node, AttrChanges(mode=0o444))
    with opened(native.volume, node, os.O_RDONLY) as handle, native.volume.changing() as told:
        placing.overwrite(native.volume, node, BytesSource(STATE, b"old"), told, "/file")
        assert state_of(native.volume, attr_at(native, "/file")) == STATE._replace(size=3, nlink=2)
        assert native.volume.read(handle, 0, 100) == b"old"
    assert get(native, "/other") == b"old"
    assert [change.kind for change in told if change.path] == ["modified"]


@pytest.mark.parametrize("size", [0, CHUNK_BYTES])
def test_a_hole_at_the_end_stays_while_contents_come_back(
    native: Held, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """A kill would leave the file short, and on `postgres:` an empty one is to be written anew (ESTALE)."""
    node = put(native, "/file", b"x" * size)
    native.volume.setattr(node, AttrChanges(size=4 << 20))
    sizes: list[int | None] = []
    setattr_ = native.volume.setattr
    monkeypatch.setattr(
        native.volume, "setattr", lambda node, changes: sizes.append(changes.size) or setattr_(node, changes)
    )
    source = BytesSource(STATE, b"X" * size)
    source.state = STATE._replace(size=4 << 20)
    with native.volume.changing() as told:
        placing.overwrite(native.volume, node, source, told, "/file")
    assert get(native, "/file") == (b"X" * size).ljust(4 << 20, b"\0")
    assert set(sizes) <= {None}, "it has its size already"


def test_an_owner_who_may_not_be_given_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(FilesystemBackend(tmp_path, virtual_mode=True))
    node = put(held, "/file")

    monkeypatch.setattr(os, "chown", raising(PermissionError(errno.EPERM, "not root")))
    placed = placing.set_attributes(held.volume, node, STATE._replace(uid=12345, mode=stat.S_IFREG | 0o4755))
    assert placed.lost == ("owner",)
    assert stat.S_IMODE(placed.attr.mode) == 0o755, "set-ID bits are for the owner that it had"


def test_names_are_linked_renamed_and_removed(native: Held) -> None:
    volume = native.volume
    node = put(native, "/file", b"x")
    with volume.changing() as told:
        placing.link(volume, node, ROOT_NODE, b"other", told, "/other")
        attr = volume.getattr(node)
        placing.rename(volume, Name(ROOT_NODE, b"file", "/file"), Name(ROOT_NODE, b"new", "/new"), attr, told)
        placing.remove(volume, ROOT_NODE, b"other", attr, told, "/other")
    assert names(native) == [b"new"] and volume.getattr(node).nlink == 1
    assert [(each.kind, each.path, each.moved_from) for each in told if each.path] == [
        ("created", "/other", None), ("moved", "/new", "/file"), ("deleted", "/other", None),
    ]  # fmt: skip


RANGES = st.lists(st.tuples(st.integers(0, 6 << 16), st.integers(1, 3 << 16)), max_size=4)


def _sparse(held: Held, path: str, ranges: list[tuple[int, int]], size: int, fill: bytes) -> int:
    node = held.volume.create(ROOT_NODE, path.encode(), 0o600, os.O_RDWR, ME).node
    for offset, length in ranges:
        held.volume.write(node, offset, fill * length)
    held.volume.setattr(node, AttrChanges(size=size))
    held.volume.release(node, os.O_RDWR)
    return node


@given(before=RANGES, after=RANGES, sizes=st.tuples(st.integers(0, 1 << 19), st.integers(0, 1 << 19)))
@settings(max_examples=100, deadline=None)
def test_any_sparse_file_becomes_any_other(
    before: list[tuple[int, int]], after: list[tuple[int, int]], sizes: tuple[int, int]
) -> None:
    held = Held(InMemoryBackend())
    old, new = _sparse(held, "old", before, sizes[0], b"o"), _sparse(held, "new", after, sizes[1], b"n")
    placing.overwrite(held.volume, new, NodeSource(held.volume, old), [], "/new")
    placing.make(held.volume, ROOT_NODE, b"made", NodeSource(held.volume, old), [], "/made")
    for path in ("/new", "/made"):
        assert get(held, path) == get(held, "/old")
        assert attr_at(held, path).mtime_ns == attr_at(held, "/old").mtime_ns
    assert list(data_pieces(held.volume, node_at(held, "/made")))[-1][0] <= sizes[0]
