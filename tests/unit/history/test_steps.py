"""`Steps`: what verbs change, recorded by their paths."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sqlite3
import threading
from dataclasses import replace

import pytest
from nodes import ME, put
from obstore.store import MemoryStore
from recorded import Recorded
from replayed import Replay, shown, tree_of
from together import together

from fusebackend.backends import CompositeBackend, FilesystemBackend, InMemoryBackend, SqliteBackend
from fusebackend.backends.object_store.remote import ObjectStoreBackend
from fusebackend.base.errors import oserror
from fusebackend.base.paths import ROOT, AgentPath
from fusebackend.history.records import stamp_of
from fusebackend.history.steps import PathLocks, Steps
from fusebackend.vfs.mounted_tree import FileSystem
from fusebackend.volumes.walk import find

DISK = AgentPath("/disk")


class Place(Recorded):
    """What verbs change is recorded, too."""

    def __init__(self, directory, default=None):
        (directory / "files").mkdir()
        self.backend = CompositeBackend(
            default or InMemoryBackend(), {"/disk/": FilesystemBackend(directory / "files", virtual_mode=True)}
        )
        super().__init__(directory, {prefix: backend.volume for prefix, backend in self.backend.mounts().items()})
        self.filesystem = FileSystem(self.volumes)
        self.recorder.routes = {route.prefix: route for route in self.filesystem.tree.routes}
        self.steps = Steps(self.recorder, self.filesystem.tree)

    def do(self, verb, *arguments, paths=None):
        kind = {"delete": "remove", "move": "move"}.get(verb, "put")
        named = paths or (arguments[:2] if verb == "move" else arguments[:1])
        return self.steps.verb(verb, kind, named, lambda: getattr(self.backend, verb)(*arguments), worked)

    def changes(self):
        """The changes of the newest call."""
        newest = self.history.calls(1)[0]
        return [(record.kind, record.prefix, record.path) for record in self.history.records(newest.number)]

    def tree(self):
        return {prefix: shown(tree_of(volume)[0]) for prefix, volume in self.volumes.items()}


def worked(answer):
    return any(each.error is None for each in (answer if isinstance(answer, list) else [answer]))


@pytest.fixture
def place(tmp_path):
    place = Place(tmp_path)
    yield place
    place.close()
    assert place.recorder.incomplete is None


VERBS = [
    (("write", "/new/dir/file", "x"), ["create", "create", "create"]),
    (("write", "/d/sub/file", "is there"), []),
    (("edit", "/d/sub/file", "one", "two"), ["content"]),
    (("edit", "/d/sub/file", "nothing", "two"), []),
    (("edit", "/link", "one", "two"), ["content"]),
    (("delete", "/d"), ["remove", "remove", "remove", "remove"]),
    (("delete", "/link"), ["remove"]),
    (("delete", "/nowhere"), []),
    (("move", "/d", "/e/f"), ["create", "rename"]),
    (("move", "/d/sub/file", "/d/sub/other"), ["rename"]),
    (("move", "/d/sub/file", "/d/empty"), []),  # it is there
    (("move", "/d/sub/file", "/disk/d/file"), ["remove", "create", "create"]),
    (("move", "/d", "/disk/d"), ["remove", "remove", "remove", "remove", "create", "create", "create", "create"]),
    (("move", "/nowhere", "/else"), []),
    (("upload_files", [("/d/sub/file", b"new"), ("/up", b"loaded"), ("/d", b"a directory")]), ["content", "create"]),
]


@pytest.mark.parametrize("arguments, kinds", VERBS, ids=[f"{verb[0]}-{n}" for n, (verb, _) in enumerate(VERBS)])
def test_a_verb(place, arguments, kinds):
    memory = place.backend.default
    memory.write("/d/sub/file", "one\n")
    memory.write("/d/empty", "")
    memory.volume.symlink(1, b"link", b"d/sub/file", __import__("fusebackend.protocol").protocol.Caller(0, 0))
    before = place.tree()
    paths = [path for path, _ in arguments[1]] if arguments[0] == "upload_files" else None
    place.do(*arguments, paths=paths)
    calls = place.history.calls()
    records = place.history.records(calls[0].number) if calls else []
    assert sorted(record.kind for record in records) == sorted(kinds)
    require_stamps(place, records)
    after = {}
    for prefix, volume in place.volumes.items():
        replay = Replay(volume, place.history, place.images.path)
        replay.back(record for record in records if record.prefix == prefix)
        after[prefix] = shown(replay.tree)
    assert after == before
    if not kinds:
        assert [name for name in os.listdir(place.images.directory) if name != "0"] == []


def test_a_verb_that_changes_nothing_beside_another_program(tmp_path):
    """Keeping the bytes is a look at the bucket, which shows the attributes of another program's file."""
    bucket = MemoryStore()
    bucket.put("file", b"one\n")
    place = Place(tmp_path, ObjectStoreBackend(bucket, ttl=60))
    with contextlib.closing(place):
        place.backend.read("/file")
        bucket.put("file", b"by another program\n")

        def refuses():
            place.backend.read("/file")
            raise oserror(errno.EIO)

        with pytest.raises(OSError):
            place.steps.verb("delete", "remove", ("/file",), refuses, worked)
        assert place.history.calls() == []


