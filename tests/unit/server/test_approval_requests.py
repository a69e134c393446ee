"""`Approvals`: the states of requests, their bounds, and what of them outlives the server."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from clocks import Clock
from eventually import eventually
from together import beside, together

from fusebackend.base import budget
from fusebackend.base.paths import AgentPath
from fusebackend.history.history_file import HistoryFile
from fusebackend.history.requests import ApprovalOptions, Asked, Request, packed, unpacked
from fusebackend.linux.command import Command
from fusebackend.protocol import Actor, ExecuteResponse
from fusebackend.server import approvals
from fusebackend.server.approvals import Approvals, CanNotAsk, CanNotBeMade, Change, InterruptedVerbs, change_of

BY = Actor(uid=0, pid=1)
DAY_NS = 24 * 3600 * 10**9


def asking(path: str = "/prod/a", actor: Actor = BY, expires_ns: int = 1 << 62) -> Asked:
    return Asked(5, expires_ns, actor, "agent", "write", [path], [path], f"write {path}", ["absent"])


def made(request: Request, command: Any) -> tuple[Any, None]:
    return {"path": request.asked.paths[0]}, None


def states(found: Approvals) -> list[str]:
    return [each.state for each in found.list()]


def tampered(history: HistoryFile, statement: str, *values: Any) -> list[str]:
    history.flush()
    with sqlite3.connect(history.path) as connection:
        assert connection.execute(statement, values).rowcount > 0
    connection.close()
    return history.verify().problems


@pytest.fixture
def history(tmp_path: Path) -> Any:
    with contextlib.closing(HistoryFile(str(tmp_path / "of.history/history.db"))) as history:
        yield history


def test_of_two_decisions_at_once_one_is_made() -> None:
    found = Approvals()
    number = found.ask(asking(), {"content": "x"}).number
    begun = threading.Barrier(8)
    calls: list[int] = []
    refused: list[int] = []

    def make(request: Request, command: Any) -> tuple[Any, None]:
        calls.append(request.number)
        return made(request, command)

    def decide(each: int) -> None:
        begun.wait()
        try:
            if each % 2:
                found.approve(number, BY, make)
            else:
                found.deny(number, BY)
        except OSError as error:
            refused.append(error.errno or 0)

    together(*(partial(decide, each) for each in range(8)))
    assert len(refused) == 7
    assert (states(found), len(calls)) in ((["made"], 1), (["denied"], 0))


def test_who_waits_gets_the_answer_and_who_is_cancelled_does_not_wait() -> None:
    found = Approvals(options=ApprovalOptions(wait_s=50))
    with beside(lambda: found.ask(asking(), {"content": "x"})) as waiting:
        eventually(found.list)
        found.approve(1, BY, made)
    assert waiting.result().state == "made"
    cancelled = budget.Cancellation()
    cancelled.set()
    with budget.limited(None, cancelled=cancelled):
        assert found.ask(asking("/prod/b"), {"content": "x"}).state == "pending"
    found.close()
    assert found.ask(asking("/prod/c"), {"content": "x"}).state == "pending"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda *_: (None, "No space left"), "No space left"),
        (lambda *_: (_ for _ in ()).throw(CanNotBeMade("it has changed")), "it has changed"),
    ],
)
def test_what_can_not_be_made_says_why(make: Callable[..., Any], reason: str) -> None:
    found = Approvals()
    found.ask(asking(), {})
    found.approve(1, BY, make)
    assert [(each.state, each.reason) for each in found.list()] == [("failed", reason)]


@pytest.mark.parametrize(
    ("kept", "change"),
    [
        ({"content": "x", "if_version": [None], "if_absent": [True]}, Change(content="x", if_absent=True)),
        (
            {"old_string": "a", "new_string": "b", "if_version": ["v1"], "if_absent": [False]},
            Change(old_string="a", new_string="b", if_version="v1"),
        ),
        (
            {"contents": ["YQ==", "Yg=="], "if_version": [None, "v1"], "if_absent": [True, False]},
            Change(
                contents=[b"a", b"b"],
                conditions=[{"if_version": None, "if_absent": True}, {"if_version": "v1", "if_absent": False}],
            ),
        ),
        ({"content": "x"}, Change(content="x")),
    ],
)
def test_conditions_of_earlier_programs_are_read(kept: dict[str, Any], change: Change) -> None:
    found = Request(1, asking(), b"", packed(kept))
    assert InterruptedVerbs(Approvals(), SimpleNamespace(), SimpleNamespace()).arguments(found) == change  # type: ignore[arg-type]
    assert change_of(packed(change)) == change


def test_a_command_that_begins_by_an_approval_is_cancelled_with_its_caller_and_takes_none_of_its_memory() -> None:
    held: list[int] = []
    host: Any = SimpleNamespace(hold=held.append, rest=lambda: None)
    seen = SimpleNamespace(shown=SimpleNamespace(decide=lambda operation, path: "interrupt"))
    found = Approvals(None, ApprovalOptions(wait_s=60.0))
    verbs = InterruptedVerbs(found, SimpleNamespace(seen=lambda view: seen), SimpleNamespace())  # type: ignore[arg-type]
    cancelled = threading.Event()

    def run() -> ExecuteResponse:
        budget.current().hold(1 << 20)
        before = budget.current().cancelled
        cancelled.set()
        return ExecuteResponse(f"{before} {budget.current().cancelled}", 0)

    def approve() -> None:
        eventually(lambda: states(found) == ["pending"])
        found.approve(1, BY, lambda request, begin: (begin and begin(), None))

    with beside(approve), budget.limited(None, cancelled, host):
        verbs.before_command("agent", Command("true"), run)
    assert unpacked(ExecuteResponse, found.find(1).became.answer).output == "False True"
    assert held == []


def test_an_error_of_the_server_leaves_no_request_half_made() -> None:
    found = Approvals()
    found.ask(asking(), {})
    with pytest.raises(ZeroDivisionError):
        found.approve(1, BY, lambda *_: 1 // 0)  # type: ignore[arg-type]
    assert states(found) == ["failed"]


def test_the_same_change_is_the_same_request_and_stays_it_for_a_named_call() -> None:
    found = Approvals()
    named = Actor("planner", call="toolu_1")
    assert found.ask(asking(), {"content": "x"}).number == found.ask(asking(), {"content": "x"}).number == 1
    assert found.ask(asking(), {"content": "y"}).number == 2
    assert found.ask(asking(actor=named), {"content": "x"}).number == 3
    for number in (1, 3):
        found.approve(number, BY, made)
    assert found.ask(asking(), {"content": "x"}).number == 4
    again = found.ask(asking(actor=named), {"content": "x"})
    assert (again.number, again.state) == (3, "made")
    known = found.decided(asking(actor=named), {"content": "x"})
    assert known is not None and known.number == 3
    assert found.decided(asking(actor=named), {"content": "z"}) is None


def test_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Approvals()
    with pytest.raises(CanNotAsk, match="at most 1024 KiB"):
        found.ask(asking(), {"content": "x" * (1 << 20)})
    monkeypatch.setattr(approvals, "SHARE", 1)
    monkeypatch.setattr(approvals, "MAX_PENDING", 2)
    for number in range(2):
        found.ask(asking(f"/prod/{number}"), {})
    with pytest.raises(CanNotAsk, match="2 requests wait already"):
        found.ask(asking("/prod/more"), {})
    found.deny(1, BY)
    assert found.ask(asking("/prod/more"), {}).number == 3
    monkeypatch.setattr(approvals, "MAX_BYTES", 10)
    found.deny(2, BY)
    with pytest.raises(CanNotAsk):
        found.ask(asking("/prod/bytes"), {"content": "x" * 10})


def test_what_was_decided_is_in_nobodys_way(history: HistoryFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes are kept for a day, as long as there is room."""
    monkeypatch.setattr(approvals, "MAX_BYTES", 300)
    monkeypatch.setattr(approvals, "SHARE", 1)
    found = Approvals(history)
    for number in range(1, 11):
        assert found.ask(asking(f"/prod/{number}"), {"content": "x" * 100}).number == number
        found.deny(number, BY)
    assert [each.number for each in found.list()] == [9, 10]
    for number in (11, 12):
        found.ask(asking(f"/prod/{number}"), {"content": "x" * 100})
    with pytest.raises(CanNotAsk, match="2 requests wait already"):
        found.ask(asking("/prod/13"), {"content": "x" * 100})
    assert history.verify().problems == []


