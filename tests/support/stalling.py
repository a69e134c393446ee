"""A backend in memory with calls that a test can hang, for `python:stalling:backend` URLs.

The file in `FUSEBACKEND_TEST_STALL` controls it: `hang` blocks calls until the file changes, `hang read 4096` those of
this name with this number among their arguments; without the file, calls take no time. The volume's lock is released
meanwhile, as in a volume that waits for a network.

    with control(tmp_path, monkeypatch) as stall:
        serve("memory:", routes={"/hung": "python:stalling:backend"})
        stall.hang()
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fusebackend.backends.memory import InMemoryVolume
from fusebackend.volumes.agent_face import VolumeBackend

VARIABLE = "FUSEBACKEND_TEST_STALL"

CALLS = frozenset({
    "lookup", "readdir", "mknod", "mkdir", "symlink", "link", "unlink", "rmdir", "rename", "getattr", "setattr",
    "readlink", "getxattr", "setxattr", "listxattr", "xattrs", "removexattr", "create", "open", "read", "peek", "write",
    "fsync", "release", "statfs", "sync",
})  # fmt: skip


class StallingVolume(InMemoryVolume):
    """See the module's docstring."""

    features = replace(InMemoryVolume.features, blocking=True)

    def __init__(self) -> None:
        super().__init__()
        self.inside = threading.local()

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        return partial(self.stalled, found) if name in CALLS else found

    def stalled(self, call: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(self.inside, "call", False):
            return call(*args, **kwargs)
        self.inside.call = True
        try:
            self.stall(call.__name__, args)
            return call(*args, **kwargs)
        finally:
            self.inside.call = False

    def stall(self, name: str, args: tuple[Any, ...]) -> None:
        lock: Any = self.lock
        held = lock._release_save() if lock._is_owned() else None  # as threading.Condition does
        try:
            while is_hung(said_to(), name, args):
                time.sleep(0.01)
        finally:
            if held is not None:
                lock._acquire_restore(held)


def said_to() -> str:
    try:
        return Path(os.environ[VARIABLE]).read_text()
    except (FileNotFoundError, KeyError):
        return ""


def is_hung(said: str, name: str, args: tuple[Any, ...]) -> bool:
    what, *which = said.split() or [""]
    return what == "hang" and (not which or (name == which[0] and int(which[1]) in args))


def backend() -> VolumeBackend:
    return VolumeBackend(StallingVolume())


class Control:
    """Controls the volumes of the servers that a test starts from now on."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._file = directory / "stall"
        monkeypatch.setenv(VARIABLE, str(self._file))

    def hang(self, name: str = "", argument: int = 0) -> None:
        """Let calls hang: all, or those of a name with this number among their arguments."""
        self._say(f"hang {name} {argument}" if name else "hang")

    def resume(self) -> None:
        self._file.unlink(missing_ok=True)

    def _say(self, what: str) -> None:
        whole = self._file.with_suffix(".new")
        whole.write_text(what)
        whole.replace(self._file)
