"""Deleting a tree over the kernel face, in portions, so that a mount is not held up: the lock is free in between."""

from __future__ import annotations

import errno
import functools
from collections.abc import Sequence

from fusebackend.base import paths
from fusebackend.base.paths import AgentPath
from fusebackend.protocol import Attr, Change, Changes, Volume
from fusebackend.volumes.walk import CHECKED_LEVELS, Directories, vanishing

REMOVED_AT_ONCE = 100
"""Entries that are removed before the lock is let go of; as many as the directory has above it, if these are more: a
view looks all of them up in each portion."""


class Doomed:
    """A directory that is being deleted, where it was found, and the one above that is being deleted as well.

    Attributes:
        after: the last name of its listing that was deleted; empty where the next listing is a new one.
    """

    __slots__ = ("above", "after", "name", "node", "parent", "path")

    def __init__(self, parent: int, name: bytes, node: int, path: AgentPath, above: Doomed | None = None) -> None:
        self.parent = parent
        self.name = name
        self.node = node
        self.path = path
        self.above = above
        self.after = b""

    def listed(self, volume: Volume) -> Sequence[tuple[bytes, Attr]]:
        """The next names in it. A listing goes on after those before: each new one of a directory on disk reads all of
        its names. Names of before, which others have made meanwhile, are in the one after its end."""
        page = volume.readdir(self.node, self.after, REMOVED_AT_ONCE)
        if not page and self.after:
            page = volume.readdir(self.node, b"", REMOVED_AT_ONCE)
        self.after = page[-1][0] if len(page) == REMOVED_AT_ONCE else b""
        return page

    def below(self, name: bytes, node: int) -> Doomed:
        return Doomed(self.node, name, node, paths.join(self.path, paths.to_text(name)), self)

    def is_there(self, volume: Volume, found: set[int]) -> bool:
        """True if it is still there: it, or one above it, may have been moved away and replaced.

        Args:
            found: the directories that this portion has found where they were. Those above it are added.
        """
        doomed, climbed = self, [self.node]
        with vanishing():
            while volume.lookup(doomed.parent, doomed.name).node == doomed.node:
                # Unless all directories on the way have kept their names, the paths of the events would be wrong.
                if doomed.above is None and Directories(volume).find(paths.to_name(doomed.path)) != doomed.node:
                    return False
                if doomed.above is None or doomed.above.node in found or len(climbed) == CHECKED_LEVELS:
                    found.update(climbed)
                    return True
                doomed = doomed.above
                climbed.append(doomed.node)
        return False


def remove_tree(volume: Volume, top: Doomed) -> None:
    """Delete a directory and all below it, but nothing that is moved away meanwhile. Not recursive."""
    left, entered = [top], set[int]()
    while left:
        portion = functools.partial(_portion, volume, left, entered)
        left, entered = volume.change_as_one(portion, left[-1].path, removes=True)


def _portion(volume: Volume, left: list[Doomed], entered: set[int], changes: Changes) -> tuple[list[Doomed], set[int]]:
    """Delete a portion of the last directories: of a volume that blocks, in one of them. The volume may undo that and
    call this again, so it returns what is left then, and the directories being emptied, each below the one before."""
    left, entered, found = [*left], {*entered}, set[int]()
    at_once = max(REMOVED_AT_ONCE, left[-1].path.count("/"))
    while left:
        doomed = left[-1]
        entered.add(doomed.node)
        below = _empty(volume, doomed, entered, found, changes)
        if below is None:
            left.pop()
            entered.discard(doomed.node)
        else:
            left += below
        if volume.features.blocking or len(changes) >= at_once:
            break
    return left, entered


def _empty(volume: Volume, doomed: Doomed, entered: set[int], found: set[int], changes: Changes) -> list[Doomed] | None:
    """Delete a portion of a directory. Returns the directories in it; None when it is gone, or not there any more."""
    children: list[tuple[bytes, int, bool]] = []
    with vanishing():
        if doomed.is_there(volume, found):
            children = [(name, attr.node, attr.is_dir) for name, attr in doomed.listed(volume)]
            if not children:
                try:
                    volume.rmdir(doomed.parent, doomed.name)
                except OSError as error:
                    if error.errno != errno.ENOTEMPTY or not volume.readdir(doomed.node, b"", 1):
                        raise
                    return []  # others have put something there
                gone = Change(doomed.node, doomed.parent, doomed.name, "deleted", doomed.path + "/")
                changes += [Change(node=doomed.parent), gone]
    if not children:
        return None
    below: list[Doomed] = []
    changes.append(Change(node=doomed.node))
    for name, node, is_dir in children:
        if is_dir:
            if node in entered:
                raise OSError(errno.EIO, f"'{doomed.below(name, node).path}' is a directory below itself")
            below.append(doomed.below(name, node))
            continue
        gone = Change(node, doomed.node, name)
        with vanishing(errno.EISDIR):
            volume.unlink(doomed.node, name)
            gone = gone._replace(kind="deleted", path=paths.join(doomed.path, paths.to_text(name)))
        changes.append(gone)
    return below
