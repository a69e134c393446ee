"""`ForeignVolume`: a kernel face for backends that have none, and what it does where they fall short."""

import errno
import os
import stat
import threading
from datetime import datetime
from types import SimpleNamespace

import hypothesis
import pytest
from clocks import Clock
from eventually import tick
from nodes import ME, names, node_at, overwrite, put, whole
from profiles import examples
from seed_backends import Answer, DuckBackend, SeedInMemoryBackend
from together import beside, together
from whole_files import WholeFileMachine

from fusebackend.backends import (
    CompositeBackend,
    FilesystemBackend,
    ForeignVolume,
    InMemoryBackend,
    StateBackend,
    VolumeBackend,
    volume_of,
)
from fusebackend.base.paths import AgentPath
from fusebackend.protocol import RENAME_EXCHANGE, ROOT_NODE, AttrChanges, Change
from fusebackend.remote import agent_remote, files
from fusebackend.remote import tree as tree_module
from fusebackend.remote.agent_remote import time_ns
from fusebackend.remote.files import conflict_path
from fusebackend.remote.tree import SETTLE_S
from fusebackend.remote.volume import foreign_volume
from fusebackend.testing.by_path import walk
from fusebackend.testing.conformance import BackendConformance
from fusebackend.testing.posix.case import all_refused, refused

RW = os.O_RDWR


class SeedWithDelete(SeedInMemoryBackend):
    """The seed's example and the one verb that a writable mount can't do without."""

    def delete(self, file_path):
        gone = [name for name in self._files if name == file_path or name.startswith(file_path + "/")]
        for name in gone:
            del self._files[name]
        return Answer(path=file_path) if gone else Answer(error="Error: not found")


# -- the published suites --------------------------------------------------------------------------------------


class Derived(BackendConformance):
    """The agent face of the kernel face of an agent face: what both derivations keep."""

    any_name = False  # names that are no UTF-8 are refused


@pytest.mark.configuration
class TestState(Derived):
    @pytest.fixture
    def backend(self):
        return VolumeBackend(ForeignVolume(StateBackend()))


class TestDuck(Derived):
    @pytest.fixture
    def backend(self):
        return VolumeBackend(ForeignVolume(DuckBackend(exact_sizes=False)))


@pytest.mark.configuration
class TestSeed(Derived):
    byte_exact = False  # it holds text

    @pytest.fixture
    def backend(self):
        return VolumeBackend(ForeignVolume(SeedWithDelete()))


@pytest.mark.configuration
class TestComposite(Derived):
    @pytest.fixture
    def backend(self):
        return VolumeBackend(ForeignVolume(CompositeBackend(InMemoryBackend())))


class ForeignMachine(WholeFileMachine):
    backend = None

    def attempt(self, refusals, call, *arguments, **options):
        if call.__name__ in ("create", "mkdir", "mknod", "rename") and b"\xff\xfe" in arguments:
            refusals = refusals | {errno.EILSEQ}
        return super().attempt(refusals, call, *arguments, **options)

    def teardown(self):
        """After a sync the backend holds exactly the files of the model."""
        self.volume.sync()
        files = [node for node in self.tree.nodes() if node.is_file]
        wanted = {"/" + b"/".join(self.tree.path_of(node)).decode(): bytes(node.data) for node in files}
        paths = [info["path"] for info in self.backend.glob("*").matches]
        assert sorted(paths) == sorted(wanted)
        answers = self.backend.download_files(list(wanted))
        assert {answer.path: answer.content for answer in answers} == wanted
        super().teardown()


class StateMachine(ForeignMachine):
    def make_volume(self):
        self.backend = StateBackend()
        return ForeignVolume(self.backend)


class DuckMachine(ForeignMachine):
    def make_volume(self):
        self.backend = DuckBackend(exact_sizes=False)
        return ForeignVolume(self.backend, ttl_s=0)


TestStateModel = StateMachine.TestCase
TestDuckModel = DuckMachine.TestCase
TestStateModel.settings = TestDuckModel.settings = hypothesis.settings(
    max_examples=examples(20), stateful_step_count=40, deadline=None
)

# -- reading and writing ---------------------------------------------------------------------------------------


@pytest.fixture
def duck():
    return DuckBackend()


@pytest.fixture
def volume(duck):
    return ForeignVolume(duck, ttl_s=0)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def believing(duck, clock):
    """A volume that believes a listing for its time."""
    return ForeignVolume(duck, clock=clock)


