"""A mount with a `Shell` for its commands, for `test_execute.py`, one JSON request a line on standard input.

    python execute_server.py MOUNTPOINT OPTIONS_JSON DEFAULT_URL [PREFIX=URL…]

A request is `{"id": N, "do": WHAT, …}`; each runs in a thread of its own and is answered, in any order, with the same
`id`: `execute` with the record, `cancel` by setting the event of request `of`, `describe`, `call` with a verb of the
agent face. The output of a running command is sent as `{"id": N, "stream": …, "piece": …}`. Bytes are latin-1.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import sys
import threading
from typing import Any

import fusebackend
from fusebackend.backends import CompositeBackend
from fusebackend.linux.command import Command
from fusebackend.shell import ShellOptions, bubblewrap, seccomp
from fusebackend.urls.opening import open_backend


class Server:
    def __init__(self, mounted: fusebackend.Mount) -> None:
        self.shell = mounted.shell
        self.mounted = mounted
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
        response = self.shell.execute(Command(request["command"], cancelled=self.cancelled[request["id"]], **options))
        return dataclasses.asdict(response)

    def cancel(self, request: dict[str, Any]) -> None:
        self.cancelled[request["of"]].set()

    def describe(self, request: dict[str, Any]) -> Any:
        return self.shell.describe()

    def close(self, request: dict[str, Any]) -> None:
        self.shell.close()

    def call(self, request: dict[str, Any]) -> Any:
        verb, *arguments = request["arguments"]
        if verb == "upload_files":
            arguments = [[(path, content.encode("latin-1")) for path, content in arguments[0]]]
        result = getattr(self.mounted, verb)(*arguments)
        records = [dataclasses.asdict(one) for one in (result if isinstance(result, list) else [result])]
        for record in records:
            if isinstance(record.get("content"), bytes):
                record["content"] = record["content"].decode("latin-1")
        return records


def main(mountpoint: str, options: str, default: str, *routes: str) -> None:
    logging.basicConfig(level=logging.INFO)
    parsed = json.loads(options)
    opened = [open_backend(default)]
    by_prefix = {}
    for route in routes:
        prefix, _, url = route.partition("=")
        by_prefix[prefix] = open_backend(url)
        opened.append(by_prefix[prefix])
    backend = CompositeBackend(opened[0], by_prefix) if by_prefix else opened[0]
    if not parsed.pop("user_namespaces", True):
        bubblewrap.USER_NAMESPACES = ((),)
    if not parsed.pop("seccomp", True):
        seccomp.program = lambda *arguments, **options: None
    how = {name: parsed.pop(name) for name in ("read_only", "deadline_s") if name in parsed}
    with fusebackend.mount(backend, mountpoint, shell=ShellOptions(**parsed), **how) as mounted:
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
    for one in opened:
        if hasattr(one, "close"):
            one.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
