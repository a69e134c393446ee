"""A backend with a kernel face that fails on command, for `python:faulty:backend` URLs.

Looking up `arm-METHOD-…` makes each later call of that method of the volume raise a `RuntimeError`, as no volume may;
looking up `disarm-…` ends that.
"""

from __future__ import annotations

from typing import Any

from fusebackend.backends.memory import InMemoryVolume
from fusebackend.volumes.agent_face import VolumeBackend

INNOCENT = ("lock", "features", "subscribe", "publish", "sync", "close", "lookup")


class FaultyVolume(InMemoryVolume):
    """See the module's docstring."""

    armed: str | None = None

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name == object.__getattribute__(self, "armed") and name not in INNOCENT:
            return _fail
        return found

    def lookup(self, parent: int, name: bytes) -> Any:
        if name.startswith(b"arm-"):
            self.armed = name.split(b"-")[1].decode()
        elif name.startswith(b"disarm-"):
            self.armed = None
        elif self.armed == "lookup":
            _fail()
        return super().lookup(parent, name)


def _fail(*arguments: object) -> None:
    raise RuntimeError("injected")


def backend() -> VolumeBackend:
    return VolumeBackend(FaultyVolume())
