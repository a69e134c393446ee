"""`diff.py` and the other forms of `diff_output.py`, over two plain directories."""

from __future__ import annotations

import errno
import gc
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias, cast

import pytest
from for_each import for_each
from merging import write
from random_trees import Fifo, File, Link, Tree, make, tree_of

from fusebackend.backends.directory.dirfd import CACHED_DESCRIPTORS
from fusebackend.backends.directory.volume import DirectoryVolume
from fusebackend.backends.memory import InMemoryVolume
from fusebackend.base.paths import ROOT, AgentPath
from fusebackend.linux.holes import data_ranges
from fusebackend.testing.posix.case import fails, refused
from fusebackend.trees import diff_output
from fusebackend.trees.branches import Branches
from fusebackend.trees.diff import Difference, Differences, differences
from fusebackend.trees.diff_output import as_objects, name_status, stat_lines, stat_rows
from fusebackend.trees.merge.tree import RACY_NS, Item, KeyOf, MergeTree
from fusebackend.trees.refs import MAIN_REF, Ref
from fusebackend.trees.snapshots import Snapshots
from fusebackend.trees.states import States
from fusebackend.volumes.contents import PIECE_BYTES, filled, same_pieces

Pieces: TypeAlias = "list[tuple[int, bytes]]"


def compare(sides: tuple[Path, Path], *paths: bytes) -> Differences:
    return differences(tree_of(sides[0]), tree_of(sides[1]), paths or (b"",))


def lines(result: Differences) -> list[str]:
    return list(name_status(result))


