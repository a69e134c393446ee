"""The code samples of the seeds, with `deepagents.backends` replaced by `fusebackend.backends`: one test per sample.

The seeds are the documents this package was specified by: *composite* and *filesystem* (Chinese), *custom backends*
(Korean), *CMDC behaviour*, and *state, store, checkpointer, memory* (Chinese). A test names the section it runs.
`create_deep_agent` stays deepagents' own. Where a sample needs a LangGraph store, a `StateBackend` stands in its place
here: the composite around it is what is tested. Samples that need Docker, S3 or a store come with those backends.

Where a sample is wrong, the test says what is right and why.
"""

import shutil
import uuid
from types import SimpleNamespace

import anyio
import pytest
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
from fusebackend.protocol import ROOT_NODE, Caller
from fusebackend.protocol.scheme import UrlError
from fusebackend.urls.opening import open_backend

ME = Caller(0, 0)


@pytest.fixture
def runtime():
    return SimpleNamespace(state={"messages": [], "files": {}})


def paths_of(infos):
    return [info["path"] for info in infos]


# -- composite -------------------------------------------------------------------------------------------------


def test_composite_3_temporary_files_in_state_and_memories_elsewhere(runtime):
    memories, cache = StateBackend(), StateBackend()
    composite = CompositeBackend(default=StateBackend(runtime), routes={"/memories/": memories, "/cache/": cache})
    assert composite.write("/temp.txt", "ephemeral data").error is None
    assert composite.write("/memories/note.md", "persistent data").error is None
    assert "ephemeral data" in runtime.state["files"]["/temp.txt"]["content"]
    assert "persistent data" in memories.read("/note.md")


def test_composite_4_attributes_of_the_class():
    default, route = InMemoryBackend(), InMemoryBackend()
    composite = CompositeBackend(default=default, routes={"/a/": route, "/a/longer/": route})
    assert composite.default is default
    assert composite.routes["/a/"] is route
    assert [prefix for prefix, _ in composite.sorted_routes] == ["/a/longer/", "/a/"]


@pytest.mark.parametrize(
    ("path", "where", "inner"),
    [("/memories/notes.txt", "store", "/notes.txt"), ("/other/file.txt", "default", "/other/file.txt")],
)
def test_composite_5_1_the_prefix_is_stripped(path, where, inner):
    backends = {"store": InMemoryBackend(), "default": InMemoryBackend()}
    composite = CompositeBackend(backends["default"], {"/memories/": backends["store"]})
    composite.write(path, "x")
    assert backends[where].download_files([inner])[0].content == b"x"


def test_composite_5_1_the_prefix_itself_is_the_root_of_its_backend():
    store = InMemoryBackend()
    store.write("/notes.txt", "x")
    composite = CompositeBackend(InMemoryBackend(), {"/memories/": store})
    for path in ("/memories/", "/memories"):  # the sample knows the first one only, and asks the default for the other
        assert paths_of(composite.ls_info(path)) == ["/memories/notes.txt"]


def test_composite_5_2_the_more_specific_route_wins():
    general, specific = InMemoryBackend(), InMemoryBackend()
    composite = CompositeBackend(InMemoryBackend(), {"/memories/": general, "/memories/user/": specific})
    composite.write("/memories/user/profile.txt", "x")
    assert paths_of(specific.ls_info("/")) == ["/profile.txt"] and general.ls_info("/") == []


def test_composite_6_1_ls_info_lists_the_root_with_its_routes_sorted():
    default, memories = InMemoryBackend(), InMemoryBackend()
    default.write("/zoo.txt", ""), default.write("/a.txt", ""), memories.write("/n.md", "")
    composite = CompositeBackend(default, {"/memories/": memories})
    infos = composite.ls_info("/")
    assert paths_of(infos) == ["/a.txt", "/memories/", "/zoo.txt"]
    assert infos[1] == {"path": "/memories/", "is_dir": True, "size": 0, "modified_at": ""}
    assert paths_of(composite.ls_info("/memories/")) == ["/memories/n.md"]


def test_composite_6_1_a_sibling_whose_name_begins_like_a_prefix_is_not_the_routes():
    """The sample asks `path.startswith("/memories")`, and so takes `/memories2` for the route. Segments are whole."""
    default = InMemoryBackend()
    default.write("/memories2/x", "TODO")
    composite = CompositeBackend(default, {"/memories/": InMemoryBackend()})
    assert paths_of(composite.ls_info("/memories2")) == ["/memories2/x"]
    assert paths_of(composite.grep_raw("TODO", "/memories2")) == ["/memories2/x"]
    assert paths_of(composite.glob_info("*", "/memories2")) == ["/memories2/x"]


