"""`plan`: what a three-way merge takes from a branch, and what it refuses."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import merging
import pytest
from for_each import for_each
from merging import Step, Three, chmod, link, links, make, mkdir, remove, rename, replace, shown, write

from fusebackend.base.errors import oserror
from fusebackend.base.paths import ROOT
from fusebackend.protocol import AttrChanges, Volume
from fusebackend.trees.merge.plan import MergePlan, Side, plan
from fusebackend.trees.merge.run import Merge, Outcome
from fusebackend.volumes import placing

LINES = b"".join(b"line %d\n" % number for number in range(20))


def fill(volume: Volume) -> None:
    mkdir(volume, b"d")
    write(volume, b"d/x", b"x\n")
    write(volume, b"d/y", b"y\n")
    mkdir(volume, b"d/deep")
    write(volume, b"d/deep/z", b"z\n")
    write(volume, b"lines", LINES)
    write(volume, b"a", b"a\n")


@pytest.fixture
def trees() -> Three:
    return Three(fill)


def planned(trees: Three, keep: Side | None = None, lines: bool = False, paths: Any = (b"",)) -> MergePlan:
    return plan(*trees.trees(), keep=keep, lines=lines, paths=paths)


def run(
    trees: Three, tmp_path: Path, keep: Side | None = None, lines: bool = False, paths: Any = (b"",), **options: Any
) -> Outcome:
    journal = str(tmp_path / "b.merge")
    return Merge("b", {ROOT: trees.main}, lambda: planned(trees, keep, lines, paths), journal, **options).run()


def conflicts(plan: MergePlan) -> dict[str, str]:
    return {each.path: each.reason for each in plan.conflicts}


def words(plan: MergePlan) -> list[str]:
    return [f"{step.word} {step.path.decode()} {step.to_path.decode()}".strip() for step in plan.steps]


Shown = dict[bytes, Any] | list[bytes] | None
"""Of some paths: the bytes, (mode, bytes, extended attributes), or None where nothing is. Or all names there are. None
stands for the same as in the branch, with the same links."""


class Story(NamedTuple):
    """What both sides do, and what a merge makes of main. One more merge does nothing.

    Where there are conflicts the merge changes nothing; further ones decide them by `kept`, one after the other.
    """

    branch: list[Step] = []
    main: list[Step] = []
    base: list[Step] = []
    is_filled: bool = True
    knows_nodes: tuple[bool, ...] = (True,)
    lines: bool = False
    paths: tuple[bytes, ...] = (b"",)
    conflicts: dict[str, str] = {}
    after: Shown = {}
    kept: dict[Any, Shown] = {}
    merged: tuple[bytes, ...] = ()
    links: list[set[bytes]] | None = None
    nodes: dict[bytes, bytes] = {}
    """Files of main that must be the same ones, by their new paths."""

    words: list[str] | None = None
    """The plan."""

    later: list[Step] = []
    """Steps of main, after which a merge has nothing to do either."""

    def begin(self, volume: Volume) -> None:
        """Make the base."""
        make(volume, [*[(fill,)] * self.is_filled, *self.base])


def xattr(volume: Volume, path: bytes, name: bytes) -> None:
    volume.setxattr(merging.at(volume, path).node, name, b"1")


def times(volume: Volume, path: bytes, **times_ns: int) -> None:
    volume.setattr(merging.at(volume, path).node, AttrChanges(**times_ns))


def edited(line: int, text: bytes) -> bytes:
    return LINES.replace(b"line %d\n" % line, text)


BRANCH_LINES = edited(3, b"branch\n")
MERGED_LINES = BRANCH_LINES.replace(b"line 15\n", b"main\n")
HAS_ANOTHER_NAME = "deleted in the branch, has another name in main"
INTO_EACH_OTHER = [(mkdir, b"e")]
COPIES = [(write, b"a", b"a\n"), (write, b"b", b"a\n")]
TWINS = [(write, b"a", b"a\n"), (link, b"a", b"b"), (link, b"a", b"c"), (link, b"a", b"d")]

STORIES: dict[str, Story] = {
    "a renamed directory is renamed and not copied": Story(
        branch=[(rename, b"d", b"e")], words=["move d e"], nodes={b"d/deep/z": b"e/deep/z"}, after=None,
    ),
    "a file that main changed is renamed with its change": Story(
        branch=[(rename, b"d", b"e")],
        main=[(write, b"d/x", b"changed\n"), (write, b"d/new", b"new\n")],
        after={b"e/x": b"changed\n", b"e/new": b"new\n", b"d": None},
    ),
    "a change finds a directory that main renamed": Story(
        branch=[(write, b"d/x", b"changed\n"), (write, b"d/new", b"new\n")],
        main=[(rename, b"d", b"e")],
        after={b"e/x": b"changed\n", b"e/new": b"new\n", b"d": None},
    ),
    "attributes find a file that main renamed": Story(
        branch=[(chmod, b"a", 0o600)], main=[(rename, b"a", b"b")], after={b"a": None, b"b": (0o600, b"a\n", ())},
    ),
    "bytes do not": Story(
        branch=[(write, b"a", b"changed\n")],
        main=[(rename, b"a", b"b")],
        conflicts={"/b": "renamed in main, changed in the branch as '/a'"},
        kept={"branch": {b"a": b"changed\n", b"b": b"a\n"}},
    ),
    "both sides rename a file": Story(
        branch=[(rename, b"a", b"b")],
        main=[(rename, b"a", b"c")],
        conflicts={"/c": "renamed in main, and to '/b' in the branch"},
        kept={"branch": {b"b": b"a\n", b"c": None}},
    ),
    "directories that are renamed into each other": Story(
        base=INTO_EACH_OTHER,
        branch=[(rename, b"d", b"e/d")],
        main=[(rename, b"e", b"d/e")],
        conflicts={"/d": "renamed into itself by both"},
    ),
    "and a file in the place of one": Story(  # what can't be decided stays a conflict
        base=INTO_EACH_OTHER,
        branch=[(rename, b"d", b"e/d"), (rename, b"a", b"d")],
        main=[(rename, b"e", b"d/e")],
        conflicts={"/d": "renamed into itself by both"},
    ),
    "a file and a directory change places": Story(
        branch=[(rename, b"d", b"t"), (rename, b"a", b"d"), (rename, b"t", b"a")], after=None,
    ),
    "an editor's rename is a change of the file": Story(
        branch=[(replace, b"a", b"branch\n")], main=[(chmod, b"a", 0o600)], after={b"a": (0o600, b"branch\n", ())},
    ),
    "what both changed is refused whole": Story(
        branch=[(write, b"a", b"branch\n"), (write, b"d/x", b"branch\n")],
        main=[(write, b"a", b"main\n")],
        conflicts={"/a": "changed in both"},
        kept={"main": {b"a": b"main\n", b"d/x": b"branch\n"}, "branch": {b"a": b"branch\n"}},
    ),
    "lines are merged": Story(
        branch=[(write, b"lines", BRANCH_LINES)],
        main=[(write, b"lines", edited(15, b"main\n"))],
        lines=True,
        merged=(b"lines",),
        after={b"lines": MERGED_LINES},
    ),
    "unless nobody asks for it": Story(
        branch=[(write, b"lines", BRANCH_LINES)],
        main=[(write, b"lines", edited(15, b"main\n"))],
        conflicts={"/lines": "changed in both"},
    ),
    "lines that both changed are a conflict": Story(
        branch=[(write, b"lines", BRANCH_LINES)],
        main=[(write, b"lines", edited(3, b"main\n"))],
        lines=True,
        conflicts={"/lines": "changed in both"},
    ),
    "a directory that the branch deleted and main changed": Story(
        branch=[(remove, b"d")],
        main=[(write, b"d/x", b"changed\n"), (write, b"d/new", b"new\n")],
        conflicts={
            "/d/x": "deleted in the branch, changed in main",
            "/d/new": "made in main, in '/d', which the branch deleted",
        },
        kept={"main": [b"a", b"d", b"d/new", b"d/x", b"lines"], "branch": [b"a", b"lines"]},
    ),
    "a directory that main deleted and the branch changed": Story(
        branch=[(write, b"d/x", b"changed\n"), (write, b"d/deep/new", b"new\n")],
        main=[(remove, b"d")],
        conflicts={
            "/d/x": "changed in the branch, deleted in main",
            "/d/deep/new": "in '/d/deep', which main deleted",
        },
        kept={"branch": [b"a", b"d", b"d/deep", b"d/deep/new", b"d/x", b"lines"]},
    ),
    "only the named paths are merged": Story(
        branch=[(write, b"a", b"branch\n"), (mkdir, b"new"), (write, b"new/one", b"1"), (write, b"new/two", b"2")],
        paths=(b"new/one",),
        after={b"new/one": b"1", b"new/two": None, b"a": b"a\n"},
    ),
    "hard links stay links": Story(
        base=[(link, b"a", b"b"), (link, b"a", b"d/c")],
        branch=[(write, b"a", b"changed\n"), (link, b"b", b"new"), (write, b"fresh", b"1\n"),
                (link, b"fresh", b"d/fresh")],
        after=None,
    ),
    "attributes are merged apart": Story(
        branch=[(xattr, b"a", b"user.branch"), (chmod, b"a", 0o751)],
        main=[(xattr, b"a", b"user.main")],
        nodes={b"a": b"a"},
        after={b"a": (0o751, b"a\n", ((b"user.branch", b"1"), (b"user.main", b"1")))},
    ),
    "a file in place of a link leaves the other names alone": Story(
        is_filled=False,
        base=[(write, b"d", b"same\n", 0o644), (link, b"d", b"b"), (write, b"a", b"", 0o640)],
        branch=[(write, b"a", b"same\n"), (rename, b"a", b"b")],  # the bytes that it had, and another mode
        knows_nodes=(True, False),
        after=None,
    ),
    "a file that was changed and renamed is merged once": Story(
        branch=[(replace, b"a", b"new\n"), (write, b"d/y", b"changed\n"), (rename, b"d/y", b"d/new")], after=None,
    ),
    "a file with a new link that both have renamed is no conflict": Story(
        branch=[(link, b"a", b"also"), (rename, b"a", b"new")],
        main=[(link, b"a", b"also"), (rename, b"a", b"new")],
        words=[],
    ),
    # After the merge main would have renamed the file, as far as anybody can tell: it is decided at once.
    "a file that the branch deleted and main gave another name": Story(
        branch=[(remove, b"a")],
        main=[(link, b"a", b"b"), (link, b"a", b"d/c")],
        conflicts={"/b": HAS_ANOTHER_NAME, "/d/c": HAS_ANOTHER_NAME},
        kept={"main": {b"a": b"a\n", b"b": b"a\n", b"d/c": b"a\n"}, "branch": {b"a": None, b"b": None, b"d/c": None}},
    ),
    "and replaced": Story(
        branch=[(remove, b"a")],
        main=[(link, b"a", b"b"), (link, b"a", b"d/c"), (replace, b"a", b"a\n")],
        conflicts={"/b": HAS_ANOTHER_NAME, "/d/c": HAS_ANOTHER_NAME},
        kept={"main": {b"a": b"a\n", b"b": b"a\n", b"d/c": b"a\n"}, "branch": {b"a": None, b"b": None, b"d/c": None}},
    ),
    "names that a deleted file had before stay": Story(
        base=[(link, b"a", b"b")], branch=[(remove, b"a")], after={b"a": None, b"b": b"a\n"},
    ),
    "attributes of a file with two names are set once": Story(
        base=[(link, b"a", b"b")],
        branch=[(chmod, b"a", 0o640)],
        main=[(times, b"a", {"atime_ns": 1})],  # a read would move it
        words=["attributes a"],
    ),
    "a new link of the branch to a file that main changes": Story(
        branch=[(link, b"a", b"new")],
        main=[(chmod, b"a", 0o640)],
        links=[{b"a", b"new"}],
        knows_nodes=(True, False),
        later=[(write, b"new", b"main\n")],
    ),
    "a file with a new name in both, which both change": Story(
        branch=[(link, b"a", b"new"), (write, b"a", b"branch\n")],
        main=[(link, b"a", b"new"), (write, b"new", b"main\n")],
        conflicts={"/a": "changed in both", "/new": "changed in both"},
        kept={"branch": {b"a": b"branch\n", b"new": b"branch\n"}},
        knows_nodes=(True, False),
        links=[{b"a", b"new"}],
    ),
    "merged lines of a file with two names": Story(
        base=[(link, b"lines", b"also")],
        branch=[(write, b"lines", BRANCH_LINES)],
        main=[(write, b"lines", edited(15, b"main\n"))],
        lines=True,
        merged=(b"also",),  # the other name is a link to it
        links=[{b"also", b"lines"}],
        after={b"also": MERGED_LINES},
    ),
    "merged lines of a name that main has parted": Story(
        base=[(link, b"lines", b"also")],
        branch=[(write, b"lines", BRANCH_LINES)],
        main=[(replace, b"also", edited(15, b"main\n"))],
        lines=True,
        merged=(b"also",),
        after={b"lines": BRANCH_LINES, b"also": MERGED_LINES},
    ),
    "a new link to merged lines": Story(
        branch=[(write, b"lines", BRANCH_LINES), (link, b"lines", b"also")],
        main=[(write, b"lines", edited(15, b"main\n"))],
        lines=True,
        merged=(b"lines",),
        links=[{b"also", b"lines"}],
    ),
    "attributes of one name and other changes of the others": Story(
        is_filled=False,
        base=TWINS,
        branch=[(replace, b"b", b"branch\n"), (remove, b"c"), (rename, b"d", b"e"), (chmod, b"a", 0o600)],
        after=None,
    ),
    "a file that the branch made and a link that main made": Story(
        branch=[(write, b"new", b"a\n", 0o600)],
        main=[(link, b"a", b"new")],
        conflicts={"/new": "made in both, and not the same"},
        kept={"branch": None},
        knows_nodes=(True, False),
        links=[],
    ),
    # `cp -p a t; mv t a`: bytes and attributes are the same, but a write to one is no write to the other any more.
    "a copy in place of a link is another file": Story(
        is_filled=False,
        base=[(write, b"a", b"a\n"), (link, b"a", b"b")],
        branch=[(replace, b"a", b"a\n")],
        links=[],
    ),
    "a copy in place of a file that main has linked": Story(
        is_filled=False,
        base=[(write, b"a", b"a\n")],
        branch=[(replace, b"a", b"a\n")],
        main=[(link, b"a", b"b")],
        links=[],
    ),
    "a link in place of a copy is the other file": Story(  # `ln -f a b`, and b had the same bytes and attributes
        is_filled=False,
        base=COPIES,
        branch=[(remove, b"b"), (link, b"a", b"b")],
        links=[{b"a", b"b"}],
        later=[(chmod, b"a", 0o600)],
    ),
    "a link to a new file in place of a copy": Story(
        is_filled=False,
        base=COPIES,
        branch=[(replace, b"a", b"a\n"), (remove, b"b"), (link, b"a", b"b")],
        links=[{b"a", b"b"}],
        later=[(chmod, b"a", 0o600)],
    ),
    "a file replaces the directory that it was in": Story(
        branch=[(rename, b"d/x", b"t"), (rename, b"d/y", b"saved"), (remove, b"d"), (rename, b"t", b"d")], after=None,
    ),
    "and one far below": Story(
        branch=[(rename, b"d/deep/z", b"t"), (rename, b"d/y", b"saved"), (remove, b"d"), (rename, b"t", b"d")],
        after=None,
    ),
    "a directory goes into one that was in it": Story(
        branch=[(rename, b"d/deep", b"t"), (rename, b"d", b"t/d")], after=None,
    ),
    "a symbolic link and its directory change places": Story(
        base=[(merging.symlink, b"d/l", b"nowhere")],
        branch=[(rename, b"d/l", b"t"), (rename, b"d", b"e"), (rename, b"t", b"d")],
        after=None,
    ),
    "a file that both have renamed and main has linked": Story(
        branch=[(rename, b"a", b"new"), (write, b"new", b"branch\n")],
        main=[(rename, b"a", b"new"), (link, b"new", b"again")],
        after={b"new": b"branch\n"},
    ),
}  # fmt: skip


def check(main: Volume, branch: Volume, expected: Shown) -> None:
    found = shown(main)
    if expected is None:
        assert (found, links(main)) == (shown(branch), links(branch))
    elif isinstance(expected, list):
        assert sorted(found) == expected
    else:
        for path, file in expected.items():
            there = found.get(path)
            assert (there and (there[1:] if isinstance(file, tuple) else there.data)) == file, path


def tell(
    story: Story, main: Volume, branch: Volume, merge: Callable[[Any], MergePlan], again: Callable[[Any], MergePlan]
) -> None:
    """Make the steps, merge, and look at what becomes of main. `merge` and `again` take what decides conflicts."""
    make(branch, story.branch)
    make(main, story.main)
    nodes = {new: merging.at(main, old).node for old, new in story.nodes.items()}
    before = shown(main)
    assert story.words is None or words(again(None)) == story.words
    first = merge(None)
    assert (conflicts(first), [step.path for step in first.steps if step.data]) == (story.conflicts, [*story.merged])
    if story.conflicts:
        assert shown(main) == before
    else:
        check(main, branch, story.after)
    keep = None
    for keep, after in story.kept.items():
        found = merge(keep)
        assert (found.conflicts, found.decided) == ([], first.conflicts)
        check(main, branch, after)
    assert {path: merging.at(main, path).node for path in nodes} == nodes
    assert story.links is None or links(main) == set(map(frozenset, story.links))
    if keep or not story.conflicts:
        for steps in ([], story.later):
            make(main, steps)
            left = again("main" if keep == "main" else None)
            assert (words(left), left.conflicts) == ([], [])


@for_each(
    ("name", "knows_nodes"), [(name, knows_nodes) for name in STORIES for knows_nodes in STORIES[name].knows_nodes]
)
def test_a_merge(name: str, knows_nodes: bool, tmp_path: Path) -> None:
    story = STORIES[name]
    trees = Three(story.begin, knows_nodes=knows_nodes)
    options: dict[str, Any] = {"lines": story.lines, "paths": story.paths}
    tell(
        story, trees.main, trees.branch,
        lambda keep: run(trees, tmp_path, keep, **options).plan, lambda keep: planned(trees, keep, **options),
    )  # fmt: skip


def data(volume: Volume, path: bytes) -> bytes:
    found: bytes = shown(volume)[path].data
    return found


def test_times_of_changed_files_are_those_of_the_branch(trees: Three, tmp_path: Path) -> None:
    make(trees.branch, [(write, b"a", b"branch\n"), (times, b"a", {"mtime_ns": 10**18})])
    run(trees, tmp_path)
    assert merging.at(trees.main, b"a").mtime_ns == 10**18


def test_a_file_that_is_open_for_writing_is_refused(trees: Three, tmp_path: Path) -> None:
    node = merging.at(trees.main, b"a").node
    write(trees.branch, b"a", b"branch\n")
    write(trees.branch, b"d/x", b"branch\n")
    outcome = run(trees, tmp_path, written=lambda: {("/", node)})
    assert conflicts(outcome.plan) == {"/a": "is open for writing in the mount"}
    assert data(trees.main, b"d/x") == b"x\n"


def test_main_that_changes_meanwhile_is_planned_again(trees: Three, tmp_path: Path) -> None:
    write(trees.branch, b"a", b"branch\n")
    left = [b"main\n"]

    gone = [errno.ENOENT, errno.ESTALE]

    def changing_plan() -> MergePlan:
        if gone:  # it was listed, and is not there any more
            raise oserror(gone.pop())
        found = planned(trees)
        if left:
            write(trees.main, b"a", left.pop())
        return found

    outcome = Merge("b", {ROOT: trees.main}, changing_plan, str(tmp_path / "b.merge")).run()
    assert conflicts(outcome.plan) == {"/a": "changed in both"}
    assert data(trees.main, b"a") == b"main\n"
    assert not (tmp_path / "b.merge").exists()


def test_what_was_not_kept_is_that_of_the_steps_that_were_made(
    trees: Three, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step was staged, and dropped with its plan: nothing is lost of a file that main has made itself meanwhile."""
    monkeypatch.setattr(placing, "_lost", lambda volume, state: ("owner",))
    write(trees.branch, b"new", b"same")
    left = [b"same"]

    def changing_plan() -> MergePlan:
        found = planned(trees)
        if left:
            write(trees.main, b"new", left.pop())
        return found

    merge = Merge("b", {ROOT: trees.main}, changing_plan, str(tmp_path / "b.merge"))
    outcome = merge.run()
    assert (outcome.steps, outcome.partly) == ([], [])
    write(trees.branch, b"other", b"")
    assert merge.run().partly == ["/other: owner"]


def test_an_error_leaves_a_route_that_changes_at_once_as_it_was(
    trees: Three, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(trees.branch, [
        (rename, b"d", b"e"), (rename, b"e/x", b"x"), (write, b"a", b"branch\n"), (mkdir, b"new"),
        (chmod, b"lines", 0o600), (remove, b"e/deep"),
    ])  # fmt: skip
    before = shown(trees.main)
    for number in itertools.count():
        calls = [0]

        def failing(name: str, real: Any, number: int = number, calls: list[int] = calls) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                calls[0] += 1
                if calls[0] == number + 1:
                    raise OSError(5, "Input/output error")
                return real(*args, **kwargs)

            return call

        with monkeypatch.context() as patch:
            for name in ("rename", "mkdir", "setattr", "place"):
                patch.setattr(trees.main, name, failing(name, getattr(trees.main, name)))
            try:
                run(trees, tmp_path)
            except OSError as error:
                assert "Input/output" in str(error)
            else:
                break  # all of its calls have failed once
        assert shown(trees.main) == before, number
        assert os.listdir(tmp_path) == []
    assert number >= 5
    assert shown(trees.main) == shown(trees.branch)
