"""`ViewMounts`: mount points of views: `[views.NAME] mount = "/mnt/reviewer"`.

Each is a bind mount of the view's tree, so its files are the same live ones. No way leads up past the root of a bind
mount: `..` goes to the directory that it is mounted in, and for an open directory that was moved out of it the kernel
refuses `..` (`path_connected()` in fs/namei.c). What else leads to the mount is in docs/views.md.

They end with the mount, also when that is unmounted from outside: they would keep its file system alive.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Mapping

from fusebackend.base.paths import is_below
from fusebackend.linux import mount_point
from fusebackend.linux.bind_mount import bind, unbind
from fusebackend.linux.mount_table import MountError, UnmountWatch

log = logging.getLogger(__name__)


class ViewMounts:
    """See the module's docstring.

    Args:
        mountpoint: of the mount itself.
        places: an empty directory for each view that has one, by the view's name.

    Raises:
        MountError: one is inside of another or of the mount, can't be mounted on, or this user can't make bind mounts.
    """

    def __init__(self, mountpoint: str, places: Mapping[str, str]) -> None:
        self._mountpoint = mountpoint
        self._places: dict[str, str] = {}
        self._bound: list[str] = []
        self._watch: UnmountWatch | None = None
        if places and os.geteuid() != 0:
            raise MountError(
                errno.EPERM, f"only root can give view '{next(iter(places))}' a mount point (a bind mount)"
            )
        for name, place in places.items():
            path = mount_point.prepare(place).path
            for other in (mountpoint, *self._places.values()):
                if is_below(path, other) or is_below(other, path):
                    raise MountError(
                        errno.EINVAL,
                        f"the mount point of view '{name}', '{path}', and '{other}' must not hold one another",
                    )
            self._places[name] = path

    def start(self, roots: Mapping[str, str]) -> None:
        """Mount all of them, once the mount answers.

        Args:
            roots: the directory of each view in the mount, by name.

        Raises:
            MountError: the kernel refused one; those before it are taken away.
        """
        for name, place in self._places.items():
            try:
                bind(self._mountpoint.rstrip("/") + roots[name], place)
            except OSError as error:
                self._unbind()
                why = f"view '{name}' can't be mounted on '{place}': {error.strerror}"
                raise MountError(error.errno or errno.EIO, why) from None
            self._bound.append(place)
        if self._bound:
            self._watch = UnmountWatch(self._mountpoint, self._unbind, "fusebackend-views")

    def close(self) -> None:
        """Take them away, before the mount. Twice is once."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()
        self._unbind()

    def _unbind(self) -> None:
        while self._bound:
            place = self._bound.pop()
            with contextlib.suppress(OSError):  # somebody has taken it away
                unbind(place)
                log.info("unmounted %s", place)