@pytest.mark.parametrize("library", ["asyncio", "trio"])
def test_composite_6_2_read_and_aread_are_routed(library):
    store = InMemoryBackend()
    store.write("/n.md", "one\ntwo\nthree")
    composite = CompositeBackend(InMemoryBackend(), {"/memories/": store})
    assert str(composite.read("/memories/n.md", offset=1, limit=1)) == "     2\ttwo"

    async def read():
        return str(await composite.aread("/memories/n.md", offset=1, limit=1))

    assert anyio.run(read, backend=library) == "     2\ttwo"


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


def test_composite_6_5_grep_raw_of_a_route_of_everything_and_of_elsewhere():
    default, first, second = InMemoryBackend(), InMemoryBackend(), InMemoryBackend()
    for backend in (default, first, second):
        backend.write("/d/f.txt", "TODO")
    composite = CompositeBackend(default, {"/first/": first, "/second/": second})
    everything = ["/d/f.txt", "/first/d/f.txt", "/second/d/f.txt"]
    assert paths_of(composite.grep_raw("TODO")) == paths_of(composite.grep_raw("TODO", "/")) == everything
    assert paths_of(composite.grep_raw("TODO", "/first/")) == ["/first/d/f.txt"]
    assert paths_of(composite.grep_raw("TODO", "/first/d")) == ["/first/d/f.txt"]
    assert paths_of(composite.grep_raw("TODO", "/d")) == ["/d/f.txt"]
    assert composite.grep_raw("TODO", glob="*.py") == []


def test_composite_6_6_glob_info_merges_and_sorts():
    """The sample stops with a NameError below a route (`search_path` has no value there), and for a path outside of all
    routes it searches every route too. A search below a path finds what is below that path."""
    default, memories = InMemoryBackend(), InMemoryBackend()
    default.write("/z/a.txt", ""), memories.write("/b.txt", "")
    composite = CompositeBackend(default, {"/memories/": memories})
    assert paths_of(composite.glob_info("*.txt")) == ["/memories/b.txt", "/z/a.txt"]
    assert paths_of(composite.glob_info("*.txt", "/memories")) == ["/memories/b.txt"]
    assert paths_of(composite.glob_info("*.txt", "/z")) == ["/z/a.txt"]


SEED_REFUSAL = (
    "Default backend doesn't support command execution (SandboxBackendProtocol). "
    "To enable execution, provide a default backend that implements SandboxBackendProtocol."
)


def test_composite_7_execute_needs_a_default_that_can(tmp_path):
    """`aexecute` in the sample leaves out the second sentence; the same refusal has the same words here."""
    composite = CompositeBackend(StateBackend(), {"/shell/": InMemoryBackend()})
    with pytest.raises(NotImplementedError) as refusal:
        composite.execute("ls")
    assert str(refusal.value) == SEED_REFUSAL

    async def execute(backend):
        return await backend.aexecute("echo hello")

    with pytest.raises(NotImplementedError) as refusal:
        anyio.run(execute, composite)
    assert str(refusal.value) == SEED_REFUSAL
    with LocalShellBackend(tmp_path, env={"PATH": "/usr/bin:/bin"}) as shell:
        composite = CompositeBackend(shell, {"/memories/": InMemoryBackend()})
        assert composite.execute("echo hello").output.strip() == "hello"
        for library in ("asyncio", "trio"):
            assert anyio.run(execute, composite, backend=library).exit_code == 0


def test_composite_8_batches_go_to_each_backend_once_and_come_back_in_order():
    class Counting(SeedInMemoryBackend):
        calls = 0

        def upload_files(self, files):
            self.calls += 1
            return super().upload_files(files)

        def download_files(self, paths):
            self.calls += 1
            return super().download_files(paths)

    default, store = Counting(), Counting()
    composite = CompositeBackend(default, {"/memories/": store})
    wanted = ["/a", "/memories/b", "/c", "/memories/d"]
    uploads = composite.upload_files([(path, path.encode()) for path in wanted])
    assert [(upload.path, upload.error) for upload in uploads] == [(path, None) for path in wanted]
    assert (default.calls, store.calls) == (1, 1)
    downloads = composite.download_files([*reversed(wanted), "/memories/none"])
    assert [download.content for download in downloads[:4]] == [path.encode() for path in reversed(wanted)]
    assert (downloads[4].path, downloads[4].error) == ("/memories/none", "file_not_found")
    assert (default.calls, store.calls) == (2, 2)


