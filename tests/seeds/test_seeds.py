"""The code samples of the seeds, with `deepagents.backends` replaced by `fusebackend.backends`: one test per sample.

The seeds are the documents this package was specified by: *composite* and *filesystem* (Chinese), *custom backends*
(Korean), *CMDC behaviour*, and *state, store, checkpointer, memory* (Chinese). A test names the section it runs. What a
published suite says of the same verb, for the seed's own class (`unit/testing/test_conformance.py`) and for each of
ours, is not said again; nor are the rules of routes (`unit/composite/test_composite.py`).
`create_deep_agent` stays deepagents' own. Where a sample needs a LangGraph store, a `StateBackend` stands in its place
here: the composite around it is what is tested. Samples that need Docker, S3 or a store come with those backends.

Where a sample is wrong, the test says what is right and why.
"""

import re
import uuid
from types import SimpleNamespace

import anyio
import pytest
from nodes import node_at, overwrite, put, whole
from seed_backends import SeedInMemoryBackend

from fusebackend.backends import (
    CompositeBackend,
    FilesystemBackend,
    ForeignVolume,
    InMemoryBackend,
    LocalShellBackend,
    StateBackend,
    resolve,
)
from fusebackend.protocol import ROOT_NODE
from fusebackend.protocol.scheme import UrlError
from fusebackend.urls import open_backend


@pytest.fixture
def runtime():
    return SimpleNamespace(state={"messages": [], "files": {}})


def paths_of(infos):
    return [info["path"] for info in infos]


# -- composite -------------------------------------------------------------------------------------------------


def test_composite_4_attributes_of_the_class():
    default, route = InMemoryBackend(), InMemoryBackend()
    composite = CompositeBackend(default=default, routes={"/a/": route, "/a/longer/": route})
    assert composite.default is default
    assert composite.routes["/a/"] is route
    assert [prefix for prefix, _ in composite.sorted_routes] == ["/a/longer/", "/a/"]


def test_composite_6_1_ls_info_lists_the_root_with_its_routes_sorted():
    default, memories = InMemoryBackend(), InMemoryBackend()
    default.write("/zoo.txt", ""), default.write("/a.txt", ""), memories.write("/n.md", "")
    composite = CompositeBackend(default, {"/memories/": memories})
    infos = composite.ls_info("/")
    assert paths_of(infos) == ["/a.txt", "/memories/", "/zoo.txt"]
    assert infos[1] == {"path": "/memories/", "is_dir": True, "size": 0, "modified_at": ""}
    assert paths_of(composite.ls_info("/memories/")) == ["/memories/n.md"]


@pytest.mark.parametrize("library", [None, "asyncio", "trio"])
def test_composite_6_3_an_update_is_merged_into_the_defaults_state(runtime, library):
    """The sample merges inner paths: `/memories/n.md` would become `/n.md` in the state, and take the place of the
    default's own `/n.md`. The paths merged are the ones the agent sees."""
    composite = CompositeBackend(StateBackend(runtime), {"/memories/": StateBackend(runtime)})
    composite.write("/n.md", "the default's")

    async def write():
        return await composite.awrite("/memories/n.md", "the route's")

    result = anyio.run(write, backend=library) if library else composite.write("/memories/n.md", "the route's")
    assert list(result.files_update) == ["/memories/n.md"]
    assert list(runtime.state["files"]) == ["/n.md", "/memories/n.md"]
    assert "the default's" in composite.read("/n.md") and "the route's" in composite.read("/memories/n.md")
    assert paths_of(composite.ls_info("/")) == ["/memories/", "/n.md"]


def test_composite_6_4_edit_merges_too(runtime):
    composite = CompositeBackend(StateBackend(runtime), {"/memories/": StateBackend(runtime)})
    composite.write("/memories/n.md", "old")
    assert composite.edit("/memories/n.md", "old", "new").occurrences == 1
    assert runtime.state["files"]["/memories/n.md"]["content"] == "new"


SEED_REFUSAL = (
    "Default backend doesn't support command execution (SandboxBackendProtocol). "
    "To enable execution, provide a default backend that implements SandboxBackendProtocol."
)


def test_composite_7_execute_needs_a_default_that_can(tmp_path):
    """`aexecute` in the sample leaves out the second sentence; the same refusal has the same words here."""
    composite = CompositeBackend(StateBackend(), {"/shell/": InMemoryBackend()})

    async def execute(backend):
        return await backend.aexecute("echo hello")

    for call in (lambda: composite.execute("ls"), lambda: anyio.run(execute, composite)):
        with pytest.raises(NotImplementedError, match=f"^{re.escape(SEED_REFUSAL)}$"):
            call()
    with LocalShellBackend(tmp_path, env={"PATH": "/usr/bin:/bin"}) as shell:
        composite = CompositeBackend(shell, {"/memories/": InMemoryBackend()})
        assert composite.execute("echo hello").output.strip() == "hello"
        for library in ("asyncio", "trio"):
            assert anyio.run(execute, composite, backend=library).exit_code == 0


