"""Builds, programs, databases and large files on a mount of each volume, and all of them again after a remount."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import trees
from kinds import KINDS, SOURCES, Kind, Work
from mounts import Serve
from profiles import amount

# --------------------------------------------------------------------------------------------------------------
# Building and running
# --------------------------------------------------------------------------------------------------------------


MAKEFILE = """\
CFLAGS = -O1 -Wall
OBJECTS = $(patsubst %.c,%.o,$(wildcard *.c))

program: libparts.a main.o
\t$(CC) -o $@ main.o -L. -lparts

libparts.a: $(filter-out main.o,$(OBJECTS))
\tar rcs $@ $^

%.o: %.c parts.h
\t$(CC) $(CFLAGS) -c -o $@ $<
"""


def test_make_builds_a_c_project(work: Work) -> None:
    work.needs("persistent_modes")
    parts = range(12)
    trees.tool("gcc")
    (work.path / "Makefile").write_text(MAKEFILE)
    (work.path / "parts.h").write_text("".join(f"int part{number}(void);\n" for number in parts))
    for number in parts:
        (work.path / f"part{number}.c").write_text(
            f'#include "parts.h"\nint part{number}(void) {{ return {number}; }}\n'
        )
    total = " + ".join(f"part{number}()" for number in parts)
    (work.path / "main.c").write_text(
        f'#include <stdio.h>\n#include "parts.h"\nint main(void) {{ printf("%d\\n", {total}); return 0; }}\n'
    )
    assert trees.run("make", "-j2", cwd=work.path).count(" -c -o ") == 13
    assert trees.run(work.path / "program") == "66\n"
    trees.run("make", "-q", cwd=work.path)
    (work.path / "part3.c").write_text('#include "parts.h"\nint part3(void) { return 1003; }\n')
    assert trees.run("make", "-j2", cwd=work.path).count(" -c -o ") == 1
    assert trees.run(work.path / "program") == "1066\n"
    trees.run("strip", "program", cwd=work.path)
    assert trees.run(work.path / "program") == "1066\n"


# --------------------------------------------------------------------------------------------------------------
# SQLite
# --------------------------------------------------------------------------------------------------------------

WRITER = """
import sqlite3, sys
path, who, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
db = sqlite3.connect(path, timeout=60, isolation_level=None)
db.execute("PRAGMA synchronous = FULL")
for number in range(count):
    db.execute("BEGIN IMMEDIATE")
    db.execute("INSERT INTO log VALUES (?, ?, ?)", (who, number, "x" * (number % 900)))
    db.execute("UPDATE total SET value = value + 1")
    db.execute("COMMIT")
"""


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_two_writers_on_one_sqlite_database(server: tuple[Path, Kind], journal: str) -> None:
    path, _ = server
    rows = 30
    database = path / f"{journal}.db"
    with sqlite3.connect(database) as db:
        assert db.execute(f"PRAGMA journal_mode = {journal}").fetchone() == (journal,)
        db.execute("CREATE TABLE log (who TEXT, number INTEGER, padding TEXT, PRIMARY KEY (who, number))")
        db.execute("CREATE TABLE total (value INTEGER)")
        db.execute("INSERT INTO total VALUES (0)")
    db.close()
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(database), who, str(rows)], stderr=subprocess.PIPE)
        for who in ("first", "second")
    ]
    for writer in writers:
        _, errors = writer.communicate(timeout=trees.RUN_LIMIT_S)
        assert writer.returncode == 0, errors.decode()
    check = "PRAGMA integrity_check; SELECT count(*), count(DISTINCT who) FROM log; SELECT value FROM total;"
    assert trees.run("sqlite3", database, check) == f"ok\n{2 * rows}|2\n{2 * rows}\n"


# --------------------------------------------------------------------------------------------------------------
# Large files, and the next day
# --------------------------------------------------------------------------------------------------------------


LARGE_MIB = amount("FUSEBACKEND_LARGE_FILE_MIB", day=160, night=1024)
BOUND_MIB = 150
"""What a server may use at most, whatever the size of its files. By day a file is larger than that, too."""


@pytest.mark.parametrize("name", ["sqlite", "dir"])
def test_a_large_file_in_bounded_memory(serve: Serve, tmp_path: Path, name: str) -> None:
    """`memory:` is left out, since it holds its files in memory."""
    (tmp_path / "files").mkdir()
    server = serve(KINDS[name].url.format(tmp=tmp_path))
    block = os.urandom(1 << 20)
    digest = hashlib.sha256()
    with (server.path / "large").open("wb", buffering=0) as file:
        for number in range(LARGE_MIB):
            part = number.to_bytes(8, "big") + block[8:]
            digest.update(part)
            assert file.write(part) == len(part)
        os.fsync(file.fileno())
    _drop_pages(server.path / "large")
    trees.run("cp", server.path / "large", server.path / "copy")
    _drop_pages(server.path / "copy")
    assert trees.sha256(server.path / "copy") == digest.hexdigest()
    assert server.memory_kib("VmHWM") < BOUND_MIB * 1024


def _drop_pages(path: Path) -> None:
    """Drop the kernel's cached pages of one file, so that it is read from the server."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.features.durable])
def test_all_is_there_after_a_remount(serve: Serve, tmp_path: Path, sources: Path, name: str) -> None:
    kind = KINDS[name]
    (tmp_path / "files").mkdir()
    url = kind.url.format(tmp=tmp_path)
    first = serve(url)
    work = Work(first.path, kind.features)
    work.zoo(first.path / "zoo")
    trees.git(first.path, "clone", "--quiet", sources, "clone")
    with sqlite3.connect(first.path / "data.db") as db:
        db.execute("CREATE TABLE t (x)")
        db.executemany("INSERT INTO t VALUES (?)", [(number,) for number in range(1000)])
    db.close()
    before = work.snapshot(first.path)
    assert len(before) > SOURCES
    first.stop()
    assert os.listdir(first.path) == []

    second = serve(url, at=first.path.name)
    assert work.snapshot(second.path) == before
    trees.git(second.path / "clone", "fsck", "--strict")
    assert trees.git(second.path / "clone", "status", "--porcelain") == ""
    query = "PRAGMA integrity_check; SELECT sum(x) FROM t"
    assert trees.run("sqlite3", second.path / "data.db", query) == "ok\n499500\n"
