"""An undo that fails: what another program has made meanwhile, under a name that the undo was about to make, stays."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import MemoryStore
from raising import raising
from recorded import Recorded

from fusebackend.backends import FilesystemBackend, InMemoryBackend, ObjectStoreBackend, SqliteBackend, volume_of
from fusebackend.base import budget
from fusebackend.base.paths import ROOT
from fusebackend.history import undo as undo_module
from fusebackend.protocol import Change, SnapshotVolume
from fusebackend.remote.agent_verbs import FileVerbs
from fusebackend.remote.volume import RemoteVolume
from fusebackend.testing.each import each
from fusebackend.testing.posix.case import fails, refused
from fusebackend.urls import open_backend

NAMES = [f"/repo/{number:02}" for number in range(30)]
"""An undo of their removal makes the last one first."""

THEIRS = b"another program wrote this\n"


class Place:
    """A route whose changes are recorded, and another program that writes past the mount."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind = kind
        self.open: Callable[[], Any]
        self.write: Callable[[str, bytes], Any]
        self.remove: Callable[[str], Any]
        self._opened = contextlib.ExitStack()
        if kind == "dir":
            (directory / "files").mkdir()
            self.open = lambda: FilesystemBackend(directory / "files", virtual_mode=True)
            self.write = lambda path, data: (directory / "files" / path[1:]).write_bytes(data)
        elif kind == "store":
            url = f"store+sqlite:{directory}/store.db?ns=files"
            self.open, other = lambda: open_backend(url), open_backend(url)
            self._opened.callback(other.close)
            self.write = lambda path, data: other.upload_files([(path, data)])
            self.remove = other.delete
        elif kind == "s3":
            bucket = MemoryStore()
            self.open = lambda: ObjectStoreBackend(bucket, ttl=60)
            self.write = lambda path, data: obstore.put(bucket, path[1:], data)
            self.remove = lambda path: obstore.delete(bucket, path[1:])
        else:
            self.open = InMemoryBackend if kind == "memory" else lambda: SqliteBackend(directory / "files.db")
            self.write = lambda path, data: self.backend.upload_files([(path, data)])
        self._keeps_files = kind in ("store", "sqlite")
        self._begin()
        self.volume = volume_of(self.backend)
        self.recorded = Recorded(directory, {"/": self.volume})
        self._opened.callback(self.recorded.close)
        if isinstance(self.volume, SnapshotVolume):
            self.volume.before_commit = self.recorded.history.before_commit
        self.files = self.recorded.files
        for number, path in enumerate(NAMES):
            if number == 0:
                self.files.mkdir("/repo")
            self.files.write(path, b"%d\n" % number * number)
        self.before = self.files.dump()
        with self.recorded.call("rm"):
            self.files.remove_tree("/repo")

    def _begin(self) -> None:
        self.backend = self.open()
        if self._keeps_files:
            self._opened.callback(self.backend.close)

    def close(self) -> None:
        self._opened.close()

    def kill(self) -> None:
        """Go on with another server, after a kill of this one."""
        undoing = self.recorded.last()
        self.recorded.history.close()
        self._begin()
        self.volume = volume_of(self.backend)
        self.recorded.open({ROOT: self.volume})
        self.recorded.history.interrupted = [undoing]
        self.files = self.recorded.files

    def when_made(self, path: str, work: Callable[[], Any]) -> None:
        """Do something once, right after a step of the undo has made a directory or file."""

        def look(changes: list[Change]) -> Callable[[], None]:
            if any(change.kind == "created" and str(change.path).rstrip("/") == path for change in changes):
                end()
                work()
            return lambda: None

        end = self.volume.observe(look)

    def undo(self) -> Any:
        return self.recorded.undoing.undo()

    def names(self) -> dict[str, bytes]:
        """Return the files there are now, as a program sees them that knows no cache."""
        if isinstance(self.volume, RemoteVolume):
            self.volume.expire()
        return {path: found[1] for path, found in self.files.dump().items() if not found[0].mode & 0o040000}


