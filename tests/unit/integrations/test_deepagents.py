"""`export` and `adopt`: deepagents' classes in both directions."""

import asyncio
import itertools
import os
import subprocess
import sys
import threading
from pathlib import Path

import anyio
import pytest
from for_each import for_each

pytest.importorskip("deepagents")

from agentface import names
from deepagents.backends import CompositeBackend as TheirComposite
from deepagents.backends import FilesystemBackend as TheirFilesystem
from deepagents.backends import LocalShellBackend as TheirShell
from deepagents.backends import StateBackend as TheirState
from deepagents.backends import protocol as theirs
from deepagents.middleware.filesystem import supports_execution
from graphs import call, deep_agent, delegate, edit, say, use, user, write
from raising import raising
from seed_backends import DuckBackend, SeedInMemoryBackend
from their_backends import DictState, OldRemote, Sandbox

from fusebackend.backends import (
    CompositeBackend,
    FilesystemBackend,
    ForeignVolume,
    InMemoryBackend,
    LocalShellBackend,
    SqliteBackend,
    StateBackend,
    volume_of,
)
from fusebackend.integrations import exported
from fusebackend.integrations.deepagents import adopt, export
from fusebackend.server.api import _composite
from fusebackend.testing.conformance import BackendConformance
from fusebackend.urls import open_backend

TREE = [str(Path(__file__).parents[3]), str(Path(__file__).parents[2] / "support")]
PATH = {"PATH": "/usr/bin:/bin"}


# -- what an exported backend is -------------------------------------------------------------------------------


def test_the_class_says_what_the_backend_can(tmp_path):
    with LocalShellBackend(tmp_path) as shell:
        composite = CompositeBackend(shell, {"/m/": InMemoryBackend()})
        for backend, deletes, executes in [
            (InMemoryBackend(), True, False),
            (shell, True, True),
            (composite, True, True),
            (CompositeBackend(InMemoryBackend(), {"/shell/": shell}), True, False),
            (DuckBackend(), True, False),
            (DuckBackend(can_delete=False), False, False),
            (SeedInMemoryBackend(), False, False),
            (CompositeBackend(SeedInMemoryBackend(), {"/m/": InMemoryBackend()}), True, False),
            (StateBackend, True, False),
        ]:
            made = export(backend)
            assert isinstance(made, theirs.BackendProtocol)
            assert theirs._supports_delete(made) is deletes, backend
            assert supports_execution(made) is isinstance(made, theirs.SandboxBackendProtocol) is executes, backend
            assert hasattr(made, "execute") is executes
            assert theirs._method_accepts_max_count(type(made), "grep")
            assert theirs._method_accepts_max_count(type(made), "agrep")
        assert theirs.execute_accepts_timeout(type(export(shell)))


def test_errors_are_sentences_and_the_codes_are_theirs():
    made = export(InMemoryBackend())
    made.write("/d/f", "text text")
    for result, words in [
        (made.write("/d", "x"), "Error writing file '/d': Is a directory"),
        (made.write("/../x", "x"), "Path traversal not allowed"),
        (made.write("/x", "\ud800"), "not valid text"),
        (made.edit("/d/f", "text", "x"), "Error: String 'text' appears 2 times in file. Use replace"),
        (made.edit("/none", "a", "b"), "Error: File '/none' not found"),
        (made.delete("/none"), "Error: File '/none' not found"),
        (made.ls("/none"), "Path '/none': path_not_found"),
    ]:
        assert words in result.error
    uploads = made.upload_files([("/d", b""), ("/../x", b""), ("/d/f/g", b""), ("/ok", b"")])
    assert [upload.error for upload in uploads] == ["is_directory", "invalid_path", "invalid_path", None]
    downloads = made.download_files(["/d", "/none", "/../x", "~/AGENTS.md", "/ok"])
    assert [download.error for download in downloads] == [
        "is_directory", "file_not_found", "invalid_path", "file_not_found", None,
    ]  # fmt: skip


