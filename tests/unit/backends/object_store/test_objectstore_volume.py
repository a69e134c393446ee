"""What holds of a bucket beyond the published suites: who else writes to it, odd keys, metadata, many at once."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import obstore
import pytest
from agentface import get
from eventually import eventually
from nodes import ME, names, node_at, overwrite, put, whole
from objects import content, keys
from obstore.exceptions import InvalidPathError
from obstore.store import MemoryStore
from together import together

from fusebackend.backends import InMemoryBackend, S3Backend
from fusebackend.backends.object_store.bucket.object_keys import info_of
from fusebackend.backends.object_store.bucket.requests import S3Extras
from fusebackend.backends.object_store.remote import BucketRemote, ObjectStoreBackend, Upload, attributes_of
from fusebackend.protocol import ROOT_NODE, AttrChanges, Caller
from fusebackend.remote.volume import RemoteVolume
from fusebackend.rules.ruled_volume import RuledVolume
from fusebackend.rules.view import View
from fusebackend.testing.posix.case import refused
from fusebackend.volumes.contents import opened
from fusebackend.volumes.walk import resolve

RW, READ, APPEND = os.O_RDWR, os.O_RDONLY, os.O_WRONLY | os.O_APPEND


@pytest.fixture
def store():
    return MemoryStore()


@pytest.fixture
def volume(store):
    with contextlib.closing(RemoteVolume(BucketRemote(store), ttl_s=0.0)) as volume:
        yield volume


@pytest.fixture
def other(store):
    """Another host's."""
    with contextlib.closing(RemoteVolume(BucketRemote(store), ttl_s=0.0)) as volume:
        yield volume


@pytest.mark.parametrize(("path", "asked"), [("/d/f", 0), ("/d/shut", 1)])
def test_a_view_asks_for_attributes_where_it_shows_others(store, monkeypatch, path, asked):
    store.put("d/f", b"1"), store.put("d/shut", b"2")
    with contextlib.closing(RemoteVolume(BucketRemote(store), ttl_s=60.0)) as volume:
        heads, wanted = volume.remote.heads, []
        monkeypatch.setattr(volume.remote, "heads", lambda some: heads(wanted.extend(some) or some))
        view = View("v", [{"operations": ["write"], "paths": ["/d/shut"], "mode": "deny"}])
        assert resolve(RuledVolume(volume, view), path, needs="name").found.size == 1
        assert len(wanted) == asked


# -- two hosts -------------------------------------------------------------------------------------------------


def test_a_lost_update_is_an_error_and_both_versions_are_kept(store, volume, other, caplog):
    node = put(volume, b"f", b"before")
    with opened(volume, node, RW), opened(other, node_at(other, "/f"), RW) as theirs:
        volume.write(node, 0, b"ours, ")
        other.write(theirs, 0, b"theirs")
        other.flush(theirs)
        refused(errno.ESTALE, volume.flush, node)
    assert content(store, "f") == b"theirs"
    (beside,) = [key for key in keys(store) if key.startswith("f.conflict-")]
    assert content(store, beside) == b"ours, "
    assert "changed by others" in caplog.text


def test_a_version_that_is_gone_is_not_written_over(store, volume, other):
    """It was opened and not read: it can't be had any more, so the first write is refused."""
    node = put(volume, b"f", b"before")
    with opened(volume, node, RW):
        store.put("f", b"theirs")
        refused(errno.ESTALE, volume.write, node, 3, b"ours")
    assert (keys(store), content(store, "f")) == (["f"], b"theirs")


def test_of_two_who_make_a_file_one_is_told(store, volume, other, caplog):
    one, two = unsaved(volume, b"f", b"one"), unsaved(other, b"f", b"two")
    volume.flush(one)
    refused(errno.ESTALE, other.flush, two)
    assert content(store, "f") == b"one"
    assert [content(store, key) for key in keys(store) if ".conflict-" in key] == [b"two"]


def test_a_put_whose_answer_was_lost_is_no_conflict(store, volume):
    node = put(volume, b"f", b"before")
    with opened(volume, node, RW):
        volume.write(node, 0, b"after!")
        # As if a put of exactly this had arrived after its caller had given up on it.
        entry = volume._tree.entry(node)
        store.put("f", b"after!", attributes={"mtime": attributes_of(entry.stamp)["mtime"]})
        volume.flush(node)
    assert keys(store) == ["f"]


