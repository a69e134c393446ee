"""What servers tell a service manager (sd_notify(3)), received on a socket as systemd has it."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import mounts
import pytest
import served

from fusebackend.linux import service_manager
from fusebackend.linux.service_manager import ServiceManager

LIMIT_S = 60.0


class Manager:
    """The receiving end."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(LIMIT_S)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)

    def next(self) -> dict[str, str]:
        said = self._socket.recv(4096).decode()
        return dict(line.split("=", 1) for line in said.split("\n"))

    def is_quiet(self) -> bool:
        return not select.select([self._socket], [], [], 0)[0]

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    made = Manager(f"@fusebackend-test-{os.getpid()}" if request.param == "abstract" else str(tmp_path / "notify"))
    yield made
    made.close()


def test_a_server_says_ready_and_stopping_and_hides_the_socket_from_its_children(
    manager: Manager, tmp_path: Path
) -> None:
    (tmp_path / "shared").mkdir()
    command = served.command("serve", "--default", f"shell:{tmp_path}/shared", "--socket", str(tmp_path / "socket"))
    environment = {**mounts.module_environment(), "NOTIFY_SOCKET": manager.address}
    process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        ready = manager.next()
        assert ready["READY"] == "1"
        assert ready["STATUS"] == f"serving {tmp_path}/shared: shell:{tmp_path}/shared"
        there = served.run("exec", "--mount", str(tmp_path / "socket"), "--", "sh", "-c", "echo ${NOTIFY_SOCKET-none}")
        assert there == "none\n"
        assert manager.is_quiet()
        process.send_signal(signal.SIGTERM)
        assert manager.next() == {"STOPPING": "1", "STATUS": "storing everything"}
        assert manager.next() == {"EXTEND_TIMEOUT_USEC": "30000000"}
        assert process.wait(LIMIT_S) == 0
    finally:
        process.kill()
        process.wait()


def test_more_time_is_asked_for_as_long_as_it_stores(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_manager, "EXTEND_EVERY_S", 0.01)
    with ServiceManager(manager.address) as told:
        told.stopping("storing\neverything")
        assert manager.next() == {"STOPPING": "1", "STATUS": "storing everything"}
        told.stopping("again")
        for _ in range(5):
            assert manager.next() == {"EXTEND_TIMEOUT_USEC": "30000000"}
    while not manager.is_quiet():  # what was sent before the block was left
        assert set(manager.next()) == {"EXTEND_TIMEOUT_USEC"}
    assert not [thread for thread in threading.enumerate() if thread.name == "fusebackend-extend"]


def test_a_server_that_hangs_asks_no_more(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_manager, "EXTEND_EVERY_S", 0.01)
    monkeypatch.setattr(service_manager, "EXTEND_MOST_S", 0.0)
    with ServiceManager(manager.address) as told:
        told.stopping("storing everything")
        assert "STOPPING" in manager.next()
    assert manager.is_quiet()


def test_without_a_manager_nothing_is_sent(monkeypatch: pytest.MonkeyPatch, manager: Manager) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", manager.address)
    with ServiceManager.of_environment(is_main=False) as told:
        told.ready("mounted")
        told.stopping("storing everything")
    assert manager.is_quiet()
    assert "NOTIFY_SOCKET" not in os.environ
    with ServiceManager.of_environment(is_main=True) as told:
        told.ready("mounted")
    assert manager.is_quiet()


def test_a_manager_that_has_gone_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with ServiceManager(str(tmp_path / "gone")) as told:
        told.ready("mounted")
    assert caplog.messages == [f"the service manager at NOTIFY_SOCKET={tmp_path}/gone: No such file or directory"]
