"""Approvals in agents of deepagents: the graph is interrupted, and resumed with a decision from here or elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import graphs
import mounts
import pytest
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

import fusebackend
from fusebackend.control.client.client import Client
from fusebackend.integrations.approving import approving
from fusebackend.integrations.deepagents import export

pytestmark = [pytest.mark.mounted, pytest.mark.timeout(120)]

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


def asked(answer: dict[str, Any]) -> dict[str, Any]:
    (found,) = answer["__interrupt__"]
    (action,) = found.value["action_requests"]
    return dict(action)


def text_of(owner: Client, path: str) -> str | None:
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
    action = asked(agent.invoke(graphs.user("go"), config))
    assert (action["name"], action["args"]["paths"]) == ("edit", ["/prod/a"])
    assert "-one\n+two\n" in action["description"]
    assert text_of(owner, "/prod/a") == "one\n"
    action = asked(agent.invoke(APPROVE, config))  # the next one
    assert action["args"]["paths"] == ["/prod/b"]
    assert text_of(owner, "/prod/a") == "two\n"
    answer = agent.invoke(APPROVE, config)
    assert "__interrupt__" not in answer
    assert (text_of(owner, "/prod/b"), text_of(owner, "/c")) == ("b", "c")
    assert "Successfully replaced 1" in said(answer)[0]
    assert [each.state for each in owner.approvals()[-2:]] == ["made", "made"]


def test_a_rejected_change_does_not_happen_and_the_agent_hears_why(
    clients: tuple[Client, Client], owner: Client
) -> None:
    agent, config = agent_of(clients, graphs.delete("/prod/a")), graphs.thread("t")
    asked(agent.invoke(graphs.user("go"), config))
    answer = agent.invoke(Command(resume={"decisions": [{"type": "reject", "message": "keep it"}]}), config)
    assert "it was denied: keep it" in said(answer)[0]
    assert text_of(owner, "/prod/a") == "one\n"


@pytest.mark.parametrize("resume", [None, APPROVE], ids=["with nothing", "with a decision"])
def test_what_was_decided_elsewhere_lets_the_graph_go_on(
    resume: Any, clients: tuple[Client, Client], owner: Client
) -> None:
    agent = agent_of(clients, graphs.edit("/prod/a", "one", "two"), graphs.write("/prod/b", "b"))
    config = graphs.thread("t")
    number = asked(agent.invoke(graphs.user("go"), config))["args"]["request"]
    assert owner.approve(number).state == "made"
    answer = agent.invoke(resume, config)
    # The decision was for the first one: the second is asked for on its own.
    assert asked(answer)["args"]["paths"] == ["/prod/b"]
    assert "Successfully replaced 1" in said(answer)[0]
    assert (text_of(owner, "/prod/a"), text_of(owner, "/prod/b")) == ("two\n", None)
    owner.deny(asked(answer)["args"]["request"], "no")
    assert "denied: no" in said(agent.invoke(resume, config))[1]


def test_a_command_and_a_verb_that_is_awaited(clients: tuple[Client, Client], owner: Client) -> None:
    agent, config = agent_of(clients, graphs.call("execute", command="echo ran > /ran; cat /ran")), graphs.thread("t")

    async def go() -> dict[str, Any]:
        answer = await agent.ainvoke(graphs.user("go"), config)
        assert asked(answer)["name"] == "execute"
        assert text_of(owner, "/ran") is None
        return dict(await agent.ainvoke(APPROVE, config))

    assert "ran" in said(anyio.run(go))[0]
    assert text_of(owner, "/ran") == "ran\n"


def test_what_is_no_decision_is_refused_and_can_be_given_again(clients: tuple[Client, Client], owner: Client) -> None:
    agent, config = agent_of(clients, graphs.delete("/prod/a")), graphs.thread("t")
    number = asked(agent.invoke(graphs.user("go"), config))["args"]["request"]
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
    action = asked(agent.invoke(graphs.user("go"), config))
    assert (action["name"], action["args"]["paths"]) == ("read", ["/secret/key"])
    assert "the key" not in action["description"]
    again = agent.invoke(APPROVE, config)
    assert "the key" in said(again)[0]
    assert "plain" in said(again)[1]
    assert asked(again)["args"]["paths"] == ["/secret/key"]  # another tool call asks anew
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
    assert asked(agent.invoke(graphs.user("go"), config))["name"] == "download_files"
    assert asked(agent.invoke(APPROVE, config))["name"] == "write"
    answer = agent.invoke(APPROVE, config)
    assert "__interrupt__" not in answer
    assert said(answer) == ["None"]
    assert text_of(owner, "/prod/copy") == "the key\n"
