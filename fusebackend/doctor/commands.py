"""What commands of a mount need, and the programs that make searches and merges better."""

from __future__ import annotations

import shutil
from collections.abc import Iterable

from fusebackend.doctor.finding import Finding, ok, warning
from fusebackend.linux.distribution import install
from fusebackend.shell import bubblewrap, seccomp
from fusebackend.shell.cgroups import ControlGroups

_UNCONFINED = 'or sandbox = "none" in [execute], which confines nothing'


def sandbox(is_wanted: bool) -> Iterable[Finding]:
    """bubblewrap is there, and works.

    Args:
        is_wanted: False where the configuration has no sandbox.
    """
    what = "bubblewrap"
    if not is_wanted:
        return [ok(what, 'not needed: sandbox = "none"')]
    program = bubblewrap.where()
    if program is None:
        why = "it is not installed: commands (exec) are refused"
        return [warning(what, why, f"{install('bubblewrap')}; {_UNCONFINED}")]
    try:
        bubblewrap.user_namespace(program)
    except bubblewrap.SandboxError as failure:
        why = f"it can make no sandbox here, so commands (exec) are refused: {failure}"
        return [warning(what, why, f"allow user namespaces, or run as root; {_UNCONFINED}")]
    found = [ok(what, program)]
    if seccomp.program() is None:
        found.append(warning("seccomp filter", "none is known for this machine's architecture", "no mend: report it"))
    return found


def limits() -> Iterable[Finding]:
    """Control groups limit the memory and the processes of commands."""
    groups = ControlGroups.of_this_process()
    lacking = [name for name in ("memory", "pids") if groups.version_for(name) is None]
    if not lacking:
        return [ok("control groups", "limit memory and processes of commands")]
    why = f"none for {' and '.join(lacking)}: each process of a command has limits of its own, all together have none"
    mend = "a systemd unit: Delegate=yes; a container: mount /sys/fs/cgroup writable, or run as root"
    return [warning("control groups", why, mend)]


def programs() -> Iterable[Finding]:
    """ripgrep and git are there."""
    for name, program, why in (
        ("ripgrep", "rg", "grep of dir: routes reads each file in Python"),
        ("git", "git", "lines can't be merged: undo --merge-lines, branch merge --merge-lines"),
    ):
        where = shutil.which(program)
        if where is None:
            yield warning(name, f"it is not installed: {why}", install(name))
        else:
            yield ok(name, where)
