"""What the kernel says of this process: its confinement. And trials in a child, which leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable


def status_of_self() -> dict[str, str]:
    """Return the fields of /proc/self/status (proc_pid_status(5))."""
    with open("/proc/self/status", encoding="utf-8", errors="replace") as file:
        lines = (line.partition(":") for line in file)
        return {name: value.strip() for name, _, value in lines}


def is_no_new_privileges() -> bool:
    """Return True if setuid programs have no effect for this process (PR_SET_NO_NEW_PRIVS)."""
    return status_of_self().get("NoNewPrivs") == "1"


def confined_by() -> str | None:
    """Return the AppArmor profile that confines this process, such as `docker-default`; None if none does."""
    for path in ("/proc/self/attr/apparmor/current", "/proc/self/attr/current"):
        with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
            said = file.read().strip("\0\n ")
            if said.endswith("(enforce)"):
                return said.removesuffix("(enforce)").strip()
    return None


def in_child(attempt: Callable[[], int]) -> int:
    """Return the error number that an attempt in a child of this process gives; 0 if it succeeds."""
    pid = os.fork()
    if pid == 0:
        number = 255
        try:
            number = attempt()
        except OSError as failure:
            number = failure.errno or 255
        finally:
            os._exit(number)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 255
