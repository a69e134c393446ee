"""A store in SQLite that is replaced at its path while it is shown: the new one is, and no write is lost in the old."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from agentface import text
from eventually import eventually
from langgraph.store.sqlite import SqliteStore
from nodes import names, put
from replacing import REPLACED, databases

from fusebackend.backends import ForeignVolume, StoreBackend
from fusebackend.protocol import ROOT_NODE
from fusebackend.testing.each import each
from fusebackend.testing.posix.case import refused
from fusebackend.urls import open_backend


def made(path: Path, **files: str) -> Path:
    with SqliteStore.from_conn_string(str(path)) as store, StoreBackend(store, namespace="m") as backend:
        for name, text in files.items():
            assert backend.write(f"/{name}", text).error is None
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    return path


@contextlib.contextmanager
def opened(path: Path) -> Iterator[StoreBackend]:
    backend = open_backend(f"store+sqlite:{path}?ns=m")
    assert isinstance(backend, StoreBackend)
    with backend:
        yield backend


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return made(tmp_path / "store.db", both="old", old="o")


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return made(tmp_path / "new.db", both="new", new="n")


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_the_new_items_are_shown_and_written_to(tmp_path: Path, path: Path, new: Path, mode: str) -> None:
    for case in each(REPLACED):
        with case as replace:
            where, other = databases(path, new, tmp_path / replace.__name__, mode)
            with opened(where) as backend:
                volume = ForeignVolume(backend)
                assert (text(backend, "/both"), names(volume)) == ("old", [b"both", b"old"])
                replace(where, other)
                assert (text(backend, "/both"), text(backend, "/old")) == ("new", None)
                eventually(lambda volume=volume: names(volume) == [b"both", b"new"])
                put(volume, b"more", b"kept")
                volume.sync()
                assert volume.trouble is None
                volume.close()
            with opened(where) as backend:
                assert [text(backend, name) for name in ("/both", "/new", "/more")] == ["new", "n", "kept"]


def test_nothing_is_written_to_a_file_that_is_gone(path: Path, new: Path) -> None:
    with opened(path) as backend:
        volume = ForeignVolume(backend)
        path.unlink()
        assert text(backend, "/both") == "old", "what is open can still be read"
        assert f"its file {path} was moved or deleted" in (backend.write("/more", "lost").error or "")
        with pytest.raises(OSError, match=r".") as caught:
            put(volume, b"more", b"kept")
        assert (caught.value.errno, volume.unstored) == (errno.EIO, 1)
        assert volume.trouble is not None and f"its file {path} was moved or deleted" in volume.trouble[1]
        os.replace(new, path)
        volume.sync()
        assert (volume.trouble, volume.unstored) == (None, 0)
        volume.close()
    with opened(path) as backend:
        assert (text(backend, "/both"), text(backend, "/more")) == ("new", "kept")


def test_a_file_that_was_changed_here_is_a_conflict_with_that_of_the_new_one(path: Path, new: Path) -> None:
    with opened(path) as backend:
        volume = ForeignVolume(backend)
        node = volume.lookup(ROOT_NODE, b"both").node
        volume.open(node, os.O_WRONLY)
        volume.write(node, 0, b"our")
        os.replace(new, path)
        refused(errno.ESTALE, volume.flush, node)
        volume.release(node, os.O_WRONLY)
        assert text(backend, "/both") == "new"
        volume.close()


def test_what_is_no_store_is_an_error_and_nothing_is_made_in_it(path: Path, new: Path) -> None:
    with opened(path) as backend:
        for case in each({"an empty file": b"", "a text": b"no database" * 1000}):
            with case as content:
                (path.parent / "junk").write_bytes(content)
                os.replace(path.parent / "junk", path)
                assert backend.ls("/").error
                assert backend.write("/more", "lost").error
                assert path.read_bytes() == content
                assert backend.trouble is not None and "was replaced, and can't be used" in backend.trouble[1]
        os.replace(new, path)
        assert (text(backend, "/both"), backend.trouble) == ("new", None)


def test_the_namespaces_of_the_new_store_are_shown(path: Path, new: Path) -> None:
    with contextlib.closing(open_backend(f"store+sqlite:{path}?tree=1")) as tree:
        volume = ForeignVolume(tree)
        assert text(tree, "/m/both") == "old"
        os.replace(new, path)
        assert text(tree, "/m/both") == "new"
        path.unlink()
        assert volume.trouble is not None
        volume.close()


def test_a_store_goes_on_with_the_file_that_it_has_and_nothing_is_written_there(path: Path, new: Path) -> None:
    with SqliteStore.from_conn_string(str(path)) as store, StoreBackend(store, namespace="m") as backend:
        assert text(backend, "/both") == "old"
        os.replace(new, path)
        assert text(backend, "/both") == "old"
        assert backend.write("/more", "lost").error
        assert backend.trouble is not None