@pytest.fixture
def nothing_kept(monkeypatch):
    """What is forgotten goes with the next call after `SETTLE_S`."""
    monkeypatch.setattr(tree_module, "KEPT_ENTRIES", 0)


def test_a_file_is_stored_when_it_is_flushed_and_not_before(volume, duck):
    node = volume.create(ROOT_NODE, b"f", 0o644, RW, ME).node
    volume.write(node, 0, b"hello")
    volume.write(node, 10, b"end")
    assert duck.files == {} and names(volume) == [b"f"] and volume.getattr(node).size == 13
    volume.flush(node)
    assert duck.files == {"/f": b"hello\0\0\0\0\0end"}
    volume.write(node, 0, b"J")
    volume.fsync(node)
    assert duck.files["/f"].startswith(b"Jello")
    uploads = duck.calls.count("upload_files")
    volume.flush(node)
    volume.release(node, RW)
    assert duck.calls.count("upload_files") == uploads, "what was stored is not stored again"


def test_status_counts_files_with_bytes_that_are_not_stored(volume):
    nodes = [volume.create(ROOT_NODE, name, 0o644, RW, ME).node for name in (b"a", b"b")]
    for node in nodes:
        volume.write(node, 0, b"x")
    for store, left in ((lambda: None, 2), (lambda: volume.flush(nodes[0]), 1), (volume.sync, 0)):
        store()
        assert volume.unstored == left


def test_what_was_not_flushed_is_stored_at_the_last_close(volume, duck):
    node = volume.create(ROOT_NODE, b"f", 0o644, RW, ME).node
    overwrite(volume, node, 0, b"data")
    assert duck.files == {}
    volume.release(node, RW)
    assert duck.files == {"/f": b"data"}


def test_mknod_stores_an_empty_file_at_once(volume, duck):
    volume.mknod(ROOT_NODE, b"f", stat.S_IFREG | 0o600, 0, ME)
    assert duck.files == {"/f": b""}
    refused(errno.EEXIST, volume.mknod, ROOT_NODE, b"f", stat.S_IFREG, 0, ME)
    refused(errno.EPERM, volume.mknod, ROOT_NODE, b"p", stat.S_IFIFO, 0, ME)


def test_truncate_without_a_handle_is_stored_at_once(volume, duck):
    duck.put("/f", b"0123456789")
    node = node_at(volume, "/f")
    assert volume.setattr(node, AttrChanges(size=4)).size == 4
    assert duck.files["/f"] == b"0123"
    volume.setattr(node, AttrChanges(size=6))
    assert duck.files["/f"] == b"0123\0\0"
    refused(errno.EFBIG, volume.setattr, node, AttrChanges(size=1 << 50))
    refused(errno.EISDIR, volume.setattr, ROOT_NODE, AttrChanges(size=0))
    duck.failing = {"upload_files"}
    refused(errno.EIO, volume.setattr, node, AttrChanges(size=0))
    duck.failing = set()
    assert whole(volume, node) == b"0123\0\0", "a truncate that failed has not happened"


def test_an_upload_that_fails_is_the_error_of_the_flush_and_is_tried_again(volume, duck, caplog):
    node = volume.create(ROOT_NODE, b"f", 0o644, RW, ME).node
    volume.write(node, 0, b"data")
    duck.failing = {"upload_files"}
    refused(errno.EIO, volume.flush, node)
    refused(errno.EIO, volume.fsync, node)
    volume.release(node, RW)
    assert "/f was closed unsaved" in caplog.text
    assert names(volume) == [b"f"] and whole(volume, node) == b"data"
    refused(errno.EIO, volume.sync)
    duck.failing = set()
    volume.close()
    assert duck.files == {"/f": b"data"}


def test_a_file_that_can_not_be_stored_keeps_none_from_it(caplog):
    class Full(DuckBackend):
        def upload_files(self, files):
            if any(path == "/a" for path, _ in files):
                return [Answer(path=path, error="No space left on device") for path, _ in files]
            return super().upload_files(files)

    duck = Full()
    volume = ForeignVolume(duck, ttl_s=0)
    for name in (b"a", b"b"):
        volume.write(volume.create(ROOT_NODE, name, 0o644, RW, ME).node, 0, name)
    refused(errno.ENOSPC, volume.sync)
    assert duck.files == {"/b": b"b"}
    assert "/a could not be stored" in caplog.text


