"""What is below a directory, and what is at a path."""

from __future__ import annotations

import pytest

from fusebackend.backends.memory import InMemoryBackend
from fusebackend.protocol import ROOT_NODE, Caller
from fusebackend.volumes.walk import below, find


@pytest.fixture
def backend() -> InMemoryBackend:
    backend = InMemoryBackend()
    for path in ("/a/b/c.txt", "/a/d.txt", "/e.txt"):
        backend.write(path, path)
    backend.volume.symlink(ROOT_NODE, b"out", b"/elsewhere", Caller(0, 0, 0))
    backend.volume.symlink(ROOT_NODE, b"loop", b"loop", Caller(0, 0, 0))
    return backend


def test_a_directory_comes_before_what_is_in_it(backend: InMemoryBackend) -> None:
    found = [path for path, _ in below(backend.volume, ROOT_NODE)]
    assert sorted(found) == [b"/a", b"/a/b", b"/a/b/c.txt", b"/a/d.txt", b"/e.txt", b"/loop", b"/out"]
    assert all(path.rpartition(b"/")[0] in (b"", *found[:number]) for number, path in enumerate(found))


def test_paths_begin_where_the_walk_does(backend: InMemoryBackend) -> None:
    top = find(backend.volume, "/a")
    assert {path for path, _ in below(backend.volume, top.node, b"/x")} == {b"/x/b", b"/x/b/c.txt", b"/x/d.txt"}


def test_what_is_listed_may_be_removed(backend: InMemoryBackend) -> None:
    for path, attr in below(backend.volume, ROOT_NODE):
        if not attr.is_dir:
            assert backend.delete(path.decode()).error is None
    assert [path for path, _ in below(backend.volume, ROOT_NODE)] == [b"/a", b"/a/b"]


def test_a_listing_that_fails_is_an_error_or_is_passed_over(backend: InMemoryBackend) -> None:
    found = below(backend.volume, ROOT_NODE, passing=(OSError,))
    more = below(backend.volume, ROOT_NODE)
    assert {next(found)[0], next(more)[0]} == {b"/a"}
    assert backend.delete("/a").error is None
    assert b"/e.txt" in {path for path, _ in found}
    with pytest.raises(OSError, match="Stale"):
        list(more)


def test_where_nothing_is(backend: InMemoryBackend) -> None:
    volume = backend.volume
    assert [find(volume, path) for path in ("/f", "/f/g", "/e.txt/h", "/out/x", "/loop/x")] == [None] * 5
    link, file = find(volume, "/out"), find(volume, "/e.txt")
    assert link is not None and link.mode & 0o170000 == 0o120000
    assert file is not None and file.size == 6
