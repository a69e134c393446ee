"""`fusebackend check`: a line for each problem, and the exit status of fsck."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from for_each import for_each
from programs import command
from raising import raising
from test_sqlite_check import FILE, damage, volume_file

from fusebackend.backends.sqlite import check as sqlite_check
from fusebackend.backends.sqlite.backend import SqliteVolume
from fusebackend.backends.sqlite.check import check as sound
from fusebackend.cli.main import main
from fusebackend.protocol import ROOT_NODE, AttrChanges, Caller

__all__ = ["volume_file"]

CALLER = Caller(os.geteuid(), os.getegid(), os.getpid())


def check(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["check", *arguments])


def test_a_sound_volume(volume_file: Path) -> None:
    for options in ([], ["--repair"]):
        done = check(f"sqlite:{volume_file}", *options)
        assert (done.exit_code, done.stdout, done.stderr) == (0, "the volume is sound\n", "")


def test_problems_are_told_mended_and_gone(volume_file: Path) -> None:
    url = f"sqlite:{volume_file}"
    damage(volume_file, f"UPDATE inode SET nlink = 7 WHERE node = {FILE}; DELETE FROM dentry WHERE node = 5")
    lines = ["inode 4 has a link count of 7 and 2 names", "inode 5 can't be reached from the root"]
    for _ in range(2):
        found = check(url)
        assert found.exit_code == 4
        assert all(line in found.stdout for line in lines)
        assert "--repair" in found.stderr
    mended = check(url, "--repair")
    assert mended.exit_code == 1
    assert all(line in mended.stdout for line in lines)
    assert mended.stderr == "fusebackend: all of it has been mended\nfusebackend: put into /lost+found: 1\n"
    assert check(url).exit_code == 0


def test_a_file_that_cannot_be_opened(volume_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where its newest changes are in a WAL, in a directory that can't be written to."""
    monkeypatch.setattr(sqlite_check, "open_file", raising(sqlite3.OperationalError("unable to open database file")))
    done = check(str(volume_file))
    why = f"Error: '{volume_file}' can't be opened as a volume: unable to open database file\n"
    assert (done.exit_code, done.stdout, done.stderr) == (8, "", why)


def test_what_cannot_be_mended_is_left(volume_file: Path) -> None:
    with volume_file.open("r+b") as file:
        file.seek(16384)
        file.write(b"\xa5" * 16384)
    done = check(f"sqlite:{volume_file}", "--repair")
    assert done.exit_code == 4
    assert "still wrong" in done.stderr


def test_for_programs(volume_file: Path) -> None:
    damage(volume_file, f"UPDATE inode SET nlink = 7 WHERE node = {FILE}")
    done = check(f"sqlite:{volume_file}", "--json")
    line = "inode 4 has a link count of 7 and 2 names"
    url = f"sqlite:{volume_file}"
    assert json.loads(done.stdout) == {"url": url, "problems": [line], "left": [line], "rescued": 0, "status": 4,
                                       "bytes": None}  # fmt: skip
    done = check(url, "--json", "--repair")
    assert json.loads(done.stdout) == {"url": url, "problems": [line], "left": [], "rescued": 0, "status": 1,
                                       "bytes": None}  # fmt: skip
    assert (done.exit_code, done.stderr) == (1, "")


def test_a_volume_in_use_is_checked_and_not_mended(volume_file: Path) -> None:
    url = f"sqlite:{volume_file}"
    damage(volume_file, f"UPDATE inode SET nlink = 7 WHERE node = {FILE}")
    with contextlib.closing(SqliteVolume(volume_file)):
        assert check(url).exit_code == 4
        refused = check(url, "--repair")
        assert (refused.exit_code, refused.stdout) == (8, "")
        assert "is in use by another route, or another backend of this program" in refused.stderr


def test_the_path_of_a_file_will_do(volume_file: Path) -> None:
    assert (check(str(volume_file)).exit_code, check(str(volume_file)).stdout) == (0, "the volume is sound\n")


