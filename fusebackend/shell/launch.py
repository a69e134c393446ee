"""`Launch`: one command from its start to the end of its last process, behind a gate until it is under its limits."""

from __future__ import annotations

import abc
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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fusebackend.base.context import closing_fd
from fusebackend.base.deadline import is_readable
from fusebackend.base.errors import unless
from fusebackend.base.lines import split_lines
from fusebackend.linux import mount_table as table
from fusebackend.linux import proc
from fusebackend.linux.mount_table import MountEntry
from fusebackend.shell import system
from fusebackend.shell.bubblewrap import SandboxError
from fusebackend.shell.mountcheck import MountCheck

log = logging.getLogger(__name__)


class Launch(contextlib.AbstractContextManager["Launch"]):
    """Used by one thread, as a context manager: its end is the end of everything that was started.

    `process` is a child of ours with pipes for its input and output. Without a sandbox it is the command's first
    process, is ready at once, and starts the command in any case.
    """

    process: subprocess.Popen[bytes]

    def wait_for_first(self, deadline: float, stopped: Callable[[], bool]) -> int | None:
        """Return the pid of the command's first process, before it starts others.

        None when it failed, after `deadline` (monotonic), and when `stopped` returned True.
        """
        return self.process.pid

    def is_ready(self, deadline: float, stopped: Callable[[], bool]) -> bool:
        """Wait until the sandbox is made. False for the reasons of `wait_for_first`.

        Raises:
            SandboxError: the sandbox is not as it should be; the gate stays closed.
        """
        return True

    @abc.abstractmethod
    def open_gate(self) -> None:
        """Let the command start."""

    @abc.abstractmethod
    def end(self) -> None:
        """Kill the processes that are left, and wait until they have ended."""

    def failed(self) -> bool:
        """Return True, after the end, if the command never started. The output then says why."""
        return False

    def close(self) -> None:
        """Close pipes and descriptors."""
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()

    def __exit__(self, *error: object) -> None:
        try:
            self.end()
        finally:
            self.close()


END_PATIENCE_S = 60.0
"""How long killed processes may take to end. A process that waits for a hung route ends with that route's deadline."""

SETUP_PATIENCE_S = 30.0
"""How long bwrap may take to mount everything; a few milliseconds as a rule."""

POLL_S = 0.05
"""How often a start that takes long is looked at for having been stopped."""


FIRST = 'exec 3>&2 2>/dev/null; (exec "$0" -c "$1") 2>&3 3>&-; exit $?'
"""The first process: it reaps orphans, and its exit code is the command's, as bwrap would report it. It must not become
the command itself, which as pid 1 would get few signals, nor print messages about signals on the command's stderr."""


