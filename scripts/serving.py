"""A mount under measurement: its server is started, waited for, measured, and ended by its process id.

    with mounted(["bindfs", "-f", files, mountpoint], mountpoint, log) as server: ...
    with our_mount("memory:", mountpoint) as server: ...

The server ends with the measuring process, also when that is killed.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent

START_LIMIT_S = 60.0
END_LIMIT_S = 120.0
IDLE_LIMIT_S = 600.0

IDLE_SHARE = 0.02
"""A server that takes a smaller share of one processor than this, for a second, is idle."""

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Server:
    """The processes that serve one mount: those that were started, and their children."""

    def __init__(self, pids: Sequence[int], answered_s: float = 0.0) -> None:
        self._pids = pids
        self.answered_s = answered_s
        """Seconds from the start of the mount's process until the mount answered."""

    def pids(self) -> list[int]:
        return family(self._pids)

    def memory_mib(self) -> float:
        """Return its resident memory (VmRSS) now. Pages that two of its processes share count twice."""
        return self._sum_kib("VmRSS") / 1024

    def peak_mib(self) -> float:
        """Return the sum of the highest resident memory of each process (VmHWM)."""
        return self._sum_kib("VmHWM") / 1024

    def _sum_kib(self, field: str) -> int:
        found = [re.search(rf"^{field}:\s+(\d+) kB", _proc(pid, "status"), re.MULTILINE) for pid in self.pids()]
        return sum(int(match[1]) for match in found if match)

    def processor_s(self) -> float:
        """Return the processor time used so far, of user and system."""
        fields = [_proc(pid, "stat").rpartition(")")[2].split() for pid in self.pids()]
        return sum(int(each[11]) + int(each[12]) for each in fields if each) / _TICKS_PER_S

    def wait_idle(self, quiet_s: int = 3) -> None:
        """Wait until its background work is done (write-back, indexing, FORGETs) and it was idle for `quiet_s`."""
        deadline = time.monotonic() + IDLE_LIMIT_S
        before, quiet = self.processor_s(), 0
        while quiet < quiet_s:
            if time.monotonic() > deadline:
                print(f"the server is still busy after {IDLE_LIMIT_S:.0f} s", file=sys.stderr)
                return
            time.sleep(1)
            now = self.processor_s()
            quiet = quiet + 1 if now - before < IDLE_SHARE else 0
            before = now


def family(pids: Sequence[int]) -> list[int]:
    """Return these processes and all their descendants."""
    children: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal() and (stat := _proc(int(entry.name), "stat")):
            children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry.name))
    found, pending = [], list(pids)
    while pending:
        found.append(pending.pop())
        pending += children.get(found[-1], [])
    return found


def _proc(pid: int, name: str) -> str:
    """Read a file of /proc/PID; return an empty text when the process is gone."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


@contextmanager
def started(command: Sequence[str], log: Path, end: int = signal.SIGTERM) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process for the length of a block; end it and its children with the signal `end`, or SIGKILL if needed."""
    # The kernel ends it when this process is killed.
    bound = ["setpriv", f"--pdeathsig={signal.Signals(end).name[3:]}", "--", *command]
    with open(log, "wb") as output:
        process = subprocess.Popen(bound, cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        yield process
    finally:
        _end(process, end)


def _end(process: subprocess.Popen[bytes], how: int) -> None:
    """End a process; kill it and its children if they don't end, for their files are about to be removed."""
    with contextlib.ExitStack() as descriptors:
        children: list[int] = []
        for pid in family([process.pid])[1:]:
            with contextlib.suppress(ProcessLookupError):
                children.append(os.pidfd_open(pid))
                descriptors.callback(os.close, children[-1])
        process.send_signal(how)
        try:
            process.wait(END_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            print(f"{process.args} did not end and was killed", file=sys.stderr)
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(child, signal.SIGKILL)


@contextmanager
def mounted(
    command: Sequence[str], mountpoint: Path, log: Path, behind: Sequence[subprocess.Popen[bytes]] = ()
) -> Iterator[Server]:
    """Run a process that serves a mount in the foreground.

    Args:
        behind: other processes that belong to the server; the caller ends them.
    """
    mountpoint.mkdir()
    start = time.perf_counter()
    try:
        with started(command, log) as process:
            while not os.path.ismount(mountpoint):
                if process.poll() is not None or time.perf_counter() - start > START_LIMIT_S:
                    raise SystemExit(f"the mount did not start: {' '.join(command)}\n{log.read_text(errors='replace')}")
                time.sleep(0.005)
            mountpoint.stat()
            yield Server([each.pid for each in (process, *behind)], time.perf_counter() - start)
    finally:
        if _is_listed(mountpoint):
            subprocess.run(["fusermount3", "-u", "-z", "--", mountpoint], check=True)


@contextmanager
def our_mount(url: str, mountpoint: Path, *words: str, environment: Sequence[str] = ()) -> Iterator[Server]:
    """Serve a mount of ours.

    Args:
        words: more of the command line.
        environment: NAME=VALUE each.
    """
    serve = [sys.executable, "-m", "fusebackend", "mount", "--foreground", *words, "--default", url, str(mountpoint)]
    log = mountpoint.with_name(f"{mountpoint.name}.log")
    with mounted(["env", *environment, *serve] if environment else serve, mountpoint, log) as server:
        yield server


def _is_listed(mountpoint: Path) -> bool:
    """Return whether the mount table has it. It also has dead mounts, where `ismount` returns False."""
    with open("/proc/self/mountinfo") as table:
        return any(line.split(" ")[4] == str(mountpoint) for line in table)
