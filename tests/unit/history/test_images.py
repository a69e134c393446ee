"""`Images`: bytes before a change, in snapshots or copies, within bounds."""

from __future__ import annotations

import os
from collections import namedtuple
from types import SimpleNamespace

import pytest

from fusebackend.backends import FilesystemBackend, InMemoryBackend
from fusebackend.history import images as module
from fusebackend.history.images import Images
from fusebackend.history.records import Image
from fusebackend.trees.automatic import is_automatic, name_at
from fusebackend.volumes.walk import resolve

NAMES = [name_at(number * 10**6) for number in range(1, 9)]


@pytest.fixture
def memory():
    with InMemoryBackend() as backend:
        backend.write("/file", "old")
        yield backend


@pytest.fixture
def images(tmp_path, monkeypatch):
    """Of which each copy is a file."""
    monkeypatch.setattr(module, "RECORD_BYTES", 0)
    return Images(str(tmp_path), lambda: NAMES[-1], is_automatic)


def attr(backend, path="/file"):
    return resolve(backend.volume, path).found


def content(images, image):
    with open(images.path(image), "rb") as file:
        return file.read()


def test_a_copy_without_a_snapshot(memory, images):
    image = images.keep(memory.volume, attr(memory))
    assert image.place == "file"
    assert content(images, image) == b"old"
    assert os.stat(images.path(image)).st_mode & 0o777 == 0o600
    assert images.size_bytes > 0
    images.remove(image)
    assert images.size_bytes == 0
    assert not os.path.exists(images.path(image))


def test_small_files_are_in_their_records(memory, images, monkeypatch):
    monkeypatch.setattr(module, "RECORD_BYTES", 3)
    memory.write("/empty", "")
    memory.write("/longer", "four")
    found = [images.keep(memory.volume, attr(memory, path)) for path in ("/file", "/empty", "/longer")]
    assert [(each.place, each.data) for each in found] == [("file", b"old"), ("file", b""), ("file", None)]
    monkeypatch.setattr(module, "MAX_BYTES", images.size_bytes - 1)
    assert images.is_too_much()
    images.remove(found[0])
    assert not images.is_too_much()
    grown = attr(memory)
    memory.edit("/file", "old", "older")
    assert images.keep(memory.volume, grown).data is None


def test_a_snapshot_has_what_did_not_change_since(memory, images):
    memory.volume.take_snapshot(NAMES[0])
    assert images.keep(memory.volume, attr(memory)) == Image("snapshot", NAMES[0], attr(memory).node)
    memory.edit("/file", "old", "new")
    image = images.keep(memory.volume, attr(memory))
    assert (image.place, content(images, image)) == ("file", b"new")
    memory.volume.take_snapshot("mine")  # by somebody, who may give the name to another one
    assert images.keep(memory.volume, attr(memory)).place == "file"
    memory.write("/late", "x")
    memory.volume.take_snapshot(NAMES[1])
    assert images.keep(memory.volume, attr(memory, "/late")).name == NAMES[1]


def test_each_change_in_a_tick_of_the_clock_counts(memory, images):
    for name in NAMES[:-1]:
        memory.volume.take_snapshot(name)
        memory.edit("/file", "old", "new")
        image = images.keep(memory.volume, attr(memory))
        assert (image.place, content(images, image)) == ("file", b"new")
        memory.edit("/file", "new", "old")


def test_a_large_file_is_in_a_snapshot_that_is_taken_for_it(memory, images, monkeypatch):
    monkeypatch.setattr(module, "COPIED_BYTES", 2)
    image = images.keep(memory.volume, attr(memory))
    assert image == Image("snapshot", NAMES[-1], attr(memory).node)
    assert [each.name for each in memory.volume.snapshots()] == [NAMES[-1]]


def test_a_larger_one_shares_its_blocks_or_is_lost(tmp_path, images, monkeypatch):
    """The clone is a stand-in; `mounted/test_undo.py` has a real one."""
    (tmp_path / "files").mkdir()
    with FilesystemBackend(tmp_path / "files", virtual_mode=True) as backend:
        backend.write("/file", "long enough")
        monkeypatch.setattr(module, "MAX_FILE_BYTES", 4)
        monkeypatch.setattr(type(backend.volume), "clone_to", lambda *_: False)
        assert images.keep(backend.volume, attr(backend)).place == "lost"
        assert [name for name in os.listdir(images.directory) if name != "0"] == []
        assert images.size_bytes == 0

        monkeypatch.setattr(type(backend.volume), "clone_to", lambda _, node, file: os.write(file, b"long enough") > 0)
        image = images.keep(backend.volume, attr(backend))
        assert (image.place, content(images, image)) == ("file", b"long enough")
        monkeypatch.setattr(module, "MAX_BYTES", images.size_bytes + 9)
        assert not images.is_too_much()
        assert images.keep(backend.volume, attr(backend)).place == "lost"


def test_holes_are_not_copied(tmp_path, images):
    (tmp_path / "files").mkdir()
    with FilesystemBackend(tmp_path / "files", virtual_mode=True) as backend:
        with open(tmp_path / "files/sparse", "wb") as file:
            file.truncate(32 << 20)
            file.seek(8 << 20)
            file.write(b"data")
        image = images.keep(backend.volume, attr(backend, "/sparse"))
        assert content(images, image) == (tmp_path / "files/sparse").read_bytes()
        assert os.stat(images.path(image)).st_blocks * 512 < 4 << 20


def test_a_slow_read_is_given_up(memory, images, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE_S", -1.0)
    image = images.keep(memory.volume, attr(memory))
    assert image.place == "lost"
    assert "not read within" in image.name
    assert os.listdir(images.directory) == []


def test_copies_have_a_bound(memory, images, monkeypatch):
    images.keep(memory.volume, attr(memory))
    assert not images.is_too_much()
    monkeypatch.setattr(module, "MAX_BYTES", 1)
    assert images.is_too_much()
    assert images.keep(memory.volume, attr(memory)).name == "the history has as many bytes as it may"
    disk = namedtuple("Disk", "f_bavail f_blocks f_frsize")(4, 100, 4096)
    monkeypatch.setattr(os, "statvfs", lambda path: disk)
    assert images.is_too_much()
    assert images.keep(memory.volume, attr(memory)).name == "the disk of the history is nearly full"


def test_what_no_record_needs_goes(memory, images, tmp_path):
    first, second = images.keep(memory.volume, attr(memory)), images.keep(memory.volume, attr(memory))
    below = images.next_number()
    third = images.keep(memory.volume, attr(memory))
    images.clean(SimpleNamespace(images=lambda place: {second.name}, image_bytes=0), below)
    assert [os.path.exists(images.path(each)) for each in (first, second, third)] == [False, True, True]
    again = Images(str(tmp_path))
    assert again.size_bytes == images.size_bytes
    assert int(again.keep(memory.volume, attr(memory)).name) > int(third.name)
