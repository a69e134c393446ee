"""Calls taken back: what they did, and nothing that others have done."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from for_each import for_each
from recorded import Agent, Files, Recorded, recorded_of

from fusebackend.backends import FilesystemBackend
from fusebackend.base.paths import ROOT
from fusebackend.history import undo as undo_module
from fusebackend.history.history_file import Filter
from fusebackend.history.records import Image
from fusebackend.protocol import RENAME_EXCHANGE, AttrChanges
from fusebackend.testing.posix.case import fails

MTIME_NS = 1_500_000_000_123_456_789

Step = tuple[Any, ...]
"""A method of `Files`, and its arguments."""

KINDS = ["memory", "sqlite", "dir"]


@pytest.fixture(params=KINDS)
def recorded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Recorded]:
    with recorded_of(request.param, tmp_path) as recorded:
        yield recorded


@pytest.fixture
def files(recorded: Recorded) -> Files:
    return recorded.files


TREE: list[Step] = [
    ("mkdir", "/repo"),
    ("mkdir", "/repo/sub", 0o711),
    ("write", "/repo/one", b"one\n" * 50_000),
    ("write", "/repo/sub/two", b"two\n", 0o600),
    ("change", "/repo/sub/two", {"mtime_ns": MTIME_NS}),
    ("xattr", "/repo/one", b"user.colour", b"red"),
    ("link", "/repo/one", "/repo/sub/same"),
    ("symlink", "one", "/repo/link"),
    ("fifo", "/repo/fifo"),
    ("write", "/repo/empty", b""),
]
"""A file of each kind."""


def plant(recorded: Recorded) -> None:
    with recorded.call("plant"):
        recorded.files.make(*TREE)


@pytest.fixture
def planted(recorded: Recorded) -> Files:
    plant(recorded)
    return recorded.files


def conflicts(recorded: Recorded, *calls: int, **options: Any) -> list[tuple[str, str, str | None]]:
    """Undo these calls, or the last one; return what is in the way."""
    result = recorded.undoing.undo(list(calls), **options)
    return [(each.path, each.reason, each.call) for each in result.conflicts]


def check(recorded: Recorded, **options: Any) -> Any:
    """Undo the last call; it must not be refused."""
    result = recorded.undoing.undo([recorded.last()], **options)
    assert result.conflicts == []
    return result


class Call(NamedTuple):
    """What a call does to the tree. Its undo is not refused, and makes all as it was."""

    steps: list[Step]
    undone: list[str] = []
    """The changes of the undo, where they are all of one kind."""

    first: list[Step] = []
    """What was done before the call."""


UNREADABLE = ("change", "/repo/sub", {"mode": 0o500})
# root alone removes names from a directory that can't be written
READABLE = [("change", "/repo/gone", {"mode": 0o700})] * (os.geteuid() != 0)

CALLS = {
    "a tree is removed": Call([("remove_tree", "/repo")], ["create"] * 8),
    "bytes are replaced": Call(
        [("append", "/repo/one", b"more"), ("write", "/repo/one", b"short"), ("change", "/repo/one", {"mode": 0o600}),
         ("xattr", "/repo/one", b"user.colour", b"blue"), ("write", "/repo/empty", b"full")],
        ["replace"] * 2,
    ),
    # the extended attribute first: it needs write permission, except of root
    "attributes are changed": Call(
        [("change", "/repo/sub", {"mode": 0o755}), ("xattr", "/repo/one", b"user.other", b"x"),
         ("change", "/repo/one", {"mode": 0o400, "mtime_ns": 1})],
        ["attributes"] * 2,
    ),
    "as `sed -i` and most editors": Call(
        [("write", "/repo/sub/sedXYZ", b"edited"), ("rename", "/repo/sub/sedXYZ", "/repo/sub/two")],
    ),
    "renames and exchanges": Call(
        [("rename", "/repo/sub", "/repo/moved"), ("rename", "/repo/moved/two", "/repo/two"),
         ("write", "/repo/two", b"changed where it is now"), ("rename", "/repo/two", "/repo/one", RENAME_EXCHANGE)],
    ),
    "as `chmod -R u+w` and `rm -rf`": Call(
        [("change", "/repo/sub", {"mode": 0o700}), ("xattr", "/repo/sub", b"user.other", b"x"),
         ("remove_tree", "/repo/sub")],
        first=[UNREADABLE],
    ),
    "a directory is moved before it is removed": Call(
        [("rename", "/repo/sub", "/repo/gone"), ("mkdir", "/repo/sub", 0o755), *READABLE, ("remove_tree", "/repo/gone"),
         ("rename", "/repo/sub", "/repo/gone")],
        first=[UNREADABLE],
    ),
    # the records of one call at one path are of three files
    "a name is used again": Call(
        [("write", "/repo/sub/two", b"second bytes"), ("remove", "/repo/sub/two"), ("write", "/repo/sub/two", b"third"),
         ("rename", "/repo/sub/two", "/repo/three"), ("mkdir", "/repo/sub/two"),
         ("write", "/repo/sub/two/inner", b"inner")],
    ),
    "a file loses its names one by one": Call(  # the last one to a file that is renamed over it
        [("write", "/repo/one", b"after!"), ("remove", "/repo/sub/same"), ("write", "/repo/sub/same", b"new"),
         ("rename", "/repo/sub/same", "/repo/one")],
    ),
}  # fmt: skip


@for_each("kind", KINDS)
@for_each("name", CALLS)
def test_all_is_as_it_was(kind: str, name: str, tmp_path: Path) -> None:
    call = CALLS[name]
    with recorded_of(kind, tmp_path) as recorded:
        plant(recorded)
        files = recorded.files
        files.make(*call.first)
        before, node = files.dump(), files.attr("/repo/one").node
        with recorded.call():
            files.make(*call.steps)
        result = check(recorded)
        assert files.dump() == before
        assert (result.partly, result.kept) == ([], [])
        assert call.undone in ([], [each.change for each in result.changes])
        if name == "bytes are replaced":
            assert files.attr("/repo/one").node == node, "processes that have it open see the old bytes"


def test_an_undo_of_an_undo_of_an_undo(recorded: Recorded, files: Files) -> None:
    """The call is undone again, so it can't be undone twice."""
    files.write("/one", b"one")
    files.write("/two", b"two")
    with recorded.call():
        files.rename("/one", "/two", RENAME_EXCHANGE)
    call, before = recorded.last(), files.dump()
    for _ in range(3):
        check(recorded)
    with fails(errno.EALREADY, match=f"c{call} was taken back by c{call + 1} already"):
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
    recorded.undoing.undo(wanted=Filter(by="planner"))
    assert files.dump().keys() == {"/", "/coder"}
    assert recorded.undoing.undo(wanted=Filter(by="nobody")).calls == []


