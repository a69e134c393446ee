"""The kernel face of a `StoreBackend`: what others change shows, and what they change meanwhile is not overwritten."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from functools import partial
from types import SimpleNamespace

import pytest
import stores
from clocks import Clock
from ears import Ear
from eventually import eventually
from hypothesis import settings
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore
from nodes import ME, names, node_at, whole
from profiles import examples
from stores import NS, before_its_change
from test_foreign import Derived, ForeignMachine
from together import together

from fusebackend.backends import (
    CompositeBackend,
    ForeignVolume,
    InMemoryBackend,
    StoreBackend,
    VolumeBackend,
    volume_of,
)
from fusebackend.backends.store import searched_items as searched
from fusebackend.protocol import ROOT_NODE, AttrChanges, Change
from fusebackend.testing.by_path import at, write
from fusebackend.testing.posix.case import refused
from fusebackend.volumes.contents import opened

RW = os.O_RDWR


@pytest.mark.configuration
class TestSqliteStore(Derived):
    @pytest.fixture
    def backend(self, tmp_path):
        with SqliteStore.from_conn_string(str(tmp_path / "x.db")) as store, StoreBackend(store) as backend:
            yield VolumeBackend(ForeignVolume(backend))


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(searched, "time", SimpleNamespace(monotonic=clock))
    return clock


@pytest.fixture
def volume(backend, clock):
    return ForeignVolume(backend, clock=clock)


@pytest.fixture
def other(store):
    """Another program: a backend of its own over the same store."""
    with stores.other_program(store, NS, on_exists="replace") as backend:
        yield backend


def content(volume, path):
    return whole(volume, node_at(volume, path))


# -- who is told what ------------------------------------------------------------------------------------------


def test_what_a_store_can_do_is_what_its_volume_says(backend, store, volume):
    features = volume.features
    assert features.blocking == features.durable == (not isinstance(store, InMemoryStore))
    assert features.change_feed == (type(store).__name__ == "PostgresStore")
    assert not features.random_writes and not features.read_only


@contextlib.contextmanager
def hearing(volume):
    """What a volume tells its subscribers."""
    ear = Ear()
    stop = volume.subscribe(ear)
    yield ear
    stop()


def test_a_change_by_another_program_shows(volume, other, clock):
    """At once where the store tells that something has changed, else when a listing has had its time."""
    other.write("/dir/a", "one")
    assert content(volume, "/dir/a") == b"one"
    directory, file = node_at(volume, "/dir"), node_at(volume, "/dir/a")
    with hearing(volume) as ear:

        def passes(*wanted):
            if volume.features.change_feed:
                for change in wanted:
                    ear.until(change)
            clock.now += 0 if volume.features.durable else 2

        other.write("/dir/a", "two and more")
        passes(Change(node=file, parent=directory, name=b"a"))
        assert at(volume, b"dir/a").size == 12
        assert content(volume, "/dir/a") == b"two and more"
        other.write("/dir/b", "new")
        passes(Change(parent=directory, name=b"b"))
        assert names(volume, directory) == [b"a", b"b"]
        other.delete("/dir")
        passes(Change(node=directory, parent=ROOT_NODE, name=b"dir"))
        refused(errno.ENOENT, at, volume, b"dir/a")


def test_a_change_through_the_same_backend_is_told_at_once(volume, backend):
    backend.write("/a", "one")
    node = node_at(volume, "/a")
    with hearing(volume) as ear:
        backend.edit("/a", "one", "two")
        backend.upload_files([("/b", b""), ("/c", b"")])
        backend.move("/b", "/d")
        backend.delete("/c")
        told = list(ear.heard)
    for change in (
        Change(node=node, parent=ROOT_NODE, name=b"a"),
        *(Change(parent=ROOT_NODE, name=n) for n in (b"b", b"c", b"d")),
    ):
        assert change in told
    assert content(volume, "/a") == b"two"
    assert names(volume) == [b"a", b"d"]


def test_a_change_through_any_backend_of_this_process_is_told_at_once(volume, store):
    """The agent's own backend need not be the one that is mounted, if it is over the same store."""
    with StoreBackend(store, namespace=NS) as agents, hearing(volume) as ear:
        agents.write("/a", "x")
        assert Change(parent=ROOT_NODE, name=b"a") in ear.heard
        assert content(volume, "/a") == b"x"


