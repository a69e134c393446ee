"""`Trees`: the trees of a mount beside its main one, each a directory below `/.fusebackend` (`junctions.SERVERS_NAME`).

A tree shows the same live files with directories of its own: a directory pinned in it, or a file system mounted on one
of its names in a sandbox, is not in the main tree. A rename between trees is EXDEV.

The name is hidden: no listing shows it, and it is the server's even if the default volume has a file of that name. Only
the server's own user can enter it; in other trees it does not exist.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from fusebackend.base import paths
from fusebackend.base.paths import AgentPath
from fusebackend.vfs.coherence.invalidation import Invalidation
from fusebackend.vfs.junctions import MountTree
from fusebackend.vfs.watch.feed import ChangeFeed


class Trees:
    """See the module's docstring. Callable from any thread, before the mount and while it lives."""

    def __init__(self, tree: MountTree, invalidation: Invalidation, feed: ChangeFeed) -> None:
        self._tree = tree
        self._invalidation = invalidation
        self._feed = feed
        self._lock = threading.Lock()

    def add(self, name: str, pinned: Iterable[bytes] = ()) -> AgentPath:
        """A tree of the live files, until the mount ends.

        Args:
            name: of its root, below `SERVERS_NAME`.
            pinned: names in its root that are empty directories of the server's, in place of the default volume's. They
                can't be changed, and the kernel never drops them. Where the prefix of a route leads through one, the
                route is below it; a route of that very name is not in the tree.

        Returns:
            The path of its root, below the mount point.

        Raises:
            ValueError: there is a tree of that name.
        """
        with self._lock:
            tree, at = self._tree, paths.to_name(name)
            if at in tree.servers.children:
                raise ValueError(f"there is a tree '{name}' already")
            root = tree.grow([tree.attach_twin(route) for route in tree.routes], tuple(pinned))
            self._invalidation.follow()
            self._feed.follow()
            # Last: from now on it can be found.
            tree.servers.children = {**tree.servers.children, at: root}
        return paths.join(tree.servers.path, name)
