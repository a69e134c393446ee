"""`follow`: the calls of a mount as they end, of a mount of this process as of another one.

It asks every half second. The end of the last call is where the next question goes on, so each call comes once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

from fusebackend.linux.mount_table import MountError
from fusebackend.protocol import ApprovalInfo, CallInfo
from fusebackend.trees.refs import begin_ns

POLLED_S = 0.5
"""Interval of the questions."""

ENDING_S = 30.0
"""A mount that ends is gone so long after its server's last answer, at most: it stores everything first."""

T = TypeVar("T")

_OF_AN_END = (ConnectionError, MountError, RuntimeError)


def follow(
    log: Callable[..., list[CallInfo]], has_ended: Callable[[], bool], since: int | str | None, **wanted: Any
) -> Iterator[CallInfo]:
    """Yield calls as they end, until the mount ends.

    Args:
        log: of the mount.
        has_ended: says if the mount has ended.
        since: first those that have ended since then; from now on when None.
        wanted: for `log`.

    Raises:
        ValueError, OSError: as `log`; the server died, and its mount is still there.
    """
    after_ns = time.time_ns() if since is None else begin_ns(since) if isinstance(since, str) else since
    return _ended(log, has_ended, after_ns, wanted)


def _ended(
    log: Callable[..., list[CallInfo]], has_ended: Callable[[], bool], after_ns: int, wanted: dict[str, Any]
) -> Iterator[CallInfo]:
    while True:
        found = until_end(partial(log, ended_after_ns=after_ns, **wanted), has_ended)
        if found is None:
            return
        for call in found:
            yield call
            after_ns = call.ended_ns or after_ns
        if not found:
            time.sleep(POLLED_S)


def new_approvals(ask: Callable[[], list[ApprovalInfo]], has_ended: Callable[[], bool]) -> Iterator[ApprovalInfo]:
    """Yield the requests that wait, and then each new one, until the mount ends. Raises as `until_end`."""
    last = 0
    while not has_ended():
        found = until_end(ask, has_ended)
        if found is None:
            return
        for each in found:
            if each.number > last and each.state == "pending":
                yield each
        last = max([last, *(each.number for each in found)])
        time.sleep(POLLED_S)


def until_end(ask: Callable[[], T], has_ended: Callable[[], bool]) -> T | None:
    """Return an answer; None if the mount has ended. Raises what `ask` raises while the mount is there."""
    try:
        return ask()
    except (OSError, RuntimeError) as error:
        until_s = time.monotonic() + ENDING_S
        # A server ends its socket first and unmounts then; the mount's table may have it a little longer.
        while isinstance(error, _OF_AN_END) and not has_ended() and time.monotonic() < until_s:
            time.sleep(POLLED_S / 10)
        if has_ended():
            return None
        raise
