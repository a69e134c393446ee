"""No symbolic link leads around `create_deep_agent(permissions=…)`; `test_deepagents_versions.py` has its agents."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("deepagents")

import permitted
from deepagents import FilesystemMiddleware, FilesystemPermission
from deepagents.backends import CompositeBackend as TheirComposite
from deepagents.backends import FilesystemBackend as TheirFiles
from graphs import call, deep_agent, say, use, user, write
from test_deepagents_versions import TESTS

from fusebackend.backends import CompositeBackend, InMemoryBackend, LocalShellBackend, StateBackend
from fusebackend.integrations.deepagents import export
from fusebackend.integrations.exported import Ruled
from fusebackend.testing.each import each

DENY = [FilesystemPermission(operations=["read", "write"], paths=["/secrets/**"], mode="deny")]


def tools_of(backend, rules=()):
    """The backend that an agent's tools ask."""
    return FilesystemMiddleware(backend=backend, permissions=list(rules)).backend


@pytest.fixture
def files(tmp_path):
    return permitted.copied(permitted.filled(tmp_path / "files"), InMemoryBackend())


def said(backend, *calls, **options):
    state = deep_agent(None, [*map(use, calls), say("done")], backend=backend, **options).invoke(user("go"))
    return [message.content for message in state["messages"] if message.type == "tool"]


def test_an_escape_leads_around_no_rule(files):
    """A name that is no UTF-8 is given as it is shown; rules are compared with the name."""
    files.write("/odd\udcff/k", "SECRET\n")
    rules = [FilesystemPermission(operations=["read", "write"], paths=["/odd\udcff", "/odd\udcff/**"], mode="deny")]
    tools = tools_of(files, rules)
    for path in ("/odd\\377/k", "/x/../odd\\377//k"):
        for answer in (
            tools.read(path), tools.edit(path, "SECRET", "x"), tools.write(path, "x"), tools.delete(path),
            tools.grep("SECRET", path), tools.delete("/odd\\377"),
        ):  # fmt: skip
            assert "permission denied" in str(answer.error), answer
    assert not tools.grep("SECRET", "/").matches or "/odd" not in str(tools.grep("SECRET", "/").matches)
    assert files.download_files(["/odd\udcff/k"])[0].content == b"SECRET\n"
    open_tools = tools_of(files, DENY)
    assert open_tools.read("/odd\\377/k").file_data["content"] == "SECRET\n"
    assert open_tools.delete("/odd\\377/k").error is None


@pytest.mark.parametrize("rules", [DENY, []], ids=["ruled", "plain"])
def test_what_a_link_of_theirs_leads_to_is_not_deleted_by_its_name(tmp_path, rules):
    """deepagents' `FilesystemBackend` deletes what a link leads to: here all files."""
    (tmp_path / "k").write_text("SECRET")
    (tmp_path / "up").symlink_to("../" + tmp_path.name)
    ours = CompositeBackend(InMemoryBackend(), {"/m/": TheirFiles(root_dir=tmp_path, virtual_mode=True)})
    files = tools_of(ours, rules) if rules else ours
    assert "symbolic link" in files.delete("/m/up").error
    assert (tmp_path / "k").read_text() == "SECRET"
    (tmp_path / "d").mkdir()
    (tmp_path / "d/f").touch()
    (tmp_path / "y").symlink_to("d")
    assert bool(files.delete("/m/y/f").error) == bool(rules), "rules are compared with the name that is given"
    assert files.delete("/m/k").error is None


ONLY_A_ROUTE = """
import importlib, os
import langchain.agents  # most of what deepagents imports, once for both
for order in [["fusebackend.backends", "deepagents"], ["deepagents", "fusebackend.backends"]]:
    if os.fork():
        os.wait()
        continue
    for module in order:
        importlib.import_module(module)
    import deepagents
    from deepagents.backends import CompositeBackend, StateBackend
    from deepagents.backends.protocol import BackendProtocol
    from fusebackend.backends import InMemoryBackend
    files = InMemoryBackend()
    backend = CompositeBackend(default=StateBackend(), routes={"/m/": files})
    tools = deepagents.FilesystemMiddleware(backend=backend).backend
    print(order[0], type(tools.routes["/m/"]).__module__, isinstance(files, BackendProtocol))
    break
"""