def test_composite_9_1_classes_as_factories_get_their_runtime_from_the_agent(runtime):
    backend = CompositeBackend(
        default=StateBackend,
        routes={"/memories/": StateBackend, "/skills/": StateBackend, "/conversation_history/": StateBackend},
    )
    assert callable(backend)  # `create_deep_agent` calls what it can call, with the runtime of a tool call
    made = backend(runtime)
    assert made.write("/skills/s.md", "x").error is None
    assert paths_of(made.ls_info("/")) == ["/conversation_history/", "/memories/", "/skills/"]
    assert "needs a runtime" in backend.write("/skills/s.md", "x").error


def test_composite_9_2_routes_may_be_left_out(runtime):
    assert CompositeBackend(default=StateBackend)(runtime).write("/f", "x").path == "/f"
    production = CompositeBackend(default=StateBackend, routes={"/data/": StateBackend})
    assert production(runtime).write("/data/f", "x").path == "/data/f"


def test_composite_9_3_a_shell_with_memories_beside_it(tmp_path):
    (tmp_path / "main.py").write_text("print()\n")
    with LocalShellBackend(root_dir=str(tmp_path), virtual_mode=True, env={"PATH": "/usr/bin:/bin"}) as shell:
        backend = CompositeBackend(default=shell, routes={"/memories/": InMemoryBackend()})
        result = backend.execute("ls -la")
        assert result.exit_code == 0 and "main.py" in result.output
        assert backend.write("/memories/note.txt", "persistent").error is None
        assert paths_of(backend.ls_info("/")) == ["/main.py", "/memories/"]
        assert not (tmp_path / "memories").exists()


def test_composite_12_every_file_of_a_batch_has_its_own_error():
    composite = CompositeBackend(InMemoryBackend(), {"/memories/": InMemoryBackend()})
    answers = composite.upload_files([("/ok", b""), ("/memories/", b""), ("/../up", b""), ("/memories/ok", b"")])
    assert [answer.error for answer in answers] == [None, "is_directory", "invalid_path", None]


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


def test_filesystem_4_two_dots_inside_a_name_are_a_name(confined):
    """The sample looks for `..` anywhere in the path, and refuses `/a..b`. Only a whole segment climbs."""
    assert confined.write("/a..b", "x").error is None