def reads(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Record the files that are opened from now on."""
    opened: list[bytes] = []
    pieces = Item.pieces

    def recorded(item: Item) -> Any:
        opened.append(item.path)
        return pieces(item)

    monkeypatch.setattr(Item, "pieces", recorded)
    return opened


def test_files_with_the_same_times_are_not_read(sides: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hard links stand for a file in a snapshot and in the main tree: its ctime is the same in both."""
    before, after = sides
    make(before, {b"f": File(b"1")}, 1_000)
    os.link(before / "f", after / "f")
    ctime_ns = (after / "f").stat().st_ctime_ns
    opened = reads(monkeypatch)

    def found(time_ns: int, key_of: KeyOf | None = lambda prefix, node: "a file") -> list[Difference]:
        volumes = ({ROOT: DirectoryVolume(side)} for side in sides)
        trees = [MergeTree(volume, None, key_of, time_ns) for volume in volumes]
        return differences(*trees).found

    assert found(ctime_ns + RACY_NS + 1) == []
    assert opened == []
    assert found(ctime_ns + RACY_NS) == []
    assert opened == [b"f", b"f"], "written in the tick of the snapshot, it may differ with the same times"
    assert found(ctime_ns + RACY_NS + 1, None) == []
    assert opened == [b"f"] * 4, "it may be another file"


def test_files_of_different_sizes_are_not_read(sides: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    make(sides[0], {b"f": File(b"1"), b"g": File(b"2")}, 1_000)
    make(sides[1], {b"f": File(b"12"), b"h": File(b"33")}, 2_000)
    opened = reads(monkeypatch)
    assert lines(compare(sides)) == ["M\tf", "D\tg", "A\th"]
    assert opened == []


COMPARED: dict[str, tuple[Tree, Tree, tuple[bytes, ...], list[str]]] = {
    "a touched file is the same": ({b"f": File(b"1"), b"d": {}}, {b"f": File(b"1"), b"d": {}}, (), []),
    "names and letters": (
        {b"d": {b"f": File(b"1")}, b"file": File(b"2"), b"l": Link(b"a"), b"empty": {}, b"mode": File(b"3"),
         b"from": File(b"moved"), b"quote\n": File(b"4")},
        {b"new": {b"deep": {b"f": File(b"x")}}, b"file": {}, b"l": Link(b"b"), b"mode": File(b"3", 0o600),
         b"to": File(b"moved"), b"pipe": Fifo()},
        (),
        ["D\td/f", "D\tempty/", "T\tfile/", "M\tl", "M\tmode", "A\tnew/deep/f", "A\tpipe", 'D\t"quote\\n"',
         "R100\tfrom\tto"],
    ),
    "renames pair equal names first": (
        {b"a": {b"one": File(b"same"), b"two": File(b"same")}, b"e": File(b"")},
        {b"b": {b"two": File(b"same"), b"zzz": File(b"same"), b"e2": File(b"")}},
        (),
        ["A\tb/e2", "R100\ta/two\tb/two", "R100\ta/one\tb/zzz", "D\te"],
    ),
    "some paths": (
        {b"a": {b"x": File(b"1")}, b"b": File(b"2"), b"c": File(b"3")},
        {b"a": {}, b"b": File(b"22"), b"c": File(b"33")},
        (b"a", b"c", b"a/x"),
        ["D\ta/x", "M\tc"],
    ),
}  # fmt: skip


@for_each("name", COMPARED)
def test_what_differs(name: str, tmp_path: Path) -> None:
    before, after, paths, expected = COMPARED[name]
    for side, tree, mtime_ns in (("before", before, 1_000), ("after", after, 2_000)):
        (tmp_path / side).mkdir()
        make(tmp_path / side, tree, mtime_ns)
    assert lines(compare((tmp_path / "before", tmp_path / "after"), *paths)) == expected


def test_a_path_that_neither_has(sides: tuple[Path, Path]) -> None:
    make(sides[0], {b"a": {b"x": File(b"1")}}, 1_000)
    with pytest.raises(FileNotFoundError) as missing:
        compare(sides, b"a", b"a/y/z")
    assert missing.value.filename == "a/y/z"


ROUTES = ("/", "/a", "/a/in", "/a/in/most", "/b/c", "/bc")


@for_each(
    ("held", "path", "found", "missing"),
    [
        (ROUTES, b"", [b"a/in/most/new", b"a/in/new", b"a/new", b"b/c/new", b"bc/new", b"new"], []),
        (("/", "/a", "/bc"), b"", [b"a/new", b"bc/new", b"new"], ["/a/in/", "/a/in/most/", "/b/c/"]),
        (("/", "/a/in/most", "/bc"), b"a", [b"a/in/most/new"], ["/a/in/"]),
        (("/", "/a/in/most"), b"a/in/most/new", [b"a/in/most/new"], []),
        (("/a", "/b/c"), b"", [b"a/new", b"b/c/new"], ["/", "/a/in/", "/a/in/most/", "/bc/"]),
        (("/a", "/b/c"), b"new", "'/new' lies in a route of which 'one' holds nothing: '/'", []),
    ],
)
def test_routes_that_one_state_does_not_hold(held: Any, path: bytes, found: Any, missing: Any) -> None:
    volumes = {AgentPath(prefix): InMemoryVolume() for prefix in ROUTES}
    for prefix, volume in volumes.items():
        if prefix in held:
            volume.take_snapshot("one")
        write(volume, b"new", b"1")
    states = States(volumes, Snapshots(volumes), cast("Branches", None))
    if isinstance(found, str):
        with fails(errno.ENODATA, match=found):
            states.differences(Ref("one", 1), MAIN_REF, [path])
        return
    result = states.differences(Ref("one", 1), MAIN_REF, [path])
    assert ([each.path for each in result.found], result.missing, result.emptied) == (found, missing, [])


def test_a_link_on_the_way_is_not_followed(sides: tuple[Path, Path], tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    make(sides[0], {b"d": {b"f": File(b"1")}}, 1_000)
    outside.mkdir()
    make(outside, {b"f": File(b"secret")}, 1_000)
    (sides[1] / "d").symlink_to(outside)
    assert lines(compare(sides, b"d/f")) == ["D\td/f"]
    tree, link = tree_of(sides[1]), tree_of(sides[1]).find(b"d")
    assert tree.find(b"d/f") is None and link is not None
    refused(errno.EINVAL, list, link.pieces())


def test_a_file_that_became_a_fifo_does_not_block(sides: tuple[Path, Path]) -> None:
    make(sides[0], {b"f": Fifo()}, 1_000)
    pipe = tree_of(sides[0]).find(b"f")
    assert pipe is not None
    refused(errno.EINVAL, list, pipe.pieces())


def test_what_can_not_be_read_is_skipped(sides: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    make(sides[0], {b"d": {b"f": File(b"1")}, b"g": File(b"2")}, 1_000)
    make(sides[1], {b"d": {b"f": File(b"3")}, b"g": File(b"4")}, 2_000)
    names = Item.names

    def refused(item: Item) -> Any:
        if item.path == b"d":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return names(item)

    monkeypatch.setattr(Item, "names", refused)
    result = compare(sides)
    assert (lines(result), result.skipped) == (["M\tg"], [(b"d", "Permission denied")])
    assert b"# d: not compared: Permission denied\n" in b"".join(diff_output.patch(result))


def test_a_file_that_goes_while_the_patch_is_made(sides: tuple[Path, Path]) -> None:
    make(sides[1], {b"f": File(b"1"), b"g": File(b"2")}, 1_000)
    result = compare(sides)
    (sides[1] / "f").unlink()
    made = b"".join(diff_output.patch(result))
    assert b"diff --git a/g b/g\n" in made
    assert b"# f: could not be read: No such file or directory\n" in made
    assert [row.text for row in stat_rows(result)] == ["could not be read: No such file or directory", "1"]


@pytest.fixture
def emptied(sides: tuple[Path, Path]) -> Iterator[tuple[Path, Path]]:
    """Both sides, and nothing of them afterwards: pytest removes old directories by recursion, and fails at 1,000."""
    yield sides
    subprocess.run(["rm", "-rf", *sides], check=True)
    gc.collect()  # the volumes, which nobody closes, are cycles, and each keeps `CACHED_DESCRIPTORS` open


def test_a_deep_tree_needs_few_descriptors(emptied: tuple[Path, Path]) -> None:
    deep, sides = 1500, emptied
    for side in sides:
        fd = os.open(side, os.O_RDONLY)
        for _ in range(deep):
            os.mkdir("d", dir_fd=fd)
            below = os.open("d", os.O_RDONLY, dir_fd=fd)
            os.close(fd)
            fd = below
        with os.fdopen(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=fd), "w") as file:
            file.write(side.name)
        os.close(fd)
    open_before = len(os.listdir("/proc/self/fd"))
    result = compare(sides)
    assert [each.path for each in result.found] == [b"d/" * deep + b"f"]
    assert len(os.listdir("/proc/self/fd")) <= open_before + 2 * (CACHED_DESCRIPTORS + 1)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ([], [], True),
        ([(0, b"ab"), (2, b"c")], [(0, b"a"), (1, b"bc")], True),
        ([(4, b"x")], [(0, b"\0\0\0\0x")], True),
        ([(4, b"x"), (9, b"")], [(0, b"\0\0"), (3, b"\0x\0\0")], True),
        ([(0, b"ab"), (2, b"c")], [(0, b"a"), (1, b"bd")], False),
        ([(4, b"x")], [], False),
        ([], [(0, b"\0"), (7, b"\0x")], False),
        ([(1, b"x")], [(2, b"x")], False),
    ],
)
def test_pieces_are_compared_with_their_holes(one: Pieces, other: Pieces, same: bool) -> None:
    assert same_pieces(iter(one), iter(other)) is same
    assert same_pieces(iter(other), iter(one)) is same
    assert same or b"".join(filled(iter(one))).rstrip(b"\0") != b"".join(filled(iter(other))).rstrip(b"\0")


def test_stat(sides: tuple[Path, Path]) -> None:
    make(sides[0], {b"text": File(b"1\n2\n3\n"), b"bin": File(b"\0" * 10), b"old": File(b"moved")}, 1_000)
    make(
        sides[1],
        {b"text": File(b"1\n3\n4\n5\n"), b"bin": File(b"\0"), b"new": File(b"moved"), b"many": File(b"x\n" * 500)},
        2_000,
    )
    (sides[1] / "empty").mkdir()
    assert list(stat_lines(list(stat_rows(compare(sides))), 60)) == [
        " bin        | Bin 10 -> 1 bytes",
        " empty/     | directory",
        " many       | 500 +++++++++++++++++++++++++++++++++++++++++",
        " old => new |   0",
        " text       |   3 +-",
        " 5 files changed, 502 insertions(+), 1 deletion(-)",
    ]
    assert list(stat_lines([])) == []


def test_json(sides: tuple[Path, Path]) -> None:
    make(sides[0], {b"f": File(b"1"), b"old": File(b"moved")}, 1_000)
    make(sides[1], {b"f": File(b"22", 0o600), b"new\xff": File(b"moved")}, 2_000)
    found = [json.loads(json.dumps(each)) for each in as_objects(compare(sides))]
    uid, gid = os.geteuid(), os.getegid()
    attributes = {"type": "file", "uid": uid, "gid": gid}
    assert found == [
        {
            "change": "modified",
            "path": "f",
            "fields": ["bytes", "mode"],
            "before": {**attributes, "size": 1, "mode": 0o644, "mtime_ns": 1_000},
            "after": {**attributes, "size": 2, "mode": 0o600, "mtime_ns": 2_000},
        },
        {
            "change": "renamed",
            "path": "new\udcff",
            "old_path": "old",
            "fields": [],
            "before": {**attributes, "size": 5, "mode": 0o644, "mtime_ns": 1_000},
            "after": {**attributes, "size": 5, "mode": 0o644, "mtime_ns": 2_000},
        },
    ]


@pytest.mark.parametrize("knows_holes", [True, False])
def test_holes(sides: tuple[Path, Path], request: pytest.FixtureRequest, knows_holes: bool) -> None:
    size = 8 << 20
    for side in sides:
        with (side / "f").open("wb") as file:
            file.truncate(size)
            file.seek(5 << 20)
            file.write(b"data")
    with (sides[1] / "g").open("wb") as file:
        file.truncate(size)
    if not knows_holes:
        request.getfixturevalue("without_holes")
    with (sides[0] / "f").open("rb") as one, (sides[1] / "g").open("rb") as other:
        first, same, empty = (tree_of(sides[i]).find(name) for i, name in ((0, b"f"), (1, b"f"), (1, b"g")))
        assert first is not None and same is not None and empty is not None
        assert same_pieces(first.pieces(), same.pieces())
        assert not same_pieces(first.pieces(), empty.pieces())
        read = sum(len(piece) for _, piece in first.pieces())
        assert read == (PIECE_BYTES if knows_holes else size)
        ((start, end),) = data_ranges(one.fileno(), size)
        assert (start, end) == ((5 << 20, (5 << 20) + 4096) if knows_holes else (0, size))
        assert list(data_ranges(other.fileno(), size)) == ([] if knows_holes else [(0, size)])
