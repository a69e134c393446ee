"""Skipped tests fail in CI, unless the reason lies in the volume or backend under test.

A machine without a program, a service or a package skips its tests, and CI would be green without them: with `CI` set,
such a skip is a failure. CI allows skips for features that a volume or backend does not declare, for numbers of another
processor, and for tests that need root where the user is not root.
"""

from __future__ import annotations

import os
import re

import pytest

ALLOWED = re.compile(
    r"does not declare|is not declared here|which this volume does not have|a verb is missing|: no \w+$|: can't$"
    r"|: thousands of requests|: the numbers are those of|\broot\b"
)


def judged(report: pytest.TestReport | pytest.CollectReport) -> pytest.TestReport | pytest.CollectReport:
    """Turn a skip that CI does not allow into a failure, in the report of a test or of a module's collection."""
    if not report.skipped or hasattr(report, "wasxfail") or not os.environ.get("CI"):
        return report
    reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
    if ALLOWED.search(reason) is None:
        report.outcome = "failed"
        report.longrepr = f"CI must not skip this. {reason}\nIs it in scripts/bootstrap, or among the extras of `dev`?"
    return report
