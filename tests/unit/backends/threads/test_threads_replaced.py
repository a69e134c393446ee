"""A checkpoint database that is replaced at its path while it is shown: the new one is shown, or `trouble` says why
not."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import graphs
import pytest
import threadcases
from agentface import names, text
from eventually import eventually
from graphs import thread
from nodes import node_at
from replacing import REPLACED, databases
from test_threads_follow import Listener

from fusebackend.backends import ThreadsBackend
from fusebackend.protocol import ROOT_NODE
from fusebackend.testing.each import each
from fusebackend.testing.posix.case import fails


def made(path: Path, content: str, *threads: str) -> Path:
    """A database of threads, each with the file /notes.txt."""
    with graphs.sqlite_saver(path) as saver:
        for name in threads:
            agent = graphs.deep_agent(saver, [graphs.say("done")])
            agent.invoke(
                graphs.user(f"hello {content}") | {"files": {"/notes.txt": threadcases.record(content)}}, thread(name)
            )
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    return path


def notes(backend: ThreadsBackend, name: str) -> str | None:
    return text(backend, f"/{name}/head/notes.txt")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    directory = tmp_path_factory.mktemp("made")
    first = made(directory / "threads.db", "old", "both", "old")
    return first, made(directory / "new.db", "new", "both", "new")


@pytest.fixture
def path(pair: tuple[Path, Path], tmp_path: Path) -> Path:
    return Path(shutil.copy(pair[0], tmp_path))


@pytest.fixture
def new(pair: tuple[Path, Path], tmp_path: Path) -> Path:
    return Path(shutil.copy(pair[1], tmp_path))


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_the_new_threads_are_shown_and_caches_told(tmp_path: Path, path: Path, new: Path, mode: str) -> None:
    for case in each(REPLACED):
        with case as replace:
            where, other = databases(path, new, tmp_path / replace.__name__, mode)
            with ThreadsBackend.from_sqlite(str(where)) as backend:
                assert (names(backend), notes(backend, "both")) == (["both", "old"], "old")
                before = text(backend, "/both/transcript.md")
                listener = Listener(backend)
                replace(where, other)
                eventually(lambda listener=listener: any("/new/" in change.path for change in listener.changes))
                listener.end()
                assert (names(backend), notes(backend, "both"), notes(backend, "old")) == (["both", "new"], "new", None)
                assert text(backend, "/both/transcript.md") != before
                assert backend.volume.trouble is None


def test_a_copy_with_other_contents_in_the_same_rows_is_another_file(path: Path, new: Path) -> None:
    """As one that was freed of secrets: nothing but the bytes tells its checkpoints from those before."""
    shutil.copyfile(path, new)
    with contextlib.closing(sqlite3.connect(new)) as connection:
        for table, column in (("checkpoints", "checkpoint"), ("writes", "value")):
            connection.execute(
                f"UPDATE {table} SET {column} = CAST(replace(CAST({column} AS TEXT), 'old', 'NEW') AS BLOB) "
                f"WHERE instr({column}, 'old')"
            )
        connection.commit()
    with ThreadsBackend.from_sqlite(str(path)) as backend:
        assert notes(backend, "both") == "old"
        os.replace(new, path)
        assert notes(backend, "both") == "NEW"


def test_what_is_gone_is_shown_on_and_says_so(path: Path, new: Path) -> None:
    with ThreadsBackend.from_sqlite(str(path), write="head") as backend:
        path.unlink()
        assert (names(backend), notes(backend, "both")) == (["both", "old"], "old")
        trouble = backend.volume.trouble
        assert trouble is not None and f"its file {path} was moved or deleted" in trouble[1]
        assert "was moved or deleted" in (backend.write("/both/head/more.txt", "lost").error or ""), "lost unseen"
        os.replace(new, path)
        assert (names(backend), notes(backend, "both")) == (["both", "new"], "new")
        assert backend.volume.trouble is None
        assert backend.write("/both/head/more.txt", "kept").error is None
    with ThreadsBackend.from_sqlite(str(path)) as backend:
        assert text(backend, "/both/head/more.txt") == "kept"


def test_what_is_no_checkpoint_database_is_an_error_until_one_is_there(path: Path, new: Path) -> None:
    with ThreadsBackend.from_sqlite(str(path)) as backend:
        for case in each({"a text": b"no database" * 1000, "an empty file": b""}):
            with case as content:
                (path.parent / "junk").write_bytes(content)
                os.replace(path.parent / "junk", path)
                assert backend.ls("/").error
                with fails(errno.EIO, match="was replaced, and can't be used"):
                    backend.volume.lookup(ROOT_NODE, b"both")
                assert backend.volume.trouble is not None
        os.replace(new, path)
        assert (names(backend), backend.volume.trouble) == (["both", "new"], None)


def test_a_write_to_a_file_that_is_replaced_meanwhile_is_an_error(path: Path, new: Path) -> None:
    with ThreadsBackend.from_sqlite(str(path), write="head") as backend:
        database = backend.volume._database  # type: ignore[attr-defined]
        with pytest.raises(OSError, match="moved or deleted"), database.exclusive() as append:
            os.replace(new, path)
            assert callable(append)
        assert backend.write("/both/head/more.txt", "kept").error is None
        assert notes(backend, "both") == "new"


def test_a_saver_goes_on_with_the_file_that_it_has(path: Path, new: Path) -> None:
    with graphs.sqlite_saver(path) as saver, ThreadsBackend.from_saver(saver) as backend:
        assert names(backend) == ["both", "old"]
        os.replace(new, path)
        assert names(backend) == ["both", "old"]
        assert backend.volume.trouble is not None


@pytest.fixture
def opened(path: Path) -> Iterator[ThreadsBackend]:
    with ThreadsBackend.from_sqlite(str(path)) as backend:
        yield backend


def test_an_open_file_keeps_what_it_has_and_its_directory_is_another(
    opened: ThreadsBackend, path: Path, new: Path
) -> None:
    held = opened.volume.open(node_at(opened.volume, "/both/head/notes.txt"), os.O_RDONLY)
    assert held is not None
    os.replace(new, path)
    opened.volume.follow()
    assert opened.volume.read(held.node, 0, 10) == b"old"
    opened.volume.release(held.node, os.O_RDONLY)
    assert notes(opened, "both") == "new"
