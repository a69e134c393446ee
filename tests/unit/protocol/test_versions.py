"""`if_version` and `if_absent`: a change is made only if a file is the one that its caller has read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from for_each import for_each
from langgraph.store.memory import InMemoryStore
from live import live

from fusebackend.backends import (
    CompositeBackend,
    FilesystemBackend,
    InMemoryBackend,
    SqliteBackend,
    StateBackend,
    StoreBackend,
)
from fusebackend.base.stamps import coarse_ns
from fusebackend.protocol import (
    BackendProtocol,
    FileDownloadResponse,
    FileInfo,
    FileUploadResponse,
    LsResult,
    WriteResult,
    versions,
)
from fusebackend.testing.each import each


class Plain(BackendProtocol):
    """A backend of somebody else's, whose verbs know no conditions."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def close(self) -> None:
        """Nothing is open."""

    def ls(self, path: str) -> LsResult:
        return LsResult(entries=[FileInfo(path=name, is_dir=False) for name in sorted(self.files)])

    def write(self, file_path: str, content: str) -> WriteResult:  # type: ignore[override]
        if file_path in self.files:
            return WriteResult(error="exists")
        self.files[file_path] = content.encode()
        return WriteResult(path=file_path)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:  # type: ignore[override]
        self.files.update(files)
        return [FileUploadResponse(path=path) for path, _ in files]

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        found = [(path, self.files.get(path)) for path in paths]
        return [
            FileDownloadResponse(path=path, content=data, error=None if data is not None else "file_not_found")
            for path, data in found
        ]


def made(kind: str, directory: Path) -> Any:
    if kind == "dir":
        directory.joinpath("files").mkdir(exist_ok=True)
        return FilesystemBackend(directory / "files", virtual_mode=True)
    if kind == "composite":
        return CompositeBackend(InMemoryBackend(), {"/s": StoreBackend(InMemoryStore(), namespace=("a",))})
    if kind == "sqlite":
        return SqliteBackend(str(directory / "volume.db"))
    return InMemoryBackend() if kind == "memory" else StoreBackend(InMemoryStore(), namespace=("a",))


KINDS = ("memory", "sqlite", "dir", "store", "composite", "client")


@pytest.fixture(params=KINDS)
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    kind, directory = request.param, tmp_path
    if kind == "client":
        store = StoreBackend(InMemoryStore(), namespace=("a",))
        with live(directory, InMemoryBackend(), {"/s": store}) as server, server.connect() as client:
            yield client
    else:
        backend = made(kind, directory)
        yield backend
        getattr(backend, "close", lambda: None)()


def version(backend: Any, path: str) -> str:
    (answer,) = backend.download_files([path])
    assert answer.version is not None
    return str(answer.version)


def content(backend: Any, path: str) -> bytes | None:
    return backend.download_files([path])[0].content  # type: ignore[no-any-return]


def refused(result: Any) -> str | None:
    """The present version, of a change that came too late."""
    assert result.error is not None
    assert result.error.startswith("changed"), result.error
    return None if result.version is None else str(result.version)


def test_a_change_is_made_once_for_a_version(files):
    files.write("/f", "one")
    first = files.read("/f").version
    assert files.edit("/f", "one", "two", if_version=first).error is None
    second = version(files, "/f")
    assert second != first
    changes = {
        "write": lambda: files.write("/f", "lost", if_version=first),
        "edit": lambda: files.edit("/f", "two", "lost", if_version=first),
        "upload": lambda: files.upload_files([("/f", b"lost")], if_version=[first])[0],
        "delete": lambda: files.delete("/f", if_version=first),
        "move": lambda: files.move("/f", "/g", if_version=first),
    }
    for change in each(changes):
        with change as lost:
            assert refused(lost()) is not None
            assert content(files, "/f") == b"two"
    assert files.move("/f", "/g", if_version=second).error is None
    assert files.write("/g", "three", if_version=version(files, "/g")).error is None
    assert files.upload_files([("/g", b"four")], if_version=[version(files, "/g")])[0].error is None
    assert files.delete("/g", if_version=version(files, "/g")).error is None
    assert refused(files.write("/g", "again", if_version=second)) is None, "it is gone"
    assert content(files, "/g") is None


def test_absent(files):
    assert files.write("/f", "one", if_absent=True).error is None
    files.write("/g", "other")
    assert refused(files.write("/f", "lost", if_absent=True)) is not None
    refused(files.move("/g", "/f", if_absent=True))
    answers = files.upload_files([("/f", b"lost"), ("/new", b"made")], if_absent=[True, True])
    assert [answer.error for answer in answers] == ["changed", None]
    assert (content(files, "/f"), content(files, "/g"), content(files, "/new")) == (b"one", b"other", b"made")
    assert files.move("/g", "/h", if_absent=True).error is None


def test_a_mistake_is_an_error_and_changes_nothing(files):
    files.write("/f", "one")
    held = version(files, "/f")
    for given in each({"both": {"if_version": held, "if_absent": True}, "no text": {"if_version": 3}}):
        with given as options:
            assert files.write("/f", "lost", **options).error is not None
    with pytest.raises(ValueError, match="an item for each of the 1 files"):
        files.upload_files([("/f", b"lost")], if_version=[])
    assert content(files, "/f") == b"one"


