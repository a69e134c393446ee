"""Commands in a mount: `Shell` runs them in a sandbox whose root is the mount.

Every route is there at the absolute path that the file verbs use, and what a command writes at `/` lands in the mount.
`shell.py` says what a command can see and do; the modules below it each know one part of how:

- `bubblewrap.py`: what is mounted in the sandbox, and the arguments that make it; `mountcheck.py`: is it so?
- `system.py`: what of this machine is shown in it; `etc.py` and `devices.py`: what the server makes for that;
- `seccomp.py`: the system calls that no namespace confines;
- `limits.py` and `cgroups.py`: memory and processes; `usernamespace.py`: what the kernel counts by user;
- `launch.py`, `sandboxed.py`, `unconfined.py`: a command from its start to the end of its last process;
- `mountwatch.py`: the mount, which no command outlives.

`Shell` is imported when it is first used: a configuration needs `ShellOptions` alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fusebackend.shell.options import ShellOptions

if TYPE_CHECKING:
    from fusebackend.shell.shell import Shell

__all__ = ["Shell", "ShellOptions"]


def __getattr__(name: str) -> Any:
    if name == "Shell":
        from fusebackend.shell.shell import Shell

        return Shell
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
