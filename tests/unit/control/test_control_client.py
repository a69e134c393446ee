"""`Client`: the published suite over the socket, and what happens to a client when its server does not answer."""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
import time
from functools import partial
from types import SimpleNamespace

import anyio
import pytest
from agentface import get
from controlled import LIMIT_S, ClientOf, Listener, Raw, serving
from eventually import eventually
from for_each import for_each
from raising import raising
from together import beside, together

from fusebackend.backends import CompositeBackend, InMemoryBackend
from fusebackend.backends.sqlite.backend import SqliteBackend
from fusebackend.control import limits, wire
from fusebackend.control.client import client_connection as connection_module
from fusebackend.control.client.client_connection import ServerLost
from fusebackend.control.server import control_server, limiter, server_connection
from fusebackend.protocol import ROOT_NODE, Caller, SandboxBackendProtocol
from fusebackend.testing.conformance import BackendConformance
from fusebackend.testing.each import each
from fusebackend.testing.posix.case import all_refused


class TestConformance(BackendConformance):
    @pytest.fixture
    def backend(self):
        with InMemoryBackend() as files, serving(files) as server, ClientOf(server) as client:
            yield client


@pytest.mark.configuration
class TestConformanceAsRoute(BackendConformance):
    """A client is a backend, so it can be a route: here of a composite that is asked below its prefix' place."""

    @pytest.fixture
    def backend(self):
        with InMemoryBackend() as files, serving(files) as server, ClientOf(server) as client:
            yield CompositeBackend(client)


@pytest.fixture
def files(tmp_path):
    with SqliteBackend(tmp_path / "files.db") as files:
        yield files


@pytest.fixture
def server(files):
    with serving(CompositeBackend(files, {"/notes/": InMemoryBackend()})) as server:
        yield server


@pytest.fixture
def client(server):
    with ClientOf(server) as client:
        yield client