def test_a_backend_that_does_not_answer_is_waited_for_once(caplog, monkeypatch):
    monkeypatch.setattr(files, "PATIENCE_S", 0)

    class Away(DuckBackend):
        def upload_files(self, files):
            asked.append(files)
            raise ConnectionError("no answer")

    asked: list = []
    volume = ForeignVolume(Away(), ttl_s=0)
    for name in (b"a", b"b", b"c"):
        volume.write(volume.create(ROOT_NODE, name, 0o644, RW, ME).node, 0, name)
    asked.clear()
    refused(errno.EIO, volume.sync)
    assert len(asked) == 1
    assert "/c is not stored either" in caplog.text


def test_errors_of_the_backend_keep_their_code(volume, duck):
    duck.put("/f", b"x")
    node = node_at(volume, "/f")
    answer = Answer(error="permission_denied")
    duck.upload_files = lambda files: [answer]
    volume.open(node, RW)
    volume.write(node, 0, b"y")
    refused(errno.EACCES, volume.flush, node)
    del duck.upload_files
    volume.flush(node)
    duck.download_files = lambda paths: [answer]
    refused(errno.EACCES, volume.open, node, RW)


def test_open_sees_what_others_have_stored_and_an_open_file_stays_one_file(volume, duck):
    duck.put("/f", b"one")
    node = node_at(volume, "/f")
    assert whole(volume, node) == b"one"
    duck.put("/f", b"other")
    assert (whole(volume, node), volume.getattr(node).size) == (b"other", 5)
    volume.open(node, RW)
    volume.write(node, 0, b"OTHER")
    for flags in (RW, os.O_RDONLY):
        volume.open(node, flags)
        assert volume.read(node, 0, 9) == b"OTHER", "a second open does not undo what the first has written"


def test_sizes_in_characters_or_missing_are_not_believed():
    seed = SeedInMemoryBackend()
    seed.upload_files([("/d/ü.txt", "üöä字".encode()), ("/d/plain.txt", b"plain")])
    volume = ForeignVolume(seed)
    directory = node_at(volume, "/d")
    sizes = {name: attr.size for name, attr in volume.readdir(directory, b"", 10)}
    assert sizes == {"ü.txt".encode(): 9, b"plain.txt": 5}
    assert volume.lookup(directory, "ü.txt".encode()).size == 9


def test_a_known_size_is_not_downloaded_again_while_the_time_stands_still(duck, clock):
    duck.exact_sizes = False
    volume = ForeignVolume(duck, clock=clock)
    for number in range(200):
        duck.put(f"/f{number:03}", b"x" * number)
    assert [attr.size for _, attr in volume.readdir(ROOT_NODE, b"", 1000)] == list(range(200))
    assert duck.calls.count("download_files") == 4  # in batches
    clock.now = 100
    volume.readdir(ROOT_NODE, b"", 1000)
    assert duck.calls.count("download_files") == 4
    duck.put("/f007", b"changed")
    clock.now = 200
    assert dict(volume.readdir(ROOT_NODE, b"", 1000))[b"f007"].size == 7
    assert (duck.calls.count("download_files"), duck.calls.count("ls")) == (5, 3)


def test_exact_sizes_need_no_download(volume, duck):
    duck.put("/f", b"12345")
    assert volume.lookup(ROOT_NODE, b"f").size == 5
    assert "download_files" not in duck.calls


def test_a_change_that_nothing_tells_of_moves_the_times():
    seed = SeedInMemoryBackend()
    seed._get_timestamp = lambda: ""
    seed.upload_files([("/f", b"one")])
    volume = ForeignVolume(seed, ttl_s=0)
    node = node_at(volume, "/f")

    def times():
        attr = volume.getattr(node)
        return attr.mtime_ns, attr.ctime_ns

    before = times()
    assert times() == before
    tick()
    seed.upload_files([("/f", b"two")])
    assert all(after > since for after, since in zip(times(), before, strict=True))


def test_times_come_from_the_backend():
    for text, expected in {
        "2026-01-01T00:00:00.000001+00:00": 1767225600_000001000,
        "2026-01-01T01:00:00+01:00": 1767225600_000000000,
        "2026-01-01T00:00:00": int(datetime(2026, 1, 1).timestamp()) * 10**9,
        "": None,
        "yesterday": None,
    }.items():
        assert time_ns(text) == expected, text


