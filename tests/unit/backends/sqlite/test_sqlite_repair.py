"""`sqlite_repair`: whatever has been done to the rows of a volume file, it is sound afterwards and no byte is lost."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sqlite3
import stat
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from for_each import for_each
from hypothesis import example, given, settings
from hypothesis import strategies as st
from nodes import overwrite
from profiles import examples
from test_sqlite_check import DAMAGE, DIRECTORY, EMPTY, FILE, LINK, ME, damage, fill, volume_file

from fusebackend.backends.sqlite import schema
from fusebackend.backends.sqlite.backend import SqliteVolume
from fusebackend.backends.sqlite.check import Repair, check, repair
from fusebackend.backends.sqlite.schema import VolumeFileError
from fusebackend.protocol import ROOT_NODE, Attr, AttrChanges
from fusebackend.testing.by_path import walk
from fusebackend.volumes.contents import opened

__all__ = ["volume_file"]


@for_each(("script", "line"), DAMAGE)
def test_each_damage_is_mended(volume_file: Path, tmp_path: Path, script: str, line: str) -> None:
    volume_file = shutil.copy(volume_file, tmp_path / "copy.db")
    damage(volume_file, script)
    before = bytes_held(volume_file)
    outcome = repair(volume_file)
    assert any(problem.endswith(line) for problem in outcome.found)
    assert outcome.left == []
    assert check(volume_file) == []
    assert repair(volume_file) == Repair([], []), "there is nothing left to mend"
    assert not before - bytes_held(volume_file), "bytes that were in a file have gone"
    visit(volume_file)
    assert check(volume_file) == []


def test_a_sound_volume_is_left_as_it_is(volume_file: Path) -> None:
    before = volume_file.read_bytes()
    assert repair(volume_file) == Repair([], [])
    assert volume_file.read_bytes() == before
    assert os.listdir(volume_file.parent) == ["volume.db"]


def test_what_no_path_leads_to_is_in_lost_and_found(volume_file: Path) -> None:
    damage(volume_file, f"DELETE FROM dentry WHERE node IN ({DIRECTORY}, {EMPTY})")
    damage(volume_file, f"DELETE FROM inode WHERE node = {FILE}")
    outcome = repair(volume_file)
    assert (outcome.left, outcome.rescued) == ([], 1)
    tree = visit(volume_file)
    # The file's inode is gone, and both its names are there: a link count of two, and the data.
    lost = ["lost+found", "lost+found/#2", "lost+found/#2/below", "lost+found/#2/file"]
    assert sorted(tree) == ["fifo", "hard", "link", *lost]
    assert tree["hard"] == tree["lost+found/#2/file"] == b"x" * 100_000


def test_data_without_an_inode_and_without_a_name_becomes_a_file(volume_file: Path) -> None:
    damage(volume_file, f"DELETE FROM inode WHERE node = {FILE}; DELETE FROM dentry WHERE node = {FILE}")
    assert repair(volume_file).rescued == 1
    assert visit(volume_file)["lost+found/#4"] == b"x" * 100_000


def test_numbers_at_the_limits_become_others(volume_file: Path) -> None:
    """With the last number taken, two that are out of range would both have become the one after it."""
    for table in ("inode", "dentry"):
        damage(volume_file, f"UPDATE {table} SET node = {schema.LAST_NODE} WHERE node = 6")
    for table in ("inode", "place", "xattr", "dentry", "unindexed"):
        damage(volume_file, f"UPDATE {table} SET node = 9223372036854775807 WHERE node = {FILE}")
        damage(volume_file, f"UPDATE {table} SET node = -1 WHERE node = {LINK}")
    damage(volume_file, "UPDATE meta SET value = 9223372036854775807")
    assert repair(volume_file).left == []
    assert check(volume_file) == []
    assert visit(volume_file)["hard"] == b"x" * 100_000


def test_a_file_named_lost_and_found_stays(volume_file: Path) -> None:
    damage(volume_file, "UPDATE dentry SET name = CAST('lost+found' AS BLOB) WHERE name = CAST('hard' AS BLOB)")
    damage(volume_file, f"DELETE FROM dentry WHERE node = {LINK}")
    assert repair(volume_file).left == []
    assert {"lost+found", "lost+found-2", "lost+found-2/#5"} <= set(visit(volume_file))


def test_damaged_pages_are_not_written_to(volume_file: Path) -> None:
    page_bytes = 16384
    with volume_file.open("r+b") as file:
        file.seek(page_bytes)
        file.write(b"\xa5" * page_bytes)
    before = volume_file.read_bytes()
    outcome = repair(volume_file)
    assert outcome.left and all(line.startswith("SQLite: ") for line in outcome.left)
    assert volume_file.read_bytes() == before


def test_what_fails_to_open_leaves_nothing_open(volume_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(SqliteVolume, "_redo", None)
    with pytest.raises(TypeError) as failed:
        SqliteVolume(volume_file)
    assert os.listdir("/proc/self/fd") == before, failed
    monkeypatch.undo()
    SqliteVolume(volume_file).close()


def test_what_is_no_volume_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(VolumeFileError, match="No such file"):
        repair(tmp_path / "missing")
    assert os.listdir(tmp_path) == []


# -- any damage ----------------------------------------------------------------------------------------------------

NODES = st.sampled_from([-5, 0, 1, 2, 3, 4, 5, 6, 7, 8, 40, 1 << 50, (1 << 48) - 1, (1 << 63) - 1])
NAMES = st.sampled_from(["x'61'", "x'64'", "x'2e'", "x'2f'", "x''", "'text'", "x'6c6f73742b666f756e64'", "x'2332'"])
NUMBERS = st.sampled_from([
    "-1", "0", "1", "2", "3", "33188", "16877", "41471", "4480", "65537",
    "1 << 62", "9223372036854775807", "'odd'", "1.5",
])  # fmt: skip
FIELDS = st.sampled_from(
    ["mode", "nlink", "uid", "gid", "rdev", "size", "blocks", "atime_ns", "mtime_ns", "ctime_ns", "parent"]
)
DATA = st.sampled_from(["x''", "x'00'", "'text'", "zeroblob(65536)", "zeroblob(65537)"])
TABLES = st.sampled_from(
    ["inode", "dentry", "chunk", "place", "xattr", "unindexed", "old_inode", "old_dentry", "old_place"]
)
STATEMENTS = st.one_of(
    st.builds("UPDATE OR IGNORE inode SET {} = {} WHERE node = {}".format, FIELDS, NUMBERS, NODES),
    st.builds("UPDATE OR IGNORE inode SET node = {} WHERE node = {}".format, NODES, NODES),
    st.builds("DELETE FROM {} WHERE node = {}".format, TABLES, NODES),
    st.builds("DELETE FROM dentry WHERE parent = {}".format, NODES),
    st.builds("INSERT OR REPLACE INTO dentry VALUES ({}, {}, {})".format, NODES, NAMES, NODES),
    st.builds("UPDATE OR IGNORE dentry SET parent = {} WHERE node = {}".format, NODES, NODES),
    st.builds("UPDATE OR IGNORE dentry SET node = {} WHERE node = {}".format, NODES, NODES),
    st.builds("UPDATE OR IGNORE dentry SET name = {} WHERE node = {}".format, NAMES, NODES),
    st.builds("INSERT OR IGNORE INTO chunk VALUES (NULL, {}, {}, {})".format, NODES, NUMBERS, DATA),
    st.builds("UPDATE OR IGNORE old_dentry SET node = {} WHERE parent = {}".format, NODES, NODES),
    st.builds("UPDATE OR IGNORE old_place SET chunk = {} WHERE node = {}".format, NODES, NODES),
    st.builds("UPDATE OR IGNORE old_inode SET {} = {} WHERE node = {}".format, FIELDS, NUMBERS, NODES),
    st.builds("UPDATE OR IGNORE snapshot SET next_node = {}, time_ns = {}".format, NUMBERS, DATA),
    st.sampled_from(["UPDATE snapshot SET next_chunk = 'text'", "UPDATE OR IGNORE snapshot SET number = 99"]),
    st.builds("UPDATE OR IGNORE place SET node = {} WHERE node = {}".format, NODES, NODES),
    st.builds("INSERT OR IGNORE INTO place VALUES ({}, {}, {})".format, NODES, NUMBERS, NODES),
    st.builds("INSERT OR REPLACE INTO xattr VALUES ({}, {}, {})".format, NODES, NAMES, DATA),
    st.builds("UPDATE OR IGNORE xattr SET node = {} WHERE node = {}".format, NODES, NODES),
    st.builds("INSERT OR REPLACE INTO unindexed VALUES ({}, 0)".format, NODES),
    st.builds("UPDATE meta SET value = {}".format, NUMBERS),
    st.sampled_from(["DELETE FROM meta", "DELETE FROM trigram_data"]),
)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed volume that is copied for each example; what it holds is as in `volume_file`."""
    path = tmp_path_factory.mktemp("sound") / "volume.db"
    with contextlib.closing(SqliteVolume(path)) as volume:
        fill(volume, b"some words " * 10_000)
        volume.take_snapshot("before")
        overwrite(volume, FILE, 0, b"SOME WORDS " * 10_000)
        volume.rename(ROOT_NODE, b"hard", DIRECTORY, b"moved")
        volume.write_back()
        volume.rename(DIRECTORY, b"moved", ROOT_NODE, b"hard")
    return path


