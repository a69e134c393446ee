"""`git_patch.py`, by what git itself makes of its patches."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples

from fusebackend.base import git_patch
from fusebackend.base.git_patch import EXECUTABLE_MODE, LINK_MODE, Side, edited_lines, file_patch

NAMES = st.sampled_from([b"a.txt", b"dir/b.txt", b"sp ace", b"end /x", "ü".encode(), b'quo"te', b"t\tn\n", b"-dash"])
CONTENTS = st.one_of(
    st.lists(
        st.sampled_from(["one", "two", "three", "", "+x", "-y", "\\ No newline", "@@ -1 +1 @@", "\r", "\f"]),
        max_size=12,
    )
    .map("\n".join)
    .map(str.encode),
    st.binary(max_size=200),
)
TREES = st.dictionaries(NAMES, CONTENTS, max_size=4)


def patch(before: dict[bytes, bytes], after: dict[bytes, bytes]) -> bytes:
    pieces: list[bytes] = []
    for path in sorted(before.keys() | after.keys()):
        old, new = before.get(path), after.get(path)
        if old != new:
            pieces += file_patch(path, None if old is None else Side(old), None if new is None else Side(new))
    return b"".join(pieces)


def fill(directory: Path, files: dict[bytes, bytes]) -> None:
    for name, data in files.items():
        path = directory / name.decode()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def read(directory: Path) -> dict[bytes, bytes]:
    return {
        str(path.relative_to(directory)).encode(): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


def apply(directory: Path, text: bytes, *options: str) -> None:
    run = subprocess.run(
        ["git", "apply", "--whitespace=nowarn", *options], cwd=directory, input=text, capture_output=True, check=False
    )
    assert run.returncode == 0, (run.stderr.decode(), text.decode("utf-8", "replace"))


@settings(max_examples=examples(60), deadline=None)
@given(before=TREES, after=TREES)
def test_git_applies_and_reverts_it(
    tmp_path_factory: pytest.TempPathFactory, before: dict[bytes, bytes], after: dict[bytes, bytes]
) -> None:
    directory = tmp_path_factory.mktemp("tree")
    fill(directory, before)
    made = patch(before, after)
    assert bool(made) == (before != after)
    if made:
        apply(directory, made)
        assert read(directory) == after
        apply(directory, made, "--reverse")
    assert read(directory) == before


def test_a_text_that_is_too_large_to_compare_is_replaced_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(git_patch, "MAX_EDITS", 1)
    before, after = {b"f": b"1\n2\n3\n4\n"}, {b"f": b"1\n2\n3\n5\n"}
    fill(tmp_path, before)
    made = patch(before, after)
    assert b"-1\n-2\n-3\n-4\n+1\n" in made
    apply(tmp_path, made)
    assert read(tmp_path) == after


@pytest.mark.parametrize("words", [1, 2, 50])
def test_lines_that_repeat_take_no_longer(tmp_path: Path, words: int) -> None:
    """1,000 equal lines took difflib 18 s."""
    lines = [f"line {number % words}" for number in range(20_000)]
    before, after = "\n".join(["first", *lines, "last"]), "\n".join(["1st", *lines[:7000], "new", *lines[7001:]])
    start = time.monotonic()
    made = patch({b"f": before.encode()}, {b"f": after.encode()})
    assert time.monotonic() - start < 5
    assert len(made) < 1000
    fill(tmp_path, {b"f": before.encode()})
    apply(tmp_path, made)
    assert read(tmp_path) == {b"f": after.encode()}


def test_a_change_has_its_context_and_neighbours_share_it(tmp_path: Path) -> None:
    lines = [f"{number}\n" for number in range(40)]
    changed = [*lines[:5], "five\n", *lines[6:12], "new\n", *lines[12:20], *lines[21:]]
    made = patch({b"f": "".join(lines).encode()}, {b"f": "".join(changed).encode()}).decode()
    assert [line for line in made.splitlines() if line.startswith("@@")] == ["@@ -3,13 +3,14 @@", "@@ -18,7 +19,6 @@"]


def test_hunks_have_three_lines_of_context() -> None:
    before = b"".join(b"%d\n" % number for number in range(20))
    made = patch({b"f": before}, {b"f": before.replace(b"9\n", b"nine\n", 1)}).decode()
    assert "@@ -7,7 +7,7 @@\n 6\n 7\n 8\n-9\n+nine\n 10\n 11\n 12\n" in made


def test_changes_seven_lines_apart_are_two_hunks() -> None:
    for between, hunks in ((6, 1), (7, 2)):
        same = b"same\n" * between
        assert patch({b"f": b"1\n" + same + b"2\n"}, {b"f": b"3\n" + same + b"4\n"}).count(b"\n@@ ") == hunks, between


def test_a_link_a_mode_and_a_rename(tmp_path: Path) -> None:
    fill(tmp_path, {b"old name": b"same\n", b"run": b"#!/bin/sh\n"})
    (tmp_path / "link").symlink_to("old name")
    made = b"".join(
        [
            *file_patch(b"link", Side(b"old name", LINK_MODE), Side(b"new\n\xff", LINK_MODE)),
            *file_patch(b"new", Side(b"same\n"), Side(b"same\n"), old_path=b"old name"),
            *file_patch(b"run", Side(b"#!/bin/sh\n"), Side(b"#!/bin/sh\n", EXECUTABLE_MODE)),
        ]
    )
    assert b"similarity index 100%\nrename from old name\nrename to new\n" in made
    assert b"old mode 100644\nnew mode 100755\n" in made
    apply(tmp_path, made)
    assert (tmp_path / "link").readlink() == Path("new\n\udcff")
    assert (tmp_path / "new").read_bytes() == b"same\n"
    assert (tmp_path / "run").stat().st_mode & 0o111
    assert not (tmp_path / "old name").exists()


def test_lines_are_counted_as_the_patch_has_them() -> None:
    assert edited_lines(Side(b"1\n2\n3\n"), Side(b"1\n3\n4\n5")) == (1, 2)
    assert edited_lines(None, Side(b"1\n")) == (0, 1)
    assert edited_lines(Side(b"\0"), None) is None