def test_what_others_changed_since_is_named(recorded: Recorded, planted: Files) -> None:
    with recorded.call("work") as work:
        planted.write("/repo/one", b"new")
        planted.write("/repo/sub/two", b"new")
        planted.write("/repo/made", b"made")
        planted.mkdir("/repo/directory")
    with recorded.call("others") as others:
        planted.append("/repo/one", b" and theirs")
        planted.append("/repo/made", b" and theirs")
        planted.write("/repo/directory/theirs", b"theirs")
    before = planted.dump()
    refused = recorded.undoing.undo([work.number])
    assert [(each.path, each.call) for each in refused.conflicts] == [
        (path, f"c{others.number}") for path in ("/repo/directory", "/repo/made", "/repo/one")
    ]  # fmt: skip
    assert refused.undo is None and refused.changes == []
    assert planted.dump() == before
    assert recorded.history.call(work.number).undone_by is None
    kept = recorded.undoing.undo([work.number], keep_newer=True)
    assert [each.path for each in kept.kept] == ["/repo/directory", "/repo/made", "/repo/one"]
    assert planted.read("/repo/one") == b"new and theirs"
    assert planted.read("/repo/sub/two") == b"two\n"


def test_what_nobody_recorded_is_named_too(recorded: Recorded, files: Files) -> None:
    with recorded.call():
        files.write("/file", b"x")
    files.volume.setattr(files.attr("/file").node, AttrChanges(mtime_ns=MTIME_NS))
    assert conflicts(recorded) == [("/file", "has changed since", None)]


def test_a_change_between_two_of_the_call_is_kept(recorded: Recorded, planted: Files) -> None:
    """Its bytes before the first change are not those of the other one."""
    agent = Agent(recorded, "work", "one")
    agent.do(lambda: planted.write("/repo/one", b"mine"))
    with recorded.call("theirs"):
        planted.append("/repo/one", b" theirs")
    agent.do(lambda: planted.append("/repo/one", b" mine"))
    number = agent.end()
    assert [path for path, *_ in conflicts(recorded, number)] == ["/repo/one"]
    assert conflicts(recorded, number, keep_newer=True) == []
    assert planted.read("/repo/one") == b"mine theirs"


