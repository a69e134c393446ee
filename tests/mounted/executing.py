"""The test's side of `execute_server.py`: commands in a mount of another process, any number at once."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import mounts
import pytest
import warm

import fusebackend

SERVER = "import sys\nimport execute_server\nexecute_server.main(*sys.argv[1:])"
ANSWER_LIMIT_S = 120.0


class Pending:
    """A request that was sent, with its output and answer so far."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.pieces: list[tuple[str, bytes]] = []
        self.piece_came = threading.Event()
        self._result: Any = None
        self._answered = threading.Event()

    def told(self, message: dict[str, Any]) -> None:
        if "piece" in message:
            self.pieces.append((message["stream"], message["piece"].encode("latin-1")))
            self.piece_came.set()
        else:
            self._result = message["result"]
            self._answered.set()

    def result(self) -> Any:
        assert self._answered.wait(ANSWER_LIMIT_S), "no answer"
        return self._result

    @property
    def is_answered(self) -> bool:
        return self._answered.is_set()


class Commands:
    """A mount, its shell, and `files`, its agent face."""

    files: fusebackend.Client

    def __init__(self, mounted: mounts.Mounted, requests: IO[bytes], answers: IO[bytes]) -> None:
        self.mounted = mounted
        self.path = mounted.path
        self.requests, self.answers = requests, answers
        self.status = 0  # the exit status the server must end with
        self._pending: dict[int, Pending] = {0: Pending(0)}
        self._numbers = itertools.count(1)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_until_ready(self) -> None:
        assert self._pending[0].result() == "ready", self.mounted.log_text()

    def start(self, command: str, **options: Any) -> Pending:
        """Send a command. `stdin` is bytes; with `stream`, output arrives as it is printed."""
        if options.get("stdin") is not None:
            options["stdin"] = options["stdin"].decode("latin-1")
        return self._send("execute", command=command, options=options)

    def run(self, command: str, **options: Any) -> dict[str, Any]:
        result = self.start(command, **options).result()
        assert "raised" not in result, result
        return dict(result)

    def output(self, command: str, **options: Any) -> str:
        """Run a command that must succeed; return its output."""
        result = self.run(command, **options)
        assert result["exit_code"] == 0, result
        return str(result["output"])

    def cancel(self, pending: Pending) -> None:
        self._send("cancel", of=pending.number).result()

    def describe(self) -> dict[str, Any]:
        return dict(self.files.status()["execute"])

    def close_shell(self) -> None:
        assert self._send("close").result() is None

    def download(self, path: str) -> bytes | None:
        return self.files.download_files([path])[0].content

    def _send(self, what: str, **more: Any) -> Pending:
        pending = Pending(next(self._numbers))
        self._pending[pending.number] = pending
        self.requests.write(json.dumps({"id": pending.number, "do": what, **more}).encode() + b"\n")
        self.requests.flush()
        return pending

    def _read(self) -> None:
        for line in self.answers:
            message = json.loads(line)
            self._pending[message["id"]].told(message)


@contextlib.contextmanager
def commands(
    mountpoint: Path, default: str, *routes: str, limit_s: float = mounts.LIFE_LIMIT_S, **options: Any
) -> Iterator[Commands]:
    """Mount `default` and `routes` (`PREFIX=URL`), with the options of `ShellOptions` and a few more."""
    if shutil.which("bwrap") is None:
        pytest.skip("bwrap is missing (Debian: bubblewrap)")
    mountpoint.mkdir(parents=True)
    log = mountpoint.with_name(mountpoint.name + ".log")
    with log.open("wb") as output:
        given, requests = os.pipe()
        answers, said = os.pipe()
        words = ["-c", SERVER, str(mountpoint), json.dumps(options), default, *routes]
        process = warm.start(words, mounts.module_environment() | warm.SECRET, (given, said, output.fileno()))
        os.close(given)
        os.close(said)
    server = mounts.Mounted(mountpoint, process, log, limit_s)
    faces = Commands(server, os.fdopen(requests, "wb"), os.fdopen(answers, "rb"))
    try:
        faces.wait_until_ready()
        with fusebackend.connect(mountpoint) as faces.files:
            yield faces
        faces.requests.close()
        assert process.wait(mounts.STOP_LIMIT_S) == faces.status, server.log_text()
    finally:
        server.kill()
        faces._reader.join(10)
        faces.requests.close()
        faces.answers.close()
    server.check_log()


def groups(server_pid: int) -> set[Path]:
    """Return the control groups of a server's commands."""
    return {path for path in own_groups(server_pid) if path.parent.name.startswith("fusebackend-")}


def own_groups(server_pid: int) -> set[Path]:
    """Return the control groups of a server: those of its commands, and their parent."""
    found: set[Path] = set()
    for directory, names, _ in os.walk("/sys/fs/cgroup"):  # unlike glob, it tolerates groups that vanish meanwhile
        found |= {
            Path(directory, name) for name in names if re.fullmatch(rf"fusebackend-\d+-{server_pid}-\d+-\d+", name)
        }
    return {path for path in found if not path.name.endswith("-0")}  # -0 is the server's probe for permission