def test_a_composite_with_a_class_or_a_lambda_waits_for_its_graph():
    made = export(CompositeBackend(StateBackend, {"/m/": lambda runtime: InMemoryBackend()}))
    assert "no graph is running here" in made.ls("/").error
    assert made.download_files(["/f"])[0].error is not None


def test_theirs_is_theirs_and_no_backend_is_refused():
    their = DictState()
    assert export(their) is their
    made = export(InMemoryBackend())
    assert export(made) is made
    with pytest.raises(TypeError, match="a int is no backend"):
        export(3)


# -- nothing raises --------------------------------------------------------------------------------------------


VERBS = ("ls", "read", "write", "edit", "grep", "glob", "delete", "upload_files", "download_files")
Raising = type("Raising", (), dict.fromkeys([*VERBS, "execute"], raising(OSError(5, "the cable is cut"))))
Talking = type("Talking", (), dict.fromkeys([*VERBS, "execute"], lambda *arguments, **options: 42))
"""Backends all of whose verbs raise, or answer nonsense."""


BAD = (None, 5, -1, 1e99, b"/x", "", "\0", "~/x", "/../x", "/" + "x" * 300, "/x" * 3000, "\udcff", ["/x"], {}, object())


def closed(directory):
    backend = SqliteBackend(directory / "closed.db")
    backend.close()
    return backend


ANY = {
    "memory": lambda _: InMemoryBackend(),
    "dir": FilesystemBackend,
    "state": lambda _: StateBackend(),
    "composite": lambda _: CompositeBackend(InMemoryBackend(), {"/x/": SeedInMemoryBackend(), "/bad/": Raising()}),
    "raising": lambda _: Raising(),
    "nonsense": lambda _: Talking(),
    "closed": closed,
    "factory": lambda _: lambda runtime: 1 / 0,
    "shell": lambda directory: LocalShellBackend(directory, env=PATH),
}


@pytest.fixture(params=ANY)
def any_backend(request, tmp_path):
    return ANY[request.param](tmp_path)


RESULTS = {
    "ls": (theirs.LsResult, ["/"]),
    "read": (theirs.ReadResult, ["/f", 0, 10]),
    "write": (theirs.WriteResult, ["/f", "text"]),
    "edit": (theirs.EditResult, ["/f", "a", "b", False]),
    "grep": (theirs.GrepResult, ["a", "/", "*"]),
    "glob": (theirs.GlobResult, ["*", "/"]),
    "delete": (theirs.DeleteResult, ["/f"]),
    "execute": (theirs.ExecuteResponse, ["true"]),
}


@for_each("verb", RESULTS)
def test_bad_input_never_raises(any_backend, verb):
    made = export(any_backend)
    if not hasattr(made, verb):
        pytest.skip("can't")
    kind, good = RESULTS[verb]
    for position, bad in itertools.product(range(len(good)), BAD):
        if verb == "execute" and isinstance(bad, str) and bad:
            continue
        arguments = [*good[:position], bad, *good[position + 1 :]]
        result = getattr(made, verb)(*arguments)
        assert type(result) is kind, arguments
    if verb == "grep":
        for bad in BAD:
            assert type(made.grep("a", max_count=bad)) is kind
    assert type(getattr(made, verb)()) is kind  # no argument at all


def test_bad_batches_never_raise(any_backend, caplog):
    made = export(any_backend)
    for batch in (BAD, [(bad, b"x") for bad in BAD], [("/f", bad) for bad in BAD], [("/f",), ("/f", b"", 3)]):
        answers = made.upload_files(batch)
        assert [type(answer) for answer in answers] == [theirs.FileUploadResponse] * len(batch)
    answers = made.download_files(BAD)
    assert [type(answer) for answer in answers] == [theirs.FileDownloadResponse] * len(BAD)
    for batch in (None, 5, "/f", b"", {}, object()):
        assert isinstance(made.upload_files(batch), list) and isinstance(made.download_files(batch), list)


