"""`CompositeBackend`: the rules of routes on the agent face, and backends of other dialects as routes."""

import contextlib
import errno
import itertools
import os
import threading
from types import SimpleNamespace

import anyio
import pytest
import sandboxes
from backend_kinds import opened_backend
from for_each import for_each
from hypothesis import given, settings
from hypothesis import strategies as st
from nodes import node_at
from profiles import examples
from seed_backends import Answer, DuckBackend, SeedInMemoryBackend
from whole_tree import whole_tree

from fusebackend.backends import (
    BackendProtocol,
    CompositeBackend,
    ExecuteResponse,
    FilesystemBackend,
    InMemoryBackend,
    LsResult,
    SandboxBackendProtocol,
    SqliteBackend,
    StateBackend,
    WriteResult,
    volume_of,
)
from fusebackend.backends.directory.volume import DirectoryVolume
from fusebackend.base import budget
from fusebackend.base.paths import PathError, is_below, normalise
from fusebackend.composite.route_table import PrefixTable
from fusebackend.integrations.deepagents import adopt
from fusebackend.protocol import ROOT_NODE, AttrChanges, Caller, Change
from fusebackend.testing.conformance import BackendConformance
from fusebackend.testing.each import each

pytest.importorskip("langgraph.store.memory")

ME = Caller(os.geteuid(), os.getegid())


class TestCompositeWithoutRoutes(BackendConformance):
    @pytest.fixture
    def backend(self):
        return CompositeBackend(InMemoryBackend())


@pytest.mark.configuration
class TestCompositeOverItself(BackendConformance):
    @pytest.fixture
    def backend(self):
        return CompositeBackend(CompositeBackend(InMemoryBackend()))


def listed(backend, path="/"):
    result = backend.ls(path)
    assert result.error is None
    return [info["path"] for info in result.entries]


def found(result):
    assert result.error is None
    return [match["path"] for match in result.matches]


def content(backend, path):
    (response,) = backend.download_files([path])
    return response.error or response.content


def filled(backend, *paths):
    for path in paths:
        (response,) = backend.upload_files([(path, f"TODO {path}\n".encode())])
        assert response.error is None
    return backend


# -- prefixes and paths ----------------------------------------------------------------------------------------


def test_duplicate_prefixes_and_missing_backends_are_refused():
    with pytest.raises(PathError, match="'a' and '/a/' mean the same directory '/a/'"):
        CompositeBackend(InMemoryBackend(), {"a": InMemoryBackend(), "/a/": InMemoryBackend()})
    with pytest.raises(TypeError, match="'/a' is None"):
        CompositeBackend(InMemoryBackend(), {"a": None})


def test_paths_are_normalised_before_they_are_routed():
    default, route = InMemoryBackend(), InMemoryBackend()
    composite = CompositeBackend(default, {"/a/": route})
    composite.write("//a/./x/../f", "route's")
    composite.write("/a/../f", "default's")
    assert content(route, "/f") == b"route's"
    assert content(default, "/f") == b"default's"
    for path in ("/a/../../f", "/..", "~/f", "", "/a\0b"):
        assert composite.read(path).error
        assert composite.write(path, "x").error
        assert composite.ls(path).error
        assert composite.delete(path).error
        assert composite.move(path, "/g").error
        assert composite.grep("x", path).error if path else True
        assert composite.download_files([path])[0].error == "invalid_path"
        assert composite.upload_files([(path, b"")])[0].error == "invalid_path"


# -- directories -----------------------------------------------------------------------------------------------


def test_missing_parents_are_synthesised_and_merge_with_what_is_there():
    default = InMemoryBackend()
    composite = CompositeBackend(default, {"/x/y/z/": filled(InMemoryBackend(), "/f")})
    assert listed(composite) == ["/x/"]
    assert listed(composite, "/x") == ["/x/y/"]
    assert listed(composite, "/x/y") == ["/x/y/z/"]
    assert composite.ls("/x/nothing").error
    composite.write("/x/beside", "default's")
    assert listed(composite, "/x") == ["/x/beside", "/x/y/"]


def test_what_a_route_covers_is_hidden_in_every_verb():
    default = filled(InMemoryBackend(), "/a/shadowed", "/x", "/top")
    first = filled(InMemoryBackend(), "/b/shadowed", "/f")
    nested = filled(InMemoryBackend(), "/g")
    composite = CompositeBackend(default, {"/a/": first, "/a/b/": nested, "/x/y/": InMemoryBackend()})
    assert listed(composite) == ["/a/", "/top", "/x/"]
    assert listed(composite, "/a") == ["/a/b/", "/a/f"]
    assert listed(composite, "/a/b/") == ["/a/b/g"]
    assert found(composite.grep("TODO")) == found(composite.glob("**/*")) == ["/a/b/g", "/a/f", "/top"]
    assert found(composite.grep("TODO", "/x")) == []
    assert composite.read("/a/shadowed").error
    assert "Is a directory" in composite.read("/x").error
    assert content(composite, "/a/shadowed") == "file_not_found"
    assert content(default, "/a/shadowed") != "file_not_found"