def test_one_agent_leaves_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approvals, "MAX_PENDING", 8)
    found = Approvals()
    for number in range(2):
        found.ask(asking(f"/prod/{number}", Actor(agent="loop", thread=str(number))), {})
    with pytest.raises(CanNotAsk, match="2 requests of this agent wait already"):
        found.ask(asking("/prod/more", Actor(agent="loop", thread="x")), {})
    assert found.ask(asking("/prod/more", Actor(agent="other")), {}).number == 3
    monkeypatch.setattr(approvals, "MAX_BYTES", 400)
    with pytest.raises(CanNotAsk, match=r"1 requests? of this agent"):
        found.ask(asking("/prod/bytes", Actor(agent="other")), {"content": "x" * 100})


def test_requests_expire_and_are_deleted_a_day_after_the_decision(history: HistoryFile) -> None:
    clock = Clock(10)
    found = Approvals(history, time_ns=clock)
    for path in ("/prod/a", "/prod/b", "/prod/c"):
        found.ask(asking(path, expires_ns=100), {})
    found.deny(1, BY)
    clock.now = 100
    assert states(found) == ["denied", "expired", "expired"]
    with pytest.raises(OSError, match="has expired"):
        found.approve(2, BY, made)
    clock.now += DAY_NS + 1
    assert [each.number for each in found.list()] == [3]  # the newest stays, for its number
    assert [each.number for each in history.requests()] == [3]
    assert found.ask(asking("/prod/d"), {}).number == 4
    assert history.verify().problems == []


