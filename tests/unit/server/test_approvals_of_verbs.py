"""What a view interrupts waits for a decision, happens once, or says why it can't: the verbs, without a mount.

System calls and commands are tested on real mounts (`tests/mounted/test_approvals.py`).
"""

from __future__ import annotations

import errno
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from approving import asked, one, text_of, waiting
from commands import Command
from live import Live, live
from together import beside

import fusebackend
from fusebackend import Actor, Client
from fusebackend.backends import InMemoryBackend, SqliteBackend
from fusebackend.history.requests import ApprovalOptions
from fusebackend.protocol import ROOT_NODE, Caller
from fusebackend.server.approvals import InterruptedVerbs
from fusebackend.testing.posix.case import fails
from fusebackend.volumes.walk import entries, resolve

LIMIT_S = 60
ME = Caller(0, 0)

RULES = [
    {"operations": ["read", "write"], "paths": ["/prod/**/.env"], "mode": "hide"},
    {"operations": ["write"], "paths": ["/prod/locked/**"], "mode": "deny"},
    {"operations": ["write"], "paths": ["/prod/**"], "mode": "interrupt"},
    {"operations": ["read"], "paths": ["/asked/denied"], "mode": "deny"},
    {"operations": ["read"], "paths": ["/asked/**"], "mode": "interrupt"},
]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    tmp = tmp_path_factory.mktemp("approvals")
    with live(tmp, SqliteBackend(tmp / "volume.db"), views={"agent": RULES}) as server:
        yield server


@pytest.fixture
def free(shared: Live) -> Iterator[Client]:
    """A client without a view, and the files as each test has them."""
    with shared.connect(view="") as files:
        for path in ("/prod", "/draft", "/plain", "/asked"):
            files.delete(path)
        texts = {
            "/asked/a": "key\n",
            "/asked/b": "b",
            "/asked/denied": "d",
            "/prod/a": "one\n",
            "/prod/dir/b": "b\n",
            "/draft": "draft\n",
        }
        assert all(each.error is None for each in files.upload_files([(p, t.encode()) for p, t in texts.items()]))
        yield files
        for each in waiting(files):
            files.deny(each.number)


@pytest.fixture
def agent(shared: Live, free: Client) -> Iterator[Client]:
    with shared.connect(view="agent") as files:
        yield files


@pytest.fixture
def reader(shared: Live, free: Client) -> Iterator[Client]:
    """The same, which has been told of no decision before."""
    with shared.connect(view="agent", actor=Actor(thread=uuid.uuid4().hex)) as files:
        yield files


class Link:
    """The symbolic link `link` in a new directory `/plain`."""

    def __init__(self, server: Live, target: str) -> None:
        self.volume = server.volume
        self.parent = self.volume.mkdir(ROOT_NODE, b"plain", 0o755, ME).node
        self.volume.symlink(self.parent, b"link", target.encode(), ME)

    def lead(self, target: str) -> None:
        self.volume.unlink(self.parent, b"link")
        self.volume.symlink(self.parent, b"link", target.encode(), ME)


def listed(server: Live, path: str) -> list[bytes]:
    return sorted(name for name, _ in entries(server.volume, resolve(server.volume, path, follow=True).found.node))


VERBS: dict[str, tuple[Callable[[Client], Any], dict[str, str | None]]] = {
    "write": (lambda files: files.write("/prod/new/deep", "new\n"), {"/prod/new/deep": "new\n"}),
    "edit": (lambda files: files.edit("/prod/a", "one", "two"), {"/prod/a": "two\n"}),
    "delete": (lambda files: files.delete("/prod/a"), {"/prod/a": None}),
    "delete of a directory": (lambda files: files.delete("/prod/dir"), {"/prod/dir/b": None}),
    "move into": (lambda files: files.move("/draft", "/prod/draft"), {"/draft": None, "/prod/draft": "draft\n"}),
    "move out of": (lambda files: files.move("/prod/a", "/plain"), {"/prod/a": None, "/plain": "one\n"}),
    "upload": (lambda files: files.upload_files([("/prod/a", b"up")])[0], {"/prod/a": "up"}),
    "large upload": (
        lambda files: files.upload_files([("/prod/a", b"x" * 700_000)])[0],
        {"/prod/a": "x" * 700_000},
    ),
}


