"""A mount with a `Shell` for its commands, for `executing.py`, one JSON request a line on standard input.

A request is `{"id": N, "do": WHAT, …}`; each runs in a thread of its own and is answered, in any order, with the same
`id`: `execute` with the record, `cancel` by setting the event of request `of`, `close` of the shell. The output of a
running command is sent as `{"id": N, "stream": …, "piece": …}`. Bytes are latin-1.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import sys
import threading
from typing import Any

import fusebackend
from fusebackend.backends import CompositeBackend
from fusebackend.base import budget
from fusebackend.linux.command import Command
from fusebackend.shell import bubblewrap, seccomp
from fusebackend.shell.options import ShellOptions
from fusebackend.urls import open_backend


class Server:
    def __init__(self, mounted: fusebackend.Mount) -> None:
        self.shell = mounted.shell
        self.cancelled: dict[int, threading.Event] = {}
        self._lock = threading.Lock()

    def say(self, message: dict[str, Any]) -> None:
        with self._lock:
            print(json.dumps(message), flush=True)

    def answer(self, request: dict[str, Any]) -> None:
        try:
            result = getattr(self, request["do"])(request)
        except Exception as error:  # the test gets every exception as an answer
            result = {"raised": repr(error)}
        self.say({"id": request["id"], "result": result})

    def execute(self, request: dict[str, Any]) -> Any:
        options = request["options"]
        if options.get("stdin") is not None:
            options["stdin"] = options["stdin"].encode("latin-1")
        if options.pop("stream", False):
            number = request["id"]
            fail = options.pop("fail", False)

            def on_output(stream: str, piece: bytes) -> None:
                self.say({"id": number, "stream": stream, "piece": piece.decode("latin-1")})
                if fail:
                    raise RuntimeError("enough")

            options["on_output"] = on_output
        options["timeout_s"] = options.pop("timeout", None)
        with budget.limited(None, cancelled=self.cancelled[request["id"]]):
            response = self.shell.execute(Command(request["command"], **options))
        return dataclasses.asdict(response)

    def cancel(self, request: dict[str, Any]) -> None:
        self.cancelled[request["of"]].set()

    def close(self, request: dict[str, Any]) -> None:
        self.shell.close()


def main(mountpoint: str, options: str, default: str, *routes: str) -> None:
    logging.basicConfig(level=logging.INFO)
    parsed = json.loads(options)
    if not parsed.pop("user_namespaces", True):
        bubblewrap.USER_NAMESPACES = ((),)
    if not parsed.pop("seccomp", True):
        seccomp.program = lambda *arguments, **options: None
    how = {name: parsed.pop(name) for name in ("read_only", "deadline_s") if name in parsed}
    with contextlib.ExitStack() as stack:
        opened = {}
        for prefix, _, url in (route.partition("=") for route in (f"={default}", *routes)):
            opened[prefix] = open_backend(url)
            stack.callback(getattr(opened[prefix], "close", lambda: None))
        backend = CompositeBackend(opened.pop(""), opened)
        mounted = stack.enter_context(fusebackend.mount(backend, mountpoint, shell=ShellOptions(**parsed), **how))
        server = Server(mounted)
        server.say({"id": 0, "result": "ready"})
        threads = []
        for line in sys.stdin:
            request = json.loads(line)
            if request["do"] == "execute":
                server.cancelled[request["id"]] = threading.Event()
            threads.append(threading.Thread(target=server.answer, args=(request,)))
            threads[-1].start()
        mounted.shell.close()
        for thread in threads:
            thread.join()