class Sandboxed(Launch):
    """A command in a bubblewrap sandbox, in the order in which nothing can slip through.

    bwrap makes the namespaces, tells the number of its first process, mounts everything and waits at a gate
    (`--block-fd`). That process is put under its limits, and once everything is mounted, what is mounted is checked
    (`mountcheck.py`). The gate opens, and the command starts. At the end that first process is killed, and with it, as
    the first of its pid namespace, all others; the kernel reports its end only after theirs.

    Nothing inside may lead to a file of this machine as this machine has it mounted, for root could change its mode,
    and more. bwrap's own first process would: its `/proc/1/exe` is a way to bwrap itself that no read-only mount is in.
    So the first process is a shell from inside the sandbox instead. And no input is an empty pipe, not this machine's
    /dev/null."""

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
        while b"\n" not in self._said:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or stopped():
                return None
            if is_readable(self._status, min(left_s, POLL_S)) and not self._listen():
                return None
        pid: int = json.loads(self._said.partition(b"\n")[0])["child-pid"]
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            fields = unless((errno.ENOENT, errno.ESRCH), proc.stat, pid)
            if fields is not None and int(fields[1]) == self.process.pid:  # its parent
                self._first, self._pid = descriptor, pid
                return pid
            os.close(descriptor)  # it has ended, and another process has its pid now
        return None

    def is_ready(self, deadline: float, stopped: Callable[[], bool]) -> bool:
        assert self._first is not None
        path = f"/proc/{self._pid}/mountinfo"
        try:
            changes = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        with closing_fd(changes):
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

    def _refuse_others(self, found: list[MountEntry]) -> None:
        """Look twice, because this machine may have mounted something since bwrap began."""
        wrong = self._check().differences(found) and self._check().differences(found)
        if wrong:
            log.error("the sandbox is not as it should be, and its command was not started: %s", "; ".join(wrong))
            raise SandboxError("the sandbox is not as it should be; the log of the server says why")

    def open_gate(self) -> None:
        with contextlib.suppress(BrokenPipeError):  # bwrap has failed; its exit will say so
            os.write(self._gate, b"\n")

    def _listen(self) -> bool:
        """Read more of bwrap's status; return False at its end."""
        piece = os.read(self._status, 4096)
        self._said += piece
        return bool(piece)

    def failed(self) -> bool:
        if self.process.returncode <= 0:
            return False
        while self._listen():
            pass
        return not any("exit-code" in json.loads(line) for line in split_lines(self._said))

    def end(self) -> None:
        if self.process.poll() is None:
            # Until the sandbox is made, all of it is in one process group, that of this process's child.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        if self._first is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._first, signal.SIGKILL)
            if not is_readable(self._first, END_PATIENCE_S):
                log.error("a killed command has not ended within %.0f s", END_PATIENCE_S)
                return
        self.process.wait()

    def close(self) -> None:
        for descriptor in (self._first, self._status, self._gate):
            if descriptor is not None:
                os.close(descriptor)
        super().close()


_BEING_MADE = re.compile(rb"^\d+ \d+ \S+ \S+ /(newroot|oldroot)[/ ]", re.MULTILINE)
"""Lines of a sandbox's table of mounts until bwrap is done. A search for them is 20 times faster than parsing it."""


def _mounted(path: str) -> list[MountEntry]:
    """Return the mounts of a process; none when it has ended, or while bwrap is not done."""
    found = unless((errno.ENOENT, errno.ESRCH, errno.EINVAL), Path(path).read_bytes)
    return [] if found is None or _BEING_MADE.search(found) else table.parse(os.fsdecode(found))


def _in_memory(content: bytes) -> int:
    """Return a descriptor from which `content` can be read."""
    descriptor = os.memfd_create("fusebackend", os.MFD_CLOEXEC)
    try:
        os.pwrite(descriptor, content, 0)  # it is read from its beginning
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


_BEHIND_THE_GATE = 'read -r _ && cd -- "$1" && exec "$2" -c "$3"'
"""The shell changes directory itself: this process must not wait for its own mount. The gate is a line of input, which
`read` takes byte by byte, so that the rest is left for the command; and at the end of input, nothing runs."""


class Unconfined(Launch):
    """`sandbox = "none"`: a command that runs as this user, in the mount, and is held by nothing but its limits.

    It sees the whole machine, with the mount where it is mounted. Processes that it leaves running are ended with it as
    far as they stay in its control group or, without one, in its process group."""

    def __init__(self, command: str, cwd: str, env: Mapping[str, str]) -> None:
        """Start a shell that waits at the gate.

        Raises:
            OSError, ValueError: it can't be started.
        """
        self.process = subprocess.Popen(
            [system.SHELL, "-c", _BEHIND_THE_GATE, system.SHELL, cwd, system.SHELL, command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(env),
            start_new_session=True,
            umask=system.UMASK,
        )

    def open_gate(self) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            os.write(self.process.stdin.fileno(), b"\n")

    def end(self) -> None:
        # The group's number is the child's. Once that is reaped it may be another's, so this comes first.
        if self.process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