def require_stamps(place, records):
    for record in records:
        if record.kind != "remove":
            there = find(place.volumes[record.prefix], os.fsdecode(record.to_path or record.path))
            assert record.after == stamp_of(there), record


@pytest.mark.parametrize("name", ["/file", "/new", "/disk/file", "/disk/new"])
def test_a_verb_asks_the_file_of_the_history_for_nothing(place, monkeypatch, name):
    """What it has left is stamped from what it has looked at: a transaction and a query took half of an edit."""
    for path in ("/file", "/disk/file"):
        place.backend.write(path, "one\n")
    with monkeypatch.context() as patched:
        patched.setattr(place.history, "_read", lambda *_: pytest.fail("it was asked"))
        place.do(*(("write", name, "one\n") if name.endswith("new") else ("edit", name, "one", "two")))
    (call,) = place.history.calls()
    assert call.ended_ns is not None
    require_stamps(place, place.history.records(call.number))


@pytest.mark.parametrize(
    "verb", [("edit", "/disk/file", "one", "two"), ("write", "/disk/new", "x"), ("delete", "/disk/file")]
)
def test_the_record_is_in_the_file_before_the_answer_where_no_commit_of_the_volume_has_it_written(place, verb):
    place.backend.write("/disk/file", "one\n")
    place.do(*verb)
    with contextlib.closing(sqlite3.connect(place.history.path)) as others:
        assert others.execute("SELECT count(*) FROM events WHERE event = 'change'").fetchone() == (1,)


def test_what_several_verbs_have_left_is_stamped_when_their_call_ends(place):
    """The second one has no record of a file that the first one has changed."""
    with place.recorder.calls.inside("verb", "both"):
        place.do("write", "/new", "one\n")
        place.do("edit", "/new", "one", "three")
    (call,) = place.history.calls()
    require_stamps(place, place.history.records(call.number))


def test_a_change_by_another_call_meanwhile_is_a_conflict_for_both(place):
    memory = place.backend.default
    memory.write("/file", "one\n")

    def meanwhile():
        with place.files.writing("/file") as node:
            place.files.door.write(node, 4, b"kernel\n")
        return memory.edit("/file", "one", "two")

    def in_another_context():
        together(lambda: results.append(meanwhile()))
        return results[0]

    results = []
    place.steps.verb("edit", "put", ["/file"], in_another_context, worked)
    place.recorder.calls.close()
    kernel, verb = sorted(place.history.calls(), key=lambda call: call.kind)
    first, last = place.history.records(verb.number)
    (between,) = place.history.records(kernel.number)
    assert first.number < between.number < last.number
    assert last.image.place == "lost"
    require_stamps(place, [first, last])


