"""A search stops when its budget is spent, on every backend, with what it has."""

from __future__ import annotations

import contextvars
import math
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from agentface import put
from for_each import for_each
from seed_backends import DuckBackend

from fusebackend.backends.composite import CompositeBackend
from fusebackend.backends.directory import search
from fusebackend.backends.directory import search as directory_search
from fusebackend.backends.directory.backend import FilesystemBackend
from fusebackend.backends.memory import InMemoryBackend
from fusebackend.backends.sqlite.backend import SqliteBackend
from fusebackend.backends.state.backend import StateBackend
from fusebackend.base import budget
from fusebackend.base.budget import Budget, Spent
from fusebackend.protocol import BackendProtocol

FILES = 9


# -- the budget alone ----------------------------------------------------------------------------------------------


def test_the_tighter_one_wins() -> None:
    with budget.limited(1000) as outer:
        with budget.limited(10) as inner:
            assert 9 < inner.left_s <= 10
        with budget.limited(5000) as inner:
            assert 999 < inner.left_s <= 1000
        assert budget.current() is outer
    assert budget.current().left_s == math.inf


def test_each_event_calls_it_off() -> None:
    outer, inner = threading.Event(), threading.Event()
    with budget.limited(1000, outer), budget.limited(None, inner) as both:
        assert not both.spent
        inner.set()
        assert both.spent and not budget.limited(5).__enter__().left_s
    with budget.limited(math.inf, outer), budget.limited(1000) as below:
        outer.set()
        with pytest.raises(Spent):
            below.require()


def test_who_says_nothing_about_time_gets_the_default() -> None:
    with budget.granted() as granted:
        assert budget.SEARCH_S - 1 < granted.left_s <= budget.SEARCH_S
    with budget.limited(None, threading.Event()), budget.granted(3) as granted:
        assert 2 < granted.left_s <= 3
    for said in (100, math.inf):
        with budget.limited(said), budget.granted() as granted:
            assert granted.left_s > 99


def test_pieces_are_metered() -> None:
    event = threading.Event()
    taken = []
    with pytest.raises(Spent):
        for piece in Budget(None, (event,)).metered(range(10)):
            taken.append(piece)
            if piece == 3:
                event.set()
    assert taken == [0, 1, 2, 3]