def test_a_failing_default_is_told_where_it_matters_and_routes_are_listed_still():
    class Broken(BackendProtocol):
        def ls(self, path):
            return LsResult(error="the disk is on fire")

    composite = CompositeBackend(Broken(), {"/x/y/": filled(InMemoryBackend(), "/f")})
    root = composite.ls("/")
    assert root.error == "the disk is on fire" and [info["path"] for info in root.entries] == ["/x/"]
    assert composite.ls("/x").error == "the disk is on fire"
    assert listed(composite, "/x/y") == ["/x/y/f"]


def test_a_directory_that_the_default_can_not_list_is_told_if_it_has_it():
    class Locked(InMemoryBackend):
        def ls(self, path):
            return super().ls(path) if path == "/" else LsResult(error="locked")

    with_directory = CompositeBackend(filled(Locked(), "/x/f"), {"/x/y/": InMemoryBackend()})
    assert with_directory.ls("/x").error == "locked"
    without = CompositeBackend(Locked(), {"/x/y/": InMemoryBackend()})
    assert listed(without, "/x") == ["/x/y/"]


@for_each("path", ["/", "/a", "/a/", "/x", "/x/y"])
def test_what_routes_need_as_directories_can_not_be_files_nor_go(path):
    default, first, second = filled(InMemoryBackend(), "/keep"), InMemoryBackend(), InMemoryBackend()
    composite = CompositeBackend(default, {"/a/": filled(first, "/f"), "/x/y/": filled(second, "/f")})
    busy, directory = os.strerror(errno.EBUSY), os.strerror(errno.EISDIR)
    assert busy in composite.delete(path).error
    assert busy in composite.move(path, "/elsewhere").error
    assert busy in composite.move("/keep", path).error
    assert directory in composite.write(path, "x").error
    assert directory in composite.edit(path, "a", "b").error
    assert directory in composite.read(path).error
    assert content(composite, path) == "is_directory"
    assert composite.upload_files([(path, b"x")])[0].error == "is_directory"
    assert listed(default) == ["/keep"] and listed(first) == ["/f"] and listed(second) == ["/f"]


# -- searches --------------------------------------------------------------------------------------------------


def tree():
    return CompositeBackend(
        filled(InMemoryBackend(), "/t.txt", "/x/z.txt", "/a/hidden.txt", "/x/y/hidden.txt"),
        {
            "/a/": filled(InMemoryBackend(), "/f.txt", "/s/g.py", "/b/hidden.txt"),
            "/a/b/": filled(InMemoryBackend(), "/h.txt", "/.hid/i.txt"),
            "/x/y/": filled(InMemoryBackend(), "/j.txt"),
        },
    )


@for_each(
    ("pattern", "path", "expected"),
    [
        ("a/**/*.txt", "/", ["/a/b/h.txt", "/a/f.txt"]),
        ("/a/*.txt", "/", ["/a/f.txt"]),
        ("a/b/*", "/", ["/a/b/h.txt"]),
        ("b/*.txt", "/a", ["/a/b/h.txt"]),
        ("*/*/*.txt", "/", ["/a/b/h.txt", "/x/y/j.txt"]),
        ("{a,x}/*/*.{txt,py}", "/", ["/a/b/h.txt", "/a/s/g.py", "/x/y/j.txt"]),
        ("{a/b,x}/*.txt", "/", ["/a/b/h.txt", "/x/z.txt"]),
        ("{a/b/h,x/y/j}.txt", "/", ["/a/b/h.txt", "/x/y/j.txt"]),
        ("**/.hid/*", "/", ["/a/b/.hid/i.txt"]),
        ("a/**", "/", ["/a/b/h.txt", "/a/f.txt", "/a/s/g.py"]),
        ("y/**", "/x", ["/x/y/j.txt"]),
        ("hidden.txt", "/", []),
        ("**/hidden.txt", "/", []),
        ("a/b/", "/", []),
    ],
)
def test_a_glob_with_a_slash_is_relative_to_the_searched_path_through_routes(pattern, path, expected):
    assert found(tree().glob(pattern, path)) == expected
    assert found(tree().grep("TODO", path, pattern)) == expected


names = st.sampled_from(["a", "b", ".h", "c.py", "d.txt"])
some_paths = st.lists(names, min_size=1, max_size=4).map(lambda parts: "/" + "/".join(parts))
patterns = st.lists(
    st.sampled_from(["*", "**", "a", "b", "?", ".h", ".*", "*.py", "{a,b}", "[ab]", "*.{py,txt}"]),
    min_size=1,
    max_size=4,
).map("/".join)


@settings(max_examples=examples(300), deadline=None)
@given(
    prefixes=st.lists(some_paths, max_size=4, unique=True),
    files=st.lists(some_paths, max_size=12, unique=True),
    shadows=st.lists(some_paths, max_size=6, unique=True),
    pattern=patterns,
    path=some_paths | st.just("/"),
    limit=st.none() | st.integers(0, 4),
)
def test_a_search_sees_what_one_backend_with_the_visible_files_would(prefixes, files, shadows, pattern, path, limit):
    """The reference is one backend that holds exactly the files of the tree; the composite has them spread over its
    routes, with others hidden below."""
    default, reference = StateBackend(), StateBackend()
    composite = CompositeBackend(default, {prefix: StateBackend() for prefix in prefixes})
    for shadow in shadows:
        # Not at a prefix itself: the files of routes are in the state below that key, and it would be `/a%=`.
        if any(shadow.startswith(prefix + "/") for prefix in prefixes) and shadow not in prefixes:
            default.upload_files([(shadow, b"TODO\nTODO\n")])
    for file in files:
        uploaded = composite.upload_files([(file, b"x\nTODO\n")])
        direct = reference.upload_files([(file, b"x\nTODO\n")])
        if uploaded[0].error is not None and direct[0].error is None:
            reference.delete(file)  # a file can't be where a route needs a directory
        if uploaded[0].error is None and direct[0].error is not None:
            composite.delete(file)  # a covered file was in the way of nobody
    assert found(composite.glob(pattern, path)) == found(reference.glob(pattern, path))
    mine = composite.grep("TODO", path, pattern, max_count=limit)
    theirs = reference.grep("TODO", path, pattern, max_count=limit)
    assert mine == theirs