@pytest.mark.parametrize("arguments", [("write", "/new/file", "x"), ("move", "/d/file", "/new/place")])
def test_a_commit_without_an_answer_is_recorded_once(place, arguments):
    """The names are there after the verb, which has failed; later the volume says that the records are, too."""
    memory = place.backend.default
    memory.write("/d/file", "one\n")
    place.recorder.logged = {ROOT}

    def cut_off():
        return replace(getattr(memory, arguments[0])(*arguments[1:]), error="the connection was lost")

    kind, named = ("put", ["/new/file"]) if arguments[0] == "write" else ("move", ["/d/file", "/new/place"])
    place.steps.verb(arguments[0], kind, named, cut_off, worked)
    place.history.settle(place.history.doubtful())
    assert place.changes() == [
        ("create", ROOT, b"/new"),
        ("create", ROOT, b"/new/file") if kind == "put" else ("rename", ROOT, b"/d/file"),
    ]


def committed(place):
    """What is recorded when another thread commits the default's volume: it may be a kernel's fsync."""
    found = []

    def commit():
        with place.backend.default.volume.lock:
            found.extend((each.kind, each.path) for each in place.history.records_after(0, 100))

    together(commit)
    return found


@pytest.mark.parametrize("arguments", [("write", "/new/file", "x"), ("move", "/d/file", "/new/place")])
def test_what_a_verb_has_made_is_recorded_before_a_commit_that_has_it(place, arguments):
    place.backend.default.write("/d/file", "one\n")
    before = []

    def work():
        assert committed(place) == []
        answer = getattr(place.backend, arguments[0])(*arguments[1:])
        before.extend(committed(place))
        assert committed(place) == before
        return answer

    kind, named = ("put", ["/new/file"]) if arguments[0] == "write" else ("move", ["/d/file", "/new/place"])
    place.steps.verb(arguments[0], kind, named, work, worked)
    assert before == [("create", b"/new"), ("create", b"/new/file") if kind == "put" else ("rename", b"/d/file")]
    assert [(each, path) for each, _, path in place.changes()] == before


def test_a_move_from_another_route(place):
    place.backend.write("/disk/d/file", "one\n")
    before = place.tree()
    assert place.do("move", "/disk/d", "/new/d").error is None
    made = [(kind, path) for kind, prefix, path in place.changes() if prefix == ROOT]
    assert made == [("create", b"/new"), ("create", b"/new/d"), ("create", b"/new/d/file")]
    assert place.undoing.undo().conflicts == []
    assert place.tree() == before


def test_a_move_from_another_route_that_fails_has_no_records(place, monkeypatch):
    def refused(*arguments):
        raise OSError(errno.EIO, "no")

    place.backend.write("/disk/d/file", "one\n")
    before = place.tree()
    monkeypatch.setattr(place.backend.default.volume, "rename", refused)
    assert place.do("move", "/disk/d", "/new/d").error is not None
    assert place.tree() == before
    place.recorder.calls.close()
    assert place.history.records_after(0, 100) == []


def test_a_commit_in_the_middle_of_a_verb_has_its_records(tmp_path, monkeypatch):
    """As of a file that is larger than the dirty buffer."""
    place = Place(tmp_path, SqliteBackend(str(tmp_path / "volume.db")))
    volume, found = place.backend.default.volume, []

    def before_commit():
        found.append([(each.kind, each.path) for each in place.history.records_after(0, 100)])
        return place.history.before_commit()

    def write(node, offset, data, write=volume.write):
        written = write(node, offset, data)
        volume.write_back()
        return written

    volume.before_commit = before_commit
    monkeypatch.setattr(volume, "write", write)
    assert place.do("write", "/new/file", "x").error is None
    assert found == [[("create", b"/new"), ("create", b"/new/file")]]
    volume.before_commit = None
    place.close()
    place.backend.default.close()


def test_what_a_verb_takes_back_after_a_commit_has_no_record(place, monkeypatch):
    """A file whose bytes don't fit is removed again: in between there was one, and a commit that had it."""
    memory = place.backend.default

    def no_room(node, offset, data):
        memory.volume.note_step(memory.volume._changes)  # as `SqliteVolume` does before a commit
        assert [(each.kind, each.path) for each in place.history.records_after(0, 100)] == [
            ("create", b"/new"),
            ("create", b"/new/file"),
        ]
        raise OSError(errno.ENOSPC, "there is no room")

    monkeypatch.setattr(memory.volume, "write", no_room)
    assert "no room" in place.do("write", "/new/file", "x").error
    place.recorder.calls.close()
    assert place.history.records_after(0, 100) == []


