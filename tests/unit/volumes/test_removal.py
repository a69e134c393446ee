"""Deleting a tree, while somebody else moves a part of it away."""

from __future__ import annotations

import os
import threading

from fusebackend.backends.directory.backend import FilesystemBackend
from fusebackend.backends.memory import InMemoryVolume


def test_what_is_moved_away_within_a_portion_is_left_alone(tmp_path, monkeypatch):
    files, saved = tmp_path / "files", tmp_path / "saved"
    (files / "tree/a/b").mkdir(parents=True)
    (files / "tree/a/b/x").write_text("x")
    backend = FilesystemBackend(files, virtual_mode=True)
    rmdir = backend.volume.rmdir

    def moving(parent, name):
        rmdir(parent, name)
        if name == b"b":
            os.rename(files / "tree/a", saved)
            (saved / "precious").write_text("precious")

    monkeypatch.setattr(backend.volume, "rmdir", moving)
    backend.delete("/tree")
    assert (saved / "precious").read_text() == "precious"
    backend.close()


def test_a_volume_may_have_a_lock_of_its_class():
    class OneLock(InMemoryVolume):
        lock = threading.RLock()

    assert OneLock().lock is OneLock().lock