def test_two_mounts_of_one_namespace_show_each_others_changes(store):
    """Neither waits for the other while it changes something: that could be for ever."""
    with StoreBackend(store, namespace=NS) as one, StoreBackend(store, namespace=NS) as two:
        first, second = volume_of(one), volume_of(two)
        assert first is not second
        with hearing(second) as ear:
            assert names(second) == []
            write(first, b"a", b"text")
            if second.features.change_feed:
                ear.until(Change(parent=ROOT_NODE, name=b"a"))
            else:
                assert ear.heard == []
            eventually(lambda: names(second) == [b"a"], 10)  # one is believed for some times as long as it took
            assert content(second, "/a") == b"text"


def test_two_mounts_that_change_at_once_do_not_wait_for_each_other(store):
    with StoreBackend(store, namespace=NS) as one, StoreBackend(store, namespace=NS) as two:
        volumes = [volume_of(one), volume_of(two)]

        def work(volume, name):
            with hearing(volume):
                for _ in range(10):
                    write(volume, name, name)
                    volume.unlink(ROOT_NODE, name)

        together(*(partial(work, volume, name) for volume, name in zip(volumes, (b"a", b"b"), strict=True)))


def test_what_the_mount_itself_does_is_not_told_to_it(volume, backend):
    with hearing(volume) as ear:
        write(volume, b"a", b"text")
        volume.rename(ROOT_NODE, b"a", ROOT_NODE, b"b")
        volume.unlink(ROOT_NODE, b"b")
        assert ear.heard == []
    assert backend.ls("/").entries == []


def test_what_the_mount_does_makes_no_listing_old(store, volume):
    """Else each file of many in one directory would have it listed anew."""
    directory = volume.mkdir(ROOT_NODE, b"dir", 0o755, ME).node
    for name in (b"a", b"b", b"c"):
        volume.mknod(directory, name, stat.S_IFREG | 0o644, 0, ME)
    listed = []
    ls = volume.remote.contents
    volume.remote.contents = lambda key: (listed.append(key), ls(key))[1]
    for name in (b"a", b"b", b"c", b"d"):
        if name == b"d":
            volume.mknod(directory, name, stat.S_IFREG | 0o644, 0, ME)
        volume.lookup(directory, name)
    assert listed == []


def test_a_value_that_is_no_file_can_only_be_read(store, volume):
    store.put(NS, "prefs", {"theme": "dark"})
    assert stat.S_IMODE(at(volume, b"prefs.json").mode) == 0o444
    assert b'"theme": "dark"' in content(volume, "/prefs.json")
    refused(errno.EACCES, write, volume, b"prefs.json", b"{}")
    volume.expire()
    refused(errno.EACCES, volume.unlink, ROOT_NODE, b"prefs.json")
    refused(errno.EACCES, volume.rename, ROOT_NODE, b"prefs.json", ROOT_NODE, b"x.json")
    assert store.get(NS, "prefs").value == {"theme": "dark"}


def test_a_value_that_is_no_file_moves_nowhere(backend, store):
    composite = CompositeBackend(InMemoryBackend(), {"/m": backend})
    store.put(NS, "/d/prefs", {"theme": "dark"})
    store.put(NS, "/d/file", {"content": "x", "encoding": "utf-8"})
    for source in ("/m/d/prefs.json", "/m/d"):
        assert "Permission denied" in composite.move(source, "/elsewhere").error
        assert composite.ls("/").entries == [{"path": "/m/", "is_dir": True, "size": 0, "modified_at": ""}]
    assert composite.move("/m/d/file", "/elsewhere").error is None
    assert [item.key for item in store.search(NS)] == ["/d/prefs"]


def test_a_file_that_is_a_directory_too_outlives_the_directory(store, volume):
    """The directory's last file goes, and the file gets its name back: removing the directory must not take it."""
    for key in ("/a", "/a/b"):
        store.put(NS, key, {"content": key, "encoding": "utf-8"})
    assert names(volume) == [b"a", b"a%="]
    assert content(volume, "/a%=") == b"/a"
    directory = node_at(volume, "/a")
    volume.hold(directory)
    volume.unlink(directory, b"b")
    volume.rmdir(ROOT_NODE, b"a")
    assert [item.key for item in store.search(NS)] == ["/a"]
    volume.expire()
    assert content(volume, "/a") == b"/a"


# -- conflicts -------------------------------------------------------------------------------------------------


def conflicts(store):
    return {item.key: item.value["content"] for item in store.search(NS) if ".conflict-" in item.key}


def test_what_another_has_written_meanwhile_is_not_overwritten(volume, other, store):
    """The comparison and the put are one step: nobody comes in between, or is told."""
    other.write("/a", "one")
    node = node_at(volume, "/a")
    with opened(volume, node, RW):
        volume.write(node, 0, b"ours")
        with before_its_change(volume.remote.files, lambda: other.write("/a", "theirs")):
            refused(errno.ESTALE, volume.fsync, node)
    assert store.get(NS, "/a").value["content"] == "theirs"
    assert list(conflicts(store).values()) == ["ours"]