class TestVerbs:
    def test_it_is_a_sandbox_backend(self, client):
        assert isinstance(client, SandboxBackendProtocol)
        assert client.id == "fusebackend:/mnt/unmounted"
        assert client.hello()["protocol"] == 1

    def test_a_path_that_is_no_text_is_an_error_in_the_record(self, client):
        assert client.read("/a\ud800").error
        assert client.upload_files([("/a\ud800", b"")])[0].error

    def test_wrong_types_are_errors_in_the_record(self, client):
        assert "int" in client.read("/x", offset="one").error
        assert client.ls(7).error
        assert client.upload_files([("/x", "text")])[0].error == "content must be bytes, not str"

    def test_bytes_are_no_text(self, client, files):
        """JSON would have them as base64: a file would have that, and a shell run it."""
        text = "write: Expected 'str', got 'bytes' - at '$.content'"
        for content in (b"x", bytearray(b"x"), b"x" * (1 << 20)):
            assert (client.write("/new", content).error, files.ls("/").entries) == (text, [])
        with pytest.raises(ValueError, match="execute: Expected 'str', got 'bytes'"):
            client.execute(b"true")

    def test_a_file_in_pieces_as_they_come(self, client, files):
        content = os.urandom(5 << 20)
        pieces = (content[start : start + 700_000] for start in range(0, len(content), 700_000))
        assert client.send("/deep/file", pieces).error is None
        assert files.download_files(["/deep/file"])[0].content == content
        files.upload_files([("/small", b"small")])
        received = []
        answers = client.fetch(["/deep/file", "/none", "/small"], lambda *piece: received.append(piece))
        assert [(answer.error, answer.content) for answer in answers] == [
            (None, None), ("file_not_found", None), (None, None),
        ]  # fmt: skip
        assert b"".join(piece for index, piece in received if index == 0) == content
        assert len(received) > 2 and received[-1] == (2, b"small")
        assert client.send("/deep/file", []).error is None
        assert get(files, "/deep/file") == b""
        assert client.send("/deep", [b"x"]).error == "is_directory"

    def test_thousands_of_matches(self, client, files):
        files.write("/many", "needle\n" * 12_345)
        assert client.grep("needle") == files.grep("needle")
        cut = client.grep("needle", max_count=700)
        assert (len(cut.matches), cut.truncated) == (700, True)

    def test_execute_streams(self, client):
        pieces = []
        result = client.run("hello", stdin=b"\x00", cwd="/notes", on_output=lambda *piece: pieces.append(piece))
        assert result.output == "hello in /notes with b'\\x00'"
        assert pieces == [("stdout", b"hello"), ("stderr", b"\xff")]

    def test_a_time_out_that_is_none_is_a_value_error(self, client):
        with pytest.raises(ValueError, match="above 0"):
            client.execute("x", timeout=0)

    def test_stat(self, client, files):
        files.write("/notes.txt", "four")
        found = client.stat("/notes.txt")
        assert (found.type, found.size, found.mode, found.route) == ("file", 4, 0o644, "/")
        notes, none, outside = (client.stat(path) for path in ("/notes", "/none", "/../x"))
        assert (notes.type, notes.route) == ("directory", "/notes/")
        assert (none.error, none.code) == ("File '/none' not found", "file_not_found")
        assert outside.error and outside.code == "invalid_path"

    def test_stat_of_what_routes_cover_and_of_the_way_to_them(self, files):
        files.write("/way", "a file")
        files.write("/over", "another")
        routed = CompositeBackend(files, {"/way/to/": InMemoryBackend(), "/over/": InMemoryBackend()})
        with serving(routed) as server, ClientOf(server) as client:
            stats = [client.stat(path) for path in ("/way", "/way/to", "/over")]
            assert [(stat.type, stat.route) for stat in stats] == [
                ("directory", "/"), ("directory", "/way/to/"), ("directory", "/over/"),
            ]  # fmt: skip
            assert [entry["path"] for entry in client.ls("/").entries] == ["/over/", "/way/"]

    def test_stat_of_all_in_a_directory(self, client, files, monkeypatch):
        files.write("/d/a", "four")
        files.write("/d/b/c", "x")
        assert [(each.path, each.type, each.size) for each in client.stats("/d").entries] == [
            ("/d/a", "file", 4), ("/d/b/", "directory", client.stat("/d/b").size),
        ]  # fmt: skip
        assert "not" in client.stats("/none").error
        listed = files.ls("/d")
        files.delete("/d/a")
        monkeypatch.setattr(type(files), "ls", lambda self, path: listed)
        assert [each.code for each in client.stats("/d").entries] == ["file_not_found", None]

    def test_stat_of_a_link_that_goes_away_meanwhile(self, client, files, monkeypatch):
        caller = Caller(os.geteuid(), os.getegid())
        files.volume.symlink(ROOT_NODE, b"link", b"target", caller)
        assert client.stat("/link").target == "target"
        monkeypatch.setattr(type(files.volume), "readlink", raising(FileNotFoundError(2, "gone")))
        assert client.stat("/link").code == "file_not_found"

    def test_more_paths_than_a_message_takes(self, client):
        """A part of them was asked for at a time by number alone, or all at once: nothing was done then."""
        paths = [f"{('/' + 'd' * 200) * 18}/{number}" for number in range(320)]
        assert not any(answer.error for answer in client.upload_files([(path, path.encode()) for path in paths]))
        assert [answer.content for answer in client.download_files(paths)] == [path.encode() for path in paths]
        assert client.real_paths(paths) == paths

    def test_ranges_appends_and_directories(self, client, files):
        files.write("/deep/file", "0123456789")
        found, stat = client.read_range("/deep/file", 3, 4), client.stat("/deep/file")
        assert (found.content, found.size) == (b"3456", 10)
        assert (found.mtime_ns, found.ctime_ns) == (stat.mtime_ns, stat.ctime_ns)
        assert [client.read_range("/deep/file", *place).content for place in ((8, 100), (50, 1))] == [b"89", b""]
        client.append("/deep/file", [b"a", b"b" * 3_000_000])
        client.append("/notes/new/file", [])
        assert client.download_files(["/deep/file", "/notes/new/file"])[0].content == b"0123456789a" + b"b" * 3_000_000
        assert client.stat("/notes/new/file").size == 0
        client.make_directory("/made/deep", parents=True)
        assert client.stat("/made/deep").type == "directory"
        client.remove_directory("/made/deep")
        all_refused(
            (errno.ENOENT, client.read_range, "/none", 0, 1),
            (errno.EISDIR, client.read_range, "/deep", 0, 1),
            (errno.EISDIR, client.append, "/deep", [b"x"]),
            (errno.EEXIST, client.make_directory, "/made"),
            (errno.ENOENT, client.make_directory, "/absent/made"),
            (errno.ENOTDIR, partial(client.make_directory, parents=True), "/deep/file/made"),
            (errno.ENOTEMPTY, client.remove_directory, "/deep"),
            (errno.ENOTDIR, client.remove_directory, "/deep/file"),
            (errno.EBUSY, client.remove_directory, "/notes"),
            (errno.ENOENT, client.remove_directory, "/none"),
        )
        with pytest.raises(ValueError, match="climbs above"):
            client.make_directory("/../x")

    def test_invalidate(self, client):
        client.invalidate("/notes")
        with pytest.raises(ValueError, match=r"\.\."):
            client.invalidate("/../..")

    @pytest.mark.parametrize("library", ["asyncio", "trio"])
    def test_awaited_commands_take_no_place_of_other_calls(self, client, server, monkeypatch, library):
        """Each has a connection of its own, and ends at the server when it is cancelled."""
        monkeypatch.setattr(control_server, "MAX_CONNECTIONS", 4)
        left = server.limiter.left

        async def main():
            async with anyio.create_task_group() as group:
                for _ in range(12):
                    group.start_soon(client.aexecute, "wait")
                while left[limiter.COMMANDS] > limits.MAX_COMMANDS_IN_ALL - 12:
                    await anyio.sleep(0.01)
                assert (await client.agrep("x")).error is None
                group.cancel_scope.cancel()

        anyio.run(main, backend=library)
        eventually(lambda: left[limiter.COMMANDS] == limits.MAX_COMMANDS_IN_ALL, LIMIT_S)

    def test_many_threads(self, client):
        def work(number):
            for turn in range(50):
                client.upload_files([(f"/file-{number}", b"%d" % turn)])
                assert get(client, f"/file-{number}") == b"%d" % turn

        together(*(partial(work, number) for number in range(16)))


