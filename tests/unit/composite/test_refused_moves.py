"""A move between routes, a tree's deletion and a rename in a view are complete, or refused with nothing changed."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from backend_kinds import opened_backend
from for_each import for_each
from nodes import ME, node_at
from raising import raising
from seed_backends import DuckBackend

from fusebackend.backends import CompositeBackend, FilesystemBackend, InMemoryBackend, SqliteBackend, volume_of
from fusebackend.backends.directory import nodes
from fusebackend.base.deadline import GivenUp
from fusebackend.base.errors import oserror
from fusebackend.protocol import ROOT_NODE, AttrChanges, DeleteResult, FileUploadResponse, Volume
from fusebackend.rules import met
from fusebackend.rules.rule import RouteRules
from fusebackend.rules.ruled_volume import RuledVolume
from fusebackend.rules.view import View
from fusebackend.server.rules import with_route_rules
from fusebackend.testing.each import each
from fusebackend.volumes.agent_face import VolumeBackend
from fusebackend.volumes.placing import NodeSource
from fusebackend.volumes.walk import below

NOBODY = 65534
BOTH = ["read", "write"]
KINDS = ("memory", "sqlite", "dir", "foreign")

Rules = Sequence[Mapping[str, Any]]


def put(backend: Any, *names: str) -> None:
    answers = backend.upload_files([(name, name.encode()) for name in names])
    assert [answer.error for answer in answers] == [None] * len(names)


def everything(volume: Volume) -> dict[bytes, object]:
    """All names of a volume, with what must not change but by a verb that is made. Each is looked up when it is read:
    a directory on disk may not keep as many nodes in mind."""
    volume.expire()
    found: dict[bytes, object] = {}
    for path, attr in below(volume, ROOT_NODE):
        is_file = stat.S_ISREG(attr.mode)
        data = b"".join(piece for _, piece in NodeSource(volume, node_at(volume, path)).pieces()) if is_file else None
        found[path] = (stat.S_IFMT(attr.mode), data)
    return found


def in_view(rules: Rules, parts: Mapping[str, Any]) -> CompositeBackend:
    """The agent face of a view over these backends, by their prefixes, as a server makes it."""
    view = View("v", rules)
    faces: dict[str, Any] = {
        prefix: VolumeBackend(RuledVolume(volume_of(backend), view, prefix)) for prefix, backend in parts.items()
    }
    return CompositeBackend(faces.pop("/"), faces)


def rule(mode: str, *paths: str, operations: Sequence[str] = BOTH) -> dict[str, Any]:
    return {"operations": list(operations), "paths": list(paths), "mode": mode}


REFUSALS: dict[str, Rules] = {
    "hidden by its name": [rule("hide", "/**/.env")],
    "hidden by its path": [rule("hide", "/tree/d/.env")],
    "hidden with its directory": [rule("hide", "/tree/d")],
    "not to be read": [rule("deny", "/**/.env", operations=["read"])],
    "not to be read without an approval": [rule("interrupt", "/**/.env", operations=["read"])],
    "not to be changed": [rule("deny", "/tree/d/**", operations=["write"])],
    "not to be changed without an approval": [rule("interrupt", "/tree/d/**", operations=["write"])],
    "to be appended to": [rule("append", "/tree/d/.env", operations=["write"])],
    "a directory whose names may not be read": [rule("deny", "/tree/d", operations=["read"])],
    "the new place is hidden": [rule("hide", "/r/new/**")],
    "the new place is denied": [rule("deny", "/r/new/**", operations=["write"])],
    "something in the new place is denied": [rule("deny", "/r/new/tree/d/.env", operations=["write"])],
    "something in the new place may be appended to": [rule("append", "/r/new/tree/d/**", operations=["write"])],
    "the new place may be appended to": [rule("append", "/r/**", operations=["write"])],
}


@for_each("kind", KINDS)
@for_each("into", ("memory", "foreign"))
def test_what_rules_refuse_of_a_move_is_refused_before_it_begins(kind: str, into: str, tmp_path: Path) -> None:
    with opened_backend(kind, tmp_path / "a") as source, opened_backend(into, tmp_path / "b") as target:
        put(source, "/tree/a", "/tree/d/.env", "/tree/d/x", "/tree/z")
        put(target, "/other")
        volumes = volume_of(source), volume_of(target)
        before = [everything(volume) for volume in volumes]
        for case in each(REFUSALS):
            with case as rules:
                view = in_view(rules, {"/": source, "/r": target})
                result = view.move("/tree", "/r/new/tree")
                assert "Permission denied" in str(result.error) and "/.env" not in str(result.error)
                assert [everything(volume) for volume in volumes] == before


@for_each("kind", KINDS)
def test_what_a_route_hides_stays_where_it_is(kind: str, tmp_path: Path) -> None:
    with opened_backend(kind, tmp_path / "a") as source, InMemoryBackend() as target:
        put(source, "/tree/a", "/tree/d/.env")
        before = everything(volume_of(source))
        for prefix, old, new in (("/", "/tree", "/r/t"), ("/r", "/r/tree", "/t")):
            parts = {"/": source, "/r": target} if prefix == "/" else {"/": target, "/r": source}
            default = parts.pop("/")
            files = with_route_rules(CompositeBackend(default, parts), {prefix: RouteRules(hide=("**/.env",))})
            assert "Permission denied" in str(files.move(old, new).error)
            assert "Permission denied" in str(files.delete(old).error)
            assert everything(volume_of(source)) == before and everything(volume_of(target)) == {}


def test_the_names_that_the_server_gives_meanwhile_are_in_no_rule() -> None:
    with InMemoryBackend() as source, InMemoryBackend() as target:
        put(source, "/tree/d/x")
        rules = [
            rule("append", "/r/a/**", operations=["write"]),
            rule("deny", "/r/.*", "/r/.*/**", "/.*", "/.*/**", operations=["write"]),
            rule("deny", "/tree/absent/**"),
        ]
        assert in_view(rules, {"/": source, "/r": target}).move("/tree", "/r/tree").error is None
        assert everything(volume_of(source)) == {}
        assert set(everything(volume_of(target))) == {b"/tree", b"/tree/d", b"/tree/d/x"}


def test_a_refusal_names_nothing_that_is_hidden() -> None:
    with InMemoryBackend() as source:
        put(source, "/tree/f")
        source.volume.symlink(node_at(source.volume, "tree"), b".env", b"f", ME)
        source.volume.symlink(ROOT_NODE, b"own.env", b"f", ME)
        view = in_view([rule("hide", "/**/*.env", "/**/.env")], {"/": source, "/r": DuckBackend()})
        assert ".env" not in str(view.move("/tree", "/r/tree").error)
        assert view.move("/own.env", "/r/x").error == "Error: File '/own.env' not found"


def test_a_link_on_the_way_leads_past_no_rule() -> None:
    with InMemoryBackend() as source, InMemoryBackend() as target:
        put(source, "/secrets/key", "/plain")
        source.volume.symlink(ROOT_NODE, b"way", b"secrets", ME)
        view = in_view([rule("hide", "/secrets")], {"/": source, "/r": target})
        assert "not found" in str(view.move("/way/key", "/r/key").error)
        target.volume.symlink(ROOT_NODE, b"way", b"kept", ME)
        put(target, "/kept/k")
        view = in_view([rule("deny", "/r/kept/**")], {"/": source, "/r": target})
        assert "Permission denied" in str(view.move("/plain", "/r/way/plain").error)
        assert set(everything(target.volume)) == {b"/way", b"/kept", b"/kept/k"}


def test_names_of_one_file_stay_so_where_a_route_hides_others() -> None:
    with InMemoryBackend() as source, InMemoryBackend() as target:
        put(source, "/tree/f", "/.env")
        source.volume.link(node_at(source.volume, "tree/f"), node_at(source.volume, "tree"), b"g")
        source.volume.setattr(node_at(source.volume, "tree/f"), AttrChanges(mode=0o4755))
        files = with_route_rules(CompositeBackend(source, {"/r": target}), {"/": RouteRules(hide=("**/.env",))})
        assert files.move("/tree", "/r/tree").error is None
        moved = target.volume.getattr(node_at(target.volume, "r/tree/f".removeprefix("r/")))
        assert (moved.node, moved.nlink, moved.mode & 0o7777) == (node_at(target.volume, "tree/g"), 2, 0o4755)


def test_what_gets_a_hidden_name_while_it_is_copied_stays() -> None:
    with InMemoryBackend() as source, InMemoryBackend() as target:
        put(source, "/tree/f")
        sync = target.volume.sync

        def hide_and_sync() -> None:
            put(source, "/tree/.env")
            sync()

        target.volume.sync = hide_and_sync  # type: ignore[method-assign]
        view = in_view([rule("hide", "/**/.env")], {"/": source, "/r": target})
        assert "Permission denied" in str(view.move("/tree", "/r/tree").error)
        assert set(everything(source.volume)) == {b"/tree", b"/tree/f", b"/tree/.env"}
        assert everything(target.volume) == {}


def test_a_hidden_name_is_noted_until_its_removal_is_durable() -> None:
    """A kill takes back what is not: the file had its hidden name again, and nobody knew."""
    done: list[object] = []
    with InMemoryBackend() as source, InMemoryBackend() as target:
        put(source, "/tree/f")
        source.volume.sync = lambda: done.append(everything(source.volume))  # type: ignore[method-assign]
        both = CompositeBackend(source, {"/r": target})
        both.note_hidden = lambda names: lambda: done.append("forgotten")
        assert both.move("/tree", "/r/tree").error is None
    assert done[:2] == [{}, "forgotten"]


def test_a_new_place_that_is_moved_meanwhile_gets_nothing() -> None:
    with InMemoryBackend() as source, InMemoryBackend() as target:
        put(source, "/f")
        put(target, "/open/x", "/shut/x")
        place = target.volume.place

        def move_and_place(*args: Any) -> Any:
            target.volume.place = place  # type: ignore[method-assign]
            target.volume.rename(ROOT_NODE, b"open", node_at(target.volume, "shut"), b"open")
            return place(*args)

        target.volume.place = move_and_place  # type: ignore[method-assign]
        view = in_view([rule("deny", "/r/shut/**")], {"/": source, "/r": target})
        assert view.move("/f", "/r/open/f").error is not None
        assert set(everything(source.volume)) == {b"/f"}
        assert set(everything(target.volume)) == {b"/shut", b"/shut/x", b"/shut/open", b"/shut/open/x"}


# -- what an approval could allow --------------------------------------------------------------------------------


def test_nobody_is_asked_for_what_can_never_be_made() -> None:
    rules = [rule("interrupt", "/prod/**", operations=["write"]), rule("deny", "/prod/x/locked", "/r/locked/**"),
             rule("deny", "/blind/**", operations=["read"])]  # fmt: skip
    never: dict[str, Callable[[CompositeBackend], Any]] = {
        "a directory that other rules would hold for": lambda files: files.move("/prod/d", "/plain"),
        "one that comes there": lambda files: files.move("/draft", "/prod/draft"),
        "a file that could not be read there": lambda files: files.move("/prod/a", "/blind/a"),
        "a tree with something denied": lambda files: files.delete("/prod/x"),
        "a tree of another route": lambda files: files.move("/prod/x", "/r/x"),
        "a place that is denied": lambda files: files.move("/prod/d", "/r/locked/d"),
        "a place that is there": lambda files: files.move("/prod/d", "/r/there"),
    }
    asked: dict[str, Callable[[CompositeBackend], Any]] = {
        "a file in its route": lambda files: files.move("/prod/a", "/plain"),
        "a file that comes there": lambda files: files.move("/draft/a", "/prod/new/a"),
        "a tree": lambda files: files.delete("/prod/d"),
        "a tree of another route": lambda files: files.move("/prod/d", "/r/d"),
    }
    with InMemoryBackend() as default, InMemoryBackend() as route:
        put(default, "/prod/a", "/prod/d/b", "/prod/x/locked", "/prod/x/a", "/draft/a")
        put(route, "/there")
        files = in_view(rules, {"/": default, "/r": route})
        before = everything(default.volume), everything(route.volume)
        for case in each({**{name: (False, verb) for name, verb in never.items()},
                          **{name: (True, verb) for name, verb in asked.items()}}):  # fmt: skip
            with case as (is_asked, verb):
                with met.meeting() as found:
                    assert verb(files).error is not None
                assert found.is_interrupted is is_asked
                assert (everything(default.volume), everything(route.volume)) == before


# -- directories that are made on the way ------------------------------------------------------------------------


def test_what_a_verb_has_made_goes_also_where_a_view_only_appends() -> None:
    with InMemoryBackend() as backend:
        put(backend, "/a")
        files = in_view([rule("append", "/log/**", operations=["write"])], {"/": backend})
        assert "Permission denied" in str(files.move("/a", "/log/new/a").error)
        assert set(everything(backend.volume)) == {b"/a"}
        backend.volume.write = raising(oserror(errno.ENOSPC))  # type: ignore[method-assign]
        assert files.upload_files([("/log/new/b", b"b")])[0].error == "No space left on device"
        assert set(everything(backend.volume)) == {b"/a"}


def test_no_directory_is_made_on_the_way_to_what_is_denied() -> None:
    with InMemoryBackend() as backend:
        made: list[str] = []
        backend.volume.observe(lambda changes: made.extend(str(each.path) for each in changes) or (lambda: None))
        files = in_view([rule("deny", "/a/b/c", "/a/b/c/**")], {"/": backend})
        assert "Permission denied" in str(files.write("/a/b/c/d", "x").error)
        assert made == [] and everything(backend.volume) == {}


def test_a_tree_with_something_that_must_stay_is_deleted_whole_or_not_at_all() -> None:
    for rules in (REFUSALS[name] for name in REFUSALS if "new place" not in name):
        with InMemoryBackend() as backend:
            put(backend, "/tree/a", "/tree/d/.env", "/tree/z/y")
            before = everything(backend.volume)
            assert "Permission denied" in str(in_view(rules, {"/": backend}).delete("/tree").error)
            assert everything(backend.volume) == before


# -- directories on disk -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def flagged(path: Path, flag: str) -> Iterator[None]:
    done = subprocess.run(["chattr", f"+{flag}", path], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"this file system has no flags, or the user is not root: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["chattr", f"-{flag}", path], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root sets the flags of files")
@for_each(("name", "flag"), [("d/f", "i"), ("d", "i"), ("d", "a"), ("d/f", "a"), (".", "i")])
def test_a_file_that_is_immutable_stays_with_all_beside_it(name: str, flag: str, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    with FilesystemBackend(tmp_path / "source") as source, InMemoryBackend() as target:
        put(source, "/tree/a", "/tree/d/f", "/tree/d/g", "/tree/z/y")
        before = everything(source.volume)
        files = CompositeBackend(source, {"/r": target})
        with flagged(tmp_path / "source/tree" / name, flag):
            assert "Operation not permitted" in str(files.move("/tree", "/r/tree").error) or name == "."
            assert files.move("/tree", "/r/tree").error is not None
            assert files.delete("/tree").error is not None
            assert everything(source.volume) == before and everything(target.volume) == {}
        assert files.move("/tree", "/r/tree").error is None


@pytest.fixture
def as_nobody(tmp_path: Path) -> Iterator[Path]:
    """A directory of a user who is not root, whom this process is meanwhile."""
    if os.geteuid() != 0:
        yield tmp_path
        return
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        os.chown(directory, NOBODY, NOBODY)
        os.seteuid(NOBODY)
        try:
            yield Path(directory)
        finally:
            os.seteuid(0)


def test_an_unwritable_directory_of_another_user_keeps_all_of_it(as_nobody: Path) -> None:
    with FilesystemBackend(as_nobody) as source, InMemoryBackend() as target:
        put(source, "/tree/a", "/tree/d/e/f", "/tree/z/y", "/empty/d/x")
        source.delete("/empty/d/x")
        before = everything(source.volume)
        files = CompositeBackend(source, {"/r": target})
        for path, mode in (("tree/d/e", 0o500), ("tree/d", 0o500), ("tree", 0o500), ("tree/z", 0o300), (".", 0o500)):
            (as_nobody / path).chmod(mode)
            assert "Permission denied" in str(files.move("/tree", "/r/tree").error)
            assert "Permission denied" in str(files.delete("/tree").error) or path == "."
            (as_nobody / path).chmod(0o700)
            assert everything(source.volume) == before and everything(target.volume) == {}
        (as_nobody / "empty/d").chmod(0o500)  # rmdir(2) needs no right to write to it
        assert files.move("/empty", "/r/empty").error is None
        assert sorted(os.listdir(as_nobody)) == ["tree"]


def test_a_copy_with_modes_of_its_own_is_removed_all_the_same(as_nobody: Path) -> None:
    with InMemoryBackend() as source, FilesystemBackend(as_nobody) as target:
        put(source, "/tree/d/f", "/there/f")
        source.volume.setattr(node_at(source.volume, "tree/d"), AttrChanges(mode=0o500))
        target.volume.sync = raising(oserror(errno.EIO))  # type: ignore[method-assign]
        assert CompositeBackend(source, {"/r": target}).move("/tree", "/r/new/tree").error is not None
        assert os.listdir(as_nobody) == []
        del target.volume.sync
        assert set(everything(source.volume)) == {b"/tree", b"/tree/d", b"/tree/d/f", b"/there", b"/there/f"}


def test_a_sticky_directory_keeps_files_of_others(as_nobody: Path) -> None:
    if os.geteuid() == os.getuid():
        pytest.skip("only root can make a file of another user")
    with FilesystemBackend(as_nobody) as source, InMemoryBackend() as target:
        put(source, "/tree/a", "/tree/d/mine")
        os.seteuid(0)
        (as_nobody / "tree/d/theirs").write_text("t")
        os.chown(as_nobody / "tree/d", 0, 0)
        (as_nobody / "tree/d").chmod(0o1777)
        os.seteuid(NOBODY)
        before = everything(source.volume)
        files = CompositeBackend(source, {"/r": target})
        assert "Operation not permitted" in str(files.move("/tree", "/r/tree").error)
        assert "Operation not permitted" in str(files.delete("/tree").error)
        assert everything(source.volume) == before and everything(target.volume) == {}


def test_more_files_move_than_a_directory_on_disk_keeps_in_mind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for way in (("/tree", "/r/new/tree"), ("/r/tree", "/new/tree")):
        (tmp_path / way[0][1]).mkdir()
        with FilesystemBackend(tmp_path / way[0][1]) as disk, InMemoryBackend() as memory:
            files = CompositeBackend(disk, {"/r": memory})
            put(files, *(f"{way[0]}/{directory}/{number}" for directory in "ab" for number in range(9)))
            source, target = (disk, memory) if way[0] == "/tree" else (memory, disk)
            first = node_at(source.volume, "tree/a/0")
            source.volume.link(first, node_at(source.volume, "tree/b"), b"twin")
            monkeypatch.setattr(nodes, "IDLE_FILES", 2)
            before = everything(source.volume)
            failed = failing_removal(source.volume, 9)
            assert "stays as it was" in str(files.move(*way).error) and failed
            assert everything(source.volume) == before and everything(target.volume) == {}
            assert source.volume.getattr(node_at(source.volume, "tree/b/twin")).nlink == 2
            assert files.move(*way).error is None
            assert set(everything(target.volume)) == {b"/new", *(b"/new" + path for path in before)}
            assert target.volume.getattr(node_at(target.volume, "new/tree/b/twin")).nlink == 2
            monkeypatch.undo()


# -- what nobody knows before ------------------------------------------------------------------------------------


def failing_removal(volume: Any, count: int) -> list[str]:
    """Make the volume fail with EIO at the `count`-th removal of a name, once."""
    calls, failed = itertools.count(), []
    for name in ("unlink", "rmdir"):
        method = getattr(volume, name)

        def call(*args: Any, name: str = name, method: Any = method) -> None:
            if next(calls) == count:
                failed.append(name)
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            method(*args)

        setattr(volume, name, call)
    return failed


@for_each("kind", ("memory", "sqlite", "dir"))
@for_each("into", ("memory", "foreign"))
def test_what_is_removed_of_a_source_that_can_not_go_is_put_back(kind: str, into: str, tmp_path: Path) -> None:
    for count in itertools.count():
        with (
            opened_backend(kind, tmp_path / f"a{count}") as source,
            opened_backend(into, tmp_path / f"b{count}") as target,
        ):
            put(source, "/tree/a", "/tree/d/e/f", "/tree/d/g")
            volume = source.volume
            if into != "foreign":
                volume.symlink(node_at(volume, "tree"), b"link", b"a", ME)
                volume.link(node_at(volume, "tree/a"), node_at(volume, "tree/d"), b"twin")
            script = node_at(volume, "tree/d/g")
            volume.setattr(script, AttrChanges(mode=0o755, mtime_ns=10**18 + 7))
            volume.setattr(node_at(volume, "tree/d"), AttrChanges(mode=0o750, mtime_ns=10**18))
            before = everything(volume)
            failed = failing_removal(volume, count)
            files = CompositeBackend(source, {"/r": target})
            result = files.move("/tree", "/r/new/tree")
            if not failed:
                assert result.error is None
                break
            words = "Its source could not be removed, and stays as it was: Input/output error"
            assert result.error == f"Error moving '/tree' to '/r/new/tree': {words}"
            assert everything(volume) == before and everything(volume_of(target)) == {}
            attr, directory = (volume.getattr(node_at(volume, path)) for path in ("tree/d/g", "tree/d"))
            assert (attr.mode & 0o7777, attr.mtime_ns) == (0o755, 10**18 + 7)
            assert (directory.mode & 0o7777, directory.mtime_ns) == (0o750, 10**18)
            if into != "foreign":
                assert volume.getattr(node_at(volume, "tree/a")).nlink == 2
    assert count >= 6


class WithDirectories:
    """A backend of others on a real directory, which has no room for a second file."""

    def __init__(self, root: Path) -> None:
        self._root, self._files = root, FilesystemBackend(root)

    def __getattr__(self, name: str) -> Any:
        if name == "volume":
            raise AttributeError(name)
        return getattr(self._files, name)

    def upload_files(self, files: list[tuple[str, bytes]]) -> Any:
        if files[0][0].endswith("/b"):
            (self._root / files[0][0].lstrip("/")).parent.mkdir(parents=True)
            return [FileUploadResponse(files[0][0], "No space left on device")]
        return self._files.upload_files(files)


def test_directories_that_a_backend_of_others_has_made_go_with_the_copy(tmp_path: Path) -> None:
    with InMemoryBackend() as source:
        put(source, "/tree/a/a", "/tree/d/e/b")
        target = WithDirectories(tmp_path)
        (tmp_path / "there").mkdir()
        for new in ("/r/new/way/tree", "/r/there/tree"):
            result = CompositeBackend(source, {"/r": target}).move("/tree", new)
            assert "No space left on device" in str(result.error)
            assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["there"]


class HalfDeleting(DuckBackend):
    """Deletes one file of a tree and fails."""

    def delete(self, path: str) -> DeleteResult:
        super().delete(path + "/a")
        return DeleteResult(error="broken")


def test_what_a_backend_of_others_has_deleted_is_put_back() -> None:
    source, target = HalfDeleting(), InMemoryBackend()
    put(source, "/tree/a", "/tree/b")
    result = CompositeBackend(source, {"/r": target}).move("/tree", "/r/tree")
    assert "stays as it was" in str(result.error) and "broken" in str(result.error)
    assert set(source.files) == {"/tree/a", "/tree/b"} and everything(target.volume) == {}


class Impatient:
    """A guard whose deadline has passed when something is deleted, or set aside, which happens later."""

    def __init__(self, what: str) -> None:
        self._what = what

    def run(self, verb: str, call: Callable[[], Any], files: int = 1) -> Any:
        if self._what in (verb, getattr(getattr(call, "func", None), "__name__", None)):
            raise GivenUp(f"{verb} did not answer in time")
        return call()


@for_each(("kind", "what"), [("memory", "delete"), ("foreign", "delete"), ("memory", "_set_aside")])
def test_a_copy_stays_where_the_source_may_go_later(kind: str, what: str, tmp_path: Path) -> None:
    with opened_backend(kind, tmp_path / "a") as source, InMemoryBackend() as target:
        put(source, "/tree/a")
        files = CompositeBackend(source, {"/r": target})
        files.guard({"/": Impatient(what)})  # type: ignore[dict-item]
        result = files.move("/tree", "/r/tree")
        assert "It was copied, but the source " in str(result.error) and "did not answer in time" in str(result.error)
        assert set(everything(target.volume)) == {b"/tree", b"/tree/a"}
        left = [os.fsdecode(name) for name in everything(volume_of(source)) if name.count(b"/") == 1]
        assert left == ["/tree"] or left[0][1:] in str(result.error)


class Deadline:
    """A guard that knows which of its calls go on."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def run(self, verb: str, call: Callable[[], Any], files: int = 1) -> Any:
        self.calls.append(verb)
        try:
            return call()
        finally:
            self.calls.pop()


