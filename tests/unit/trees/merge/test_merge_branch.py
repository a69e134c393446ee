"""Merges of real branches: over snapshots, over live routes, and over several routes at once."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from backend_kinds import opened_backend
from for_each import for_each
from hypothesis import example, given, settings
from hypothesis import strategies as st
from merging import (
    OWNER,
    Branched,
    Step,
    a_branch,
    at,
    chmod,
    content,
    link,
    links,
    mkdir,
    remove,
    rename,
    shown,
    symlink,
    write,
)
from merging import make as make_steps
from profiles import examples
from raising import raising
from test_merge import STORIES, tell
from test_merge_random import RENAMES, perform
from together import together

from fusebackend.backends.directory import nodes
from fusebackend.backends.directory import volume as volume_module
from fusebackend.backends.memory import InMemoryVolume
from fusebackend.protocol import RENAME_EXCHANGE, ROOT_NODE, Attr, AttrChanges, Volume
from fusebackend.trees.merge import run as run_module
from fusebackend.trees.merge import tree as tree_module
from fusebackend.volumes import placing

KINDS = ["memory", "dir"]
"""A route that is changed at once, and one that is changed file by file."""

LEVELS = 320
"""More than Python's stack has in a test that bounds it: each level is a step of every walk by a path."""


def fill(volume: Volume) -> None:
    mkdir(volume, b"d")
    write(volume, b"d/x", b"x\n")
    write(volume, b"d/y", b"y\n")
    mkdir(volume, b"d/deep")
    write(volume, b"d/deep/z", b"z\n")
    write(volume, b"a", b"a\n")
    write(volume, b"b", b"b\n")


@pytest.fixture
def branched(tmp_path: Path) -> Iterator[Callable[[str], Branched]]:
    with contextlib.ExitStack() as opened:
        yield lambda kind: opened.enter_context(a_branch(kind, tmp_path, fill))


def conflicts(outcome: Any) -> dict[str, str]:
    return {each.path: each.reason for each in outcome.plan.conflicts}


