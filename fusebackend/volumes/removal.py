"""Deleting a tree over the kernel face, in portions, so that a mount is not held up: the lock is free in between."""

from __future__ import annotations

import errno
import functools
from collections.abc import Sequence

from fusebackend.base import paths
from fusebackend.base.paths import AgentPath
from fusebackend.protocol import Attr, Change, Changes, Volume
from fusebackend.volumes.walk import Directories, vanishing

REMOVED_AT_ONCE = 100
"""Entries that are removed before the lock is let go of; as many as the directory has above it, if these are more: a
view looks all of them up in each portion."""


class _Doomed:
    """A directory that is being deleted, and the path at which it was found.

    Attributes:
        after: the last name of its listing that was deleted; empty where the next listing is a new one.
    """

    __slots__ = ("after", "node", "path")

    def __init__(self, path: AgentPath, node: int) -> None:
        self.path = path
        self.node = node
        self.after = b""

    def listed(self, volume: Volume) -> Sequence[tuple[bytes, Attr]]:
        """The next names in it. A listing goes on after those before: each new one of a directory on disk reads all of
        its names. Names of before, which others have made meanwhile, are in the one after its end."""
        page = volume.readdir(self.node, self.after, REMOVED_AT_ONCE)
        if not page and self.after:
            page = volume.readdir(self.node, b"", REMOVED_AT_ONCE)
        self.after = page[-1][0] if len(page) == REMOVED_AT_ONCE else b""
        return page


def remove_tree(volume: Volume, path: AgentPath, node: int) -> None:
    """Delete a directory and all below it, but nothing that is moved away meanwhile. Not recursive."""
    left, entered, way = [_Doomed(path, node)], set[int](), Directories(volume)
    while left:
        portion = functools.partial(_portion, volume, way, left, entered)
        left, entered = volume.change_as_one(portion, left[-1].path, removes=True)


def _portion(
    volume: Volume, way: Directories, left: list[_Doomed], entered: set[int], changes: Changes
) -> tuple[list[_Doomed], set[int]]:
    """Delete a portion of the last directories: of a volume that blocks, in one of them. The volume may undo that and
    call this again, so it returns what is left then, and the directories being emptied, each below the one before."""
    left, entered = [*left], {*entered}
    way.look_again()
    at_once = max(REMOVED_AT_ONCE, left[-1].path.count("/"))
    while left:
        doomed = left[-1]
        entered.add(doomed.node)
        if len(left) == 1:  # events tell the path of the first one, which outsiders may have moved on disk
            way.look_again()
        below = _empty(volume, way, doomed, entered, changes)
        if below is None:
            left.pop()
            entered.discard(doomed.node)
        else:
            left += below
        if volume.features.blocking or len(changes) >= at_once:
            break
    return left, entered


def _empty(
    volume: Volume, way: Directories, doomed: _Doomed, entered: set[int], changes: Changes
) -> list[_Doomed] | None:
    """Delete a portion of a directory. Returns the directories in it; None when it is gone, or not there any more: it,
    or one above it, may have been moved away and replaced."""
    children: Sequence[tuple[bytes, Attr]] = ()
    path = paths.to_name(doomed.path)
    with vanishing():
        if way.find(path) == doomed.node:
            children = doomed.listed(volume)
            if not children:
                parent, name = way.place(path)
                try:
                    volume.rmdir(parent, name)
                except OSError as error:
                    if error.errno != errno.ENOTEMPTY or not volume.readdir(doomed.node, b"", 1):
                        raise
                    return []  # others have put something there
                way.forget(path)
                changes += [Change(node=parent), Change(doomed.node, parent, name, "deleted", doomed.path + "/")]
    if not children:
        return None
    below: list[_Doomed] = []
    changes.append(Change(node=doomed.node))
    for name, attr in children:
        inner = paths.join(doomed.path, paths.to_text(name))
        if attr.is_dir:
            if attr.node in entered:
                raise OSError(errno.EIO, f"'{inner}' is a directory below itself")
            below.append(_Doomed(inner, attr.node))
            continue
        gone = Change(attr.node, doomed.node, name)
        with vanishing(errno.EISDIR):
            volume.unlink(doomed.node, name)
            gone = gone._replace(kind="deleted", path=inner)
        changes.append(gone)
    return below
