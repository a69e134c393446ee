"""`Calls`: which call a change belongs to, the process that made it, and its command without secrets."""

from __future__ import annotations

import errno
import itertools
import os
import subprocess
import threading
from pathlib import Path

import pytest
from clocks import Clock
from eventually import eventually
from for_each import for_each
from msgspec.structs import replace
from together import together

from fusebackend.base.paths import ROOT
from fusebackend.history import calls as module
from fusebackend.history import masking
from fusebackend.history.calls import QUIET_S, Calls, Process, Processes, ancestors, process_of
from fusebackend.history.history_file import HistoryFile
from fusebackend.history.masking import LogOptions, kept, masked
from fusebackend.protocol import Actor, acting
from fusebackend.testing.each import each
from fusebackend.vfs.calls import request


@pytest.fixture
def clock():
    return Clock(100.0)


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


def test_a_command_is_none_of_those_that_a_mount_waits_for(calls):
    with calls.inside("command", "sleep"):
        assert calls.running() == []
    with calls.inside("verb", "write") as call:
        assert calls.running() == [call]


def test_a_session_is_one_call_until_it_is_quiet(calls, clock, history):
    first = calls.of_process(process(calls, 10), 5)
    number = changed(calls, first)
    clock.now += QUIET_S - 0.1
    assert calls.of_process(process(calls, 11), 5) is first
    clock.now += QUIET_S
    assert calls.of_process(process(calls, 12), 5) is first
    assert calls.of_process(process(calls, 20, session=20), 5) is not first
    clock.now += QUIET_S + 0.1
    second = calls.of_process(process(calls, 13), 5)
    assert second is not first
    calls.end_quiet()
    kept = history.call(number)
    assert kept.ended_ns is not None
    assert (kept.kind, kept.title, kept.actor) == ("session", "prog -x", Actor(command="prog -x", uid=5, pid=10))


def test_the_next_call_that_may_be_quiet_is_waited_for(calls, clock, history):
    number = changed(calls, calls.of_process(process(calls, 10, session=10), 5))
    clock.now += 0.5
    changed(calls, calls.of_process(process(calls, 20, session=20), 5))
    assert calls.end_quiet() == pytest.approx(QUIET_S - 0.5)
    clock.now += QUIET_S - 0.45
    assert calls.end_quiet() == pytest.approx(0.45)
    assert history.call(number).ended_ns is not None
    with calls.inside("verb", "write", Actor(agent="a", call="tool")):
        clock.now += 1.0
        assert calls.end_quiet() == pytest.approx(QUIET_S)
    assert calls.end_quiet() == pytest.approx(QUIET_S)


def test_a_call_that_ends_with_its_block_wakes_nobody(calls):
    with calls.inside("verb", "edit") as verb:
        changed(calls, verb)
    with calls.inside("verb", "write") as late:
        pass
    assert not calls.opened.is_set()
    changed(calls, late)  # a slow volume was still at work
    assert calls.opened.is_set()
    assert calls.end_quiet() and not calls.opened.is_set()
    changed(calls, calls.of_process(process(calls, 10, session=10), 5))
    assert calls.opened.is_set(), "nobody else ends that of a session"


def test_another_user_in_a_session_has_a_call_of_their_own(calls):
    mine = calls.of_process(process(calls), 5)
    root = calls.of_process(process(calls, 11, uid=0), 0)  # of `sudo` in the same terminal
    assert root is not mine and (mine.actor.uid, root.actor.uid) == (5, 0)
    assert calls.of_process(process(calls, 12), 5) is mine


def test_processes_that_are_not_known_are_taken_for_no_other(calls):
    unknown = calls.of_process(None, 5)
    assert unknown is calls.of_process(None, 5)
    assert unknown is not calls.of_process(None, 6)
    assert unknown is not calls.of_process(process(calls), 5)
    outside = process(calls, 30, session=0)  # its session's leader is not in the server's pid namespace
    assert calls.of_process(outside, 5) is not calls.of_process(process(calls, 31, session=0), 5)


def test_a_request_is_by_its_thread_or_on_behalf_of_the_opener(calls):
    own = process_of(os.getpid())
    asked = request.Request("write", thread=threading.get_native_id(), uid=own.uid)
    opener = replace(asked, author=calls.processes.of(asked.thread))
    assert opener.author == own

    def current(made):
        token = request.asked.set(made)
        try:
            return calls.current()
        finally:
            request.asked.reset(token)

    assert current(opener) is current(asked)
    ended = replace(asked, author=calls.processes.of(0))
    assert current(ended) is not current(asked)
    session, named = current(asked), calls.name(own.pid, "edit", Actor(), "one")
    assert current(asked) is named
    calls.end(named)
    assert current(asked) is session


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
    clock.now += QUIET_S + 0.1
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
            calls._commands["namespace", 77] = call
            assert calls.of_process(process(calls, 50, session=0, namespace=77), 5) is call
            end()
            assert calls.of_process(mine, 5) is not call
    finally:
        child.kill()
        child.wait()