class TestAVerb:
    @pytest.mark.parametrize("name", VERBS)
    def test_is_refused_with_a_number_and_happens_when_it_is_approved(
        self, name: str, agent: Client, free: Client
    ) -> None:
        verb, after = VERBS[name]
        before = {path: text_of(free, path) for path in after}
        number = asked(verb(agent).error, free)
        assert {path: text_of(free, path) for path in after} == before
        done = free.approve(number)
        assert (done.state, done.reason) == ("made", None)
        assert {path: text_of(free, path) for path in after} == after
        with fails(errno.EALREADY, match="decided already"):
            free.approve(number)
        assert waiting(free) == []

    def test_that_is_denied_does_not_happen(self, agent: Client, free: Client) -> None:
        number = asked(agent.write("/prod/x", "x").error, free)
        found = free.deny(number, "not on\na friday")
        assert (found.state, found.reason) == ("denied", "not on a friday")
        assert text_of(free, "/prod/x") is None
        with pytest.raises(OSError, match="it was denied: not on a friday"):
            free.approve(number)

    def test_that_fails_by_itself_asks_nobody(self, agent: Client, free: Client) -> None:
        assert "String not found" in str(agent.edit("/prod/a", "nope", "x").error)
        assert "already exists" in str(agent.write("/prod/a", "x").error)
        assert "not found" in str(agent.delete("/prod/none").error)
        assert waiting(free) == []

    def test_that_another_rule_denies_asks_nobody(self, agent: Client, free: Client) -> None:
        free.upload_files([("/prod/locked/l", b"l"), ("/prod/.env", b"E")])
        assert "Permission denied" in str(agent.move("/prod/a", "/prod/locked/a").error)
        assert "Permission denied" in str(agent.write("/prod/.env", "x").error)
        assert "Permission denied" in str(agent.delete("/prod/locked").error)
        # What is hidden in a directory stays: an approval is for what was interrupted, and for nothing else.
        assert "Permission denied" in str(agent.delete("/prod").error)
        # A view renames no directory to where other rules hold, whatever is approved.
        assert "Other rules apply at the new place" in str(agent.move("/prod/dir", "/plain").error)
        assert waiting(free) == []
        assert text_of(free, "/prod/.env") == "E" and text_of(free, "/prod/dir/b") == "b\n"

    @pytest.mark.parametrize("name", [name for name in VERBS if name != "write"])
    def test_can_not_happen_once_its_files_have_changed(self, name: str, agent: Client, free: Client) -> None:
        number = asked(VERBS[name][0](agent).error, free)
        for path in ("/prod/a", "/prod/dir/b", "/draft"):
            assert free.upload_files([(path, b"changed one")])[0].error is None
        done = free.approve(number)
        assert done.state == "failed"
        assert "was changed since it was asked for" in str(done.reason)
        for path in ("/prod/a", "/prod/dir/b", "/draft"):
            assert text_of(free, path) == "changed one"

    def test_can_not_happen_where_others_have_made_the_file(self, agent: Client, free: Client) -> None:
        number = asked(agent.write("/prod/x", "mine").error, free)
        free.write("/prod/x", "theirs")
        assert "was made since" in str(free.approve(number).reason)
        assert text_of(free, "/prod/x") == "theirs"

    def test_by_a_link_that_leads_elsewhere_by_then_changes_nothing(
        self, shared: Live, agent: Client, free: Client
    ) -> None:
        link = Link(shared, "../prod/a")
        free.upload_files([("/prod/other", b"one\n")])  # the same bytes: the stamp alone would not tell
        number = asked(agent.upload_files([("/plain/link", b"by link")])[0].error, free)
        link.lead("../prod/other")
        done = free.approve(number)
        assert done.state == "failed", done
        assert [text_of(free, path) for path in ("/prod/a", "/prod/other")] == ["one\n", "one\n"]

    def test_by_a_link_that_leads_elsewhere_by_then_makes_no_other_file(
        self, shared: Live, agent: Client, free: Client
    ) -> None:
        """Neither is there when it is asked for, and the directory of both was met on the way."""
        link = Link(shared, "../prod/dir/harmless")
        number = asked(agent.upload_files([("/plain/link", b"by link")])[0].error, free)
        assert free.approval(number).title.endswith("(/plain/link leads to /prod/dir/harmless)")
        link.lead("../prod/dir/authorized_keys")
        done = free.approve(number)
        assert listed(shared, "/prod/dir") == [b"b"], done
        assert done.state == "failed" and "leads elsewhere" in str(done.reason)

    def test_of_several_files_makes_what_is_allowed_and_asks_for_the_rest(self, agent: Client, free: Client) -> None:
        answers = agent.upload_files(
            [("/plain/1", b"1"), ("/prod/2", b"2"), ("/prod/locked/3", b"3"), ("/prod/4", b"4")]
        )
        assert answers[0].error is None
        assert answers[2].error == "permission_denied"
        assert answers[1].error is not None and "request" in answers[1].error
        number = waiting(free)[-1].number
        assert waiting(free)[-1].paths == ["/prod/2", "/prod/4"]
        assert free.approve(number).state == "made"
        assert (text_of(free, "/prod/2"), text_of(free, "/prod/4")) == ("2", "4")

    def test_of_a_named_tool_call_gets_its_answer_when_it_comes_again(
        self, shared: Live, agent: Client, free: Client
    ) -> None:
        with shared.connect(view="agent", actor=Actor("planner", call="toolu_1")) as named:
            number = asked(named.edit("/prod/a", "one", "two").error, free)
            free.approve(number)
            again = named.edit("/prod/a", "one", "two")
            assert (again.error, again.occurrences) == (None, 1)
            free.deny(asked(named.delete("/prod/a").error, free), "no")
            assert "denied: no" in str(named.delete("/prod/a").error)
        (made,) = [each for each in free.log(by="planner") if each.kind in ("verb", "tool")]
        assert made.changes == 1

    def test_by_a_path_of_the_view_is_one_in_the_view(self, free: Client) -> None:
        path = "/.fusebackend/views/agent/prod/x"
        number = asked(free.write(path, "x").error, free)
        assert free.approve(number).state == "made"
        assert text_of(free, "/prod/x") == "x"

    def test_a_newline_in_a_name_is_no_line_of_what_is_shown(self, shared: Live, agent: Client, free: Client) -> None:
        number = asked(agent.move("/prod/a", "/prod/x\nrename to /draft").error, free)
        assert free.approval(number).change == 'rename from /prod/a\nrename to "/prod/x\\nrename to /draft"\n'
        free.deny(number)
        free.write("/prod/dir/b\ndelete harmless", "")
        number = asked(agent.delete("/prod/dir").error, free)
        shown = str(free.approval(number).change).splitlines()
        assert sorted(shown) == ['delete "/prod/dir/b\\ndelete harmless"', "delete /prod/dir", "delete /prod/dir/b"]

    def test_is_not_for_the_view_to_decide(self, agent: Client, free: Client) -> None:
        number = asked(agent.write("/prod/x", "x").error, free)
        with pytest.raises(OSError, match="a view has no"):
            agent.approve(number)
        with fusebackend.connect(free.view_socket("agent")) as outside, pytest.raises(OSError, match="a view has no"):
            outside.approve(number)
        assert [each.number for each in waiting(free)] == [number]


