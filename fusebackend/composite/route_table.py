"""`PrefixTable`: the route of each path, and the names that routes put into a directory. Pure and immutable.

The agent face asks it (`backend.py`, `router.py`). The mount decides by the same rules in a tree of directories
(`vfs/junctions.py`); `tests/unit/composite/test_composite.py` and `tests/unit/vfs/test_mounted_tree.py` hold each to
them:

- a path belongs to the route with the longest prefix that holds it, by whole segments (`/memories2` is not below
  `/memories`), or to no route, which is the default backend;
- a prefix is a directory in its parent, and hides a file of the backend underneath; so is every directory on the way to
  a prefix, be it there or not (it then is synthesised);
- what a route covers in the backend underneath is out of sight.

Paths and prefixes are normalised (`paths.normalise`, `paths.normalise_prefix`); None stands for the default's prefix.
"""

from __future__ import annotations

from collections.abc import Iterable

from fusebackend.base.paths import ROOT, AgentPath, PathError, is_below, normalise_prefix, parent_and_name


class PrefixTable:
    """The prefixes of a composite.

    Attributes:
        prefixes: all of them, normalised, the longest first.
        pinned: the root, each prefix, and each directory above one. These are directories, and can't be deleted or
            moved.
    """

    def __init__(self, prefixes: Iterable[str] = ()) -> None:
        """
        Raises:
            PathError: a prefix is refused by `normalise_prefix`, or two of them mean the same directory.
        """
        given: dict[AgentPath, str] = {}
        for prefix in prefixes:
            normal = normalise_prefix(prefix)
            if normal in given:
                raise PathError(f"Route prefixes '{given[normal]}' and '{prefix}' mean the same directory '{normal}/'")
            given[normal] = prefix
        self.prefixes = tuple(sorted(given, key=lambda prefix: (-len(prefix), prefix)))
        names: dict[AgentPath, set[str]] = {ROOT: set()}
        for prefix in self.prefixes:
            directory = prefix
            names.setdefault(directory, set())
            while directory != ROOT:
                directory, name = parent_and_name(directory)
                names.setdefault(directory, set()).add(name)
        self._names = {directory: tuple(sorted(found)) for directory, found in names.items()}
        self.pinned = self._names.keys()

    def route(self, path: AgentPath) -> tuple[AgentPath | None, AgentPath]:
        """The prefix a path belongs to, and the path inside that route's backend."""
        for prefix in self.prefixes:
            if is_below(path, prefix):
                return prefix, AgentPath(path[len(prefix) :] or ROOT)
        return None, path

    def prefixes_below(self, path: AgentPath) -> tuple[AgentPath, ...]:
        """The prefixes strictly below a directory, at any depth, sorted."""
        return tuple(sorted(prefix for prefix in self.prefixes if prefix != path and is_below(prefix, path)))

    def names_below(self, path: AgentPath) -> tuple[str, ...]:
        """The names in a directory that are prefixes or lead to one, sorted; the backend's own of that name is hidden
        or, for a directory on the way, merged with it."""
        return self._names.get(path, ())

    def covers(self, prefix: AgentPath | None, path: AgentPath) -> bool:
        """Return True if a route hides the file at `path` of the backend of `prefix`. `path` is the outer one."""
        return path in self.pinned or self.route(path)[0] != prefix
