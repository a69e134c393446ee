"""Bubblewrap (bwrap(1)): where it is, what it can do here, and the arguments that make a sandbox of a mount.

The sandbox's root is the mount. `SandboxRoot` lists the mounts over it as `Bind` and `Fresh`; `arguments` makes bwrap's
arguments of them, and `MountCheck` compares them with the mounts that bwrap has made.

Every mount point is a directory of the server's or of this machine's, or in a file system that bwrap has just made:
nothing is mounted or created by a path that goes through files which a command or another user can change.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from fusebackend.base.lines import split_lines
from fusebackend.linux.distribution import install
from fusebackend.shell import system
from fusebackend.shell.options import ShellOptions
from fusebackend.shell.system import Bind, Fresh

PROBE_PATIENCE_S = 10.0

READ_ONLY = ("ro", "nosuid", "nodev")

PROGRAM_PATHS = "/usr/local/bin:/usr/bin:/bin"

NAMESPACES = ("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")

USER_NAMESPACES = (("--unshare-user", "--disable-userns"), ("--unshare-user",), ())
"""The best that this machine allows is taken: without the second option (bubblewrap 0.8) the seccomp filter alone keeps
commands from making user namespaces; without the first, which needs root, a command is the machine's root, although
one without capabilities."""

HIDDEN_FROM_ROOT = ("kpagecgroup", "kpagecount", "kpageflags")
"""Files of /proc that only root can read, without any capability: the use of this machine's memory, page by page."""


class SandboxError(Exception):
    """The sandbox can't be had; the text is one line for the user."""


@dataclass(frozen=True)
class SandboxRoot:
    """A sandbox's root: the mount, and the mounts over it."""

    mountpoint: str
    programs: tuple[Bind, ...] = ()
    own: tuple[str, ...] = system.OWN
    """Which of `system.OWN` the sandbox has for itself: all, but /tmp may be a route."""
    routes: tuple[str, ...] = ()
    """Prefixes of routes below a directory that is the sandbox's or the system's, to be put back on top of it."""
    covered: tuple[str, ...] = ()
    """Prefixes of routes that can't be: the system's directory has none for them."""
    tree: str = ""
    """The directory of the mount that is the sandbox's root, as a path in the mount."""
    trees_path: str = ""
    """The trees directory, if anything of it is shown; its path in the mount is that in the sandbox."""
    granted: tuple[str, ...] = ()
    """What is shown of it. The rest is not there: its place is an empty file system of the sandbox's own."""

    @classmethod
    def of(cls, mountpoint: str, prefixes: Iterable[str]) -> SandboxRoot:
        programs = tuple(system.programs())
        own = tuple(name for name in system.OWN if name != "tmp" or "/tmp" not in prefixes)
        routes: list[str] = []
        covered: list[str] = []
        for prefix in sorted(prefixes):
            top, _, below = prefix.removeprefix("/").partition("/")
            if top not in own and f"/{top}" not in [program.path for program in programs]:
                continue  # nothing is mounted over it
            if any(prefix.startswith(route + "/") for route in routes):
                continue  # there with the one above it
            possible = below and (top in ("tmp", "etc", "dev") or (top not in own and os.path.isdir(prefix)))
            (routes if possible else covered).append(prefix)
        return cls(mountpoint, programs, own, tuple(routes), tuple(covered))

    def mounts(self, etc: Sequence[Bind], nodes: Mapping[str, str], memory_bytes: int) -> list[Bind | Fresh]:
        """Return the mounts of a sandbox, in their order.

        Args:
            etc: the directory that is its /etc, which has a directory for all that is mounted in it, and that.
            nodes: paths of device nodes that are used instead of this machine's, by name.
            memory_bytes: how large a file system in memory may get.
        """
        found: list[Bind | Fresh] = [self._part("", "/")]
        found += self.programs
        found.append(Fresh("proc", "/proc", ("ro", "nosuid", "nodev", "noexec")))
        if os.geteuid() == 0:
            hidden = [f"/proc/{name}" for name in HIDDEN_FROM_ROOT]
            found += [Bind("/dev/null", path) for path in hidden if os.path.exists(path)]
        found += [Fresh("tmpfs", "/dev", READ_ONLY), *_devices()]
        found += [Bind(node, f"/dev/{name}", read_only=False, devices=True) for name, node in nodes.items()]
        found.append(Fresh("tmpfs", "/dev/shm", size_bytes=memory_bytes))
        if "tmp" in self.own:
            found.append(Fresh("tmpfs", "/tmp", size_bytes=memory_bytes))
        found += etc
        found += [self._part(prefix, prefix) for prefix in self.routes]
        if self.granted:
            found.append(Fresh("tmpfs", self.trees_path, READ_ONLY, 4096))
        for name in self.granted:
            path = f"{self.trees_path}/{name}"
            found.append(Bind(self.mountpoint + path, path, read_only=name == "snapshots", of=self.mountpoint))
        return found

    def _part(self, inside: str, path: str) -> Bind:
        return Bind(self.mountpoint + self.tree + inside, path, read_only=False, of=self.mountpoint)

    @property
    def names(self) -> list[str]:
        """The names of directories that the root must have."""
        top = [self.trees_path.removeprefix("/")] if self.granted else []
        return [program.path.removeprefix("/") for program in self.programs] + list(self.own) + top


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
            "bubblewrap is not installed, which confines commands to the mount: "
            f"'{install('bubblewrap')}'; "
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
        refusal = trial([program, *words])
        if refusal is None:
            return words
        said = said or refusal
    raise SandboxError(f"this machine does not let bubblewrap make a sandbox ({said})")


