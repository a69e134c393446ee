"""What an `open` does in its volume, in one step and one thread."""

from __future__ import annotations

from fusebackend.protocol import Attr, AttrChanges
from fusebackend.vfs.handles import FileHandle
from fusebackend.vfs.setid import disarming


def open_node(handle: FileHandle, truncate: bool) -> Attr:
    """Open a handle's node, and empty it if asked to; returns what the file then is. An error leaves it closed."""
    route, node = handle.route, handle.node
    attr = route.volume.open(node, handle.flags)
    try:
        if truncate:
            empty = disarming(route.volume, node, AttrChanges(size=0), handle.opener)
            return route.changing.setattr(node, empty)
        return route.volume.getattr(node) if attr is None else attr
    except BaseException:
        route.volume.release(node, handle.flags)
        raise
