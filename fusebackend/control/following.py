"""`FollowedMount`: what a mount of this process and a client have in common: the calls of a mount as they end, and the
requests for approvals as they come.

It asks every half second. The end of the last call is where the next question goes on, so each call comes once.
"""

from __future__ import annotations

import abc
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from fusebackend.linux.mount_table import MountError
from fusebackend.protocol import ApprovalInfo, CallInfo, ExecuteResponse, MountProtocol
from fusebackend.trees.refs import begin_ns

POLLED_S = 0.5
"""Interval of the questions."""

ENDING_S = 30.0
"""A mount that ends is gone so long after its server's last answer, at most: it stores everything first."""

T = TypeVar("T")

_OF_AN_END = (ConnectionError, MountError, RuntimeError)


class FollowedMount(MountProtocol):
    """See the module's docstring."""

    @property
    def id(self) -> str:
        return f"fusebackend:{self.mountpoint}"

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        return self.run(command, timeout=timeout)

    @abc.abstractmethod
    def has_ended(self) -> bool:
        """Return True if the mount is gone."""

    def follow_log(
        self, *, by: str | None = None, paths: Sequence[str] = (), since: int | str | None = None
    ) -> Iterator[CallInfo]:
        """Yield calls as they end, from now on, until the mount ends.

        Args:
            by, paths: as of `log`.
            since: first those that have ended since then.

        Raises:
            ValueError, OSError: as `log`; the server died, and its mount is still there.
        """
        after_ns = time.time_ns() if since is None else begin_ns(since) if isinstance(since, str) else since
        self.log(by=by, paths=paths, limit=1)  # an error is the caller's, not that of the first step
        return _ended(self.log, self.has_ended, after_ns, {"by": by, "paths": paths})

    def follow_approvals(self) -> Iterator[ApprovalInfo]:
        """Yield the requests that wait, and each new one, until the mount ends. Raises as `until_end`."""
        last = 0
        while not self.has_ended():
            found = until_end(self.approvals, self.has_ended)
            if found is None:
                return
            for each in found:
                if each.number > last and each.state == "pending":
                    yield each
            last = max([last, *(each.number for each in found)])
            time.sleep(POLLED_S)


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