def test_agents_that_edit_one_file_at_once_lose_nothing(store):
    with ObjectStoreBackend(store) as one, ObjectStoreBackend(store) as two:
        one.write("/counts", "".join(f"line {number}: old\n" for number in range(20)))

        def edit(backend, numbers):
            for number in numbers:
                assert backend.edit("/counts", f"line {number}: old", f"line {number}: new").error is None

        together(*(partial(edit, backend, range(start, 20, 4)) for start, backend in enumerate((one, two, one, two))))
        assert b"old" not in content(store, "counts")


def test_a_change_time_stays_where_the_service_has_added_attributes(volume, monkeypatch):
    """As `Content-Type`; and what the service says of the time may be later than the change."""
    node = put(volume, b"f", b"first")
    before = volume.getattr(node).ctime_ns
    real = volume.remote.head

    def head(*args):
        found = real(*args)
        stamp = found.stamp._replace(extra={"Content-Type": "text/plain"})
        return found._replace(stamp=stamp, modified_ns=before + 10**9)

    monkeypatch.setattr(volume.remote, "head", head)
    with opened(volume, node, READ):
        assert volume.getattr(node).ctime_ns == before


def test_what_others_do_is_seen_after_the_ttl_and_at_open(store):
    now = [0.0]
    with contextlib.closing(RemoteVolume(BucketRemote(store), ttl_s=5.0, clock=lambda: now[0])) as volume:
        put(volume, b"f", b"first")
        assert names(volume) == [b"f"]
        store.put("g", b"new")
        store.put("f", b"second")
        assert names(volume) == [b"f"]
        node = volume.lookup(ROOT_NODE, b"f").node
        assert volume.getattr(node).size == 5
        with opened(volume, node, READ):
            assert (volume.getattr(node).size, volume.read(node, 0, 100)) == (6, b"second")
        now[0] += 5.0
        assert names(volume) == [b"f", b"g"]
        store.delete("f")
        volume.expire()
        refused(errno.ENOENT, volume.lookup, ROOT_NODE, b"f")


def counted(monkeypatch, function):
    """The arguments of all calls of one of obstore's functions."""
    calls, real = [], getattr(obstore, function)
    monkeypatch.setattr(
        obstore, function, lambda *args, **options: calls.append((*args, options)) or real(*args, **options)
    )
    return calls


def read_all(volume, directory):
    for name in names(volume, directory):
        node = volume.lookup(directory, name).node
        assert whole(volume, node) == name


@pytest.mark.parametrize("size", [10, 300_000, 1 << 20])
def test_what_is_not_here_is_never_believed(store, size):
    """Else a file that was replaced just before it is opened could not be read at all."""
    store.put("f", b"1" * size)
    with contextlib.closing(RemoteVolume(BucketRemote(store), ttl_s=5.0, clock=lambda: 0.0)) as volume:
        node = volume.lookup(ROOT_NODE, b"f").node
        store.put("f", b"2" * (size + 1))
        with opened(volume, node, READ):
            assert (volume.getattr(node).size, volume.read(node, 0, 10)) == (size + 1, b"2" * 10)


def test_every_open_asks_for_the_version_once(store, volume, monkeypatch):
    store.put("f", b"f")
    read_all(volume, ROOT_NODE)
    gets = counted(monkeypatch, "get")
    read_all(volume, ROOT_NODE)
    assert len(gets) == 1


def unsaved(volume, name, data, parent=ROOT_NODE):
    """A file that is open, and that only this volume has."""
    node = volume.create(parent, name, 0o644, os.O_RDWR, ME).node
    volume.write(node, 0, data)
    return node


@pytest.fixture
def lost(monkeypatch, volume, store, caplog):
    """A closed file `a` that is in the store, and whose upload seems to have failed: the answers were lost."""
    left, real = [2], Upload.put

    def put(*args, **options):
        answer = real(*args, **options)
        if left[0]:
            left[0] -= 1
            raise OSError(errno.ETIMEDOUT, "lost")
        return answer

    monkeypatch.setattr(Upload, "put", put)
    node = unsaved(volume, b"a", b"first\n")
    refused(errno.ETIMEDOUT, volume.flush, node)
    volume.release(node, os.O_RDWR)
    assert "closed unsaved" in caplog.text
    assert keys(store) == ["a"]
    return node


