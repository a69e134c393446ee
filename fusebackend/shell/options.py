"""`ShellOptions`: how commands run in a mount. Plain values, so that they can be sent to a server as JSON."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec.structs import force_setattr

from fusebackend.base.settings import SIZE, TIME, Setting, Table
from fusebackend.linux.command import require_positive

Sandbox = Literal["bubblewrap", "none"]

TREES = ("snapshots", "branches")
"""Directories of the trees directory that commands may see."""

DEFAULT_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Bounds:
    """What some processes may use together."""

    memory_bytes: int
    processes: int
    cpus: float = 0
    """Processors that they may keep busy; 0 for all."""


class ShellOptions(Table, frozen=True):
    """How commands run in the mount: `[execute]` of the TOML file.

    Raises:
        ValueError: a value that no command could run with.
    """

    sandbox: Annotated[
        Sandbox,
        Setting(
            "bubblewrap confines commands; none runs them as LocalShellBackend does, with the mount point as the "
            "current directory."
        ),
    ] = "bubblewrap"
    network: Annotated[bool, Setting("Commands may use this machine's network, and everything that listens on it.")] = (
        False
    )
    timeout_s: Annotated[
        float, Setting("How long a command may take by default. No more than max_timeout.", "timeout", TIME)
    ] = DEFAULT_TIMEOUT_S
    max_output_bytes: Annotated[int, Setting("Output beyond this is dropped, and the answer says truncated.")] = 100_000
    memory_bytes: Annotated[
        int, Setting("Memory of all processes of a command together, files in its /tmp included.", "memory", SIZE)
    ] = 1 << 30
    max_processes: Annotated[
        int, Setting("How many processes and threads a command may have at once.", "processes")
    ] = 256
    env: Annotated[
        Mapping[str, str],
        Setting("Added to the environment of commands, which otherwise know nothing of the server's."),
    ] = {}
    max_timeout_s: Annotated[
        float,
        Setting(
            "The largest timeout of execute. A running command takes resources from others: memory, processes, "
            "inotify instances.",
            "max_timeout",
            TIME,
        ),
    ] = 3600
    trees: Annotated[
        Sequence[str],
        Setting("What commands see of the trees directory, /.fusebackend: nothing, snapshots, branches, or both."),
    ] = ()
    total_memory_bytes: Annotated[
        int,
        Setting(
            "Memory of all commands of the mount together. 0 is half of the machine's, but at least memory.",
            "total_memory",
            SIZE,
        ),
    ] = 0
    total_processes: Annotated[
        int, Setting("How many processes and threads all commands may have at once. 0 is four times processes.")
    ] = 0
    total_cpus: Annotated[
        float,
        Setting(
            "How many processors all commands may keep busy. 0 is all but a tenth of what the server may use itself."
        ),
    ] = 0

    def seconds(self, timeout: float | None) -> float:
        """How long a command may take that is given `timeout` seconds, or is left to the configuration.

        Raises:
            ValueError: not above 0, or above `max_timeout_s`.
        """
        seconds = self.timeout_s if timeout is None else timeout
        require_positive(seconds)
        if seconds > self.max_timeout_s:
            most = f"{self.max_timeout_s:.10g} seconds (max_timeout in the configuration's [execute])"
            raise ValueError(f"timeout must be at most {most}, but is {seconds:.10g}")
        return seconds

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self.timeout_s, self.max_output_bytes)
        if not 0 < self.max_timeout_s < math.inf:
            raise ValueError(f"max_timeout must be above 0 seconds and finite, but is {self.max_timeout_s}")
        if self.timeout_s == DEFAULT_TIMEOUT_S > self.max_timeout_s:
            force_setattr(self, "timeout_s", self.max_timeout_s)
        if self.timeout_s > self.max_timeout_s:
            raise ValueError(f"timeout is {self.timeout_s:.10g} seconds, but max_timeout is {self.max_timeout_s:.10g}")
        if self.memory_bytes < LEAST_MEMORY_BYTES:
            raise ValueError(
                f"memory must be at least {LEAST_MEMORY_BYTES >> 20} MiB, but is {self.memory_bytes} bytes"
            )
        together = self.together
        for key, value, least, words in (
            ("processes", self.max_processes, 1, "1"),
            ("total_memory", together.memory_bytes, self.memory_bytes, f"memory, {self.memory_bytes} bytes"),
            ("total_processes", together.processes, self.max_processes, f"processes, {self.max_processes}"),
        ):
            if value < least:
                raise ValueError(f"{key} must be at least {words}, but is {value}")
        if together.processes > MOST_PROCESSES:
            most = f"{MOST_PROCESSES}, all that Linux has"
            raise ValueError(
                f"total_processes (or four times processes) can be {most}, at most; it is {together.processes}"
            )
        if not LEAST_CPUS <= together.cpus < math.inf:
            raise ValueError(f"total_cpus must be at least {LEAST_CPUS} and finite, but is {together.cpus}")
        force_setattr(self, "trees", tuple(self.trees))  # a list, of JSON or TOML
        for tree in self.trees:
            if tree not in TREES:
                raise ValueError(f"trees may have 'snapshots' and 'branches', but has {tree!r}")
        for name, text in self.env.items():
            if not name or "=" in name or "\0" in name + text:
                raise ValueError(f"env: {name!r} can't be an environment variable")

    @property
    def together(self) -> Bounds:
        """What all commands of the mount may use together."""
        machine_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return Bounds(
            self.total_memory_bytes or max(machine_bytes // 2, self.memory_bytes),
            self.total_processes or TOGETHER * self.max_processes,
            self.total_cpus or round(0.9 * len(os.sched_getaffinity(0)), 2),
        )


TOGETHER = 4
"""So many commands may have all the processes that each may have."""

MOST_PROCESSES = 4_194_304
"""`pids.max` takes no more (PID_MAX_LIMIT, include/linux/threads.h)."""

LEAST_CPUS = 0.01
"""The kernel takes no less than a millisecond of each tenth of a second."""

LEAST_MEMORY_BYTES = 16 << 20
"""With less, not even the sandbox would start."""