APPEND = os.O_WRONLY | os.O_APPEND


def test_an_append_goes_to_the_end_of_what_is_there_then(volume, other, store):
    other.write("/log", "one\n")
    node = node_at(volume, "/log")
    volume.open(node, APPEND)
    volume.write(node, 4, b"ours\n")
    volume.write(node, 9, b"again\n")
    other.write("/log", "one\ntheirs\n")
    with hearing(volume) as ear:
        volume.flush(node)
        assert Change(node=node) in ear.heard  # the kernel has other bytes there
    assert store.get(NS, "/log").value["content"] == "one\ntheirs\nours\nagain\n"
    assert volume.read(node, 0, 100) == b"one\ntheirs\nours\nagain\n"
    assert volume.getattr(node).size == 22
    volume.write(node, 22, b"more\n")
    volume.release(node, APPEND)
    assert store.get(NS, "/log").value["content"].endswith("again\nmore\n")
    assert conflicts(store) == {}


@pytest.mark.parametrize("how", ["another handle", "not at the end", "truncated", "deleted"])
def test_what_is_no_append_is_a_conflict(volume, other, store, how):
    other.write("/log", "one\n")
    node = node_at(volume, "/log")
    volume.open(node, APPEND)
    if how == "another handle":
        volume.open(node, RW)
    if how == "truncated":
        volume.setattr(node, AttrChanges(size=4))
    volume.write(node, 2 if how == "not at the end" else 4, b"ours\n")
    if how == "deleted":
        other.delete("/log")
    else:
        other.write("/log", "theirs\n")
    refused(errno.ESTALE, volume.flush, node)
    volume.release(node, APPEND)
    assert len(conflicts(store)) == 1


def test_who_has_it_open_for_writing_is_told_though_somebody_has_read_it_since(volume, other, store):
    """The reader gets what is there now, and the writer still writes over what he has opened."""
    other.write("/a", "one")
    node = node_at(volume, "/a")
    with opened(volume, node, RW):
        other.write("/a", "two")
        assert content(volume, "/a") == b"two"
        volume.write(node, 0, b"X")
        refused(errno.ESTALE, volume.flush, node)
    assert store.get(NS, "/a").value["content"] == "two"
    write(volume, b"a", b"three")
    assert store.get(NS, "/a").value["content"] == "three"


# -- life ------------------------------------------------------------------------------------------------------


def test_a_namespace_that_depends_on_a_graph_can_not_be_mounted():
    backend = StoreBackend(InMemoryStore(), namespace=lambda runtime: (runtime.context.user_id,))
    with pytest.raises(OSError, match="The namespace's function failed: AttributeError"):
        volume_of(backend)
    with pytest.raises(OSError, match="There is no store"):
        volume_of(StoreBackend())


def test_the_namespace_of_a_mount_is_settled_when_it_is_made():
    user = ["ann"]
    backend = StoreBackend(InMemoryStore(), namespace=lambda _: ("users", user[0]))
    backend.write("/note", "of ann")
    volume = volume_of(backend)
    user[0] = "bob"
    assert content(volume, "/note") == b"of ann"


def test_a_searched_store_is_searched_once_for_all_directories():
    searches = []

    class Counting(InMemoryStore):
        def search(self, *args, **options):
            searches.append(args)
            return super().search(*args, **options)

    backend = StoreBackend(Counting())
    backend.upload_files([(f"/d{number}/e/f", b"x") for number in range(5)])
    volume = ForeignVolume(backend, ttl_s=60)
    searches.clear()
    for number in range(5):
        assert content(volume, f"/d{number}/e/f") == b"x"
        write(volume, b"d%d/e/f" % number, b"yy")
        volume.mknod(node_at(volume, f"/d{number}"), b"new", stat.S_IFREG | 0o644, 0, ME)
        assert names(volume, node_at(volume, f"/d{number}")) == [b"e", b"new"]
    assert len(searches) == 1


def test_how_long_a_mount_believes_is_what_the_backend_says():
    assert ForeignVolume(StoreBackend(InMemoryStore(), ttl_s=0.25)).ttl_s == 0.25
    assert ForeignVolume(StoreBackend(InMemoryStore())).ttl_s is None


class StoreMachine(ForeignMachine):
    def make_volume(self):
        self.backend = StoreBackend(InMemoryStore())
        return ForeignVolume(self.backend)


TestStoreModel = StoreMachine.TestCase
TestStoreModel.settings = settings(max_examples=examples(15), stateful_step_count=40, deadline=None)