def test_one_failing_route_hides_no_other(caplog):
    broken = DuckBackend()
    broken.failing = {"grep", "glob"}
    works = filled(InMemoryBackend(), "/g")
    composite = CompositeBackend(filled(InMemoryBackend(), "/f"), {"/ok/": works, "/ko/": broken})
    for result in (composite.grep("TODO"), composite.glob("*")):
        assert found(result) == ["/f", "/ok/g"]
        assert result.truncated
    assert "Route '/ko/'" in caplog.text
    nothing = composite.grep("no such text")
    assert nothing.matches is None
    assert nothing.error == "Route '/ko/': grep failed: ConnectionError: the grep line is cut"
    assert composite.glob("*", "/ko").error == "Route '/ko/': glob failed: ConnectionError: the glob line is cut"


def test_an_unconfined_default_is_searched_from_its_directory_and_relative_paths_begin_there(tmp_path):
    root = tmp_path / "work"
    (root / "sub").mkdir(parents=True)
    (root / "sub" / "f.txt").write_text("TODO here\n")
    (tmp_path / "outside.txt").write_text("TODO not here\n")
    with FilesystemBackend(root, virtual_mode=False) as default:
        route = filled(InMemoryBackend(), "/sub/g.txt")
        composite = CompositeBackend(default, {"/memories/": route})
        here = str(root / "sub" / "f.txt")
        everything = sorted([here, "/memories/sub/g.txt"])
        assert found(composite.grep("TODO")) == found(composite.glob("*.txt")) == everything
        assert found(composite.glob("sub/*.txt")) == [here]
        assert found(composite.glob("memories/**/*.txt")) == ["/memories/sub/g.txt"]
        assert found(composite.grep("TODO", str(root))) == [here]
        assert composite.write("new.txt", "relative").path == str(root / "new.txt")
        assert (root / "new.txt").read_text() == "relative"
        (root / "outside.txt").write_text("the volume's own, and not meant")
        assert composite.move(str(tmp_path / "outside.txt"), "/memories/moved.txt").error is None
        assert not (tmp_path / "outside.txt").exists() and (root / "outside.txt").exists()
        assert content(composite, "/memories/moved.txt") == b"TODO not here\n"
        assert composite.move("/memories/moved.txt", "back.txt").error is None
        assert (root / "back.txt").read_text() == "TODO not here\n"


# -- batches ---------------------------------------------------------------------------------------------------


def test_batches_are_grouped_per_backend_and_answered_in_order_with_the_paths_given():
    default, route = DuckBackend(), DuckBackend()
    composite = CompositeBackend(default, {"/r/": route, "/twin/": route})
    files = [("/a", b"1"), ("/r/b", b"2"), ("//c", b"3"), ("/../x", b"?"), ("/r", b"?"), ("/twin/d", b"4")]
    files.append(("/r/e", b"5"))
    answers = composite.upload_files(files)
    assert [answer.path for answer in answers] == [path for path, _ in files]
    assert [answer.error for answer in answers] == [None, None, None, "invalid_path", "is_directory", None, None]
    assert default.calls == ["upload_files"] and route.calls == ["upload_files"]
    assert route.files == {"/b": b"2", "/d": b"4", "/e": b"5"}
    answers = composite.download_files(["/r/e", "/nope", "/a", "/r/nope", "/twin/b"])
    assert [answer.path for answer in answers] == ["/r/e", "/nope", "/a", "/r/nope", "/twin/b"]
    assert [answer.content for answer in answers] == [b"5", None, b"1", None, b"2"]
    assert [answer.error for answer in answers] == [None, "file_not_found", None, "file_not_found", None]
    assert default.calls == ["upload_files", "download_files"] and route.calls == ["upload_files", "download_files"]
    assert composite.upload_files([]) == [] and composite.download_files([]) == []


def test_a_backend_that_answers_too_little_or_fails_is_an_error_of_its_items():
    class Short(DuckBackend):
        def upload_files(self, files):
            return super().upload_files(files)[:1]

        def download_files(self, paths):
            raise OSError("no line")

    composite = CompositeBackend(InMemoryBackend(), {"/r/": Short()})
    answers = composite.upload_files([("/r/a", b""), ("/r/b", b""), ("/c", b"")])
    assert [answer.error for answer in answers] == [None, "no answer from the backend", None]
    answers = composite.download_files(["/r/a", "/c"])
    assert answers[0].error == "Route '/r/': download_files failed: OSError: no line"
    assert answers[1].content == b""


# -- moves -----------------------------------------------------------------------------------------------------


