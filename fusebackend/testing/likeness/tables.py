"""The tables: rows that combine scenes, users and calls."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from fusebackend.testing.likeness import calls
from fusebackend.testing.likeness.calls import OTHER, OWNERS
from fusebackend.testing.likeness.observing import ROOT, Row, User
from fusebackend.testing.likeness.scenes import DEVICES, KINDS, Scene, Thing
from fusebackend.testing.posix.case import NOBODY, renameat2

USER = User("a user", NOBODY, NOBODY)
MEMBER = User("a member of the group", NOBODY, NOBODY, (OTHER,))
BESIDE = (Thing("file", "o", (NOBODY, NOBODY)), Thing("directory", "od", (NOBODY, NOBODY)))


def names() -> Iterator[Row]:
    """Yield rows for every kind of file, under its name and with every ending that a path can have."""
    for kind, user, ending in itertools.product(KINDS, (ROOT, USER), ("", "/", "/.", "/..", "/x", "/../p")):
        scene = Scene((Thing(kind, "p", (user.uid, user.gid)), *BESIDE), 0o777)
        for label, call in calls.on_names("p" + ending):
            if kind in DEVICES and label.startswith("open") and "O_PATH" not in label:
                continue  # the driver answers, and a mount with `nodev` refuses it
            yield Row(f"{kind}, {user.name}: {label}", scene, user, call)


MODES = (None, 0o6777, 0o0700, 0o2770, 0o1777, 0o4711, 0o2755, 0o0077)


def attributes() -> Iterator[Row]:
    """Yield rows that combine owners, groups and modes with every user."""
    for kind, mode, owner, user in _owned():
        for label, call in calls.on_attributes(kind):
            yield _owned_row(kind, mode, owner, user, label, call)


def extended_attributes() -> Iterator[Row]:
    for kind, mode, owner, user in _owned():
        if mode in (None, 0o1777, 0o0700):
            for label, call in calls.on_extended_attributes():
                yield _owned_row(kind, mode, owner, user, label, call)


def _owned() -> Iterator[tuple[str, int | None, tuple[int, int], User]]:
    kinds = ("file", "directory", "full directory", "fifo", "character device", "link to a file", "dangling link",
             "link to a directory", "file with two names")  # fmt: skip
    owners = ((0, 0), (NOBODY, NOBODY), (OTHER, NOBODY), (NOBODY, OTHER), (0, OTHER))
    for kind, mode, owner, user in itertools.product(kinds, MODES, owners, (ROOT, USER, MEMBER)):
        if user is not MEMBER or owner[1] == OTHER:
            yield kind, mode, owner, user


def _owned_row(kind: str, mode: int | None, owner: tuple[int, int], user: User, label: str, call: object) -> Row:
    shown = "" if mode is None else f" {mode:o}"
    scene = Scene((Thing(kind, "p", owner, mode), *BESIDE), 0o777)
    return Row(f"{kind}{shown} of {owner}, {user.name}: {label}", scene, user, call)  # type: ignore[arg-type]


def renaming() -> Iterator[Row]:
    """Yield renames of every kind over every kind, in one directory and between two, and with invalid names."""
    for kind, target, flags, source in itertools.product(KINDS, KINDS, (0, 1, 2, 3, 8), ("a/s", "b/s")):
        things = (Thing("directory", "a"), Thing("directory", "b"), Thing(kind, source), Thing(target, "b/d"))
        call = partial(renameat2, Path(source), Path("b/d"), flags)
        yield Row(f"renameat2 of {kind} {source} over {target} b/d, flags {flags}", Scene(things), ROOT, call)
    some = ("file", "directory", "full directory", "link to a directory", "nothing")
    for kind, target, end, other in itertools.product(some, some, *[("", "/", "/.", "/..")] * 2):
        call = partial(os.rename, "s" + end, "d" + other)
        scene = Scene((Thing(kind, "s"), Thing(target, "d")))
        yield Row(f"rename of {kind} s{end} over {target} d{other}", scene, ROOT, call)
    scene = Scene((Thing("directory", "a"), Thing("directory", "a/b"), Thing("file", "a/f")))
    for (old, new), flags in itertools.product(
        (("a", "a/b"), ("a", "a/b/c"), ("a/b", "a"), ("a", "a"), ("a/b", "a/../a/b"), ("a/f", "a/b"), ("a/b", "a/f"),
         ("a/f", "a/f/x"), ("a/b", ".."), (".", "a/x"), ("..", "a/x"), ("a", "a/n")),
        (0, 1, 2),
    ):  # fmt: skip
        call = partial(renameat2, old, new, flags)  # as written: `Path` would normalise the names
        yield Row(f"renameat2 {old} {new}, flags {flags}", scene, ROOT, call)


def sticky_directories() -> Iterator[Row]:
    """Yield calls of one user in directories of every mode and owner, on files of every owner."""
    kinds = ("file", "directory", "full directory", "dangling link", "fifo")
    for mode, above, kind, owner, other in itertools.product(
        (0o1777, 0o777, 0o755, 0o1755, 0o555, 0o333, 0o1733), OWNERS, kinds, OWNERS, OWNERS
    ):
        scene = Scene((Thing(kind, "p", owner), Thing("file", "o", other), BESIDE[1]), mode, above)
        for label, call in calls.in_sticky_directories():
            if other == OWNERS[0] or " o" in label:
                shown = f"{kind} of {owner} and a file of {other} in {mode:o} of {above}"
                yield Row(f"{shown}, a user: {label}", scene, USER, call)


TABLES = (names, attributes, extended_attributes, renaming, sticky_directories)