# -- awaiting --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", ["asyncio", "trio"])
def test_the_twins_answer_as_the_verbs_do(library, tmp_path):
    with LocalShellBackend(tmp_path, env=PATH) as shell:
        made = export(shell)
        assert made.id == shell.id

        async def run():
            assert (await made.awrite("/f", "needle\n")).path == "/f"
            assert (await made.aread("/f", offset=0, limit=1)).file_data["content"] == "needle\n"
            assert len((await made.als("/")).entries) == 1
            assert (await made.agrep("needle", max_count=0)).truncated
            assert len((await made.aglob("*", path="/")).matches) == 1
            assert (await made.aedit("/f", "needle", "pin")).occurrences == 1
            assert (await made.aupload_files([("/g", b"1")]))[0].error is None
            assert (await made.adownload_files(["/g"]))[0].content == b"1"
            answer = await made.aexecute("cat g; exit 3", timeout=5)
            assert answer == theirs.ExecuteResponse(output="1\n\nExit code: 3", exit_code=3)
            assert (await made.adelete("/f")).error is None
            assert (await made.aread(None)).error

        anyio.run(run, backend=library)


def test_an_asynchronous_backend_is_asked_on_the_loop_that_waits():
    class Remote:
        """Only the `a…` forms, on one loop, as a connection pool is."""

        def __init__(self):
            self.loop = asyncio.get_running_loop()

        async def adownload_files(self, paths):
            assert asyncio.get_running_loop() is self.loop
            return [theirs.FileDownloadResponse(path=path, content=b"x") for path in paths]

    async def run():
        return (await export(Remote()).adownload_files(["/f"]))[0]

    assert asyncio.run(run()).content == b"x"


class Hanging(DuckBackend):
    def __init__(self):
        super().__init__()
        self.release = threading.Event()

    def _called(self, verb):
        assert self.release.wait(60)


def test_whoever_gives_up_does_not_wait_for_a_backend_that_hangs(monkeypatch):
    backend = Hanging()
    monkeypatch.setattr(exported.theirs, "ASYNC_GREP_TIMEOUT", 0.05)

    async def run():
        try:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(export(backend).als("/"), 0.05)
            return await export(backend).agrep("x")
        finally:
            backend.release.set()

    assert "timed out after 0.05 s" in asyncio.run(run()).error


# -- in an agent -----------------------------------------------------------------------------------------------


def tools_said(state):
    return [message.content for message in state["messages"] if message.type == "tool"]


@pytest.mark.parametrize("given", [export, lambda ours: ours], ids=["exported", "as it is"])
def test_an_agent_works_with_every_tool(tmp_path, given):
    with LocalShellBackend(tmp_path, env=PATH) as shell:
        composite = CompositeBackend(shell, {"/notes/": SqliteBackend(tmp_path / "notes.db")})
        script = [
            use(write("/notes/a.md", "uno\n"), write("/b.txt", "two\n")),
            use(edit("/notes/a.md", "uno", "one again")),
            use(call("ls", path="/"), call("read_file", file_path="/notes/a.md")),
            use(call("grep", pattern="one", output_mode="content"), call("glob", pattern="*.txt")),
            use(call("execute", command="cat b.txt", timeout=10)),
            use(call("delete", file_path="/b.txt")),
            use(write("/notes/a.md", "other\n")),
            say("done"),
        ]
        said = tools_said(deep_agent(None, script, backend=given(composite)).invoke(user("go")))
        for turn, words in [
            (3, "/notes/"), (3, "/b.txt"), (4, "one again"), (5, "one again"), (6, "/b.txt"), (7, "exit code 0"),
            (9, "Updated file /notes/a.md"),
        ]:  # fmt: skip
            assert words in said[turn]
        assert said[7].startswith("two")
        assert composite.read("/b.txt").error == "File '/b.txt' not found"
        assert composite.read("/notes/a.md").file_data["content"] == "other\n"
        assert "already exists" in composite.write("/notes/a.md", "third\n").error
        composite.routes["/notes/"].close()


