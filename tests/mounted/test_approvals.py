"""Approvals on real mounts: system calls and commands; verbs, and the command line, are tested without a mount in
`test_approvals_of_verbs.py`."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import graphs
import mounts
import pytest
import skips
from approving import asked, one, text_of, waiting
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from mounts import Mounted, Serve
from programs import Beside, ok
from together import beside

import fusebackend
from fusebackend import Actor
from fusebackend.control.client.client import Client
from fusebackend.integrations.approving import approving
from fusebackend.integrations.deepagents import export
from fusebackend.testing.posix.case import refused

pytestmark = pytest.mark.timeout(120)

LIMIT_S = 60

VIEW = """
[views.agent]
rules = [
    { operations = ["read", "write"], paths = ["/prod/**/.env"], mode = "hide" },
    { operations = ["write"], paths = ["/prod/locked/**"], mode = "deny" },
    { operations = ["write"], paths = ["/prod/**"], mode = "interrupt" },
    { operations = ["read"], paths = ["/asked/denied"], mode = "deny" },
    { operations = ["read"], paths = ["/asked/**"], mode = "interrupt" },
    { operations = ["execute"], paths = ["/work"], mode = "interrupt" },
    { operations = ["execute"], paths = ["/never"], mode = "deny" },
]
"""


def configured(tmp_path: Path, more: str = "") -> Path:
    path = tmp_path / "approvals.toml"
    path.write_text(more + VIEW)
    return path


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    tmp = tmp_path_factory.mktemp("approvals")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp / "state"))
        with mounts.mounted(tmp / "mnt", f"sqlite:{tmp}/volume.db", config=configured(tmp)) as server:
            yield server


@pytest.fixture
def free(shared: Mounted) -> Iterator[Client]:
    """A client without a view, and the files as each test has them."""
    with fusebackend.connect(shared.path, view="") as files:
        for path in ("/prod", "/work", "/never", "/draft", "/plain", "/asked"):
            files.delete(path)
        texts = {
            "/asked/a": "key\n",
            "/asked/b": "b",
            "/asked/denied": "d",
            "/prod/a": "one\n",
            "/prod/dir/b": "b\n",
            "/draft": "draft\n",
            "/work/x": "",
            "/never/x": "",
        }
        assert all(each.error is None for each in files.upload_files([(p, t.encode()) for p, t in texts.items()]))
        yield files
        for each in waiting(files):
            files.deny(each.number)


@pytest.fixture
def agent(shared: Mounted, free: Client) -> Iterator[Client]:
    with fusebackend.connect(shared.path, view="agent") as files:
        yield files


class TestReading:
    def test_by_the_kernel_is_refused_at_once_with_a_number(self, shared: Mounted, free: Client) -> None:
        view = shared.path / ".fusebackend/views/agent/asked"
        before = len(free.approvals())
        for name in ("a", "b", "a", "denied"):
            with pytest.raises(PermissionError):
                (view / name).read_bytes()
        found = free.approvals()[before:]
        assert [(each.state, each.verb, each.paths) for each in found] == [
            ("refused", "read", ["/asked/a"]), ("refused", "read", ["/asked/b"]),
        ]  # fmt: skip
        titles = [each.title for each in free.log(limit=10) if each.kind == "request"]
        assert f"request {found[0].number}: read /asked/a" in titles


class TestACommand:
    def test_is_shown_with_its_input(self, agent: Client, free: Client) -> None:
        agent.run("sh", cwd="/work", stdin=b"rm -r /draft\n")
        (found,) = waiting(free)
        assert free.approval(found.number).change == "sh\nstandard input:\nrm -r /draft\n"

    def test_starts_when_it_is_approved(self, agent: Client, free: Client) -> None:
        skips.need_sandbox()
        answer = agent.run("echo there; cat > out", cwd="/work", stdin=b"in")
        assert answer.exit_code == 126
        number = asked(answer.output, free)
        assert "echo there" in str(free.approval(number).change)
        assert free.approve(number).state == "made"
        assert text_of(free, "/work/out") == "in"

    def test_of_another_directory_is_not_asked_for(self, agent: Client, free: Client) -> None:
        assert agent.run("echo there").output == "there\n"
        denied = agent.run("echo there", cwd="/never")
        assert (denied.exit_code, denied.output) == (126, "Error: view 'agent' denies commands that start in '/never'")
        assert waiting(free) == []


class TestTheKernel:
    def test_refuses_at_once_and_the_log_has_a_number(self, shared: Mounted, free: Client) -> None:
        view = shared.path / ".fusebackend/views/agent"
        before = len(free.approvals())
        for path, work in (
            ("/prod/a", lambda: (view / "prod/a").write_text("x")),
            ("/prod/a", lambda: (view / "prod/a").write_text("x")),
            ("/prod/new", lambda: (view / "prod/new").mkdir()),
            ("/prod/dir/b", lambda: (view / "prod/dir/b").unlink()),
            ("/prod/draft", lambda: (view / "draft").rename(view / "prod/draft")),
            ("/prod/locked", lambda: (view / "prod/locked/x").write_text("x")),
        ):
            refused(errno.ENOENT if path == "/prod/locked" else errno.EACCES, work)
        assert os.access(view / "prod/a", os.W_OK)  # else the kernel would refuse, and nobody would hear of it
        found = free.approvals()[before:]
        assert [(each.state, each.paths) for each in found] == [
            ("refused", [path]) for path in ("/prod/a", "/prod/new", "/prod/dir/b", "/prod/draft")
        ]
        assert found[0].actor.pid == os.getpid()
        with pytest.raises(OSError, match="a system call can't wait"):
            free.approve(found[0].number)
        titles = [each.title for each in free.log(limit=10) if each.kind == "request"]
        assert f"request {found[0].number}: change /prod/a" in titles

    def test_of_a_command_refuses_it_too(self, agent: Client, free: Client) -> None:
        before = len(free.approvals())
        assert "Permission denied" in agent.run("echo x > /prod/a; echo x > /prod/b").output
        assert [each.paths for each in free.approvals()[before:]] == [["/prod/a"], ["/prod/b"]]


class TestTheCommandLine:
    def test_follows_new_ones_until_the_mount_ends(self, serve: Serve, tmp_path: Path) -> None:
        server = serve("memory:", config=configured(tmp_path))
        with Beside("approval", "list", "-f", "--mount", server.path) as following:
            with fusebackend.connect(server.path, view="agent") as files:
                files.write("/prod/x", "x")
            assert "write /prod/x" in following.line()
            server.stop()
            assert following.end() == (0, "")


def test_a_write_waits_until_it_is_approved_and_happens_once(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skips.need_sandbox()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    server = serve(f"sqlite:{tmp_path}/volume.db", config=configured(tmp_path, "[approvals]\nwait = '50s'\n"))
    with (
        fusebackend.connect(server.path, view="agent", actor=Actor("planner")) as agent,
        fusebackend.connect(server.path, view="") as free,
    ):
        with beside(lambda: agent.write("/prod/app.conf", "debug = false\n")) as writing:
            found = one(free)
            assert text_of(free, "/prod/app.conf") is None and writing.running()
            ok("approval", "approve", found.number, cwd=server.path)
        assert (writing.result().error, writing.result().path) == (None, "/prod/app.conf")
        assert text_of(free, "/prod/app.conf") == "debug = false\n"
        (written,) = [each for each in free.log() if each.title == "write /prod/app.conf"]
        assert (written.kind, written.actor.agent) == ("verb", "planner")
        said = [(each.kind, each.title) for each in free.log() if each.kind in ("request", "approval")]
        assert said == [
            ("approval", f"approve {found.number}: write /prod/app.conf"),
            ("request", f"request {found.number}: write /prod/app.conf"),
        ]
        assert free.verify_log().problems == []
        # An undo without a name is of what was changed, not of the decision.
        assert free.undo().calls == [written.call]

        pieces: list[bytes] = []
        free.upload_files([("/work/x", b"")])
        told = {"cwd": "/work", "on_output": lambda _, data: pieces.append(data)}
        with beside(lambda: agent.run("echo started", **told)) as running:
            free.approve(one(free).number)
        assert b"".join(pieces) == b"started\n" and running.result().exit_code == 0

        with beside(lambda: agent.write("/prod/late", "x")) as writing:
            found = one(free)
            free.deny(found.number, "no")
        # `diff` is of what was changed last, not of the requests since.
        assert "diff --git a/work/x b/work/x" in ok("diff", cwd=server.path)
        denied = f"Error: '/prod/late' needs an approval: request {found.number}: it was denied: no"
        assert writing.result().error == denied

        with beside(lambda: agent.write("/prod/end", "x")) as writing:
            found = one(free)
            server.stop()  # a waiting caller does not delay it
        assert f"it is request {found.number};" in writing.result().error


# --------------------------------------------------------------------------------------------------------------
# Approvals in agents of deepagents: the graph is interrupted, and resumed with a decision from here or elsewhere
# --------------------------------------------------------------------------------------------------------------

RULES = """
[views.agent]
rules = [
    { operations = ["write"], paths = ["/prod/**"], mode = "interrupt" },
    { operations = ["read"], paths = ["/secret/**"], mode = "interrupt" },
    { operations = ["execute"], paths = ["/"], mode = "interrupt" },
]
"""
APPROVE = Command(resume={"decisions": [{"type": "approve"}]})


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, Client]]:
    tmp = tmp_path_factory.mktemp("graphs")
    (tmp / "views.toml").write_text(RULES)
    with (
        mounts.mounted(tmp / "mnt", "memory:", config=tmp / "views.toml", options=["history=off"]) as server,
        fusebackend.connect(server.path, view="agent") as files,
        fusebackend.connect(server.path, view="") as owner,
    ):
        yield files, owner


@pytest.fixture
def owner(clients: tuple[Client, Client]) -> Client:
    clients[1].delete("/prod")
    clients[1].upload_files([("/prod/a", b"one\n")])
    return clients[1]


def agent_of(clients: tuple[Client, Client], *calls: dict[str, Any], backend: Any = None) -> Any:
    script = [graphs.use(each) for each in calls]
    return graphs.deep_agent(InMemorySaver(), script, backend=backend or approving(*clients))


def requested(answer: dict[str, Any]) -> dict[str, Any]:
    (found,) = answer["__interrupt__"]
    (action,) = found.value["action_requests"]
    return dict(action)


def text_at(owner: Client, path: str) -> str | None:
    content = owner.download_files([path])[0].content
    return None if content is None else content.decode()


def said(answer: dict[str, Any]) -> list[str]:
    return [message.content for message in answer["messages"] if message.type == "tool"]


@pytest.mark.parametrize("exported", [False, True])
def test_an_approved_change_happens_once(exported: bool, clients: tuple[Client, Client], owner: Client) -> None:
    backend = approving(export(clients[0]), owner) if exported else approving(*clients)
    agent = agent_of(
        clients, graphs.edit("/prod/a", "one", "two"), graphs.write("/prod/b", "b"), graphs.write("/c", "c"),
        backend=backend,
    )  # fmt: skip
    config = graphs.thread("t")
    action = requested(agent.invoke(graphs.user("go"), config))
    assert (action["name"], action["args"]["paths"]) == ("edit", ["/prod/a"])
    assert "-one\n+two\n" in action["description"]
    assert text_at(owner, "/prod/a") == "one\n"
    action = requested(agent.invoke(APPROVE, config))  # the next one
    assert action["args"]["paths"] == ["/prod/b"]
    assert text_at(owner, "/prod/a") == "two\n"
    answer = agent.invoke(APPROVE, config)
    assert "__interrupt__" not in answer
    assert (text_at(owner, "/prod/b"), text_at(owner, "/c")) == ("b", "c")
    assert "Successfully replaced 1" in said(answer)[0]
    assert [each.state for each in owner.approvals()[-2:]] == ["made", "made"]


def test_a_rejected_change_does_not_happen_and_the_agent_hears_why(
    clients: tuple[Client, Client], owner: Client
) -> None:
    agent, config = agent_of(clients, graphs.delete("/prod/a")), graphs.thread("t")
    requested(agent.invoke(graphs.user("go"), config))
    answer = agent.invoke(Command(resume={"decisions": [{"type": "reject", "message": "keep it"}]}), config)
    assert "it was denied: keep it" in said(answer)[0]
    assert text_at(owner, "/prod/a") == "one\n"


@pytest.mark.parametrize("resume", [None, APPROVE], ids=["with nothing", "with a decision"])
def test_what_was_decided_elsewhere_lets_the_graph_go_on(
    resume: Any, clients: tuple[Client, Client], owner: Client
) -> None:
    agent = agent_of(clients, graphs.edit("/prod/a", "one", "two"), graphs.write("/prod/b", "b"))
    config = graphs.thread("t")
    number = requested(agent.invoke(graphs.user("go"), config))["args"]["request"]
    assert owner.approve(number).state == "made"
    answer = agent.invoke(resume, config)
    # The decision was for the first one: the second is asked for on its own.
    assert requested(answer)["args"]["paths"] == ["/prod/b"]
    assert "Successfully replaced 1" in said(answer)[0]
    assert (text_at(owner, "/prod/a"), text_at(owner, "/prod/b")) == ("two\n", None)
    owner.deny(requested(answer)["args"]["request"], "no")
    assert "denied: no" in said(agent.invoke(resume, config))[1]


def test_a_command_and_a_verb_that_is_awaited(clients: tuple[Client, Client], owner: Client) -> None:
    agent, config = agent_of(clients, graphs.call("execute", command="echo ran > /ran; cat /ran")), graphs.thread("t")

    async def go() -> dict[str, Any]:
        answer = await agent.ainvoke(graphs.user("go"), config)
        assert requested(answer)["name"] == "execute"
        assert text_at(owner, "/ran") is None
        return dict(await agent.ainvoke(APPROVE, config))

    assert "ran" in said(anyio.run(go))[0]
    assert text_at(owner, "/ran") == "ran\n"


def test_what_is_no_decision_is_refused_and_can_be_given_again(clients: tuple[Client, Client], owner: Client) -> None:
    agent, config = agent_of(clients, graphs.delete("/prod/a")), graphs.thread("t")
    number = requested(agent.invoke(graphs.user("go"), config))["args"]["request"]
    with pytest.raises(ValueError, match="resume with"):
        agent.invoke(Command(resume="yes"), config)
    assert owner.approval(number).state == "pending"


def test_outside_of_a_graph_it_is_the_backend(clients: tuple[Client, Client], owner: Client, tmp_path: Path) -> None:
    files = approving(*clients)
    assert "needs an approval" in str(files.write("/prod/x", "x").error)
    assert files.write("/plain", "x").error is None
    assert files.read("/plain").file_data["content"] == "x"
    assert owner.delete("/plain").error is None


def test_a_graph_without_checkpoints_is_not_interrupted(clients: tuple[Client, Client], owner: Client) -> None:
    agent = graphs.deep_agent(None, [graphs.use(graphs.write("/prod/x", "x"))], backend=approving(*clients))
    assert "needs an approval: it is request" in said(agent.invoke(graphs.user("go")))[0]


def read(path: str) -> dict[str, Any]:
    return graphs.call("read_file", file_path=path)


def test_a_file_is_read_once_it_is_approved(clients: tuple[Client, Client], owner: Client) -> None:
    owner.upload_files([("/secret/key", b"the key\n"), ("/plain", b"plain\n")])
    agent, config = agent_of(clients, read("/secret/key"), read("/plain"), read("/secret/key")), graphs.thread("t")
    action = requested(agent.invoke(graphs.user("go"), config))
    assert (action["name"], action["args"]["paths"]) == ("read", ["/secret/key"])
    assert "the key" not in action["description"]
    again = agent.invoke(APPROVE, config)
    assert "the key" in said(again)[0]
    assert "plain" in said(again)[1]
    assert requested(again)["args"]["paths"] == ["/secret/key"]  # another tool call asks anew
    answer = agent.invoke(Command(resume={"decisions": [{"type": "reject", "message": "once is enough"}]}), config)
    assert "once is enough" in said(answer)[2]


def test_a_task_of_several_verbs_reads_again_what_was_approved(clients: tuple[Client, Client], owner: Client) -> None:
    owner.upload_files([("/secret/key", b"the key\n")])
    files = approving(*clients)

    @tool
    def copy() -> str:
        """Copy the key."""
        content = files.download_files(["/secret/key"])[0].content or b""
        files.write("/between", "allowed")
        return str(files.write("/prod/copy", content.decode()).error)

    agent = graphs.deep_agent(InMemorySaver(), [graphs.use(graphs.call("copy"))], tools=[copy], backend=files)
    config = graphs.thread("t")
    assert requested(agent.invoke(graphs.user("go"), config))["name"] == "download_files"
    assert requested(agent.invoke(APPROVE, config))["name"] == "write"
    answer = agent.invoke(APPROVE, config)
    assert "__interrupt__" not in answer
    assert said(answer) == ["None"]
    assert text_at(owner, "/prod/copy") == "the key\n"
