"""`Finding`: a verdict, why, and the mend; a check that fails is one, too. And what checks ask: what the kernel says of
this process, and trials in a child."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from fusebackend.base.deadline import GivenUp, within
from fusebackend.base.lines import split_lines
from fusebackend.linux import proc
from fusebackend.protocol.scheme import mask

Verdict: TypeAlias = Literal["ok", "warning", "error"]

PATIENCE_S = 20.0
"""How long a check may take."""


@dataclass(frozen=True)
class Finding:
    """One line of a diagnosis.

    Attributes:
        what: the thing that was looked at, such as `/dev/fuse`.
        verdict: `error` if mounts, or the routes of a configuration, can't work; `warning` if a part of it can't.
        why: what was found.
        mend: a command, or what is to be changed; empty where all is well.
    """

    what: str
    verdict: Verdict
    why: str
    mend: str = ""


Check: TypeAlias = Callable[[], Iterable[Finding]]


def ok(what: str, why: str) -> Finding:
    return Finding(what, "ok", why)


def warning(what: str, why: str, mend: str) -> Finding:
    return Finding(what, "warning", why, mend)


def error(what: str, why: str, mend: str) -> Finding:
    return Finding(what, "error", why, mend)


def found_by(what: str, check: Check) -> list[Finding]:
    """Run a check, and return what it finds. One that fails, or takes too long, is an error of its own.

    Args:
        what: what the check looks at.
    """
    found: list[Finding] = []

    try:
        within(PATIENCE_S, lambda: found.extend(check()))
    except GivenUp:
        return [
            error(what, f"no answer within {PATIENCE_S:.0f} s", "see whether it hangs, or the network drops packets")
        ]
    except Exception as failure:  # a defect of a check, or of what it asks, is worth a line, not a traceback
        text = mask(" ".join(f"{type(failure).__name__}: {failure}".split()))
        found.append(error(what, f"it can't be checked: {text}", "see whether that error has a cause here"))
    return found


def worst(findings: Iterable[Finding]) -> Verdict:
    """Return the worst verdict; `ok` of none."""
    verdicts = {each.verdict for each in findings}
    return "error" if "error" in verdicts else "warning" if "warning" in verdicts else "ok"


# -- process ----------------------------------------------------------------------------------------------------
#
# What the kernel says of this process: its confinement. And trials in a child, which leaves nothing behind.


def status_of_self() -> dict[str, str]:
    """Return the fields of /proc/self/status (proc_pid_status(5))."""
    lines = (line.partition(":") for line in split_lines(os.fsdecode(proc.read("self/status"))))
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