@contextlib.contextmanager
def later() -> Iterator[None]:
    """Have every change time be long ago."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(versions, "coarse_ns", lambda: coarse_ns() + 3 * 10**9)
        yield


@for_each("kind", ["sqlite", "dir"])
def test_a_version_holds_after_a_restart_and_never_for_other_bytes(kind, tmp_path):
    backend = made(kind, tmp_path)
    backend.write("/f", "one")
    with later():
        held = version(backend, "/f")
        assert [info.get("version") for info in backend.ls("/").entries] == [held]
        backend.close()
        again = made(kind, tmp_path)
        assert again.edit("/f", "one", "two", if_version=held).error is None
    assert refused(again.edit("/f", "two", "one", if_version=held)) is not None
    assert again.edit("/f", "two", "one").error is None
    assert refused(again.edit("/f", "one", "two", if_version=held)) is not None, "the same bytes, written again"
    again.close()


def test_what_was_just_changed_in_a_directory_has_a_digest(tmp_path):
    files = made("dir", tmp_path)
    files.write("/f", "one")
    with later():
        settled = version(files, "/f")
    fresh = version(files, "/f")
    assert fresh != settled
    assert [info.get("version") for info in files.ls("/").entries] == [None]
    (tmp_path / "files/f").write_text("two")
    (tmp_path / "files/f").write_text("one")
    assert files.edit("/f", "one", "two", if_version=fresh).error is None
    files.close()


def test_changes_within_a_tick_have_versions_of_their_own(files):
    seen: dict[str, str] = {}
    files.write("/f", "000")
    for number in range(200):
        text = f"{number % 7:03}"
        files.upload_files([("/f", text.encode())])
        assert seen.setdefault(version(files, "/f"), text) == text


def test_a_backend_that_knows_no_conditions_is_compared_before():
    plain = Plain()
    files = CompositeBackend(InMemoryBackend(), {"/p": plain})
    files.upload_files([("/p/f", b"one")])
    held = version(files, "/p/f")
    plain.files["/f"] = b"two"
    assert refused(files.write("/p/f", "lost", if_version=held)) == version(files, "/p/f")
    assert refused(files.upload_files([("/p/f", b"lost")], if_absent=[True])[0]) == version(files, "/p/f")
    assert plain.files == {"/f": b"two"}
    assert files.write("/p/f", "three", if_version=version(files, "/p/f")).error is None
    assert plain.files == {"/f": b"three"}


def test_a_move_between_routes_compares_first(tmp_path):
    files = made("composite", tmp_path)
    files.write("/f", "one")
    files.write("/s/taken", "other")
    refused(files.move("/f", "/s/f", if_version="no"))
    refused(files.move("/f", "/s/taken", if_absent=True))
    assert (content(files, "/f"), content(files, "/s/taken")) == (b"one", b"other")
    assert files.move("/f", "/s/f", if_version=version(files, "/f"), if_absent=True).error is None
    assert content(files, "/s/f") == b"one"


def test_every_route_of_a_mount_gives_versions(tmp_path):
    routes = {"/s": made("store", tmp_path), "/p": Plain()}
    with live(tmp_path, InMemoryBackend(), routes) as server, server.connect() as files:
        for path in each(["/f", "/s/f", "/p/f"]):
            with path as where:
                files.upload_files([(where, b"one")])
                first = version(files, where)
                assert files.upload_files([(where, b"two")], if_version=[first])[0].error is None
                second = files.stat(where).version
                assert refused(files.upload_files([(where, b"lost")], if_version=[first])[0]) is not None
                assert files.upload_files([(where, b"three")], if_version=[second])[0].error is None
                assert content(files, where) == b"three"


def test_a_directory_has_none(files):
    files.write("/d/f", "one")
    for change in each({"delete": files.delete, "move": lambda path, **when: files.move(path, "/e", **when)}):
        with change as made_change:
            assert made_change("/d", if_version="any").error is not None
    assert content(files, "/d/f") == b"one"
    assert all("version" not in info for info in files.ls("/").entries)


def test_a_state_takes_no_conditions():
    state = StateBackend()
    state.write("/f", "one")
    changes = [
        state.write("/f", "lost", if_version=state.read("/f").version),
        state.write("/g", "lost", if_absent=True),
        state.edit("/f", "one", "lost", if_version="any"),
        state.delete("/f", if_version="any"),
        state.move("/f", "/g", if_absent=True),
        *state.upload_files([("/f", b"lost")], if_absent=[True]),
    ]
    assert all(change.error is not None for change in changes)
    assert content(state, "/f") == b"one"
    assert content(state, "/g") is None


def test_what_waited_for_an_approval_compares_again(tmp_path):
    """An approval itself compares bytes. Here they are the same, and only the version is another one."""
    rules = [{"operations": ["write"], "paths": ["/prod/**"], "mode": "interrupt"}]
    with (
        later(),
        live(tmp_path, InMemoryBackend(), views={"agent": rules}) as server,
        server.connect(view="") as free,
        server.connect(view="agent") as agent,
    ):
        free.write("/prod/f", "one")
        changes = {
            "write": lambda held: agent.write("/prod/f", "two", if_version=held),
            "upload": lambda held: agent.upload_files([("/prod/f", b"two")], if_version=[held])[0],
            "edit": lambda held: agent.edit("/prod/f", "one", "two", if_version=held),
            "delete": lambda held: agent.delete("/prod/f", if_version=held),
            "move": lambda held: agent.move("/prod/f", "/prod/g", if_version=held),
        }
        for change in each(changes):
            with change as asks:
                assert "approval" in (asks(version(free, "/prod/f")).error or "")
                (request,) = [request for request in free.approvals() if request.state == "pending"]
                free.upload_files([("/prod/f", b"one")])
                failed = free.approve(request.number)
                assert (failed.state, content(free, "/prod/f"), content(free, "/prod/g")) == ("failed", b"one", None)
