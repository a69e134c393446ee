"""Calls taken back: what they did, and nothing that others have done."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from for_each import for_each
from recorded import Agent, Files, Recorded

from fusebackend.backends import FilesystemBackend, InMemoryBackend, SqliteBackend
from fusebackend.base import budget
from fusebackend.base.paths import ROOT
from fusebackend.history import history_file
from fusebackend.history import undo as undo_module
from fusebackend.history.records import Image
from fusebackend.protocol import RENAME_EXCHANGE, AttrChanges, UndoneChange

MTIME_NS = 1_500_000_000_123_456_789


KINDS = ["memory", "sqlite", "dir"]


@contextlib.contextmanager
def recorded_of(kind: str, directory: Path) -> Iterator[Recorded]:
    with contextlib.ExitStack() as stack:
        backend: Any
        if kind == "memory":
            backend = InMemoryBackend()
        elif kind == "sqlite":
            backend = stack.enter_context(SqliteBackend(directory / "files.db"))
        else:
            (directory / "files").mkdir()
            backend = FilesystemBackend(directory / "files", virtual_mode=True)
        yield stack.enter_context(contextlib.closing(Recorded(directory, {"/": backend.volume})))


@pytest.fixture(autouse=True)
def writing_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A history that is closed waits for so long."""
    monkeypatch.setattr(history_file, "WRITE_EVERY_S", 0.001)


@pytest.fixture(params=KINDS)
def recorded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Recorded]:
    with recorded_of(request.param, tmp_path) as recorded:
        yield recorded


@pytest.fixture
def files(recorded: Recorded) -> Files:
    return recorded.files


def plant(recorded: Recorded) -> None:
    """A tree with a file of each kind, made by a call."""
    files = recorded.files
    with recorded.call("plant"):
        files.mkdir("/repo")
        files.mkdir("/repo/sub", 0o711)
        files.write("/repo/one", b"one\n" * 50_000)
        files.write("/repo/sub/two", b"two\n", 0o600)
        files.change("/repo/sub/two", mtime_ns=MTIME_NS)
        files.xattr("/repo/one", b"user.colour", b"red")
        files.link("/repo/one", "/repo/sub/same")
        files.symlink("one", "/repo/link")
        files.fifo("/repo/fifo")
        files.write("/repo/empty", b"")


def check(recorded: Recorded, **options: Any) -> Any:
    """Undo the last call; it must not be refused."""
    result = recorded.undoing.undo([recorded.last()], **options)
    assert result.conflicts == []
    return result


@contextlib.contextmanager
def taken_back(recorded: Recorded, command: str = "a call") -> Iterator[None]:
    """The body is a call; its undo must not be refused, and all must be as it was."""
    before = recorded.files.dump()
    with recorded.call(command):
        yield
    check(recorded)
    assert recorded.files.dump() == before


def test_a_removed_tree_comes_back_with_everything(recorded: Recorded, files: Files) -> None:
    plant(recorded)
    before = files.dump()
    with recorded.call("rm -rf"):
        files.remove_tree("/repo")
    assert files.dump().keys() == {"/"}
    result = check(recorded)
    assert files.dump() == before
    assert result.partly == [] and result.kept == []
    assert len(result.changes) == 8
    assert UndoneChange("create", "/repo/sub/two") in result.changes


def test_what_was_made_goes(recorded: Recorded, files: Files) -> None:
    files.write("/theirs", b"theirs")
    before = files.dump()
    plant(recorded)
    result = check(recorded)
    assert files.dump() == before
    assert {change.change for change in result.changes} == {"remove"}


def test_bytes_come_back_in_place(recorded: Recorded, files: Files) -> None:
    plant(recorded)
    before, node = files.dump(), files.attr("/repo/one").node
    with recorded.call():
        files.append("/repo/one", b"more")
        files.write("/repo/one", b"short")
        files.change("/repo/one", mode=0o600)
        files.xattr("/repo/one", b"user.colour", b"blue")
        files.write("/repo/empty", b"full")
    result = check(recorded)
    assert files.dump() == before
    assert files.attr("/repo/one").node == node, "processes that have it open see the old bytes"
    assert {change.change for change in result.changes} == {"replace"}


