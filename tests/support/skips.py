"""Skipped tests fail in CI, unless the reason lies in the volume or backend under test.

A machine without a program, a service or a package skips its tests, and CI would be green without them: with `CI` set,
such a skip is a failure. CI allows skips for features that a volume or backend does not declare, for numbers of another
processor, for what the machine's kernel or file system does not have, and for tests that need root where the user is
not root.

Commands in a mount run in a sandbox, and many tests have one. Where the machine lets bubblewrap make none (in a chroot,
or where plain users may not make user namespaces) a test that fails for that is skipped.
"""

from __future__ import annotations

import functools
import os
import re

import pytest

from fusebackend.shell import bubblewrap

ALLOWED = re.compile(
    r"does not declare|is not declared here|which this volume does not have|a verb is missing|: no \w+$|: can't$"
    r"|: the numbers are those of|\bthis (?:kernel|file system) (?:has|gives) no\b|\broot\b"
)

HINT = "Is it in scripts/bootstrap, or among the extras of `dev`?"


NO_SANDBOX = re.compile(r"\bbubblewrap\b|can't have a mount namespace of its own")
"""What a failure says, also where pytest has cut it."""


@functools.cache
def sandbox_refused() -> str | None:
    """Why no sandbox can be made on this machine, in the words of an answer to `execute`; None if one can."""
    try:
        bubblewrap.user_namespace("bwrap")
    except bubblewrap.SandboxError as refused:
        return str(refused)
    return None


def need_sandbox() -> None:
    """Skip the test where no sandbox can be made, and its failure would not say so."""
    if (refused := sandbox_refused()) is not None:
        pytest.skip(refused)


def judged(report: pytest.TestReport | pytest.CollectReport) -> pytest.TestReport | pytest.CollectReport:
    """Turn a skip that CI does not allow into a failure, in the report of a test or of a module's collection.

    The cases of a test that were skipped (`fusebackend.testing.each`) are judged like tests.
    """
    from fusebackend.testing import each  # not above: `conftest.py` has its asserts rewritten first

    reasons = [f"Skipped: {reason}" for reason in each.skipped]  # the form of a report
    each.skipped.clear()
    if report.failed and NO_SANDBOX.search(str(report.longrepr)) and (refused := sandbox_refused()) is not None:
        report.outcome, report.longrepr = "skipped", (report.nodeid, 0, f"Skipped: {refused}")
    if report.skipped and not hasattr(report, "wasxfail"):
        reasons.append(str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr))
    for reason in reasons:
        if os.environ.get("CI") and not report.failed and ALLOWED.search(reason) is None:
            report.outcome = "failed"
            report.longrepr = f"CI must not skip this. {reason}\n{HINT}"
    return report