def test_what_deepagents_asks_of_ours_as_they_are(tmp_path):
    """`create_deep_agent` asks `isinstance`, whatever was imported or made first."""
    with LocalShellBackend(tmp_path) as shell:
        for backend, executes, in_graph in [
            (InMemoryBackend(), False, False),
            (shell, True, False),
            (StateBackend(), False, True),
            (CompositeBackend(InMemoryBackend()), False, False),
            (CompositeBackend(shell, {"/m/": InMemoryBackend()}), True, False),
            (CompositeBackend(InMemoryBackend(), {"/m/": shell, "/s/": StateBackend()}), False, True),
            (CompositeBackend(shell, {"/m/": CompositeBackend(StateBackend)}), True, True),
            (CompositeBackend(InMemoryBackend(), {"/m/": DictState()}), False, True),
        ]:
            assert isinstance(backend, theirs.BackendProtocol), backend
            assert isinstance(backend, theirs.SandboxBackendProtocol) is executes, backend
            assert isinstance(backend, TheirState) is in_graph, backend
            assert theirs._supports_delete(backend)
            assert theirs._method_accepts_max_count(type(backend), "grep")
        assert theirs.execute_accepts_timeout(type(shell))
        assert theirs.execute_accepts_timeout(type(CompositeBackend(shell)))


def test_a_composite_with_classes_and_lambdas_is_given_as_it_is():
    """The seeds' form: the routes are made with the runtime of the graph that runs."""
    kept = InMemoryBackend()
    composite = CompositeBackend(StateBackend, {"/kept/": lambda runtime: kept})
    script = [
        use(write("/draft.md", "a draft\n"), write("/kept/note.md", "a note\n")),
        use(call("read_file", file_path="/kept/note.md"), call("glob", pattern="*.md")),
        say("done"),
    ]
    state = deep_agent(None, script, backend=composite).invoke(user("go"))
    said = tools_said(state)
    assert "a note" in said[2] and "/draft.md" in said[3] and "/kept/note.md" in said[3]
    assert state["files"]["/draft.md"]["content"] == "a draft\n"
    assert kept.read("/note.md").file_data["content"] == "a note\n"
    assert "is a factory and needs a runtime" in composite.read("/draft.md").error, "outside of a graph as before"


def test_a_sub_agent_works_on_the_same_files():
    composite = CompositeBackend(StateBackend(), {"/shared/": InMemoryBackend()})
    script = [
        use(delegate("write the files")),
        use(write("/in-state.md", "by the sub-agent\n"), write("/shared/f.md", "shared\n")),
        say("written"),
        use(call("read_file", file_path="/in-state.md"), call("read_file", file_path="/shared/f.md")),
        say("done"),
    ]
    state = deep_agent(None, script, backend=export(composite)).invoke(user("go"))
    said = tools_said(state)
    assert "by the sub-agent" in said[1] and "shared" in said[2]
    assert state["files"]["/in-state.md"]["content"] == "by the sub-agent\n"


def test_ours_are_routes_of_their_composite_and_come_back_as_themselves():
    native = InMemoryBackend()
    their = TheirComposite(TheirState(), {"/notes/": export(native)})
    script = [use(write("/notes/a.md", "kept\n"), write("/b.md", "in state\n")), say("done")]
    state = deep_agent(None, script, backend=their).invoke(user("go"))
    assert "kept" in native.read("/a.md") and list(state["files"]) == ["/b.md"]
    assert adopt(their).routes["/notes/"] is native


# -- adopt -----------------------------------------------------------------------------------------------------


@pytest.mark.configuration
class TestAdoptedFilesystem(BackendConformance):
    """deepagents' own FilesystemBackend, by the rules of ours but where it decides otherwise."""

    replaces_existing = True
    checks_paths = False  # grep and glob answer that nothing was found; other tests here say what is an error
    any_name = False
    finds_text_only = False
    preserves_crlf = False

    @pytest.fixture
    def backend(self, tmp_path):
        return adopt(TheirFilesystem(tmp_path))


@pytest.mark.configuration
class TestAdoptedState(BackendConformance):
    """And its StateBackend, where a path is a key, and a key may be above another."""

    replaces_existing = True
    keeps_empty_directories = False
    checks_paths = False
    any_name = False
    finds_text_only = False
    preserves_crlf = False

    @pytest.fixture
    def backend(self):
        return adopt(DictState())


