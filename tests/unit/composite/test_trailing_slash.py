"""A slash at the end of a path says that it is a directory: `delete` takes no file for one."""

from __future__ import annotations

import contextlib

import pytest
import sandboxes
import seed_backends
from live import live

from fusebackend.backends import CompositeBackend, FilesystemBackend, InMemoryBackend, SqliteBackend, StoreBackend
from fusebackend.integrations.deepagents import adopt
from fusebackend.protocol import ROOT_NODE, Caller
from fusebackend.testing.each import each

pytest.importorskip("langgraph.store.memory")


@pytest.fixture
def kinds(tmp_path):
    from langgraph.store.memory import InMemoryStore

    def directory(name):
        (tmp_path / name).mkdir()
        return tmp_path / name

    box = sandboxes.LocalSandbox(directory("box"), sandboxes.tools("gnu", tmp_path / "tools"))
    made = {
        "memory": InMemoryBackend(),
        "dir": FilesystemBackend(directory("dir")),
        "store": StoreBackend(store=InMemoryStore(), namespace=lambda _: ("files",)),
        "sandbox": box,
        "foreign": adopt(seed_backends.DuckBackend()),
    }
    with contextlib.ExitStack() as stack:
        made["sqlite"] = stack.enter_context(SqliteBackend(tmp_path / "files.db"))
        server = stack.enter_context(live(directory("live"), InMemoryBackend()))
        made["client"] = stack.enter_context(server.connect())
        yield made


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
            assert "not found" in backend.delete(f"{top}/{case.name}/none/").error
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
