"""`UserNamespace`: one above those of all sandboxes of a mount, which bounds what the kernel counts by user.

A user has so many inotify instances, watches, pending signals and bytes of message queues on a machine, sandboxes
included (128 instances as a rule), and nothing of a sandbox but a user namespace has a count of its own: the kernel
charges what is made in one to it and to all above (user_namespaces(7), kernel/ucount.c). So bwrap is started in a
namespace that this server makes once, and gives a share of the machine's limits. All commands together can take that,
and no more. It is kept by a descriptor, without a process. Entering it costs 1 to 2 ms of a start, the exec of nsenter.

Where it can't be made, `seccomp.program` refuses what would be counted.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
import shutil
import subprocess

from fusebackend.base.deadline import is_readable
from fusebackend.shell import system
from fusebackend.shell.bubblewrap import SandboxError, in_one_line, trial

log = logging.getLogger(__name__)

SHARE = 4
"""Commands may have this fraction (1/4) of the user's limits."""

COUNTS = ("max_inotify_instances", "max_inotify_watches", "max_fanotify_groups", "max_fanotify_marks")
"""Files of /proc/sys/user, which hold the limits of the reader's namespace."""

DIRECTORY = "/proc/sys/user"

PATIENCE_S = 10.0

RLIMITS = {"sigpending": resource.RLIMIT_SIGPENDING, "msgqueue": resource.RLIMIT_MSGQUEUE}
"""Limits of processes for which the kernel counts by user, by their names for prlimit(1)."""

_SET_AND_WAIT = (
    f'cd {DIRECTORY} && for pair; do echo "${{pair#*=}}" > "${{pair%%=*}}" || exit; done; echo "$$"; read -r _'
)


class UserNamespace:
    """See the module's docstring. Used by one thread at a time."""

    def __init__(self) -> None:
        self._descriptor: int | None = None
        self._tried = False

    def make(self, program: str, user: tuple[str, ...]) -> None:
        """Make the namespace, if that was not tried before.

        Args:
            program: bwrap.
            user: its options for user namespaces; nothing where it can't.
        """
        if self._tried:
            return
        self._tried = True
        if not user or shutil.which("nsenter", path=system.PATH) is None:
            log.warning("commands get no inotify: this machine has no user namespace to bound it")
            return
        try:
            self._descriptor = _made(program)
            refusal = trial([*self.entering(), program, *user])
        except (OSError, ValueError, SandboxError) as error:
            refusal = str(error)
        if refusal is not None:
            log.warning("commands get no inotify: no user namespace to bound it can be made: %s", refusal)
            self.close()

    @property
    def is_made(self) -> bool:
        return self._descriptor is not None

    def describe(self) -> str:
        """How what is counted by user is limited, in words."""
        if not self._tried:
            return "not known before the first command"
        return f"user namespace, 1/{SHARE} of the user's" if self.is_made else "refused"

    def entering(self) -> list[str]:
        """The words before a command that make it run in the namespace; none where there is no namespace."""
        if self._descriptor is None:
            return []
        # By this process's descriptor: bwrap would leave one of its own to the command.
        place = f"/proc/{os.getpid()}/fd/{self._descriptor}"
        return ["nsenter", f"--user={place}", "--preserve-credentials", "--"]

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def share(most: int) -> int:
    """Return the share of commands in a limit of the user."""
    return max(most // SHARE, 1)


def rlimits() -> dict[str, int]:
    """Return the limits of a command's processes for resources that are counted by user, by names of `RLIMITS`."""
    soft = {name: resource.getrlimit(number)[0] for name, number in RLIMITS.items()}
    return {name: share(most) for name, most in soft.items() if most != resource.RLIM_INFINITY}


def _made(program: str) -> int:
    """Let bwrap make one, and keep it. It takes the resource limits of the process that makes it."""
    counts = []
    for name in COUNTS:
        with contextlib.suppress(FileNotFoundError), open(os.path.join(DIRECTORY, name)) as file:
            counts.append(f"{name}={share(int(file.read()))}")
    words = ["prlimit", *(f"--{name}={most}" for name, most in rlimits().items()), "--"]
    words += [program, "--unshare-user", "--die-with-parent", "--cap-add", "CAP_SYS_RESOURCE", "--dev-bind", "/", "/"]
    with subprocess.Popen(
        [*words, "--", system.SHELL, "-c", _SET_AND_WAIT, system.SHELL, *counts],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"PATH": system.PATH},
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            said = process.stdout.readline() if is_readable(process.stdout.fileno(), PATIENCE_S) else b""
            if said:
                return os.open(f"/proc/{int(said)}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            process.kill()
        raise OSError(errno.EPERM, in_one_line(process.stderr.read()))