def test_attributes_come_back(recorded: Recorded, files: Files) -> None:
    plant(recorded)
    before = files.dump()
    with recorded.call("chmod"):
        files.change("/repo/sub", mode=0o755)
        files.xattr("/repo/one", b"user.other", b"x")  # first: it needs write permission, except of root
        files.change("/repo/one", mode=0o400, mtime_ns=1)
    result = check(recorded)
    assert files.dump() == before
    assert [each.change for each in result.changes] == ["attributes", "attributes"]


def test_an_edit_by_rename_is_taken_back(recorded: Recorded, files: Files) -> None:
    """As `sed -i`, and most editors."""
    plant(recorded)
    with taken_back(recorded, "sed -i"):
        files.write("/repo/sub/sedXYZ", b"edited")
        files.rename("/repo/sub/sedXYZ", "/repo/sub/two")


def test_renames_and_exchanges_are_taken_back(recorded: Recorded, files: Files) -> None:
    plant(recorded)
    with taken_back(recorded, "mv"):
        files.rename("/repo/sub", "/repo/moved")
        files.rename("/repo/moved/two", "/repo/two")
        files.write("/repo/two", b"changed where it is now")
        files.rename("/repo/two", "/repo/one", RENAME_EXCHANGE)


def test_a_directory_that_was_changed_before_it_was_removed(recorded: Recorded, files: Files) -> None:
    """As `chmod -R u+w` and `rm -rf`."""
    plant(recorded)
    files.change("/repo/sub", mode=0o500)
    with taken_back(recorded, "chmod -R u+w; rm -rf"):
        files.change("/repo/sub", mode=0o700)
        files.xattr("/repo/sub", b"user.other", b"x")
        files.remove_tree("/repo/sub")


def test_a_directory_that_was_moved_before_it_was_removed(recorded: Recorded, files: Files) -> None:
    plant(recorded)
    files.change("/repo/sub", mode=0o500)
    with taken_back(recorded, "mv; rm -rf"):
        files.rename("/repo/sub", "/repo/gone")
        files.mkdir("/repo/sub", 0o755)
        if os.geteuid() != 0:  # root alone removes names from a directory that can't be written
            files.change("/repo/gone", mode=0o700)
        files.remove_tree("/repo/gone")
        files.rename("/repo/sub", "/repo/gone")


def test_a_name_that_was_used_again(recorded: Recorded, files: Files) -> None:
    """The records of one call at one path are of three files."""
    plant(recorded)
    with taken_back(recorded):
        files.write("/repo/sub/two", b"second bytes")
        files.remove("/repo/sub/two")
        files.write("/repo/sub/two", b"third")
        files.rename("/repo/sub/two", "/repo/three")
        files.mkdir("/repo/sub/two")
        files.write("/repo/sub/two/inner", b"inner")


def test_an_undo_is_taken_back(recorded: Recorded, files: Files) -> None:
    plant(recorded)
    with recorded.call("work"):
        files.write("/repo/one", b"new")
        files.remove_tree("/repo/sub")
        files.mkdir("/repo/made")
        files.rename("/repo/link", "/repo/made/link")
    work, after = recorded.last(), files.dump()
    undone = check(recorded)
    assert undone.undo == f"c{recorded.last()}" != f"c{work}"
    assert recorded.history.call(work).undone_by == recorded.last()
    check(recorded)
    assert files.dump() == after
    assert recorded.history.call(work).undone_by is None, "so it can be undone again"
    check_again = recorded.undoing.undo([work])
    assert check_again.conflicts == [] and not files.exists("/repo/made")


def test_an_undo_of_an_undo_of_an_undo(recorded: Recorded, files: Files) -> None:
    """The call is undone again, so it can't be undone twice."""
    files.write("/one", b"one")
    files.write("/two", b"two")
    with recorded.call():
        files.rename("/one", "/two", RENAME_EXCHANGE)
    call, before = recorded.last(), files.dump()
    for _ in range(3):
        check(recorded)
    with pytest.raises(OSError, match=f"c{call} was taken back by c{call + 1} already"):
        recorded.undoing.undo([call])
    check(recorded)
    assert files.dump() == before
    assert recorded.undoing.undo([call]).conflicts == []
    assert files.read("/one") == b"one"


