"""The control server against clients that are slow, dead, mistaken or hostile: it answers, and goes on answering."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from functools import partial
from pathlib import Path

import mounts
import pytest
from controlled import LIMIT_S, ClientOf, Raw, serving
from eventually import eventually
from for_each import for_each
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples
from raising import raising
from together import together

from fusebackend.backends import CompositeBackend, InMemoryBackend
from fusebackend.control import limits, rendezvous, wire
from fusebackend.control.client import client_connection
from fusebackend.control.server import control_server as server_module
from fusebackend.control.server import limiter
from fusebackend.control.server import server_connection as serving_module
from fusebackend.protocol import Actor
from fusebackend.testing.posix.case import as_user, umask


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


def connection_of(server):
    (connection,) = server._connections
    return connection


def line(method, id=None, **params):
    call = {"jsonrpc": "2.0", "method": method, "params": params}
    return json.dumps(call if id is None else {**call, "id": id}).encode() + b"\n"


@contextlib.contextmanager
def busy(server):
    """Two connections that have something under way, so that neither makes room."""
    with Raw(server.address) as one, Raw(server.address) as other:
        for raw in (one, other):
            raw.ask("subscribe")
        yield one, other


def check_sent_away(message, raw):
    """The last message to a client says that there is no room; it comes again until there is a place."""
    assert (message["id"], message["error"]["code"]) == (None, wire.BUSY)
    assert raw.line() is None


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

    def test_parameters_may_be_left_out_and_empty_lines_are_passed_over(self, raw):
        raw.send(b'\n\r\n  \n{"jsonrpc":"2.0","id":1,"method":"hello"}\n')
        assert raw.line()["result"]["protocol"] == 1

    @for_each(
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
            *(
                (b'{"jsonrpc":"2.0","id":4,"method":"%s","params":{"%s":%d}}' % (verb, name, number), code, 4)
                for verb, name in [(b"changes", b"after"), (b"log", b"since"), (b"log", b"ended_after_ns")]
                for number, code in [(1 << 63, wire.INVALID_PARAMS), (-(1 << 63) - 1, wire.INVALID_PARAMS)]
            ),
        ],
    )
    def test_what_can_not_be_understood_is_an_error(self, raw, line, code, call):
        raw.send(line + b"\n")
        answer = raw.line()
        assert (answer["id"], answer["error"]["code"]) == (call, code) and answer["error"]["message"]
        assert raw.ask("ping", payload=1)["result"] == 1, "the connection goes on"

    @for_each("payload", [{"result": "\udcff"}, {"params": ["\udcff"]}, 2**100, "\ud800", {"": None}])
    def test_any_json_comes_back(self, server, payload):
        with ClientOf(server) as client:
            assert client.ping(payload) == payload

    @for_each("number", ["1e400", "-1e400", "NaN", "Infinity", "9" * 5000])
    @for_each("beside", ["", "\\udcff"])
    def test_numbers_that_are_none(self, raw, number, beside):
        raw.send(f'{{"jsonrpc":"2.0","id":1,"method":"ping","params":{{"payload":["{beside}",{number}]}}}}\n'.encode())
        assert raw.line()["error"]["code"] in (wire.PARSE_ERROR, wire.INVALID_PARAMS)

    def test_the_last_message_without_its_newline(self, raw):
        raw.send(b'{"jsonrpc":"2.0","id":1,"method":"ping"}')
        raw.stream.shutdown(socket.SHUT_WR)
        assert raw.line()["error"]["code"] == wire.PARSE_ERROR and raw.line() is None

    @pytest.mark.parametrize(
        ("end", "code"), [("1", wire.INVALID_PARAMS), ('"\\udcff"', wire.PARSE_ERROR)], ids=["plain", "odd"]
    )
    def test_a_message_of_too_many_values_is_not_decoded(self, raw, end, code):
        begin = '{"jsonrpc":"2.0","id":1,"method":"ping","params":{"payload":['
        raw.send((begin + "[]," * limits.MAX_VALUES + end + "]}}\n").encode())
        error = raw.line()["error"]
        assert error["code"] == code and str(limits.MAX_VALUES) in error["message"]
        raw.send((begin + "0," * (limits.MAX_VALUES - 10) + end + "]}}\n").encode())
        assert len(raw.line()["result"]) == limits.MAX_VALUES - 9

    @settings(max_examples=examples(150))
    @given(lines=st.lists(st.binary(max_size=300), min_size=1, max_size=10))
    def test_no_bytes_end_the_server(self, server, lines):
        with Raw(server.address) as raw:
            for line in lines:
                raw.send(line.replace(b"\n", b"") + b"\n")
            raw.send(b'{"jsonrpc":"2.0","id":"end","method":"ping"}\n')
            while (answer := raw.line()) is not None and answer["id"] != "end":
                assert "error" in answer
            assert answer is not None


class TestLimits:
    def test_a_line_of_100_mebibytes(self, server, raw):
        piece = b"x" * (1 << 20)
        for _ in range(100):
            raw.send(piece)
        raw.send(b"\n")
        answer = raw.line()
        assert (answer["id"], answer["error"]["code"]) == (None, wire.PARSE_ERROR)
        assert raw.ask("ping", payload=1)["result"] == 1, "what follows the long line is understood"
        assert server.counts()["held_bytes"] == 0

    def test_what_is_refused_is_not_held_while_its_error_waits_to_be_read(self, server, raw, monkeypatch):
        held = []
        memory = server.limiter.memory
        send = serving_module.ServedConnection.send

        def noting(self, line):
            has_message = sys.exception() is not None or any(
                isinstance(value, (bytes, bytearray)) and len(value) > limits.FREE_BYTES
                for frame in traceback.walk_stack(sys._getframe())
                for value in frame[0].f_locals.values()
            )
            held.append((memory.used, self.client.has[limiter.ARRIVING], has_message))
            send(self, line)

        monkeypatch.setattr(serving_module.ServedConnection, "send", noting)
        for message in (b"x" * 900_000 + b"\n", b"x" * (limits.MAX_MESSAGE_BYTES + 1000) + b"\n"):
            raw.send(message)
            assert raw.line()["error"]["code"] == wire.PARSE_ERROR
            assert raw.ask("ping", payload=1)["result"] == 1
        assert held == [(0, 0, False)] * 4

    def test_what_two_threads_of_a_call_hold_at_once_is_given_back(self, server, monkeypatch):
        memory, take = server.limiter.memory, server.limiter.memory.take
        place = limiter.Place(server.limiter, limiter.LimitedClient(1), limiter.BRIEF)

        def beside_another(client, more, patience_s=0.0):
            monkeypatch.setattr(memory, "take", take)
            place.hold(2 * limits.FREE_BYTES)  # as another thread, before this one has gone on
            take(client, more, patience_s)

        monkeypatch.setattr(memory, "take", beside_another)
        place.hold(2 * limits.FREE_BYTES)
        assert memory.used > 0
        place.hold(-place.held)
        assert memory.used == 0

    def test_unfinished_messages_are_bounded_together(self, server):
        begun = b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"payload":"' + b"x" * 900_000
        clients = [Raw(server.address) for _ in range(limits.MAX_ARRIVING + 40)]
        most = len(clients) * limits.FREE_BYTES + limits.MAX_ARRIVING * limits.MAX_MESSAGE_BYTES
        for client in clients:
            client.stream.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                client.stream.send(begun)
        deadline = time.monotonic() + 0.5
        while time.monotonic() < deadline:
            assert server.counts()["held_bytes"] < most
            assert answers(server)
        for client in clients:
            client.close()

    def test_a_message_that_stands_still_makes_room_for_others(self, server, monkeypatch):
        monkeypatch.setattr(serving_module, "STANDSTILL_S", 0.1)
        server.limiter.left[limiter.ARRIVING] = 2
        begun = b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"payload":"' + b"x" * 900_000
        with Raw(server.address) as one, Raw(server.address) as two, Raw(server.address) as three:
            for raw in (one, two, three):
                raw.send(begun)
                time.sleep(0.05)
            three.send(b'"}}\n')
            assert len(three.line()["result"]) == 900_000
            check_sent_away(one.line(), one)
            two.send(b'"}}\n')
            assert len(two.line()["result"]) == 900_000

    def test_a_message_that_waited_in_vain_takes_no_place(self, monkeypatch):
        monkeypatch.setattr(limiter.ARRIVING, "patience_s", 0.01)
        every = limiter.Limiter()
        every.left[limiter.ARRIVING] = 1
        first, late, new = (limiter.Place(every, limiter.LimitedClient(n), limiter.ARRIVING) for n in range(3))
        every.take(first)
        with pytest.raises(limits.NoRoom):
            every.take(late)
        every.leave(first)
        every.take(new)

    def test_what_a_call_may_hold_is_bounded(self, server, raw, files):
        files.upload_files([("/large", b"0123456789abcde\n" * (1 << 20)), ("/small", b"a" * 100_000)])
        server.limiter.memory.size = 4 << 20
        for method, words, params in [
            ("read", "", {"file_path": "/large", "limit": 1 << 30}),
            ("edit", "", {"file_path": "/large", "old_string": "a", "new_string": "b", "replace_all": True}),
            ("edit", "edit it through the mount",
             {"file_path": "/small", "old_string": "a", "new_string": "b" * 100, "replace_all": True}),
            ("download_files", "", {"paths": ["/large"]}),
        ]:  # fmt: skip
            answer = raw.ask(method, **params)
            error = answer.get("error") or {"code": wire.BUSY, "message": answer["result"][0]["error"]}
            assert error["code"] == wire.BUSY and error["message"] and words in error["message"], method
        assert raw.ask("grep", pattern="0")["result"]["truncated"]
        assert raw.ask("read", file_path="/large", limit=2)["result"]["file_data"]["content"].count("\n") == 2
        raw.send(b'{"jsonrpc":"2.0","id":1,"method":"download_files","params":{"paths":["/large"],"stream":true}}\n')
        size = 0
        while "result" not in (message := raw.line()):
            size += len(base64.b64decode(message["params"]["data"]))
        assert size == 16 << 20, "in pieces, it holds next to nothing"
        eventually(lambda: server.limiter.memory.used == 0)

    def test_calls_of_one_connection_share_what_it_may_hold(self, server, raw):
        server.limiter.memory.size = 4 << 20
        raw.ask("ping")
        greedy = [limiter.Place(server.limiter, connection_of(server).client, limiter.WORK) for _ in range(2)]
        greedy[0].hold(limits.FREE_BYTES + (3 << 19))
        with pytest.raises(limits.NoRoom):
            greedy[1].hold(limits.FREE_BYTES + (1 << 20))
        with Raw(server.address) as other:
            assert other.ask("stage", data="A" * (1 << 16))["result"], "it takes 1 MiB to be understood"
        for place in greedy:
            place.hold(-place.held)
        eventually(lambda: server.limiter.memory.used == 0)

    def test_a_search_with_more_matches_than_it_may_hold(self, server, raw, files):
        files.upload_files([(f"/many/{number}", b"") for number in range(6_000)])
        server.limiter.memory.size = 5 << 18
        answer = raw.ask("glob", pattern="**/*")["result"]
        assert answer["truncated"] and answer["truncation_reason"] == "budget"
        assert raw.ask("ls", path="/many")["error"]["code"] == wire.BUSY
        eventually(lambda: server.limiter.memory.used == 0)

    def test_what_is_done_in_no_time_does_not_queue_twice(self, raw, monkeypatch):
        """Having worked, a new client would be behind all that have not."""
        kinds = []
        take = limiter.Limiter.take
        monkeypatch.setattr(limiter.Limiter, "take", lambda self, place: kinds.append(place.kind) or take(self, place))
        raw.ask("ping")
        assert kinds == [limiter.BRIEF]

    def test_too_many_files_in_one_call(self, raw):
        answer = raw.ask("download_files", paths=[""] * (limits.MAX_ITEMS + 1))
        assert answer["error"]["code"] == wire.INVALID_PARAMS

    def test_commands_of_all_connections_are_bounded_and_leave_room_for_other_calls(self, server):
        server.limiter.left[limiter.COMMANDS] = 4
        with Raw(server.address) as greedy, Raw(server.address) as other:
            greedy.send(b"".join(line("execute", str(number), command="wait") for number in range(5)))
            refused = greedy.line()
            assert (refused["id"], refused["error"]["code"]) == ("4", wire.BUSY)
            assert server.counts()["refused"] == 1
            assert "result" in other.ask("grep", pattern="one")
        eventually(lambda: server.limiter.left[limiter.COMMANDS] == 4)

    def test_subscriptions_of_all_connections_are_bounded_but_each_has_one(self, server):
        server.limiter.left[limiter.SUBSCRIPTIONS] = 3
        with Raw(server.address) as greedy, Raw(server.address) as other:
            names = [greedy.ask("subscribe")["result"] for _ in range(4)]
            assert greedy.ask("subscribe")["error"]["code"] == wire.BUSY
            assert "result" in other.ask("subscribe")
            assert greedy.ask("unsubscribe", subscription=names[0])["result"] is True
            assert "result" in greedy.ask("subscribe")
        eventually(lambda: server.limiter.left[limiter.SUBSCRIPTIONS] == 3)

    def test_a_thousand_connections(self, server):
        clients = [Raw(server.address) for _ in range(1000)]
        begun = time.monotonic()
        assert answers(server), "connections over which nothing has come make room at once"
        assert time.monotonic() - begun < serving_module.IDLE_S
        assert server.counts()["connections"] <= limits.MAX_CONNECTIONS + limits.NEWCOMERS
        for client in clients:
            client.close()
        assert answers(server)

    def test_a_reader_that_does_not_read(self, server, files):
        files.upload_files([("/large", b"line\n" * 400_000)])
        with Raw(server.address) as sleeper:
            sleeper.send(b"".join(line("grep", number, pattern="line") for number in range(8)))
            assert answers(server)
            start = time.monotonic()
            files.write("/meanwhile", "1")
            assert time.monotonic() - start < LIMIT_S / 2, "no lock is held while somebody does not read"
        assert answers(server)

    def test_as_many_calls_again_as_answers_have_come(self, raw):
        call = b'{"jsonrpc":"2.0","id":%d,"method":"grep","params":{"pattern":"one"}}\n'
        raw.send(b"".join(call % number for number in range(limits.MAX_CALLS)))
        for number in range(limits.MAX_CALLS, 500):
            assert "result" in raw.line()
            raw.send(call % number)

    def test_a_change_that_is_cancelled_too_late_is_told(self, server, raw, files, monkeypatch):
        delete = InMemoryBackend.delete

        def cancelled(self, path):
            assert connection_of(server).cancel(1)
            return delete(self, path)

        monkeypatch.setattr(InMemoryBackend, "delete", cancelled)
        assert raw.ask("delete", 1, file_path="/x")["result"]["error"] is None
        assert files.ls("/").entries == []

    def test_a_client_that_sends_no_more_gets_its_answers(self, raw):
        raw.send(line("execute", "w", command="wait") + line("grep", "g", pattern="one") + line("subscribe", "s"))
        raw.stream.shutdown(socket.SHUT_WR)
        assert {raw.line()["id"], raw.line()["id"]} == {"g", "s"}

    def test_a_client_that_sends_no_more_gets_events(self, server, raw, files):
        raw.ask("subscribe")
        raw.stream.shutdown(socket.SHUT_WR)
        time.sleep(2 * serving_module.HANGUP_S)
        with ClientOf(server) as client:
            client.write("/new", "")
        assert raw.line()["params"]["event"]["path"] == "/new"
        raw.close()
        eventually(lambda: not server.counts()["connections"], LIMIT_S)

    def test_the_end_of_a_connection_cancels_its_calls(self, server):
        with Raw(server.address) as raw:
            raw.send(b'{"jsonrpc":"2.0","id":1,"method":"execute","params":{"command":"wait"}}\n')
            raw.ask("ping")
            (call,) = connection_of(server)._calls.values()
        assert call.cancelled.wait(LIMIT_S)

    def test_staged_contents_go_with_their_connection(self, server, raw):
        token = raw.ask("stage", data="AAAA")["result"]
        assert raw.ask("stage", data="AAAA", token=token)["result"] == token
        with Raw(server.address) as other:
            files = [{"path": "/s", "staged": token}]
            assert other.ask("upload_files", files=files)["result"][0]["error"]
        assert raw.ask("upload_files", files=[{"path": "/s", "staged": token}])["result"][0]["error"] is None
        assert raw.ask("download_files", paths=["/s"])["result"][0]["content"] == "AAAAAAAA"


class TestUnderWay:
    """What one connection has under way."""

    def test_an_id_is_that_of_one_call_until_its_answer_is_known(self, server, raw):
        raw.send(line("execute", "w", command="wait"))
        assert raw.ask("execute", "w", command="wait")["error"]["code"] == wire.INVALID_REQUEST
        assert raw.ask("cancel", "c", call="none")["result"] is False
        raw.send(line("cancel", "c", call="w"))
        found = {answer["id"]: answer for answer in (raw.line(), raw.line())}
        assert found["c"]["result"] is True and found["w"]["error"]["code"] == wire.CANCELLED
        assert raw.ask("cancel", "c", call="w")["result"] is False
        for _ in range(3):
            assert raw.ask("grep", "w", pattern="one")["result"]["matches"]
        assert connection_of(server)._calls == {}
        eventually(lambda: not connection_of(server).client.has[limiter.COMMANDS])

    def test_as_many_subscriptions_as_calls_and_each_is_told_once(self, server, raw, files):
        names = [raw.ask("subscribe")["result"] for _ in range(limits.MAX_CALLS)]
        assert raw.ask("subscribe")["error"]["code"] == wire.BUSY
        assert [raw.ask("unsubscribe", subscription=names[0])["result"] for _ in range(2)] == [True, False]
        files.write("/new", "")
        told = [raw.line()["params"] for _ in names[1:]]
        assert {(each["subscription"], each["event"]["path"]) for each in told} == {
            (name, "/new") for name in names[1:]
        }
        assert raw.ask("ping", payload=1)["result"] == 1, "and no more"


class TestRoom:
    """What happens when all places are taken."""

    @pytest.fixture(autouse=True)
    def two_places(self, monkeypatch):
        monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 2)
        monkeypatch.setattr(server_module, "NEWCOMERS", 0)
        monkeypatch.setattr(serving_module, "IDLE_S", 0.05)

    def test_a_message_that_is_still_arriving_is_no_idleness(self, server):
        with Raw(server.address) as slow, Raw(server.address) as idle:
            idle.ask("ping")
            for byte in b'{"jsonrpc":"2.0","id":1,"method":"ping","par':
                slow.send(bytes([byte]))
                time.sleep(0.01)
            with Raw(server.address) as another:
                assert "result" in another.ask("ping")
                slow.send(b'ams":{}}\n')
                assert "result" in slow.line()
                check_sent_away(idle.line(), idle)

    def test_no_call_is_lost_when_its_connection_makes_room(self, server):
        """Four clients on two places: connections are closed under their calls, and no client can tell."""

        def work(number: int) -> None:
            with ClientOf(server) as client:
                for turn in range(30):
                    assert client.write(f"/{number}/{turn}", "").error is None
                    time.sleep(serving_module.IDLE_S * (turn % 3))

        together(*(partial(work, number) for number in range(4)))

    def test_a_server_full_of_work_answers_newcomers_shortly(self, server, monkeypatch):
        monkeypatch.setattr(server_module, "NEWCOMERS", 1)
        monkeypatch.setattr(server_module, "NEWCOMER_S", 600.0)
        with busy(server) as (one, _):
            with Raw(server.address) as newcomer:
                assert "result" in newcomer.ask("read", file_path="/x")
                with Raw(server.address) as fourth:
                    assert fourth.line()["error"]["code"] == wire.BUSY, "that was the last place"
                check_sent_away(newcomer.ask("grep", pattern="one"), newcomer)
            one.close()
            with ClientOf(server) as client:
                assert len(client.grep("one").matches) == 1

    def test_a_newcomers_place_is_nobodys_for_long(self, server, monkeypatch):
        monkeypatch.setattr(server_module, "NEWCOMERS", 1)
        monkeypatch.setattr(server_module, "NEWCOMER_S", 0.05)
        with busy(server):
            with Raw(server.address) as newcomer:
                check_sent_away(newcomer.ask("subscribe"), newcomer)
            with Raw(server.address) as half, ClientOf(server) as client:
                with contextlib.suppress(BrokenPipeError):  # on a busy machine it is nobody's already
                    half.send(b'{"jsonrpc":"2.0",')
                assert client.ping("me") == "me"
                assert half.line()["error"]["code"] == wire.BUSY

    def test_a_connection_over_which_nothing_comes_needs_no_thread(self, server, monkeypatch):
        monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 100)
        before = threading.active_count()
        with contextlib.ExitStack() as stack:
            silent = [stack.enter_context(Raw(server.address)) for _ in range(110)]
            assert answers(server)
            assert threading.active_count() <= before + 1
            assert silent[0].line()["error"]["code"] == wire.BUSY, "it had to make room"
            assert "result" in silent[-1].ask("ping")
        eventually(lambda: server.counts()["connections"] == 0)

    def test_a_server_that_stays_full_is_one_clear_error(self, server, monkeypatch):
        monkeypatch.setattr(client_connection, "PATIENCE_S", 0.1)
        with busy(server), ClientOf(server) as client:
            assert "2 connections are open already; try again" in client.read("/x").error

    def test_without_threads_for_more_the_server_goes_on(self, server, raw, monkeypatch, caplog):
        raw.ask("ping")
        monkeypatch.setattr(server_module, "ACCEPT_RETRY_S", 0.01)
        with monkeypatch.context() as broken:
            broken.setattr(serving_module.ServedConnection, "start", raising(RuntimeError("no threads")))
            with Raw(server.address) as refused:
                refused.send(b"{")
                assert refused.line()["error"]["code"] == wire.BUSY
        assert answers(server)
        assert "no threads" in caplog.text


def mode_of(path):
    return stat.S_IMODE(os.stat(path).st_mode)


class TestWho:
    def test_the_socket_and_its_directory_are_closed_to_others(self, server):
        assert (mode_of(server.address), mode_of(os.path.dirname(server.address))) == (0o600, 0o700)

    def test_another_user_is_refused(self, server, monkeypatch):
        monkeypatch.setattr(server_module, "peer", lambda stream: Actor(uid=65534 if os.geteuid() != 65534 else 1))
        with Raw(server.address) as raw:
            assert "another user" in raw.line()["error"]["message"]
            assert raw.line() is None

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
    def test_the_kernel_tells_who_connects(self, server):
        def heard():
            with Raw(server.address) as raw:
                return raw.line()["error"]["message"]

        directory = Path(server.address).parent
        for path, mode in ((directory.parent, 0o711), (directory, 0o711), (server.address, 0o666)):
            os.chmod(path, mode)
        try:
            assert "another user" in as_user(directory, heard)
        finally:
            directory.chmod(0o700)
        assert answers(server)

    def test_a_directory_of_somebody_else_is_not_used(self, tmp_path: Path, monkeypatch):
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
        (tmp_path / "fusebackend").mkdir(mode=0o755)
        private = tmp_path / f"fusebackend-{os.geteuid()}"
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        assert rendezvous.directory() == str(private)
        (tmp_path / "fusebackend").rmdir()
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        (tmp_path / "fusebackend").symlink_to("elsewhere")
        assert rendezvous.directory() == str(private)
        private.chmod(0o755)
        with pytest.raises(PermissionError, match="0700"):
            rendezvous.directory()

    @for_each("runtime", [None, "", "run", "/none", "/dev/null", "/proc/self", "/" + "x" * 200])
    def test_without_a_runtime_directory_there_is_a_private_one(self, tmp_path: Path, monkeypatch, runtime):
        monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
        if runtime is not None:
            monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        monkeypatch.chdir(tmp_path)
        (tmp_path / "run").mkdir()
        assert rendezvous.directory() == str(tmp_path / f"fusebackend-{os.geteuid()}")
        assert mode_of(rendezvous.directory()) == 0o700

    def test_a_runtime_directory_may_have_a_longer_path_than_a_socket(self, tmp_path: Path, monkeypatch):
        deep = tmp_path / ("x" * 60) / ("y" * 60)
        deep.mkdir(parents=True)
        monkeypatch.setattr(tempfile, "tempdir", str(deep))
        with serving(InMemoryBackend()) as server, ClientOf(server) as client:
            assert server.address.startswith(str(deep))
            rendezvous.remove_stale(os.path.dirname(server.address))
            assert client.write("/x", "one\n").error is None
            assert client.read("/x").file_data["content"] == "one\n"
            assert os.path.exists(server.address)
        assert not os.path.exists(server.address)

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
    def test_nothing_is_left_in_the_runtime_directory_of_somebody_else(self, tmp_path: Path, monkeypatch):
        theirs = tmp_path / "theirs"
        theirs.mkdir()
        os.chown(theirs, 65534, 65534)
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(theirs))
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        assert rendezvous.directory() == str(tmp_path / "fusebackend-0")
        assert list(theirs.iterdir()) == []

    def test_a_strange_umask_changes_nothing(self, tmp_path: Path, monkeypatch):
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
        with umask(0o777):
            place = rendezvous.directory()
            rendezvous.listen(place + "/a.sock", 1).close()
        assert (mode_of(place), mode_of(place + "/a.sock")) == (0o700, 0o600)

    def test_sockets_of_killed_servers_are_removed(self, server, tmp_path: Path):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(tmp_path / "dead.sock"))
        with socket.socket(socket.AF_UNIX) as alive:
            alive.bind(str(tmp_path / "alive.sock"))
            alive.listen(1)
            rendezvous.remove_stale(str(tmp_path))
        assert [path.name for path in tmp_path.iterdir()] == ["alive.sock"]

    def test_a_server_that_only_starts_is_not_taken_for_a_killed_one(self, tmp_path: Path, monkeypatch):
        listen = socket.socket.listen

        def cleaned_up_just_before(self, backlog):
            rendezvous.remove_stale(str(tmp_path))
            listen(self, backlog)

        monkeypatch.setattr(socket.socket, "listen", cleaned_up_just_before)
        with rendezvous.listen(str(tmp_path / "early.sock"), 1), Raw(str(tmp_path / "early.sock")):
            assert [path.name for path in tmp_path.iterdir()] == ["early.sock"]

    @for_each("mountpoint", ["/mnt/agent", "/" + "x" * 250, "/" + "y" * 4000, "/ä b/" + "\udcff" * 90])
    def test_every_server_has_an_address_of_its_own_that_fits(self, mountpoint):
        one, other = rendezvous.address(mountpoint), rendezvous.address(mountpoint)
        assert len(os.fsencode(one)) <= rendezvous.ADDRESS_MAX_BYTES
        assert one.endswith(".sock")
        assert one != other, "two containers may share the directory, the mount point and the process id"


class TestEnd:
    def test_a_connection_that_comes_while_the_server_ends(self, server, monkeypatch):
        monkeypatch.setattr(server, "_closing", True)
        with Raw(server.address) as raw:
            assert raw.line()["error"]["message"] == "the mount is ending"
        monkeypatch.setattr(server, "_closing", False)

    def test_no_call_begins_when_the_end_has_begun(self, server, raw, files):
        """What comes after is not carried out, and the client is told so."""
        raw.ask("ping")
        connection_of(server).retire()
        with contextlib.suppress(BrokenPipeError):
            raw.send(b'{"jsonrpc":"2.0","id":1,"method":"write","params":{"file_path":"/late","content":""}}\n')
        assert raw.line()["error"] == {"code": wire.BUSY, "message": "the mount is ending"}
        assert raw.line() is None
        assert [info["path"] for info in files.ls("/").entries] == ["/x"]

    def test_what_the_end_cancels_is_told_why(self, server, raw):
        raw.send(b'{"jsonrpc":"2.0","id":1,"method":"execute","params":{"command":"wait"}}\n')
        raw.ask("ping", 2)
        server.close()
        assert raw.line()["error"] == {"code": wire.CANCELLED, "message": "cancelled: the mount is ending"}

    def test_whoever_closes_second_waits_for_the_first(self, server, raw):
        raw.send(b'{"jsonrpc":"2.0","id":1,"method":"execute","params":{"command":"wait"}}\n')
        raw.ask("ping", 2)

        def close():
            server.close()
            assert server.counts()["connections"] == 0

        together(close, close)

    def test_who_does_not_read_does_not_hold_up_the_end(self, files, monkeypatch):
        files.upload_files([("/large", b"line\n" * 40_000)])
        with serving(files) as server, Raw(server.address) as sleeper:
            sleeper.send(line("grep", 1, pattern="line") + line("grep", 2, pattern="line"))
            eventually(lambda: server._connections and connection_of(server)._sending_since is not None)
            start = time.monotonic()
            server.close()
            assert time.monotonic() - start < server_module.END_TIMEOUT_S / 2

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
        eventually(lambda: threading.active_count() <= before, LIMIT_S)

    def test_a_call_whose_client_is_gone_is_waited_for(self, files, monkeypatch):
        begun, gone, ended = threading.Event(), threading.Event(), threading.Event()
        download = InMemoryBackend.download_to

        def slow(self, path, file):
            begun.set()
            assert gone.wait(LIMIT_S)
            time.sleep(0.1)
            ended.set()
            return download(self, path, file)

        monkeypatch.setattr(InMemoryBackend, "download_to", slow)
        with serving(files) as server:
            with Raw(server.address) as raw:
                raw.send(line("download_files", 1, paths=["/x"]))
                assert begun.wait(LIMIT_S)
            connection = connection_of(server)
            eventually(lambda: connection.stream.fileno() == -1, LIMIT_S)
            timer = threading.Timer(0.1, gone.set)
            timer.start()
            server.close()
            assert ended.is_set() and server.counts()["connections"] == 0
            timer.join()


# -- calls whose clients go --------------------------------------------------------------------------------------------


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


# -- messages that many threads read -----------------------------------------------------------------------------------


_AT_ONCE = """
import sys, threading
import msgspec
from fusebackend.control import wire

sys.setswitchinterval(1e-6)
for number in range(50):
    inner = msgspec.defstruct(f"Inner{number}", [(f"field{i}", int | None, None) for i in range(10)])
    kind = msgspec.defstruct(f"Kind{number}", [(f"field{i}", list[inner], []) for i in range(30)])
    barrier = threading.Barrier(4)
    found = []

    def read():
        barrier.wait()
        found.append(wire.decode(msgspec.Raw(b'{"field29": [{"field9": 1}]}'), kind).field29[0].field9)
        found.append(wire.convert({"field29": [{"field9": 1}]}, kind).field29[0].field9)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [1] * 8
"""


def test_threads_that_read_a_type_for_the_first_time_at_once() -> None:
    """msgspec's decoders can't be made by two threads at once: a server ended with SIGSEGV, its clients' first calls
    having come in the same millisecond. A process of its own, for that would end this one."""
    done = subprocess.run([sys.executable, "-c", _AT_ONCE], cwd=mounts.ROOT, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