def test_move_inside_a_route_is_the_backends_own():
    route = filled(InMemoryBackend(), "/f")
    composite = CompositeBackend(InMemoryBackend(), {"/r/": route})
    node = volume_of(route).lookup(1, b"f").node
    assert composite.move("/r/f", "/r/d/g").path == "/r/d/g"
    assert volume_of(route).lookup(volume_of(route).lookup(1, b"d").node, b"g").node == node
    assert composite.move("/r/nope", "/r/x").error == "Error: File '/r/nope' not found"
    composite.write("/r/other", "x")
    assert composite.move("/r/other", "/r/d/g").error == "Cannot move to /r/d/g because it already exists."


def make_zoo(backend):
    volume = backend.volume
    filled(backend, "/tree/d/run.sh", "/tree/empty-to-be/x")
    backend.delete("/tree/empty-to-be/x")
    top = volume.lookup(1, b"tree").node
    directory = volume.lookup(top, b"d").node
    script = volume.lookup(directory, b"run.sh").node
    volume.link(script, top, b"twin")
    volume.symlink(top, b"link", b"d/run.sh", ME)
    volume.mknod(top, b"pipe", 0o010644, 0, ME)
    volume.setattr(script, AttrChanges(mode=0o750, mtime_ns=10**18 + 7))
    volume.setxattr(script, b"user.colour", b"red")
    hole = volume.create(top, b"hole", 0o644, os.O_WRONLY, ME).node
    volume.write(hole, 10 << 20, b"end")
    volume.release(hole, os.O_WRONLY)
    volume.setattr(directory, AttrChanges(mode=unwritable(backend), mtime_ns=10**18))


def unwritable(backend):
    """The mode of a directory that nobody may write. From one of the machine root alone can move what is in it."""
    return 0o711 if isinstance(backend, FilesystemBackend) and os.geteuid() != 0 else 0o511


@for_each(("kind", "into"), [("memory", "memory"), ("memory", "sqlite"), ("sqlite", "dir"),
                                            ("dir", "sqlite"), ("dir", "memory")])  # fmt: skip
def test_move_across_routes_of_volumes_keeps_everything(kind, into, tmp_path):
    with opened_backend(kind, tmp_path / "a") as source, opened_backend(into, tmp_path / "b") as target:
        move_everything(source, target)


def move_everything(source, target):
    make_zoo(source)
    before = whole_tree(source.volume, b"tree", directory_times=True)
    composite = CompositeBackend(source, {"/r/": target})
    result = composite.move("/tree", "/r/new/place")
    assert result.error is None and result.path == "/r/new/place"
    assert listed(composite) == ["/r/"]
    assert whole_tree(target.volume, b"new/place", directory_times=True) == before
    assert target.volume.lookup(node_at(target.volume, "new/place"), b"hole").blocks * 512 < 1 << 20


@for_each("make", [StateBackend, DuckBackend, InMemoryBackend], ids=["state", "duck", "memory"])
@for_each("into", [StateBackend, DuckBackend, InMemoryBackend, SeedInMemoryBackend],
                         ids=["state", "duck", "memory", "seed"])  # fmt: skip
def test_move_across_routes_of_any_kind(make, into):
    source, target = make(), into()
    composite = CompositeBackend(InMemoryBackend(), {"/from/": source, "/to/": target})
    filled(composite, "/from/d/a", "/from/d/e/b", "/from/c")
    assert composite.move("/from/d", "/to/x/d").error is None
    assert composite.move("/from/c", "/to/c").path == "/to/c"
    assert found(composite.glob("*")) == ["/to/c", "/to/x/d/a", "/to/x/d/e/b"]
    assert content(composite, "/to/x/d/e/b") == b"TODO /from/d/e/b\n"
    assert composite.move("/from/nope", "/to/nope").error == "Error: File '/from/nope' not found"
    filled(composite, "/from/c")
    assert composite.move("/from/c", "/to/c").error == "Cannot move to /to/c because it already exists."
    assert content(composite, "/from/c") == b"TODO /from/c\n"


def test_a_move_that_a_backend_can_not_take_is_refused_before_anything_is_copied():
    source, target = InMemoryBackend(), DuckBackend()
    composite = CompositeBackend(source, {"/r/": target, "/seed/": filled(SeedInMemoryBackend(), "/f")})
    filled(source, "/d/f", "/d/e/x")
    source.delete("/d/e/x")
    assert "empty directory" in composite.move("/d", "/r/d").error
    source.delete("/d/e")
    source.volume.symlink(source.volume.lookup(1, b"d").node, b"s", b"f", ME)
    assert "symbolic link" in composite.move("/d", "/r/d").error
    assert "can't delete" in composite.move("/seed/f", "/r/f").error
    assert target.files == {} and content(source, "/d/f") == b"TODO /d/f\n"


def failing_at(volume, count):
    """Make the volume fail with ENOSPC at the `count`-th call that changes something; True once it has."""
    calls = itertools.count()
    failed = []

    def wrap(name):
        method = getattr(volume, name)

        def call(*args, **options):
            if next(calls) == count:
                failed.append(name)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return method(*args, **options)

        setattr(volume, name, call)

    for name in ("mkdir", "mknod", "create", "link", "symlink", "write", "setattr", "setxattr", "rename", "sync"):
        wrap(name)
    return failed