@pytest.fixture(params=["memory", "sqlite", "dir", "store", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setattr(undo_module, "HELD_S", 0)  # so that each step is seen before the next one
    found = Place(request.param, tmp_path)
    yield found
    found.close()


@pytest.mark.parametrize("place", ["memory", "sqlite", "dir"], indirect=True)
def test_a_name_that_is_taken_right_before_a_rename(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for change in (("write", "/one", b"1"), ("rename", "/one", "/two")):
        with place.recorded.call():
            place.files.make(change)
    rename = place.volume.rename
    monkeypatch.setattr(place.volume, "rename", lambda *names: (place.write("/one", THEIRS), rename(*names)))
    refused(errno.EEXIST, place.undo)
    assert place.names() == {"/one": THEIRS, "/two": b"1"}


def test_a_name_that_is_taken_meanwhile(place: Place) -> None:
    """The undo is refused, and what it had made goes again."""
    place.when_made("/repo", lambda: place.write(NAMES[0], THEIRS))
    with fails(errno.EBUSY, match=f"'{NAMES[0]}' has been made anew"):
        place.undo()
    assert place.names() == {NAMES[0]: THEIRS}


def test_a_name_that_is_taken_while_the_undo_is_cancelled(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a client that no longer waits. Some files have come back by then, and go again."""
    monkeypatch.setattr(undo_module, "MADE_AT_ONCE", 10)
    cancelled = budget.Cancellation()

    def take() -> None:
        place.write(NAMES[0], THEIRS)
        cancelled.set()

    place.when_made(NAMES[25], take)
    with fails(errno.ECANCELED), budget.limited(None, cancelled):
        place.undo()
    assert place.names() == {NAMES[0]: THEIRS}


def while_storing(place: Place, monkeypatch: pytest.MonkeyPatch, work: Callable[[], Any]) -> None:
    """Do something once, when the volume has found all names vacant and is about to store the files."""
    assert isinstance(place.volume, RemoteVolume)
    put_all = place.volume.remote.put_all

    def put(files: Any) -> Any:
        monkeypatch.setattr(place.volume.remote, "put_all", put_all)
        work()
        return put_all(files)

    monkeypatch.setattr(place.volume.remote, "put_all", put)


@pytest.mark.parametrize("place", ["store", "s3"], indirect=True)
def test_a_name_that_is_taken_while_files_are_made_together(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for case in each((NAMES[0], NAMES[14], NAMES[-1])):
        with case as taken:
            while_storing(place, monkeypatch, partial(place.write, taken, THEIRS))
            with fails(errno.EBUSY, match=f"'{taken}' has been made anew"):
                place.undo()
            assert place.names() == {taken: THEIRS}
            place.remove(taken)
            assert place.names() == {}
    result = place.undo()
    assert (result.conflicts, result.partly) == ([], []), "it can be tried again"
    assert place.files.dump() == place.before


@pytest.mark.parametrize("place", ["store", "s3"], indirect=True)
def test_the_same_bytes_by_another_are_the_other_s(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when somebody checks out the deleted files from git at the same time."""
    same = place.before[NAMES[14]][1]
    while_storing(place, monkeypatch, lambda: place.write(NAMES[14], same))
    with pytest.raises(OSError, match=f"'{NAMES[14]}' has been made anew"):
        place.undo()
    assert place.names() == {NAMES[14]: same}


@pytest.mark.parametrize("place", ["store", "s3"], indirect=True)
def test_a_service_that_fails_while_files_are_made_together(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stores some, and for one the answer is lost."""
    remote: Any = place.volume.remote  # type: ignore[attr-defined]
    put, numbers = remote.put, itertools.count(1)
    if place.kind == "store":
        monkeypatch.setattr(remote.files, "_put_new", partial(FileVerbs._put_new, None))

    def lose(*words: Any, **options: Any) -> Any:
        number = next(numbers)  # several are made side by side
        answer = put(*words, **options)
        if number == 11:
            raise OSError(errno.EIO, "Input/output error")
        return answer

    monkeypatch.setattr(remote, "put", lose)
    with pytest.raises(OSError, match="Input/output error"):
        place.undo()
    if place.kind == "s3":  # it keeps the times: so the file is known as ours
        assert place.names() == {}


def measured(place: Place, monkeypatch: pytest.MonkeyPatch, measure: Callable[[Any], int]) -> list[int]:
    """Return a list that gets the measure of all files that are made together, each time."""
    remote: Any = place.volume.remote  # type: ignore[attr-defined]
    put_all, sizes = remote.put_all, []

    def put(files: Any) -> Any:
        sizes.append(measure(files))
        return put_all(files)

    monkeypatch.setattr(remote, "put_all", put)
    return sizes


@pytest.mark.parametrize("place", ["store", "s3"], indirect=True)
def test_bytes_in_memory_are_bounded(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = measured(place, monkeypatch, lambda files: sum(data.size for _, data, _ in files))
    monkeypatch.setattr(undo_module, "MADE_BYTES", 300)
    place.undo()
    assert len(sizes) > 4 and max(sizes) <= 300
    assert place.files.dump() == place.before


@pytest.mark.parametrize("place", ["dir", "store", "s3"], indirect=True)
def test_a_large_file_whose_name_is_taken_meanwhile(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes are beside nobody's."""
    place.files.write("/large", b"large" * 500_000)
    with place.recorded.call("rm"):
        place.files.remove("/large")
    if place.kind == "dir":
        place.write("/large", THEIRS)
        (conflict,) = place.undo().conflicts
        assert conflict.path == "/large"
    else:
        while_storing(place, monkeypatch, lambda: place.write("/large", THEIRS))
        with pytest.raises(OSError, match="'/large' has been made anew"):
            place.undo()
    assert place.names() == {"/large": THEIRS}


class Killed(BaseException):
    """The end of the server."""


def killed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill the server when the undo has made some of the names."""
    with monkeypatch.context() as patch:
        patch.setattr(undo_module, "MADE_AT_ONCE", 10)
        patch.setattr(place.recorded.history, "drop", lambda numbers: None)
        patch.setattr(place.recorded.undoing, "_take_back", lambda number, error: None)
        place.when_made(NAMES[25], lambda: patch.setattr(undo_module._Making, "_some", raising(Killed)))
        with pytest.raises(Killed):
            place.undo()
    assert 5 <= len(place.names()) <= 25
    place.kill()


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("place", ["dir", "store", "s3"], indirect=True)
def test_a_name_that_is_taken_after_a_kill(place: Place, monkeypatch: pytest.MonkeyPatch, early: bool) -> None:
    """While no server runs, or after the next one has looked. It was recorded before it was to be made."""
    killed(place, monkeypatch)
    undoing = place.recorded.history.records(place.recorded.last())
    taken = min({os.fsdecode(record.path) for record in undoing} - place.names().keys() - {"/repo"})
    if early:
        place.write(taken, THEIRS)
    place.recorded.recorder.stamp_interrupted()
    if not early:
        place.write(taken, THEIRS)
    before = place.names()
    conflicts = place.undo().conflicts
    assert {conflict.path for conflict in conflicts} == {taken, "/repo"}, "the directory is not empty"
    assert (conflicts[0].path, conflicts[0].reason) == (taken, "has changed since")
    assert place.names() == before
    assert place.recorded.undoing.undo(keep_newer=True).kept == conflicts
    assert place.names() == {
        path: THEIRS if path == taken else found[1] for path, found in place.before.items() if path in NAMES
    }