def test_after_a_lost_answer_a_rename_leaves_nothing_behind(store, volume, lost):
    volume.rename(ROOT_NODE, b"a", ROOT_NODE, b"b")
    volume.sync()
    assert keys(store) == ["b"]


def test_after_a_lost_answer_what_is_deleted_stays_so(store, volume, lost):
    volume.unlink(ROOT_NODE, b"a")
    volume.sync()
    assert keys(store) == []


def test_after_a_lost_answer_other_bytes_are_no_conflict(store, volume, lost):
    overwrite(volume, lost, 0, b"other\n")
    assert (keys(store), content(store, "a")) == (["a"], b"other\n")


def test_after_a_lost_answer_nothing_is_appended_twice(store, volume, lost):
    with opened(volume, lost, APPEND):
        volume.append(lost, b"second\n")
        volume.flush(lost)
    assert (keys(store), content(store, "a")) == (["a"], b"first\nsecond\n")


def test_a_directory_of_others_stays_when_only_an_unsaved_file_is_left_in_it(store, volume):
    store.put("theirs/x", b"x")
    directory = volume.lookup(ROOT_NODE, b"theirs").node
    unsaved(volume, b"waits", b"w", directory)
    volume.unlink(directory, b"x")
    volume.rename(directory, b"waits", ROOT_NODE, b"moved")
    assert (names(volume), names(volume, directory)) == ([b"moved", b"theirs"], [])


def test_a_directory_that_others_emptied_stays_while_an_unsaved_file_is_in_it(store, volume):
    store.put("theirs/deep/x", b"x")
    above, directory, _ = (node_at(volume, path) for path in ("/theirs", "/theirs/deep", "/theirs/deep/x"))
    unsaved(volume, b"waits", b"w", directory)
    store.delete("theirs/deep/x")
    assert [names(volume, node) for node in (ROOT_NODE, above, directory)] == [[b"theirs"], [b"deep"], [b"waits"]]
    with pytest.raises(OSError, match="not empty"):
        volume.rmdir(ROOT_NODE, b"theirs")
    volume.sync()
    assert content(store, "theirs/deep/waits") == b"w"


def test_an_open_file_that_others_replace_is_stale_and_no_mixture(store, volume):
    store.put("f", bytes(9 << 20))
    node = volume.lookup(ROOT_NODE, b"f").node
    with opened(volume, node, READ):
        assert volume.read(node, 0, 10) == bytes(10)
        store.put("f", b"x" * (9 << 20))
        refused(errno.ESTALE, volume.read, node, 8 << 20, 10)
    with opened(volume, node, READ):
        assert volume.read(node, 8 << 20, 10) == b"x" * 10


def test_what_reads_find_in_the_cache_can_be_counted(store, volume, monkeypatch):
    store.put("f", b"some bytes")
    lookups, get = [], volume.byte_cache.get
    monkeypatch.setattr(volume.byte_cache, "get", lambda *key: lookups.append(get(*key)) or lookups[-1])
    node = volume.lookup(ROOT_NODE, b"f").node
    with opened(volume, node, READ):
        assert volume.read(node, 0, 10) == volume.read(node, 0, 10) == b"some bytes"
    assert lookups[-1] == b"some bytes"


# -- keys ------------------------------------------------------------------------------------------------------


