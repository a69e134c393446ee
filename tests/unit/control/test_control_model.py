"""One connection against a model: ids, calls under way, cancelling, subscriptions, in any order."""

from __future__ import annotations

import json
from typing import Any
from unittest import mock

from controlled import LIMIT_S, Raw, serving
from eventually import eventually
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule
from profiles import examples

from fusebackend.backends import InMemoryBackend
from fusebackend.control import wire
from fusebackend.control.limits import MAX_CALLS
from fusebackend.control.server import limiter

IDS = st.one_of(st.integers(0, MAX_CALLS + 2), st.sampled_from(["", "a", "\udcff"]))


class ConnectionMachine(RuleBasedStateMachine):
    """Calls to `execute("wait")` stay under way until they are cancelled; `grep` ends by itself.

    There may be as many commands as there are other calls. In truth there may be 256, which no example comes near.
    """

    subscriptions = Bundle("subscriptions")

    def __init__(self) -> None:
        super().__init__()
        self.files = InMemoryBackend()
        self.files.write("/x", "needle\n" * 3)
        self.patched = mock.patch.object(limiter.COMMANDS, "of_one", MAX_CALLS)
        self.patched.start()
        self.serving = serving(self.files)
        self.server = self.serving.__enter__()
        self.raw = Raw(self.server.address)
        self.waiting: set[Any] = set()
        self.subscribed: set[str] = set()
        self.written = 0
        self.echo(None)

    def send(self, method: str, id: Any, **params: Any) -> None:
        self.raw.send(json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).encode() + b"\n")

    def answers(self, count: int) -> list[Any]:
        """The next answers, with the notifications before and between left out."""
        found = []
        while len(found) < count:
            line = self.raw.line()
            assert line is not None, "the connection has ended"
            if "method" not in line:
                found.append(line)
        return found

    @rule(id=IDS)
    def begin(self, id: Any) -> None:
        self.send("execute", id, command="wait")
        if id in self.waiting or len(self.waiting) == MAX_CALLS:
            (answer,) = self.answers(1)
            code = wire.INVALID_REQUEST if id in self.waiting else wire.BUSY
            assert (answer["id"], answer["error"]["code"]) == (id, code)
        else:
            self.waiting.add(id)
            self.echo(None)  # calls are begun in the order in which they were sent

    @rule(id=IDS)
    def cancel(self, id: Any) -> None:
        self.send("cancel", "cancel", call=id)
        there = id in self.waiting
        found = {answer["id"]: answer for answer in self.answers(2 if there else 1)}
        assert found["cancel"]["result"] is there
        if there:
            assert found[id]["error"]["code"] == wire.CANCELLED
            self.waiting.discard(id)
            # The answer comes first, and then a command's place is free.
            (connection,) = self.server._connections
            eventually(lambda: connection.client.has[limiter.COMMANDS] == len(self.waiting), LIMIT_S)

    @precondition(lambda self: len(self.waiting) < MAX_CALLS)
    @rule(id=IDS, stream=st.booleans(), times=st.integers(1, 3))
    def search(self, id: Any, stream: bool, times: int) -> None:
        """An id is free again as soon as its answer has come."""
        if id in self.waiting:
            return
        for _ in range(times):
            self.send("grep", id, pattern="needle", stream=stream)
            (answer,) = self.answers(1)
            matches = answer["result"]["matches"]
            assert (answer["id"], None if matches is None else len(matches)) == (id, None if stream else 3)

    @rule(payload=st.one_of(st.none(), st.text(), st.integers()))
    def echo(self, payload: Any) -> None:
        self.send("ping", "echo", payload=payload)
        assert self.answers(1) == [{"jsonrpc": "2.0", "id": "echo", "result": payload}]

    @rule(target=subscriptions)
    def subscribe(self) -> str:
        self.send("subscribe", "subscribe")
        (answer,) = self.answers(1)
        if len(self.subscribed) == MAX_CALLS:
            assert answer["error"]["code"] == wire.BUSY
            return ""
        assert answer["result"] not in self.subscribed
        self.subscribed.add(answer["result"])
        return str(answer["result"])

    @rule(name=consumes(subscriptions))
    def unsubscribe(self, name: str) -> None:
        self.send("unsubscribe", "unsubscribe", subscription=name)
        assert self.answers(1)[0]["result"] is (name in self.subscribed)
        self.subscribed.discard(name)

    @precondition(lambda self: self.subscribed)
    @rule()
    def change(self) -> None:
        """Every subscription is told of a change, once."""
        self.written += 1
        self.files.write(f"/{self.written}", "")
        told = []
        while len(told) < len(self.subscribed):
            line = self.raw.line()
            if line["method"] == "change" and line["params"]["event"]["path"] == f"/{self.written}":
                told.append(line["params"]["subscription"])
        assert set(told) == self.subscribed

    @invariant()
    def nothing_is_forgotten(self) -> None:
        (connection,) = self.server._connections
        assert set(connection._calls) == self.waiting
        assert set(connection._subscriptions) == self.subscribed

    def teardown(self) -> None:
        try:
            self.raw.close()
            self.serving.__exit__(None, None, None)
            eventually(
                lambda: {"connections": 0, "held_bytes": 0, "waiting": 0}.items() <= self.server.counts().items(),
                LIMIT_S,
            )
        finally:
            self.patched.stop()
            self.files.close()


TestConnection = ConnectionMachine.TestCase
TestConnection.settings = settings(max_examples=examples(40), stateful_step_count=60, deadline=None)
