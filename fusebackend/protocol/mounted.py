"""Records of what only a live mount answers, in its own process (`Mount`) and through its control socket (`Client`)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class StatResult:
    """What a path is, as stat(2) tells: sizes in bytes, times in nanoseconds since 1970.

    `type` is `file`, `directory`, `symlink`, `fifo`, `socket`, `character device` or `block device`; `mode` has the
    permission bits alone. `route` is the prefix of the backend that holds it. A directory that exists only because a
    route's prefix runs through it has no times. Where there is an `error`, `code` says it as an `ErrorCode` does.
    """

    error: str | None = None
    path: str | None = None
    type: str | None = None
    size: int | None = None
    mode: int | None = None
    nlink: int | None = None
    uid: int | None = None
    gid: int | None = None
    atime_ns: int | None = None
    mtime_ns: int | None = None
    ctime_ns: int | None = None
    target: str | None = None
    route: str | None = None
    code: str | None = None


@dataclass
class StatsResult:
    """What `stats` tells: a `StatResult` for each entry of a directory, sorted by path."""

    error: str | None = None
    entries: list[StatResult] | None = None
