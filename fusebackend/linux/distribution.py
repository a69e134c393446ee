"""How a distribution installs the programs and libraries that pip can't."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Mapping

_INSTALL = {
    "debian": "apt-get install",
    "fedora": "dnf install",
    "alpine": "apk add",
    "arch": "pacman -S",
}
"""By ID, or ID_LIKE, of os-release(5)."""

_ALSO = {"ubuntu": "debian", "rhel": "fedora", "centos": "fedora", "archlinux": "arch"}

_PACKAGES = {
    "fusermount3": {"debian": "fuse3", "fedora": "fuse3", "alpine": "fuse3", "arch": "fuse3"},
    "libfuse3": {"debian": "libfuse3-3 || apt-get install libfuse3-4", "fedora": "fuse3-libs", "alpine": "fuse3-libs",
                 "arch": "fuse3"},
    "ripgrep": {},
    "bubblewrap": {},
    "git": {},
}  # fmt: skip
"""Names of packages, where they differ from that of the program."""

EVERYTHING = {
    "debian": "fuse3 libfuse3-dev pkg-config gcc python3-dev python3-venv ripgrep bubblewrap",
    "fedora": "fuse3 fuse3-devel pkgconf-pkg-config gcc python3-devel ripgrep bubblewrap",
    "alpine": "fuse3 fuse3-dev pkgconf gcc musl-dev linux-headers python3-dev ripgrep bubblewrap",
    "arch": "fuse3 pkgconf gcc python ripgrep bubblewrap",
}
"""What pip can't install: libfuse3 and what compiles pyfuse3, which has no wheels; and the programs of a mount."""


def distribution() -> str | None:
    """Return the family of this distribution, a key of the table; None for one that is not in it."""
    with contextlib.suppress(OSError, ValueError):
        said = platform.freedesktop_os_release()
        names = [said["ID"], *said.get("ID_LIKE", "").split()]
        return next((known for name in names if (known := _ALSO.get(name, name)) in _INSTALL), None)
    return None


def install(package: str) -> str:
    """Return the command that installs a package here; on an unknown distribution those of all known ones."""
    return _command({name: _PACKAGES[package].get(name, package) for name in _INSTALL}, "install it")


def install_everything() -> str:
    """Return the command that installs what pip can't here; on an unknown distribution those of all known ones."""
    return _command(EVERYTHING, "install what it needs")


def _command(packages: Mapping[str, str], otherwise: str) -> str:
    """Return the command for the packages of this distribution, out of those of all."""
    commands = {name: f"{_INSTALL[name]} {each}" for name, each in packages.items()}
    here = distribution()
    if here is not None:
        return commands[here]
    return f"{otherwise}: " + ", ".join(f"{command} ({name})" for name, command in commands.items())
