"""`Finding`: what a check has found."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

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

    def run() -> None:
        try:
            found.extend(check())
        except Exception as failure:  # a defect of a check, or of what it asks, is worth a line, not a traceback
            text = mask(" ".join(f"{type(failure).__name__}: {failure}".split()))
            found.append(error(what, f"it can't be checked: {text}", "see whether that error has a cause here"))

    thread = threading.Thread(target=run, name="fusebackend-doctor", daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    if thread.is_alive():
        return [
            error(what, f"no answer within {PATIENCE_S:.0f} s", "see whether it hangs, or the network drops packets")
        ]
    return found


def worst(findings: Iterable[Finding]) -> Verdict:
    """Return the worst verdict; `ok` of none."""
    verdicts = {each.verdict for each in findings}
    return "error" if "error" in verdicts else "warning" if "warning" in verdicts else "ok"