def test_lines_of_others_stay(recorded: Recorded, files: Files) -> None:
    lines = b"".join(b"line %d\n" % number for number in range(20))
    with recorded.call("plant"):
        files.write("/text", lines)
        files.write("/bytes", lines)
    with recorded.call("work") as work:
        files.write("/text", lines.replace(b"line 3\n", b"mine\n"))
        files.write("/other", b"x")
    with recorded.call("others"):
        files.write("/text", files.read("/text").replace(b"line 16\n", b"theirs\n"))
    merged = recorded.undoing.undo([work.number], merge_lines=True)
    assert merged.conflicts == []
    assert {(each.change, each.path) for each in merged.changes} == {("merge", "/text"), ("remove", "/other")}
    assert files.read("/text") == lines.replace(b"line 16\n", b"theirs\n")
    check(recorded)
    assert b"mine" in files.read("/text") and b"theirs" in files.read("/text")


def test_lines_that_both_changed_are_a_conflict(recorded: Recorded, files: Files) -> None:
    files.write("/text", b"a\nb\nc\n")
    with recorded.call("work") as work:
        files.write("/text", b"a\nB\nc\n")
    with recorded.call("others"):
        files.write("/text", b"a\nBB\nc\n")
    assert [path for path, *_ in conflicts(recorded, work.number, merge_lines=True)] == ["/text"]


def test_bytes_that_are_lost_are_named(recorded: Recorded, planted: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded.images, "keep", lambda volume, attr: Image("lost", "larger than 64 MiB"))
    with recorded.call("rm"):
        planted.remove("/repo/sub/two")
    reason = "can't come back, for its earlier bytes were not kept: larger than 64 MiB"
    assert conflicts(recorded) == [("/repo/sub/two", reason, None)]


