"""Random three-way merges against a model of paths, and rules that hold for any merge."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import merging
from hypothesis import given, settings
from hypothesis import strategies as st
from merging import File, Shown, Three
from profiles import examples

from fusebackend.protocol import Volume
from fusebackend.trees.merge.plan import MergePlan, Side, plan
from fusebackend.trees.merge.run import Merge, Outcome

PATHS = [b"a", b"b", b"d", b"d/a", b"d/b", b"d/e", b"d/e/a", b"f", b"f/a"]
DATA = [b"", b"one\n", b"two\n", b"three\n" * 3]

PATHS_OF = st.sampled_from(PATHS)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), PATHS_OF, st.sampled_from(DATA)),
        st.tuples(st.just("replace"), PATHS_OF, st.sampled_from(DATA)),
        st.tuples(st.just("mkdir"), PATHS_OF, st.just(b"")),
        st.tuples(st.just("symlink"), PATHS_OF, st.sampled_from([b"x", b"y"])),
        st.tuples(st.just("chmod"), PATHS_OF, st.sampled_from([b"640", b"750"])),
        st.tuples(st.just("remove"), PATHS_OF, st.just(b"")),
    ),
    max_size=8,
)
RENAMES = st.lists(
    st.one_of(
        STEPS.filter(bool).map(lambda steps: steps[0]),
        st.tuples(st.just("rename"), PATHS_OF, PATHS_OF),
        st.tuples(st.just("link"), PATHS_OF, PATHS_OF),
        st.tuples(st.just("swap"), PATHS_OF, PATHS_OF),
        st.tuples(st.just("supplant"), PATHS_OF, PATHS_OF),
    ),
    max_size=8,
)


def perform(volume: Volume, steps: list[tuple[str, bytes, bytes]]) -> None:
    """Make those of the steps that can be made."""
    for word, path, data in steps:
        try:
            if word in ("write", "replace"):
                if stat.S_IFMT(_mode(volume, path)) not in (0, stat.S_IFREG):
                    continue
                getattr(merging, word)(volume, path, data)
            elif word == "mkdir":
                merging.mkdir(volume, path)
            elif word == "symlink":
                merging.symlink(volume, path, data)
            elif word == "chmod":
                merging.chmod(volume, path, int(data, 8))
            elif word == "remove":
                merging.remove(volume, path)
            elif word == "swap":
                swap(volume, path, data)
            elif word == "supplant":
                supplant(volume, path, data)
            else:
                getattr(merging, word)(volume, path, data)
        except OSError:
            continue


def swap(volume: Volume, one: bytes, other: bytes) -> None:
    """Have two files change places, if neither is in the other."""
    if not one.startswith(other) and not other.startswith(one) and _mode(volume, one) and _mode(volume, other):
        merging.rename(volume, one, b"t")
        merging.rename(volume, other, one)
        merging.rename(volume, b"t", other)


def supplant(volume: Volume, path: bytes, other: bytes) -> None:
    """Put a file in place of another one, or of a directory that it may be in."""
    if not other.startswith(path) and _mode(volume, path) and _mode(volume, other):
        merging.rename(volume, path, b"t")
        merging.remove(volume, other)
        merging.rename(volume, b"t", other)


def _mode(volume: Volume, path: bytes) -> int:
    try:
        mode: int = merging.at(volume, path).mode
        return mode
    except FileNotFoundError:
        return 0


def three(base: Any, branch: Any, main: Any, *, knows_nodes: bool) -> Three:
    made = Three(lambda volume: perform(volume, base), knows_nodes=knows_nodes)
    perform(made.branch, branch)
    perform(made.main, main)
    return made


def planned(trees: Three, keep: Side | None = None, lines: bool = False) -> MergePlan:
    return plan(*trees.trees(), keep=keep, lines=lines)


def merged(trees: Three, path: Path, keep: Side | None = None) -> Outcome:
    return Merge("b", {"/": trees.main}, lambda: planned(trees, keep), str(path / "b.merge")).run()  # type: ignore[dict-item]


def model(base: Shown, branch: Shown, main: Shown) -> Shown | None:
    """Merge by paths; None for a conflict."""
    result: Shown = {}
    for path in sorted(base.keys() | branch.keys() | main.keys()):
        old, theirs, ours = base.get(path), branch.get(path), main.get(path)
        if theirs in (old, ours):
            new = ours
        elif ours == old:
            new = theirs
        elif theirs is not None and ours is not None and old is not None and old.type == theirs.type == ours.type:
            fields = [_one(*each) for each in zip(old, theirs, ours, strict=True)]
            if None in fields:
                return None
            new = File(*fields)
        else:
            return None
        if new is not None:
            result[path] = new
    for path in result:
        above = path.rpartition(b"/")[0]
        if above and (above not in result or not stat.S_ISDIR(result[above].type)):
            return None
    return result


def _one(old: Any, theirs: Any, ours: Any) -> Any:
    if theirs in (old, ours):
        return ours
    return theirs if ours == old else None


@settings(max_examples=examples(150))
@given(base=STEPS, branch=STEPS, main=STEPS)
def test_a_merge_is_that_of_the_model(base: Any, branch: Any, main: Any, tmp_path: Path) -> None:
    trees = three(base, branch, main, knows_nodes=False)
    before = merging.shown(trees.main)
    wanted = model(merging.shown(trees.base), merging.shown(trees.branch), before)
    outcome = merged(trees, tmp_path)
    if wanted is None:
        assert outcome.plan.conflicts
        assert merging.shown(trees.main) == before
    else:
        assert not outcome.plan.conflicts
        assert merging.shown(trees.main) == wanted
        assert not planned(trees).steps


@settings(max_examples=examples(150))
@given(base=RENAMES, branch=RENAMES, main=RENAMES, keep=st.sampled_from([None, "main", "branch"]), knows=st.booleans())
def test_a_merge_ends_and_is_complete(
    base: Any, branch: Any, main: Any, keep: Any, knows: bool, tmp_path: Path
) -> None:
    trees = three(base, branch, main, knows_nodes=knows)
    before = merging.shown(trees.main)
    outcome = merged(trees, tmp_path, keep)
    if outcome.plan.conflicts:
        assert merging.shown(trees.main) == before
        assert keep is None or {each.reason for each in outcome.plan.conflicts} == {"renamed into itself by both"}
        return
    again = planned(trees, keep)
    assert not again.conflicts
    assert not again.steps


@settings(max_examples=examples(100))
@given(base=RENAMES, branch=RENAMES, knows=st.booleans())
def test_main_that_has_not_changed_becomes_the_branch(base: Any, branch: Any, knows: bool, tmp_path: Path) -> None:
    trees = three(base, branch, [], knows_nodes=knows)
    outcome = merged(trees, tmp_path)
    assert not outcome.plan.conflicts
    assert merging.shown(trees.main) == merging.shown(trees.branch)
    if knows:
        assert merging.links(trees.main) == merging.links(trees.branch)
    assert not planned(trees).steps


@settings(max_examples=examples(100))
@given(base=RENAMES, main=RENAMES, knows=st.booleans())
def test_a_branch_without_changes_changes_nothing(base: Any, main: Any, knows: bool) -> None:
    trees = three(base, [], main, knows_nodes=knows)
    found = planned(trees)
    assert not found.conflicts
    assert not found.steps


@settings(max_examples=examples(100))
@given(base=RENAMES, both=RENAMES, knows=st.booleans())
def test_the_same_changes_on_both_sides_are_no_conflict(base: Any, both: Any, knows: bool) -> None:
    trees = three(base, both, both, knows_nodes=knows)
    found = planned(trees)
    assert not found.conflicts
    assert not found.steps