class TestLostServer:
    def test_one_clear_error_and_the_next_call_connects_again(self, files):
        with serving(files) as server:
            client = ClientOf(server)
            assert client.write("/x", "1").error is None
        for said in (
            client.read("/x").error,
            client.write("/y", "1").error,
            client.upload_files([("/y", b"")])[0].error,
            client.download_files(["/y"])[0].error,
            client.execute("x").output,
        ):
            assert "can't be reached" in said
        with pytest.raises(ServerLost):
            client.status()
        with serving(files) as client.server:
            assert client.read("/x").file_data["content"] == "1"
            client.close()

    def test_a_kept_connection_that_the_server_closed_is_replaced(self, client, server):
        assert client.ls("/").error is None
        for connection in list(server._connections):
            connection.close()
        assert client.write("/x", "1").error is None, "the call was never sent, so it is sent again"

    def test_a_change_whose_answer_is_lost_is_not_repeated(self, tmp_path):
        with Listener(tmp_path / "sock", lambda line: None) as listener, ClientOf(listener) as client:
            assert "nobody knows" in client.write("/x", "1").error
        assert [line["method"] for line in listener.lines] == ["write"]

    @for_each(
        "answer",
        [
            {"id": 1, "result": {"file_data": 7}},
            {"id": 1, "result": 7},
            {"id": 1},
            [],
            {"id": 1, "error": "none"},
            {"id": 1, "result": {"error": None, "from_the_future": 1}},
        ],
    )
    def test_a_server_that_answers_something_else(self, tmp_path, answer):
        spoken = {"jsonrpc": "2.0", **answer} if isinstance(answer, dict) else answer
        with Listener(tmp_path / "sock", lambda line: spoken) as listener, ClientOf(listener) as client:
            error = client.read("/x").error
            assert error is None if "from_the_future" in str(answer) else "does not speak this protocol" in error

    def test_a_server_that_has_no_room_is_asked_again(self, tmp_path):
        """It says so and hangs up, while the client sends: the call fails with EPIPE or ECONNRESET, or is answered."""
        busy = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32003,"message":"full"}}\n'
        address = str(tmp_path / "sock")

        def serve() -> str:
            for turn in range(12):
                stream, _ = listener.accept()
                with stream:
                    stream.recv(1 << (turn % 3 * 8)) if turn % 2 else time.sleep(0.005)
                    stream.send(busy)
            stream, _ = listener.accept()
            with stream, stream.makefile("rb") as lines:
                call = json.loads(lines.readline())
                stream.sendall(b'{"jsonrpc":"2.0","id":%d,"result":{"error":null}}\n' % call["id"])
                return call["method"]

        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(address)
            listener.listen()
            with beside(serve) as taken, ClientOf(SimpleNamespace(address=address)) as client:
                assert client.write("/x", "y" * 100_000).error is None
            assert taken.result() == "write", "a change is sent again, as it was never taken"

    @pytest.mark.parametrize("name", ["/long", "/binary", "/long.png"])
    def test_a_read_that_is_too_long_for_an_answer_is_downloaded(self, client, files, monkeypatch, name):
        content = b"\xff" * 5000 if name == "/binary" else b"line\n" * 1000
        files.upload_files([(name, content)])
        expected = files.read(name, 1, 900)
        monkeypatch.setattr(server_connection, "MAX_ANSWER_BYTES", 2000)
        assert client.read(name, 1, 900) == expected

    def test_more_than_a_message_holds_is_staged(self, client, files):
        text = "\N{SNOWMAN}\n" * (600 << 10)
        assert client.write("/long", text).error is None
        assert get(files, "/long") == text.encode()
        assert client.edit("/long", text, text[::-1]).occurrences == 1
        assert get(files, "/long") == text[::-1].encode()
        answer = client.run("cat", stdin=b"i" * (2 << 20))
        assert answer.exit_code == 0 and answer.output.endswith("i" * 100 + "'")
        assert "surrogates not allowed" in client.write("/odd", "\udcff" * (600 << 10)).error

    def test_more_than_one_message_holds_all_together(self, client):
        """Names of files alone: there is no other way than to ask for fewer."""
        assert "bytes is not taken" in client.read("x" * (2 << 20)).error
        assert client.write("/x", "x").error is None

    def test_a_server_that_is_stopped_is_one_clear_error(self, tmp_path, monkeypatch):
        """It listens, and the kernel takes connections for it; nobody answers."""
        for limit in ("SILENCE_S", "ANSWER_TIMEOUT_S", "CONNECT_TIMEOUT_S"):
            monkeypatch.setattr(connection_module, limit, 0.05)
        address = str(tmp_path / "sock")
        with socket.socket(socket.AF_UNIX) as stopped:
            stopped.bind(address)
            stopped.listen(3)
            client = ClientOf(SimpleNamespace(address=address))
            for call in (
                lambda: client.read("/x"),
                lambda: client.write("/x", "y" * 1_000_000),
                lambda: client.read("/x"),  # its queue is full by now
            ):
                assert "hangs, or is stopped" in call().error

    def test_a_call_may_take_longer_than_a_server_may_be_silent(self, client, monkeypatch):
        monkeypatch.setattr(connection_module, "SILENCE_S", 0.02)
        assert client.run("nap").output == "slept"