def test_a_move_that_fails_anywhere_leaves_the_source_and_no_copy():
    for count in itertools.count():
        source, target = InMemoryBackend(), InMemoryBackend()
        make_zoo(source)
        composite = CompositeBackend(source, {"/r/": target})
        failed = failing_at(target.volume, count)
        result = composite.move("/tree", "/r/new/place")
        if not failed:
            assert result.error is None
            break
        assert result.error == "Error moving '/tree' to '/r/new/place': No space left on device"
        assert listed(target) == [], f"something is left after {failed}"
        assert len(listed(composite, "/tree")) == 6
        assert content(composite, "/tree/d/run.sh") == b"TODO /tree/d/run.sh\n"
    assert count > 15


def test_a_source_that_changes_while_it_is_copied_is_not_taken_away():
    for source, target in ((InMemoryBackend(), InMemoryBackend()), (DuckBackend(), InMemoryBackend())):
        composite = CompositeBackend(source, {"/r/": target})
        filled(composite, "/d/a", "/d/b")
        sync = target.volume.sync

        def change_and_sync(source=source, sync=sync):
            source.upload_files([("/d/a", b"newer")])
            sync()

        target.volume.sync = change_and_sync
        assert "changed while it was being moved" in composite.move("/d", "/r/d").error
        assert content(composite, "/d/a") == b"newer"
        assert listed(target) == []


def test_a_copy_that_reads_back_wrong_is_no_copy():
    class Corrupting(DuckBackend):
        def upload_files(self, files):
            return super().upload_files([(path, data[:-1]) for path, data in files])

    composite = CompositeBackend(filled(InMemoryBackend(), "/f"), {"/r/": Corrupting()})
    assert "not what was copied" in composite.move("/f", "/r/f").error
    assert content(composite, "/f") == b"TODO /f\n" and content(composite, "/r/f") == "file_not_found"


def test_a_source_that_can_not_be_deleted_after_all_is_told_and_nothing_is_lost():
    source = filled(DuckBackend(), "/f")
    source.failing = {"delete"}
    composite = CompositeBackend(InMemoryBackend(), {"/from/": source})
    result = composite.move("/from/f", "/f")
    assert "could not be removed" in result.error and result.path is None
    assert content(composite, "/f") == content(composite, "/from/f") == b"TODO /f\n"


# -- state -----------------------------------------------------------------------------------------------------


def runtime():
    return SimpleNamespace(state={"messages": [], "files": {}})


def test_what_the_state_had_before_is_there_under_the_same_paths():
    shared = runtime()
    shared.state["files"] = {"/memories/old.md": {"content": ["from", "v1"]}}
    composite = CompositeBackend(StateBackend(shared), {"/memories/": StateBackend(shared)})
    assert content(composite, "/memories/old.md") == b"from\nv1"


def test_a_route_with_a_state_of_its_own_is_merged_too():
    default, route = StateBackend(runtime()), StateBackend()
    composite = CompositeBackend(default, {"/r/": route})
    update = composite.upload_files([("/r/b", b"\xff")])[0].files_update
    assert list(update) == ["/r/b"]
    assert default.runtime.state["files"]["/r/b"] == update["/r/b"]
    assert listed(composite) == ["/r/"] and listed(composite, "/r") == ["/r/b"]
    moved = composite.move("/r/b", "/c")
    assert moved.files_update["/r/b"] is None and moved.files_update["/c"]["encoding"] == "base64"
    assert list(default.runtime.state["files"]) == ["/c"]


def test_a_backend_that_only_returns_updates_is_merged_and_a_default_without_state_is_left_alone():
    class Seedlike(SeedInMemoryBackend):
        """Korean seed, best practice 3: written elsewhere, and `files_update` for compatibility."""

        def write(self, file_path, content):
            super().write(file_path, content)
            return WriteResult(path=file_path, files_update={file_path: {"content": content.splitlines()}})

    default = StateBackend(runtime())
    update = CompositeBackend(default, {"/s/": Seedlike()}).write("/s/f", "x").files_update
    assert update == {"/s/f": {"content": ["x"]}} == default.runtime.state["files"]
    assert CompositeBackend(InMemoryBackend(), {"/s/": Seedlike()}).write("/s/f", "x").files_update == update


def test_somebody_elses_state_backend_over_the_same_runtime_finds_what_it_wrote():
    shared = runtime()

    class Theirs(BackendProtocol):
        """Seed: the state is not changed by `write`, and files are looked up by inner paths."""

        def __init__(self, runtime):
            self.runtime = runtime

        def write(self, file_path, content):
            return WriteResult(path=file_path, files_update={file_path: {"content": content.split("\n")}})

        def read(self, file_path, offset=0, limit=2000):
            return "\n".join(f"{1:6}\t{line}" for line in self.runtime.state["files"][file_path]["content"])

    composite = CompositeBackend(StateBackend(shared), {"/theirs/": Theirs(shared)})
    assert list(composite.write("/theirs/f", "x").files_update) == ["/f"]
    assert "x" in composite.read("/theirs/f")


def test_a_state_that_takes_no_update_is_no_error(caplog):
    frozen = SimpleNamespace(state=((),))

    class Default(InMemoryBackend):
        runtime = frozen

    composite = CompositeBackend(Default(), {"/r/": StateBackend()})
    assert list(composite.write("/r/f", "x").files_update) == ["/r/f"]
    assert "takes no update" in caplog.text


