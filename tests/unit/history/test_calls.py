"""`Calls`: which call a change belongs to."""

from __future__ import annotations

import os
import subprocess
import threading

import pytest

from fusebackend.base.paths import ROOT
from fusebackend.history.calls import QUIET_S, Calls
from fusebackend.history.history_file import HistoryFile
from fusebackend.history.processes import Process, read
from fusebackend.protocol import Actor, acting
from fusebackend.vfs.calls import request


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def history(tmp_path):
    history = HistoryFile(str(tmp_path / "history" / "history.db"))
    yield history
    history.close()


@pytest.fixture
def calls(history, clock):
    calls = Calls(history, monotonic_s=clock)
    yield calls
    calls.close()


def process(calls, pid=10, session=10, **fields):
    given = {"began": pid, "parent": 1, "uid": 5, "namespace": calls.processes.namespace, "command": "prog -x"}
    return Process(pid, session=session, **{**given, **fields})


def changed(calls, call):
    """Have a call change something."""
    number = calls.number(call)
    calls._history.add(number, ROOT, "create", b"/a")
    return number


def test_a_session_is_one_call_until_it_is_quiet(calls, clock, history):
    first = calls.of_process(process(calls, 10), 5)
    number = changed(calls, first)
    clock.now_s += QUIET_S - 0.1
    assert calls.of_process(process(calls, 11), 5) is first
    clock.now_s += QUIET_S
    assert calls.of_process(process(calls, 12), 5) is first
    assert calls.of_process(process(calls, 20, session=20), 5) is not first
    clock.now_s += QUIET_S + 0.1
    second = calls.of_process(process(calls, 13), 5)
    assert second is not first
    calls.end_quiet()
    kept = history.call(number)
    assert kept.ended_ns is not None
    assert (kept.kind, kept.title, kept.actor) == ("session", "prog -x", Actor(command="prog -x", uid=5, pid=10))


def test_another_user_in_a_session_has_a_call_of_their_own(calls):
    mine = calls.of_process(process(calls), 5)
    root = calls.of_process(process(calls, 11, uid=0), 0)  # of `sudo` in the same terminal
    assert root is not mine and (mine.actor.uid, root.actor.uid) == (5, 0)
    assert calls.of_process(process(calls, 12), 5) is mine


def test_a_quiet_session_ends_by_itself(calls, clock, history):
    number = changed(calls, calls.of_process(process(calls), 5))
    calls.end_quiet()
    assert history.call(number).ended_ns is None
    assert [call.number for call in calls.open()] == [number]
    clock.now_s += QUIET_S + 0.1
    calls.end_quiet()
    assert history.call(number).ended_ns is not None
    assert calls.open() == []


def test_processes_that_are_not_known_are_taken_for_no_other(calls):
    unknown = calls.of_process(None, 5)
    assert unknown is calls.of_process(None, 5)
    assert unknown is not calls.of_process(None, 6)
    assert unknown is not calls.of_process(process(calls), 5)
    outside = process(calls, 30, session=0)  # its session's leader is not in the server's pid namespace
    assert calls.of_process(outside, 5) is not calls.of_process(process(calls, 31, session=0), 5)


def test_a_request_is_by_its_thread_or_on_behalf_of_the_opener(calls):
    own = read(os.getpid())
    asked = request.Request("write", thread=threading.get_native_id(), uid=own.uid)
    opener = asked._replace(author=calls.author(asked))
    assert opener.author == own

    def current(made):
        token = request._current.set(made)
        try:
            return calls.current()
        finally:
            request._current.reset(token)

    assert current(opener) is current(asked)
    ended = asked._replace(author=calls.author(asked._replace(thread=0)))
    assert current(ended) is not current(asked)


def test_a_verb_is_a_call_and_has_what_is_made_in_it(calls, history):
    with calls.inside("verb", "write /a") as call:
        assert calls.current() is call
        number = changed(calls, call)
        with calls.inside("verb", "write /b") as inner:
            assert inner is call
    assert history.call(number).ended_ns is not None
    assert history.call(number).actor.pid == os.getpid()
    with calls.inside("verb", "write /c") as other:
        assert other is not call


def test_verbs_of_a_tool_call_are_one_call(calls, clock, history):
    actor = Actor(agent="planner", thread="t", call="toolu_1")
    with acting(actor):
        with calls.inside("verb", "write /a") as first:
            number = changed(calls, first)
        with calls.inside("command", "ls") as second:
            assert second is first
        with calls.inside("undo", "undo c1", undoes=[number]) as undo:
            assert undo is not first
    with acting(Actor(agent="planner", thread="t", call="toolu_2")), calls.inside("verb", "x") as third:
        assert third is not first
    clock.now_s += QUIET_S + 0.1
    calls.end_quiet()
    assert (history.call(number).kind, history.call(number).actor) == ("tool", actor)
    assert history.call(number).ended_ns is not None


def test_a_command_has_the_processes_of_its_pid_namespace(calls):
    child = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        with calls.inside("command", "make") as call:
            end = calls.started(call, child.pid)  # without a namespace of its own: by its session
            mine = process(calls, child.pid + 1, session=child.pid)
            assert calls.of_process(mine, 5) is call
            calls._by_namespace[77] = call
            assert calls.of_process(process(calls, 50, session=0, namespace=77), 5) is call
            end()
            assert calls.of_process(mine, 5) is not call
    finally:
        child.kill()
        child.wait()


def test_a_named_call_has_a_process_and_its_descendants(calls, history):
    child = subprocess.Popen(["sh", "-c", "sleep 60 & wait"], start_new_session=True)
    try:
        call = calls.name(child.pid, "Bash make", Actor(agent="claude", call="toolu_3"))
        below = process(calls, 9999, session=9999, parent=child.pid)
        assert calls.of_process(below, 5) is call
        assert calls.of_process(process(calls, child.pid), 5) is not call  # a later process of this number
        number = changed(calls, call)
        inner = calls.name(child.pid, "Bash test", Actor(call="toolu_4"))
        assert calls.of_process(below, 5) is inner
        assert calls.end_named("toolu_4")
        assert calls.of_process(below, 5) is call
        assert calls.end_named(f"c{number}")
        assert not calls.end_named(f"c{number}")
        assert calls.of_process(below, 5) is not call
        assert history.call(number).actor.agent == "claude"
    finally:
        child.kill()
        child.wait()
    with pytest.raises(ProcessLookupError):
        calls.name(child.pid, "late", Actor())


def test_a_change_that_comes_late_still_has_a_call(calls, clock, history):
    call = calls.of_process(process(calls), 5)
    clock.now_s += QUIET_S + 0.1
    calls.end_quiet()  # a slow volume is still at work
    number = changed(calls, call)
    calls.end_quiet()
    assert history.call(number).ended_ns is not None


def test_secrets_are_not_kept(calls, history):
    with calls.inside("command", "psql postgres://me:secret@host/db\nselect") as call:
        kept = history.call(changed(calls, call))
    assert kept.title == "psql postgres://me:***@host/db select"


def test_a_session_that_is_never_quiet_ends_in_time(calls, clock, history):
    first = calls.of_process(process(calls), 5)
    number = changed(calls, first)
    for _ in range(40):
        clock.now_s += 100
        first.last_s = clock.now_s
        calls.end_quiet()
    assert history.call(number).ended_ns is not None
    assert calls.of_process(process(calls), 5) is not first