def test_more_files_than_a_directory_keeps_nodes_of(branched: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of files that nobody holds: each was ESTALE while the merge was planned."""
    monkeypatch.setattr(nodes, "IDLE_FILES", 4)
    trees = branched("dir")
    paths = [b"d%d/e/%d" % (number % 5, number) for number in range(30)]
    for directory in range(5):
        mkdir(trees.main, b"d%d" % directory)
        mkdir(trees.main, b"d%d/e" % directory)
    for path in paths:
        write(trees.main, path, b"1\n2\n3\n")
    trees.branches.delete(["b"])
    trees.branches.create("b")
    for path in paths:
        write(trees.branch, path, b"1\n2\n3\n" + path)
    for path in paths[:20]:
        write(trees.main, path, path + b"\n1\n2\n3\n")
    outcome = trees.merge(lines=True)
    assert not outcome.is_refused and sum(step.data is not None for step in outcome.plan.steps) == 20
    monkeypatch.undo()
    found = shown(trees.main)
    assert {found[path].data for path in paths[:20]} == {path + b"\n1\n2\n3\n" + path for path in paths[:20]}
    assert {found[path].data for path in paths[20:]} == {b"1\n2\n3\n" + path for path in paths[20:]}


@pytest.mark.parametrize("kind", KINDS)
def test_a_tree_deeper_than_pythons_stack(branched: Any, kind: str) -> None:
    trees = branched(kind)
    main, deep = trees.main, b"d/deep" + b"/e" * LEVELS
    levels = [at(main, b"d/deep").node]
    for _ in range(LEVELS):
        levels.append(main.mkdir(levels[-1], b"e", 0o755, OWNER).node)
        main.hold(levels[-1])
    write(main, deep + b"/file", b"first\n")
    trees.branches.delete(["b"])
    trees.branches.create("b")
    with shallow_stack(LEVELS):
        for data in (b"changed\n", b"again\n"):
            write(trees.branch, deep + b"/file", data)
            assert not trees.merge("branch").is_refused
            assert content(main, at(main, deep + b"/file")) == data
            remove(main, deep + b"/file")
            while len(levels) > 1:
                levels.pop()
                main.rmdir(levels[-1], b"e")


@contextlib.contextmanager
def shallow_stack(frames: int) -> Iterator[None]:
    """Bound Python's stack to fewer frames than `frames` calls within one another would take."""
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(frames)
    try:
        yield
    finally:
        sys.setrecursionlimit(usual)


TOLD = [
    "what both changed is refused whole", "lines are merged", "lines that both changed are a conflict",
    "hard links stay links", "merged lines of a file with two names", "a copy in place of a link is another file",
    "a copy in place of a file that main has linked", "a directory that main deleted and the branch changed",
]  # fmt: skip
"""Others depend on a base that stays: a live route has main's renames by the time of the merge."""


@for_each("kind", KINDS)
@for_each("name", TOLD)
def test_a_merge_of_a_branch(kind: str, name: str, tmp_path: Path) -> None:
    story = STORIES[name]
    with a_branch(kind, tmp_path, story.begin) as trees:
        tell(
            story, trees.main, trees.branch,
            lambda keep: trees.merge(keep, story.lines).plan, lambda keep: trees.plan(keep, story.lines),
        )  # fmt: skip


WRITTEN = ("write", b"a", b"")


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(40))
@given(base=RENAMES, branch=RENAMES, main=RENAMES)
@example(base=[WRITTEN], branch=[WRITTEN], main=[WRITTEN, ("remove", b"a", b"")])
def test_the_branch_says_what_it_has_changed(
    kind: str, base: Any, branch: Any, main: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A plan from what the branch says is that of a comparison of all files; and a merge is complete."""
    with a_branch(kind, tmp_path_factory.mktemp("merge"), lambda volume: perform(volume, base)) as trees:
        perform(trees.branch, branch)
        perform(trees.main, main)
        quick, whole = trees.plan("branch"), trees.plan("branch", whole=True)
        assert [step[:4] for step in quick.steps] == [step[:4] for step in whole.steps]
        if kind == "dir":
            return  # the route below has changed what the branch shows
        trees.merge("branch")
        again = trees.plan("branch")
        assert not again.steps


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_what_main_has_not_changed_is_not_read(branched: Any, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as it is old enough: of a younger file the times may be those of another version."""
    trees = branched(kind)
    write(trees.branch, b"a", b"changed\n")
    pieces, read = tree_module.Item.pieces, list[tuple[bytes, object]]()
    monkeypatch.setattr(tree_module.Item, "pieces", lambda item: read.append((item.path, item.volume)) or pieces(item))
    trees.plan()
    assert (b"a", trees.main) in read
    read.clear()
    monkeypatch.setattr(tree_module, "RACY_NS", -(10**18))
    assert [step.path for step in trees.plan().steps] == [b"a"]
    assert (b"a", trees.main) not in read


def test_bytes_of_main_with_the_times_of_those_before_are_not_lost(branched: Any) -> None:
    trees = branched("memory")
    long_ago = AttrChanges(mtime_ns=10**9, ctime_ns=10**9)
    trees.main.setattr(at(trees.main, b"a").node, long_ago)
    trees.branches.delete(["b"])
    trees.branches.create("b")
    write(trees.branch, b"a", b"by the branch\n")
    write(trees.main, b"a", b"A\n")
    trees.main.setattr(at(trees.main, b"a").node, long_ago)
    assert conflicts(trees.merge()) == {"/a": "changed in both"}
    assert content(trees.main, at(trees.main, b"a")) == b"A\n"


def test_times_of_a_live_route_beside_a_frozen_one_do_not_tell_what_main_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listing of a bucket has no time but one that a program may set."""
    of_status = nodes.attr_of

    def listed(node: nodes.Node, status: os.stat_result) -> Attr:
        attr = of_status(node, status)
        attr.ctime_ns = attr.mtime_ns
        return attr

    monkeypatch.setattr(nodes, "attr_of", listed)
    monkeypatch.setattr(volume_module, "attr_of", listed)
    (tmp_path / "live").mkdir()
    file = tmp_path / "live/a"

    def put(text: str) -> None:
        file.write_text(text)
        os.utime(file, ns=(10**9, 10**9))

    put("a\n")
    with contextlib.ExitStack() as opened:
        live = opened.enter_context(contextlib.closing(volume_module.DirectoryVolume(tmp_path / "live")))
        main = opened.enter_context(contextlib.closing(InMemoryVolume()))
        trees = Branched(str(tmp_path / "branches"), {"/": main, "/live": live})
        opened.enter_context(contextlib.closing(trees))
        write(trees.branch, b"live/a", b"by the branch\n")
        put("A\n")
        assert conflicts(trees.merge()) == {"/live/a": "changed in both"}
        assert file.read_text() == "A\n"


def test_names_that_come_and_go_meanwhile_are_no_changes_of_the_branch(
    branched: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file with two names has all directories compared: what the branch has not changed was a conflict, or a file
    that it had made or deleted."""
    place = branched("dir")
    link(place.main, b"a", b"a2")
    write(place.branch, b"a", b"changed\n")
    listing, times = place.main.readdir, itertools.count()

    def changing(node: int, after: bytes, limit: int) -> Any:
        if node == place.main.lookup(ROOT_NODE, b"d").node and not after:
            write(place.main, b"d/x", b"%d\n" % next(times))
            with contextlib.suppress(FileNotFoundError):
                remove(place.main, b"d/y")
            if next(times) // 2 % 2:
                write(place.main, b"d/y", b"y\n")
        return listing(node, after, limit)

    monkeypatch.setattr(place.main, "readdir", changing)
    found = place.plan()
    assert next(times) > 4, "it was listed"
    assert found.conflicts == []
    assert {step.path for step in found.steps} == {b"a", b"a2"}


def test_the_journal_ends_when_what_was_staged_is_gone_for_good(branched: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill takes back what is not durable: the staging directory was there again, and nobody removed it."""
    trees = branched("memory")
    write(trees.branch, b"a", b"changed\n")
    seen: list[object] = []
    monkeypatch.setattr(trees.main, "sync", lambda: seen.append(len(trees.main.readdir(ROOT_NODE, b"", 9))))
    monkeypatch.setattr(trees.main, "change_at_once", raising(OSError(errno.ENOSPC, "full")))
    monkeypatch.setattr(run_module.Journal, "end", lambda journal: seen.append("end"))
    with pytest.raises(OSError, match="full"):
        trees.merge()
    assert seen[-2:] == [len(trees.main.readdir(ROOT_NODE, b"", 9)), "end"]


def test_what_main_has_renamed_was_not_deleted_in_the_branch(branched: Any) -> None:
    """The names of a live directory are kept at the first change of one; a merge deleted what was not there any more by
    its name."""
    trees = branched("dir")
    write(trees.branch, b"d/new", b"")
    rename(trees.main, b"d/x", b"d/renamed")
    rename(trees.main, b"d/deep", b"d/moved")
    assert not trees.merge("branch").plan.decided
    assert {b"d/new", b"d/renamed", b"d/moved/z"} <= shown(trees.main).keys()


def test_what_main_has_put_into_another_directory_is_followed(branched: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Of a live route, where the branch sees the new place as well: it was a conflict, or deleted there."""
    trees = branched("dir")
    mkdir(trees.main, b"e")
    write(trees.branch, b"d/new", b"")
    rename(trees.main, b"d", b"e/d")
    assert not {b"d", b"d/new"} - shown(trees.branch).keys() and b"e/d" not in shown(trees.branch)
    assert not trees.plan().conflicts
    with pytest.raises(FileNotFoundError):
        trees.branch.lookup(at(trees.branch, b"e").node, b"d")
    write(trees.branch, b"e/names", b"")
    assert not trees.merge("branch").plan.decided and not caplog.messages
    assert {b"e/d/new", b"e/d/x", b"e/d/deep/z"} <= shown(trees.main).keys()


def test_what_the_branch_has_found_at_a_new_place_was_not_deleted_at_the_old_one(branched: Any) -> None:
    trees = branched("dir")
    mkdir(trees.main, b"e")
    mkdir(trees.branch, b"names")
    rename(trees.main, b"d", b"e/d")
    mkdir(trees.branch, b"e/d/new")
    assert not trees.merge("branch").plan.decided
    assert {b"names", b"e/d/new", b"e/d/x", b"e/d/deep/z"} <= shown(trees.main).keys()


@pytest.mark.parametrize("kind", ["memory", "dir", "store"])
def test_main_is_free_while_a_merge_reads_the_branch(kind: str, branched: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who looks up a name in the branch has its lock, and asks main with it: the merge and that one waited for each
    other for ever, and with them the mount."""
    trees = branched(kind)
    files = {b"new": b"new\n", b"d/x": b"changed\n", b"large": b"large\n" * (placing.STAGED_BYTES // 5)}
    for path, data in files.items():
        write(trees.branch, path, data)
    opened, count = trees.branch.open, itertools.count()

    def opening(node: int, flags: int) -> Any:
        next(count)
        together(lambda: trees.main.getattr(ROOT_NODE), limit_s=10)
        return opened(node, flags)

    monkeypatch.setattr(trees.branch, "open", opening)
    trees.merge()
    assert next(count) >= len(files)
    assert {path: content(trees.main, at(trees.main, path)) for path in files} == files


def test_a_directory_that_main_moves_between_two_steps_is_not_changed_by_its_old_path(
    branched: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    trees = branched("dir")
    for path in (b"d/x", b"d/y"):
        write(trees.branch, path, b"of the branch\n")
    run = run_module._OneByOne._run

    def moving(steps: Any, step: Any, name: bytes) -> None:
        run(steps, step, name)
        if b"e" not in shown(trees.main):
            rename(trees.main, b"d", b"e")
            mkdir(trees.main, b"d")
            write(trees.main, b"d/x", b"of main\n")
            write(trees.main, b"d/y", b"of main\n")

    monkeypatch.setattr(run_module._OneByOne, "_run", moving)
    outcome = trees.merge()
    found = shown(trees.main)
    assert outcome.is_refused
    assert [found[path].data for path in (b"d/x", b"d/y", b"e/y")] == [b"of main\n", b"of main\n", b"y\n"]


def test_bytes_that_main_has_deleted_are_named(branched: Any) -> None:
    trees = branched("dir")
    rename(trees.branch, b"a", b"new")
    write(trees.branch, b"b", b"branch\n")
    remove(trees.main, b"a")
    before = shown(trees.main)
    with pytest.raises(OSError, match=r"'/new' can't be merged: .* main has deleted its bytes"):
        trees.merge("branch")
    assert shown(trees.main) == before
    trees.merge("main")
    assert shown(trees.main)[b"b"].data == b"branch\n"


ATTRIBUTES: dict[str, Callable[[Volume, bytes, int], object]] = {
    "mode": lambda volume, path, number: chmod(volume, path, 0o700 + number),
    "owner": lambda volume, path, number: give(volume, path, uid=number),
    "xattr": lambda volume, path, number: volume.setxattr(at(volume, path).node, b"user.colour", b"%d" % number),
}
OTHERS: dict[str, Callable[[Volume, bytes, int], object]] = {
    "times": lambda volume, path, number: give(volume, path, mtime_ns=number),
    "bytes": lambda volume, path, number: write(volume, path, b"%d" % number),
    "name": lambda volume, path, number: mkdir(volume, path + b"/%d" % number),
}
TYPES: dict[str, tuple[Callable[[Volume, bytes], object], list[str]]] = {
    "file": (lambda volume, path: write(volume, path, b""), ["mode", "owner", "xattr", "times", "bytes"]),
    "directory": (mkdir, ["mode", "owner", "xattr", "times", "name"]),
    "link": (lambda volume, path: symlink(volume, path, b"a"), ["owner", "times"]),
}
"""How one is made, and what a branch changes of it."""


def give(volume: Volume, path: bytes, **attributes: int) -> None:
    volume.setattr(at(volume, path).node, AttrChanges(**attributes))


def attributes_of(volume: Volume, path: bytes) -> tuple[object, ...]:
    attr = at(volume, path)
    xattrs = {} if stat.S_ISLNK(attr.mode) else volume.xattrs(attr.node)
    return stat.S_IMODE(attr.mode), attr.uid, xattrs


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@for_each("kind", KINDS)
@for_each("again", [False, True])
def test_attributes_are_merged_apart(kind: str, again: bool, tmp_path: Path) -> None:
    """What a branch changes first of a file, main changes another attribute of, or the same one; `again`: the branch is
    opened again in between."""
    changes = {
        b"%s-%s-%s" % tuple(map(str.encode, (type_, ours, theirs))): (type_, ours, theirs)
        for type_, (_, words) in TYPES.items()
        for ours in words
        for theirs in words
        if theirs in ATTRIBUTES
    }

    def begin(volume: Volume) -> None:
        for path, (type_, _, _) in changes.items():
            TYPES[type_][0](volume, path)

    with opened_backend(kind, tmp_path / "expected") as other, a_branch(kind, tmp_path, begin) as trees:
        main, expected, do = trees.main, other.volume, ATTRIBUTES | OTHERS
        begin(expected)
        do["mode"](trees.branch, b"", 1)
        for path, (_, ours, _) in changes.items():
            do[ours](trees.branch, path, 1)
        if again and kind != "memory":
            trees.close()
            trees.open()
        do["owner"](main, b"", 2)
        do["xattr"](main, b"", 2)
        for path, (_, ours, theirs) in changes.items():
            do[theirs](main, path, 2)
            if ours != theirs:
                do[ours](expected, path, 1)
                do[theirs](expected, path, 2)
        both = {path for path, (_, ours, theirs) in changes.items() if ours == theirs}
        found = trees.merges.merge("b").conflicts
        assert {each.path for each in found} == {f"/{path.decode()}" for path in both}
        trees.merges.merge("b", keep="main")
        assert {path: attributes_of(main, path) for path in changes.keys() - both} == {
            path: attributes_of(expected, path) for path in changes.keys() - both
        }
        assert attributes_of(main, b"") == (0o701, 2, {b"user.colour": b"2"})


DECIDED: dict[str, tuple[list[Step], list[Step], list[Step], list[Step]]] = {
    "bytes, again in the branch": ([(write, b"a", b"1")], [(write, b"a", b"2")], [(write, b"a", b"3")], []),
    "bytes, again in main": ([(write, b"a", b"1")], [(write, b"a", b"2")], [], [(write, b"a", b"33")]),
    "deleted here, changed there": ([(remove, b"a")], [(write, b"a", b"2")], [], [(write, b"a", b"33")]),
    "changed here, deleted there": ([(write, b"a", b"1")], [(remove, b"a")], [(write, b"a", b"3")], []),
    "renamed by both": ([(rename, b"a", b"c")], [(rename, b"a", b"e")], [], [(rename, b"e", b"f")]),
    "below a directory that the merge renames": (
        [(rename, b"d", b"e"), (write, b"e/x", b"1")], [(write, b"d/x", b"2")], [], [(write, b"e/x", b"33")],
    ),
    "made in a directory that main has deleted": (
        [(mkdir, b"d/deep/n"), (write, b"d/deep/n/1", b"1")], [(remove, b"d/deep/z"), (remove, b"d/deep")],
        [(write, b"d/deep/n/2", b"2")], [],
    ),
    "a file in place of a new directory": (
        [(mkdir, b"n"), (write, b"n/1", b"1")], [(write, b"n", b"2")], [(write, b"n/1", b"3")], [],
    ),
}  # fmt: skip
"""What branch and main do; after the conflict is decided for main, what one of them does that makes one again."""


@for_each("kind", KINDS)
@for_each("name", DECIDED)
def test_what_was_decided_for_main_stays_so_until_one_side_changes(kind: str, name: str, tmp_path: Path) -> None:
    of_branch, of_main, again_in_branch, again_in_main = DECIDED[name]
    with a_branch(kind, tmp_path, fill) as trees:
        make_steps(trees.branch, of_branch)
        make_steps(trees.main, of_main)
        refused = trees.merges.merge("b")
        assert refused.conflicts and trees.merges.compare("b")[0]
        trees.merges.merge("b", keep="main", dry_run=True)
        assert trees.merges.compare("b")[0], "nothing was decided"
        decided = trees.merges.merge("b", keep="main").decided
        trees.close()
        trees.open()
        kept = shown(trees.main)
        assert trees.merges.compare("b") == (0, 0)
        again = trees.merges.merge("b")
        assert (again.conflicts, len(again.decided), again.changes) == ([], len(decided), [])
        assert shown(trees.main) == kept
        make_steps(trees.branch, again_in_branch)
        make_steps(trees.main, again_in_main)
        assert trees.merges.compare("b")[0] and trees.merges.merge("b").conflicts


MOVED: dict[str, tuple[list[Step], list[Step]]] = {
    "by both": ([(rename, b"a", b"c")], [(rename, b"a", b"e")]),
    "a directory with new names": ([(write, b"d/new", b"1")], [(rename, b"d", b"e")]),
    "out of a directory with new names": ([(write, b"d/new", b"1")], [(rename, b"d/x", b"x"), (rename, b"d", b"e")]),
    "in main alone": ([(write, b"new", b"1")], [(rename, b"a", b"d/a")]),
    "removed": ([(write, b"new", b"1")], [(remove, b"a")]),
}
"""What branch and main do."""


@for_each("case", MOVED.values())
def test_a_branch_that_is_opened_again_has_what_main_has_moved(case: Any, tmp_path: Path) -> None:
    of_branch, of_main = case
    with a_branch("dir", tmp_path, fill) as trees:
        make_steps(trees.branch, of_branch)
        make_steps(trees.main, of_main)
        wanted = shown(trees.branch)
        for _ in range(2):
            trees.close()
            trees.open()
            assert shown(trees.branch) == wanted


@for_each("has_own_names", [False, True])
def test_a_branch_follows_main_that_moves_what_it_knows(has_own_names: bool, tmp_path: Path) -> None:
    with a_branch("dir", tmp_path, fill) as trees:
        main = trees.main
        assert shown(trees.branch) == shown(main)
        if has_own_names:
            remove(trees.branch, b"b")
            remove(main, b"b")
        else:
            rename(main, b"d/deep", b"deep")
            rename(main, b"d", b"deep/d")
            rename(main, b"deep", b"d")
        main.rename(ROOT_NODE, b"d", ROOT_NODE, b"a", RENAME_EXCHANGE)
        assert shown(trees.branch) == shown(main)


class Killed(BaseException):
    """The server is gone: nothing is tidied."""


@settings(max_examples=examples(40))
@given(base=RENAMES, branch=RENAMES, main=RENAMES, at=st.integers(0, 12), before=st.booleans())
@example(  # the base has a directory by its name, and the route something else
    base=[("supplant", b"d/a", b"d/e"), ("mkdir", b"f", b""), ("supplant", b"d/b", b"b"), ("symlink", b"d", b"x")],
    branch=[("link", b"d/e", b"d"), ("replace", b"d", b""), ("supplant", b"d", b"f")],
    main=[("rename", b"d/e/a", b"f/a"), ("rename", b"f", b"d/e/a"), ("chmod", b"f", b"750")],
    at=12,
    before=True,
)
def test_a_killed_merge_of_a_live_route_is_resumed(
    base: Any, branch: Any, main: Any, at: int, before: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Killed before or after any of its steps, main is in the end as without the kill."""
    found = []
    for left in (-1, at):
        directory = tmp_path_factory.mktemp("merge")
        with a_branch("dir", directory, lambda volume: perform(volume, base)) as trees:
            perform(trees.branch, branch)
            perform(trees.main, main)
            trees.branch.sync()
            if left >= 0:
                with killed_at(left, before=before), suppressed(errno.ESTALE):
                    trees.merge("branch")
                trees.close()
                trees.open()
            with suppressed(errno.ESTALE):  # bytes that main has deleted
                trees.merge("branch")
            found.append((shown(trees.main), links(trees.main)))
    assert found[1] == found[0]


@contextlib.contextmanager
def suppressed(number: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno != number:
            raise


@contextlib.contextmanager
def killed_at(left: int, *, before: bool) -> Iterator[None]:
    """Have a merge killed before or after so many of its steps."""
    real = run_module._OneByOne._run

    def killed(*args: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0 and before:
            raise Killed
        real(*args)
        if left < 0:
            raise Killed

    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Killed):
        patch.setattr(run_module._OneByOne, "_run", killed)
        yield