# -- errors ----------------------------------------------------------------------------------------------------


def test_errors_speak_of_the_path_the_agent_knows():
    composite = CompositeBackend(InMemoryBackend(), {"/m/": SeedInMemoryBackend(), "/d/": DuckBackend()})
    assert composite.read("/m/x").error == "Error: File '/m/x' not found"
    assert composite.read("/d/x").error == "File '/d/x' not found"
    composite.write("/m/x", "/x and /x")
    assert composite.write("/m/x", "").error == "Cannot write to /m/x because it already exists."
    assert composite.ls("/d/x").error == "Path '/d/x': path_not_found"
    assert composite.edit("/m/x", "nothing", "y").error == "old_string not found in /m/x"
    composite.write("/d/x", "text")
    # What the error quotes of the agent's own words stays.
    assert composite.edit("/d/x", "see /x", "y").error == "Error: String not found in file: 'see /x'"
    assert "does not support delete" in composite.delete("/m/x").error


@for_each(
    "error", ["/x/y is above", "see /other/x", "x", "at /x.txt", "http://x/x", "/xy", "a-/x"],
)  # fmt: skip
def test_only_whole_paths_are_replaced(error):
    class Saying(DuckBackend):
        def delete(self, file_path):
            return Answer(error=error)

    assert CompositeBackend(InMemoryBackend(), {"/m/": Saying()}).delete("/m/x").error == error


@for_each("verb", ["ls", "read", "write", "edit", "grep", "glob", "delete", "move"])
def test_a_backend_without_a_verb_gives_an_error_that_names_the_route(verb):
    composite = CompositeBackend(InMemoryBackend(), {"/bare/": BackendProtocol()})
    arguments = {"ls": ("/bare",), "grep": ("x", "/bare"), "glob": ("*", "/bare"), "write": ("/bare/f", ""),
                 "edit": ("/bare/f", "a", "b"), "move": ("/bare/f", "/bare/g")}  # fmt: skip
    error = getattr(composite, verb)(*arguments.get(verb, ("/bare/f",))).error
    if verb == "move":
        assert error == "Error moving '/bare/f' to '/bare/g': Route '/bare/' does not support ls"
    else:
        assert error == f"Route '/bare/' (BackendProtocol) does not support {verb}"


@for_each("answer", [None, 5, "text", b"", {"entries": 5}, {"matches": "x"}, [None], [{"path": 5}], {}])
def test_nonsense_from_a_backend_never_raises(answer):
    class Nonsense:
        def __getattr__(self, verb):
            if verb.startswith("a") or verb in ("runtime", "volume", "exact_sizes", "blocking", "durable"):
                raise AttributeError(verb)
            return lambda *args, **options: answer

    composite = CompositeBackend(filled(InMemoryBackend(), "/f"), {"/n/": Nonsense()})
    composite.read("/n/f"), composite.ls("/n"), composite.glob("*", "/n"), composite.grep("x", "/n")
    assert composite.write("/n/f", "").error and composite.edit("/n/f", "a", "b").error
    assert composite.download_files(["/n/f"])[0].error
    assert len(composite.upload_files([("/n/f", b""), ("/n/g", b"")])) == 2
    assert found(composite.grep("TODO")) == ["/f"]


# -- dialects --------------------------------------------------------------------------------------------------


def test_a_backend_that_only_awaits_works_from_asyncio_from_trio_and_from_plain_code():
    class Awaiting(BackendProtocol):
        async def aread(self, file_path, offset=0, limit=2000):
            await anyio.sleep(0)
            return f"{1:6}\tfrom {file_path}"

        async def agrep(self, pattern, path=None, glob=None):
            return [{"path": "/f", "line": 1, "text": pattern}]

    composite = CompositeBackend(InMemoryBackend(), {"/r/": Awaiting()})
    assert "from /f" in composite.read("/r/f")
    assert found(composite.grep("x", max_count=5)) == ["/r/f"]

    async def read():
        return await composite.aread("/r/f")

    for library in ("asyncio", "trio"):
        assert "from /f" in anyio.run(read, backend=library)


# -- factories -------------------------------------------------------------------------------------------------


def test_factories_are_made_when_the_composite_is_called_with_a_runtime():
    composite = CompositeBackend(StateBackend, {"/m/": lambda runtime: StateBackend(runtime), "/r/": InMemoryBackend()})
    for error in (composite.write("/f", "x").error, composite.read("/m/f").error, composite.ls("/").error,
                  composite.download_files(["/m/f"])[0].error, composite.move("/r/f", "/g").error):  # fmt: skip
        assert "needs a runtime" in error
    assert composite.write("/r/f", "x").error is None  # what is no factory works
    shared = runtime()
    resolved = composite(shared)
    resolved.write("/f", "x")
    resolved.write("/m/f", "y")
    assert list(shared.state["files"]) == ["/f", "/m/f"]
    assert content(resolved, "/r/f") == b"x"
    assert resolved.resolve(shared) is resolved
    assert composite.resolve(runtime()).read("/f").error == "File '/f' not found"