class TestWatch:
    def test_changes_arrive(self, client, files):
        with client.watch("/") as watch:
            client.write("/x", "1")
            event = watch.get(LIMIT_S)
            assert (event.kind, event.path, event.source) == ("created", "/x", "api")
            assert watch.get(0) is None

    def test_closing_ends_an_iteration(self, client):
        watch = client.watch("/")
        threading.Timer(0.05, watch.close).start()
        assert list(watch) == []

    def test_a_lost_server_is_an_error(self, files):
        with serving(files) as server:
            watch = ClientOf(server).watch("/")
        with watch, pytest.raises(ServerLost, match="no more changes: the mount is ending"):
            watch.get(LIMIT_S)

    def test_a_killed_server_is_an_error(self, client, server):
        with client.watch("/") as watch:
            for connection in list(server._connections):
                connection.close()
            with pytest.raises(ServerLost, match="has ended"):
                watch.get(LIMIT_S)

    def test_a_path_that_is_none(self, client):
        with pytest.raises(ValueError, match=r"\.\."):
            client.watch("/../..")
        assert client.ls("/").error is None


def test_a_search_that_is_cancelled_ends_at_once():
    """On whatever backend it is: `tests/unit/base/test_budget.py`."""
    with InMemoryBackend() as files:
        content = b"a needle in every line of it\n" * 40_000
        files.upload_files([(f"/file-{number}", content) for number in range(60)])
        for case in each([{"pattern": "needle"}, {"pattern": "zz"}, {"pattern": "needle", "stream": True}]):
            with case as search, serving(files) as server, Raw(server.address) as raw:
                call = {"jsonrpc": "2.0", "id": "s", "method": "grep", "params": search}
                raw.send(json.dumps(call).encode() + b"\n")
                time.sleep(0.05)
                start = time.monotonic()
                raw.send(b'{"jsonrpc":"2.0","id":"c","method":"cancel","params":{"call":"s"}}\n')
                answers = {}
                while not {"s", "c"} <= answers.keys():
                    line = raw.line()
                    answers[line.get("id")] = line
                assert time.monotonic() - start < 10, "long before the search would have ended"
                if answers["c"]["result"]:  # else it had ended
                    assert answers["s"]["error"]["code"] == wire.CANCELLED
