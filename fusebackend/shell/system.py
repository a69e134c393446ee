"""What of this machine a sandbox shows: the system's programs, and the few files of /etc that they need.

/etc is a list of what is let in, for it holds keys, password hashes and the configuration of everything else. Who
there is on this machine is not told either: a sandbox has its user and `nobody`.
"""

from __future__ import annotations

import contextlib
import glob
import os
import pwd
from dataclasses import dataclass

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
class Piece:
    """Something of this machine, and where a sandbox shows it."""

    source: str
    path: str


def programs() -> list[Piece]:
    """The system's directories. `/bin` is often a link to `usr/bin`; inside it is a directory with the same content."""
    found = [Piece(os.path.realpath(f"/{name}"), f"/{name}") for name in PROGRAMS]
    return [piece for piece in found if os.path.isdir(piece.source)]


def etc_directories() -> list[Piece]:
    """The directories of /etc that are let in. A link is followed, for its target may be hidden inside."""
    paths = [path for pattern in _DIRECTORIES for path in sorted(glob.glob(f"/etc/{pattern}"))]
    found = [Piece(os.path.realpath(path), path) for path in paths]
    return [piece for piece in found if os.path.isdir(piece.source) and os.access(piece.source, os.R_OK)]


def user_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return "user"


def etc_files(network: bool) -> dict[str, bytes]:
    """The files of a sandbox's /etc by path: those that are let in, its accounts, and itself as the only host.

    Copies, for each mount of a single file costs as much time as ten of them.
    """
    found: dict[str, bytes] = {}
    for path in etc_sources(network):
        with contextlib.suppress(OSError), open(path, "rb") as file:
            found[path] = file.read()
    return {**found, **_made(network)}


def etc_sources(network: bool) -> list[str]:
    """The files of this machine that are let in, whether they are there or not."""
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
    """Of a command: nothing of the server's, whose variables may hold keys."""
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
