"""The control server against clients that are slow, dead, mistaken or hostile: it answers, and goes on answering."""

from __future__ import annotations

import json
import os
import socket
import stat
import threading
import time
from pathlib import Path

import pytest
from controlled import LIMIT_S, ClientOf, Raw, serving
from hypothesis import given, settings
from hypothesis import strategies as st

from fusebackend.backends import InMemoryBackend
from fusebackend.control import rendezvous, wire
from fusebackend.control import server as server_module


@pytest.fixture
def files():
    with InMemoryBackend() as files:
        files.write("/x", "one\n")
        yield files


@pytest.fixture
def server(files):
    with serving(files) as server:
        yield server


@pytest.fixture
def raw(server):
    with Raw(server.address) as raw:
        yield raw


def answers(server) -> bool:
    """Is somebody new served?"""
    with Raw(server.address) as raw:
        return raw.ask("read", file_path="/x")["result"]["file_data"]["content"] == "one\n"


class TestMessages:
    def test_a_call_is_answered_with_its_id(self, raw):
        for call in (1, "one", 0, -5, 2**53, None):
            answer = raw.ask("ping", call, payload={"any": ["thing"]})
            assert answer == {"jsonrpc": "2.0", "id": call, "result": {"any": ["thing"]}}

    def test_a_notification_is_carried_out_and_not_answered(self, raw, files):
        raw.send(b'{"jsonrpc":"2.0","method":"write","params":{"file_path":"/n","content":""}}\n')
        assert raw.ask("ping", payload=7)["result"] == 7
        assert files.download_files(["/n"])[0].content == b""

    def test_several_calls_in_one_piece_and_one_call_in_many(self, raw):
        line = b'{"jsonrpc":"2.0","id":%d,"method":"ping","params":{"payload":%d}}\n'
        raw.send(b"".join(line % (number, number) for number in range(100)))
        assert [raw.line()["result"] for _ in range(100)] == list(range(100))
        for byte in line % (1, 5):
            raw.send(bytes([byte]))
        assert raw.line()["result"] == 5

    def test_parameters_may_be_left_out(self, raw):
        raw.send(b'{"jsonrpc":"2.0","id":1,"method":"hello"}\n')
        assert raw.line()["result"]["protocol"] == 1

    def test_empty_lines_are_passed_over(self, raw):
        raw.send(b"\n\r\n  \n")
        assert raw.ask("ping", payload=1)["result"] == 1

    @pytest.mark.parametrize(
        ("line", "code", "call"),
        [
            (b"{", wire.PARSE_ERROR, None),
            (b"hello", wire.PARSE_ERROR, None),
            (b"\xff\xfe", wire.PARSE_ERROR, None),
            (b'{"jsonrpc":"2.0","id":4,"method":"ls","params":{"path":"\xff"}}', wire.INVALID_PARAMS, 4),
            (b"[" * 100_000, wire.INVALID_REQUEST, None),
            (b"\x00", wire.PARSE_ERROR, None),
            (b"[]", wire.INVALID_REQUEST, None),
            (b"7", wire.INVALID_REQUEST, None),
            (b"null", wire.INVALID_REQUEST, None),
            (b'{"jsonrpc":"1.0","id":4,"method":"ls"}', wire.INVALID_REQUEST, 4),
            (b'{"id":4,"method":"ls"}', wire.INVALID_REQUEST, 4),
            (b'{"jsonrpc":"2.0","id":{},"method":"ls"}', wire.INVALID_REQUEST, None),
            (b'{"jsonrpc":"2.0","id":4,"method":7}', wire.INVALID_REQUEST, 4),
            (b'{"jsonrpc":"2.0","id":4,"method":"sl"}', wire.METHOD_NOT_FOUND, 4),
            (b'{"jsonrpc":"2.0","id":4,"method":"__class__"}', wire.METHOD_NOT_FOUND, 4),
            (b'{"jsonrpc":"2.0","id":4,"method":"ls"}', wire.INVALID_PARAMS, 4),
            (b'{"jsonrpc":"2.0","id":4,"method":"ls","params":["/"]}', wire.INVALID_PARAMS, 4),
            (b'{"jsonrpc":"2.0","id":4,"method":"ls","params":null}', wire.INVALID_PARAMS, 4),
            (b'{"jsonrpc":"2.0","id":4,"method":"ls","params":{"path":7}}', wire.INVALID_PARAMS, 4),
            (b'{"jsonrpc":"2.0","id":4,"method":"ls","params":{"path":"/","x":1}}', wire.INVALID_PARAMS, 4),
            (
                b'{"jsonrpc":"2.0","id":4,"method":"upload_files","params":{"files":[{"path":"/b","content":"?"}]}}',
                wire.INVALID_PARAMS,
                4,
            ),
            (
                b'{"jsonrpc":"2.0","id":4,"method":"execute","params":{"command":"x","timeout":0}}',
                wire.INVALID_PARAMS,
                4,
            ),
            (b'{"jsonrpc":"2.0","id":4,"method":"stage","params":{"data":"","token":"none"}}', wire.SYSTEM_ERROR, 4),
        ],
    )
    def test_what_can_not_be_understood_is_an_error(self, raw, line, code, call):
        raw.send(line + b"\n")
        answer = raw.line()
        assert (answer["id"], answer["error"]["code"]) == (call, code)
        assert answer["error"]["message"]
        assert raw.ask("ping", payload=1)["result"] == 1, "the connection goes on"

    @settings(max_examples=300, deadline=None)
    @given(lines=st.lists(st.binary(max_size=300), min_size=1, max_size=5))
    def test_no_bytes_end_the_server(self, lines):
        with InMemoryBackend() as files, serving(files) as server, Raw(server.address) as raw:
            for line in lines:
                raw.send(line.replace(b"\n", b"") + b"\n")
            raw.send(b'{"jsonrpc":"2.0","id":"end","method":"ping"}\n')
            while (answer := raw.line()) is not None and answer["id"] != "end":
                assert "error" in answer
            assert answer is not None


