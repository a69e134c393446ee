"""`MountCheck`: compare the mounts of a sandbox with those that were asked for, before its command runs.

bwrap mounts by path, one after the other, and does not check the files at those paths. So before the gate opens, the
table of mounts of the sandbox's first process (proc_pid_mountinfo(5)) is compared with bwrap's arguments: every mount
at its place, on the mount that holds that place, of the right file system, from the right directory of it, with its
flags, and nothing else. A sandbox that differs is not used, and the log has the differences.

The server's own table tells which file system and directory a path of this machine belongs to.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fusebackend.base.paths import is_below
from fusebackend.linux.mount_table import MountEntry, mount_of
from fusebackend.shell.bubblewrap import SandboxError
from fusebackend.shell.system import Bind, Fresh

COVERS_OF_PROC = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus")
"""Parts of /proc that bwrap remounts read-only, as far as the user could write there."""


@dataclass(frozen=True)
class WantedMount:
    """One mount that must be there."""

    path: str
    fstype: str
    device: str | None
    """As in `MountEntry`; None for a file system of the sandbox's own."""
    root: str
    flags: frozenset[str]

    def differs(self, found: MountEntry, known: frozenset[str]) -> str | None:
        """Return the difference of a mount at this place, None if it is as wanted. `known` are the file systems of this
        machine."""
        if found.fstype != self.fstype:
            return f"is {found.fstype} and not {self.fstype}"
        if found.root != self.root:
            return f"shows {found.root} and not {self.root}"
        if found.device in known if self.device is None else found.device != self.device:
            return f"is file system {found.device} and not {self.device or 'one of its own'}"
        missing = self.flags.difference(found.options)
        return f"is not {', '.join(sorted(missing))}" if missing else None


class MountCheck:
    """The mounts that one sandbox must have. See the module's docstring.

    Args:
        mounts: the mounts of bwrap's arguments, the root first.
        table: the mounts of this process, from which bwrap started.

    Raises:
        SandboxError: a source is on no mount of this process, or on another one than it must be.
    """

    def __init__(self, mounts: Iterable[Bind | Fresh], table: Sequence[MountEntry]) -> None:
        self._known = frozenset(entry.device for entry in table)
        self._wanted: dict[str, list[WantedMount]] = defaultdict(list)  # from the lowest to the one on top
        for mount in mounts:
            for wanted in _wanted(mount, table):
                self._wanted[wanted.path].append(wanted)

    def is_made(self, table: Sequence[MountEntry]) -> bool:
        """Return True when bwrap has made the sandbox's root the root, and detached the old one. It mounts nothing
        after that."""
        roots = [entry for entry in table if entry.mountpoint == "/"]
        (wanted,) = self._wanted["/"]
        return len(roots) == 1 and (roots[0].fstype, roots[0].device) == (wanted.fstype, wanted.device)

    def differences(self, table: Sequence[MountEntry]) -> list[str]:
        """Return the differences in words; empty if there are none."""
        found = _by_place(table)
        proc = found.get("/proc", [None])[-1]
        said = [f"{path} is not mounted" for path in self._wanted if path not in found]
        for path, entries in found.items():
            wanted = self._wanted.get(path, [])
            if not wanted and proc is not None and path in COVERS_OF_PROC:
                wanted = [WantedMount(path, "proc", proc.device, path.removeprefix("/proc"), frozenset({"ro"}))]
            if len(entries) != len(wanted):
                if wanted or path not in self._wanted:
                    said.append(f"{path} is mounted {len(entries)} times and not {len(wanted)}")
                continue
            below = _holder(found, path)
            for entry, want in zip(entries, wanted, strict=True):
                if below is not None and entry.parent != below.id:
                    said.append(f"{path} is mounted in a directory that is not there any more")
                if wrong := want.differs(entry, self._known):
                    said.append(f"{path} {wrong}")
                below = entry
        return said


def _wanted(mount: Bind | Fresh, table: Sequence[MountEntry]) -> list[WantedMount]:
    if isinstance(mount, Fresh):
        return [WantedMount(mount.path, mount.fstype, None, "/", frozenset(mount.flags))]
    flags = {"nosuid"} | ({"ro"} if mount.read_only else set()) | (set() if mount.devices else {"nodev"})
    holder = mount_of(mount.source, table)
    if holder is None:
        raise SandboxError(f"'{mount.source}' is on no mount that this process can see")
    inside = _joined(holder.root, os.path.relpath(mount.source, holder.mountpoint))
    wanted = [WantedMount(mount.path, holder.fstype, holder.device, inside, frozenset(flags))]
    if mount.of is not None:
        if not holder.is_ours or holder.mountpoint != mount.of:
            raise SandboxError(f"something else is mounted on '{holder.mountpoint}', over the sandbox's files")
    else:
        for entry in _mounted_on(holder, mount.source, table):
            path = _joined(mount.path, os.path.relpath(entry.mountpoint, mount.source))
            wanted.append(WantedMount(path, entry.fstype, entry.device, entry.root, frozenset(flags)))
    return wanted


def _mounted_on(holder: MountEntry, source: str, table: Sequence[MountEntry]) -> list[MountEntry]:
    """Return the mounts below a directory, and those on them, and so on: a recursive bind mount includes them."""
    found = [entry for entry in table if entry.parent == holder.id and is_below(entry.mountpoint, source)]
    return found + [deeper for entry in found for deeper in _mounted_on(entry, source, table) if entry.id != holder.id]


def _by_place(table: Sequence[MountEntry]) -> dict[str, list[MountEntry]]:
    """The mounts at each place, from the lowest to the one on top."""
    found: dict[str, list[MountEntry]] = defaultdict(list)
    for entry in table:
        found[entry.mountpoint].append(entry)
    for entries in found.values():
        parents = {entry.id: entry.parent for entry in entries}
        entries.sort(key=lambda entry: _depth(entry.id, parents))
    return found


def _depth(number: int, parents: dict[int, int]) -> int:
    depth = 0
    while number in parents and depth <= len(parents):
        number, depth = parents[number], depth + 1
    return depth


def _holder(found: dict[str, list[MountEntry]], path: str) -> MountEntry | None:
    """The mount that the directory of a mount point is on."""
    while path != "/":
        path = os.path.dirname(path)
        if path in found:
            return found[path][-1]
    return None


def _joined(top: str, rest: str) -> str:
    return os.path.normpath(os.path.join(top, rest))
