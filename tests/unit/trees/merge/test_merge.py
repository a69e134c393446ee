"""`plan`: what a three-way merge takes from a branch, and what it refuses."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import merging
import pytest
from merging import Three, chmod, link, links, mkdir, remove, rename, replace, shown, write

from fusebackend.base.paths import ROOT
from fusebackend.protocol import AttrChanges, Volume
from fusebackend.trees.merge.plan import Conflict, Plan, Side, plan
from fusebackend.trees.merge.run import Merge, Outcome

LINES = b"".join(b"line %d\n" % number for number in range(20))


def fill(volume: Volume) -> None:
    mkdir(volume, b"d")
    write(volume, b"d/x", b"x\n")
    write(volume, b"d/y", b"y\n")
    mkdir(volume, b"d/deep")
    write(volume, b"d/deep/z", b"z\n")
    write(volume, b"lines", LINES)
    write(volume, b"a", b"a\n")


def linked(name: bytes, other: bytes) -> Callable[[Volume], None]:
    def fill_and_link(volume: Volume) -> None:
        fill(volume)
        link(volume, name, other)

    return fill_and_link


@pytest.fixture
def trees() -> Three:
    return Three(fill)


def planned(trees: Three, keep: Side | None = None, lines: bool = False, paths: Any = (b"",)) -> Plan:
    return plan(*trees.trees(), keep=keep, lines=lines, paths=paths)


def run(
    trees: Three, tmp_path: Path, keep: Side | None = None, lines: bool = False, paths: Any = (b"",), **options: Any
) -> Outcome:
    journal = str(tmp_path / "b.merge")
    return Merge("b", {ROOT: trees.main}, lambda: planned(trees, keep, lines, paths), journal, **options).run()


def conflicts(outcome: Outcome) -> dict[str, str]:
    return {each.path: each.reason for each in outcome.plan.conflicts}


def data(volume: Volume, path: bytes) -> bytes:
    found: bytes = shown(volume)[path].data
    return found


def words(plan: Plan) -> list[str]:
    return [f"{step.word} {step.path.decode()} {step.to_path.decode()}".strip() for step in plan.steps]


def again(trees: Three, keep: Side | None = None) -> tuple[list[str], list[Conflict]]:
    """What one more merge would do."""
    found = planned(trees, keep)
    return words(found), found.conflicts


def becomes_the_branch(trees: Three, tmp_path: Path) -> None:
    """A merge has no conflict and makes main what the branch is; one more would do nothing."""
    assert not run(trees, tmp_path).plan.conflicts
    assert shown(trees.main) == shown(trees.branch)
    assert links(trees.main) == links(trees.branch)
    assert again(trees) == ([], [])


def test_a_renamed_directory_is_renamed_and_not_copied(trees: Three, tmp_path: Path) -> None:
    node = merging.at(trees.main, b"d/deep/z").node
    rename(trees.branch, b"d", b"e")
    assert words(planned(trees)) == ["move d e"]
    run(trees, tmp_path)
    assert merging.at(trees.main, b"e/deep/z").node == node


def test_a_file_that_main_changed_is_renamed_with_its_change(trees: Three, tmp_path: Path) -> None:
    rename(trees.branch, b"d", b"e")
    write(trees.main, b"d/x", b"changed\n")
    write(trees.main, b"d/new", b"new\n")
    run(trees, tmp_path)
    assert data(trees.main, b"e/x") == b"changed\n"
    assert data(trees.main, b"e/new") == b"new\n"
    assert b"d" not in shown(trees.main)


def test_a_change_finds_a_directory_that_main_renamed(trees: Three, tmp_path: Path) -> None:
    rename(trees.main, b"d", b"e")
    write(trees.branch, b"d/x", b"changed\n")
    write(trees.branch, b"d/new", b"new\n")
    run(trees, tmp_path)
    assert data(trees.main, b"e/x") == b"changed\n"
    assert not planned(trees).steps and not planned(trees).conflicts
    assert data(trees.main, b"e/new") == b"new\n"
    assert b"d" not in shown(trees.main)


def test_a_file_that_main_renamed_and_the_branch_changed(trees: Three, tmp_path: Path) -> None:
    rename(trees.main, b"a", b"b")
    chmod(trees.branch, b"a", 0o600)
    run(trees, tmp_path)
    assert shown(trees.main)[b"b"].mode == 0o600
    write(trees.branch, b"a", b"changed\n")
    assert conflicts(run(trees, tmp_path)) == {"/b": "renamed in main, changed in the branch as '/a'"}
    run(trees, tmp_path, "branch")
    assert (data(trees.main, b"a"), data(trees.main, b"b")) == (b"changed\n", b"a\n")


def test_both_sides_rename_a_file(trees: Three, tmp_path: Path) -> None:
    rename(trees.branch, b"a", b"b")
    rename(trees.main, b"a", b"c")
    assert conflicts(run(trees, tmp_path)) == {"/c": "renamed in main, and to '/b' in the branch"}
    run(trees, tmp_path, "branch")
    assert b"b" in shown(trees.main)
    assert b"c" not in shown(trees.main)


def test_directories_that_are_renamed_into_each_other(tmp_path: Path) -> None:
    def fill_two(volume: Volume) -> None:
        fill(volume)
        mkdir(volume, b"e")

    trees = Three(fill_two)
    rename(trees.branch, b"d", b"e/d")
    rename(trees.main, b"e", b"d/e")
    before = shown(trees.main)
    assert conflicts(run(trees, tmp_path))
    assert shown(trees.main) == before


def test_a_file_and_a_directory_change_places(trees: Three, tmp_path: Path) -> None:
    rename(trees.branch, b"d", b"t")
    rename(trees.branch, b"a", b"d")
    rename(trees.branch, b"t", b"a")
    outcome = run(trees, tmp_path)
    assert "park" in [step.word for step in outcome.steps]
    assert shown(trees.main) == shown(trees.branch)


def test_an_editors_rename_is_a_change_of_the_file(trees: Three, tmp_path: Path) -> None:
    replace(trees.branch, b"a", b"branch\n")
    chmod(trees.main, b"a", 0o600)
    run(trees, tmp_path)
    assert shown(trees.main)[b"a"][:3] == (0o100000, 0o600, b"branch\n")


def test_what_both_changed_is_refused_whole(trees: Three, tmp_path: Path) -> None:
    write(trees.branch, b"a", b"branch\n")
    write(trees.branch, b"d/x", b"branch\n")
    write(trees.main, b"a", b"main\n")
    before = shown(trees.main)
    assert conflicts(run(trees, tmp_path)) == {"/a": "changed in both"}
    assert shown(trees.main) == before
    assert run(trees, tmp_path, "main").plan.decided == [Conflict("/a", "changed in both")]  # type: ignore[arg-type]
    assert data(trees.main, b"a") == b"main\n"
    assert data(trees.main, b"d/x") == b"branch\n"
    run(trees, tmp_path, "branch")
    assert data(trees.main, b"a") == b"branch\n"


def test_lines_are_merged(trees: Three, tmp_path: Path) -> None:
    write(trees.branch, b"lines", LINES.replace(b"line 3\n", b"branch\n"))
    write(trees.main, b"lines", LINES.replace(b"line 15\n", b"main\n"))
    assert conflicts(run(trees, tmp_path)) == {"/lines": "changed in both"}
    outcome = run(trees, tmp_path, lines=True)
    assert outcome.plan.merged == ["/lines"]
    assert data(trees.main, b"lines") == LINES.replace(b"line 3\n", b"branch\n").replace(b"line 15\n", b"main\n")
    assert not planned(trees, lines=True).steps


def test_lines_that_both_changed_are_a_conflict(trees: Three, tmp_path: Path) -> None:
    write(trees.branch, b"lines", LINES.replace(b"line 3\n", b"branch\n"))
    write(trees.main, b"lines", LINES.replace(b"line 3\n", b"main\n"))
    assert conflicts(run(trees, tmp_path, lines=True)) == {"/lines": "changed in both"}


def test_a_directory_that_the_branch_deleted_and_main_changed(trees: Three, tmp_path: Path) -> None:
    remove(trees.branch, b"d")
    write(trees.main, b"d/x", b"changed\n")
    write(trees.main, b"d/new", b"new\n")
    assert conflicts(run(trees, tmp_path)) == {
        "/d/x": "deleted in the branch, changed in main",
        "/d/new": "made in main, in '/d', which the branch deleted",
    }
    run(trees, tmp_path, "main")
    assert sorted(shown(trees.main)) == [b"a", b"d", b"d/new", b"d/x", b"lines"]
    run(trees, tmp_path, "branch")
    assert sorted(shown(trees.main)) == [b"a", b"lines"]


def test_a_directory_that_main_deleted_and_the_branch_changed(trees: Three, tmp_path: Path) -> None:
    remove(trees.main, b"d")
    write(trees.branch, b"d/x", b"changed\n")
    write(trees.branch, b"d/deep/new", b"new\n")
    assert conflicts(run(trees, tmp_path)) == {
        "/d/x": "changed in the branch, deleted in main",
        "/d/deep/new": "in '/d/deep', which main deleted",
    }
    run(trees, tmp_path, "branch")
    assert sorted(shown(trees.main)) == [b"a", b"d", b"d/deep", b"d/deep/new", b"d/x", b"lines"]


def test_only_the_named_paths_are_merged(trees: Three, tmp_path: Path) -> None:
    write(trees.branch, b"a", b"branch\n")
    mkdir(trees.branch, b"new")
    write(trees.branch, b"new/one", b"1")
    write(trees.branch, b"new/two", b"2")
    run(trees, tmp_path, paths=[b"new/one"])
    assert data(trees.main, b"new/one") == b"1"
    assert b"new/two" not in shown(trees.main)
    assert data(trees.main, b"a") == b"a\n"


def test_hard_links_stay_links(tmp_path: Path) -> None:
    def fill_links(volume: Volume) -> None:
        fill(volume)
        link(volume, b"a", b"b")
        link(volume, b"a", b"d/c")

    trees = Three(fill_links)
    write(trees.branch, b"a", b"changed\n")
    link(trees.branch, b"b", b"new")
    write(trees.branch, b"fresh", b"1\n")
    link(trees.branch, b"fresh", b"d/fresh")
    becomes_the_branch(trees, tmp_path)


def test_attributes_are_merged_apart(trees: Three, tmp_path: Path) -> None:
    node = merging.at(trees.main, b"a").node
    trees.main.setxattr(node, b"user.main", b"1")
    trees.branch.setxattr(merging.at(trees.branch, b"a").node, b"user.branch", b"1")
    chmod(trees.branch, b"a", 0o751)
    run(trees, tmp_path)
    assert shown(trees.main)[b"a"][1:] == (0o751, b"a\n", ((b"user.branch", b"1"), (b"user.main", b"1")))
    assert merging.at(trees.main, b"a").node == node


def test_a_file_that_is_open_for_writing_is_refused(trees: Three, tmp_path: Path) -> None:
    node = merging.at(trees.main, b"a").node
    write(trees.branch, b"a", b"branch\n")
    write(trees.branch, b"d/x", b"branch\n")
    outcome = run(trees, tmp_path, written=lambda: {("/", node)})
    assert outcome.open_paths == ["/a"]
    assert data(trees.main, b"d/x") == b"x\n"


def test_main_that_changes_meanwhile_is_planned_again(trees: Three, tmp_path: Path) -> None:
    write(trees.branch, b"a", b"branch\n")
    left = [b"main\n"]

    def changing_plan() -> Plan:
        found = planned(trees)
        if left:
            write(trees.main, b"a", left.pop())
        return found

    outcome = Merge("b", {ROOT: trees.main}, changing_plan, str(tmp_path / "b.merge")).run()
    assert conflicts(outcome) == {"/a": "changed in both"}
    assert data(trees.main, b"a") == b"main\n"
    assert not (tmp_path / "b.merge").exists()


def test_an_error_leaves_a_route_that_changes_at_once_as_it_was(
    trees: Three, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename(trees.branch, b"d", b"e")
    write(trees.branch, b"a", b"branch\n")
    mkdir(trees.branch, b"new")
    chmod(trees.branch, b"lines", 0o600)
    remove(trees.branch, b"e/deep")
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
        found = {path: each for path, each in shown(trees.main).items() if not path.startswith(b".fusebackend-merge")}
        assert found == before, number
    assert number >= 5
    assert shown(trees.main) == shown(trees.branch)


def test_times_of_changed_files_are_those_of_the_branch(trees: Three, tmp_path: Path) -> None:
    write(trees.branch, b"a", b"branch\n")
    trees.branch.setattr(merging.at(trees.branch, b"a").node, AttrChanges(mtime_ns=10**18))
    run(trees, tmp_path)
    assert merging.at(trees.main, b"a").mtime_ns == 10**18


@pytest.mark.parametrize("knows_nodes", [True, False])
def test_a_file_in_place_of_a_link_leaves_the_other_names_alone(knows_nodes: bool, tmp_path: Path) -> None:
    def twins(volume: Volume) -> None:
        write(volume, b"d", b"same\n", 0o644)
        link(volume, b"d", b"b")
        write(volume, b"a", b"", 0o640)

    trees = Three(twins, knows_nodes=knows_nodes)
    write(trees.branch, b"a", b"same\n")
    rename(trees.branch, b"a", b"b")  # the bytes that it had, and another mode
    becomes_the_branch(trees, tmp_path)


def test_a_file_that_was_changed_and_renamed_is_merged_once(trees: Three, tmp_path: Path) -> None:
    replace(trees.branch, b"a", b"new\n")
    write(trees.branch, b"d/y", b"changed\n")
    rename(trees.branch, b"d/y", b"d/new")
    assert not run(trees, tmp_path).plan.conflicts
    again = planned(trees)
    assert (again.conflicts, again.steps) == ([], [])


def test_a_file_with_a_new_link_that_both_have_renamed_is_no_conflict(trees: Three) -> None:
    for volume in (trees.branch, trees.main):
        link(volume, b"a", b"also")
        rename(volume, b"a", b"new")
    found = planned(trees)
    assert (found.conflicts, found.steps) == ([], [])


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_the_branch_deleted_and_main_gave_another_name(
    trees: Three, tmp_path: Path, replaced: bool
) -> None:
    """After the merge main would have renamed the file, as far as anybody can tell: it is decided at once."""
    remove(trees.branch, b"a")
    link(trees.main, b"a", b"b")
    link(trees.main, b"a", b"d/c")
    if replaced:
        replace(trees.main, b"a", b"a\n")
    reason = "deleted in the branch, has another name in main"
    assert conflicts(run(trees, tmp_path)) == {"/b": reason, "/d/c": reason}
    run(trees, tmp_path, "main")
    assert {b"a", b"b", b"d/c"} <= shown(trees.main).keys()
    assert again(trees, "main") == ([], [])
    run(trees, tmp_path, "branch")
    assert {b"a", b"b", b"d/c"}.isdisjoint(shown(trees.main))
    assert again(trees) == ([], [])


def test_names_that_a_deleted_file_had_before_stay(tmp_path: Path) -> None:
    trees = Three(linked(b"a", b"b"))
    remove(trees.branch, b"a")
    run(trees, tmp_path)
    assert b"a" not in shown(trees.main) and b"b" in shown(trees.main)
    assert again(trees) == ([], [])


def test_attributes_of_a_file_with_two_names_are_set_once(tmp_path: Path) -> None:
    trees = Three(linked(b"a", b"b"))
    chmod(trees.branch, b"a", 0o640)
    trees.main.setattr(merging.at(trees.main, b"a").node, AttrChanges(atime_ns=1))  # a read would move it
    assert again(trees) == (["attributes a"], [])


@pytest.mark.parametrize("knows_nodes", [True, False])
def test_a_new_link_of_the_branch_to_a_file_that_main_changes(tmp_path: Path, knows_nodes: bool) -> None:
    trees = Three(fill, knows_nodes=knows_nodes)
    link(trees.branch, b"a", b"new")
    chmod(trees.main, b"a", 0o640)
    run(trees, tmp_path)
    assert links(trees.main) == {frozenset([b"a", b"new"])}
    assert again(trees) == ([], [])
    write(trees.main, b"new", b"main\n")
    assert again(trees) == ([], [])
    write(trees.branch, b"a", b"branch\n")
    assert conflicts(run(trees, tmp_path)) == {"/a": "changed in both", "/new": "changed in both"}
    run(trees, tmp_path, "branch")
    assert data(trees.main, b"new") == b"branch\n"
    assert links(trees.main) == {frozenset([b"a", b"new"])}
    assert again(trees) == ([], [])


def test_merged_lines_of_a_file_with_two_names(tmp_path: Path) -> None:
    trees = Three(linked(b"lines", b"also"))
    write(trees.branch, b"lines", LINES.replace(b"line 3\n", b"branch\n"))
    write(trees.main, b"lines", LINES.replace(b"line 15\n", b"main\n"))
    run(trees, tmp_path, lines=True)
    assert links(trees.main) == {frozenset([b"also", b"lines"])}
    assert data(trees.main, b"also") == LINES.replace(b"line 3\n", b"branch\n").replace(b"line 15\n", b"main\n")


def test_merged_lines_of_a_name_that_main_has_parted(tmp_path: Path) -> None:
    trees = Three(linked(b"lines", b"also"))
    write(trees.branch, b"lines", LINES.replace(b"line 3\n", b"branch\n"))
    replace(trees.main, b"also", LINES.replace(b"line 15\n", b"main\n"))
    run(trees, tmp_path, lines=True)
    assert data(trees.main, b"lines") == LINES.replace(b"line 3\n", b"branch\n")
    assert data(trees.main, b"also") == LINES.replace(b"line 3\n", b"branch\n").replace(b"line 15\n", b"main\n")
    assert again(trees)[0] == []


def test_a_new_link_to_merged_lines(trees: Three, tmp_path: Path) -> None:
    write(trees.branch, b"lines", LINES.replace(b"line 3\n", b"branch\n"))
    link(trees.branch, b"lines", b"also")
    write(trees.main, b"lines", LINES.replace(b"line 15\n", b"main\n"))
    run(trees, tmp_path, lines=True)
    assert links(trees.main) == {frozenset([b"also", b"lines"])}
    assert not planned(trees, lines=True).conflicts and not planned(trees, lines=True).steps


def test_attributes_of_one_name_and_other_changes_of_the_others(tmp_path: Path) -> None:
    def twins(volume: Volume) -> None:
        for name in (b"b", b"c", b"d"):
            write(volume, b"a", b"a\n") if name == b"b" else None
            link(volume, b"a", name)

    trees = Three(twins)
    replace(trees.branch, b"b", b"branch\n")
    remove(trees.branch, b"c")
    rename(trees.branch, b"d", b"e")
    chmod(trees.branch, b"a", 0o600)
    becomes_the_branch(trees, tmp_path)


@pytest.mark.parametrize("knows_nodes", [True, False])
def test_a_file_that_the_branch_made_and_a_link_that_main_made(tmp_path: Path, knows_nodes: bool) -> None:
    trees = Three(fill, knows_nodes=knows_nodes)
    write(trees.branch, b"new", b"a\n", 0o600)
    link(trees.main, b"a", b"new")
    assert conflicts(run(trees, tmp_path)) == {"/new": "made in both, and not the same"}
    run(trees, tmp_path, "branch")
    assert shown(trees.main) == shown(trees.branch)
    assert links(trees.main) == set()
    assert again(trees) == ([], [])


@pytest.mark.parametrize("in_base", [False, True])
def test_a_copy_in_place_of_a_link_is_another_file(tmp_path: Path, in_base: bool) -> None:
    """`cp -p a t; mv t a`: bytes and attributes are the same, but a write to one is no write to the other any more."""

    def twins(volume: Volume) -> None:
        write(volume, b"a", b"a\n")
        if in_base:
            link(volume, b"a", b"b")

    trees = Three(twins)
    replace(trees.branch, b"a", b"a\n")
    if not in_base:
        link(trees.main, b"a", b"b")
    run(trees, tmp_path)
    assert links(trees.main) == set()
    assert again(trees) == ([], [])


@pytest.mark.parametrize("is_new", [False, True])
def test_a_link_in_place_of_a_copy_is_the_other_file(tmp_path: Path, is_new: bool) -> None:
    """`ln -f a b`, and b had the same bytes and attributes."""

    def copies(volume: Volume) -> None:
        write(volume, b"a", b"a\n")
        write(volume, b"b", b"a\n")

    trees = Three(copies)
    if is_new:
        replace(trees.branch, b"a", b"a\n")
    remove(trees.branch, b"b")
    link(trees.branch, b"a", b"b")
    run(trees, tmp_path)
    assert links(trees.main) == {frozenset([b"a", b"b"])}
    assert again(trees) == ([], [])
    chmod(trees.main, b"a", 0o600)
    assert again(trees) == ([], [])


@pytest.mark.parametrize("path", [b"d/x", b"d/deep/z"])
def test_a_file_replaces_the_directory_that_it_was_in(trees: Three, tmp_path: Path, path: bytes) -> None:
    rename(trees.branch, path, b"t")
    rename(trees.branch, b"d/y", b"saved")
    remove(trees.branch, b"d")
    rename(trees.branch, b"t", b"d")
    becomes_the_branch(trees, tmp_path)


def test_a_directory_goes_into_one_that_was_in_it(trees: Three, tmp_path: Path) -> None:
    rename(trees.branch, b"d/deep", b"t")
    rename(trees.branch, b"d", b"t/d")
    becomes_the_branch(trees, tmp_path)


def test_a_link_and_its_directory_change_places(tmp_path: Path) -> None:
    def nested(volume: Volume) -> None:
        fill(volume)
        merging.symlink(volume, b"d/l", b"nowhere")

    trees = Three(nested)
    rename(trees.branch, b"d/l", b"t")
    rename(trees.branch, b"d", b"e")
    rename(trees.branch, b"t", b"d")
    becomes_the_branch(trees, tmp_path)


@pytest.mark.parametrize("keep", [None, "main", "branch"])
def test_directories_that_are_renamed_into_each_other_and_a_file_in_their_place(tmp_path: Path, keep: Any) -> None:
    """Nothing is lost, whatever decides. What can't be decided stays a conflict."""

    def fill_two(volume: Volume) -> None:
        fill(volume)
        mkdir(volume, b"e")

    trees = Three(fill_two)
    rename(trees.branch, b"d", b"e/d")
    rename(trees.branch, b"a", b"d")
    rename(trees.main, b"e", b"d/e")
    before = shown(trees.main)
    outcome = run(trees, tmp_path, keep)
    assert conflicts(outcome) == {"/d": "renamed into itself by both"}
    assert shown(trees.main) == before


def test_a_file_that_both_have_renamed_and_main_has_linked(trees: Three, tmp_path: Path) -> None:
    for volume in (trees.branch, trees.main):
        rename(volume, b"a", b"new")
    link(trees.main, b"new", b"again")
    write(trees.branch, b"new", b"branch\n")
    assert not run(trees, tmp_path).plan.conflicts
    assert data(trees.main, b"new") == b"branch\n"
    assert again(trees) == ([], [])
