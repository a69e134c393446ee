"""Stand-ins: directories that the mount's root shows to a sandbox that needs something to mount on.

A sandbox whose root is the mount mounts `/usr`, `/proc` and so on over directories in it, and would have to make them
in the default volume. Instead, while at least one sandbox needs it, a name that the volume does not have is answered
by a `StandIn`: found by lookup, never listed, gone when the last sandbox ends. Nothing is written to any volume.

`StandIns` is used by the threads that run commands; the loop and the threads of changes read what it has put into
the `MountTree`, which is replaced as a whole and never changed in place. Two rules keep a sandbox whole:

- The kernel is told to forget the names after they appear (it may know that they are absent) and after they disappear.
- In between it is not told that such a name has changed (`MountTree.stands_in`): it would drop the dentry, and with it
  whatever the sandbox has mounted there. Listings give the name the stand-in's inode for the same reason.

Whoever creates something in a stand-in makes it real, as with every directory that only routes need.
"""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING

from fusebackend.errors import oserror
from fusebackend.protocol import ROOT_NODE, Attr
from fusebackend.vfs.cache import COHERENT_TIMEOUT_S
from fusebackend.vfs.inodes import ROOT_INODE
from fusebackend.vfs.mounttree import Junction, MountTree

if TYPE_CHECKING:
    from fusebackend.vfs.invalidation import Invalidation


class StandIn(Junction):
    """A directory in the mount's root that is shown by name while somebody needs it."""

    timeout_s = COHERENT_TIMEOUT_S  # every path in a sandbox leads through one, and its end is told

    async def shown(self, synthesised: Attr) -> Attr:
        """Always the same, and nobody is asked: a sandbox must not wait for a default volume that hangs."""
        return synthesised


class StandIns:
    """See the module's docstring."""

    def __init__(self, tree: MountTree, invalidation: Invalidation) -> None:
        self._tree = tree
        self._invalidation = invalidation
        self._made: dict[bytes, StandIn] = {}  # kept: the kernel may know one long after its name is gone
        self._users: dict[bytes, int] = {}
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def shown(self, names: Iterable[bytes]) -> Iterator[None]:
        """For the length of a block the root has a directory of each of these names. Not for the loop's thread.

        Where the default volume has one, or the name leads to a route, that is it; it is left alone.

        Raises:
            NotADirectoryError: the default volume has something else of a name.
            OSError: the default volume does not answer.
        """
        asked = [name for name in dict.fromkeys(names) if name not in self._tree.root.children]
        there = self._in_volume(asked)
        for name, attr in there.items():
            if not attr.is_dir:
                raise oserror(errno.ENOTDIR, name)
        taken = self._take(asked, there)
        try:
            yield
        finally:
            self._give_back(taken)

    def _in_volume(self, names: list[bytes]) -> dict[bytes, Attr]:
        route = self._tree.routes[0]
        found: dict[bytes, Attr] = {}

        def ask() -> None:
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    found[name] = route.volume.lookup(ROOT_NODE, name)

        route.offload.finish(ask)
        return found

    def _take(self, names: list[bytes], there: Collection[bytes]) -> list[bytes]:
        """Show what the volume does not have, and what others are shown: it may have become real since."""
        with self._lock:
            taken = [name for name in names if self._users.get(name) or name not in there]
            new = [name for name in taken if not self._users.get(name)]
            for name in new:
                if name not in self._made:
                    self._made[name] = StandIn(self._tree.synthetic_inode(), name, self._tree.root, None)
                    self._tree.add(self._made[name])
            for name in taken:
                self._users[name] = self._users.get(name, 0) + 1
            self._show(new)
        return taken

    def _give_back(self, names: list[bytes]) -> None:
        with self._lock:
            for name in names:
                self._users[name] -= 1
            self._show([name for name in names if not self._users[name]])

    def _show(self, changed: list[bytes]) -> None:
        """Show what has users, then have the kernel ask again for what has changed.

        The lock is held until it has: nobody may mount on a name that is about to be invalidated. A lookup that was
        answered before the change is over by the time the kernel takes the notice, for both lock the directory.
        """
        self._tree.stand_ins = {name: self._made[name] for name, users in self._users.items() if users}
        kernel = self._invalidation.kernel
        if kernel is not None:
            for name in changed:
                kernel.invalidate_entry(ROOT_INODE, name)
