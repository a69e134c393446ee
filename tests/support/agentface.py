"""Functions that tests of the agent face share: files and names by path, nodes of a `VolumeBackend`, changes."""

from __future__ import annotations

import contextlib
import os
import stat

from together import together

from fusebackend.protocol import Caller
from fusebackend.volumes import walk

ME = Caller(os.geteuid(), os.getegid())


def node_at(backend, path):
    return walk.resolve(backend.volume, path, follow=False).found.node


def attr_at(backend, path):
    return walk.resolve(backend.volume, path, follow=False).found


def link(backend, path, target):
    place = walk.resolve(backend.volume, path, follow=False)
    return backend.volume.symlink(place.parent, place.name, target, ME)


def special(backend, path, kind=stat.S_IFIFO):
    place = walk.resolve(backend.volume, path, follow=False)
    return backend.volume.mknod(place.parent, place.name, kind | 0o644, 0, ME)


def put(backend, path, data=b"x"):
    (response,) = backend.upload_files([(path, data)])
    assert response.error is None
    return node_at(backend, path)


def get(backend, path):
    (response,) = backend.download_files([path])
    return response.content if response.error is None else response.error


def text(backend, path):
    """Download a file of text; None where there is none."""
    (response,) = backend.download_files([path])
    return None if response.content is None else response.content.decode()


def names(backend, path="/"):
    """Return the names in a directory, which must be listed without an error."""
    listing = backend.ls(path)
    assert listing.entries is not None, listing.error
    return [entry["path"].rstrip("/").rpartition("/")[2] for entry in listing.entries]


@contextlib.contextmanager
def heard(backend):
    """Collect the changes published in the block; fail if one is published with the volume's lock held."""
    changes = []

    def listen(change):
        def attempt():
            assert backend.volume.lock.acquire(timeout=5), "published with the lock held"
            backend.volume.lock.release()

        together(attempt)
        changes.append(change)

    stop = backend.volume.subscribe(listen)
    yield changes
    stop()