def test_without_a_call_it_goes_further_back_each_time(recorded: Recorded, files: Files) -> None:
    states = []
    for number in range(3):
        states.append(files.dump())
        with recorded.call(f"step {number}", agent="odd" if number % 2 else "even"):
            files.write(f"/file{number}", b"x")
            files.write("/shared", b"%d" % number)
    for state in reversed(states):
        assert recorded.undoing.undo().conflicts == []
        assert files.dump() == state
    assert recorded.undoing.undo().calls == [], "there is none left"


def test_by_whom(recorded: Recorded, files: Files) -> None:
    for name in ("planner", "coder"):
        with recorded.call(agent=name):
            files.write(f"/{name}", b"x")
    recorded.undoing.undo(by="planner")
    assert files.dump().keys() == {"/", "/coder"}
    assert recorded.undoing.undo(by="nobody").calls == []


def test_several_calls_at_once(recorded: Recorded, files: Files) -> None:
    plant(recorded)
    before, numbers = files.dump(), []
    for text in (b"first", b"second"):
        with recorded.call():
            files.write("/repo/one", text)
            files.write("/repo/" + text.decode(), text)
        numbers.append(recorded.last())
    assert recorded.undoing.undo(numbers[::-1]).conflicts == []
    assert files.dump() == before
    check(recorded)
    assert files.read("/repo/one") == b"second"


def test_what_others_changed_since_is_named(recorded: Recorded, files: Files) -> None:
    plant(recorded)
    with recorded.call("work"):
        files.write("/repo/one", b"new")
        files.write("/repo/sub/two", b"new")
        files.write("/repo/made", b"made")
        files.mkdir("/repo/directory")
    work = recorded.last()
    with recorded.call("others"):
        files.append("/repo/one", b" and theirs")
        files.append("/repo/made", b" and theirs")
        files.write("/repo/directory/theirs", b"theirs")
    others, before = recorded.last(), files.dump()
    refused = recorded.undoing.undo([work])
    assert [(each.path, each.call) for each in refused.conflicts] == [
        ("/repo/directory", f"c{others}"), ("/repo/made", f"c{others}"), ("/repo/one", f"c{others}"),
    ]  # fmt: skip
    assert refused.undo is None and refused.changes == []
    assert files.dump() == before
    assert recorded.history.call(work).undone_by is None
    kept = recorded.undoing.undo([work], keep_newer=True)
    assert [each.path for each in kept.kept] == ["/repo/directory", "/repo/made", "/repo/one"]
    assert files.read("/repo/one") == b"new and theirs"
    assert files.read("/repo/sub/two") == b"two\n"


def test_what_nobody_recorded_is_named_too(recorded: Recorded, files: Files) -> None:
    with recorded.call():
        files.write("/file", b"x")
    files.volume.setattr(files.attr("/file").node, AttrChanges(mtime_ns=MTIME_NS))
    (conflict,) = recorded.undoing.undo().conflicts
    assert (conflict.path, conflict.reason, conflict.call) == ("/file", "has changed since", None)


def test_a_change_between_two_of_the_call_is_kept(recorded: Recorded, files: Files) -> None:
    """Its bytes before the first change are not those of the other one."""
    plant(recorded)
    agent = Agent(recorded, "work", "one")
    agent.do(lambda: files.write("/repo/one", b"mine"))
    with recorded.call("theirs"):
        files.append("/repo/one", b" theirs")
    agent.do(lambda: files.append("/repo/one", b" mine"))
    number = agent.end()
    assert [each.path for each in recorded.undoing.undo([number]).conflicts] == ["/repo/one"]
    assert recorded.undoing.undo([number], keep_newer=True).conflicts == []
    assert files.read("/repo/one") == b"mine theirs"


def test_lines_of_others_stay(recorded: Recorded, files: Files) -> None:
    lines = b"".join(b"line %d\n" % number for number in range(20))
    with recorded.call("plant"):
        files.write("/text", lines)
        files.write("/bytes", lines)
    with recorded.call("work"):
        files.write("/text", lines.replace(b"line 3\n", b"mine\n"))
        files.write("/other", b"x")
    work = recorded.last()
    with recorded.call("others"):
        files.write("/text", files.read("/text").replace(b"line 16\n", b"theirs\n"))
    merged = recorded.undoing.undo([work], merge_lines=True)
    assert merged.conflicts == []
    assert {(each.change, each.path) for each in merged.changes} == {("merge", "/text"), ("remove", "/other")}
    assert files.read("/text") == lines.replace(b"line 16\n", b"theirs\n")
    check(recorded)
    assert b"mine" in files.read("/text") and b"theirs" in files.read("/text")