@settings(max_examples=examples(30))
@example(["INSERT OR IGNORE INTO place VALUES (-5, 0, 1)"])
@given(statements=st.lists(STATEMENTS, min_size=1, max_size=8))
def test_any_damage_is_mended(sound: Path, tmp_path: Path, statements: list[str]) -> None:
    path = tmp_path / "volume.db"
    shutil.copyfile(sound, path)
    damage(path, ";".join(statements))
    before = bytes_held(path)
    outcome = repair(path)
    assert outcome.left == [], outcome.found
    assert bool(outcome.found) or outcome.rescued == 0
    assert check(path) == []
    visit(path)
    assert check(path) == [], "a volume that has been used is still sound"
    assert not before - bytes_held(path), "bytes that were in a file have gone"


def bytes_held(path: Path) -> Counter[bytes]:
    """How often each piece of data is kept, of those that a repair may not lose: whole and where a file can have them.

    Without the few bytes that damage itself puts in, without the targets of links, and without what has no name on
    purpose (a link count of 0).
    """
    with contextlib.closing(sqlite3.connect(path)) as connection:
        rows = connection.execute(
            """SELECT data FROM chunk WHERE typeof(data) = 'blob' AND length(data) BETWEEN 10 AND 65536
               AND hex(data) NOT GLOB '00*' AND id IN (
                   SELECT chunk FROM place WHERE typeof(node) = 'integer' AND typeof(idx) = 'integer'
                   AND idx BETWEEN 0 AND 9 AND node BETWEEN 1 AND 1000
                   AND NOT EXISTS (
                       SELECT 1 FROM inode WHERE inode.node = place.node AND ((mode & 61440) = 40960 OR nlink = 0))
                   AND NOT EXISTS (SELECT 1 FROM dentry WHERE dentry.parent = place.node))"""
        )
        return Counter(bytes(data) for (data,) in rows)