def trial(program: Sequence[str]) -> str | None:
    """Why no sandbox can be made by bwrap and these first words of its, in its words; None if one can.

    Raises:
        SandboxError: bwrap can't be run, or does not end.
    """
    programs = [word for bind in system.programs() for word in bind.words()]
    words = [*program, *NAMESPACES, *programs, "--proc", "/proc", "--dev", "/dev"]
    try:
        done = subprocess.run(
            [*words, "--", system.SHELL, "-c", ":"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
            timeout=PROBE_PATIENCE_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SandboxError(f"bubblewrap does not work: {error}") from None
    return in_one_line(done.stderr) if done.returncode != 0 else None


def in_one_line(said: bytes | bytearray) -> str:
    """Return bwrap's output in one line, for a message."""
    lines = split_lines(said.decode("utf-8", "replace"))
    return "; ".join(line.removeprefix("bwrap: ") for line in lines if line.strip()) or "it does not say why"


def arguments(mounts: Iterable[Bind | Fresh], options: ShellOptions, user: Iterable[str], cwd: str) -> list[str]:
    """bwrap's words for a sandbox.

    Args:
        mounts: the mounts of `SandboxRoot.mounts`.
        options: network and environment.
        user: one of `USER_NAMESPACES`.
        cwd: where the command starts.
    """
    words = [*user, *NAMESPACES, *([] if options.network else ["--unshare-net"])]
    words += ["--hostname", "sandbox", "--die-with-parent", "--new-session", "--as-pid-1", "--cap-drop", "ALL"]
    made_by_dev = _devices()
    sealed = ["/dev"]
    for mount in mounts:
        if mount not in made_by_dev:
            words += mount.words()
        if isinstance(mount, Fresh) and mount.flags == READ_ONLY and mount.path not in sealed:
            sealed.append(mount.path)  # once all that is mounted in it has a directory there
        if mount.path == "/proc":
            # Read-only as a whole: root could write to files that bwrap leaves open, such as sys/kernel.
            words += ["--remount-ro", "/proc"]
    words += [word for path in sealed for word in ("--remount-ro", path)]
    words += ["--chdir", cwd, "--clearenv"]
    for name, value in system.environment(cwd, dict(options.env)).items():
        words += ["--setenv", name, value]
    return words


def _devices() -> tuple[Bind | Fresh, ...]:
    """Return the mounts of `--dev /dev`, besides an empty file system for them."""
    nodes = [Bind(f"/dev/{name}", f"/dev/{name}", read_only=False, devices=True) for name in system.DEVICES]
    return (*nodes, Fresh("devpts", "/dev/pts", ("nosuid", "noexec")))