def test_modes_and_times_are_kept_while_the_volume_lives(volume, duck):
    duck.put("/f", b"x")
    node = node_at(volume, "/f")
    volume.hold(node)
    volume.setattr(node, AttrChanges(mode=0o755, uid=7, gid=8, atime_ns=5, mtime_ns=6))
    volume.forget([node])
    attr = volume.lookup(ROOT_NODE, b"f")
    assert (attr.mode, attr.uid, attr.gid, attr.atime_ns, attr.mtime_ns) == (0o100755, 7, 8, 5, 6)
    # cp -p: written, times set, closed.
    copy = volume.create(ROOT_NODE, b"g", 0o755, RW, ME).node
    volume.write(copy, 0, b"x")
    volume.setattr(copy, AttrChanges(mtime_ns=6))
    volume.flush(copy)
    volume.release(copy, RW)
    assert (volume.getattr(copy).mtime_ns, volume.getattr(copy).mode) == (6, 0o100755)
    duck.put("/g", b"theirs")
    attr = volume.getattr(copy)
    assert attr.mtime_ns != 6 and attr.mode == 0o100755, "a change by others has a time of its own"


@pytest.mark.parametrize("exact", [True, False])
def test_times_stand_still_whatever_the_kernel_forgets(duck, exact):
    """git compares what `fstat` said before the file was closed; any other time makes it read the file again."""
    duck.exact_sizes = exact
    volume = ForeignVolume(duck, ttl_s=0)
    directory = volume.mkdir(ROOT_NODE, b"d", 0o755, ME).node
    node = volume.create(directory, b"f", 0o644, RW, ME).node
    volume.write(node, 0, b"data")
    before = volume.getattr(node)
    times = (before.mtime_ns, before.ctime_ns)
    volume.flush(node)
    volume.release(node, RW)
    for forgotten in (False, True, True):
        if forgotten:
            volume.hold(directory)
            volume.forget([directory])
            directory = node_at(volume, "/d")
        attr = volume.lookup(directory, b"f")
        assert (attr.size, attr.mtime_ns, attr.ctime_ns) == (4, *times)
    volume.rename(ROOT_NODE, b"d", ROOT_NODE, b"e")
    assert volume.lookup(directory, b"f").mtime_ns == times[0]
    volume.forget([directory])
    assert volume.getattr(node_at(volume, "/e/f")).mtime_ns == times[0]


# -- conflicts -------------------------------------------------------------------------------------------------


def begun(volume, duck):
    """A file of the backend that is open here and changed, and not stored."""
    duck.put("/f", b"base")
    node = node_at(volume, "/f")
    volume.open(node, RW)
    volume.write(node, 0, b"ours")
    return node


def conflicts(duck, base="/f"):
    return {path: data for path, data in duck.files.items() if path.startswith(base + ".conflict-")}


@pytest.mark.parametrize("theirs", [b"theirs", None], ids=["written", "deleted"])
def test_a_file_that_others_changed_meanwhile_is_a_conflict_that_loses_nothing(volume, duck, theirs, caplog):
    node = begun(volume, duck)
    if theirs is None:
        del duck.files["/f"]
    else:
        duck.put("/f", theirs)
    refused(errno.ESTALE, volume.flush, node)
    assert duck.files.get("/f") == theirs
    assert list(conflicts(duck).values()) == [b"ours"]
    assert "what was written here is in /f.conflict-" in caplog.text
    refused(errno.ESTALE, volume.write, node, 0, b"more")
    refused(errno.ESTALE, volume.read, node, 0, 10)
    refused(errno.ESTALE, volume.flush, node)  # the first close may be that of a forked child, which nobody hears of
    volume.release(node, RW)
    assert len(duck.files) == (1 if theirs is None else 2)
    if theirs is not None:
        assert whole(volume, node_at(volume, "/f")) == theirs


def test_a_file_made_by_others_meanwhile_is_a_conflict(volume, duck):
    node = volume.create(ROOT_NODE, b"f", 0o644, RW, ME).node
    volume.write(node, 0, b"ours")
    duck.put("/f", b"theirs")
    refused(errno.ESTALE, volume.flush, node)
    assert duck.files["/f"] == b"theirs" and list(conflicts(duck).values()) == [b"ours"]


def test_a_directory_deleted_under_an_open_file_loses_nothing(volume, duck):
    duck.put("/d/e/f", b"base")
    node = node_at(volume, "/d/e/f")
    volume.open(node, RW)
    duck.delete("/d")
    refused(errno.ENOENT, node_at, volume, "/d")
    volume.write(node, 0, b"ours")
    refused(errno.ESTALE, volume.flush, node)
    assert list(conflicts(duck, "/d/e/f").values()) == [b"ours"]


