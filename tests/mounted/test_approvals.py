"""Approvals on real mounts: system calls and commands; verbs, and the command line, are tested without a mount in
`test_approvals_of_verbs.py`."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mounts
import pytest
from approving import asked, one, text_of, waiting
from mounts import Mounted, Serve
from programs import ok

import fusebackend
from fusebackend import Actor
from fusebackend.control.client.client import Client
from fusebackend.testing.posix.case import fails

pytestmark = [pytest.mark.mounted, pytest.mark.timeout(120)]

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
            with fails(errno.ENOENT if path == "/prod/locked" else errno.EACCES):
                work()
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
        words = [sys.executable, "-m", "fusebackend", "approval", "list", "-f", "--mount", server.path]
        following = subprocess.Popen(words, env=mounts.module_environment(), stdout=subprocess.PIPE, text=True)
        with fusebackend.connect(server.path, view="agent") as files:
            files.write("/prod/x", "x")
        assert following.stdout is not None
        assert "write /prod/x" in following.stdout.readline()
        server.stop()
        assert following.wait(LIMIT_S) == 0
        following.stdout.close()


def test_a_write_waits_until_it_is_approved_and_happens_once(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    server = serve(f"sqlite:{tmp_path}/volume.db", config=configured(tmp_path, "[approvals]\nwait = '50s'\n"))
    with (
        fusebackend.connect(server.path, view="agent", actor=Actor("planner")) as agent,
        fusebackend.connect(server.path, view="") as free,
    ):
        answers: list[Any] = []
        writer = threading.Thread(target=lambda: answers.append(agent.write("/prod/app.conf", "debug = false\n")))
        writer.start()
        found = one(free)
        assert text_of(free, "/prod/app.conf") is None and writer.is_alive()
        ok("approval", "approve", found.number, cwd=server.path)
        writer.join(LIMIT_S)
        assert [(each.error, each.path) for each in answers] == [(None, "/prod/app.conf")]
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

        command: list[Any] = []
        pieces: list[bytes] = []
        free.upload_files([("/work/x", b"")])
        runner = threading.Thread(
            target=lambda: command.append(
                agent.run("echo started", cwd="/work", on_output=lambda _, data: pieces.append(data))
            )
        )
        runner.start()
        found = one(free)
        free.approve(found.number)
        runner.join(LIMIT_S)
        assert b"".join(pieces) == b"started\n" and command[0].exit_code == 0

        writer = threading.Thread(target=lambda: answers.append(agent.write("/prod/late", "x")))
        writer.start()
        found = one(free)
        free.deny(found.number, "no")
        writer.join(LIMIT_S)
        # `diff` is of what was changed last, not of the requests since.
        assert "diff --git a/work/x b/work/x" in ok("diff", cwd=server.path)
        assert answers[-1].error == f"Error: '/prod/late' needs an approval: request {found.number}: it was denied: no"

        writer = threading.Thread(target=lambda: answers.append(agent.write("/prod/end", "x")))
        writer.start()
        found = one(free)
        server.stop()  # a caller who waits holds nothing up
        writer.join(LIMIT_S)
        assert f"it is request {found.number};" in answers[-1].error


def test_a_request_outlives_its_server(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    url, config = f"sqlite:{tmp_path}/volume.db", configured(tmp_path)
    for end in (Mounted.stop, Mounted.kill):
        server = serve(url, config=config, at="mnt")
        with fusebackend.connect(server.path, view="agent") as agent:
            agent.write(f"/prod/{end.__name__}", "x\n")
        end(server)
    server = serve(url, config=config, at="mnt")
    with fusebackend.connect(server.path, view="") as free:
        found = waiting(free)
        assert [each.title for each in found] == ["write /prod/stop", "write /prod/kill"]
        assert "+x\n" in str(free.approval(found[0].number).change)
        assert [free.approve(each.number).state for each in found] == ["made", "made"]
        assert text_of(free, "/prod/kill") == "x\n"
        # What is forgotten is kept in no request either.
        with fusebackend.connect(server.path, view="agent") as agent:
            agent.write("/prod/secret", "a secret that nobody should keep")
        number = waiting(free)[0].number
        free.forget("/prod/secret")
        assert (free.approval(number).state, free.approval(number).change) == ("denied", "")
        assert free.verify_log().problems == []
    server.stop()
    kept = b"".join(path.read_bytes() for path in (tmp_path / "state").rglob("history.db*"))
    assert b"c3RhdGU" not in kept and b"a secret that nobody" not in kept
