"""Limits of memory, processes and processors: control groups (cgroups(7)), and limits of each process where there
are none.

`ControlGroups` finds, once, where this process may make groups that limit memory and processes: in its own group of a
version 1 hierarchy, or, in version 2, in the nearest group above that hands both controllers down. Processors are
limited too where that is possible in the same way. A `Group` is one directory for each hierarchy. All commands of a
mount have one together, in which each has its own: that is made before the command runs anything, and removed after its
last process has ended. Groups of a killed server are removed by the next one.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
import signal
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusebackend.base.errors import unless
from fusebackend.base.lines import split_lines
from fusebackend.linux import proc, runtime_directory
from fusebackend.linux.mount_table import MountEntry, mounts
from fusebackend.shell.options import Bounds, ShellOptions
from fusebackend.shell.usernamespace import RLIMITS, rlimits

log = logging.getLogger(__name__)

REMOVAL_PATIENCE_S = 2.0
"""How long the kernel may take to see that a group is empty."""

CONTROLLERS = ("memory", "pids", "cpu")

CPU_PERIOD_US = 100_000
"""In each period, all commands together may use so many microseconds for each processor that they may have."""


@dataclass(frozen=True)
class Place:
    """A directory in which groups can be made, and the limits it can set."""

    directory: str
    version: int
    controllers: frozenset[str]


class ControlGroups:
    """See the module's docstring. Empty `places` mean that nothing can be limited this way."""

    def __init__(self, places: Iterable[Place]) -> None:
        self.places = [place for place in places if _can_make_groups(place)]
        for place in self.places:
            try:
                runtime_directory.remove_stale(place.directory, _end)
            except OSError as error:
                log.warning("control groups of a server that was killed stay in %s: %s", place.directory, error)

    @classmethod
    def of_this_process(cls) -> ControlGroups:
        try:
            return cls(places(os.fsdecode(proc.read("self/cgroup")), mounts()))
        except FileNotFoundError:
            return cls([])  # a kernel without control groups

    def version_for(self, controller: str) -> int | None:
        """The version of cgroups that limits `memory`, `pids` or `cpu`, None when neither does."""
        return next((place.version for place in self.places if controller in place.controllers), None)

    def make(self, bounds: Bounds, above: Group | None = None) -> Group:
        """An empty group with these limits.

        Args:
            above: the group that it is to be in, and whose limits hold for it, too. Made by this method without one.

        Raises:
            OSError: the kernel does not take it.
        """
        name = runtime_directory.own_name()
        parents = [place.directory for place in self.places] if above is None else above.directories
        group = Group([os.path.join(parent, name) for parent in parents])
        try:
            for place, directory in zip(self.places, group.directories, strict=True):
                os.mkdir(directory)
                _limit(place, directory, bounds)
                if above is None and place.version == 2:
                    handed = " ".join(f"+{controller}" for controller in sorted(place.controllers))
                    _write(os.path.join(directory, "cgroup.subtree_control"), handed)
        except BaseException:
            group.remove()
            raise
        return group


class Group:
    """The processes of one command, or an empty group in which those of commands are."""

    def __init__(self, directories: list[str]) -> None:
        self.directories = directories

    def add(self, pid: int) -> None:
        """Take a process in; its children to come are in it as well.

        Raises:
            ProcessLookupError: it has ended.
            OSError: the kernel does not let it in.
        """
        for directory in self.directories:
            _write(os.path.join(directory, "cgroup.procs"), str(pid))

    def kill(self) -> None:
        """End every process in it, also those that are just being born."""
        deadline = time.monotonic() + REMOVAL_PATIENCE_S
        while (members := self._members()) and time.monotonic() < deadline:
            for pid in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.001)

    def _members(self) -> list[int]:
        found: set[int] = set()
        for directory in self.directories:
            with contextlib.suppress(FileNotFoundError), open(os.path.join(directory, "cgroup.procs")) as file:
                found |= {int(line) for line in file}
        return sorted(found - {0})  # 0 is a process that this one can't see

    def remove(self) -> None:
        """Remove it, when its last process has ended."""
        deadline = time.monotonic() + REMOVAL_PATIENCE_S
        for directory in self.directories:
            while not _removed(directory):
                if time.monotonic() > deadline:
                    log.warning("control group %s is still in use and stays", directory)
                    break
                time.sleep(0.001)