def test_a_file_deleted_by_others_and_seen_so_before_it_is_written_to_is_kept_too(volume, duck):
    duck.put("/f", b"base")
    node = node_at(volume, "/f")
    volume.open(node, RW)
    del duck.files["/f"]
    assert names(volume) == []
    assert volume.read(node, 0, 10) == b"base"
    volume.write(node, 0, b"ours")
    volume.release(node, RW)
    assert list(conflicts(duck).values()) == [b"ours"]


def test_the_same_bytes_are_no_conflict(volume, duck):
    node = begun(volume, duck)
    duck.put("/f", b"ours")
    volume.flush(node)
    assert conflicts(duck) == {}


def test_a_conflict_that_can_not_be_kept_beside_stays_here(volume, duck):
    node = begun(volume, duck)
    duck.put("/f", b"theirs")
    duck.failing = {"upload_files"}
    refused(errno.EIO, volume.flush, node)
    assert volume.read(node, 0, 10) == b"ours"
    duck.failing = set()
    refused(errno.ESTALE, volume.flush, node)
    assert list(conflicts(duck).values()) == [b"ours"]


def test_the_name_of_a_conflict_is_short_enough_and_never_the_same():
    long = conflict_path(AgentPath("/d/" + "字" * 85))
    assert len(long.rpartition("/")[2].encode()) <= 255
    assert conflict_path(AgentPath("/f")) != conflict_path(AgentPath("/f"))


# -- directories -----------------------------------------------------------------------------------------------


def test_a_directory_others_delete_is_gone(volume, duck):
    duck.put("/d/f", b"x")
    directory = node_at(volume, "/d")
    volume.hold(directory)
    duck.delete("/d")
    all_refused(
        (errno.ESTALE, volume.getattr, directory),
        (errno.ESTALE, volume.getattr, directory),
        (errno.ENOENT, volume.lookup, ROOT_NODE, b"d"),
        (errno.ENOENT, volume.mkdir, directory, b"e", 0o755, ME),
    )
    assert names(volume, directory) == []
    duck.put("/d/f", b"again")
    assert node_at(volume, "/d") != directory


def test_an_error_is_no_proof_that_a_directory_is_empty(volume, duck):
    duck.put("/d/f", b"x")
    directory = node_at(volume, "/d")
    put(volume, b"g", b"y", directory)
    volume.unlink(directory, b"g")  # from now on the directory might be here alone
    listing = duck.ls
    duck.ls = lambda path: Answer(error="the line is cut") if path == "/d" else listing(path)
    refused(errno.EIO, volume.rmdir, ROOT_NODE, b"d")
    refused(errno.EIO, volume.readdir, directory, b"", 10)
    duck.ls = lambda path: Answer(error="all lines are cut")
    refused(errno.EIO, volume.rmdir, ROOT_NODE, b"d")
    duck.ls = listing
    assert duck.files == {"/d/f": b"x"} and names(volume, directory) == [b"f"]


def test_rmdir_of_a_directory_that_is_not_empty_looks_before_it_deletes(duck):
    volume = ForeignVolume(duck)  # listings are believed for a second
    duck.put("/d/f", b"x")
    directory = node_at(volume, "/d")
    volume.unlink(directory, b"f")
    duck.put("/d/theirs", b"new")
    refused(errno.ENOTEMPTY, volume.rmdir, ROOT_NODE, b"d")
    assert duck.files == {"/d/theirs": b"new"}


def test_a_listing_goes_by_names_whatever_comes_and_goes(volume, duck):
    for number in range(10):
        duck.put(f"/f{number}", b"")
    page = [name for name, _ in volume.readdir(ROOT_NODE, b"", 4)]
    assert page == [b"f0", b"f1", b"f2", b"f3"]
    del duck.files["/f1"], duck.files["/f5"]
    duck.put("/f2x", b"")
    duck.put("/f4x", b"")
    rest = [name for name, _ in volume.readdir(ROOT_NODE, page[-1], 100)]
    assert rest == [b"f4", b"f4x", b"f6", b"f7", b"f8", b"f9"]
    assert volume.readdir(ROOT_NODE, b"f9", 10) == []