def test_a_named_call_has_a_process_and_its_descendants(calls, history):
    child = subprocess.Popen(["sh", "-c", "sleep 60 & wait"], start_new_session=True)
    try:
        call = calls.name(child.pid, "Bash make", Actor(agent="claude", call="toolu_3"), "one")
        below = process(calls, 9999, session=9999, parent=child.pid)
        assert calls.of_process(below, 5) is call
        assert calls.of_process(process(calls, child.pid), 5) is not call  # a later process of this number
        number = changed(calls, call)
        inner = calls.name(child.pid, "Bash test", Actor(call="toolu_4"), "two")
        assert calls.of_process(below, 5) is inner
        assert calls.named("two") is inner
        calls.end(inner)
        assert calls.named("two") is None
        assert calls.of_process(below, 5) is call
        calls.end(call)
        assert calls.of_process(below, 5) is not call
        assert history.call(number).actor.agent == "claude"
    finally:
        child.kill()
        child.wait()
    with pytest.raises(ProcessLookupError):
        calls.name(child.pid, "late", Actor(), "three")


def test_a_change_that_comes_late_still_has_a_call(calls, clock, history):
    call = calls.of_process(process(calls), 5)
    clock.now += QUIET_S + 0.1
    calls.end_quiet()  # a slow volume is still at work
    number = changed(calls, call)
    calls.end_quiet()
    assert history.call(number).ended_ns is not None


def test_a_session_that_is_never_quiet_ends_in_time(calls, clock, history):
    first = calls.of_process(process(calls), 5)
    number = changed(calls, first)
    for _ in range(40):
        clock.now += 100
        first.last_s = clock.now
        calls.end_quiet()
    assert history.call(number).ended_ns is not None
    assert calls.of_process(process(calls), 5) is not first


# -- processes ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def processes():
    processes = Processes()
    yield processes
    processes.close()


def sleeping(session: bool = False) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "60"], start_new_session=session)


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def test_this_process_by_any_of_its_threads(processes):
    found = []
    together(lambda: found.append(processes.of(threading.get_native_id())))
    (process,) = found
    assert process == processes.of(os.getpid())
    assert (process.pid, process.parent, process.session) == (os.getpid(), os.getppid(), os.getsid(0))
    assert process.uid == os.geteuid()
    assert process.namespace == processes.namespace == os.stat("/proc/self/ns/pid").st_ino


def test_another_process(processes):
    child = sleeping(session=True)
    try:
        eventually(lambda: process_of(child.pid).command == "sleep 60", 10)  # execve(2) sets the name before the words
        process = processes.of(child.pid)
        assert (process.session, process.command) == (child.pid, "sleep 60")
        assert (os.getpid(), process_of(os.getpid()).began) in list(ancestors(process))
    finally:
        end(child)
    assert processes.of(child.pid) is None


def test_a_thread_outside_of_the_namespace_is_not_known(processes):
    assert processes.of(0) is None
    assert processes.of(-1) is None


def test_an_id_that_is_given_again_is_another_process(processes, monkeypatch):
    child = sleeping()
    first = processes.of(child.pid)
    end(child)
    other = first._replace(began=first.began + 1)
    monkeypatch.setattr(module, "process_of", lambda thread: other)
    assert processes.of(child.pid) is not first  # it is asked for again, not taken from what was kept


@pytest.mark.parametrize("refusal", [PermissionError(), OSError(errno.ENOSYS, "no such system call")])
def test_a_process_that_may_not_be_signalled_is_known_while_it_lives(processes, monkeypatch, refusal):
    def refuse(*args):
        raise refusal

    monkeypatch.setattr("signal.pidfd_send_signal", refuse)
    child = sleeping()
    first = processes.of(child.pid)
    assert processes.of(child.pid) is first
    end(child)
    assert processes.of(child.pid) is None


def test_what_is_kept_costs_a_bounded_number_of_descriptors(monkeypatch):
    monkeypatch.setattr(module, "MOST_KEPT", 3)
    processes = Processes()
    children = [sleeping() for _ in range(6)]
    try:
        before = len(os.listdir("/proc/self/fd"))
        for child in children:
            assert processes.of(child.pid).pid == child.pid
        assert len(os.listdir("/proc/self/fd")) <= before + 3
        processes.close()
        assert len(os.listdir("/proc/self/fd")) == before
    finally:
        for child in children:
            end(child)


# -- commands without their secrets ------------------------------------------------------------------------------------


SECRET = "Zx81hunter2Qq"

