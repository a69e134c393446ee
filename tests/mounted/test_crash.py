"""The server is killed in the middle of writes; all data of completed fsyncs is there, and the volume is sound.

SIGKILL ends the process and not the machine: the kernel's dirty pages of the volume file survive. The tests of the
volume check that the file is synced to disk at the right moments.

    FUSEBACKEND_CRASH_ROUNDS=500 pytest tests/mounted/test_crash.py      kills it so often
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import mounts
import trees
from mounts import Serve
from profiles import amount

from fusebackend.backends.sqlite import check as sqlite_check

ROUNDS = amount("FUSEBACKEND_CRASH_ROUNDS", day=8, night=200)
WRITERS = 3
KEPT = 3
"""Files of each round and writer that stay until the end; the others go once they have been compared."""

WRITER = Path(__file__).with_name("crash_writer.py")


class Book:
    """The completed fsyncs of one writer, from its journal."""

    def __init__(self, directory: Path, journal: Path) -> None:
        self.directory = directory
        self.journal = journal
        self.whole: dict[str, str] = {}
        self.target: set[str | None] = {None}  # each of these contents is right; None: there is no file yet
        self.grown = (0, hashlib.sha256().hexdigest())
        self._read = 0

    def unread_lines(self) -> int:
        if not self.journal.exists():
            return 0
        with self.journal.open("rb") as file:
            file.seek(self._read)
            return file.read().count(b"\n")

    def update(self) -> int:
        """Read the new lines of the journal; return the number of completed fsyncs in them."""
        promises = 0
        with self.journal.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    break  # the writer was stopped in the middle of a line, before a further fsync
                self._read += len(line)
                facts = json.loads(line)
                if "whole" in facts:
                    self.whole[facts["whole"]] = facts["sha256"]
                elif "replacing" in facts:
                    self.target.add(facts["sha256"])
                elif "replaced" in facts:
                    self.target = {facts["sha256"]}
                else:
                    self.grown = (facts["bytes"], facts["sha256"])
                promises += "replacing" not in facts
        return promises

    def compare(self, mount: Path) -> None:
        """Compare every completed fsync with the mount's present contents."""
        home = mount / self.directory
        for name, digest in self.whole.items():
            assert trees.sha256(home / name) == digest, f"{name} is not what its fsync returned for"
        now = trees.sha256(home / "target") if (home / "target").exists() else None
        assert now in self.target, "a replaced file is neither the old nor the new one"
        self.target = {now}  # the rename is there or not: from now on that must not change
        length, digest = self.grown
        with (home / "log").open("rb") as file:
            assert hashlib.sha256(file.read(length)).hexdigest() == digest, "a log lost what was appended and synced"

    def thin_out(self, mount: Path) -> None:
        """Remove most of the compared files, so that the volume stays small and removal is tested too."""
        for name in list(self.whole)[:-KEPT]:
            if int(name.split("-")[1]) > KEPT * 3:
                os.unlink(mount / self.directory / name)
                del self.whole[name]


def test_fsynced_files_survive_a_killed_server(serve: Serve, tmp_path: Path) -> None:
    database = tmp_path / "volume.db"
    chance = random.Random(20)
    books = [Book(Path(f"writer{number}"), tmp_path / f"journal{number}") for number in range(WRITERS)]
    server = serve(f"sqlite:{database}", at="mnt")
    for book in books:
        (server.path / book.directory).mkdir()
    mounts.sync(server.path)
    promises = 0
    for round_number in range(ROUNDS):
        writers = [_start(book, server.path, round_number * WRITERS + number) for number, book in enumerate(books)]
        _wait_for_notes(books, chance.randint(1, 60), writers)
        server.kill()
        for writer in writers:
            _, errors = writer.communicate(timeout=60)
            assert writer.returncode == 0, errors.decode()
        noted = sum(book.update() for book in books)
        assert noted, "nobody was promised anything in this round"
        promises += noted
        assert _integrity(database) == "ok"
        assert sqlite_check.check(database) == []
        server = serve(f"sqlite:{database}", at="mnt")
        for book in books:
            book.compare(server.path)
            book.thin_out(server.path)
    assert promises > 5 * ROUNDS
    server.stop()
    assert sqlite_check.check(database) == []


def test_what_was_not_fsynced_is_a_prefix_of_what_was_written(serve: Serve, tmp_path: Path) -> None:
    """Without fsync the last files may be missing; no file may be there without those made before it."""
    database = tmp_path / "volume.db"
    for round_number in range(3):
        server = serve(f"sqlite:{database}", at="mnt")
        home = server.path / f"round{round_number}"
        home.mkdir()
        deadline = time.monotonic() + 0.4 + round_number * 0.4
        made = 0
        while time.monotonic() < deadline:
            (home / f"{made:06}").write_bytes(b"%06d" % made * 2000)
            made += 1
        server.kill()
        assert sqlite_check.check(database) == []
        server = serve(f"sqlite:{database}", at="mnt")
        names = sorted(os.listdir(home)) if home.exists() else []
        assert names == [f"{number:06}" for number in range(len(names))]
        for number, name in enumerate(names[:-1]):
            assert (home / name).read_bytes() == b"%06d" % number * 2000
        server.stop()


def _start(book: Book, mount: Path, seed: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-S", str(WRITER), str(mount / book.directory), str(book.journal), str(seed)],
        stderr=subprocess.PIPE,
    )


def _wait_for_notes(books: list[Book], lines: int, writers: list[subprocess.Popen[bytes]]) -> None:
    """Wait until every writer has added a line in this round, and all together this many."""
    deadline = time.monotonic() + 60
    while True:
        noted = [book.unread_lines() for book in books]
        if all(noted) and sum(noted) >= lines:
            return
        assert time.monotonic() < deadline, "the writers are stuck"
        assert all(writer.poll() is None for writer in writers), [writer.communicate() for writer in writers]
        time.sleep(0.002)


def _integrity(database: Path) -> str:
    with contextlib.closing(sqlite3.connect(database)) as connection:
        return "\n".join(row[0] for row in connection.execute("PRAGMA integrity_check"))
