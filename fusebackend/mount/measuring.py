"""What the metrics observe of the kernel's requests. Where they are on, the handlers of `Operations` are wrapped.

The wrappers are attributes of the object, which hide its class's methods: a mount without metrics runs nothing of this.
"""

from __future__ import annotations

import errno
import inspect
import time
from typing import TYPE_CHECKING, Any, Protocol

from pyfuse3 import FUSEError

from fusebackend.vfs.inodes import route_index

if TYPE_CHECKING:
    from collections.abc import Callable

    from fusebackend.mount.operations import Handler, Operations
    from fusebackend.vfs.handles import DirectoryHandle, FileHandle, HandleTable
    from fusebackend.vfs.junctions import Route
    from fusebackend.vfs.mounted_tree import FileSystem

    Handles = HandleTable[FileHandle] | HandleTable[DirectoryHandle]

BY_FILE = frozenset({"read", "write", "flush", "fsync", "release"})
"""Requests whose first argument is the handle of a file."""

BY_DIRECTORY = frozenset({"readdir", "fsyncdir", "releasedir"})
"""And those with the handle of a directory. The others have an inode, but for these:"""

OF_NONE = frozenset({"forget", "statfs"})


class Observe(Protocol):
    """Takes one request, on the mount's loop.

    Args:
        operation: the kind of request, as pyfuse3 calls it.
        route: where it went; None if it concerns no route, or several.
        seconds: until it was answered.
        error: the name of the errno; empty if there was none.
        answer: what the handler gave pyfuse3; None after an error.
    """

    def __call__(self, operation: str, route: Route | None, seconds: float, error: str, answer: Any) -> None: ...


def measure(operations: Operations, observe: Observe) -> None:
    """Observe every request from now on. Before the mount."""
    for name, handler in inspect.getmembers(operations, inspect.iscoroutinefunction):
        setattr(operations, name, _measured(name, handler, _route_of(operations.filesystem, name), observe))


def _measured(name: str, handler: Handler, route_of: Callable[[Any], Route | None], observe: Observe) -> Handler:
    clock = time.perf_counter

    async def measured(*request: Any) -> Any:
        route = route_of(request[0])  # before the call: `release` forgets the handle
        error, answer = "", None
        began = clock()
        try:
            answer = await handler(*request)
        except FUSEError as refused:
            error = errno.errorcode.get(refused.errno, str(refused.errno))
            raise
        finally:
            observe(name, route, clock() - began, error, answer)
        return answer

    return measured


def _route_of(filesystem: FileSystem, name: str) -> Callable[[Any], Route | None]:
    """Return the route of a request, by its first argument."""
    tree = filesystem.tree

    def of_inode(inode: int) -> Route | None:
        index = route_index(inode)
        return tree.attached[index] if index < len(tree.attached) else None

    def of_handle(number: int) -> Route | None:
        try:
            return handles[number].route
        except KeyError:  # the handler answers that; nothing may escape here
            return None

    if name in OF_NONE:
        return lambda _: None
    if name not in BY_FILE | BY_DIRECTORY:
        return of_inode
    handles: Handles = filesystem.files if name in BY_FILE else filesystem.directories
    return of_handle