class TestExportedAndAdopted(BackendConformance):
    """Out and in again, without the short cut: an exported backend that is not known to be one."""

    replaces_existing = True

    @pytest.fixture
    def backend(self):
        return adopt(_Opaque(export(InMemoryBackend())))

    def test_a_name_may_be_bytes_that_are_no_text(self, b):
        """A model, and the checkpoint of its thread, take UTF-8: such names come as escapes, and are taken back."""
        b.put("/\udcff", "of \\377")
        for name in ("\\\\377", "日\\346\\227.txt"):
            b.put(f"/{name}", f"of {name}")
        expected = ["/\\377", "/\\\\377", "/日\\346\\227.txt"]
        assert sorted(b.names("/")) == sorted(expected)
        assert sorted(path for path, _, _ in b.grepped("of ")) == sorted(expected)
        for path in expected:
            assert b.bytes_of(path).decode() == f"of {path[1:]}"
            assert b.edit(path, "of", "about").path == path


class _Opaque:
    """An object with somebody's verbs, of no class that is known."""

    def __init__(self, backend):
        for verb in VERBS:
            setattr(self, verb, getattr(backend, verb))


def test_out_and_in_again_is_the_same_object():
    native = InMemoryBackend()
    composite = CompositeBackend(native)
    assert adopt(export(composite)) is composite
    assert CompositeBackend(export(native), {"/m/": export(composite)}).default is native
    assert volume_of(adopt(export(native)).default) is native.volume


def test_their_composite_becomes_ours_with_each_route_a_mount():
    default, route, deep = DictState(), DictState(), DictState()
    their = TheirComposite(default, {"/a/": route, "/x/y/": deep})
    default.write("/a/shadowed.txt", "no")
    route.write("/seen.txt", "yes")
    ours = adopt(their)
    assert ours.routes["/a/"] is route and set(ours.mounts()) == {"/", "/a", "/x/y"}
    assert (names(ours), names(ours, "/x")) == (["a", "x"], ["y"])
    assert [info["path"] for info in ours.glob("*.txt").matches] == ["/a/seen.txt"]
    assert ours.delete("/x/y").error and ours.write("/a", "x").error
    nested = CompositeBackend(InMemoryBackend(), {"/theirs/": their})
    assert set(nested.mounts()) == {"/", "/theirs", "/theirs/a", "/theirs/x/y"}


def test_factories_in_their_composite_are_called_for_a_mount():
    made = []
    their = TheirComposite(DictState(), {"/m/": lambda runtime: made.append(runtime) or InMemoryBackend()})
    ours = _composite(their, "runtime")
    assert made == ["runtime"] and type(ours.mounts()["/m"]) is InMemoryBackend


def test_their_filesystem_raises_and_ours_around_it_does_not(tmp_path):
    their = TheirFilesystem(tmp_path)
    with pytest.raises(ValueError, match="traversal"):
        their.read("/../x")
    ours = adopt(their)
    assert ours.read("/../x").error.startswith("Path traversal not allowed")
    assert "ValueError: Path traversal not allowed" in ours.read("/a..b").error  # theirs takes it for one
    assert ours.delete("/").error and tmp_path.exists()  # theirs removes its root


def test_their_reminder_of_an_empty_file_is_no_content(tmp_path):
    ours = adopt(TheirFilesystem(tmp_path))
    for text in ("", " \n", "System reminder: File exists but has empty contents"):
        (tmp_path / "f").write_text(text)
        assert ours.read("/f").file_data["content"] == text


def test_bytes_without_an_extension_that_tells_are_whole():
    """deepagents' StateBackend answers with lines of base64, cut like text."""
    their = DictState()
    data = bytes(range(256)) * 1000
    their.upload_files([("/blob", data)])
    result = adopt(their).read("/blob", 0, 1)
    assert (result.file_data["encoding"], result.start_line) == ("base64", None)
    assert adopt(their).download_files(["/blob"])[0].content == data


