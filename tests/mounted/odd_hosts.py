"""Backends for hosts that are not as they should be, for `python:` URLs. The DSN is in `TWO_MOUNTS_DSN`."""

from __future__ import annotations

import os

import pytest
import skewed

from fusebackend.backends.postgres import PostgresBackend
from fusebackend.backends.postgres.feed import VolumeFeed

BEHIND_S = 3600


def open_deaf() -> PostgresBackend:
    """Never hears what others change, and believes that there is nothing to hear."""
    VolumeFeed.heard = lambda *_: None  # type: ignore[method-assign]
    return PostgresBackend(os.environ["TWO_MOUNTS_DSN"], "v")


def open_slow_clock() -> PostgresBackend:
    """Thinks that it is an hour earlier."""
    skewed.skew(pytest.MonkeyPatch(), -BEHIND_S)
    return PostgresBackend(os.environ["TWO_MOUNTS_DSN"], "v")