class TestLimits:
    def test_a_line_of_a_gibibyte(self, server, raw):
        piece = b"x" * (1 << 20)
        for _ in range(1024):
            raw.send(piece)
        raw.send(b"\n")
        answer = raw.line()
        assert (answer["id"], answer["error"]["code"]) == (None, wire.PARSE_ERROR)
        assert raw.ask("ping", payload=1)["result"] == 1, "what follows the long line is understood"
        assert server.counts()["held_bytes"] == 0

    def test_unfinished_messages_are_bounded_together(self, server):
        piece = b"x" * (60 << 20)
        clients = [Raw(server.address) for _ in range(5)]
        refused = 0
        for client in clients:
            try:
                client.send(piece)
            except OSError:
                refused += 1
        deadline = time.monotonic() + LIMIT_S
        while server.counts()["connections"] > 4 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert server.counts()["connections"] <= 4, "the one that was too much is closed"
        assert server.counts()["held_bytes"] <= server_module.MAX_HELD_BYTES
        assert answers(server)
        for client in clients:
            client.close()

    def test_half_a_line_and_gone(self, server):
        for _ in range(50):
            with Raw(server.address) as raw:
                raw.send(b'{"jsonrpc":"2.0","id":1,"met')
        assert answers(server)

    def test_a_thousand_connections(self, server):
        clients = []
        for _ in range(1000):
            clients.append(Raw(server.address))
        assert server.counts()["connections"] <= server_module.MAX_CONNECTIONS
        time.sleep(server_module.IDLE_S + 0.1)
        assert answers(server), "idle connections make room"
        for client in clients:
            client.close()
        assert answers(server)

    def test_a_reader_that_does_not_read(self, server, files):
        files.upload_files([("/large", b"line\n" * 400_000)])
        with Raw(server.address) as sleeper:
            for number in range(8):
                call = {"jsonrpc": "2.0", "id": number, "method": "grep", "params": {"pattern": "line"}}
                sleeper.send(json.dumps(call).encode() + b"\n")
            assert answers(server)
            start = time.monotonic()
            files.write("/meanwhile", "1")
            assert time.monotonic() - start < LIMIT_S / 2, "no lock is held while somebody does not read"
        assert answers(server)

    def test_too_many_calls_of_one_connection(self, raw):
        for number in range(server_module.MAX_CALLS):
            call = {"jsonrpc": "2.0", "id": number, "method": "execute", "params": {"command": "wait"}}
            raw.send(json.dumps(call).encode() + b"\n")
        answer = raw.ask("execute", "more", command="wait")
        assert (answer["id"], answer["error"]["code"]) == ("more", wire.BUSY)
        for number in range(server_module.MAX_CALLS):
            raw.send(b'{"jsonrpc":"2.0","method":"cancel","params":{"call":%d}}\n' % number)
        assert {raw.line()["error"]["code"] for _ in range(server_module.MAX_CALLS)} == {wire.CANCELLED}

    def test_the_same_id_twice(self, raw):
        raw.send(b'{"jsonrpc":"2.0","id":1,"method":"execute","params":{"command":"wait"}}\n')
        assert raw.ask("execute", 1, command="wait")["error"]["code"] == wire.INVALID_REQUEST
        raw.ask("cancel", 2, call=1)

    def test_the_end_of_a_connection_cancels_its_calls(self, server):
        with Raw(server.address) as raw:
            raw.send(b'{"jsonrpc":"2.0","id":1,"method":"execute","params":{"command":"wait"}}\n')
            raw.ask("ping")
            (connection,) = server._connections
            (call,) = connection._calls.values()
        assert call.cancelled.wait(LIMIT_S)

    def test_staged_contents_go_with_their_connection(self, server, raw):
        token = raw.ask("stage", data="AAAA")["result"]
        assert raw.ask("stage", data="AAAA", token=token)["result"] == token
        with Raw(server.address) as other:
            files = [{"path": "/s", "staged": token}]
            assert other.ask("upload_files", files=files)["result"][0]["error"]
        assert raw.ask("upload_files", files=[{"path": "/s", "staged": token}])["result"][0]["error"] is None
        assert raw.ask("download_files", paths=["/s"])["result"][0]["content"] == "AAAAAAAA"


