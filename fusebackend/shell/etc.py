"""`Etc`: the directory that is /etc in every sandbox of a mount, made once and outside of the mount.

Were its files made in each sandbox, bwrap would create them by a path whose directories somebody may be renaming: a
link in the right place, and a file of this machine is overwritten. So the server has a directory of its own, in one
that nobody else can enter, and a sandbox gets it whole and read-only. It has the files of `system.etc_files`, as they
are now (a name server may change while a mount lasts), and an empty directory for whatever is mounted in it.

It lies in /run, where only root can make it, or else where the sockets of this user's mounts are. One that a killed
server left goes with the next server's start.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from collections.abc import Iterable

from fusebackend.linux import runtime_directory
from fusebackend.shell import owner, system
from fusebackend.shell.bubblewrap import Bind

_LISTED = ("/etc", "/etc/ssl")
"""Where a directory that is let in may turn up."""

ROOTS_PLACE = "/run"

_numbers = itertools.count(1)


class Etc:
    """See the module's docstring. Used by one thread at a time.

    Args:
        network: do commands have this machine's network?
        places: what else is mounted in it, as paths inside a sandbox.
    """

    def __init__(self, network: bool, places: Iterable[str] = ()) -> None:
        self._network = network
        self._places = tuple(places)
        self._private: str | None = None
        self._seen: list[tuple[int, ...] | None] = []
        self._binds: list[Bind] = []
        self._files: set[str] = set()

    def binds(self) -> list[Bind]:
        """The directory, made if it is missing and renewed if this machine's files have changed, and what is on it.

        Raises:
            OSError: it can't be made.
        """
        if self._private is None:
            self._private, self._seen, self._files = _made_privately(), [], set()
        seen = [_stamp(path) for path in (*_LISTED, *system.etc_sources(self._network))]
        if seen != self._seen:
            self._renew(os.path.join(self._private, "etc"))
            self._seen = seen
        return self._binds

    def _renew(self, directory: str) -> None:
        pieces = system.etc_directories()
        for path in ("/etc", *(piece.path for piece in pieces), *self._places):
            _make_directories(directory, os.path.relpath(path, "/etc"))
        files = system.etc_files(self._network)
        for path in self._files.difference(files):
            os.unlink(os.path.join(directory, os.path.relpath(path, "/etc")))
        for path, content in files.items():
            inside = os.path.relpath(path, "/etc")
            _make_directories(directory, os.path.dirname(inside))
            new = os.path.join(directory, ".new")
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
            with open(descriptor, "wb") as file:
                os.fchmod(descriptor, 0o644)  # whatever the umask
                file.write(content)
            os.rename(new, os.path.join(directory, inside))  # commands that run see the old one or the new one
        self._files = set(files)
        self._binds = [Bind(directory, "/etc"), *(Bind(piece.source, piece.path) for piece in pieces)]

    def close(self) -> None:
        if self._private is not None:
            _remove(self._private)
            self._private = None


def _made_privately() -> str:
    """A directory that nobody else can enter, in one that nobody else can write to."""
    name = owner.name(next(_numbers))
    if os.access(ROOTS_PLACE, os.W_OK) and not os.stat(ROOTS_PLACE).st_mode & 0o022:
        above = ROOTS_PLACE
    else:
        above = runtime_directory.directory()
    owner.remove_stale(above, _remove)
    os.mkdir(os.path.join(above, name), 0o700)
    return os.path.join(above, name)


def _make_directories(top: str, inside: str) -> None:
    path = top
    for name in ("", *inside.split("/")):
        path = os.path.normpath(os.path.join(path, name))
        if not os.path.isdir(path):
            os.mkdir(path)
            os.chmod(path, 0o755)


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):  # another server was quicker
        shutil.rmtree(path)


def _stamp(path: str) -> tuple[int, ...] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