def test_the_kernel_is_noted_once_a_minute_and_can_not_be_approved(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Approvals()
    for _ in range(3):
        found.refused_by_kernel("agent", AgentPath("/prod/a"), BY, "change")
    found.refused_by_kernel("agent", AgentPath("/prod/b"), BY, "change")
    assert states(found) == ["refused", "refused"]
    with pytest.raises(OSError, match="a system call can't wait"):
        found.approve(1, BY, made)
    monkeypatch.setattr(approvals, "MAX_NOTED", 2)
    found.refused_by_kernel("agent", AgentPath("/prod/c"), BY, "change")
    assert len(found.list()) == 2


def test_the_oldest_that_were_decided_make_room(history: HistoryFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approvals, "MAX_KEPT", 3)
    found = Approvals(history)
    found.ask(asking(), {})
    for number in range(6):
        found.refused_by_kernel("agent", AgentPath(f"/prod/{number}"), BY, "change")
    assert [each.number for each in found.list()] == [1, 6, 7]
    assert [each.number for each in history.requests()] == [1, 6, 7]
    assert history.verify().problems == []


def test_requests_outlive_the_server_and_what_was_being_made_is_not_made_again(tmp_path: Path) -> None:
    path = str(tmp_path / "of.history/history.db")
    history = HistoryFile(path)
    found = Approvals(history)
    odd = "/prod/\udcff"
    for each in ("/prod/a", odd, "/prod/c"):
        found.ask(asking(each), {"content": each})

    def killed(request: Request, command: Any) -> tuple[Any, None]:
        history.flush()
        raise KeyboardInterrupt

    monkey = found._become
    with pytest.raises(KeyboardInterrupt):
        found._become = lambda request, state, *rest: (  # type: ignore[method-assign]
            request if state == "failed" else monkey(request, state, *rest)
        )
        found.approve(1, BY, killed)
    history.close()
    history = HistoryFile(path)
    later = Approvals(history)
    assert states(later) == ["failed", "pending", "pending"]
    assert "look whether it happened" in str(later.list()[0].reason)
    assert later.find(2).asked.paths == [odd]
    assert later.ask(asking(odd), {"content": odd}).number == 2
    later.approve(2, BY, made)
    assert later.ask(asking("/prod/d"), {}).number == 4
    assert history.verify().problems == []
    history.close()


class TestTheChain:
    @pytest.fixture
    def asked(self, history: HistoryFile) -> HistoryFile:
        found = Approvals(history)
        for path in ("/prod/a", "/prod/b"):
            found.ask(asking(path), {"content": path})
        found.approve(1, BY, made)
        assert history.verify().problems == []
        return history

    def links(self, history: HistoryFile) -> list[int]:
        """Return the links of the events: both requests, and what became of the first one."""
        with contextlib.closing(sqlite3.connect(history.path)) as file:
            rows = file.execute("SELECT link FROM events WHERE call < 0 ORDER BY event DESC, link")
            return [link for (link,) in rows]

    @pytest.mark.parametrize(
        ("statement", "problem"),
        [
            ("UPDATE events SET payload = x'05' WHERE link = {1}", "event {1} (request) was changed"),
            (
                "UPDATE events SET payload = CAST(replace(payload, 'prod', 'work') AS BLOB) WHERE link = {0}",
                "event {0} (request) was changed",
            ),
            ("UPDATE events SET event = 'decision' WHERE link = {1}", "event {1} (decision) was changed"),
            ("UPDATE events SET kind = 'made' WHERE link = {1}", "event {1} (request) was changed"),
            ("UPDATE events SET call = -7 WHERE link = {1}", "event {1} (request) was changed"),
            ("UPDATE events SET call = NULL WHERE link = {1}", "event {1} (request) was changed"),
            ("UPDATE events SET secret = x'7b7d' WHERE link = {1}", "what is kept for event {1} (request) was changed"),
            ("UPDATE events SET secret = x'' WHERE link = {2}", "what is kept for event {2} (decision) was changed"),
            ("DELETE FROM events WHERE link = {1}", "link {1} is missing"),
            (
                "UPDATE events SET event = 'gone' WHERE link = {1}",
                "the deleted call c-2: it was deleted past the server (link {1})",
            ),
        ],
    )
    def test_finds_what_was_changed(self, asked: HistoryFile, statement: str, problem: str) -> None:
        links = self.links(asked)
        assert tampered(asked, statement.format(*links)) == [problem.format(*links)]

    def test_keeps_the_events_of_a_request_after_older_calls_are_deleted(self, asked: HistoryFile) -> None:
        asked.forget(asked.oldest(-1))
        assert asked.verify().problems == []
        link = self.links(asked)[1]
        assert tampered(asked, f"DELETE FROM events WHERE link = {link}") == [f"link {link} is missing"]

    def test_forgets_contents(self, asked: HistoryFile) -> None:
        asked.forget_contents([AgentPath("/prod/b")], {})
        assert [each.change is None for each in asked.requests()] == [False, True]
        found = Approvals(asked)
        found.forget([AgentPath("/prod")], BY)
        assert [(each.state, each.change) for each in map(found.find, (1, 2))] == [("made", None), ("denied", None)]
        assert asked.verify().problems == []
