"""Random trees of files for hypothesis, made in a directory, with every type and attribute that a test may choose."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple, TypeAlias

from hypothesis import strategies as st

from fusebackend.backends.directory.volume import DirectoryVolume
from fusebackend.base.paths import ROOT
from fusebackend.trees.merge.tree import MergeTree

HOSTILE = (b"sp ace", b"trail ", b'quo"te\\', b"new\nline", b"\xff\xfe", "ü".encode(), b"-x", b"\x1b[2J")


class File(NamedTuple):
    data: bytes
    mode: int = 0o644


class Link(NamedTuple):
    target: bytes


class Fifo(NamedTuple):
    mode: int = 0o644


Tree: TypeAlias = "dict[bytes, File | Link | Fifo | Tree]"

FILES = st.builds(
    File,
    st.one_of(
        st.lists(st.sampled_from(["one", "two", "", "+x", "\\ No newline", "@@ -1 +1 @@", "\r"]), max_size=8)
        .map("\n".join)
        .map(str.encode),
        st.binary(max_size=60),
        st.sampled_from([b"the same bytes\n", b"other equal bytes"]),
    ),
    st.sampled_from([0o644, 0o755, 0o600, 0o4711]),
)
DANGLING = st.builds(Link, st.sampled_from([b"gone", b"../gone", b"/etc/passwd", b"\xff\n"]))
LINKS = st.builds(Link, st.sampled_from([b"a", b"../b", b"gone", b"/etc/passwd", b"\xff\n", b"sp ace"]))


def trees(names: tuple[bytes, ...] = (), *, special: bool = False) -> st.SearchStrategy[Tree]:
    """Trees of files and links. If they are to be `special`, also of FIFOs, links that loop and empty directories."""
    leaves = FILES | LINKS | st.just(Fifo()) if special else FILES | DANGLING
    known = st.sampled_from([b"a", b"b", b"c", b"d", *HOSTILE, *names])
    fewest = 0 if special else 1
    inner = st.recursive(
        leaves, lambda below: st.dictionaries(known, below, min_size=fewest, max_size=3), max_leaves=8
    )  # fmt: skip
    return st.dictionaries(known, inner, max_size=5)


def make(root: Path | bytes, tree: Tree, mtime_ns: int) -> None:
    """Make a tree in an existing directory. Two trees get different times: a diff must not take files for equal."""
    top = root if isinstance(root, bytes) else os.fsencode(root)
    for name, node in tree.items():
        path = os.path.join(top, name)
        if isinstance(node, dict):
            os.mkdir(path)
            make(path, node, mtime_ns)
        elif isinstance(node, Link):
            os.symlink(node.target, path)
        elif isinstance(node, Fifo):
            os.mkfifo(path)
            os.chmod(path, node.mode)
        else:
            with open(path, "wb") as file:
                file.write(node.data)
            os.chmod(path, node.mode)
            os.utime(path, ns=(mtime_ns, mtime_ns))


def flat(tree: Tree, above: bytes = b"") -> dict[bytes, File | Link | Fifo]:
    """All that is no directory, by path."""
    found: dict[bytes, File | Link | Fifo] = {}
    for name, node in tree.items():
        if isinstance(node, dict):
            found |= flat(node, above + name + b"/")
        else:
            found[above + name] = node
    return found


def read(root: Path) -> dict[bytes, File | Link | Fifo]:
    """Read all that is no directory, by path."""
    top = os.fsencode(root)
    found: dict[bytes, File | Link | Fifo] = {}
    for directory, names, files in os.walk(top):
        for name in names + files:
            path = os.path.join(directory, name)
            relative = os.path.relpath(path, top)
            if os.path.islink(path):
                found[relative] = Link(os.readlink(path))
            elif os.path.isfile(path):
                found[relative] = File(Path(os.fsdecode(path)).read_bytes(), os.stat(path).st_mode & 0o7777)
            elif not os.path.isdir(path):
                found[relative] = Fifo(os.stat(path).st_mode & 0o7777)
    return found


def tree_of(directory: Path) -> MergeTree:
    """The tree of a plain directory, as `diff` compares it."""
    return MergeTree({ROOT: DirectoryVolume(directory)})
