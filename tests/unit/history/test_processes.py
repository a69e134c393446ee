"""`Processes`: the process of a thread, kept for as long as the thread lives."""

from __future__ import annotations

import os
import subprocess
import threading

import pytest
from eventually import eventually

from fusebackend.history import processes as module
from fusebackend.history.processes import Processes, ancestors, read


@pytest.fixture
def processes(monkeypatch):
    monkeypatch.setattr(module, "FRESH_S", 0.0)
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
    thread = threading.Thread(target=lambda: found.append(processes.of(threading.get_native_id())))
    thread.start()
    thread.join()
    (process,) = found
    assert process == processes.of(os.getpid())
    assert (process.pid, process.parent, process.session) == (os.getpid(), os.getppid(), os.getsid(0))
    assert process.uid == os.geteuid()
    assert process.namespace == processes.namespace == os.stat("/proc/self/ns/pid").st_ino


def test_another_process(processes):
    child = sleeping(session=True)
    try:
        eventually(lambda: read(child.pid).command == "sleep 60", 10)  # execve(2) sets the name before the words
        process = processes.of(child.pid)
        assert (process.session, process.command) == (child.pid, "sleep 60")
        assert (os.getpid(), read(os.getpid()).began) in list(ancestors(process))
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
    monkeypatch.setattr(module, "read", lambda thread: other)
    assert processes.of(child.pid) is not first  # it is asked for again, not taken from what was kept


def test_what_is_kept_costs_a_bounded_number_of_descriptors(processes, monkeypatch):
    monkeypatch.setattr(module, "MOST_KEPT", 3)
    children = [sleeping() for _ in range(6)]
    try:
        before = len(os.listdir("/proc/self/fd"))
        for child in children:
            assert processes.of(child.pid).pid == child.pid
        assert len(os.listdir("/proc/self/fd")) <= before + 3
    finally:
        for child in children:
            end(child)
