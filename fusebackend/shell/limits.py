"""`Limits`: how much memory and how many processes a command may have, by whatever this machine has for it.

Control groups limit all processes of a command together. Where this process may make none, limits of the processes
themselves (setrlimit(2)) are the next best: of memory each process may then have as much as the command should, and
the number of processes is not limited at all for root, whom the kernel exempts. `describe` says how it is.
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
from typing import Any

from fusebackend.shell.cgroups import ControlGroups, Group
from fusebackend.shell.options import ShellOptions
from fusebackend.shell.usernamespace import RLIMITS, rlimits

log = logging.getLogger(__name__)

OPEN_FILES = 1024
"""The usual soft limit. The server has raised its own, and some programs close as many descriptors as they may have."""

UID_MAP = "/proc/self/uid_map"

FIRST_TO_GO = 500
"""Of 1000. Where the whole machine is out of memory, commands are ended rather than the server."""

NO_CORE = 1
"""RLIMIT_CORE. Less than any core file; and the one value that also keeps the kernel from starting a handler of core
dumps, outside of the sandbox (core(5), fs/coredump.c)."""


class Limits:
    """See the module's docstring."""

    def __init__(self, options: ShellOptions, groups: ControlGroups) -> None:
        self._options = options
        self._groups = groups
        self._with_groups = {controller: groups.version_for(controller) for controller in ("memory", "pids")}

    def confine(self, pid: int) -> Group:
        """Limit a process that has started nothing yet, and all that it will start. The group is to be removed.

        Raises:
            OSError: it can't be limited. A process that has ended is no error.
        """
        options = self._options
        group = self._groups.make(options.memory_bytes, options.max_processes + 1)  # and the sandbox's own first one
        try:
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                group.add(pid)
                self._limit_each(pid)
        except BaseException:
            group.remove()
            raise
        return group

    def _limit_each(self, pid: int) -> None:
        limits = {resource.RLIMIT_CORE: NO_CORE, **{RLIMITS[name]: most for name, most in rlimits().items()}}
        if self._with_groups["memory"] is None:
            # Not RLIMIT_AS: what is merely reserved, as virtual machines do by the gigabyte, costs nothing.
            limits[resource.RLIMIT_DATA] = self._options.memory_bytes
        if self._with_groups["pids"] is None:
            limits[resource.RLIMIT_NPROC] = self._options.max_processes + 1
        for number, most in limits.items():
            _, hard = resource.prlimit(pid, number)
            value = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.prlimit(pid, number, (value, value))
        with open(f"/proc/{pid}/oom_score_adj", "w") as file:
            file.write(str(FIRST_TO_GO))  # also, a server that is protected must not hand that on
        _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        soft = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))

    def describe(self) -> dict[str, Any]:
        """How memory and processes are limited, in words."""
        memory, processes = self._with_groups["memory"], self._with_groups["pids"]
        otherwise = "not at all (root is exempt)" if _is_exempt() else "rlimit, for each command"
        return {
            "memory_bytes": self._options.memory_bytes,
            "memory_limited_by": f"cgroup v{memory}" if memory else "rlimit, for each process",
            "max_processes": self._options.max_processes,
            "processes_limited_by": f"cgroup v{processes}" if processes else otherwise,
        }


def _is_exempt() -> bool:
    """Is this the root of the whole machine, whom RLIMIT_NPROC does not hold?"""
    if os.geteuid() != 0:
        return False
    with open(UID_MAP) as file:
        inside, outside, _ = (int(word) for word in file.readline().split())
    return inside == outside == 0