def test_nested_composites_are_resolved_too():
    nested = CompositeBackend(StateBackend)
    composite = CompositeBackend(StateBackend, {"/n/": nested, "/l/": lambda runtime: CompositeBackend(StateBackend)})
    shared = runtime()
    resolved = composite.resolve(shared)
    for path in ("/f", "/n/f", "/l/f"):
        assert list(resolved.write(path, path).files_update) == [path]
    assert list(shared.state["files"]) == ["/f", "/n/f", "/l/f"]  # three files, in one state
    assert "/l/f" in resolved.read("/l/f")
    assert "needs a runtime" in composite.write("/n/f", "x").error


@pytest.mark.parametrize("made", [None, StateBackend])
def test_a_factory_that_makes_no_backend_is_refused(made):
    with pytest.raises(TypeError, match="no backend"):
        CompositeBackend(lambda runtime: made).resolve(runtime())


# -- execution -------------------------------------------------------------------------------------------------


class Shell(InMemoryBackend, SandboxBackendProtocol):
    id = "shell-1"

    def execute(self, command, *, timeout=None):
        return ExecuteResponse(output=f"{command} {timeout}", exit_code=0)


def test_execute_is_the_defaults():
    composite = CompositeBackend(Shell(), {"/r/": InMemoryBackend()})
    assert composite.execute("ls").output == "ls None"
    assert composite.execute("ls", timeout=5).output == "ls 5"
    assert composite.id == "shell-1"
    assert CompositeBackend(composite).execute("ls").output == "ls None"

    async def run():
        nested = await CompositeBackend(composite).aexecute("x")
        return (await composite.aexecute("ls", timeout=7)).output, nested.output

    for library in ("asyncio", "trio"):
        assert anyio.run(run, backend=library) == ("ls 7", "x None")


def test_execute_of_a_stranger_that_has_it():
    class Stranger(DuckBackend):
        id = "stranger"

        def execute(self, command):
            return Answer(path=command)

    composite = CompositeBackend(Stranger())
    assert composite.execute("ls", timeout=5).path == "ls" and composite.id == "stranger"

    async def run():
        return (await composite.aexecute("ls")).path

    assert anyio.run(run, backend="trio") == "ls"


# -- mounts ----------------------------------------------------------------------------------------------------


def test_changes_of_a_backend_without_a_feed_are_told_to_its_mount():
    duck = filled(DuckBackend(), "/d/old")
    volume = volume_of(duck)
    composite = CompositeBackend(InMemoryBackend(), {"/r/": duck})
    directory = volume.lookup(1, b"d").node
    file = volume.lookup(directory, b"old").node
    heard = []
    volume.subscribe(heard.append)
    composite.edit("/r/d/old", "TODO", "DONE NOW")
    assert Change(node=file, parent=directory, name=b"old") in heard
    assert volume.getattr(file).size == len(b"DONE NOW /d/old\n")
    composite.write("/r/d/new", "")
    assert Change(parent=directory, name=b"new") in heard
    composite.delete("/r/d")
    assert Change(node=directory, parent=1, name=b"d") in heard
    with pytest.raises(OSError, match="Stale"):
        volume.getattr(file)


def test_a_mount_sees_nested_composites_taken_apart():
    parts = [InMemoryBackend() for _ in range(7)]
    outer_default = CompositeBackend(parts[0], {"/a/": parts[1], "/x/covered/": parts[2]})
    nested = CompositeBackend(parts[3], {"/deep/er/": parts[4]})
    composite = CompositeBackend(outer_default, {"/n/": nested, "/x/": parts[5], "/n/deep/beside/": parts[6]})
    assert composite.mounts() == {
        "/": parts[0], "/a": parts[1], "/n": parts[3], "/n/deep/er": parts[4], "/x": parts[5],
        "/n/deep/beside": parts[6],
    }  # fmt: skip
    for prefix, backend in composite.mounts().items():
        composite.write(f"{prefix}/probe", prefix)
        assert content(backend, "/probe") == prefix.encode()


@pytest.mark.parametrize("target", [InMemoryBackend, DuckBackend])
def test_a_move_that_is_cancelled_ends_within_its_file_and_leaves_nothing(tmp_path, target, monkeypatch):
    """A sparse file of 4 TiB went on being copied for long after its client had gone."""
    (tmp_path / "near").write_text("near")
    with (tmp_path / "large").open("wb") as file:
        for _ in range(64):
            file.write(b"data" * (1 << 18))
    route = target()
    backend = CompositeBackend(FilesystemBackend(tmp_path, virtual_mode=True), {"/other": route})
    cancelled, reads = threading.Event(), 0
    volume_read = DirectoryVolume.read

    def read(volume, node, offset, size):
        nonlocal reads
        reads += 1
        if reads == 20:
            cancelled.set()
        return volume_read(volume, node, offset, size)

    monkeypatch.setattr(DirectoryVolume, "read", read)
    with budget.limited(None, cancelled=cancelled):
        answer = backend.move("/large", "/other/large")
    assert answer.error == "Error moving '/large' to '/other/large': Cancelled; what was copied has been removed"
    assert reads <= 21
    assert [info["path"] for info in backend.ls("/").entries] == ["/large", "/near", "/other/"]
    assert backend.ls("/other").entries == []
    assert (tmp_path / "large").stat().st_size == 64 << 20
    assert backend.move("/near", "/other/near").error is None


