"""A host with a wrong clock, for `python:skewed:backend?hours=-20&url=s3%3A%2F%2F…` URLs. It holds for all its process.

Requests are still signed by the true time, or services would refuse them.
"""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import quote

import pytest

from fusebackend.base import stamps
from fusebackend.urls import open_backend

CLOCKS = (time.CLOCK_REALTIME, stamps.CLOCK_REALTIME_COARSE)


def skew(patch: pytest.MonkeyPatch, seconds: float) -> None:
    """Move every wall clock of this process by `seconds`, also the clock of file stamps."""
    true_s, true_ns, true_of, ahead_ns = time.time, time.time_ns, time.clock_gettime_ns, int(seconds * 1e9)
    patch.setattr(time, "time", lambda: true_s() + seconds)
    patch.setattr(time, "time_ns", lambda: true_ns() + ahead_ns)
    patch.setattr(time, "clock_gettime_ns", lambda clock: true_of(clock) + (ahead_ns if clock in CLOCKS else 0))
    assert stamps.now_ns() - true_ns() == pytest.approx(ahead_ns, abs=1e9), "stamps are of another clock"


def backend(hours: str, url: str) -> Any:
    skew(pytest.MonkeyPatch(), float(hours) * 3600)
    return open_backend(url)


def url_of(url: str, hours: float) -> str:
    return f"python:skewed:backend?hours={hours}&url={quote(url, safe='')}"
