"""Fixtures for work on mounts: one mount for each kind of volume, and a repository to work with."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import mounts
import pytest
import trees
from kinds import KINDS, KINDS_BY_DAY, MEMORY, SOURCES, Kind, Work
from stalling import Control
from two_faces import TwoFaces, two_faces


@pytest.fixture(scope="module", params=KINDS_BY_DAY)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Kind]]:
    """Serve one mount for all tests of a volume, with a second volume below `other`."""
    kind = KINDS[request.param]
    with mounts.of_kind(request, tmp_path_factory, kind.url, routes={"/other": "memory:"}) as server:
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
    trees.make_repository(root, SOURCES)
    return root


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 24 MiB, 4 of them taken by `ballast`. Request it before `serve`, which must end first."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a small tmpfs")
    path = tmp_path / "small"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "none", path], check=True)
    try:
        (path / "ballast").write_bytes(bytes(4 << 20))
        yield path
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


@pytest.fixture(
    scope="module",
    params=[MEMORY, "sqlite:{tmp}/volume.db"],
    ids=["memory", "sqlite"],
)
def served_faces(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoFaces]:
    """Serve one mount for all tests of a module."""
    tmp = tmp_path_factory.mktemp("faces")
    with two_faces(tmp / "mnt", request.param.format(tmp=tmp)) as faces:
        yield faces


@pytest.fixture
def faces(served_faces: TwoFaces) -> Iterator[TwoFaces]:
    """A mount with both of its faces, which is empty."""
    yield served_faces
    mounts.empty(served_faces.path)


@pytest.fixture
def stall(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Control]:
    """The control of stalling volumes. Request it before `serve`: servers find its file by the environment."""
    control = Control(tmp_path, monkeypatch)
    yield control
    control.resume()
