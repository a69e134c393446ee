"""Skipped tests fail in CI, unless the reason lies in the volume or backend under test.

A machine without a program, a service or a package skips its tests, and CI would be green without them: with `CI` set,
such a skip is a failure. CI allows skips for features that a volume or backend does not declare, for numbers of another
processor, for what the machine's kernel or file system does not have, and for tests that need root where the user is
not root.
"""

from __future__ import annotations

import os
import re

import pytest

ALLOWED = re.compile(
    r"does not declare|is not declared here|which this volume does not have|a verb is missing|: no \w+$|: can't$"
    r"|: the numbers are those of|\bthis (?:kernel|file system) (?:has|gives) no\b|\broot\b"
)

HINT = "Is it in scripts/bootstrap, or among the extras of `dev`?"


def judged(report: pytest.TestReport | pytest.CollectReport) -> pytest.TestReport | pytest.CollectReport:
    """Turn a skip that CI does not allow into a failure, in the report of a test or of a module's collection.

    The cases of a test that were skipped (`fusebackend.testing.each`) are judged like tests.
    """
    from fusebackend.testing import each  # not above: `conftest.py` has its asserts rewritten first

    reasons = [f"Skipped: {reason}" for reason in each.skipped]  # the form of a report
    each.skipped.clear()
    if report.skipped and not hasattr(report, "wasxfail"):
        reasons.append(str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr))
    for reason in reasons:
        if os.environ.get("CI") and not report.failed and ALLOWED.search(reason) is None:
            report.outcome = "failed"
            report.longrepr = f"CI must not skip this. {reason}\n{HINT}"
    return report