@for_each("rules", ([], [rule("deny", "/absent")]), ids=["plain", "in a view"])
def test_each_call_of_a_volume_has_the_deadline_of_its_route(rules: Rules) -> None:
    with InMemoryBackend() as source, InMemoryBackend() as target:
        put(source, "/tree/a", "/tree/d/b")
        source.volume.symlink(ROOT_NODE, b"link", b"tree", ME)
        source.volume.link(node_at(source.volume, "tree/a"), node_at(source.volume, "tree/d"), b"twin")
        source.volume.setxattr(node_at(source.volume, "tree/a"), b"user.x", b"x")
        files = in_view(rules, {"/": source, "/r": target}) if rules else CompositeBackend(source, {"/r": target})
        guards = {"/": Deadline(), "/r": Deadline()}
        files.guard(guards)  # type: ignore[arg-type]
        outside: list[str] = []
        for volume, guard in ((source.volume, guards["/"]), (target.volume, guards["/r"])):
            for name in CALLS:
                method = getattr(volume, name)

                def call(
                    *args: Any, name: str = name, method: Any = method, guard: Deadline = guard, **more: Any
                ) -> Any:
                    if not guard.calls:
                        outside.append(name)
                    return method(*args, **more)

                setattr(volume, name, call)
        assert files.move("/link/d", "/r/new/d").error is None
        assert files.move("/tree", "/r/tree").error is None
        failed = failing_removal(target.volume, 1)
        assert "stays as it was" in str(files.move("/r/tree", "/back").error) and failed
        assert outside == []


CALLS = (
    "lookup", "readdir", "getattr", "setattr", "mknod", "mkdir", "symlink", "link", "unlink", "rmdir", "rename",
    "create", "open", "read", "next_data", "write", "release", "getxattr", "setxattr", "listxattr", "xattrs", "peek",
    "removexattr", "sync",
)  # fmt: skip


def test_a_limit_that_a_move_would_pass_leaves_both_sides_as_they_are(tmp_path: Path) -> None:
    for limits in ({"limit_bytes": 3 * 4096}, {"limit_files": 3}):
        with SqliteBackend(tmp_path / f"{next(iter(limits))}.db", **limits) as target, InMemoryBackend() as source:
            put(source, "/tree/a", "/tree/b", "/tree/c/d")
            before = everything(source.volume)
            result = CompositeBackend(source, {"/r": target}).move("/tree", "/r/new/tree")
            assert "Disk quota exceeded" in str(result.error)
            assert everything(source.volume) == before and everything(target.volume) == {}
