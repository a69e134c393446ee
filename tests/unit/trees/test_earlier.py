"""`EarlierVolume`: the state before a call, from random records, compared with what was there."""

from __future__ import annotations

import errno
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from profiles import examples
from random_changes import STEPS, make
from recorded import Recorded, recorded_of
from replayed import Tree, shown, tree_of

from fusebackend.base.paths import ROOT
from fusebackend.history.records import Record
from fusebackend.trees.earlier import EarlierVolume, PastMoment
from fusebackend.volumes.placing import NodeSource, Source, whole
from fusebackend.volumes.walk import resolve


@contextmanager
def recorded(kind: str) -> Iterator[Recorded]:
    with tempfile.TemporaryDirectory() as directory, recorded_of(kind, Path(directory)) as found:
        yield found


def before(place: Recorded, number: int, path: bytes = b"/") -> EarlierVolume:
    def source(record: Record) -> Source:
        found = place.images.source(place.history, place.files.volume, record)
        assert found is not None
        return found

    call = place.history.call(number)
    moment = PastMoment(f"before {call.ref}", call.began_ns, place.history.begin(call))
    return EarlierVolume(place.history, moment, [ROOT], place.files.volume, [path], source)


def states(place: Recorded, steps: Any, *, apart: bool) -> dict[int, Any]:
    """Make steps; returns the tree before each call, by its number."""
    found: dict[int, Any] = {}
    for each in steps:
        was = with_links(tree_of(place.files.volume)[0])
        make(place, [each])
        for call in place.recorder.calls.open():
            found.setdefault(call.number, was)
            if apart:
                place.recorder.calls.end(call)
    found.pop(0, None)
    return found


def with_links(tree: Tree) -> dict[bytes, Any]:
    """A tree as `shown`, with all paths of each file."""
    return {path: (*each, [at for at in tree if tree[at] is tree[path]]) for path, each in shown(tree).items()}


def files_of(volume: EarlierVolume) -> dict[bytes, Any]:
    """The tree of a volume, as `shown`; the bytes of a file are None if they are not known."""
    unknown: set[int] = set()

    def read(node: int, offset: int, size: int) -> bytes:
        try:
            return whole(NodeSource(volume, node))[offset : offset + size]
        except OSError as error:
            assert error.errno == errno.ENODATA
            unknown.add(node)
            return b""

    volume.read = read  # type: ignore[method-assign]
    tree, nodes = tree_of(volume)
    lost = {id(nodes[node]) for node in unknown}
    return {
        path: (each[0], None if id(tree[path]) in lost else each[1], *each[2:])
        for path, each in with_links(tree).items()
    }


@pytest.mark.parametrize(("kind", "is_later"), [("memory", False), ("dir", False), ("dir", True)])
@settings(max_examples=examples(20))
@given(first=STEPS, steps=STEPS)
@example([], [("create", "X", 0, 0, 0), ("link", "X", 0, 26, 0), ("rename", "X", 0, 0, 1), ("rename", "X", 0, 1, 0)])
@example([("create", "X", 0, 0, 3), ("setxattr", "X", 0, 0, 5)], [("create", "X", 0, 1, 3)])  # of a live file
def test_the_state_before_each_call_is_exact(kind: str, is_later: bool, first: Any, steps: Any) -> None:
    """`is_later`: for the next server, for which the nodes in records mean nothing."""
    with recorded(kind) as place:
        make(place, first)
        place.recorder.calls.close()
        found = states(place, steps, apart=True)
        place.history.earlier = place.history.written() if is_later else 0
        for number, was in found.items():
            if place.history.call(number) is not None:
                assert files_of(before(place, number)) == was


@pytest.mark.parametrize("kind", ["memory", "dir"])
@settings(max_examples=examples(20))
@given(steps=STEPS)
# A change by a call that had begun before, within a tick of the clock after the moment.
@example(steps=[("create", "X", 21, 23, 47), ("mkdir", "Z", 33, 19, 28), ("truncate", "X", 9, 3, 93)])
# Y goes on with a file after Z has changed its attributes.
@example(steps=[("create", "Y", 0, 0, 0), ("overwrite", "X", 0, 0, 0), ("overwrite", "Y", 0, 0, 0),
                ("chmod", "Z", 1, 0, 0), ("overwrite", "Y", 0, 0, 1)])  # fmt: skip
def test_calls_that_overlap_give_the_right_bytes_or_none(kind: str, steps: Any) -> None:
    with recorded(kind) as place:
        for number, was in states(place, steps, apart=False).items():
            if place.history.call(number) is None:
                continue
            found = files_of(before(place, number))
            assert found.keys() == was.keys()
            for path, (mode, data, target, _, _) in found.items():
                assert (stat.S_IFMT(mode), target) == (stat.S_IFMT(was[path][0]), was[path][2])
                assert data in (None, was[path][1])


def test_a_path_alone(tmp_path: Path) -> None:
    """Only the records of what it was are read: renames of a directory above it are followed, and links."""
    with recorded("memory") as place:
        with place.by("one"):
            place.files.make(("mkdir", "/old"), ("write", "/old/file", b"before"), ("write", "/other", b"other"))
        place.recorder.calls.close()
        with place.by("two"):
            place.files.make(("write", "/old/file", b"after!"), ("rename", "/old", "/new"), ("remove", "/other"))
        volume = before(place, 2, b"/old/file")
        node = resolve(volume, "/old/file").found.node
        assert whole(NodeSource(volume, node)) == b"before"
        assert not volume.is_overtaken
        with place.by("three"):
            place.files.write("/new/file", b"again!")
        assert volume.is_overtaken


def test_bytes_that_are_not_known_are_named() -> None:
    with recorded("dir") as place:
        with place.by("one"):
            place.files.write("/shared", b"first")
        with place.by("two"):
            place.files.write("/other", b"")
        with place.by("one"):  # it has not ended
            place.files.write("/shared", b"later")
        volume = before(place, 2)
        with pytest.raises(OSError, match=r"the bytes of '/shared' before c2 are not known: a call that had begun"):
            volume.pieces(resolve(volume, "/shared").found.node)


def test_calls_that_were_forgotten_since() -> None:
    with recorded("memory") as place:
        for who in ("one", "two", "three"):
            with place.by(who):
                place.files.write(f"/{who}", b"")
            place.recorder.calls.close()
        place.history.forget([2])
        with pytest.raises(OSError, match="calls that have changed something since c1 began were forgotten"):
            before(place, 1)
        assert set(files_of(before(place, 3))) == {b"/", b"/one", b"/two"}
        place.history.note_gap(3, "the disk was full")
        with pytest.raises(OSError, match="a change of c3 was not recorded: the disk was full"):
            before(place, 3)