def visit(path: Path) -> dict[str, bytes | None]:
    """Use everything in a volume once; gives each path, with the contents of files."""
    tree: dict[str, bytes | None] = {}
    with contextlib.closing(SqliteVolume(path)) as volume:
        for name, attr in walk(volume):
            where = os.fsdecode(name)
            assert where not in tree
            tree[where] = used(volume, attr)
        made = volume.mkdir(ROOT_NODE, b"made after the repair", 0o755, ME).node
        volume.rmdir(ROOT_NODE, b"made after the repair")
        assert all(made != attr.node for _, attr in volume.readdir(ROOT_NODE, b"", 1000))
    return tree


def used(volume: SqliteVolume, attr: Attr) -> bytes | None:
    """Use a file once; gives its contents, the first 4 MiB of them, or None where it can have none."""
    data = None
    if stat.S_ISLNK(attr.mode):
        data = volume.readlink(attr.node)
    elif stat.S_ISREG(attr.mode):
        with opened(volume, attr.node, os.O_RDWR) as node:
            data = volume.read(node, 0, min(attr.size, 1 << 22))
            volume.write(node, 0, data[:10])
    volume.listxattr(attr.node)
    volume.setattr(attr.node, AttrChanges(atime_ns=5))
    return data


def test_a_read_only_disk_is_told_what_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, real = str(tmp_path / "volume.db"), os.open
    SqliteVolume(path).close()

    def refusing(name: Any, flags: int, *rest: Any, **options: Any) -> int:
        if name == path and flags & os.O_RDWR:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), name)
        return real(name, flags, *rest, **options)

    monkeypatch.setattr(os, "open", refusing)
    with pytest.raises(VolumeFileError, match="Read-only file system; its locks and its log need a disk"):
        SqliteVolume(path)