class TestWho:
    def test_the_socket_and_its_directory_are_closed_to_others(self, server):
        assert stat.S_IMODE(os.stat(server.address).st_mode) == 0o600
        assert stat.S_IMODE(os.stat(os.path.dirname(server.address)).st_mode) == 0o700

    def test_another_user_is_refused(self, server, monkeypatch):
        monkeypatch.setattr(server_module, "peer_uid", lambda stream: 65534 if os.geteuid() != 65534 else 1)
        with Raw(server.address) as raw:
            answer = raw.line()
            assert "another user" in answer["error"]["message"]
            assert raw.line() is None

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
    def test_the_kernel_tells_who_connects(self, server):
        directory = os.path.dirname(server.address)
        os.chmod(directory, 0o711)
        os.chmod(server.address, 0o666)
        try:
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
                try:
                    os.setresuid(65534, 65534, 65534)
                    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                    stream.connect(server.address)
                    os.write(writer, stream.recv(65536))
                finally:
                    os._exit(0)
            os.waitpid(child, 0)
            os.close(writer)
            with os.fdopen(reader, "rb") as file:
                assert b"another user" in file.read()
        finally:
            os.chmod(directory, 0o700)
        assert answers(server)

    def test_a_directory_of_somebody_else_is_not_used(self, tmp_path: Path, monkeypatch):
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
        (tmp_path / "fusebackend").mkdir(mode=0o755)
        with pytest.raises(PermissionError, match="0700"):
            rendezvous.directory()
        (tmp_path / "fusebackend").rmdir()
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        (tmp_path / "fusebackend").symlink_to("elsewhere")
        with pytest.raises(PermissionError, match="0700"):
            rendezvous.directory()

    def test_without_a_runtime_directory_there_is_a_private_one(self, tmp_path: Path, monkeypatch):
        import tempfile

        monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        assert rendezvous.directory() == str(tmp_path / f"fusebackend-{os.geteuid()}")
        assert stat.S_IMODE(os.stat(rendezvous.directory()).st_mode) == 0o700

    def test_sockets_of_killed_servers_are_removed(self, server, tmp_path: Path):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(tmp_path / "dead.sock"))
        with socket.socket(socket.AF_UNIX) as alive:
            alive.bind(str(tmp_path / "alive.sock"))
            alive.listen(1)
            rendezvous.remove_stale(str(tmp_path))
        assert [path.name for path in tmp_path.iterdir()] == ["alive.sock"]

    @pytest.mark.parametrize("mountpoint", ["/mnt/agent", "/" + "x" * 250, "/" + "y" * 4000, "/ä b/" + "\udcff" * 90])
    def test_every_mount_point_has_an_address_that_fits(self, mountpoint):
        address = os.fsencode(rendezvous.address(mountpoint))
        assert len(address) <= rendezvous.ADDRESS_MAX_BYTES
        assert address.endswith(b".%d.sock" % os.getpid())


class TestEnd:
    def test_nothing_is_left(self, files):
        before = threading.active_count()
        with serving(files) as server:
            with ClientOf(server) as client:
                client.ls("/")
            raws = [Raw(server.address) for _ in range(5)]
            for raw in raws:
                raw.send(b'{"jsonrpc":"2.0","id":1,"method":"execute","params":{"command":"wait"}}\n')
                raw.ask("ping", 2)
        assert not os.path.exists(server.address)
        for raw in raws:
            while raw.line() is not None:
                pass
            raw.close()
        deadline = time.monotonic() + LIMIT_S
        while threading.active_count() > before and time.monotonic() < deadline:
            time.sleep(0.01)
        assert threading.active_count() == before

    def test_a_call_whose_client_is_gone_is_waited_for(self, files, monkeypatch):
        begun, gone, ended = threading.Event(), threading.Event(), threading.Event()
        download = InMemoryBackend.download_files

        def slow(self, paths):
            begun.set()
            assert gone.wait(LIMIT_S)
            time.sleep(0.1)
            ended.set()
            return download(self, paths)

        monkeypatch.setattr(InMemoryBackend, "download_files", slow)
        with serving(files) as server:
            with Raw(server.address) as raw:
                raw.send(b'{"jsonrpc":"2.0","id":1,"method":"download_files","params":{"paths":["/x"]}}\n')
                assert begun.wait(LIMIT_S)
            deadline = time.monotonic() + LIMIT_S
            while any(thread.name == "fusebackend-connection" for thread in threading.enumerate()):
                assert time.monotonic() < deadline
                time.sleep(0.001)
            timer = threading.Timer(0.1, gone.set)
            timer.start()
            server.close()
            assert ended.is_set()
            timer.join()
            assert server.counts()["connections"] == 0
