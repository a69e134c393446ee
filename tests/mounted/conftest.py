"""Fixtures for work on mounts: one mount for each kind of volume, and a repository to work with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import mounts
import pytest
import trees
from kinds import KINDS, SOURCES, Kind, Work

KINDS_BY_DAY = [
    pytest.param(name, marks=pytest.mark.night) if name == "memory" else pytest.param(name) for name in KINDS
]
"""To a program, `memory:` is what `sqlite:` is."""


@pytest.fixture(scope="module", params=KINDS_BY_DAY)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Kind]]:
    """Serve one mount for all tests of a volume, with a second volume below `other`."""
    kind = KINDS[request.param]
    tmp = tmp_path_factory.mktemp(request.param)
    (tmp / "files").mkdir()
    with mounts.mounted(tmp / "mnt", kind.url.format(tmp=tmp), routes={"/other": "memory:"}) as server:
        yield server.path, kind


@pytest.fixture
def work(server: tuple[Path, Kind], request: pytest.FixtureRequest) -> Work:
    path, kind = server
    directory = path / request.node.originalname
    directory.mkdir()
    return Work(directory, kind.features)


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a git repository of `SOURCES` files, on a plain directory."""
    root = tmp_path_factory.mktemp("sources")
    trees.make_sources(root, SOURCES)
    trees.git(root, "init", "--quiet", "--initial-branch=main")
    trees.git(root, "add", ".")
    trees.git(root, "commit", "--quiet", "--message=sources")
    return root
