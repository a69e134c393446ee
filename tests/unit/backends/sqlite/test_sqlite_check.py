"""`sqlite_check`: a sound volume has no problems, and each thing that can be wrong is told in a line of its own."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import stat
from pathlib import Path

import pytest
from nodes import ME, put

from fusebackend.backends.sqlite import check as sqlite_check
from fusebackend.backends.sqlite.backend import SqliteVolume
from fusebackend.backends.sqlite.check import RULES, check
from fusebackend.backends.sqlite.schema import VolumeFileError
from fusebackend.protocol import ROOT_NODE, AttrChanges

DIRECTORY, BELOW, FILE, LINK, FIFO, EMPTY = 2, 3, 4, 5, 6, 7
"""The nodes of `volume_file`."""


@pytest.fixture
def volume_file(tmp_path: Path) -> Path:
    """A closed volume: /d/below, /d/file (100,000 bytes, also /hard), /link, /fifo, /empty."""
    path = tmp_path / "volume.db"
    with contextlib.closing(SqliteVolume(path)) as volume:
        fill(volume, b"x" * 100_000)
    return path


def fill(volume: SqliteVolume, data: bytes) -> None:
    directory = volume.mkdir(ROOT_NODE, b"d", 0o755, ME).node
    below = volume.mkdir(directory, b"below", 0o755, ME).node
    file = put(volume, b"file", data, directory)
    volume.setattr(file, AttrChanges(mtime_ns=1))
    volume.setxattr(file, b"user.a", b"1")
    volume.link(file, ROOT_NODE, b"hard")
    link = volume.symlink(ROOT_NODE, b"link", b"d/file", ME).node
    fifo = volume.mknod(ROOT_NODE, b"fifo", stat.S_IFIFO | 0o600, 0, ME).node
    empty = volume.mkdir(ROOT_NODE, b"empty", 0o755, ME).node
    assert (directory, below, file, link, fifo, empty) == (DIRECTORY, BELOW, FILE, LINK, FIFO, EMPTY)


def damage(path: Path, script: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)


def test_a_sound_volume_has_no_problems(volume_file: Path) -> None:
    assert check(volume_file) == []
    assert os.listdir(volume_file.parent) == ["volume.db"], "checking leaves nothing beside the file"


DAMAGE = [
    ("UPDATE inode SET parent = 2 WHERE node = 1", "the root (inode 1) is not a directory that is its own parent"),
    ("UPDATE inode SET mode = 33188 WHERE node = 1", "the root (inode 1) is not a directory that is its own parent"),
    ("DELETE FROM inode WHERE node = 1", "there is no root directory"),
    ("UPDATE inode SET mode = 420 WHERE node = 6", "inode 6 has mode 644, which is no type of file"),
    ("UPDATE inode SET mode = 98724 WHERE node = 6", "inode 6 has mode 300644, which is no type of file"),
    ("UPDATE inode SET node = -7 WHERE node = 6", "inode -7 has a number that no inode can have"),
    ("UPDATE inode SET mtime_ns = 'noon' WHERE node = 6", "inode 6 has a field that is not a number"),
    (
        "UPDATE inode SET uid = -1 WHERE node = 6",
        f"inode 6 has owner -1, group {ME.gid} and device 0, of which one is out of range",
    ),
    (
        "UPDATE chunk SET data = x'' WHERE node = 5; UPDATE inode SET size = 0 WHERE node = 5",
        "link inode 5 has no target",
    ),
    ("UPDATE inode SET size = -1 WHERE node = 4", "inode 4 has a size of -1 and a link count of 2"),
    ("DELETE FROM inode WHERE node = 6", "name b'fifo' in inode 1 leads to inode 6, which does not exist"),
    ("INSERT INTO dentry VALUES (4, x'78', 6)", "name b'x' is in inode 4, which is no directory"),
    ("INSERT INTO dentry VALUES (99, x'78', 6)", "name b'x' is in inode 99, which is no directory"),
    ("UPDATE dentry SET name = x'2e2e' WHERE node = 6", "name b'..' in inode 1 is no name that Linux allows"),
    ("UPDATE dentry SET name = x'612f62' WHERE node = 6", "name b'a/b' in inode 1 is no name that Linux allows"),
    ("UPDATE dentry SET name = x'6100' WHERE node = 6", "name b'a\\x00' in inode 1 is no name that Linux allows"),
    ("UPDATE dentry SET name = x'' WHERE node = 6", "name b'' in inode 1 is no name that Linux allows"),
    ("UPDATE dentry SET name = zeroblob(256) WHERE node = 6", " in inode 1 is no name that Linux allows"),
    ("UPDATE dentry SET name = 'text' WHERE node = 6", "name 'text' in inode 1 is no name that Linux allows"),
    ("INSERT INTO dentry VALUES (2, x'78', 1)", "the root has the name b'x' in inode 2"),
    ("DELETE FROM dentry WHERE node = 6", "inode 6 can't be reached from the root and has a link count of 1"),
    ("DELETE FROM dentry WHERE node = 2", "inode 3 can't be reached from the root and has a link count of 2"),
    ("UPDATE inode SET nlink = 3 WHERE node = 4", "inode 4 has a link count of 3 and 2 names"),
    ("DELETE FROM dentry WHERE name = x'68617264'", "inode 4 has a link count of 2 and 1 names"),
    ("UPDATE inode SET nlink = 0 WHERE node = 6", "inode 6 has a link count of 0 and 1 names"),
    ("UPDATE inode SET nlink = 2 WHERE node = 2", "directory inode 2 has a link count of 2 and 1 subdirectories"),
    ("UPDATE inode SET nlink = 3 WHERE node = 7", "directory inode 7 has a link count of 3 and 0 subdirectories"),
    ("INSERT INTO dentry VALUES (1, x'78', 3)", "directory inode 3 has 2 names"),
    ("UPDATE inode SET nlink = 0 WHERE node = 7", "directory inode 7 has 1 names"),
    ("UPDATE inode SET parent = 1 WHERE node = 3", "directory inode 3 is in inode 2 and says its parent is inode 1"),
    ("UPDATE inode SET parent = 2 WHERE node = 4", "inode 4 is no directory and says its parent is inode 2"),
    (
        "UPDATE dentry SET parent = 3 WHERE node = 2; UPDATE inode SET parent = 3 WHERE node = 2",
        "directory inode 2 is below itself",
    ),
    (
        "UPDATE dentry SET parent = 7 WHERE node = 7; UPDATE inode SET parent = 7 WHERE node = 7",
        "directory inode 7 is below itself",
    ),
    # `inode.parent` says something else: a repair that went by it found no cycle and never ended.
    ("UPDATE dentry SET parent = 7 WHERE node = 7", "is below itself"),
    ("UPDATE place SET node = 7 WHERE node = 6; UPDATE dentry SET parent = 7 WHERE node = 7", "is below itself"),
    (f"UPDATE dentry SET parent = {BELOW} WHERE node = {DIRECTORY}", "is below itself"),
    (
        f"UPDATE dentry SET parent = {EMPTY} WHERE node = {DIRECTORY};"
        f"UPDATE dentry SET parent = {BELOW} WHERE node = {EMPTY}",
        "is below itself",
    ),
    (
        f"UPDATE dentry SET parent = {EMPTY} WHERE node = {EMPTY};"
        f"UPDATE dentry SET parent = {BELOW} WHERE node = {DIRECTORY}; UPDATE dentry SET parent = {BELOW}"
        f" WHERE node = {FILE}; UPDATE inode SET parent = 1",
        "is below itself",
    ),
    (
        "INSERT INTO chunk VALUES (99, 99, 0, x'00'); INSERT INTO place VALUES (99, 0, 99)",
        "chunk 0 of inode 99 belongs to no file and no link",
    ),
    (
        "INSERT INTO chunk VALUES (99, 2, 0, x'00'); INSERT INTO place VALUES (2, 0, 99)",
        "chunk 0 of inode 2 belongs to no file and no link",
    ),
    (
        "UPDATE inode SET size = 900000 WHERE node = 4; UPDATE chunk SET data = zeroblob(65537) WHERE idx = 1",
        "chunk 1 of inode 4 holds 65537 bytes",
    ),
    (
        "INSERT INTO chunk VALUES (99, 4, -1, x'00'); INSERT INTO place VALUES (4, -1, 99)",
        "chunk -1 of inode 4 holds 1 bytes",
    ),
    ("UPDATE chunk SET data = 'text' WHERE node = 5", "chunk 0 of inode 5 holds 4 bytes"),
    (
        "UPDATE inode SET size = 90000 WHERE node = 4",
        "chunk 1 of inode 4 holds 34464 bytes, beyond the end of the file at 90000",
    ),
    ("UPDATE inode SET blocks = 8 WHERE node = 4", "inode 4 says it has 8 blocks and its chunks have 200"),
    ("DELETE FROM chunk WHERE node = 4", "inode 4 says it has 200 blocks and its chunks have 0"),
    ("DELETE FROM chunk WHERE node = 4", "chunk 1 of inode 4 has no bytes"),
    ("DELETE FROM place WHERE node = 4", "inode 4 says it has 200 blocks and its chunks have 0"),
    ("DELETE FROM place WHERE node = 4 AND idx = 1", "the bytes in row 2 of chunk are no file's"),
    ("UPDATE place SET chunk = 1 WHERE node = 4", "the bytes in row 1 of chunk are in 2 places"),
    ("INSERT INTO snapshot VALUES (1, 'text', 0, 8, 4)", "snapshot 1 has a field that can't be"),
    ("INSERT INTO snapshot VALUES (1, x'61', 0, 8, 'x')", "snapshot 1 has a field that can't be"),
    ("INSERT INTO snapshot VALUES (1, x'61', 0, 99, 4)", "snapshot 1 has a field that can't be"),
    ("INSERT INTO snapshot VALUES (1, x'61', 0, 8, 4)", "snapshot 1 was taken after 0, which should be the newest"),
    (
        "INSERT INTO snapshot VALUES (1, x'61', 0, 8, 4); INSERT INTO old_dentry VALUES (1, x'78', 1, 99)",
        "name b'x' in inode 1 leads to inode 99, which does not exist, in snapshots up to 1",
    ),
    (
        "INSERT INTO old_inode VALUES (4, 1, 33188, 1, 0, 0, 0, 'big', 0, 0, 0, 0, 0)",
        "inode 4 has a field that is not a number, in snapshots up to 1",
    ),
    ("INSERT INTO old_place VALUES (4, 0, 1, 77, 0)", "chunk 0 of inode 4 has no bytes, in snapshots up to 1"),
    ("UPDATE inode SET size = 0 WHERE node = 7", "directory inode 7 has a size of 0 and 8 blocks"),
    ("UPDATE inode SET size = 9 WHERE node = 5", "link inode 5 has a target of 9 bytes, and 6 of them are there"),
    ("DELETE FROM chunk WHERE node = 5", "link inode 5 has a target of 6 bytes, and 0 of them are there"),
    ("UPDATE xattr SET node = 99", "extended attribute b'user.a' of inode 99, which does not exist"),
    ("UPDATE xattr SET value = 'text'", "extended attribute b'user.a' of inode 4 is not kept as bytes"),
    ("INSERT INTO unindexed VALUES (99, 0)", "inode 99 waits to be indexed, and does not exist"),
    ("DELETE FROM unindexed", "inode 4 holds b'xxx' and the index does not know it"),
    ("DELETE FROM unindexed; DELETE FROM trigram_data", "database disk image is malformed"),
    ("DELETE FROM unindexed; UPDATE chunk SET data = 'text'", "chunk 0 of inode 4 holds 4 bytes"),
    ("UPDATE meta SET value = 7", "the next inode would be 7, and there is an inode 7"),
    ("UPDATE meta SET value = 9223372036854775807", "would be 9223372036854775807, and there is an inode 7"),
    (
        "UPDATE inode SET node = 281474976710655 WHERE node = 6",
        "inode 281474976710655 has a number that no inode can have",
    ),
    ("DELETE FROM meta", "the next inode would be nothing, and there is an inode 7"),
]


def test_every_rule_is_broken_by_one_of_the_damages() -> None:
    for rule in RULES:
        sentence = re.sub(r"\\\{[^}]*\\\}", ".*", re.escape(rule.sentence))
        assert any(re.search(sentence, line) or line.endswith(rule.sentence[-30:]) for _, line in DAMAGE), rule.sentence


def test_a_nameless_inode_is_what_a_crash_leaves_of_an_open_file(tmp_path: Path) -> None:
    path = tmp_path / "volume.db"
    with contextlib.closing(SqliteVolume(path)) as volume:
        node = volume.create(ROOT_NODE, b"f", 0o644, os.O_RDWR, ME).node
        volume.write(node, 0, b"x" * 10)
        volume.unlink(ROOT_NODE, b"f")
        volume.sync()
        assert check(path) == []
    assert check(path) == []
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT node, nlink FROM inode WHERE node != 1").fetchall() == [(node, 0)]
    SqliteVolume(path).close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        for table in ("inode", "chunk"):
            assert connection.execute(f"SELECT count(*) FROM {table} WHERE node = ?", (node,)).fetchone() == (0,)


def test_a_page_of_noise_is_told_of(volume_file: Path) -> None:
    page_bytes = 16384
    size = volume_file.stat().st_size
    found = 0
    for start in range(page_bytes, size, page_bytes):
        whole = volume_file.read_bytes()
        volume_file.write_bytes(whole[:start] + os.urandom(page_bytes) + whole[start + page_bytes :])
        problems = check(volume_file)
        found += bool(problems)
        assert all("\n" not in problem for problem in problems)
        volume_file.write_bytes(whole)
    assert found == size // page_bytes - 1, "every page but the first holds something"


def test_a_broken_file_is_described_in_so_many_lines(volume_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_check, "MAX_PROBLEMS", 10)
    damage(volume_file, "".join(f"INSERT INTO xattr VALUES ({node}, x'61', x'');" for node in range(100, 200)))
    problems = check(volume_file)
    assert len(problems) == 11 and problems[-1] == "more than 10 problems; the rest is not shown"


def test_what_is_no_volume_is_an_error(tmp_path: Path, volume_file: Path) -> None:
    text = tmp_path / "text"
    text.write_text("not a database, and longer than the hundred bytes of the header of one" * 10)
    other = tmp_path / "other.db"
    damage(other, "CREATE TABLE t (a)")
    damage(volume_file, "PRAGMA user_version = 99")
    for path, why in (
        (tmp_path, "is not a regular file"),
        (tmp_path / "missing", "No such file or directory"),
        (text, "file is not a database"),
        (other, "an SQLite file of something else, not a fusebackend volume"),
        (volume_file, "has tables of another version"),
    ):
        with pytest.raises(VolumeFileError, match=why) as caught:
            check(path)
        assert "\n" not in str(caught.value)


def test_links_to_a_volume_and_odd_paths(tmp_path: Path) -> None:
    place = tmp_path / "sp ace?#%é"
    place.mkdir()
    volume = SqliteVolume(place / "volume.db")
    volume.mkdir(ROOT_NODE, b"d", 0o755, ME)
    (tmp_path / "link").symlink_to(place / "volume.db")
    volume.write_back()
    assert check(tmp_path / "link") == []
    volume.close()
    damage(place / "volume.db", "UPDATE inode SET nlink = 9 WHERE node = 2")
    assert len(check(tmp_path / "link")) == 1