def test_keys_that_are_no_paths_never_end_a_listing(bucket, monkeypatch):
    """SeaweedFS has no such keys, so the listings that obstore refuses and S3 answers are made up here."""
    list_directory = S3Extras.list_directory

    def no_path(*args, **options):
        raise InvalidPathError("a//b is no path")

    def with_odd_keys(extras, directory):
        directories, objects = list_directory(extras, directory)
        odd = ["", ".", "..", "n" * 256, "tab\t"]
        return [*directories, *odd], [*objects, *(info_of(segment, 1, '"1"', 0) for segment in odd)]

    for key in ("t/ok", "t/sub/fine", "t/only/odd", "t/marked/"):
        bucket.put(key, key.encode())
    with S3Backend(bucket.name, "t", ttl=0.0, **bucket.options()) as backend:
        with monkeypatch.context() as patch:
            patch.setattr(obstore, "list_with_delimiter", no_path)
            patch.setattr(obstore, "list", no_path)
            patch.setattr(S3Extras, "list_directory", with_odd_keys)
            shown = [info["path"] for info in backend.ls("/").entries]
            assert shown == ["/marked/", "/ok", "/only/", "/sub/"]
            assert [info["path"] for info in backend.ls("/sub").entries] == ["/sub/fine"]
            bucket.delete("t/only/odd")
            with pytest.raises(OSError, match="Directory not empty"):
                backend.volume.rmdir(ROOT_NODE, b"only")
        backend.volume.rmdir(ROOT_NODE, b"marked")
    assert "t/marked/" not in bucket.all_keys()


def test_an_object_with_the_key_of_a_directory_is_a_file_beside_it(store, volume):
    for key in ("both", "both/below"):
        obstore.put(store, key, key.encode())
    with ObjectStoreBackend(store, ttl=0.0) as backend:
        assert [info["path"] for info in backend.ls("/").entries] == ["/both%=", "/both/"]
        assert (get(backend, "/both%="), get(backend, "/both/below")) == (b"both", b"both/below")
        assert backend.edit("/both%=", "both", "changed").error is None
    assert content(store, "both") == b"changed"


def test_a_flat_bucket_of_ten_thousand_keys_is_listed_and_asked_for_single_names(store, monkeypatch):
    for number in range(10_000):
        store.put(f"key-{number:05}", b"")
    with contextlib.closing(RemoteVolume(BucketRemote(store), ttl_s=0.0)) as volume:
        found, after = [], b""
        while page := volume.readdir(ROOT_NODE, after, 1000):
            found += [name for name, _ in page]
            after = found[-1]
            volume._tree.ttl_s = 3600.0  # a listing that is read page by page is read once
        assert found == [b"key-%05d" % number for number in range(10_000)]
        volume._tree.ttl_s = 0.0
        listings = []
        monkeypatch.setattr(obstore, "list_with_delimiter", lambda *args: listings.append(args))
        store.put("late", b"x")
        assert volume.lookup(ROOT_NODE, b"late").size == 1
        refused(errno.ENOENT, volume.lookup, ROOT_NODE, b"none")
        assert listings == []


def test_empty_directories_outlive_their_last_file_and_leave_nothing_behind(store, volume, other):
    directory = volume.mkdir(ROOT_NODE, b"d", 0o750, ME).node
    store.put("theirs/file", b"")
    theirs = volume.lookup(ROOT_NODE, b"theirs").node
    volume.unlink(theirs, b"file")
    assert names(other) == [b"d", b"theirs"]
    assert keys(store) == ["d/.fusebackend.directory", "theirs/.fusebackend.directory"]
    assert names(volume, directory) == []
    for name in (b"d", b"theirs"):
        volume.rmdir(ROOT_NODE, name)
    assert keys(store) == []
    with pytest.raises(OSError, match="Invalid or incomplete multibyte"):
        volume.mkdir(ROOT_NODE, b".fusebackend.directory", 0o755, ME)


# -- metadata --------------------------------------------------------------------------------------------------