def test_filesystem_4_virtual_mode_ends_at_links_that_lead_out(confined, project, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret").write_text("x")
    (project / "link").symlink_to(outside)
    assert confined.read("/link/secret").error


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


def test_filesystem_5_2_read(confined, project):
    assert str(confined.read("/src/main.py")) == "     1\timport os\n     2\t# TODO one"
    assert str(confined.read("/src/main.py", offset=1, limit=1)) == "     2\t# TODO one"
    assert str(confined.read("/nope")) == "Error: File '/nope' not found"
    assert str(confined.read("/src/main.py", offset=9)) == "Error: Line offset 9 exceeds file length (2 lines)"
    (project / "empty").write_text("")
    assert str(confined.read("/empty")) == "System reminder: File exists but has empty contents"


def test_filesystem_5_3_write_creates_parents_and_refuses_what_is_there(confined, project):
    result = confined.write("/deep/er/f.txt", "text")
    assert (result.error, result.path, result.files_update) == (None, "/deep/er/f.txt", None)
    assert (project / "deep" / "er" / "f.txt").read_text() == "text"
    assert confined.write("/README.md", "x").error == (
        "Cannot write to /README.md because it already exists. Read and then make an edit, or write to a new path."
    )


def test_filesystem_5_4_edit(confined, project):
    result = confined.edit("/src/main.py", "TODO", "DONE")
    assert (result.error, result.occurrences, result.files_update) == (None, 1, None)
    assert (project / "src" / "main.py").read_text() == "import os\n# DONE one\n"
    assert confined.edit("/nope", "a", "b").error == "Error: File '/nope' not found"
    assert "not found in file" in confined.edit("/README.md", "nothing", "b").error


@pytest.mark.parametrize("ripgrep", [True, False])
def test_filesystem_6_grep_is_literal_with_ripgrep_and_without(project, ripgrep, monkeypatch):
    if ripgrep and shutil.which("rg") is None:
        pytest.skip("needs rg")
    if not ripgrep:
        monkeypatch.setenv("PATH", "")
    (project / "src" / "brackets.py").write_text("a[0]\na0\n")
    with FilesystemBackend(root_dir=project, virtual_mode=True) as backend:
        assert backend.grep_raw("TODO") == [
            {"path": "/README.md", "line": 1, "text": "# TODO two"},
            {"path": "/src/main.py", "line": 2, "text": "# TODO one"},
        ]
        assert backend.grep_raw("a[0]") == [{"path": "/src/brackets.py", "line": 1, "text": "a[0]"}]
        assert paths_of(backend.grep_raw("TODO", "/src")) == ["/src/main.py"]
        assert paths_of(backend.grep_raw("TODO", glob="*.md")) == ["/README.md"]
        assert backend.grep_raw("TODO", "/nothing") == []


def test_filesystem_6_4_glob_info(confined):
    assert paths_of(confined.glob_info("*.py")) == ["/src/main.py"]  # `rglob`: a bare name at any depth
    assert paths_of(confined.glob_info("/**/*.md")) == ["/README.md"]
    assert confined.glob_info("*.py", "/nothing") == []


def test_filesystem_7_batches(confined, project):
    answers = confined.upload_files([("/new/bin", b"\x00\xff"), ("/../up", b""), ("/src", b"")])
    assert [(answer.path, answer.error) for answer in answers] == [
        ("/new/bin", None), ("/../up", "invalid_path"), ("/src", "is_directory"),
    ]  # fmt: skip
    downloads = confined.download_files(["/new/bin", "/nope", "/src", "/../up"])
    assert [download.content for download in downloads] == [b"\x00\xff", None, None, None]
    assert [download.error for download in downloads[1:]] == ["file_not_found", "is_directory", "invalid_path"]


def test_filesystem_8_1_without_arguments_it_is_confined_to_the_current_directory(project, monkeypatch):
    """The seed's default lets an agent read `/etc/passwd`, and warns of it. deepagents 0.7 turned the default round,
    and so it is here; the sample needs `virtual_mode=False`."""
    monkeypatch.chdir(project)
    with FilesystemBackend() as backend:
        assert backend.read("/etc/passwd").error == "File '/etc/passwd' not found"
        assert "TODO" in backend.read("/README.md")
    with FilesystemBackend(virtual_mode=False) as backend:
        assert "root" in backend.read("/etc/passwd")


def test_filesystem_8_2_virtual_paths_begin_at_the_root_directory(confined):
    assert "import os" in confined.read("/src/main.py")
    assert "Path traversal not allowed" in confined.read("/../etc/passwd").error


# -- custom backends -------------------------------------------------------------------------------------------


def test_custom_the_names_of_the_protocol_module():
    from fusebackend.backends import protocol

    for name in ("BackendProtocol", "SandboxBackendProtocol", "FileInfo", "WriteResult", "EditResult", "GrepMatch",
                 "FileUploadResponse", "FileDownloadResponse", "ExecuteResponse"):  # fmt: skip
        assert hasattr(protocol, name)


def test_custom_records_have_the_fields_and_defaults_of_the_seed():
    from fusebackend.backends.protocol import EditResult, ExecuteResponse, FileInfo, GrepMatch, WriteResult

    assert FileInfo(path="/f", is_dir=False, size=1, modified_at="2026-01-01T00:00:00") == {
        "path": "/f", "is_dir": False, "size": 1, "modified_at": "2026-01-01T00:00:00",
    }  # fmt: skip
    assert GrepMatch(path="/f", line=1, text="x")["line"] == 1
    result = WriteResult()
    assert (result.error, result.path, result.files_update) == (None, None, None)
    edited = EditResult(path="/f", occurrences=2)
    assert (edited.error, edited.files_update, edited.occurrences) == (None, None, 2)
    ran = ExecuteResponse(output="x", exit_code=0)
    assert (ran.output, ran.exit_code, ran.truncated) == ("x", 0, False)


@pytest.fixture(params=[SeedInMemoryBackend, InMemoryBackend, StateBackend], ids=["seed's", "ours", "state"])
def backend(request):
    """The seed's own class, and the backends of this package that take its place."""
    return request.param()


def test_custom_memory_backend_read_write(backend):
    result = backend.write("/test.txt", "Hello\nWorld")
    assert result.error is None
    assert result.path == "/test.txt"
    content = backend.read("/test.txt")
    assert "Hello" in content
    assert "World" in content


def test_custom_memory_backend_edit(backend):
    backend.write("/test.txt", "Hello World")
    result = backend.edit("/test.txt", "World", "Universe")
    assert result.error is None
    assert result.occurrences == 1
    content = backend.read("/test.txt")
    assert "Universe" in content


def test_custom_memory_backend_under_todays_names():
    backend = SeedInMemoryBackend()
    backend.write("/d/f.txt", "one TODO")
    assert paths_of(backend.ls("/").entries) == ["/d/"]
    assert backend.grep("TODO").matches == [{"path": "/d/f.txt", "line": 1, "text": "one TODO"}]
    assert paths_of(backend.glob("*.txt").matches) == ["/d/f.txt"]


def test_custom_memory_backend_mounted():
    """The seed's class has a kernel face as it stands: sizes in characters and all."""
    backend = SeedInMemoryBackend()
    backend.write("/notes/인사.txt", "안녕\n")
    volume = ForeignVolume(backend)
    notes = volume.lookup(ROOT_NODE, b"notes").node
    ((name, attr),) = volume.readdir(notes, b"", 10)
    assert (name.decode(), attr.size) == ("인사.txt", len("안녕\n".encode()))
    volume.open(attr.node, 2)
    assert volume.read(attr.node, 0, 100) == "안녕\n".encode()
    volume.write(attr.node, attr.size, b"hello\n")
    volume.flush(attr.node)
    volume.release(attr.node, 2)
    assert str(backend.read("/notes/인사.txt")) == "     1\t안녕\n     2\thello"
    made = volume.create(ROOT_NODE, b"from-the-kernel", 0o644, 2, ME).node
    volume.write(made, 0, b"bytes")
    volume.release(made, 2)
    assert backend._files["/from-the-kernel"] == "bytes"
    with pytest.raises(OSError, match="SeedInMemoryBackend has no delete"):
        volume.unlink(ROOT_NODE, b"from-the-kernel")


@pytest.mark.parametrize("library", ["asyncio", "trio"])
def test_custom_async_the_default_implementation_calls_the_sync_one(library):
    backend = SeedInMemoryBackend()
    backend.write("/f", "x")

    async def read():
        return await backend.aread("/f", offset=0, limit=5)

    assert anyio.run(read, backend=library) == "     1\tx"


def test_custom_registration_an_instance_or_a_factory():
    composite = CompositeBackend(lambda rt: SeedInMemoryBackend(), {"/direct/": SeedInMemoryBackend()})
    made = composite(SimpleNamespace(state={}))
    assert made.write("/f", "x").error is None and made.write("/direct/f", "x").error is None


def test_custom_composition_from_the_composite_module():
    from fusebackend.backends.composite import CompositeBackend as FromItsModule

    assert FromItsModule is CompositeBackend
    composite = CompositeBackend(default=StateBackend(), routes={"/s3/": SeedInMemoryBackend()})
    assert composite.write("/s3/f", "x").path == "/s3/f"
    assert "x" in composite.read("/s3/f")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (FileNotFoundError, "Error: File '/f' not found"),
        (PermissionError, "Error: Permission denied for '/f'"),
        (RuntimeError, "Error: odd"),
    ],
)
def test_custom_practice_1_errors_are_texts(error, text):
    class Careful(SeedInMemoryBackend):
        def read(self, file_path, offset=0, limit=2000):
            try:
                raise error("odd")
            except FileNotFoundError:
                return f"Error: File '{file_path}' not found"
            except PermissionError:
                return f"Error: Permission denied for '{file_path}'"
            except Exception as unknown:
                return f"Error: {unknown}"

    result = CompositeBackend(InMemoryBackend(), {"/c/": Careful()}).read("/c/f")
    assert result.error == text.replace("'/f'", "'/c/f'")
    assert str(result).startswith("Error: ")


