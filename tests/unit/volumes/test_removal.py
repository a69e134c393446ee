"""Deleting a tree while others move things: what is told of it is about what was there."""

from __future__ import annotations

import pytest
from agentface import node_at, put

from fusebackend.backends import InMemoryBackend
from fusebackend.base.paths import normalise
from fusebackend.protocol import ROOT_NODE
from fusebackend.volumes.removal import Doomed


@pytest.fixture
def backend() -> InMemoryBackend:
    backend = InMemoryBackend()
    put(backend, "/a/b/c/file")
    return backend


def doomed(backend: InMemoryBackend) -> Doomed:
    return Doomed(node_at(backend, "/a/b"), b"c", node_at(backend, "/a/b/c"), normalise("/a/b/c"))


def test_a_directory_is_there_until_it_is_moved(backend: InMemoryBackend) -> None:
    top = doomed(backend)
    below = top.below(b"d", 99)
    assert top.is_there(backend.volume, set())
    assert not below.is_there(backend.volume, set())
    backend.volume.rename(top.parent, b"c", top.parent, b"other")
    assert not top.is_there(backend.volume, set())


@pytest.mark.parametrize(("parent", "name"), [("/", b"a"), ("/a", b"b")])
def test_it_is_not_there_when_one_above_it_was_moved(backend: InMemoryBackend, parent: str, name: bytes) -> None:
    """Its parent has it still, but under another path, and `deleted` tells of a path."""
    top = doomed(backend)
    above = ROOT_NODE if parent == "/" else node_at(backend, parent)
    backend.volume.rename(above, name, ROOT_NODE, b"elsewhere")
    assert not top.is_there(backend.volume, set())
    backend.volume.rename(ROOT_NODE, b"elsewhere", above, name)
    assert top.is_there(backend.volume, set())
