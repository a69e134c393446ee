"""`Devices`: /dev/null and its like for the sandboxes of a server that is root.

bwrap mounts this machine's own device nodes, writable, and root owns them: a command could take /dev/null away from
the whole machine with one chmod, capabilities or not. Mounted read-only by bwrap they could not be opened at all. So
root's sandboxes get nodes of the server's own, which belong to nobody. They lie in /dev, the one place that surely
takes device nodes, in a directory that only root can enter, for as long as the server takes commands.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import stat

from fusebackend.shell import owner
from fusebackend.shell.system import NOBODY

log = logging.getLogger(__name__)

PLACE = "/dev"
NAMES = ("null", "zero", "full", "random", "urandom", "tty")
"""What bwrap's `--dev` has."""


class Devices:
    """See the module's docstring. `directory` is None where bwrap's own way is good enough, or nothing else works."""

    def __init__(self) -> None:
        self.directory: str | None = None

    def make(self) -> None:
        """Make the nodes, if this process is root and has not made them before."""
        if os.geteuid() != 0 or self.directory is not None:
            return
        directory = os.path.join(PLACE, owner.name(0))
        try:
            owner.remove_stale(PLACE, shutil.rmtree)
            os.mkdir(directory, 0o700)
            self.directory = directory
            for name in NAMES:
                _copy(os.path.join(PLACE, name), os.path.join(directory, name))
        except OSError as error:
            log.warning("commands can change the modes of this machine's devices: %s", error)
            self.close()

    def nodes(self) -> dict[str, str]:
        """Paths of nodes by the name that each has in /dev; none where bwrap's own are to be used."""
        return {name: f"{self.directory}/{name}" for name in NAMES} if self.directory is not None else {}

    def close(self) -> None:
        if self.directory is not None:
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(self.directory)
            self.directory = None


def _copy(source: str, target: str) -> None:
    status = os.stat(source)
    os.mknod(target, stat.S_IFCHR, status.st_rdev)
    os.chmod(target, 0o666)  # mknod is subject to the umask
    os.chown(target, NOBODY, NOBODY)