def places(membership: str, table: list[MountEntry]) -> list[Place]:
    """Where groups that limit memory, processes or processors could be made.

    Args:
        membership: /proc/self/cgroup.
        table: the table of mounts.
    """
    found: list[Place] = []
    wanted = set(CONTROLLERS)
    unified: str | None = None
    for line in split_lines(membership):
        number, controllers, path = line.split(":", 2)
        mine = wanted & set(controllers.split(","))
        if number == "0" and not controllers:
            unified = path
        elif mine and (directory := _directory(table, "cgroup", path, mine)) is not None:
            found.append(Place(directory, 1, frozenset(mine)))
    left = wanted.difference(*(place.controllers for place in found))
    if left - {"cpu"} and unified is not None:
        directory = _directory(table, "cgroup2", unified, set())
        top = _directory(table, "cgroup2", "/", set())
        place = directory and _handing_down(directory, top or directory, left - {"cpu"})
        if place:
            found.append(Place(place, 2, frozenset(left & _handed_down(place))))
    return found


def _directory(table: list[MountEntry], fstype: str, path: str, controllers: set[str]) -> str | None:
    """Where the group `path` of a hierarchy shows in the file system."""
    for entry in table:
        if entry.fstype == fstype and controllers <= set(entry.super_options):
            inside = os.path.relpath(path, entry.root)
            if not inside.startswith(".."):
                return os.path.normpath(os.path.join(entry.mountpoint, inside))
    return None


def _handing_down(directory: str, top: str, controllers: set[str]) -> str | None:
    """Return the nearest group at or above `directory` that hands the controllers to its children (version 2).

    Its own is none as a rule: a group with processes in it can't hand controllers down.
    """
    while True:
        if controllers <= _handed_down(directory):
            return directory
        if directory == top or len(directory) <= len(top):
            return None
        directory = os.path.dirname(directory)


def _handed_down(directory: str) -> set[str]:
    """Return the controllers that a group of version 2 hands to its children."""
    try:
        return set(Path(directory, "cgroup.subtree_control").read_text().split())
    except OSError:
        return set()


def _can_make_groups(place: Place) -> bool:
    """Return True if a group can be made, by trying it: modes, delegation and other confinement decide; and move a
    child there."""
    name = os.path.join(place.directory, runtime_directory.own_name())
    try:
        os.mkdir(name)
    except OSError:
        return False
    try:
        _limit(place, name, Bounds(1 << 30, 1 << 10, 1))
    except OSError:
        return False
    else:
        # Moving a process needs leave to write to the group above both (cgroups version 2, delegation).
        return place.version == 1 or os.access(os.path.join(place.directory, "cgroup.procs"), os.W_OK)
    finally:
        os.rmdir(name)


def _limit(place: Place, directory: str, bounds: Bounds) -> None:
    def put(file: str, value: object, *, needed: bool = True) -> None:
        path = os.path.join(directory, file)
        if needed or os.path.exists(path):
            _write(path, str(value))

    if "memory" in place.controllers and place.version == 1:
        put("memory.use_hierarchy", 1, needed=False)  # for groups in it; kernels before 5.11 do not otherwise
        put("memory.limit_in_bytes", bounds.memory_bytes)
        put("memory.memsw.limit_in_bytes", bounds.memory_bytes, needed=False)  # with swap; not every kernel counts it
    elif "memory" in place.controllers:
        put("memory.max", bounds.memory_bytes)
        put("memory.swap.max", 0, needed=False)
    if "pids" in place.controllers:
        put("pids.max", bounds.processes)
    if "cpu" in place.controllers and bounds.cpus:
        quota_us = round(bounds.cpus * CPU_PERIOD_US)
        if place.version == 1:
            put("cpu.cfs_period_us", CPU_PERIOD_US)
            put("cpu.cfs_quota_us", quota_us)
        else:
            put("cpu.max", f"{quota_us} {CPU_PERIOD_US}")


def _end(directory: str) -> None:
    """Remove the group of a killed server with those in it, and end their processes."""
    for entry in [entry.path for entry in os.scandir(directory) if entry.is_dir()]:
        _end(entry)
    group = Group([directory])
    group.kill()
    group.remove()


def _write(path: str, text: str) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CLOEXEC), "wb", buffering=0) as file:  # it is not made
        file.write(text.encode())