def test_custom_practice_2_paths_are_normalised_for_the_backend():
    """The sample's `normpath` lets `/../x` mean `/x`; a path above the root is refused here."""
    seed = SeedInMemoryBackend()
    composite = CompositeBackend(InMemoryBackend(), {"/s/": seed})
    composite.write("s//./a/../f", "x")
    assert list(seed._files) == ["/f"]
    assert composite.write("/../s/f", "x").error.startswith("Path traversal not allowed")


def test_custom_practice_3_a_backend_that_returns_updates_for_the_state(runtime):
    """The sample keeps `content.splitlines()`, which drops the newline at the end; what it returned is merged."""
    from fusebackend.backends.protocol import WriteResult

    class Compatible(SeedInMemoryBackend):
        def write(self, file_path, content):
            super().write(file_path, content)
            return WriteResult(
                path=file_path,
                files_update={
                    file_path: {
                        "content": content.splitlines(),
                        "created_at": self._get_timestamp(),
                        "modified_at": self._get_timestamp(),
                    }
                },
            )

    composite = CompositeBackend(StateBackend(runtime), {"/c/": Compatible()})
    composite.write("/c/f", "one\ntwo\n")
    assert runtime.state["files"]["/c/f"]["content"] == ["one", "two"]
    assert composite.download_files(["/c/f"])[0].content == b"one\ntwo\n"


