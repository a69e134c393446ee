"""moto's S3 in a process of its own: a second opinion, with AWS's flat keys, where SeaweedFS has directories."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from services.s3 import Bucket, Service

START_LIMIT_S = 60.0

_PROGRAM = """
import time
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
time.sleep(86400)
"""


def missing() -> str | None:
    if find_spec("moto") is None or find_spec("flask") is None:
        return "moto's server is not installed (pip install 'moto[s3]' flask flask-cors)"
    if find_spec("obstore") is None:
        return "obstore is not installed (pip install 'fusebackend[s3]')"
    return None


def require() -> None:
    """Skip the test where there is no moto; see `skips.py` for CI."""
    reason = missing()
    if reason is not None:
        pytest.skip(reason)


class Moto:
    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self._process = process
        self.service = Service(f"http://127.0.0.1:{port}", "test", "testsecret")

    @contextlib.contextmanager
    def bucket(self) -> Iterator[Bucket]:
        with self.service.bucket() as bucket:
            yield bucket


@contextlib.contextmanager
def running() -> Iterator[Moto]:
    """Run a server for the length of a block, on a free port."""
    require()
    process = subprocess.Popen(
        ["setpriv", "--pdeathsig=KILL", "--", sys.executable, "-W", "ignore", "-c", _PROGRAM],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.strip().isdigit():
            pytest.fail("moto did not start", pytrace=False)
        server = Moto(process, int(line))
        deadline = time.monotonic() + START_LIMIT_S
        while not server.service.takes_objects():
            if process.poll() is not None or time.monotonic() > deadline:
                pytest.fail("moto does not answer", pytrace=False)
            time.sleep(0.05)
        yield server
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
