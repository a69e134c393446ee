"""The kinds of volumes in the tests of real work, with their features."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trees
from profiles import amount

from fusebackend.protocol import Features

SOURCES = amount("FUSEBACKEND_SOURCES", day=120, night=1000)
"""Files in the repository that is cloned."""


@dataclass(frozen=True)
class Kind:
    """A volume to work on: its URL (`{tmp}` is a fresh directory), and its features."""

    url: str
    features: Features = field(default_factory=Features)


FOREIGN = Features(
    random_writes=False,
    rename=False,
    links=False,
    symlinks=False,
    special_files=False,
    xattrs=False,
    persistent_modes=False,
    change_feed=False,
    durable=False,
    blocking=True,
)
"""Features of a mount of a foreign backend, with the agent face alone."""

KINDS = {
    "sqlite": Kind("sqlite:{tmp}/volume.db"),
    "memory": Kind("memory:", Features(durable=False)),
    "dir": Kind("dir:{tmp}/files"),
    "foreign": Kind("python:seed_backends:DuckBackend", FOREIGN),
}

MEMORY = pytest.param("memory:", marks=pytest.mark.night)
"""For tests on several kinds. To a program `memory:` is what `sqlite:` is; the POSIX cases run on both by day."""
KINDS_BY_DAY = [
    pytest.param(name, marks=pytest.mark.night) if name == "memory" else pytest.param(name) for name in KINDS
]
NATIVE_BY_DAY = [name for name in KINDS_BY_DAY if KINDS[str(name.values[0])].features.random_writes]


@dataclass(frozen=True)
class Work:
    """A directory on a mount, and the features of the volume below it."""

    path: Path
    features: Features

    def needs(self, *names: str) -> None:
        for name in names:
            if not getattr(self.features, name):
                pytest.skip(f"needs {name}, which this volume does not have")

    def snapshot(self, root: Path) -> dict[bytes, trees.Entry]:
        """Return a snapshot of `root`, without the attributes that this volume can't keep."""
        kept = self.features.persistent_modes
        return trees.snapshot(root, modes=kept, times=kept, xattrs=self.features.xattrs, links=self.features.links)

    def zoo(self, root: Path) -> None:
        """Make a tree of all kinds of files that this volume can keep."""
        able = self.features
        trees.make_zoo(root, links=able.links, symlinks=able.symlinks, special=able.special_files, xattrs=able.xattrs)
