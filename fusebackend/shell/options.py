"""`ShellOptions`: how commands run in a mount. Plain values, so that they can be sent to a server as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

Sandbox = Literal["bubblewrap", "none"]


@dataclass(frozen=True)
class ShellOptions:
    """The `[execute]` table of a configuration.

    Raises:
        ValueError: a value that no command could run with.
    """

    sandbox: Sandbox = "bubblewrap"
    """`none` runs commands unconfined, as `LocalShellBackend` does, with the mount point as the current directory."""
    network: bool = False
    """Commands may use this machine's network, and everything that listens on it."""
    timeout_s: float = 120
    """Seconds that a command may take, unless `execute` is told otherwise."""
    max_output_bytes: int = 100_000
    """Output beyond this is dropped, and the answer says `truncated`."""
    memory_bytes: int = 1 << 30
    """What all processes of a command may use together, files in its /tmp included."""
    max_processes: int = 256
    """How many processes and threads a command may have at once."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to the environment of commands, which otherwise know nothing of the server's."""

    def __post_init__(self) -> None:
        if self.sandbox not in get_args(Sandbox):
            raise ValueError(f"sandbox must be 'bubblewrap' or 'none', but is '{self.sandbox}'")
        if not self.timeout_s > 0:
            raise ValueError(f"timeout must be above 0 seconds, but is {self.timeout_s}")
        if self.max_output_bytes < 0:
            raise ValueError(f"max_output_bytes must not be negative, but is {self.max_output_bytes}")
        if self.memory_bytes < LEAST_MEMORY_BYTES:
            least = f"{LEAST_MEMORY_BYTES >> 20} MiB"
            raise ValueError(f"memory must be at least {least}, but is {self.memory_bytes} bytes")
        if self.max_processes < 1:
            raise ValueError(f"processes must be at least 1, but is {self.max_processes}")
        for name, value in self.env.items():
            if not name or "=" in name or "\0" in name + value:
                raise ValueError(f"env: {name!r} can't be an environment variable")


LEAST_MEMORY_BYTES = 16 << 20
"""With less, not even the sandbox would start."""