@for_each(
    ("url", "why"),
    [
        ("memory:", "'memory:': only the file of a 'sqlite:' volume can be checked"),
        ("dir:/", "'dir:/': only the file of a 'sqlite:' volume can be checked"),
        ("nonsense:", "unknown scheme 'nonsense:'"),
        ("/a/file", "there is no file '/a/file'; write the path of a volume's file, or sqlite:PATH"),
        ("/dev", "'/dev' is a directory: only the file of a 'sqlite:' volume can be checked"),
        ("sqlite:/missing/file", "cannot open '/missing/file': No such file or directory"),
        ("sqlite:/dev/null", "'/dev/null' is not a regular file"),
        ("sqlite:", "is incomplete"),
    ],
)
def test_what_cannot_be_looked_at(url: str, why: str) -> None:
    for options in ([], ["--repair"]):
        done = check(url, *options)
        assert done.exit_code == 8
        assert done.stdout == ""
        assert done.stderr.startswith("Error: ") and why in done.stderr
        assert done.stderr.count("\n") == 1


def test_compact_gives_room_back_and_keeps_what_is_needed(volume_file: Path) -> None:
    volume = SqliteVolume(volume_file)
    node = volume.create(ROOT_NODE, b"large", 0o600, os.O_RDWR, CALLER).node
    data = os.urandom(4 << 20)
    for offset in (0, 4 << 20):
        volume.write(node, offset, data)
    volume.release(node, os.O_RDWR)
    volume.take_snapshot("kept")
    volume.setattr(node, AttrChanges(size=4 << 20))
    volume.delete_snapshot("kept")
    assert "is in use by another" in check(str(volume_file), "--compact").stderr
    volume.close()
    done = check(str(volume_file), "--compact", "--json")
    before, after = json.loads(done.stdout)["bytes"]
    assert done.exit_code == 0
    assert (before - after > 3 << 20, after) == (True, volume_file.stat().st_size)
    assert not any(volume_file.with_name(volume_file.name + end).exists() for end in ("-wal", "-log"))
    assert check(str(volume_file)).stdout == "the volume is sound\n"
    assert "bytes, and has" in check(str(volume_file), "--compact").stdout
    again = SqliteVolume(volume_file)
    assert again.read(node, 0, 5 << 20) == data
    again.close()


def test_compact_needs_a_sound_volume(volume_file: Path) -> None:
    damage(volume_file, f"UPDATE inode SET nlink = 7 WHERE node = {FILE}")
    size = volume_file.stat().st_size
    done = check(str(volume_file), "--compact")
    assert (done.exit_code, volume_file.stat().st_size) == (4, size)
    assert "--compact needs a sound volume" in done.stderr
    assert check(str(volume_file), "--compact", "--repair").exit_code == 1


def test_a_kill_while_compacting_harms_nothing(volume_file: Path) -> None:
    volume = SqliteVolume(volume_file)
    nodes = {}
    for number in range(40):
        node = volume.create(ROOT_NODE, b"f%d" % number, 0o600, os.O_RDWR, CALLER).node
        nodes[node] = os.urandom(300_000)
        volume.write(node, 0, nodes[node])
        volume.release(node, os.O_RDWR)
    volume.sync()
    for node in list(nodes)[::2]:
        volume.unlink(ROOT_NODE, b"f%d" % list(nodes).index(node))
    kept = dict(list(nodes.items())[1::2])
    volume.close()
    killed = 0
    for count in range(1, 400, 40):
        killed += command("-c", KILLED, volume_file, count).returncode == 9
        assert sound(volume_file) == []
    assert killed > 1
    again = SqliteVolume(volume_file)
    assert {node: again.read(node, 0, 1 << 20) for node in kept} == kept
    again.close()


KILLED = """
import os, sys, threading, time
from fusebackend.backends.sqlite.check import compact
path, left = sys.argv[1], int(sys.argv[2])
def watch():  # ends the process once the WAL has so many pages
    while True:
        if os.path.exists(path + "-wal") and os.stat(path + "-wal").st_size > left * 16400:
            os._exit(9)
threading.Thread(target=watch, daemon=True).start()
sys.setswitchinterval(1e-6)
compact(path)
"""