# -- CMDC behaviour --------------------------------------------------------------------------------------------


def test_cmdc_quick_start():
    backend = StateBackend()
    assert backend.write("/hello.txt", "world").path == "/hello.txt"
    assert backend.read("/hello.txt").file_data["content"] == "world"


def test_cmdc_writing_an_existing_file_is_an_error_and_edit_changes_it(backend):
    """There it is the atom `:invalid_path`; here the words of the other seeds say what to do instead."""
    backend.write("/f", "old")
    assert "already exists" in backend.write("/f", "new").error
    assert backend.edit("/f", "old", "new").error is None


def test_cmdc_ls_gives_direct_children_and_directories_end_with_a_slash(backend):
    backend.write("/d/e/f", ""), backend.write("/g", "")
    entries = backend.ls("/").entries
    assert [(entry["path"], entry["is_dir"]) for entry in entries] == [("/d/", True), ("/g", False)]


def test_cmdc_read_takes_windows_of_lines(backend):
    backend.write("/f", "".join(f"line {number}\n" for number in range(3000)))
    assert str(backend.read("/f")).count("\n") == 1999  # 2,000 lines unless told otherwise
    assert str(backend.read("/f", offset=2998, limit=10)) == "  2999\tline 2998\n  3000\tline 2999"


def test_cmdc_edit_wants_one_occurrence_unless_told(backend):
    backend.write("/f", "a a")
    assert backend.edit("/f", "a", "b").error
    assert backend.edit("/f", "a", "b", replace_all=True).occurrences == 2


def test_cmdc_grep_is_literal(backend):
    backend.write("/f", "a.c\nabc\n")
    assert backend.grep("a.c").matches == [{"path": "/f", "line": 1, "text": "a.c"}]


def test_cmdc_batches_have_one_answer_per_item_and_succeed_in_part(backend):
    backend.upload_files([("/f", b"x")])
    downloads = backend.download_files(["/nope", "/f"])
    assert [(download.error, download.content) for download in downloads] == [("file_not_found", None), (None, b"x")]


def test_cmdc_a_factory_is_resolved_and_a_backend_is_itself(runtime):
    backend = CompositeBackend(InMemoryBackend())
    assert backend.resolve(runtime) is backend
    assert CompositeBackend(StateBackend).resolve(runtime).default.runtime is runtime


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


def test_cmdc_one_session_with_a_sandbox_memories_and_history(tmp_path):
    with LocalShellBackend(tmp_path) as sandbox:
        backend = CompositeBackend(sandbox, {"/memory/": InMemoryBackend(), "/history/": StateBackend()})
        for path in ("/f", "/memory/f", "/history/f"):
            assert backend.write(path, path).path == path
        assert paths_of(backend.ls("/").entries) == ["/f", "/history/", "/memory/"]


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


def test_state_6_mixed_storage_without_runtimes():
    backend = CompositeBackend(
        default=StateBackend(), routes={"/memories/": InMemoryBackend(), "/knowledge/": InMemoryBackend()}
    )
    for path in ("/tmp/file.txt", "/memories/AGENTS.md", "/knowledge/docs.md"):
        assert backend.write(path, path).error is None
    assert list(backend.default.runtime.state["files"]) == ["/tmp/file.txt"]