def test_modes_owners_times_and_links_are_metadata_that_other_tools_know(seaweedfs):
    with seaweedfs.bucket() as bucket:
        options = {**bucket.options(), "ttl": 0.0}
        with S3Backend(bucket.name, "", **options) as backend:
            volume = backend.volume
            node = put(volume, b"f", b"text")
            volume.setattr(node, AttrChanges(mode=0o4750, uid=12, gid=34, mtime_ns=-1_500_000_001))
            volume.symlink(ROOT_NODE, b"link", b"../some/where", ME)
            volume.mkdir(ROOT_NODE, b"d", 0o2770, Caller(5, 6))
            refused(errno.EPERM, volume.link, node, ROOT_NODE, b"hard")
            refused(errno.EPERM, volume.mknod, ROOT_NODE, b"fifo", stat.S_IFIFO | 0o600, 0, ME)
            refused(errno.ENOTSUP, volume.setxattr, node, b"user.x", b"")
        assert bucket.get("link") == b"../some/where"
        known = {name: bucket.attributes("f")[name] for name in ("mode", "uid", "gid", "mtime")}
        assert known == {"mode": str(0o104750), "uid": "12", "gid": "34", "mtime": "-1.500000001"}
        bucket.put("s3fs", b"x", mode="33188", uid="7", gid="8", mtime="981173106")
        bucket.put("rclone", b"x", mode="0100600", mtime="981173106.5")
        bucket.put("nonsense", b"x", mode="rwx", uid="-1", mtime="yesterday")
        with S3Backend(bucket.name, "", **options) as again:
            look = lambda name: again.volume.lookup(ROOT_NODE, name)  # noqa: E731
            for name, mode, uid, gid, mtime_ns in [
                (b"f", 0o104750, 12, 34, -1_500_000_001),
                (b"d", 0o042770, 5, 6, look(b"d").mtime_ns),
                (b"s3fs", 0o100644, 7, 8, 981173106 * 10**9),
                (b"rclone", 0o100600, os.geteuid(), os.getegid(), 981173106_500_000_000),
                (b"nonsense", 0o100644, os.geteuid(), os.getegid(), look(b"nonsense").mtime_ns),
            ]:
                attr = look(name)
                assert (attr.mode, attr.uid, attr.gid, attr.mtime_ns) == (mode, uid, gid, mtime_ns), name
            assert again.volume.readlink(look(b"link").node) == b"../some/where"
            assert abs(look(b"nonsense").mtime_ns / 1e9 - time.time()) < 3600
            again.volume.setattr(look(b"rclone").node, AttrChanges(mode=0o640))
        assert bucket.get("rclone") == b"x"
        assert bucket.attributes("rclone")["mode"] == str(0o100640)


def test_attributes_that_are_none_of_ours_are_carried_along(store, volume):
    store.put("f", b"1", attributes={"Content-Type": "text/x-mine", "colour": "blue"})
    node = volume.lookup(ROOT_NODE, b"f").node
    volume.setattr(node, AttrChanges(mode=0o600))
    overwrite(volume, node, 1, b"2")
    kept = obstore.get(store, "f", options={"head": True}).attributes
    assert (kept["Content-Type"], kept["colour"], kept["mode"]) == ("text/x-mine", "blue", str(0o100600))


# -- many at once ----------------------------------------------------------------------------------------------


def test_64_readers_of_different_files_read_at_once(store, monkeypatch):
    """Each request waits until 48 are under way: readers that waited for each other would never get there."""
    for number in range(64):
        store.put(f"f{number}", b"x" * 1000)
    with contextlib.closing(RemoteVolume(BucketRemote(store), ttl_s=60.0)) as volume:
        nodes = [volume.lookup(ROOT_NODE, b"f%d" % number).node for number in range(64)]
        for node in nodes:
            volume.open(node, READ)
        barrier, original = threading.Barrier(48), obstore.get

        def slow(*args, **options):
            with contextlib.suppress(threading.BrokenBarrierError):
                barrier.wait(30)
            return original(*args, **options)

        monkeypatch.setattr(obstore, "get", slow)
        with ThreadPoolExecutor(64) as threads:
            reads = [threads.submit(volume.read, node, 0, 10) for node in nodes]
            eventually(lambda: sum(read.done() for read in reads) >= 48)
            assert not barrier.broken
            barrier.abort()
            assert [read.result() for read in reads] == [b"x" * 10] * 64
        monkeypatch.undo()
        for node in nodes:
            volume.release(node, READ)


def test_agents_and_kernel_share_one_truth(store):
    """The agent's verbs and the kernel's calls meet in the same entries, here as in memory."""
    for backend in (ObjectStoreBackend(store), InMemoryBackend()):
        with backend:
            node = put(backend.volume, b"f", b"kernel\n")
            with opened(backend.volume, node, READ):
                assert backend.edit("/f", "kernel", "agent").error is None
                assert backend.volume.read(node, 0, 100) == b"agent\n"
                assert backend.volume.getattr(node).size == 6


# -- what a listing does not say -------------------------------------------------------------------------------


