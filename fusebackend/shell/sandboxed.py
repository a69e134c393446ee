"""`Sandboxed`: a command in a bubblewrap sandbox, in the order in which nothing can slip through.

bwrap makes the namespaces and waits at a gate (`--block-fd`). Its first process is known by then, and is put under its
limits. The gate opens, and the command starts. At the end that first process is killed, and with it, as the first of
its pid namespace, all others; the kernel reports its end only after theirs.

Nothing inside may lead to a file of this machine as this machine has it mounted, for root could change its mode, and
more. bwrap's own first process would: its `/proc/1/exe` is a way to bwrap itself that no read-only mount is in. So the
first process is a shell from inside the sandbox instead. And no input is an empty pipe, not this machine's /dev/null.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping

from fusebackend.shell import seccomp, system
from fusebackend.shell.launch import Launch

log = logging.getLogger(__name__)

END_PATIENCE_S = 60.0
"""How long killed processes may take to end. One that waits for a hung route ends with that route's deadline."""

POLL_S = 0.05
"""How often a start that takes long is looked at for having been stopped."""


FIRST = 'exec 3>&2 2>/dev/null; (exec "$0" -c "$1") 2>&3 3>&-; exit $?'
"""The first process: it reaps what loses its parent, and tells how the command ended as bwrap would. It must not become
the command itself, whom most signals would then not reach, nor tell of signals on the command's stderr."""


class Sandboxed(Launch):
    """See the module's docstring."""

    def __init__(
        self,
        program: str,
        words: Callable[[Mapping[str, int]], list[str]],
        files: Mapping[str, bytes],
        command: str,
    ) -> None:
        """Start bwrap, which makes the sandbox and waits at the gate.

        Args:
            program: bwrap.
            words: gives its arguments, when told the descriptors of `files` by path.
            files: path → content of files to be made inside.
            command: for `sh -c`.

        Raises:
            OSError, ValueError: it can't be started: a NUL in the command, or more than 128 KiB of it.
        """
        self._first: int | None = None  # a pidfd of the first process inside, with which all others end
        self._said = b""
        self._status, status = os.pipe()
        gate, self._gate = os.pipe()
        given = [status, gate]
        try:
            arguments = ["--json-status-fd", str(status), "--block-fd", str(gate)]
            descriptors = {}
            for path, content in files.items():
                descriptors[path] = _in_memory(content)
                given.append(descriptors[path])
            filter_program = seccomp.program()
            if filter_program is not None:
                given.append(_in_memory(filter_program))
                arguments += ["--seccomp", str(given[-1])]
            given.append(_in_memory(b"".join(os.fsencode(word) + b"\0" for word in arguments + words(descriptors))))
            self.process = subprocess.Popen(
                [program, "--args", str(given[-1]), "--", system.SHELL, "-c", FIRST, system.SHELL, command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=given,
                env={"PATH": system.PATH},
                start_new_session=True,
                umask=system.UMASK,
            )
        except BaseException:
            os.close(self._gate)
            os.close(self._status)
            raise
        finally:
            for descriptor in given:
                os.close(descriptor)

    def wait_for_first(self, deadline: float, stopped: Callable[[], bool]) -> int | None:
        poll = select.poll()
        poll.register(self._status, select.POLLIN)
        while b"\n" not in self._said:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or stopped():
                return None
            if poll.poll(min(left_s, POLL_S) * 1000) and not self._listen():
                return None
        pid: int = json.loads(self._said.partition(b"\n")[0])["child-pid"]
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            if _parent(pid) == self.process.pid:
                self._first = descriptor
                return pid
            os.close(descriptor)  # it has failed and is gone, and somebody else has its number
        return None

    def open_gate(self) -> None:
        with contextlib.suppress(BrokenPipeError):  # bwrap has failed; its exit will say so
            os.write(self._gate, b"\n")

    def _listen(self) -> bool:
        """Read more of what bwrap tells of the sandbox; False at the end."""
        piece = os.read(self._status, 4096)
        self._said += piece
        return bool(piece)

    def failed(self) -> bool:
        if self.process.returncode <= 0:
            return False
        while self._listen():
            pass
        return not any("exit-code" in json.loads(line) for line in self._said.splitlines())

    def end(self) -> None:
        if self.process.poll() is None:
            # Until the sandbox is made, all of it is in one process group, whose number is that of a child of ours.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        if self._first is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._first, signal.SIGKILL)
            poll = select.poll()
            poll.register(self._first, select.POLLIN)
            if not poll.poll(END_PATIENCE_S * 1000):
                log.error("a killed command has not ended within %.0f s", END_PATIENCE_S)
                return
        self.process.wait()

    def close(self) -> None:
        for descriptor in (self._first, self._status, self._gate):
            if descriptor is not None:
                os.close(descriptor)
        super().close()


def _parent(pid: int) -> int | None:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[1])
    return None


def _in_memory(content: bytes) -> int:
    """A descriptor to read `content` from."""
    descriptor = os.memfd_create("fusebackend", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, content)
        os.lseek(descriptor, 0, os.SEEK_SET)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
