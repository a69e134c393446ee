"""The parts of this machine that a sandbox shows: programs, a few files of /etc, and device nodes.

/etc is an allow list, because it holds keys, password hashes and the configuration of everything else. The accounts
in a sandbox are its user and `nobody`.
"""

from __future__ import annotations

import contextlib
import glob
import logging
import os
import pwd
import shutil
import stat
from collections.abc import Iterable
from dataclasses import dataclass

from fusebackend.base.at_path import FileState, state_at
from fusebackend.linux import runtime_directory

log = logging.getLogger(__name__)

PROGRAMS = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
"""Directories of the root that hold the system, as far as this machine has them. Shown read-only."""

OWN = ("etc", "proc", "dev", "tmp")
"""Directories of the root that a sandbox has for itself."""

_DIRECTORIES = (
    "alternatives", "ssl/certs", "pki/tls/certs", "pki/ca-trust/extracted", "crypto-policies",
    "java-*", "fonts",
)  # fmt: skip
_FILES = (
    "ld.so.cache", "nsswitch.conf", "localtime", "timezone", "ssl/openssl.cnf", "pki/tls/cert.pem",
    "services", "protocols", "mime.types", "magic",
)  # fmt: skip
_FILES_FOR_NETWORK = ("hosts", "resolv.conf", "host.conf", "gai.conf")

HOSTS = b"127.0.0.1 localhost\n::1 localhost\n"
"""/etc/hosts without a network."""

HOME = "/tmp"
SHELL = "/bin/sh"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NOBODY = 65534
UMASK = 0o022


@dataclass(frozen=True)
class Bind:
    """A file or directory of this machine, and where a sandbox has it."""

    source: str
    path: str
    read_only: bool = True
    devices: bool = False
    """Device nodes can be opened."""
    of: str | None = None
    """The mount point of the mount that `source` must be a part of, with no other mount below it. None: mounts below
    come along, because bwrap's bind mounts are recursive."""

    def words(self) -> list[str]:
        option = "--dev-bind" if self.devices else "--ro-bind" if self.read_only else "--bind"
        return [option, self.source, self.path]


@dataclass(frozen=True)
class Fresh:
    """A file system of a sandbox's own."""

    fstype: str
    path: str
    flags: tuple[str, ...] = ("nosuid", "nodev")
    size_bytes: int | None = None

    def words(self) -> list[str]:
        if self.path == "/proc":
            return ["--proc", "/proc"]
        if self.path == "/dev":
            return ["--dev", "/dev"]  # mounts `bubblewrap._devices` as well
        return ["--perms", "1777", "--size", str(self.size_bytes), "--tmpfs", self.path]


def programs() -> list[Bind]:
    """The system's directories. `/bin` is often a link to `usr/bin`; inside it is a directory with the same content."""
    found = [Bind(os.path.realpath(f"/{name}"), f"/{name}") for name in PROGRAMS]
    return [bind for bind in found if os.path.isdir(bind.source)]


def etc_directories() -> list[Bind]:
    """Return the directories of the allow list. Links are followed, because a sandbox may not have their targets."""
    paths = [path for pattern in _DIRECTORIES for path in sorted(glob.glob(f"/etc/{pattern}"))]
    found = [Bind(os.path.realpath(path), path) for path in paths]
    return [bind for bind in found if os.path.isdir(bind.source) and os.access(bind.source, os.R_OK)]


def user_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return "user"


def etc_files(network: bool) -> dict[str, bytes]:
    """Return the files of a sandbox's /etc by path: the allow list, its accounts, and itself as the only host.

    They are copies: one mount of a single file takes as long as ten copies.
    """
    found: dict[str, bytes] = {}
    for path in etc_sources(network):
        with contextlib.suppress(OSError), open(path, "rb") as file:
            found[path] = file.read()
    return {**found, **_made(network)}


def etc_sources(network: bool) -> list[str]:
    """Return the paths of the allow list, which need not exist."""
    return [f"/etc/{name}" for name in _FILES + (_FILES_FOR_NETWORK if network else ())]


def _made(network: bool) -> dict[str, bytes]:
    uid, gid, name = os.geteuid(), os.getegid(), user_name()
    passwd = [f"{name}:x:{uid}:{gid}::{HOME}:{SHELL}"]
    group = [f"{name}:x:{gid}:"]
    if uid != NOBODY:
        passwd.append(f"nobody:x:{NOBODY}:{NOBODY}::/nonexistent:/usr/sbin/nologin")
    if gid != NOBODY:
        group.append(f"nogroup:x:{NOBODY}:")
    made = {"/etc/passwd": _lines(passwd), "/etc/group": _lines(group)}
    return made if network else {**made, "/etc/hosts": HOSTS}


def _lines(lines: list[str]) -> bytes:
    return "".join(line + "\n" for line in lines).encode()