@pytest.mark.parametrize("into", ["memory", "sqlite", "directory"])
def test_holes_are_not_read_when_a_file_moves(tmp_path, into):
    """Of 1 TiB, which would take half an hour. There and back, for each side knows of its holes."""
    (tmp_path / "from").mkdir()
    (tmp_path / "to").mkdir()
    large = tmp_path / "from/large"
    with large.open("wb") as file:
        file.write(b"begins")
        file.seek(1 << 39)
        file.write(b"goes on")
        file.truncate(1 << 40)
    target = {
        "memory": InMemoryBackend,
        "sqlite": lambda: SqliteBackend(tmp_path / "volume.db"),
        "directory": lambda: FilesystemBackend(tmp_path / "to", virtual_mode=True),
    }[into]()
    backend = CompositeBackend(FilesystemBackend(tmp_path / "from", virtual_mode=True), {"/other": target})
    assert backend.move("/large", "/other/large").error is None
    assert not large.exists()
    volume = volume_of(target)
    attr = volume.lookup(1, b"large")
    assert (attr.size, attr.blocks < 16_384) == (1 << 40, True)
    assert backend.move("/other/large", "/large").error is None
    with large.open("rb") as file:
        assert file.read(10) == b"begins\0\0\0\0"
        file.seek(1 << 39)
        assert file.read(10) == b"goes on\0\0\0"
    assert (large.stat().st_size, large.stat().st_blocks < 16_384) == (1 << 40, True)
    target.close()


# -- the route table ---------------------------------------------------------------------------------------------------


segments = st.lists(st.sampled_from(["a", "b", "ab", "c"]), min_size=1, max_size=4)
directories = segments.map(lambda names: "/" + "/".join(names))


@given(st.lists(directories, max_size=6, unique=True), directories)
def test_route_agrees_with_the_definition(prefixes, text):
    table, path = PrefixTable(prefixes), normalise(text)
    holding = [prefix for prefix in prefixes if is_below(path, prefix)]
    prefix, inner = table.route(path)
    assert prefix == (max(holding, key=len) if holding else None)
    assert f"{prefix or ''}{inner}".rstrip("/") == path.rstrip("/")
    assert normalise(inner) == inner
    assert table.covers(prefix, path) == (path in table.pinned)
    assert table.covers(None, path) == (path in table.pinned or prefix is not None)


@given(st.lists(directories, max_size=6, unique=True), directories | st.just("/"))
def test_the_names_in_a_directory_are_its_routes_and_the_ways_to_deeper_ones(prefixes, text):
    table, directory = PrefixTable(prefixes), normalise(text)
    below = [normalise(prefix) for prefix in prefixes if is_below(prefix, directory) and prefix != directory]
    assert table.prefixes_below(directory) == tuple(sorted(below))
    names = {prefix[len(directory.rstrip("/")) + 1 :].split("/")[0] for prefix in below}
    assert table.names_below(directory) == tuple(sorted(names))
    assert (directory in table.pinned) == (directory == "/" or bool(below) or directory in prefixes)


# -- a slash at the end of a path --------------------------------------------------------------------------------------


@pytest.fixture
def kinds(tmp_path):
    (tmp_path / "box").mkdir()
    box = sandboxes.LocalSandbox(tmp_path / "box", sandboxes.tools("gnu", tmp_path / "tools"))
    with contextlib.ExitStack() as stack:
        made = {
            kind: stack.enter_context(opened_backend(kind, tmp_path / kind))
            for kind in ("memory", "sqlite", "dir", "store")
        }
        yield {**made, "sandbox": box, "foreign": adopt(DuckBackend())}


def test_a_file_with_a_slash_is_not_deleted(kinds):
    routed = {f"route of {name}": CompositeBackend(InMemoryBackend(), {"/m/": each}) for name, each in kinds.items()}
    for case in each({**kinds, **routed}):
        with case as backend:
            top = "/m" if "route" in case.name else ""
            files = [f"{top}/{case.name}/{name}" for name in ("file", "dir/inner")]
            for path in files:
                assert backend.write(path, "x").error is None
            for path in (files[0] + "/", files[0] + "//"):
                error = backend.delete(path).error
                assert error is not None and ("Not a directory" in error or "not_a_directory" in error), error
            assert backend.download_files(files[:1])[0].content == b"x"
            assert backend.delete(f"{top}/{case.name}/dir/").error is None
            assert backend.download_files(files[1:])[0].error == "file_not_found"
            error = backend.delete(f"{top}/{case.name}/none/").error
            assert "not found" in error and f"'{top}/{case.name}/none" in error
            assert backend.delete(files[0]).error is None
            assert backend.download_files(files[:1])[0].error == "file_not_found"


def test_a_link_to_a_directory_goes_as_it_is_listed(kinds):
    for case in each({"memory": kinds["memory"], "sqlite": kinds["sqlite"]}):
        with case as backend:
            backend.write("/dir/inner", "x")
            backend.volume.symlink(ROOT_NODE, b"link", b"dir", Caller(0, 0))
            assert [info["path"] for info in backend.ls("/").entries] == ["/dir/", "/link/"]
            assert backend.delete("/link/").error is None
            assert [info["path"] for info in backend.ls("/").entries] == ["/dir/"]
            assert backend.download_files(["/dir/inner"])[0].content == b"x"
