"""A server of this process with everything that a mount's has, but without the kernel: no /dev/fuse is needed.

with live(tmp_path, InMemoryBackend(), views={"agent": rules}) as server:
    files = server.connect()                  # or `connect(view="agent")`
    server.volume.symlink(...)                # as the kernel would, of the default route
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import fusebackend
from fusebackend import Client
from fusebackend.backends import CompositeBackend
from fusebackend.config import MountPlan, MountSettings
from fusebackend.protocol import Volume
from fusebackend.server.assemble import LiveMount, assemble

LIMIT_S = 60.0


class Live:
    """A running server. `history` is the directory of what it keeps of calls."""

    def __init__(self, mount: LiveMount, history: Path) -> None:
        self.mount, self.history = mount, history

    @property
    def volume(self) -> Volume:
        return self.mount.filesystem.tree.routes[0].volume

    def connect(self, **options: Any) -> Client:
        return fusebackend.connect(self.mount.status()["control"]["socket"], **options)


@contextlib.contextmanager
def live(
    directory: Path,
    default: Any,
    routes: Mapping[str, Any] | None = None,
    *,
    history: bool = True,
    **settings: Any,
) -> Iterator[Live]:
    """Serve for the length of a block, in a thread; close the backends at its end.

    Args:
        history: keep one, in `served.history`.
        settings: of the mount.
    """
    kept = directory / "served.history"
    plan = MountPlan(
        mountpoint=str(directory / "served"),
        settings=MountSettings(**{"ttl_s": 1.0, "deadline_s": LIMIT_S, **settings}),
        history=str(kept) if history else None,
        is_mounted=False,
    )
    mount = assemble(CompositeBackend(default, dict(routes or {})), plan)
    ready, failures = threading.Event(), []

    def run() -> None:
        try:
            mount.run(ready.set)
        except BaseException as error:
            failures.append(error)
            ready.set()

    thread = threading.Thread(target=run, name="live")
    thread.start()
    try:
        assert ready.wait(LIMIT_S) and not failures, failures
        yield Live(mount, kept)
    finally:
        mount.stop()
        thread.join(LIMIT_S)
        for each in (default, *(routes or {}).values()):
            each.close()
    assert not failures, failures