def test_whatever_is_imported_first():
    """deepagents asks a route of a composite of its own nothing before the verb."""
    environment = {**os.environ, "PYTHONPATH": str(TESTS.parent)}
    program = [sys.executable, "-c", ONLY_A_ROUTE]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == [
        f"{first} fusebackend.integrations.exported True" for first in ("fusebackend.backends", "deepagents")
    ], done.stderr


# -- what is asked for it ----------------------------------------------------------------------------------------------


def test_without_rules_links_are_followed_and_nothing_is_asked_for_them(files, monkeypatch):
    monkeypatch.setattr(InMemoryBackend, "real_paths", None)
    assert not isinstance(tools_of(files), Ruled)
    assert "SECRET" in said(files, call("read_file", file_path="/x/k"))[0]


def test_a_listing_is_one_question(files, monkeypatch):
    files.upload_files([(f"/many/{number}", b"needle") for number in range(100)])
    asked = []
    own = InMemoryBackend.real_paths
    monkeypatch.setattr(InMemoryBackend, "real_paths", lambda self, wanted: asked.append(wanted) or own(self, wanted))
    tools = tools_of(files, DENY)
    for case in each({"ls": ("/many",), "glob": ("*", "/many"), "grep": ("needle", "/many")}):
        with case as arguments:
            asked.clear()
            found = getattr(tools, case.name)(*arguments)
            assert len(found.entries if case.name == "ls" else found.matches) == 100
            assert [len(wanted) for wanted in asked] == [1, 100]


def test_rules_that_are_not_found_let_no_link_lead_anywhere(files):
    """As in a deepagents that keeps them elsewhere."""
    made = FilesystemMiddleware(backend=files, permissions=DENY)
    del vars(made)["_permissions"]
    assert made.backend.read("/y/f").error == "permission denied for read on /y/f (resolves to /open/f)"
    assert made.backend.read("/open/f").error is None
    assert made.backend.write("/y/f", "x").error.startswith("Error: permission denied for write")


def test_what_is_asked_is_what_was_given_but_for_ours(files, tmp_path):
    theirs = TheirFiles(root_dir=tmp_path, virtual_mode=True)
    alone = TheirComposite(default=theirs, routes={"/a/": theirs})
    both = TheirComposite(default=theirs, routes={"/a/": files, "/a/b/": theirs}, artifacts_root="/a")
    assert tools_of(theirs) is theirs and tools_of(alone) is alone
    made = tools_of(both, DENY)
    assert (made.default, made.routes["/a/b/"], made.artifacts_root) == (theirs, theirs, "/a")
    assert made.routes["/a/"].backend is files and both.routes["/a/"] is files
    assert [prefix for prefix, _ in made.sorted_routes] == ["/a/b/", "/a/"]
    middleware = FilesystemMiddleware(backend=files)
    assert middleware.backend is middleware.backend, "made once"
    middleware.backend = theirs
    assert middleware.backend is theirs


def test_an_agent_replaces_whatever_backend_it_was_given(files, tmp_path):
    """As the description of its tool says; `write` in Python refuses."""
    kinds = {
        "as it is": files,
        "exported": export(files),
        "composite": CompositeBackend(files, {"/m/": InMemoryBackend()}),
        "route": TheirComposite(default=files, routes={"/m/": InMemoryBackend()}),
        "state": StateBackend(),
        "factory": CompositeBackend(StateBackend, {"/m/": InMemoryBackend()}),
    }
    for case in each(kinds):
        with case as backend:
            reads = [call("read_file", file_path=path) for path in ("/f", "/m/f")]
            calls = [write(path, content) for content in ("one", "two") for path in ("/f", "/m/f")]
            told = said(backend, *calls, *reads)
            assert told[:4] == ["Updated file /f", "Updated file /m/f"] * 2
            assert [text.rpartition("\n")[2] for text in told[4:]] == ["two", "two"]
    assert "already exists" in files.write("/f", "three").error


def test_a_backend_that_runs_commands_takes_no_rules(tmp_path):
    """But for rules about other routes alone: docs/langgraph.md has the way for a mount."""
    with LocalShellBackend(tmp_path) as shell:
        with pytest.raises(NotImplementedError, match="command execution"):
            deep_agent(None, [], backend=shell, permissions=DENY)
        theirs = TheirComposite(default=shell, routes={"/secrets/": InMemoryBackend()})
        deep_agent(None, [], backend=theirs, permissions=DENY)