def test_composite_9_3_a_shell_with_memories_beside_it(tmp_path):
    (tmp_path / "main.py").write_text("print()\n")
    with LocalShellBackend(root_dir=str(tmp_path), virtual_mode=True, env={"PATH": "/usr/bin:/bin"}) as shell:
        backend = CompositeBackend(default=shell, routes={"/memories/": InMemoryBackend()})
        result = backend.execute("ls -la")
        assert result.exit_code == 0 and "main.py" in result.output
        assert backend.write("/memories/note.txt", "persistent").error is None
        assert paths_of(backend.ls_info("/")) == ["/main.py", "/memories/"]
        assert not (tmp_path / "memories").exists()


# -- filesystem ------------------------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "main.py").write_text("import os\n# TODO one\n")
    (tmp_path / "README.md").write_text("# TODO two\n")
    return tmp_path


@pytest.fixture
def confined(project):
    with FilesystemBackend(root_dir=str(project), virtual_mode=True) as backend:
        yield backend


def test_filesystem_3_arguments(project):
    with FilesystemBackend(str(project), True, 1) as backend:
        assert backend.cwd == project.resolve() and backend.virtual_mode
        assert backend.max_file_size_bytes == 1024 * 1024


@pytest.mark.parametrize("path", ["/../etc/passwd", "../etc/passwd", "~/.ssh/id_rsa", "/src/../../etc/passwd"])
def test_filesystem_4_virtual_mode_refuses_traversal(confined, path):
    """The sample raises a ValueError with these words. A backend never raises for a bad path: the result holds them."""
    assert confined.read(path).error.startswith("Path traversal not allowed")
    assert confined.write(path, "x").error.startswith("Path traversal not allowed")
    assert confined.download_files([path])[0].error == "invalid_path"


def test_filesystem_4_without_virtual_mode_paths_are_the_machines(project):
    with FilesystemBackend(root_dir=project, virtual_mode=False) as backend:
        assert "import os" in backend.read("src/main.py")
        assert "import os" in backend.read(str(project / "src" / "main.py"))
        assert paths_of(backend.ls_info(str(project))) == [f"{project}/README.md", f"{project}/src/"]


def test_filesystem_5_1_ls_info(confined):
    infos = confined.ls_info("/")
    assert paths_of(infos) == ["/README.md", "/src/"]
    assert infos[0]["size"] == 11 and infos[0]["modified_at"] and infos[1]["is_dir"]
    assert confined.ls_info("/nothing") == []
    assert confined.ls_info("/README.md") == []


def test_filesystem_8_1_without_arguments_it_is_confined_to_the_current_directory(project, monkeypatch):
    """The seed's default lets an agent read `/etc/passwd`, and warns of it. deepagents 0.7 turned the default round,
    and so it is here; the sample needs `virtual_mode=False`."""
    monkeypatch.chdir(project)
    with FilesystemBackend() as backend:
        assert backend.read("/etc/passwd").error == "File '/etc/passwd' not found"
        assert "TODO" in backend.read("/README.md")
    with FilesystemBackend(virtual_mode=False) as backend:
        assert "root" in backend.read("/etc/passwd")


# -- custom backends -------------------------------------------------------------------------------------------


def test_custom_the_names_of_the_protocol_module():
    from fusebackend.backends import protocol

    for name in ("BackendProtocol", "SandboxBackendProtocol", "FileInfo", "WriteResult", "EditResult", "GrepMatch",
                 "FileUploadResponse", "FileDownloadResponse", "ExecuteResponse"):  # fmt: skip
        assert hasattr(protocol, name)


def test_custom_records_have_the_fields_and_defaults_of_the_seed():
    from fusebackend.backends.protocol import EditResult, ExecuteResponse, FileInfo, GrepMatch, WriteResult

    for record, fields in [
        (SimpleNamespace(**FileInfo(path="/f", is_dir=False, size=1, modified_at="2026")), {"size": 1}),
        (SimpleNamespace(**GrepMatch(path="/f", line=1, text="x")), {"line": 1}),
        (WriteResult(), {"error": None, "path": None, "files_update": None}),
        (EditResult(path="/f", occurrences=2), {"error": None, "files_update": None, "occurrences": 2}),
        (ExecuteResponse(output="x", exit_code=0), {"output": "x", "exit_code": 0, "truncated": False}),
    ]:
        assert {name: getattr(record, name) for name in fields} == fields


@pytest.fixture(params=[SeedInMemoryBackend, InMemoryBackend, StateBackend], ids=["seed's", "ours", "state"])
def backend(request):
    """The seed's own class, and the backends of this package that take its place."""
    return request.param()


