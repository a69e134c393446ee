"""The test's side of `two_faces_server.py`."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mounts

SERVER = Path(__file__).with_name("two_faces_server.py")


class TwoFaces:
    """A mount and its agent face, both of another process."""

    def __init__(self, mounted: mounts.Mounted) -> None:
        self.mounted = mounted
        self.path = mounted.path
        self.status = 0  # the exit status it must end with

    def call(self, verb: str, *arguments: object) -> Any:
        """Call a verb; fail on an error. `upload` and `download` take and return bytes."""
        result = self.ask(verb, *arguments)
        for one in result if isinstance(result, list) else [result or {}]:
            assert not one.get("error") and not one.get("raised"), (verb, arguments, one)
        return result

    def ask(self, verb: str, *arguments: object) -> Any:
        process = self.mounted.process
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps([verb, *arguments]).encode() + b"\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    def upload(self, path: str, content: bytes) -> None:
        self.call("upload_files", [[path, content.decode("latin-1")]])

    def download(self, path: str) -> bytes:
        content: str = self.call("download_files", [path])[0]["content"]
        return content.encode("latin-1")


@contextlib.contextmanager
def two_faces(mountpoint: Path, default: str, *routes: str) -> Iterator[TwoFaces]:
    """Mount; at the end unmount by ending standard input, and check the log."""
    mounts.require()
    mountpoint.mkdir()
    log = mountpoint.with_name(mountpoint.name + ".log")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, str(SERVER), str(mountpoint), default, *routes],
            env=mounts.module_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
        )
    server = mounts.Mounted(mountpoint, process, log, mounts.LIFE_LIMIT_S)
    assert process.stdin is not None and process.stdout is not None
    try:
        assert process.stdout.readline() == b"ready\n", server.log_text()
        faces = TwoFaces(server)
        yield faces
        process.stdin.close()
        assert process.wait(mounts.STOP_LIMIT_S) == faces.status, server.log_text()
    finally:
        server.kill()
        process.stdin.close()
        process.stdout.close()
    server.check_log()