def test_lines_that_both_changed_are_a_conflict(recorded: Recorded, files: Files) -> None:
    files.write("/text", b"a\nb\nc\n")
    with recorded.call("work"):
        files.write("/text", b"a\nB\nc\n")
    work = recorded.last()
    with recorded.call("others"):
        files.write("/text", b"a\nBB\nc\n")
    assert [each.path for each in recorded.undoing.undo([work], merge_lines=True).conflicts] == ["/text"]


def test_bytes_that_are_lost_are_named(recorded: Recorded, files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(recorded)
    monkeypatch.setattr(recorded.images, "keep", lambda volume, attr: Image("lost", "larger than 64 MiB"))
    with recorded.call("rm"):
        files.remove("/repo/sub/two")
    (conflict,) = recorded.undoing.undo().conflicts
    assert conflict.path == "/repo/sub/two"
    assert conflict.reason == "can't come back, for its earlier bytes were not kept: larger than 64 MiB"


def test_a_dry_run_changes_nothing(recorded: Recorded, files: Files) -> None:
    plant(recorded)
    with recorded.call():
        files.remove_tree("/repo")
    before, last = files.dump(), recorded.last()
    dry = recorded.undoing.undo(dry_run=True)
    assert dry.undo is None and files.dump() == before and recorded.last() == last
    assert recorded.undoing.undo().changes == dry.changes


def test_no_such_call_and_one_that_is_undone(recorded: Recorded, files: Files) -> None:
    with pytest.raises(FileNotFoundError, match="there is no call 'c7'"):
        recorded.undoing.undo([7])
    with recorded.call():
        files.write("/file", b"x")
    call = recorded.last()
    undone = recorded.undoing.undo()
    with pytest.raises(OSError, match=f"c{call} was taken back by {undone.undo} already") as refused:
        recorded.undoing.undo([call])
    assert refused.value.errno == errno.EALREADY


def test_a_command_that_goes_on_is_not_taken_back(recorded: Recorded, files: Files) -> None:
    files.write("/file", b"x")
    with recorded.call("make"):
        calls = recorded.recorder.calls
        call = calls.current()
        end = calls.started(call, os.getpid()) if os.getsid(0) == os.getpid() else None
        files.write("/file", b"y")
        if end is None:
            calls._by_session[-1] = call
        with pytest.raises(OSError, match="is still going on"):
            recorded.undoing.undo([call.number])


def interrupt(monkeypatch: pytest.MonkeyPatch, after: int, error: BaseException) -> None:
    """Have the step of an undo with this number fail."""
    steps = 0
    making = undo_module._Making._placed

    def step(self: Any, volume: Any, step: Any, changes: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == after:
            raise error
        return making(self, volume, step, changes)

    monkeypatch.setattr(undo_module._Making, "_placed", step)


def work(recorded: Recorded) -> None:
    """A call with a change of each kind: 12 records or so."""
    files = recorded.files
    with recorded.call("work"):
        files.write("/repo/one", b"new")
        files.remove("/repo/sub/two")
        files.rename("/repo/sub", "/repo/moved")
        files.write("/repo/made", b"made")
        files.rename("/repo/made", "/repo/empty")
        files.remove("/repo/link")
        files.change("/repo/moved", mode=0o700)
        files.mkdir("/repo/directory")
        files.write("/repo/directory/file", b"file")


@for_each("kind", KINDS)
@for_each("after", range(1, 10))
def test_an_error_takes_everything_back(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    with recorded_of(kind, tmp_path) as recorded:
        plant(recorded)
        work(recorded)
        before, call = recorded.files.dump(), recorded.last()
        with monkeypatch.context() as patch:
            interrupt(patch, after, OSError(errno.ENOSPC, "No space left on device"))
            with pytest.raises(OSError, match="No space left"):
                recorded.undoing.undo()
        assert recorded.files.dump() == before
        assert recorded.undoing.undo().calls == [f"c{call}"], "it can be tried again"


def restart(recorded: Recorded) -> None:
    """Go on with another server: a directory's files have other numbers there."""
    recorded.close()
    directory = recorded.directory.parent / "files"
    if directory.is_dir():
        recorded.volumes = {ROOT: FilesystemBackend(directory, virtual_mode=True).volume}
        recorded.names.clear()
    recorded.open()


def test_a_link_of_an_earlier_server_is_made_to_no_other_file(recorded: Recorded, files: Files) -> None:
    with recorded.call():
        for name in ("one", "two", "three"):
            files.write(f"/{name}", name.encode())
        files.link("/one", "/same")
    with recorded.call():
        files.rename("/two", "/three", RENAME_EXCHANGE)
        files.remove("/one")
    restart(recorded)
    files = recorded.files
    for name in ("two", "three", "same"):  # numbered in another order
        files.attr(f"/{name}")
    check(recorded)
    assert [files.read(f"/{name}") for name in ("one", "two", "three", "same")] == [b"one", b"two", b"three", b"one"]


def test_a_link_that_an_earlier_server_has_removed_is_one_again(recorded: Recorded, files: Files) -> None:
    with recorded.call():
        files.mkdir("/d")
        files.write("/d/one", b"one")
        files.link("/d/one", "/same")
    before = files.dump()
    with recorded.call():
        files.remove("/same")
    restart(recorded)
    removed = recorded.files.dump()
    undone = check(recorded)
    files = recorded.files
    assert files.dump() == before
    assert files.attr("/d/one").node == files.attr("/same").node
    restart(recorded)
    recorded.undoing.undo([int(undone.undo[1:])])
    assert recorded.files.dump() == removed
    restart(recorded)
    recorded.undoing.undo([recorded.last()])
    assert recorded.files.attr("/d/one").node == recorded.files.attr("/same").node


class Killed(BaseException):
    """The end of the server."""


@for_each("kind", KINDS)
@for_each("after", range(1, 10))
def test_a_killed_undo_is_finished_by_the_same_command(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    with recorded_of(kind, tmp_path) as recorded:
        plant(recorded)
        before = recorded.files.dump()
        work(recorded)
        call = recorded.last()
        with monkeypatch.context() as patch:
            interrupt(patch, after, Killed())
            patch.setattr(recorded.undoing, "_take_back", lambda number, error: None)
            with pytest.raises(Killed):
                recorded.undoing.undo()
        restart(recorded)
        again = recorded.undoing.undo()
        assert again.conflicts == [] and again.calls == [f"c{call}"]
        assert recorded.files.dump() == before
        assert recorded.history.call(call).undone_by is not None


def test_a_cancelled_undo_takes_everything_back(
    recorded: Recorded, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(recorded)
    work(recorded)
    before, call, cancelled = files.dump(), recorded.last(), threading.Event()
    monkeypatch.setattr(undo_module, "HELD_S", 0)
    making = undo_module._Making._placed

    def step(self: Any, *words: Any) -> Any:
        if self.made == 3:
            cancelled.set()  # by a client that no longer waits
        return making(self, *words)

    with monkeypatch.context() as patch, budget.limited(None, cancelled):
        patch.setattr(undo_module._Making, "_placed", step)
        with pytest.raises(OSError, match="canceled"):
            recorded.undoing.undo()
    assert files.dump() == before
    assert recorded.undoing.undo().calls == [f"c{call}"], "it can be tried again"


def test_a_failed_undo_that_cannot_be_taken_back_can_be_later(
    recorded: Recorded, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    with recorded.call():
        for name in ("one", "two", "three"):
            files.write(f"/{name}", b"old")
    with recorded.call():
        for name in ("one", "two", "three"):
            files.write(f"/{name}", b"new")
    before, call = files.dump(), recorded.last()
    making, other = undo_module._Making._placed, Agent(recorded, "another", "other")
    steps = 0

    def step(self: Any, volume: Any, step: Any, changes: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == 3:
            other.do(lambda: files.append("/two", b" and another's"))
            other.end()
            raise OSError(errno.ENOSPC, "No space left on device")
        return making(self, volume, step, changes)

    with monkeypatch.context() as patch:
        patch.setattr(undo_module._Making, "_placed", step)
        with pytest.raises(OSError, match="a part is done, and 'fusebackend undo c3' takes that back"):
            recorded.undoing.undo([call])
    (conflict,) = recorded.undoing.undo([3]).conflicts
    assert conflict.path == "/two"
    assert recorded.undoing.undo([3], keep_newer=True).kept == [conflict]
    assert files.read("/two") == b"old and another's"
    after = files.dump()
    assert (after["/one"], after["/three"]) == (before["/one"], before["/three"])


def test_what_was_not_recorded_is_named(recorded: Recorded, files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    files.write("/one", b"old")
    files.write("/two", b"old")
    with recorded.call():
        files.write("/one", b"new")
        with monkeypatch.context() as patch:
            patch.setattr(recorded.images, "keep", lambda *_: 1 / 0)
            files.write("/two", b"new")
    (conflict,) = recorded.undoing.undo().conflicts
    call = recorded.last()
    assert conflict.path == "/"
    assert conflict.reason.startswith(f"may have more changes of c{call}, which were not recorded: a change in '/' was")
    assert files.read("/one") == b"new"
    assert recorded.undoing.undo(keep_newer=True).kept == [conflict]
    assert files.read("/one") == b"old"


def test_no_more_is_taken_back_than_is_recorded(recorded: Recorded, files: Files) -> None:
    """The disk of the history is full."""
    with recorded.call():
        for number in range(50):
            files.write(f"/{'name' * 40}-{number}", b"x")
    before, call = files.dump(), recorded.last()
    writer = recorded.history._writer
    writer.execute(f"PRAGMA max_page_count = {writer.execute('PRAGMA page_count').fetchone()[0]}")
    with pytest.raises(
        OSError, match=r"can't be written: database or disk is full; a part is done, and .* undo c2' take"
    ):
        recorded.undoing.undo()
    left = files.dump()
    with pytest.raises(OSError, match="can't be written: database or disk is full"):
        recorded.undoing.undo([2])
    assert files.dump() == left
    writer.execute("PRAGMA max_page_count = 100000")
    recorded.undoing.undo([2])
    assert files.dump() == before
    assert recorded.undoing.undo().calls == [f"c{call}"]
    assert files.dump().keys() == {"/"}


def test_a_route_that_is_gone_is_named(recorded: Recorded, files: Files) -> None:
    with recorded.call():
        files.write("/file", b"x")
    recorded.volumes.clear()
    (conflict,) = recorded.undoing.undo().conflicts
    assert conflict.reason == "belongs to a route that is not mounted any more"


def test_a_file_that_lost_its_names_one_by_one_has_them_again(recorded: Recorded, files: Files) -> None:
    """The last one to a file that was renamed over it."""
    with recorded.call():
        files.write("/one", b"before")
        files.link("/one", "/other")
    with taken_back(recorded):
        files.write("/one", b"after!")
        files.remove("/other")
        files.write("/other", b"new")
        files.rename("/other", "/one")
    assert files.attr("/one").node == files.attr("/other").node


def link(files: Files, old: str, new: str) -> None:
    if old == "/fifo":
        files.fifo(old)
    elif old == "/symlink":
        files.symlink("target", old)
    else:
        files.write(old, b"before")
    files.link(old, new)


@pytest.mark.parametrize("again", [False, True])
def test_what_was_written_by_a_name_that_was_removed(recorded: Recorded, files: Files, again: bool) -> None:
    """`echo B > l; rm l`, where `f` is its other name; a later server knows `f` by another path and node."""
    files.mkdir("/d")
    link(files, "/d/f", "/d/l")
    before = files.dump()
    with recorded.call():
        files.write("/d/l", b"after")
        files.remove("/d/l")
        if again:
            files.rename("/d", "/e")
    if again:
        restart(recorded)
    check(recorded)
    assert recorded.files.dump() == before
    assert recorded.files.read("/d/f") == b"before"


@pytest.mark.parametrize("name", ["/file", "/fifo", "/symlink"])
@pytest.mark.parametrize("replaces", [False, True])
def test_names_that_a_call_each_has_removed_are_those_of_one_file(
    recorded: Recorded, files: Files, name: str, replaces: bool
) -> None:
    link(files, name, "/other")
    states, calls = [], []
    for each in (name, "/other"):
        states.append(files.dump())
        with recorded.call():
            if replaces:
                files.write(f"{each}.new", b"new")
                files.rename(f"{each}.new", each)
            else:
                files.remove(each)
        calls.append(recorded.last())
    after = files.dump()
    (conflict,) = recorded.undoing.undo(calls[:1]).conflicts
    assert (conflict.path, conflict.reason.partition(",")[0]) == (name, "was one of several names of a file")
    assert files.dump() == after
    for call in reversed(calls):
        restart(recorded)
        assert recorded.undoing.undo([call]).conflicts == []
        assert recorded.files.dump() == states.pop()
    assert recorded.files.attr(name).node == recorded.files.attr("/other").node


def test_a_file_that_was_brought_back_is_the_one_of_earlier_calls(recorded: Recorded, files: Files) -> None:
    link(files, "/one", "/other")
    before = files.dump()
    with recorded.call():
        files.change("/one", mode=0o600)
        files.append("/other", b" and after")
    changed = files.dump()
    with recorded.call():
        files.remove("/one")
        files.remove("/other")
    for state in (changed, before):
        restart(recorded)
        assert recorded.undoing.undo().conflicts == []
        assert recorded.files.dump() == state


@pytest.mark.parametrize("lasts", [True, False])
def test_a_file_with_a_new_name_alone_has_all_its_old_ones_again(
    recorded: Recorded, files: Files, lasts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An undo has made it, so the kernel holds no node of it, and `dir` forgets that with the name it was found by."""
    link(files, "/fifo", "/other")
    if not lasts:  # old kernels tell no birth time
        monkeypatch.setattr(recorded.volumes[ROOT], "lasting", lambda node: None)
    before = files.dump()
    with recorded.call():
        files.remove("/fifo")
        files.link("/other", "/new")
        files.remove("/other")
    with recorded.call():
        files.remove("/new")
    last = recorded.last()
    for call in (last, last - 1):
        assert recorded.undoing.undo([call]).conflicts == []
    assert files.dump() == before


def test_a_change_by_another_name_since_is_a_conflict(recorded: Recorded, files: Files) -> None:
    """An extended attribute is in no stamp."""
    link(files, "/one", "/other")
    with recorded.call():
        files.change("/one", mode=0o600)
    call = recorded.last()
    with recorded.call():
        files.xattr("/other", b"user.colour", b"red")
    restart(recorded)
    after = recorded.files.dump()
    (conflict,) = recorded.undoing.undo([call]).conflicts
    assert (conflict.path, conflict.reason, conflict.call) == ("/one", "was changed since", f"c{recorded.last()}")
    assert recorded.files.dump() == after


@pytest.mark.parametrize("recorded", ["dir"], indirect=True)
def test_a_link_from_outside_of_the_route_is_named(recorded: Recorded, files: Files) -> None:
    """As a package manager links its cache into a project."""
    directory = recorded.directory.parent
    (directory / "cached").write_bytes(b"cached")
    os.link(directory / "cached", directory / "files" / "one")
    files.link("/one", "/other")
    with recorded.call():
        files.remove("/one")
        files.remove("/other")
    call = recorded.last()
    for _ in range(2):
        undone = recorded.undoing.undo([call])
        assert undone.conflicts == []
        assert undone.partly == ["'/other': its other names are not in the route, so it is a file of its own"]
        assert files.read("/one") == b"cached" and files.attr("/one").node == files.attr("/other").node
        assert (directory / "cached").stat().st_nlink == 1
        check(recorded)  # done again


def test_a_directory_above_that_was_moved_since_is_a_conflict(recorded: Recorded, files: Files) -> None:
    """The path leads to another name of the file."""
    files.mkdir("/d")
    files.mkdir("/e")
    link(files, "/d/f", "/e/f")
    with recorded.call():
        files.remove("/d/f")
    call = recorded.last()
    with recorded.call():
        files.rename("/d", "/e", RENAME_EXCHANGE)
    after = files.dump()
    (conflict,) = recorded.undoing.undo([call]).conflicts
    assert (conflict.path, conflict.reason) == ("/d/f", "is below '/d', which was renamed since")
    assert files.dump() == after