def environment(cwd: str, extra: dict[str, str]) -> dict[str, str]:
    """Return the variables of a command: none of the server's, which may hold keys."""
    name = user_name()
    return {
        "PATH": PATH,
        "HOME": HOME,
        "TMPDIR": "/tmp",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "SHELL": SHELL,
        "USER": name,
        "LOGNAME": name,
        "PWD": cwd,
        **extra,
    }


class OwnDirectory:
    """A directory of this server's own, that only its user can enter. The next server removes that of a killed one.
    `directory` is None while there is none."""

    def __init__(self) -> None:
        self.directory: str | None = None

    def make_in(self, above: str) -> None:
        """Make it. OSError."""
        runtime_directory.remove_stale(above, _remove)
        made = os.path.join(above, runtime_directory.own_name())
        os.mkdir(made, 0o700)
        self.directory = made

    def close(self) -> None:
        if self.directory is not None:
            _remove(self.directory)
            self.directory = None


_LISTED = ("/etc", "/etc/ssl")
"""A new directory of the allow list appears in one of these."""

ROOTS_PLACE = "/run"


class Etc(OwnDirectory):
    """The directory that is /etc in every sandbox of a mount, made once and outside of the mount.

    If bwrap made the files in each sandbox, it would create them by a path, and another process that swaps a directory
    of that path for a link could have a file of this machine overwritten. So the server has a private directory, and a
    sandbox gets it whole and read-only. It has the files of `etc_files`, as they are now (a name server may change
    while a mount lasts), and an empty directory for each mount in it.

    It lies in /run, where only root can make it, or else where the sockets of this user's mounts are. Used by one
    thread at a time.

    Args:
        network: commands have this machine's network.
        places: paths inside a sandbox on which something else is mounted.
    """

    def __init__(self, network: bool, places: Iterable[str] = ()) -> None:
        super().__init__()
        self._network = network
        self._places = tuple(places)
        self._seen: list[FileState | None] = []
        self._binds: list[Bind] = []
        self._files: set[str] = set()

    def binds(self) -> list[Bind]:
        """Return the binds of /etc: its directory, made or renewed if this machine's files have changed, and more.

        Raises:
            OSError: it can't be made.
        """
        if self.directory is None:
            self.make_in(_place_of_etc())
        seen = [state_at(path) for path in (*_LISTED, *etc_sources(self._network))]
        if seen != self._seen:
            self._renew(f"{self.directory}/etc")
            self._seen = seen
        return self._binds

    def _renew(self, directory: str) -> None:
        shown = etc_directories()
        for path in ("/etc", *(bind.path for bind in shown), *self._places):
            _make_directories(directory, os.path.relpath(path, "/etc"))
        files = etc_files(self._network)
        for path in self._files.difference(files):
            os.unlink(os.path.join(directory, os.path.relpath(path, "/etc")))
        for path, content in files.items():
            inside = os.path.relpath(path, "/etc")
            _make_directories(directory, os.path.dirname(inside))
            new = os.path.join(directory, ".new")
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
            with open(descriptor, "wb") as file:
                os.fchmod(descriptor, 0o644)  # the umask may have removed bits
                file.write(content)
            os.rename(new, os.path.join(directory, inside))  # commands that run see the old one or the new one
        self._files = set(files)
        self._binds = [Bind(directory, "/etc"), *shown]


def _place_of_etc() -> str:
    """Return a directory to which only this user or root can write."""
    if os.access(ROOTS_PLACE, os.W_OK) and not os.stat(ROOTS_PLACE).st_mode & 0o022:
        return ROOTS_PLACE
    return runtime_directory.directory()


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


PLACE = "/dev"
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
"""The nodes of bwrap's `--dev`."""


class Devices(OwnDirectory):
    """/dev/null and its like for the sandboxes of a server that is root.

    bwrap mounts this machine's own device nodes, writable, and root owns them: a command could take /dev/null away from
    the whole machine with one chmod, capabilities or not. Mounted read-only by bwrap they could not be opened at all.
    So root's sandboxes get nodes of the server's own, which belong to user 65534. They lie in /dev, the one place that
    surely takes device nodes, for as long as the server takes commands. Where there is no directory, bwrap's own nodes
    are used.
    """

    def make(self) -> None:
        """Make the nodes, if this process is root and has not made them before."""
        if os.geteuid() != 0 or self.directory is not None:
            return
        try:
            self.make_in(PLACE)
            for name, node in self.nodes().items():
                _copy(f"{PLACE}/{name}", node)
        except OSError as error:
            log.warning("commands can change the modes of this machine's devices: %s", error)
            self.close()

    def nodes(self) -> dict[str, str]:
        """Paths of nodes by the name that each has in /dev; none where bwrap's own are to be used."""
        return {name: f"{self.directory}/{name}" for name in DEVICES} if self.directory is not None else {}


def _copy(source: str, target: str) -> None:
    status = os.stat(source)
    os.mknod(target, stat.S_IFCHR, status.st_rdev)
    os.chmod(target, 0o666)  # mknod is subject to the umask
    os.chown(target, NOBODY, NOBODY)
