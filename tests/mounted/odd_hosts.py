"""Backends for faulty hosts, for `python:` URLs. The DSN is in `TWO_MOUNTS_DSN`."""

from __future__ import annotations

import os

import pytest
import skewed

from fusebackend.backends.postgres import PostgresBackend
from fusebackend.backends.postgres.feed import VolumeFeed

BEHIND_S = 3600


def open_deaf() -> PostgresBackend:
    """Open a backend that drops every notification of the change feed, without an error."""
    VolumeFeed.heard = lambda *_: None  # type: ignore[method-assign]
    return PostgresBackend(os.environ["TWO_MOUNTS_DSN"], "v")


def open_slow_clock() -> PostgresBackend:
    """Open a backend in a process with a clock that is an hour slow."""
    skewed.skew(pytest.MonkeyPatch(), -BEHIND_S)
    return PostgresBackend(os.environ["TWO_MOUNTS_DSN"], "v")