def test_a_deep_tree(volume, duck):
    node, depth = ROOT_NODE, 1500
    for _ in range(depth):
        node = volume.mkdir(node, b"d", 0o755, ME).node
    calls = len(duck.calls)
    assert names(volume, node) == []
    assert len(duck.calls) - calls < 10, "what only this volume has is not asked for level by level"
    file = put(volume, b"f", b"x", node)
    assert duck.files == {"/d" * depth + "/f": b"x"}
    assert volume.getattr(file).size == 1
    volume.rename(ROOT_NODE, b"d", ROOT_NODE, b"e")
    assert list(duck.files) == ["/e" + "/d" * (depth - 1) + "/f"]
    composite = CompositeBackend(duck, {"/x" * 1500: DuckBackend()})
    assert composite.grep("x", "/x" * 1400).matches == []


def test_a_slow_long_listing_ends(clock):
    class Slow(DuckBackend):
        def ls(self, path):
            clock.now += 1.5
            return super().ls(path)

    duck = Slow()
    for number in range(300):
        duck.put(f"/f{number:03}", b"")
    volume, after, seen = ForeignVolume(duck, clock=clock), b"", []
    while page := volume.readdir(ROOT_NODE, after, 10):
        seen += [name for name, _ in page]
        after = seen[-1]
        clock.now += 0.1
    assert len(seen) == 300 and duck.calls.count("ls") == 1


# -- what a backend can't do -----------------------------------------------------------------------------------


def test_what_can_not_be_has_a_clear_errno(volume):
    node = put(volume, b"f", b"x")
    all_refused(
        (errno.EPERM, volume.symlink, ROOT_NODE, b"s", b"f", ME),
        (errno.EPERM, volume.link, node, ROOT_NODE, b"l"),
        (errno.ENOTSUP, volume.setxattr, node, b"user.a", b""),
        (errno.EINVAL, volume.rename, ROOT_NODE, b"f", ROOT_NODE, b"g", RENAME_EXCHANGE),
    )
    assert volume.statfs().blocks_free > 0
    features = volume.features
    assert not (features.random_writes or features.rename or features.links or features.symlinks or features.xattrs)
    assert not (features.special_files or features.persistent_modes or features.change_feed or features.durable)
    assert features.blocking and not features.read_only
    assert not volume_of(StateBackend()).features.blocking


def test_a_backend_without_delete_refuses_to_lose_names():
    duck = DuckBackend(can_delete=False)
    duck.put("/f", b"x")
    duck.put("/d/f", b"x")
    volume = ForeignVolume(duck, ttl_s=0)
    all_refused(
        (errno.ENOTSUP, volume.unlink, ROOT_NODE, b"f"),
        (errno.ENOTSUP, volume.rename, ROOT_NODE, b"f", ROOT_NODE, b"g"),
        (errno.ENOTSUP, volume.rename, ROOT_NODE, b"d", ROOT_NODE, b"e"),
    )
    assert duck.files == {"/f": b"x", "/d/f": b"x"}
    volume.mkdir(ROOT_NODE, b"new", 0o755, ME)
    volume.rename(ROOT_NODE, b"new", ROOT_NODE, b"newer")  # what only this volume has can always go
    volume.rmdir(ROOT_NODE, b"newer")


def test_a_backend_that_can_not_store_is_read_only_and_one_that_can_not_list_is_refused():
    class Reading(DuckBackend):
        upload_files = write = None

    assert ForeignVolume(Reading()).features.read_only
    with pytest.raises(TypeError, match="neither ls nor ls_info"):
        ForeignVolume(object())
    with pytest.raises(TypeError, match="called with a runtime"):
        volume_of(StateBackend)


def test_a_state_that_only_the_caller_changes_is_changed():
    runtime = SimpleNamespace(state={"files": {}})

    class Seedlike(DuckBackend):
        def __init__(self):
            super().__init__()
            self.runtime = runtime

        def upload_files(self, files):
            answers = super().upload_files(files)
            for answer, (path, data) in zip(answers, files, strict=True):
                answer.files_update = {path: {"content": data.decode()}}
            return answers

    volume = ForeignVolume(Seedlike())
    put(volume, b"f", b"text")
    assert runtime.state["files"] == {"/f": {"content": "text"}}