def test_commands_of_an_adopted_backend(tmp_path):
    shell = adopt(TheirShell(tmp_path, env=PATH))
    assert shell.execute("echo $((6*7))", timeout=5).output.strip() == "42"
    ours = export(adopt(Sandbox()))
    assert ours.execute("true", timeout=5).output == "ran true" and ours.id == "sandbox-1"
    assert not supports_execution(export(adopt(DictState())))


# -- third parties that know the old names only -----------------------------------------------------------------


def test_an_old_remote_works_though_its_records_fail():
    remote = OldRemote()
    ours = adopt(remote)
    with pytest.raises(TypeError, match="files_update"):
        remote.write("/probe", "x")
    assert ours.write("/f", "a b a\n").path == "/f"
    assert "already exists" in ours.write("/f", "x").error
    assert ours.edit("/f", "b", "c").occurrences == 1
    assert ours.edit("/f", "a", "d", replace_all=True).occurrences == 2
    assert ours.edit("/f", "none", "d").error and ours.edit("/none", "a", "b").error
    assert remote.rows["/f"] == ["d c d"]
    assert [info["path"] for info in ours.ls("/").entries] == ["/f", "/probe"]
    assert [match["line"] for match in ours.grep("c").matches] == [1]
    assert "Invalid regex" in ours.grep("(").error
    assert [info["path"] for info in ours.glob("f").matches] == ["/f"]


def test_an_old_remote_reads_in_windows_that_go_on():
    ours = adopt(OldRemote())
    ours.upload_files([("/f", b"".join(b"line %d\n" % number for number in range(5000)))])
    result = ours.read("/f", 10, 20)
    assert (result.start_line, result.end_line, result.next_offset, result.total_lines) == (11, 30, 30, 5000)
    assert ours.read("/f", 6000).error == "Error: Line offset 6000 exceeds file length (5000 lines)"


def test_an_old_remote_goes_back_into_an_agent():
    remote = OldRemote()
    script = [use(write("/f.md", "one\n")), use(write("/f.md", "two\n")), use(edit("/f.md", "two", "three")), say("ok")]
    state = deep_agent(None, script, backend=export(remote_face := adopt(remote))).invoke(user("go"))
    assert not any("Error" in said for said in tools_said(state))
    assert remote_face.download_files(["/f.md"])[0].content == b"three"


# -- found by themselves ---------------------------------------------------------------------------------------


def test_theirs_is_a_route_as_it_is(tmp_path):
    composite = CompositeBackend(InMemoryBackend(), {"/work/": TheirFilesystem(tmp_path), "/old/": OldRemote()})
    assert composite.write("/work/a.txt", "x").error is None and (tmp_path / "a.txt").read_text() == "x"
    assert composite.write("/old/b.txt", "y").path == "/old/b.txt"
    assert composite.move("/work/a.txt", "/a.txt").error is None and not (tmp_path / "a.txt").exists()
    assert [info["path"] for info in composite.glob("*.txt").matches] == ["/a.txt", "/old/b.txt"]


def test_theirs_by_a_python_url():
    backend = open_backend("python:their_backends:make")
    assert "one" in adopt(backend).read("/a.txt")


@pytest.mark.mounted
def test_theirs_by_the_python_api(tmp_path):
    code = """
import sys, fusebackend, their_backends
with fusebackend.mount(their_backends.make(), sys.argv[1]) as files:
    with open(sys.argv[1] + "/deep/er/c.txt", "w") as file:
        file.write("from the kernel")
    print(files.read("/deep/er/c.txt").file_data["content"], open(sys.argv[1] + "/a.txt").read())
"""
    (tmp_path / "mnt").mkdir()
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, str(tmp_path / "mnt")],
        capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": os.pathsep.join(TREE)},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "from the kernel one\n\n"), done.stderr


def test_a_state_that_is_a_graphs_can_not_be_mounted():
    for function, given, words in [
        (volume_of, TheirState(), "has files only inside of a running graph"),
        (adopt, StateBackend, "'StateBackend' makes backends and is none"),
        (adopt, {}, "a dict is no backend"),
    ]:
        with pytest.raises(TypeError, match=words):
            function(given)
    assert isinstance(volume_of(DictState()), ForeignVolume)