@pytest.fixture
def links(store):
    """Links to a file and to a directory, which nobody has looked at yet."""
    with ObjectStoreBackend(store) as maker:
        maker.upload_files([("/d/file", b"needle"), ("/d/needle", b"")])
        node = maker.volume.lookup(ROOT_NODE, b"d").node
        maker.volume.symlink(node, b"link", b"file", ME)
        maker.volume.symlink(node, b"up", b"../d", ME)
    return store


LINK_VERBS = {
    "read": (lambda backend: backend.read("/d/link").file_data["content"], "needle"),
    "download": (lambda backend: backend.download_files(["/d/link"])[0].content, b"needle"),
    "read by a directory's": (lambda backend: backend.read("/d/up/up/link").file_data["content"], "needle"),
    "ls": (lambda backend: len(backend.ls("/d/up").entries), 4),
    "edit": (lambda backend: backend.edit("/d/link", "needle", "pin").error, None),
    "upload": (lambda backend: backend.upload_files([("/d/link", b"new")])[0].error, None),
    "write": (lambda backend: backend.write("/d/link", "new").error is None, False),
    "grep": (lambda backend: [match["path"] for match in backend.grep("e", "/d").matches], ["/d/file"]),
    "delete": (lambda backend: backend.delete("/d/link").error, None),
    "move": (lambda backend: backend.move("/d/link", "/d/moved").error, None),
    "stat": (lambda backend: stat.S_ISLNK(backend.volume.lookup(2, b"link").mode), True),
}


@pytest.mark.parametrize("verb", LINK_VERBS)
def test_a_link_that_a_listing_takes_for_a_file_is_one_for_each_verb(links, verb):
    work, expected = LINK_VERBS[verb]
    with ObjectStoreBackend(links) as backend:
        node = backend.volume.lookup(ROOT_NODE, b"d").node
        shown = {name: attr.mode for name, attr in backend.volume.readdir_brief(node, b"", 10)}
        assert stat.S_ISREG(shown[b"link"]), "nobody has looked at it"
        assert work(backend) == expected
    assert verb == "delete" or content(links, "d/moved" if verb == "move" else "d/link") == b"file"


def test_without_attributes_they_are_neither_shown_nor_lost(store, links):
    store.put("d/script", b"#!", attributes={"Content-Type": "text/x-mine", "mode": str(0o100755), "uid": "7"})
    with ObjectStoreBackend(links, attributes="off") as backend:
        volume = backend.volume
        node = volume.lookup(ROOT_NODE, b"d").node
        shown = {name: attr.mode for name, attr in volume.readdir(node, b"", 10)}
        assert shown == dict.fromkeys((b"file", b"link", b"needle", b"script", b"up"), 0o100644)
        assert backend.edit("/d/script", "#!", "#!/bin/sh").error is None
        script = volume.lookup(node, b"script").node
        volume.setattr(script, AttrChanges(mode=0o600))
        assert whole(volume, script) == b"#!/bin/sh"
        assert volume.getattr(script).mode == 0o100600, "kept in memory"
        refused(errno.EPERM, volume.symlink, node, b"new", b"file", ME)
    kept = obstore.get(store, "d/script", options={"head": True}).attributes
    assert (kept["Content-Type"], kept["mode"], kept["uid"]) == ("text/x-mine", str(0o100755), "7")
    assert content(store, "d/script") == b"#!/bin/sh"


def test_threads_that_go_down_one_path_share_one_listing_and_none_on_the_way(store, monkeypatch):
    for number in range(16):
        store.put(f"a/b/f{number}", b"x")
    listed, listing = [], obstore.list_with_delimiter

    def counted(store, prefix):
        listed.append(prefix)
        return listing(store, prefix)

    monkeypatch.setattr(obstore, "list_with_delimiter", counted)
    with ObjectStoreBackend(store, ttl=3600.0) as backend:
        together(*(partial(backend.read, f"/a/b/f{number}") for number in range(16)))
        assert listed == ["a/b"]
        assert backend.read("/a/b/none").error == backend.read("/a/none/f").error.replace("/a/none/f", "/a/b/none")
        assert sorted(map(str, listed)) == ["a", "a/b", "a/none"]
