"""What of this machine a sandbox shows: the system's programs, and the few files of /etc that they need.

/etc is a list of what is let in, for it holds keys, password hashes and the configuration of everything else. Who
there is on this machine is not told either: a sandbox has its user and `nobody`.
"""

from __future__ import annotations

import glob
import os
import pwd
from dataclasses import dataclass

PROGRAMS = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
"""Directories of the root that hold the system, as far as this machine has them. Shown read-only."""

OWN = ("etc", "proc", "dev", "tmp")
"""Directories of the root that a sandbox has for itself."""

_ETC = (
    "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "nsswitch.conf", "localtime", "timezone",
    "ssl/certs", "ssl/openssl.cnf", "pki/tls/certs", "pki/tls/cert.pem", "pki/ca-trust/extracted", "crypto-policies",
    "services", "protocols", "mime.types", "magic", "java-*", "fonts", "terminfo",
)  # fmt: skip
_ETC_FOR_NETWORK = ("hosts", "resolv.conf", "host.conf", "gai.conf")

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


def etc(network: bool) -> list[Piece]:
    """The pieces of /etc that are let in. A link is followed, for its target may be hidden inside."""
    patterns = _ETC + (_ETC_FOR_NETWORK if network else ())
    paths = [path for pattern in patterns for path in sorted(glob.glob(f"/etc/{pattern}"))]
    found = [Piece(os.path.realpath(path), path) for path in paths]
    return [piece for piece in found if os.access(piece.source, os.R_OK)]


def user_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return "user"


def contents(network: bool) -> dict[str, bytes]:
    """Files of /etc that are made for a sandbox, by path: its accounts, and itself as the only host."""
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
