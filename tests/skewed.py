"""A host whose clock is wrong, for `python:skewed:backend?hours=-20&url=s3%3A%2F%2F…` URLs: all of its process.

What signs requests does so by the true time: no service would take them otherwise.
"""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import quote

from fusebackend.urls import open_backend


def backend(hours: str, url: str) -> Any:
    seconds, true_s, true_ns = float(hours) * 3600, time.time, time.time_ns
    time.time = lambda: true_s() + seconds
    time.time_ns = lambda: true_ns() + int(seconds * 1e9)
    return open_backend(url)


def url_of(url: str, hours: float) -> str:
    return f"python:skewed:backend?hours={hours}&url={quote(url, safe='')}"
