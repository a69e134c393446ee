"""What a control server does with calls whose clients go, and with many commands of one connection."""

from __future__ import annotations

import json
import threading

import pytest
from controlled import LIMIT_S, Raw, serving
from eventually import eventually

from fusebackend.backends import CompositeBackend, InMemoryBackend
from fusebackend.control import limits, wire
from fusebackend.control.server import limiter


class Held(InMemoryBackend):
    """A `read` of `/held` waits for `release`."""

    def __init__(self):
        super().__init__()
        self.begun, self.release = threading.Event(), threading.Event()

    def read(self, file_path, offset=0, limit=2000):
        if file_path == "/held":
            self.begun.set()
            assert self.release.wait(LIMIT_S)
        return super().read(file_path, offset, limit)


def line(method, id=None, **params):
    call = {"jsonrpc": "2.0", "method": method, "params": params}
    return json.dumps(call if id is None else {**call, "id": id}).encode() + b"\n"


def test_two_hundred_commands_leave_room_for_other_verbs():
    with InMemoryBackend() as files, serving(files) as server, Raw(server.address) as client:
        files.write("/f", "here")
        for number in range(limits.MAX_COMMANDS):
            client.send(line("execute", f"command-{number}", command="wait"))
        assert "here" in client.ask("read", 1, file_path="/f")["result"]["file_data"]["content"]
        assert client.ask("glob", 2, pattern="*")["result"]["matches"]
        refused = client.ask("execute", 3, command="wait")
        assert refused["error"]["code"] == wire.BUSY and "commands" in refused["error"]["message"]
        client.send(line("cancel", None, call="command-7"))
        assert client.line()["id"] == "command-7"
        eventually(lambda: server.limiter.left[limiter.COMMANDS] == limits.MAX_COMMANDS_IN_ALL - 255, LIMIT_S)
    eventually(lambda: server.limiter.left[limiter.COMMANDS] == limits.MAX_COMMANDS_IN_ALL, LIMIT_S)


@pytest.mark.parametrize("method", ["write", "upload_files", "execute"])
def test_a_change_whose_client_has_gone_is_not_begun(method):
    params = {
        "write": {"file_path": "/new", "content": "x"},
        "upload_files": {"files": [{"path": "/new", "content": "eA=="}]},
        "execute": {"command": "hello"},
    }[method]
    with Held() as files, serving(CompositeBackend(files)) as server:
        with Raw(server.address) as client:
            client.send(line("read", 1, file_path="/held") + line(method, 2, **params))
            assert files.begun.wait(LIMIT_S)
        files.release.set()
        eventually(lambda: server.counts()["connections"] == 0, LIMIT_S)
        assert files.ls("/").entries == []


def test_a_change_that_nobody_wanted_an_answer_to_is_carried_out():
    with InMemoryBackend() as files, serving(files) as server:
        with Raw(server.address) as client:
            client.send(line("write", None, file_path="/new", content="x"))
        eventually(lambda: files.ls("/").entries, LIMIT_S)
