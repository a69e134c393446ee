"""`whole_tree`: everything of a volume that a program sees, to be compared with itself at another time."""

from __future__ import annotations

from typing import NamedTuple

from fusebackend.protocol import Volume
from fusebackend.testing.by_path import at, content, walk
from fusebackend.volumes.placing import State, state_of


class Kept(NamedTuple):
    """A file: attributes without access times, bytes, and all of its names."""

    state: State
    data: bytes
    names: frozenset[bytes]


def whole_tree(volume: Volume, top: bytes = b"", *, directory_times: bool = False) -> dict[bytes, Kept]:
    """Return a directory, which is `/`, and all files below it by their paths from there."""
    found, names = {}, dict[int, set[bytes]]()
    above = at(volume, top)
    for below, attr in [(b"", above), *walk(volume, above.node)]:
        path, state = b"/" + below, state_of(volume, attr)._replace(atime_ns=0)
        if attr.is_dir:
            state = state._replace(size=0, nlink=0, mtime_ns=state.mtime_ns * directory_times)
        names.setdefault(attr.node, set()).add(path)
        found[path] = state, content(volume, attr), attr.node
    return {path: Kept(state, data, frozenset(names[node])) for path, (state, data, node) in found.items()}