# -- rename ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["upload_files", "download_files", "delete"])
def test_a_rename_that_fails_changes_nothing(volume, duck, verb):
    duck.put("/new", b"new")
    duck.put("/old", b"old")
    duck.put("/d/f", b"f")
    node_at(volume, "/new"), node_at(volume, "/old"), node_at(volume, "/d")
    before = dict(duck.files)
    duck.failing = {verb}
    for old, new in ((b"new", b"fresh"), (b"new", b"old"), (b"d", b"e")):
        refused(errno.EIO, volume.rename, ROOT_NODE, old, ROOT_NODE, new)
    duck.failing = set()
    copies = {"/fresh", "/e/f"} if verb == "delete" else set()  # could not be taken back either
    assert {path: data for path, data in duck.files.items() if path not in copies} == before
    assert names(volume)[0] == b"d" and b"new" in names(volume)


def test_a_directory_that_could_only_be_deleted_in_part_keeps_every_byte(volume, duck):
    for name in "abc":
        duck.put(f"/d/{name}", name.encode())
    node_at(volume, "/d")
    delete = duck.delete
    duck.delete = lambda path: delete(path) if path == "/d/a" else Answer(error="stuck")
    refused(errno.EIO, volume.rename, ROOT_NODE, b"d", ROOT_NODE, b"e")
    assert duck.files == {"/d/b": b"b", "/d/c": b"c", "/e/a": b"a", "/e/b": b"b", "/e/c": b"c"}


def test_a_backend_with_a_move_is_asked_to_do_it():
    state = StateBackend()
    state.write("/d/f", "x")
    created = state.runtime.state["files"]["/d/f"]
    volume = ForeignVolume(state)
    volume.rename(ROOT_NODE, b"d", ROOT_NODE, b"e")
    assert state.runtime.state["files"]["/e/f"] is created
    assert names(volume, node_at(volume, "/e")) == [b"f"]


def test_a_backend_that_holds_empty_directories_has_none_left(tmp_path):
    """Like deepagents' FilesystemBackend: directories of its own, and no `move`."""

    class Disk:
        def __init__(self, backend):
            for verb in ("ls", "upload_files", "download_files", "delete"):
                setattr(self, verb, getattr(backend, verb))

    disk = FilesystemBackend(tmp_path)
    volume = ForeignVolume(Disk(disk), ttl_s=0)
    (tmp_path / "a" / "b" / "empty").mkdir(parents=True)
    (tmp_path / "a" / "b" / "f").write_text("x")
    volume.rename(ROOT_NODE, b"a", ROOT_NODE, b"c")
    assert [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.rglob("*"))] == ["c", "c/b", "c/b/f"]
    assert names(volume) == [b"c"]
    inner = node_at(volume, "/c/b")
    assert names(volume, inner) == [b"empty", b"f"], "what can't be copied is kept in the volume"
    volume.rmdir(inner, b"empty")
    volume.unlink(inner, b"f")
    volume.rmdir(node_at(volume, "/c"), b"b")
    assert not (tmp_path / "c" / "b").exists()
    disk.close()


# -- nodes and caches ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("nothing_kept")
def test_numbers_are_stable_while_held_and_go_when_forgotten(duck, clock, believing):
    volume = believing
    for number in range(500):
        duck.put(f"/d{number % 5}/f{number}", b"x")
    nodes = [attr.node for _, attr in walk(volume)]
    for node in nodes:
        volume.hold(node)
    clock.now = 10
    assert [volume.getattr(node).node for node in nodes] == nodes
    assert len(volume._tree.entries()) == 506
    volume.forget(nodes)
    clock.now = 12
    names(volume)
    assert len(volume._tree.entries()) == 6, "the root, and what was just listed"
    assert node_at(volume, "/d0/f0") not in nodes, "a number is never used again"


@pytest.mark.usefixtures("nothing_kept")
def test_what_was_listed_and_never_held_goes_too(duck, clock, believing):
    volume = believing
    for number in range(100):
        duck.put(f"/d/f{number}", b"x")
    directory = node_at(volume, "/d")
    volume.hold(directory)
    volume.readdir(directory, b"", 1000)
    clock.now = 2
    names(volume)
    assert len(volume._tree.entries()) == 2
    volume.forget([directory])
    clock.now = 4
    names(volume)
    clock.now = 6
    refused(errno.ENOENT, volume.lookup, ROOT_NODE, b"none")
    assert len(volume._tree.entries()) == 1


def test_listings_are_bounded(duck, monkeypatch):
    monkeypatch.setattr(tree_module, "MAX_LISTED_NAMES", 100)
    volume = ForeignVolume(duck)
    for number in range(90):
        duck.put(f"/d{number}/f", b"x")
    for name in names(volume):
        node = volume.lookup(ROOT_NODE, name).node
        assert names(volume, node) == [b"f"]
    assert sum(len(entry.listing.infos) for entry in volume._tree.entries() if entry.is_dir) <= 100