# -- backends ------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["memory", "sqlite", "dir", "dir without rg", "state", "composite"])
def backend(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """/0.txt to /8.txt with two needles each."""
    (tmp_path / "dir").mkdir()
    if request.param == "dir without rg":
        monkeypatch.setattr(directory_search, "find_candidates", lambda *_: None)
    backend: BackendProtocol
    if request.param == "memory":
        backend = InMemoryBackend()
    elif request.param == "sqlite":
        backend = SqliteBackend(tmp_path / "volume.db")
    elif request.param == "state":
        backend = StateBackend()
    elif request.param == "composite":
        backend = CompositeBackend(InMemoryBackend(), {f"/{number}": InMemoryBackend() for number in range(3)})
    else:
        backend = FilesystemBackend(tmp_path / "dir")
    where = "/{0}/{0}.txt" if request.param == "composite" else "/{0}.txt"
    for number in range(FILES):
        assert backend.upload_files([(where.format(number), b"needle\nneedle\n")])[0].error is None
    yield backend
    for part in (backend, *getattr(backend, "routes", {}).values(), getattr(backend, "default", None)):
        if hasattr(part, "close"):
            part.close()


def test_a_search_without_time_finds_nothing_and_says_so(backend: Any) -> None:
    with budget.limited(0):
        found = backend.grep("needle")
        assert (found.error, found.matches, found.truncated) == (None, [], True)
        listed = backend.glob("*.txt")
        assert (listed.error, listed.matches, listed.truncated) == (None, [], True)
        assert listed.truncation_reason == "budget"


class Counted:
    """An event that is set when it has been asked so many times."""

    def __init__(self, times: int) -> None:
        self.left = times

    def is_set(self) -> bool:
        self.left -= 1
        return self.left < 0


@for_each("times", [3, 10, 17, 24, 40])
def test_a_search_that_is_called_off_keeps_what_it_has(backend: Any, times: int) -> None:
    """Whenever that is: matches of the whole answer in its order, and never half of a file's."""
    whole, files = backend.grep("needle").matches, backend.glob("*.txt").matches
    with budget.limited(100, Counted(times)):  # type: ignore[arg-type]
        found = backend.grep("needle")
    assert found.error is None
    assert found.matches == [match for match in whole if match in found.matches]
    assert len(found.matches) % 2 == 0
    assert found.truncated or found.matches == whole
    with budget.limited(100, Counted(times)):  # type: ignore[arg-type]
        listed = backend.glob("*.txt")
    assert listed.matches == [info for info in files if info in listed.matches]
    assert listed.truncation_reason == ("budget" if listed.truncated else None)
    assert listed.truncated or listed.matches == files


def test_it_reaches_the_threads_of_the_async_verbs(backend: Any) -> None:
    async def search() -> Any:
        with budget.limited(0):
            return await backend.agrep("needle"), await backend.aglob("*.txt")

    for loop in ("asyncio", "trio"):
        found, listed = contextvars.copy_context().run(anyio.run, search, backend=loop)
        assert found.truncated and listed.truncated and not found.matches and not listed.matches


def test_a_large_file_is_given_up_half_way() -> None:
    with InMemoryBackend() as backend:
        put(backend, "/a.txt", b"needle\n")
        put(backend, "/large.txt", b"needle\n" * 3_000_000)
        with budget.limited(100, Counted(12)):  # type: ignore[arg-type]
            found = backend.grep("needle")
        assert [match["path"] for match in found.matches] == ["/a.txt"] and found.truncated


def test_a_backend_from_elsewhere_is_the_last_one_asked() -> None:
    """It can't be interrupted; the next ones are not begun."""
    event = threading.Event()
    slow, late = DuckBackend(), DuckBackend()

    class Slow(DuckBackend):
        def grep(self, *arguments: Any, **options: Any) -> Any:
            event.set()
            return super().grep(*arguments, **options)

    slow = Slow()
    slow.put("/file.txt", b"needle")
    late.put("/file.txt", b"needle")
    composite = CompositeBackend(InMemoryBackend(), {"/a": slow, "/b": late})
    with budget.limited(None, event):
        found = composite.grep("needle")
        assert ([match["path"] for match in found.matches], found.truncated) == (["/a/file.txt"], True)
        assert "grep" not in late.calls
        listed = composite.glob("*.txt")
    assert (listed.matches, listed.truncated, listed.truncation_reason) == ([], True, "budget")


def test_a_limit_that_hidden_matches_use_up_is_not_asked_for_twice_without_time() -> None:
    """A part that says `truncated` because it ran out of time has no more to give."""
    asked = []

    class Tired(DuckBackend):
        def grep(self, pattern: str, path: str | None = None, glob: str | None = None, max_count: int = 0) -> Any:
            asked.append(max_count)
            answer = super().grep(pattern, path, glob)
            answer.truncated = True
            return answer

    tired = Tired()
    tired.put("/file.txt", b"needle")
    composite = CompositeBackend(tired, {"/a": InMemoryBackend()})
    assert composite.grep("needle", max_count=5).truncated
    assert asked == [6]


# -- ripgrep -------------------------------------------------------------------------------------------------------


@pytest.fixture
def endless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory to search, where `rg` names the file, notes its own number in `pid`, and never ends."""
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "file.txt").write_text("needle\n")
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "rg"
    program.write_text(f"#!/bin/sh\nprintf './file.txt\\0'; echo $$ > {tmp_path}/pid\nexec sleep 100\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return tmp_path


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_ripgrep_is_ended_in_time_for_its_files_to_be_read(endless: Path) -> None:
    start = time.monotonic()
    with FilesystemBackend(endless / "root") as backend, budget.limited(1.0):
        found = backend.grep("needle")
    assert 0.5 < time.monotonic() - start < 50, "long before the program would have ended"
    assert ([match["path"] for match in found.matches], found.truncated) == (["/file.txt"], True)
    assert gone(int((endless / "pid").read_text()))


def test_ripgrep_is_ended_when_the_search_is_called_off(endless: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    event = threading.Event()
    begin = subprocess.Popen.communicate

    def communicate(process: Any, *arguments: Any, **options: Any) -> Any:
        if (endless / "pid").exists():
            event.set()
        return begin(process, *arguments, **options)

    monkeypatch.setattr(subprocess.Popen, "communicate", communicate)
    monkeypatch.setattr(search, "SHARE", 1.0)
    with FilesystemBackend(endless / "root") as backend, budget.limited(60, event):
        found = backend.grep("needle")
    assert (found.matches, found.truncated) == ([], True)
    assert gone(int((endless / "pid").read_text()))
