"""A damaged volume file that is opened all the same: one bad row is one bad entry, what is beside it is as before."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sqlite3
import threading
from pathlib import Path

import pytest
from for_each import for_each
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from profiles import examples
from test_sqlite_check import BELOW, DIRECTORY, EMPTY, FIFO, FILE, LINK, ME, damage, volume_file
from test_sqlite_repair import STATEMENTS, sound

from fusebackend.backends.sqlite.backend import SqliteBackend
from fusebackend.backends.sqlite.check import check, repair
from fusebackend.backends.sqlite.schema import LAST_NODE, VolumeFileError
from fusebackend.protocol import MAX_NODE, ROOT_NODE

__all__ = ["sound", "volume_file"]

pytestmark = [pytest.mark.filterwarnings("error"), pytest.mark.timeout(60)]


def glob(backend: SqliteBackend) -> list[str]:
    result = backend.glob("**/*")
    assert result.error is None and result.matches is not None
    return [info["path"] for info in result.matches]


def names(backend: SqliteBackend, path: str = "/") -> list[str]:
    result = backend.ls(path)
    assert result.error is None and result.entries is not None
    return [info["path"] for info in result.entries]


BAD_ENTRIES = [
    "UPDATE inode SET mode = 'odd' WHERE node = {node}",
    "UPDATE inode SET mode = -1 WHERE node = {node}",
    "UPDATE inode SET mode = 420 WHERE node = {node}",
    "UPDATE inode SET size = -5 WHERE node = {node}",
    "UPDATE inode SET size = x'00' WHERE node = {node}",
    "UPDATE inode SET nlink = -1 WHERE node = {node}",
    "UPDATE inode SET nlink = 0 WHERE node = {node}",
    "UPDATE inode SET uid = 1 << 40 WHERE node = {node}",
    "UPDATE inode SET mtime_ns = 'noon' WHERE node = {node}",
    "DELETE FROM inode WHERE node = {node}",
    "UPDATE inode SET node = -7 WHERE node = {node}; UPDATE dentry SET node = -7 WHERE node = {node}",
    "UPDATE inode SET node = 9223372036854775807 WHERE node = {node};"
    " UPDATE dentry SET node = 9223372036854775807 WHERE node = {node}",
    "UPDATE dentry SET node = 'odd' WHERE node = {node}",
    "UPDATE dentry SET node = x'07' WHERE node = {node}",
    "UPDATE dentry SET node = 1.5 WHERE node = {node}",
    "UPDATE dentry SET node = 1 WHERE node = {node}",
]


@for_each("script", BAD_ENTRIES)
def test_a_bad_row_is_one_bad_entry(
    volume_file: Path, tmp_path: Path, script: str, caplog: pytest.LogCaptureFixture
) -> None:
    volume_file = shutil.copy(volume_file, tmp_path / "copy.db")
    damage(volume_file, script.format(node=EMPTY))
    assert check(volume_file), "a check finds it as well"
    with SqliteBackend(volume_file) as backend:
        assert sorted(names(backend)) == ["/d/", "/fifo", "/hard", "/link"]
        assert backend.ls("/empty").error == "Path '/empty': Input/output error"
        assert backend.read("/d/file").error is None
        assert glob(backend) == ["/d/file", "/hard"]
        assert backend.write("/new", "text").error is None
        assert backend.delete("/d").error is None
        with pytest.raises(OSError, match="Input/output"):
            backend.volume.lookup(ROOT_NODE, b"empty")
    assert "is damaged" in caplog.text and "empty" in caplog.text
    assert len(caplog.records) <= 3, "told once, not each time"


@for_each("name", ["''", "'text'", "x''", "x'2e'", "x'2e2e'", "x'612f62'", "x'6100'", "zeroblob(300)"])
def test_a_bad_name_is_left_out(volume_file: Path, tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    volume_file = shutil.copy(volume_file, tmp_path / "copy.db")
    damage(volume_file, f"UPDATE dentry SET name = {name} WHERE node = {EMPTY}")
    with SqliteBackend(volume_file) as backend:
        assert names(backend) == ["/d/", "/fifo", "/hard", "/link"]
        assert [found["path"] for found in backend.grep("xxx").matches or ()] == ["/d/file", "/hard"]


def test_a_page_of_bad_entries_does_not_end_a_listing(volume_file: Path) -> None:
    for number in range(50):
        damage(volume_file, f"INSERT INTO dentry VALUES (1, CAST('bad{number}' AS BLOB), {900 + number})")
    with SqliteBackend(volume_file) as backend:
        found, after = [], b""
        while page := backend.volume.readdir(ROOT_NODE, after, 7):
            found += [name for name, _ in page]
            after = page[-1][0]
        assert found == [b"d", b"empty", b"fifo", b"hard", b"link"]


CYCLES = [
    f"INSERT INTO dentry VALUES ({BELOW}, CAST('loop' AS BLOB), {DIRECTORY})",
    f"INSERT INTO dentry VALUES ({BELOW}, CAST('loop' AS BLOB), {BELOW})",
    f"INSERT INTO dentry VALUES ({BELOW}, CAST('loop' AS BLOB), {ROOT_NODE})",
    f"INSERT INTO dentry VALUES ({ROOT_NODE}, CAST('loop' AS BLOB), {ROOT_NODE})",
    f"INSERT INTO dentry VALUES ({BELOW}, CAST('loop' AS BLOB), {DIRECTORY});"
    f"UPDATE inode SET parent = {BELOW} WHERE node = {DIRECTORY}",
    f"UPDATE dentry SET parent = {EMPTY} WHERE node = {EMPTY};"
    f"UPDATE dentry SET parent = {EMPTY} WHERE node = {FILE} AND parent = {DIRECTORY}",
]


@for_each("script", CYCLES)
def test_a_directory_below_itself_is_gone_into_once(volume_file: Path, tmp_path: Path, script: str) -> None:
    """`glob` and `delete` grew to the limit of memory, and a search by the index went round for ever."""
    volume_file = shutil.copy(volume_file, tmp_path / "copy.db")
    damage(volume_file, script)
    assert check(volume_file), "a check finds it as well"
    with SqliteBackend(volume_file) as backend:
        found = glob(backend)
        assert "/hard" in found and all("loop" not in path for path in found)
        assert "/hard" in [match["path"] for match in backend.grep("xxx").matches or ()]
        assert "/hard" in [match["path"] for match in backend.grep("xx").matches or ()], "the index is of no use for it"
        backend.move("/empty", "/d/below/empty")
        backend.move("/d/below", "/fifo/below")
        for path in ("/d", "/empty"):
            backend.delete(path)
        assert backend.read("/hard").error is None


def test_two_names_of_a_directory_in_each_of_many_are_no_tree_of_2_to_the_n(tmp_path: Path) -> None:
    path = tmp_path / "volume.db"
    with SqliteBackend(path) as backend:
        backend.write("/" + "/".join("d" * 60) + "/file", "text")
    damage(path, "INSERT INTO dentry SELECT parent, CAST('e' AS BLOB), node FROM dentry WHERE name = CAST('d' AS BLOB)")
    with SqliteBackend(path) as backend:
        assert glob(backend) == ["/" + "/".join("d" * 60) + "/file"]
        assert backend.delete("/d").error == "Error deleting '/d': Input/output error"
    assert repair(path).left == []


@for_each("value", ["9223372036854775807", "-9223372036854775808", "'odd'", "x'00'", "NULL", "1.5"])
@for_each("what", ["UPDATE meta SET value = {}", "UPDATE chunk SET id = {} WHERE node = 5"])
def test_numbers_at_the_limits_leave_a_volume_usable(volume_file: Path, tmp_path: Path, what: str, value: str) -> None:
    volume_file = shutil.copy(volume_file, tmp_path / "copy.db")
    with contextlib.suppress(sqlite3.IntegrityError):  # what SQLite does not keep there can't be damage
        damage(volume_file, what.format(value))
    for turn in range(2):
        with SqliteBackend(volume_file) as backend:
            assert backend.write(f"/new{turn}", "text" * 50_000).error is None
    with SqliteBackend(volume_file) as backend:
        for turn in range(2):
            assert backend.download_files([f"/new{turn}"])[0].content == b"text" * 50_000


@pytest.mark.parametrize("number", [LAST_NODE, LAST_NODE + 1, MAX_NODE])
def test_an_inode_with_the_last_number_leaves_numbers_for_others(volume_file: Path, number: int) -> None:
    for table in ("inode", "dentry"):
        damage(volume_file, f"UPDATE {table} SET node = {number} WHERE node = {FIFO}")
    with SqliteBackend(volume_file) as backend:
        assert "/fifo" in names(backend)
        made = [backend.volume.mkdir(ROOT_NODE, b"%d" % n, 0o755, ME).node for n in range(10)]
        assert len(set(made)) == 10 and max(made) < LAST_NODE
    with SqliteBackend(volume_file) as backend:
        assert len(names(backend)) == 15


@for_each(
    "script",
    [
        "UPDATE inode SET mode = 33188 WHERE node = 1",
        "UPDATE inode SET mode = 'odd' WHERE node = 1",
        "UPDATE inode SET parent = 2 WHERE node = 1",
        "UPDATE inode SET nlink = 0 WHERE node = 1",
        "DELETE FROM inode WHERE node = 1",
    ],
)
def test_a_volume_without_a_root_says_so_at_once(volume_file: Path, tmp_path: Path, script: str) -> None:
    volume_file = shutil.copy(volume_file, tmp_path / "copy.db")
    damage(volume_file, script)
    with pytest.raises(VolumeFileError, match=r"is damaged: it.*check --repair .* mends it$"):
        SqliteBackend(volume_file)


def test_a_name_with_a_link_count_of_0_is_kept_for_the_repair(volume_file: Path) -> None:
    damage(volume_file, f"UPDATE inode SET nlink = 0 WHERE node IN ({DIRECTORY}, {FILE})")
    SqliteBackend(volume_file).close()
    assert "inode 4 has a link count of 0 and 2 names" in check(volume_file)


def test_a_directory_with_a_damaged_entry_is_not_removed(volume_file: Path) -> None:
    damage(volume_file, f"INSERT INTO dentry VALUES ({EMPTY}, CAST('bad' AS BLOB), 99)")
    with SqliteBackend(volume_file) as backend:
        assert backend.delete("/empty").error == "Error deleting '/empty': Input/output error"
        assert "/empty/" in names(backend)


def test_odd_bytes_are_errors_of_their_file(volume_file: Path) -> None:
    damage(volume_file, f"UPDATE chunk SET data = 'text' WHERE node = {LINK}")
    damage(volume_file, f"UPDATE chunk SET data = zeroblob(70000) WHERE node = {FILE} AND idx = 0")
    damage(volume_file, "UPDATE xattr SET value = 'text'")
    with SqliteBackend(volume_file) as backend:
        assert backend.read("/link").error == "File '/link': Input/output error"
        assert backend.read("/hard").error == "File '/hard': Input/output error"
        assert list(backend.volume.listxattr(FILE)) == []
        assert backend.write("/d/new", "text").error is None


@settings(max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck))
@given(statements=st.lists(STATEMENTS, min_size=1, max_size=8))
def test_any_damage_is_survived(sound: Path, tmp_path: Path, statements: list[str]) -> None:
    """Whatever is in the rows: verbs answer, nothing is raised but OSError, and the volume closes."""
    path = tmp_path / "volume.db"
    shutil.copyfile(sound, path)
    damage(path, ";".join(statements))
    logging.getLogger("fusebackend").setLevel(logging.CRITICAL)
    try:
        use(path)
    finally:
        logging.getLogger("fusebackend").setLevel(logging.NOTSET)


def use(path: Path) -> None:
    try:
        backend = SqliteBackend(path)
    except VolumeFileError as error:
        assert "\n" not in str(error)
        return
    try:
        backend.write("/new", "text")
        for found in (backend.ls("/"), backend.glob("**/*"), backend.grep("words"), backend.grep("wo")):
            assert found is not None
        for info in backend.glob("**/*").matches or ():
            backend.read(info["path"])
            backend.move(info["path"], info["path"] + ".moved")
        for info in backend.ls("/").entries or ():
            backend.move(info["path"].rstrip("/"), "/d/below/moved")
            backend.delete(info["path"].rstrip("/"))
    finally:
        try:
            backend.close()
        except OSError as error:
            assert error.errno is not None
    assert threading.active_count() < 20
    assert os.path.exists(path)