def test_a_replaced_file_without_bytes_comes_back_as_its_other_name(
    recorded: Recorded, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.write("/new", b"new")
    files.write("/old", b"old")
    files.link("/old", "/other")
    before = files.dump()
    monkeypatch.setattr(recorded.images, "keep", lambda volume, attr: Image("lost", "larger than 64 MiB", attr.node))
    with recorded.call("mv"):
        files.rename("/new", "/old")
    check(recorded)
    assert files.dump() == before
    with recorded.call("mv"):
        files.rename("/new", "/old")
    files.remove("/other")
    reason = "can't come back, for its earlier bytes were not kept: larger than 64 MiB"
    assert [(path, why) for path, why, _ in conflicts(recorded)] == [("/old", reason)]


def test_a_dry_run_changes_nothing(recorded: Recorded, planted: Files) -> None:
    with recorded.call():
        planted.remove_tree("/repo")
    before, last = planted.dump(), recorded.last()
    dry = recorded.undoing.undo(dry_run=True)
    assert dry.undo is None and planted.dump() == before and recorded.last() == last
    assert recorded.undoing.undo().changes == dry.changes


def test_a_command_that_goes_on_is_not_taken_back(recorded: Recorded, files: Files) -> None:
    files.write("/file", b"x")
    with recorded.call("make"):
        calls = recorded.recorder.calls
        call = calls.current()
        end = calls.started(call, os.getpid()) if os.getsid(0) == os.getpid() else None
        files.write("/file", b"y")
        if end is None:
            calls._commands["session", -1] = call
        with pytest.raises(OSError, match="is still going on"):
            recorded.undoing.undo([call.number])


def at_step(patch: pytest.MonkeyPatch, number: int, work: Callable[[], None]) -> None:
    """Do something before the step of an undo with this number."""
    making, steps = undo_module._Making._placed, itertools.count(1)

    def step(self: Any, *words: Any) -> Any:
        if next(steps) == number:
            work()
        return making(self, *words)

    patch.setattr(undo_module._Making, "_placed", step)


def full() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def killed() -> None:
    raise Killed


def work(recorded: Recorded) -> None:
    """A call with a change of each kind: 12 records or so."""
    with recorded.call("work"):
        recorded.files.make(
            ("write", "/repo/one", b"new"), ("remove", "/repo/sub/two"), ("rename", "/repo/sub", "/repo/moved"),
            ("write", "/repo/made", b"made"), ("rename", "/repo/made", "/repo/empty"), ("remove", "/repo/link"),
            ("change", "/repo/moved", {"mode": 0o700}), ("mkdir", "/repo/directory"),
            ("write", "/repo/directory/file", b"file"),
        )  # fmt: skip


@for_each("kind", KINDS)
@for_each("after", range(1, 10))
def test_an_error_takes_everything_back(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    with recorded_of(kind, tmp_path) as recorded:
        plant(recorded)
        work(recorded)
        before, call = recorded.files.dump(), recorded.last()
        with monkeypatch.context() as patch:
            at_step(patch, after, full)
            with pytest.raises(OSError, match="No space left"):
                recorded.undoing.undo()
        assert recorded.files.dump() == before
        assert recorded.undoing.undo().calls == [f"c{call}"], "it can be tried again"


def restart(recorded: Recorded) -> None:
    """Go on with another server: a directory's files have other numbers there."""
    recorded.close()
    directory = recorded.directory.parent / "files"
    is_plain = directory.is_dir()
    recorded.open({ROOT: FilesystemBackend(directory, virtual_mode=True).volume} if is_plain else None)


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
            at_step(patch, after, killed)
            patch.setattr(recorded.undoing, "_take_back", lambda number, error: None)
            with pytest.raises(Killed):
                recorded.undoing.undo()
        restart(recorded)
        again = recorded.undoing.undo()
        assert again.conflicts == [] and again.calls == [f"c{call}"]
        assert recorded.files.dump() == before
        assert recorded.history.call(call).undone_by is not None


def test_a_killed_undo_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with recorded_of("dir", tmp_path) as recorded:
        with recorded.call():
            recorded.files.make(("mkdir", "/d"), ("write", "/d/file", bytes(2 << 20)))
        with recorded.call():
            recorded.files.remove("/d/file")

        def kill(*given: Any) -> None:
            recorded.history._open.clear()  # no call comes to its end
            raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(recorded.undoing, "_take_back", lambda number, error: None)
            patch.setattr(recorded.history, "drop", lambda numbers: None)
            for name in ("rename", "unlink"):
                patch.setattr(recorded.files.volume, name, kill)
            with pytest.raises(Killed):
                recorded.undoing.undo()
        directory = tmp_path / "files" / "d"
        assert [name.startswith(".fusebackend-placing-") for name in os.listdir(directory)] == [True]
        restart(recorded)
        recorded.recorder.stamp_interrupted()
        assert os.listdir(directory) == []


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
    other = Agent(recorded, "another", "other")

    def meanwhile() -> None:
        other.do(lambda: files.append("/two", b" and another's"))
        other.end()
        full()

    with monkeypatch.context() as patch:
        at_step(patch, 3, meanwhile)
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
    recorded.recorder.routes = {}
    assert [reason for _, reason, _ in conflicts(recorded)] == ["belongs to a route that is not mounted any more"]


def link(files: Files, old: str, new: str) -> None:
    if old == "/fifo":
        files.fifo(old)
    elif old == "/symlink":
        files.symlink("target", old)
    else:
        files.write(old, b"before")
    files.link(old, new)


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


def test_a_change_by_another_name_since_is_a_conflict(recorded: Recorded, files: Files) -> None:
    """An extended attribute is in no stamp."""
    link(files, "/one", "/other")
    with recorded.call() as call:
        files.change("/one", mode=0o600)
    with recorded.call():
        files.xattr("/other", b"user.colour", b"red")
    restart(recorded)
    after = recorded.files.dump()
    assert conflicts(recorded, call.number) == [("/one", "was changed since", f"c{recorded.last()}")]
    assert recorded.files.dump() == after


@pytest.mark.parametrize("recorded", ["dir"], indirect=True)
def test_a_link_from_outside_of_the_route_is_named(recorded: Recorded, files: Files) -> None:
    """As a package manager links its cache into a project."""
    directory = recorded.directory.parent
    (directory / "cached").write_bytes(b"cached")
    os.link(directory / "cached", directory / "files" / "one")
    files.link("/one", "/other")
    with recorded.call() as call:
        files.remove("/one")
        files.remove("/other")
    for _ in range(2):
        undone = recorded.undoing.undo([call.number])
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
    with recorded.call() as call:
        files.remove("/d/f")
    with recorded.call():
        files.rename("/d", "/e", RENAME_EXCHANGE)
    after = files.dump()
    reason = "is below '/d', which was renamed since"
    assert [each[:2] for each in conflicts(recorded, call.number)] == [("/d/f", reason)]
    assert files.dump() == after


def test_what_came_past_the_history_is_not_taken_for_what_was_there(recorded: Recorded, planted: Files) -> None:
    """The history says nothing of it, so no later call is in the way."""
    volume = planted.volume
    with recorded.call("removes one of two names"):
        planted.remove("/repo/one")
    volume.rename(*planted.at("/repo/sub/same"), *planted.at("/repo/one"), 0)
    assert conflicts(recorded) == [("/repo/one", "has been made anew", None)]
    with recorded.call("renames"):
        planted.rename("/repo/sub/two", "/repo/three")
    volume.link(planted.attr("/repo/empty").node, *planted.at("/repo/sub/two"))
    anew = "has been made anew, since it was renamed to '/repo/three'"
    assert conflicts(recorded) == [("/repo/sub/two", anew, None)]
