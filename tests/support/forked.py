"""A child of the process that has imported everything (`warm.py`), seen from the process that asked for it.

It imports little, for the `fusebackend` of snippets' shells is nothing else (`warm.command`): 15 ms of a processor in
place of 400. A request is one packet of JSON with the child's descriptors, on a connection of its own; what comes back
is `started` with the process id, and at its end `ended` with the exit status as `Popen` gives it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping
from io import BufferedWriter

LARGEST_BYTES = 180_000
"""Of a request: a packet of a Unix socket is not larger than its buffer."""


class Forked:
    """The part of `Popen` that tests use, and `fusebackend.cli.serve`."""

    stdin: BufferedWriter | None = None

    def __init__(
        self,
        address: str,
        arguments: list[str],
        descriptors: Mapping[int, int],
        environment: Mapping[str, str] = os.environ,
        cwd: str | None = None,
    ) -> None:
        """Have a child started. It is in this process's mount namespace.

        Args:
            address: the socket of the warm process, in the abstract namespace.
            arguments: of `fusebackend`, or others that `warm.py` knows.
            descriptors: this process's, by the number that they have in the child.
        """
        self._channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        mask = os.umask(0o022)
        os.umask(mask)
        own = {"environment": dict(environment), "cwd": cwd or os.getcwd(), "umask": mask}
        request = json.dumps({"arguments": arguments, "numbers": [*descriptors], **own}).encode()
        assert len(request) < LARGEST_BYTES, "an environment of that size needs another way"
        self._channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * LARGEST_BYTES)
        self._channel.connect(f"\0{address}")
        namespace = os.open("/proc/self/ns/mnt", os.O_RDONLY)
        try:
            socket.send_fds(self._channel, [request], [namespace, *descriptors.values()])
        finally:
            os.close(namespace)
        self.pid = self._receive("started")
        self.returncode: int | None = None

    def __del__(self) -> None:
        self._channel.close()

    def _receive(self, expected: str) -> int:
        data = self._channel.recv(1000)
        assert data, "the warm process has ended"
        what, number = json.loads(data)
        assert what == expected, (what, number)
        return int(number)

    def poll(self) -> int | None:
        with contextlib.suppress(TimeoutError, BlockingIOError):
            self._wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        try:
            return self._wait(timeout)
        except TimeoutError:
            from subprocess import TimeoutExpired

            raise TimeoutExpired(f"process {self.pid}", timeout or 0) from None

    def _wait(self, timeout: float | None) -> int:
        if self.returncode is None:
            self._channel.settimeout(timeout)
            self.returncode = self._receive("ended")
            self._channel.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


def main(address: str, before: list[str]) -> None:
    """Be `fusebackend`, or a program in Python: run its command line in a child, and end as that does."""
    child = Forked(address, [*before, *sys.argv[1:]], {number: number for number in range(3)})
    os.chdir("/")  # this process is in the way of no `umount`
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: os.kill(child.pid, number))
    status = child.wait()
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)