def test_what_others_make_during_a_verb_that_is_compared_is_theirs_alone(place):
    """The kernel makes the name that the verb is about to make. What the verb has made before it failed is its own."""
    disk, files = place.backend.mounts()[DISK], place.routes[DISK]

    def work():
        together(lambda: files.create("/theirs", b"kernel"))
        disk.write("/own", "x")
        return replace(disk.read("/theirs"), error="it is there")

    place.steps.verb("upload_files", "put", ["/disk/theirs", "/disk/own"], work, worked)
    place.recorder.calls.close()
    made = {call.kind: [each.path for each in place.history.records(call.number)] for call in place.history.calls()}
    assert made == {"session": [b"/theirs"], "verb": [b"/own"]}


@pytest.mark.parametrize("kind", ["put", "move"])
def test_what_others_make_during_a_verb_is_theirs_alone(place, kind):
    """The kernel makes the name that the verb is about to make, and the volume commits it."""
    memory = place.backend.default
    memory.write("/old", "one\n")
    made = [("create", b"/file")] if kind == "put" else [("rename", b"/old")]

    def kernel():
        if kind == "move":
            place.files.rename("/old", "/file")
        else:
            place.files.create("/file", b"kernel")

    def work():
        together(kernel)
        assert committed(place) == made
        return replace(memory.read("/file"), error="it is there")

    place.steps.verb(kind, kind, ["/file"] if kind == "put" else ["/old", "/file"], work, worked)
    assert committed(place) == made


def test_verbs_on_one_path_wait_for_each_other():
    locks, held = PathLocks(), threading.Event()
    with locks.held(["/b", "/a", "/a"]):
        thread = threading.Thread(target=lambda: [held.set() for _ in [0] if locks.held(["/a"]).__enter__() is None])
        thread.start()
        assert not held.wait(0.1)
        with locks.held(["/c"]):
            pass
    assert held.wait(10)
    thread.join()


def test_a_failure_to_record_hinders_no_verb(place, caplog, monkeypatch):
    monkeypatch.setattr(place.images, "keep", lambda *_: 1 / 0)
    place.backend.default.write("/file", "one\n")
    with caplog.at_level(logging.ERROR):
        assert place.do("edit", "/file", "one", "two").error is None
        assert place.do("edit", "/file", "two", "three").error is None
    assert caplog.text.count("the history is incomplete") == 1
    assert place.recorder.incomplete is not None
    place.recorder.incomplete = None


def test_a_tree_that_is_deeper_than_a_path_comes_back(place):
    """`cd` and `mkdir` again and again: 5,120 bytes. Its deletion was made, and not recorded."""
    volume, parent = place.volumes[AgentPath("/")], 1
    for _ in range(20):
        parent = volume.mkdir(parent, b"d" * 255, 0o755, ME).node
    before = place.tree()
    place.do("delete", f"/{'d' * 255}")
    assert place.tree() != before
    assert place.undoing.undo().conflicts == []
    assert place.tree() == before


@pytest.mark.parametrize("prefix", ["/", DISK])
def test_names_of_one_file_in_a_removed_tree_are_of_one_again(place, prefix):
    """One of them is outside of the tree, or none."""
    volume, at = place.volumes[AgentPath(prefix)], "" if prefix == "/" else prefix
    top = volume.mkdir(1, b"tree", 0o755, ME).node
    for first, others in ((b"a", [(top, b"b"), (top, b"c")]), (b"d", [(top, b"e"), (1, b"outside")])):
        node = put(volume, first, b"bytes", top)
        for parent, name in others:
            volume.link(node, parent, name)
    before = shown(tree_of(volume)[0])
    place.do("delete", f"{at}/tree")
    assert b"/tree" not in tree_of(volume)[0]
    undone = place.undoing.undo()
    assert (undone.conflicts, undone.partly) == ([], [])
    tree, _ = tree_of(volume)
    assert shown(tree) == before
    assert tree[b"/tree/a"] is tree[b"/tree/b"] is tree[b"/tree/c"]
    assert tree[b"/tree/d"] is tree[b"/tree/e"] is tree[b"/outside"]