def test_what_was_downloaded_for_its_size_is_bounded(monkeypatch, clock):
    monkeypatch.setattr(agent_remote, "PROBE_BYTES", 20)
    monkeypatch.setattr(agent_remote, "PROBE_LEAST_BYTES", 4)
    duck = DuckBackend(exact_sizes=False)
    for name, size in (("a", 10), ("b", 10), ("c", 0), ("large", 21)):
        duck.put(f"/{name}", bytes(size))
    volume = ForeignVolume(duck, clock=clock)
    volume.readdir(ROOT_NODE, b"", 100)

    def downloads(name):
        before = duck.calls.count("download_files")
        assert whole(volume, node_at(volume, f"/{name}")) == duck.files[f"/{name}"]
        return duck.calls.count("download_files") - before

    assert [downloads(name) for name in ("b", "c", "a", "large")] == [0, 0, 1, 1]


def test_a_listing_is_believed_for_its_time_and_what_is_done_here_is_in_it(duck, clock, believing):
    duck.put("/f", b"x")
    assert names(believing) == [b"f"]
    duck.put("/theirs", b"x")
    put(believing, b"ours", b"y")
    believing.unlink(ROOT_NODE, b"f")
    assert (names(believing), believing.lookup(ROOT_NODE, b"ours").size) == ([b"ours"], 1)
    clock.now = 1
    assert names(believing) == [b"ours", b"theirs"]


def test_what_the_other_face_changes_is_told_at_once(duck):
    volume = ForeignVolume(duck)
    duck.put("/d/f", b"old")
    node = node_at(volume, "/d/f")
    volume.open(node, os.O_RDONLY)
    heard = []
    stop = volume.subscribe(heard.append)
    duck.put("/d/f", b"newer")
    volume.told(AgentPath("/d/f"))
    parent = node_at(volume, "/d")
    assert Change(node=node, parent=parent, name=b"f") in heard
    assert volume.read(node, 0, 10) == b"newer" and volume.getattr(node).size == 5
    stop()
    volume.told(AgentPath("/d/f"))
    assert len(heard) == 4


def test_what_is_held_again_after_it_was_forgotten_stays(volume, duck):
    """A lookup in a thread is under way when the kernel gives back what it had: the loop forgets, then holds."""
    duck.write("/f", "x")
    node = volume.lookup(ROOT_NODE, b"f").node
    volume.hold(node)
    with volume.lock:  # so that what `forget` leaves for later is left
        together(lambda: (volume.forget([node]), volume.hold(node)))
    assert volume.lookup(ROOT_NODE, b"f").node == volume.getattr(node).node == node


@pytest.mark.usefixtures("nothing_kept")
def test_an_answer_on_its_way_to_the_loop_keeps_its_entry(duck, clock, believing):
    """A lookup has returned, and before the loop holds what it found, the kernel's older references come back."""
    volume = believing
    duck.put("/f", b"x")
    node = volume.lookup(ROOT_NODE, b"f").node
    volume.hold(node)
    volume.forget([node])
    names(volume)  # another request, which settles what it finds
    volume.hold(node)
    assert whole(volume, node) == b"x"
    volume.forget([node])
    clock.now = SETTLE_S
    names(volume)
    refused(errno.ESTALE, volume.getattr, node)


@pytest.mark.usefixtures("nothing_kept")
def test_hold_and_forget_never_wait(duck, clock, believing):
    volume = believing
    duck.put("/f", b"x")
    node = node_at(volume, "/f")
    entered, leave = threading.Event(), threading.Event()

    def hang():
        with volume.lock:
            entered.set()
            leave.wait(10)

    with beside(hang):
        entered.wait(10)
        volume.hold(node)
        volume.forget([node, 12345])
        leave.set()
    clock.now = 2 * SETTLE_S
    assert volume.lookup(ROOT_NODE, b"f").node != node


def test_one_volume_for_one_backend():
    native, duck = InMemoryBackend(), DuckBackend()
    assert volume_of(native) is native.volume
    assert foreign_volume(duck) is None
    volume = volume_of(duck)
    assert volume_of(duck) is volume is foreign_volume(duck)
    del volume
    assert foreign_volume(duck) is None


def test_a_backend_that_hides_its_volume_in_another_attribute_is_foreign(duck):
    duck.volume = "loud"
    assert isinstance(volume_of(duck), ForeignVolume)
