"""The git patch of two trees, by what git makes of it."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import random_trees
from for_each import for_each
from hypothesis import given, settings
from profiles import examples
from random_trees import Fifo, File, Link, flat, make, tree_of, trees

from fusebackend.base.git_patch import quoted
from fusebackend.trees import diff_output
from fusebackend.trees.diff import differences
from fusebackend.trees.diff_output import git_refuses, patch


@pytest.fixture(scope="module", autouse=True)
def usual_umask() -> Iterator[None]:
    """Modes that differ from the usual ones are comments in a patch."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def patch_of(before: Path, after: Path) -> bytes:
    return b"".join(patch(differences(tree_of(before), tree_of(after))))


def notes(made: bytes) -> list[str]:
    lines = made.partition(b"# not in the patch")[2].decode().splitlines()[1:]
    return [line.removeprefix("# ") for line in lines]


@functools.cache
def git_version() -> tuple[int, ...]:
    said = subprocess.run(["git", "--version"], check=True, capture_output=True, text=True).stdout
    return tuple(map(int, re.findall(r"\d+", said)))


def apply(directory: Path, made: bytes, *options: str) -> None:
    if not made.startswith(b"diff --git "):
        return  # comments alone are no patch to git
    run = subprocess.run(
        ["git", "apply", "--whitespace=nowarn", *options],
        cwd=directory, input=made, capture_output=True, check=False,
        env={**os.environ, "GIT_DIR": str(directory.parent / "none")},
    )  # fmt: skip
    assert run.returncode == 0, (run.stderr.decode(errors="replace"), made.decode("utf-8", "replace"))


def as_git_has_it(node: File | Link | Fifo | None) -> object:
    return (node.data, bool(node.mode & 0o100)) if isinstance(node, File) else node


def patched(
    tmp_path_factory: pytest.TempPathFactory, before: random_trees.Tree, after: random_trees.Tree
) -> tuple[Path, bytes]:
    """Make two trees, `a` and `b`, in a directory, and apply the patch of both to the first. Returns both."""
    directory = tmp_path_factory.mktemp("sides")
    for name, tree, mtime_ns in (("a", before, 1_000), ("b", after, 2_000)):
        (directory / name).mkdir()
        make(directory / name, tree, mtime_ns)
    made = patch_of(directory / "a", directory / "b")
    apply(directory / "a", made)
    return directory, made


@settings(max_examples=examples(40), deadline=None)
@given(before=trees(), after=trees())
def test_git_makes_one_tree_of_the_other(
    tmp_path_factory: pytest.TempPathFactory, before: random_trees.Tree, after: random_trees.Tree
) -> None:
    directory, made = patched(tmp_path_factory, before, after)
    reached = {path: as_git_has_it(node) for path, node in random_trees.read(directory / "a").items()}
    assert reached == {path: as_git_has_it(node) for path, node in flat(after).items()}, made
    if git_version() < (2, 43):  # newer ones forget the modes of what they make anew in reverse
        apply(directory / "a", made, "--reverse")
        back = {path: as_git_has_it(node) for path, node in random_trees.read(directory / "a").items()}
        assert back == {path: as_git_has_it(node) for path, node in flat(before).items()}, made
    shutil.rmtree(directory)


@settings(max_examples=examples(40), deadline=None)
@given(
    before=trees((b".git", b".GIT ", b"git~1"), special=True),
    after=trees((b".git", b".GIT ", b"git~1"), special=True),
)
def test_what_git_can_not_say_is_below_the_patch(
    tmp_path_factory: pytest.TempPathFactory, before: random_trees.Tree, after: random_trees.Tree
) -> None:
    directory, made = patched(tmp_path_factory, before, after)
    noted = notes(made)
    reached, wanted = random_trees.read(directory / "a"), flat(after)
    for path in flat(before).keys() | wanted.keys():
        if as_git_has_it(reached.get(path)) != as_git_has_it(wanted.get(path)):
            assert any(note.startswith((f"{quoted(path)}: ", f"{quoted(path + b'/')}: ")) for note in noted), (
                path,
                made,
            )
    shutil.rmtree(directory)


def test_each_sort_of_change(sides: tuple[Path, Path]) -> None:
    before, after = sides
    make(
        before,
        {
            b"gone": File(b"1\n"),
            b"text": File(b"1\n2\n"),
            b"old": File(b"moved\n"),
            b"run": File(b"x"),
            b"l": Link(b"a"),
        },
        1_000,
    )
    make(
        after,
        {
            b"new": File(b"no end"),
            b"text": File(b"1\n3\n"),
            b"sub": {b"moved": File(b"moved\n")},
            b"run": File(b"x", 0o755),
            b"l": Link(b"b"),
            b"bytes": File(b"\0\1"),
        },
        2_000,
    )
    made = patch_of(before, after)
    for part in (
        b"deleted file mode 100644\n",
        b"new file mode 100644\nindex 0000000000000000000000000000000000000000..",
        b"+no end\n\\ No newline at end of file\n",
        b"@@ -1,2 +1,2 @@\n 1\n-2\n+3\n",
        b"diff --git a/old b/sub/moved\nsimilarity index 100%\nrename from old\nrename to sub/moved\n",
        b"diff --git a/run b/run\nold mode 100644\nnew mode 100755\n",
        b"--- a/l\n+++ b/l\n@@ -1 +1 @@\n-a\n",
        b"GIT binary patch\nliteral 2\n",
    ):
        assert part in made
    assert notes(made) == []
    apply(before, made, "--check")
    apply(before, made)
    assert random_trees.read(before) == random_trees.read(after)