COMMANDS = [
    "curl -H 'Authorization: Bearer {}' https://api.example.com",
    'curl -H "Authorization: token {}" https://api.example.com',
    "curl -H 'Cookie: session={}; other=1' x",
    "curl -H 'X-Api-Key: {}' x",
    "curl -u me:{} https://example.com",
    "curl --user 'me:{}' https://example.com",
    "git clone https://me:{}@github.com/a/b",
    "git clone https://ghp_{}AAAAAAAAAAAA@github.com/a/b",
    "psql postgres://me:{}@db/x?sslmode=require",
    "psql 'host=db password={} user=me'",
    "PGPASSWORD={} psql",
    "export OPENAI_API_KEY={}; run",
    "env A=1 GITHUB_TOKEN='{} and more' run",
    'AWS_SECRET_ACCESS_KEY="{}" aws s3 ls',
    "deploy --token {} --verbose",
    "deploy --api-key={} --verbose",
    "deploy --password '{} x' now",
    "mysql -u root -p{} db",
    "sshpass -p {} ssh host",
    "docker login -u me -p {} registry",
    "tool -p {}",
    "echo sk-ant-{}-abcdefgh",
    "echo xoxb-{}",
    "echo AKIA{}",
    "echo eyJhbGciOiJIUzI1NiJ9.{}.sig",
    """python -c 'post({{"password": "{}", "user": "me"}})'""",
    "echo '-----BEGIN OPENSSH PRIVATE KEY-----\n{}\n-----END OPENSSH PRIVATE KEY-----' > key",
    "curl 'https://x/?access_token={}&page=1'",
    "curl https://me:{}",
]


@for_each("command", COMMANDS)
def test_secrets_of_commands_are_masked(command: str) -> None:
    text = masked(command.format(SECRET))
    assert SECRET not in text
    assert "***" in text
    assert text.split()[0] == command.split()[0] or "=" in command.split()[0]


@for_each("command", COMMANDS)
def test_a_pattern_fits_no_text_without_what_it_needs(command: str) -> None:
    for needed, pattern, _ in masking._RULES:
        assert all(needed in found[0] for found in pattern.finditer(command.format(SECRET)))


def test_a_secret_that_the_end_cuts_is_masked(tmp_path: Path) -> None:
    """A title has 200 characters at most: it is cut when it is masked."""
    history = HistoryFile(str(tmp_path / "h/history.db"))
    for case in each(itertools.product(COMMANDS, [150, 200, 260])):
        with case as (command, length):
            said = command.format(SECRET)
            title = "x" * max(length - said.index(SECRET) - 5, 0) + " " + said
            call = history.open_call("command", title, Actor(command=title))
            history.add(call, ROOT, "create", b"/a")
            found = history.call(call)
            assert SECRET[:4] not in found.title + found.actor.command
    history.close()
    assert SECRET.encode() not in (tmp_path / "h/history.db").read_bytes()


@for_each(
    "command",
    [
        "rm -rf build && make -j4 all",
        "ssh -p 2222 host uptime",
        "mkdir -p a/b",
        "cp -p file other",
        "docker run -p 8080:80 nginx",
        "curl http://localhost:8080",
        "python -m pytest -k 'not slow' tests/unit",
        "grep -rn token src/",
        "git commit -m 'fix: the password dialog'",
        "write /notes/passwords.md",
        "for i in 1 2 3; do echo $i > f$i; done",
        "sed -i s/a/b/ keys.txt",
    ],
)
def test_what_is_no_secret_stays(command: str) -> None:
    assert masked(command) == command


def test_what_is_kept() -> None:
    said = "A=1 /usr/bin/deploy --token x\n now"
    assert kept(said, "full") == "A=1 /usr/bin/deploy --token x now"
    assert kept(said, "masked") == "A=1 /usr/bin/deploy --token *** now"
    assert kept(said, "none") == "deploy"
    assert kept("Bash: rm -rf x", "none") == "Bash"
    assert kept("", "none") == ""


@pytest.mark.parametrize(
    ("how", "title", "command"), [("full", f"deploy --token {SECRET}", f"run -p {SECRET}"), ("none", "deploy", "run")]
)
def test_the_options_of_a_history(how: str, title: str, command: str, tmp_path: Path) -> None:
    path = str(tmp_path / "h/history.db")
    history = HistoryFile(path, options=LogOptions(how))
    for kind in ("command", "verb"):
        call = history.open_call(kind, f"deploy --token {SECRET}", Actor(command=f"run -p {SECRET}"))  # type: ignore[arg-type]
        history.add(call, ROOT, "create", b"/a")
    rows = [(call.title, call.actor.command) for call in history.calls()][::-1]
    history.close()
    assert rows[0] == (title, command)
    assert rows[1][0] == (title if how == "full" else "deploy --token ***"), "a verb is no command"


def test_an_option_that_is_none() -> None:
    with pytest.raises(ValueError, match="commands = 'all': give one of masked, full, none"):
        LogOptions("all")
