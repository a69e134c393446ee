"""Bubblewrap (bwrap(1)): where it is, what it can do here, and the arguments that make a sandbox of a mount.

The sandbox's root is the mount. `View` says what is mounted over it; `arguments` puts that into bwrap's words.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from fusebackend.shell import system
from fusebackend.shell.devices import Devices
from fusebackend.shell.options import ShellOptions
from fusebackend.shell.system import Piece

PROBE_PATIENCE_S = 10.0

PROGRAM_PATHS = "/usr/local/bin:/usr/bin:/bin"

NAMESPACES = ("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")

USER_NAMESPACES = (("--unshare-user", "--disable-userns"), ("--unshare-user",), ())
"""The best that this machine allows is taken: without the second option (bubblewrap 0.8) the seccomp filter alone keeps
commands from making user namespaces; without the first, which needs root, a command is the machine's root, although
one without capabilities."""

HIDDEN_FROM_ROOT = ("kpagecgroup", "kpagecount", "kpageflags")
"""Files of /proc that root can read without any capability, and nobody else: what is where in this machine's memory."""


class SandboxError(Exception):
    """The sandbox can't be had; the text is one line for the user."""


@dataclass(frozen=True)
class View:
    """A sandbox's root: the mount, and what is mounted over it."""

    mountpoint: str
    programs: tuple[Piece, ...] = ()
    own: tuple[str, ...] = system.OWN
    """Which of `system.OWN` the sandbox has for itself: all, but /tmp may be a route."""
    routes: tuple[str, ...] = ()
    """Prefixes of routes below a directory that is the sandbox's or the system's, to be put back on top of it."""
    covered: tuple[str, ...] = ()
    """Prefixes of routes that can't be: the system's directory has none for them."""

    @classmethod
    def of(cls, mountpoint: str, prefixes: Iterable[str]) -> View:
        programs = tuple(system.programs())
        own = tuple(name for name in system.OWN if name != "tmp" or "/tmp" not in prefixes)
        routes: list[str] = []
        covered: list[str] = []
        for prefix in sorted(prefixes):
            top, _, below = prefix.removeprefix("/").partition("/")
            if top not in own and f"/{top}" not in [piece.path for piece in programs]:
                continue  # nothing is mounted over it
            if any(prefix.startswith(route + "/") for route in routes):
                continue  # there with the one above it
            possible = below and (top in ("tmp", "etc", "dev") or (top not in own and os.path.isdir(prefix)))
            (routes if possible else covered).append(prefix)
        return cls(mountpoint, programs, own, tuple(routes), tuple(covered))

    @property
    def names(self) -> list[str]:
        """What the root must have directories for."""
        return [piece.path.removeprefix("/") for piece in self.programs] + list(self.own)


def where() -> str | None:
    return shutil.which("bwrap", path=PROGRAM_PATHS)


def find() -> str:
    """Where bwrap is.

    Raises:
        SandboxError: nowhere.
    """
    program = where()
    if program is None:
        raise SandboxError(
            "bubblewrap is not installed, which confines commands to the mount: 'apt-get install bubblewrap'; "
            'or write sandbox = "none" in the configuration\'s [execute] to run them unconfined'
        )
    return program


@cache
def user_namespace(program: str) -> tuple[str, ...]:
    """Which of `USER_NAMESPACES` works here.

    Raises:
        SandboxError: none does, in bwrap's words.
    """
    said = ""
    for words in USER_NAMESPACES:
        probe = [program, *words, *NAMESPACES, *_read_only(system.programs()), "--proc", "/proc", "--dev", "/dev"]
        try:
            done = subprocess.run(
                [*probe, "--", system.SHELL, "-c", ":"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                check=False,
                timeout=PROBE_PATIENCE_S,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SandboxError(f"bubblewrap does not work: {error}") from None
        if done.returncode == 0:
            return words
        said = said or in_one_line(done.stderr)
    raise SandboxError(f"this machine does not let bubblewrap make a sandbox ({said})")


def in_one_line(said: bytes | bytearray) -> str:
    """What bwrap printed, for a message."""
    lines = said.decode("utf-8", "replace").splitlines()
    return "; ".join(line.removeprefix("bwrap: ") for line in lines if line.strip()) or "it does not say why"


def arguments(
    view: View, options: ShellOptions, user: Iterable[str], devices: Devices, files: Mapping[str, int], cwd: str
) -> list[str]:
    """bwrap's words for a sandbox.

    Args:
        view: what it shows.
        options: network, sizes and environment.
        user: one of `USER_NAMESPACES`.
        devices: device nodes.
        files: path → descriptor, of files whose content is given.
        cwd: where the command starts.
    """
    words = [*user, *NAMESPACES, *([] if options.network else ["--unshare-net"])]
    words += ["--hostname", "sandbox", "--die-with-parent", "--new-session", "--as-pid-1", "--cap-drop", "ALL"]
    words += ["--bind", view.mountpoint, "/"]
    words += _read_only(view.programs)
    # Read-only as a whole: root could write to files of /proc that bwrap leaves open, such as sys/kernel.
    words += ["--proc", "/proc", "--remount-ro", "/proc"]
    if os.geteuid() == 0:
        hidden = [f"/proc/{name}" for name in HIDDEN_FROM_ROOT]
        words += _read_only(Piece("/dev/null", path) for path in hidden if os.path.exists(path))
    words += ["--dev", "/dev", *_memory("/dev/shm", options.memory_bytes)]
    words += devices.words()
    if "tmp" in view.own:
        words += _memory("/tmp", options.memory_bytes)
    words += ["--tmpfs", "/etc"]
    etc = system.etc_directories()
    for parent in sorted({os.path.dirname(path) for path in (*files, *(piece.path for piece in etc))} - {"/etc"}):
        words += ["--perms", "0755", "--dir", parent]
    words += _read_only(etc)
    for path, descriptor in files.items():
        words += ["--perms", "0644", "--file", str(descriptor), path]
    for prefix in view.routes:
        words += ["--bind", view.mountpoint + prefix, prefix]
    words += ["--remount-ro", "/dev", "--remount-ro", "/etc"]
    words += ["--chdir", cwd, "--clearenv"]
    for name, value in system.environment(cwd, dict(options.env)).items():
        words += ["--setenv", name, value]
    return words


def _read_only(pieces: Iterable[Piece]) -> list[str]:
    return [word for piece in pieces for word in ("--ro-bind", piece.source, piece.path)]


def _memory(path: str, size_bytes: int) -> list[str]:
    return ["--perms", "1777", "--size", str(size_bytes), "--tmpfs", path]