def _removed(directory: str) -> bool:
    unless((errno.ENOENT, errno.EBUSY), os.rmdir, directory)
    return not os.path.isdir(directory)


OPEN_FILES = 1024
"""The usual soft limit. The server has raised its own, and some programs close as many descriptors as they may have."""

FIRST_TO_GO = 500
"""Of 1000. Where the whole machine is out of memory, commands are ended rather than the server."""

NO_CORE = 1
"""RLIMIT_CORE. Less than any core file; and the one value that also keeps the kernel from starting a handler of core
dumps, outside of the sandbox (core(5), fs/coredump.c)."""


class Limits:
    """The limits of a command's memory and processes, and of what all commands use together.

    Control groups limit all processes of a command together, and all commands. Where this process may make none, each
    process is limited (setrlimit(2)): each may then use as much memory as the whole command should, the number of
    processes is not limited for root, which the kernel exempts, and nothing limits all commands. `describe` says which
    way is used.
    """

    def __init__(self, options: ShellOptions, groups: ControlGroups) -> None:
        self._options = options
        self._groups = groups
        self._all: Group | None = None
        """What all commands are in: made for the first one."""
        self._making = threading.Lock()

    def confine(self, pid: int) -> Group:
        """Limit a process that has started nothing yet, and all that it will start. The group is to be removed.

        Raises:
            OSError: it can't be limited. A process that has ended is no error.
        """
        options = self._options
        with self._making:
            if self._all is None:
                self._all = self._groups.make(options.together)
        own = Bounds(options.memory_bytes, options.max_processes + 1)  # and the sandbox's own first one
        group = self._groups.make(own, self._all)
        try:
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                group.add(pid)
                self._limit_each(pid)
        except BaseException:
            group.remove()
            raise
        return group

    def close(self) -> None:
        """All commands have ended."""
        if self._all is not None:
            self._all.remove()

    def _limit_each(self, pid: int) -> None:
        limits = {resource.RLIMIT_CORE: NO_CORE, resource.RLIMIT_NOFILE: OPEN_FILES}
        limits |= {RLIMITS[name]: most for name, most in rlimits().items()}
        if self._groups.version_for("memory") is None:
            # Not RLIMIT_AS: reserved memory costs nothing, and virtual machines reserve gigabytes.
            limits[resource.RLIMIT_DATA] = self._options.memory_bytes
        if self._groups.version_for("pids") is None:
            # It counts all that the user has in the user namespace; a sandbox has one of its own.
            others = _tasks_of_user() if self._options.sandbox == "none" else 0
            limits[resource.RLIMIT_NPROC] = self._options.max_processes + 1 + others
        for number, most in limits.items():
            _, hard = resource.prlimit(pid, number)
            value = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.prlimit(pid, number, (value, hard if number == resource.RLIMIT_NOFILE else value))
        _write(f"/proc/{pid}/oom_score_adj", str(FIRST_TO_GO))  # also, a server that is protected must not hand that on

    def describe(self) -> dict[str, Any]:
        """How memory, processes and processors are limited, in words."""
        memory, processes, cpu = map(self._groups.version_for, CONTROLLERS)
        together = self._options.together
        otherwise = "not at all (root is exempt)" if _is_exempt() else "rlimit, for each command"
        return {
            "memory_bytes": self._options.memory_bytes,
            "total_memory_bytes": together.memory_bytes if memory else None,
            "memory_limited_by": f"cgroup v{memory}" if memory else "rlimit, for each process",
            "max_processes": self._options.max_processes,
            "total_processes": together.processes if processes else None,
            "processes_limited_by": f"cgroup v{processes}" if processes else otherwise,
            "total_cpus": together.cpus if cpu else None,
        }


def _tasks_of_user() -> int:
    """Return how many processes and threads this process's user has."""
    user, found = os.geteuid(), 0
    for entry in os.scandir("/proc"):
        with contextlib.suppress(OSError):  # it has ended
            if entry.name.isdecimal() and entry.stat().st_uid == user:
                found += len(os.listdir(f"/proc/{entry.name}/task"))
    return found


def _is_exempt() -> bool:
    """Return True for root of the whole machine, which RLIMIT_NPROC does not limit."""
    return os.geteuid() == 0 and proc.read("self/uid_map").split()[:2] == [b"0", b"0"]