def test_the_command_line_lists_shows_approves_and_denies(
    shared: Live, agent: Client, free: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSEBACKEND_MOUNT", shared.mount.status()["control"]["socket"])
    command = Command(free, monkeypatch)
    agent.edit("/prod/a", "one", "two")
    agent.delete("/prod/dir")
    numbers = [each.number for each in waiting(free)]
    listed = command.ok("approval", "list")
    assert [int(line.split()[0]) for line in listed.splitlines()] == numbers and "edit /prod/a" in listed
    assert [each["number"] for each in command.json("approval", "list")] == numbers
    shown = command.ok("approval", "show", numbers[0])
    assert "-one\n+two\n" in shown and "edit /prod/a  (view agent)" in shown
    assert "delete /prod/dir/b" in command.ok("approval", "show", numbers[1])
    assert command.ok("approval", "approve", numbers[0]) == f"request {numbers[0]} has happened: edit /prod/a\n"
    assert "decided already" in command.refused("approval", "approve", numbers[0])
    assert command("approval", "deny", numbers[1], "--reason", "no").exit_code == 0
    free.upload_files([("/prod/gone", b"1")])
    agent.delete("/prod/gone")
    (late,) = waiting(free)
    free.delete("/prod/gone")
    stale = command.refused("approval", "approve", late.number)
    assert "could not happen: '/prod/gone' has gone since it was asked for" in stale
    everything = command.ok("approval", "list", "--all")
    assert "(made)" in everything and "(denied)" in everything and "(failed)" in everything
    assert command.refused("approval", "show", 999).startswith("there is no request 999")


def test_a_link_that_moves_in_the_last_moment_leads_to_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the comparison, where nothing but the rules is left. The directory of both files is interrupted, too."""
    rules = [{"operations": ["write"], "paths": ["/prod", "/prod/**"], "mode": "interrupt"}]
    with (
        live(tmp_path, InMemoryBackend(), views={"agent": rules}) as server,
        server.connect() as files,
        server.connect(view="agent") as agent,
    ):
        files.upload_files([("/prod/dir/b", b"b")])
        link = Link(server, "../prod/dir/harmless")
        assert "request 1" in str(agent.upload_files([("/plain/link", b"by link")])[0].error)
        compared = InterruptedVerbs.face

        def late(self: InterruptedVerbs, request: Any) -> Any:
            face = compared(self, request)
            link.lead("../prod/dir/authorized_keys")
            return face

        monkeypatch.setattr(InterruptedVerbs, "face", late)
        done = files.approve(1)
        assert listed(server, "/prod/dir") == [b"b"], done
        assert done.state == "failed"


READS: dict[str, Callable[[Client, str], tuple[str | None, str | None]]] = {
    "read": lambda files, path: (
        (answer := files.read(path)).error,
        None if answer.file_data is None else str(answer.file_data["content"]),
    ),
    "download": lambda files, path: (
        (answer := files.download_files([path])[0]).error,
        None if answer.content is None else answer.content.decode(),
    ),
}


class TestReading:
    @pytest.mark.parametrize("verb", READS)
    def test_is_refused_with_a_number_and_happens_once_when_it_is_approved(
        self, verb: str, reader: Client, free: Client
    ) -> None:
        read = READS[verb]
        error, content = read(reader, "/asked/a")
        assert content is None
        number = asked(error, free)
        assert free.approval(number).change == "read /asked/a\n"
        assert free.approve(number).state == "made"
        assert READS["download" if verb == "read" else "read"](reader, "/asked/a")[1] is None, "another verb"
        error, content = read(reader, "/asked/a")
        assert (error, (content or "").rstrip("\n")) == (None, "key")
        error, content = read(reader, "/asked/a")
        assert content is None and f"request {number};" not in str(error), "it was approved once"

    def test_waits_and_keeps_no_bytes(self, tmp_path: Path) -> None:
        with (
            live(tmp_path, InMemoryBackend(), views={"agent": RULES}, approvals=ApprovalOptions(wait_s=60)) as server,
            server.connect(view="") as free,
            server.connect(view="agent") as agent,
        ):
            free.upload_files([("/asked/a", b"unforgettable"), ("/asked/open", b"")])
            with beside(lambda: agent.download_files(["/asked/a"])) as reading:
                free.approve(one(free).number)
            assert [each.content for each in reading.result()] == [b"unforgettable"]
        kept = [each.read_bytes() for each in server.history.rglob("*") if each.is_file()]
        assert any(b"/asked/a" in each for each in kept)
        assert not any(b"unforgettable" in each or b"dW5mb3JnZXR0YWJsZQ" in each for each in kept)

    def test_of_what_has_changed_since_or_was_denied(self, reader: Client, free: Client) -> None:
        number = asked(reader.read("/asked/a").error, free)
        free.upload_files([("/asked/a", b"another key")])
        free.approve(number)
        assert "was changed since it was asked for" in str(reader.read("/asked/a").error)
        free.deny(asked(reader.read("/asked/a").error, free), "no")
        assert "it was denied: no" in str(reader.read("/asked/a").error)
        assert reader.read("/asked/denied").file_data is None and waiting(free) == []

    def test_of_several_files_gives_what_is_allowed(self, reader: Client, free: Client) -> None:
        found = reader.download_files(["/draft", "/asked/a", "/asked/denied", "/asked/b"])
        assert [each.content for each in found] == [b"draft\n", None, None, None]
        assert [each.paths for each in waiting(free)] == [["/asked/a"], ["/asked/b"]]
        for each in waiting(free):
            free.approve(each.number)
        found = reader.download_files(["/asked/b", "/asked/a"])
        assert [each.content for each in found] == [b"b", b"key\n"]

    def test_by_a_link_says_where_it_leads(self, shared: Live, reader: Client, free: Client) -> None:
        Link(shared, "../asked/a")
        number = asked(reader.read("/plain/link").error, free)
        assert free.approval(number).change == "read /plain/link (/plain/link leads to /asked/a)\n"
        free.approve(number)
        assert reader.read("/plain/link").error is None

    def test_by_a_path_of_the_view(self, free: Client) -> None:
        path = "/.fusebackend/views/agent/asked/a"
        free.approve(asked(free.read(path).error, free))
        assert free.read(path).error is None

    def test_a_listing_and_a_search_do_not_ask(self, reader: Client, free: Client) -> None:
        assert {entry["path"] for entry in reader.ls("/asked").entries or []} <= {"/asked/"}
        assert (reader.grep("key", "/").matches or []) == []
        assert waiting(free) == []
