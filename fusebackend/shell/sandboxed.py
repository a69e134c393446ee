"""`Sandboxed`: a command in a bubblewrap sandbox, in the order in which nothing can slip through.

bwrap makes the namespaces, tells the number of its first process, mounts everything and waits at a gate (`--block-fd`).
That process is put under its limits, and once everything is mounted, what is mounted is checked (`mountcheck.py`). The
gate opens, and the command starts. At the end that first process is killed, and with it, as the first of its pid
namespace, all others; the kernel reports its end only after theirs.

Nothing inside may lead to a file of this machine as this machine has it mounted, for root could change its mode, and
more. bwrap's own first process would: its `/proc/1/exe` is a way to bwrap itself that no read-only mount is in. So the
first process is a shell from inside the sandbox instead. And no input is an empty pipe, not this machine's /dev/null.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Callable, Sequence

from fusebackend.linux import mount_table as table
from fusebackend.linux.mount_table import MountEntry
from fusebackend.shell import system
from fusebackend.shell.bubblewrap import SandboxError
from fusebackend.shell.launch import Launch
from fusebackend.shell.mountcheck import MountCheck

log = logging.getLogger(__name__)

END_PATIENCE_S = 60.0
"""How long killed processes may take to end. One that waits for a hung route ends with that route's deadline."""

SETUP_PATIENCE_S = 30.0
"""How long bwrap may take to mount everything; a few milliseconds as a rule."""

POLL_S = 0.05
"""How often a start that takes long is looked at for having been stopped."""


FIRST = 'exec 3>&2 2>/dev/null; (exec "$0" -c "$1") 2>&3 3>&-; exit $?'
"""The first process: it reaps what loses its parent, and tells how the command ended as bwrap would. It must not become
the command itself, whom most signals would then not reach, nor tell of signals on the command's stderr."""


class Sandboxed(Launch):
    """See the module's docstring."""

    def __init__(
        self,
        program: Sequence[str],
        words: Sequence[str],
        command: str,
        check: Callable[[], MountCheck],
        filtered: bytes | None,
    ) -> None:
        """Start bwrap, which makes the sandbox and waits at the gate.

        Args:
            program: bwrap, and the words before it.
            words: its arguments.
            command: for `sh -c`.
            check: gives what must be mounted in the end.
            filtered: the seccomp filter.

        Raises:
            OSError, ValueError: it can't be started: a NUL in the command, or more than 128 KiB of it.
        """
        self._first: int | None = None  # a pidfd of the first process inside, with which all others end
        self._pid = 0  # its number
        self._said = b""
        self._check = check
        self._status, status = os.pipe()
        gate, self._gate = os.pipe()
        given = [status, gate]
        try:
            arguments = ["--json-status-fd", str(status), "--block-fd", str(gate)]
            if filtered is not None:
                given.append(_in_memory(filtered))
                arguments += ["--seccomp", str(given[-1])]
            given.append(_in_memory(b"".join(os.fsencode(word) + b"\0" for word in (*arguments, *words))))
            self.process = subprocess.Popen(
                [*program, "--args", str(given[-1]), "--", system.SHELL, "-c", FIRST, system.SHELL, command],
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
                self._first, self._pid = descriptor, pid
                return pid
            os.close(descriptor)  # it has failed and is gone, and somebody else has its number
        return None

    def is_ready(self, deadline: float, stopped: Callable[[], bool]) -> bool:
        assert self._first is not None
        path = f"/proc/{self._pid}/mountinfo"
        try:
            changes = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            poll = select.poll()
            poll.register(changes, select.POLLPRI)
            poll.register(self._first, select.POLLIN)  # its end
            began = time.monotonic()
            while True:
                found = _mounted(path)
                happened = {descriptor for descriptor, _ in poll.poll(0)}
                if self._first in happened:
                    return False
                if changes not in happened and self._check().is_made(found):
                    self._refuse_others(found)
                    return True
                left_s = min(deadline, began + SETUP_PATIENCE_S) - time.monotonic()
                if left_s <= 0 and time.monotonic() < deadline:
                    raise SandboxError(f"the sandbox was not made within {SETUP_PATIENCE_S:.0f} s")
                if left_s <= 0 or stopped():
                    return False
                if changes not in happened:
                    poll.poll(min(left_s, POLL_S) * 1000)
        finally:
            os.close(changes)

    def _refuse_others(self, found: list[MountEntry]) -> None:
        """Twice, for this machine may have mounted something since bwrap began."""
        wrong = self._check().differences(found) and self._check().differences(found)
        if wrong:
            log.error("the sandbox is not as it should be, and its command was not started: %s", "; ".join(wrong))
            raise SandboxError("the sandbox is not as it should be; the log of the server says why")

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


_BEING_MADE = re.compile(rb"^\d+ \d+ \S+ \S+ /(newroot|oldroot)[/ ]", re.MULTILINE)
"""In the table of mounts of a sandbox, until bwrap is through. To look for this is 20 times faster than to parse it."""


def _mounted(path: str) -> list[MountEntry]:
    """What a process has mounted; nothing when it has ended, or bwrap is at work on it."""
    try:
        with open(path, "rb") as file:
            found = file.read()
        return [] if _BEING_MADE.search(found) else table.parse(os.fsdecode(found))
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ESRCH, errno.EINVAL):
            return []
        raise


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