def test_custom_memory_backend_mounted():
    """The seed's class has a kernel face as it stands: sizes in characters and all."""
    backend = SeedInMemoryBackend()
    backend.write("/notes/인사.txt", "안녕\n")
    volume = ForeignVolume(backend)
    ((name, attr),) = volume.readdir(node_at(volume, "/notes"), b"", 10)
    assert (name.decode(), attr.size) == ("인사.txt", len("안녕\n".encode()))
    assert whole(volume, attr.node) == "안녕\n".encode()
    overwrite(volume, attr.node, attr.size, b"hello\n")
    assert str(backend.read("/notes/인사.txt")) == "     1\t안녕\n     2\thello"
    put(volume, b"from-the-kernel", b"bytes")
    assert backend._files["/from-the-kernel"] == "bytes"
    with pytest.raises(OSError, match="SeedInMemoryBackend has no delete"):
        volume.unlink(ROOT_NODE, b"from-the-kernel")


# -- CMDC behaviour --------------------------------------------------------------------------------------------


def test_cmdc_read_takes_windows_of_lines(backend):
    backend.write("/f", "".join(f"line {number}\n" for number in range(3000)))
    assert str(backend.read("/f")).count("\n") == 1999  # 2,000 lines unless told otherwise
    assert str(backend.read("/f", offset=2998, limit=10)) == "  2999\tline 2998\n  3000\tline 2999"


def test_cmdc_resolve_takes_a_backend_a_function_and_a_module_with_options(runtime):
    backend = InMemoryBackend()
    assert resolve(backend, runtime) is backend
    assert resolve(StateBackend, runtime).runtime is runtime
    assert resolve(lambda rt: StateBackend(rt), runtime).runtime is runtime
    assert resolve((SeedInMemoryBackend, {}), runtime).ls_info("/") == []
    state = resolve(("fusebackend.backends:StateBackend", {"file_format": "v1"}), runtime)
    assert state.file_format == "v1" and state.runtime is runtime
    composite = CompositeBackend(("fusebackend.backends:StateBackend", {}), {"/m/": (InMemoryBackend, {})})
    made = resolve(composite, runtime)
    assert made.write("/m/f", "x").path == "/m/f" and made.default.runtime is runtime
    assert "needs a runtime" in composite.write("/f", "x").error
    for nothing in (3, "fusebackend.backends:StateBackend", lambda runtime: None, ("json:dumps", {"obj": 1})):
        with pytest.raises(TypeError):
            resolve(nothing, runtime)
    with pytest.raises(ModuleNotFoundError):
        resolve(("no_such_module:make", {}), runtime)


def test_cmdc_a_state_by_name_is_a_table_that_all_of_its_name_share():
    name = f"table-{uuid.uuid4().hex}"
    assert StateBackend.named(name).write("/hello.txt", "world").error is None
    assert StateBackend.named(name).read("/hello.txt").file_data["content"] == "world"
    assert StateBackend.named(name + "2").read("/hello.txt").error is not None
    shared = {"/a/": StateBackend.named(name), "/b/c/": StateBackend.named(name)}
    for default in (StateBackend(), InMemoryBackend(), StateBackend.named(name)):
        composite = CompositeBackend(default, shared)
        assert composite.write("/a/new.txt", "by a").files_update is None
        assert composite.read("/b/c/new.txt").file_data["content"] == "by a"
        assert composite.delete("/b/c/new.txt").error is None and composite.read("/a/new.txt").error is not None
        assert paths_of(StateBackend.named(name).glob("*").matches) == ["/hello.txt"]
    assert open_backend(f"state:{name}").read("/hello.txt").error is None
    with pytest.raises(UrlError, match="a name has up to 64"):
        open_backend("state:a/b")
    with pytest.raises(ValueError, match="needs a name"):
        StateBackend.named("")


# -- state, store, checkpointer, memory ------------------------------------------------------------------------


def test_state_1_files_are_in_the_state_as_the_seed_has_them():
    """Both sides of the comparison are read; v1 is written on request."""
    record = {"content": ["line1", "line2"], "created_at": "2025-01-01T00:00:00", "modified_at": "2025-01-01T00:00:00"}
    runtime = SimpleNamespace(state={"messages": [], "files": {"/path/to/file.txt": record}})
    backend = StateBackend(runtime, file_format="v1")
    assert str(backend.read("/path/to/file.txt")) == "     1\tline1\n     2\tline2"
    backend.write("/new.txt", "a\nb")
    assert runtime.state["files"]["/new.txt"]["content"] == ["a", "b"]


def test_state_3_write_returns_the_update_for_the_graph(runtime):
    """`write` in the sample only returns the update. Here the state has it at once as well, and merging it, as the
    graph then does, changes nothing."""
    result = StateBackend(runtime).write("/f", "x")
    assert list(result.files_update) == ["/f"]
    before = dict(runtime.state["files"])
    runtime.state["files"].update(result.files_update)
    assert runtime.state["files"] == before
    assert "x" in StateBackend(runtime).read("/f")