def test_attributes_are_comments(sides: tuple[Path, Path]) -> None:
    before, after = sides
    both: random_trees.Tree = {b"f": File(b"x"), b"d": {b"f": File(b"y")}, b"e": {b"gone": File(b"z")}}
    make(before, both, 1_000)
    make(after, {**both, b"e": {}, b"empty": {}, b"pipe": Fifo()}, 2_000)
    os.chmod(after / "f", 0o640)
    os.chmod(after / "d", 0o700)
    os.setxattr(after / "d/f", "user.one", b"1")
    os.setxattr(before / "d/f", "user.two", b"2")
    made = patch_of(before, after)
    assert notes(made) == [
        "d/: mode 0755 -> 0700",
        "d/f: xattrs user.one user.two",
        "empty/: directory created",
        "f: mode 0644 -> 0640",
        "pipe: fifo created",
        "e/: empty now; git deletes an empty directory",
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_owners_are_comments(sides: tuple[Path, Path]) -> None:
    before, after = sides
    make(before, {b"f": File(b"x")}, 1_000)
    make(after, {b"f": File(b"x"), b"g": File(b"y")}, 2_000)
    os.chown(after / "f", 1, 2)
    os.chown(after / "g", 3, 4)
    assert notes(patch_of(before, after)) == ["f: owner 0:0 -> 1:2", "g: owner 3:4"]


def test_a_file_that_is_too_large_is_a_comment(sides: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diff_output, "MAX_PATCHED_BYTES", 2 << 20)
    before, after = sides
    make(before, {b"f": File(b"1" * (3 << 20)), b"r": File(b"2" * (3 << 20)), b"s": File(b"3" * (3 << 20))}, 1_000)
    make(after, {b"f": File(b""), b"renamed": File(b"2" * (3 << 20)), b"s": {b"t": File(b"4")}}, 2_000)
    made = patch_of(before, after)
    assert notes(made) == [
        "f: modified, 3145728 -> 0 bytes (above 2 MiB)",
        "s/: file became directory (above 2 MiB)",
        "s/t: file created (something is in its place that git does not delete)",
    ]
    assert b"rename from r\nrename to renamed\n" in made
    apply(before, made)


@pytest.mark.parametrize("target", [b"d", b"../a", b"nothing", b"d/x"])
def test_a_link_that_became_a_directory(sides: tuple[Path, Path], target: bytes) -> None:
    before, after = sides
    make(before, {b"a": Link(target), b"d": {b"x": File(b"1")}}, 1_000)
    make(after, {b"a": {b"x": File(b"2")}, b"d": {b"x": File(b"1")}}, 2_000)
    made = patch_of(before, after)
    assert notes(made) == []
    apply(before, made)
    assert random_trees.read(before) == random_trees.read(after)


def test_a_link_to_itself_that_became_a_directory(sides: tuple[Path, Path]) -> None:
    before, after = sides
    make(before, {b"a": Link(b"a")}, 1_000)
    make(after, {b"a": {b"x": File(b"2")}}, 2_000)
    made = patch_of(before, after)
    assert notes(made) == [
        "a/: symlink became directory",
        "a/x: file created (something is in its place that git does not delete)",
    ]
    apply(before, made)


@for_each(
    "path",
    [b".git", b"sub/.git/config", b".GIT", b"git~1", b".git .", b".git::$INDEX", b"a\\.git"],
)
def test_names_that_git_refuses(tmp_path: Path, path: bytes) -> None:
    assert git_refuses(path, is_link=False)
    refused = f"diff --git a/{path.decode()} b/{path.decode()}\nnew file mode 100644\n".encode()
    run = subprocess.run(["git", "apply", "--check"], cwd=tmp_path, input=refused, capture_output=True, check=False)
    assert run.returncode != 0


def test_a_name_that_git_refuses_on_other_systems() -> None:
    assert git_refuses(".g\u200cit/config".encode(), is_link=False)  # HFS+ ignores the joiner
    assert git_refuses(b".gitmodules", is_link=True)


@for_each("path", [b".gitignore", b"git", b".gitmodules", b"x.git", b".github/workflows", b"git~"])
def test_names_that_only_look_like_those(path: bytes) -> None:
    assert not git_refuses(path, is_link=False)
