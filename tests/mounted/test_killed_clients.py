"""Processes that are killed in the middle of their requests: the server must not block on those requests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mounts import Serve

pytestmark = pytest.mark.mounted

LIMIT_S = 20.0
ROUNDS = 150

BUSY = """
import os, sys, threading
def work(number):
    while True:
        path = f"{sys.argv[1]}/file-{os.getpid()}-{number}"
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
        os.unlink(path)
for number in range(4):
    threading.Thread(target=work, args=(number,), daemon=True).start()
print("ready", flush=True)
threading.Event().wait()
"""


def test_reading_requests_never_blocks(serve: Serve) -> None:
    mounted = serve("memory:")
    os.listdir(mounted.path)
    for descriptor in Path(f"/proc/{mounted.pid}/fd").iterdir():
        if os.readlink(descriptor) == "/dev/fuse":
            text = Path(f"/proc/{mounted.pid}/fdinfo/{descriptor.name}").read_text()
            flags = re.search(r"^flags:\s*(\d+)$", text, re.MULTILINE)
            assert flags and int(flags[1], 8) & os.O_NONBLOCK
            return
    raise AssertionError("the server has no /dev/fuse open")


def test_the_server_goes_on_when_its_clients_are_killed(serve: Serve) -> None:
    mounted = serve("memory:")
    for _ in range(ROUNDS):
        busy = subprocess.Popen([sys.executable, "-S", "-c", BUSY, mounted.path], stdout=subprocess.PIPE)
        assert busy.stdout is not None
        assert busy.stdout.readline() == b"ready\n"
        busy.kill()
        busy.wait()
        busy.stdout.close()
    # No request arrives now; a thread that needs Python's lock must get it all the same.
    address = os.getxattr(mounted.path, "user.fusebackend.socket").decode()
    from controlled import Raw

    start = time.monotonic()
    with Raw(address) as raw:
        assert raw.ask("ping", payload=1)["result"] == 1
    assert time.monotonic() - start < LIMIT_S
