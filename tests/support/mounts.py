"""Mounts for tests: a server in its own process, with a hard time limit and a last resort.

The process that runs a test must not serve its own mount: a call that waits for the server would wait for itself. So
`start` runs `fusebackend mount --foreground`, waits until the mount is there, and hands back a `Mounted`. `stop` ends
it with SIGTERM and fails the test when the server's exit status is not 0, a mount is left, or the log holds an error.
A watchdog process kills a server that outlives its limit, so that a test waiting for it gets ENOTCONN and not for ever.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import warm

from fusebackend.linux import mount_table as table

ROOT = Path(__file__).parents[2]

START_LIMIT_S = 120.0
STOP_LIMIT_S = 60.0
STUCK_S = 5.0
LIFE_LIMIT_S = 900.0
"""The watchdog kills a server after this time; the longest test takes a fraction of it."""

BAD_LOG_LINE = re.compile(r"^Traceback|\b(ERROR|CRITICAL)\b|^\S*(Error|Exception): ")


def missing() -> str | None:
    """Return the reason why nothing can be mounted on this machine, or None."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse is missing or closed to this user"
    if shutil.which("fusermount3") is None:
        return "fusermount3 is missing (Debian: fuse3)"
    return None


OTHERS = ("allow_other",) if os.geteuid() == 0 else ()
"""Options of a mount that root opens to others, so that a test can become one. A plain user may not."""


def require() -> None:
    """Skip the test where nothing can be mounted; see `skips.py` for CI."""
    reason = missing()
    if reason is not None:
        pytest.skip(reason)


class Mounted:
    """A running server and its mount point."""

    def __init__(
        self, mountpoint: Path, process: subprocess.Popen[bytes] | warm.Forked, log: Path, limit_s: float
    ) -> None:
        self.path = mountpoint
        self.process = process
        self.log = log
        self.expected_log: str | None = None  # a pattern: errors that a test provokes and so expects in the log
        # `tail --pid` ends with the server; `timeout` ends it when the server does not.
        self._watchdog = subprocess.Popen(
            ["sh", "-c", f"timeout {limit_s} tail --pid={self.pid} -f /dev/null || kill -KILL {self.pid}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def memory_kib(self, field: str = "VmRSS") -> int:
        """Read a line of the server's /proc/PID/status: `VmRSS` now, `VmHWM` at its highest."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(rf"^{field}:\s+(\d+) kB", status, re.MULTILINE)
        assert found, f"no {field} in the server's status"
        return int(found[1])

    def known_inodes(self) -> int:
        """Return the number of inodes with a lookup count above 0, by the server's status."""
        return int(json.loads(os.getxattr(self.path, "user.fusebackend.status"))["known_inodes"])

    def stop(self) -> None:
        """Unmount by SIGTERM. The server must exit with 0, and must have logged no error."""
        try:
            self.process.send_signal(signal.SIGTERM)
            try:
                status: int | str = self.process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                status = f"none within {STOP_LIMIT_S:.0f} s"
                self.process.send_signal(signal.SIGABRT)  # faulthandler says in the log what its threads do
                self.process.wait(STOP_LIMIT_S)
            left = os.path.ismount(self.path)
        finally:
            self.kill()
        assert status == 0, f"exit status of the server: {status}\n{self.log_text()}"
        assert not left, "the server ended and left its mount"
        self.check_log()

    def check_log(self) -> None:
        text = self.log_text()
        bad = [line for line in text.splitlines() if BAD_LOG_LINE.search(line)]
        if self.expected_log is not None:
            bad = [line for line in bad if not re.search(self.expected_log, line)]
        assert not bad, f"errors in the server's log:\n{text}"

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")

    def kill(self) -> None:
        """Kill the server with SIGKILL, as a crash would, and unmount. Also cleans up after a server that has ended.

        A thread that was about to notify the kernel of a name waits in it for the directory's lock, for a process that
        has it and waits for the server, which has not ended while that thread is there (fuse_reverse_inval_entry): one
        of some 200 kills beside agents and writers. Ending the connection by force ends that.
        """
        self.process.kill()
        try:
            self.process.wait(STUCK_S)
        except subprocess.TimeoutExpired:
            words = ["umount", "--force", "--internal-only", "--no-canonicalize", "--", str(self.path)]
            subprocess.run(words, check=False, capture_output=True, timeout=STOP_LIMIT_S)
            self.process.wait(STOP_LIMIT_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._watchdog.pid, signal.SIGKILL)
        self._watchdog.wait()
        if is_listed(self.path):
            subprocess.run(["fusermount3", "-u", "-z", "--", self.path], check=True, timeout=STOP_LIMIT_S)


Serve = Callable[..., Mounted]
"""The type of the fixture `serve`."""


def start(
    mountpoint: Path,
    default: str,
    *,
    routes: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
    config: Path | None = None,
    limit_s: float = LIFE_LIMIT_S,
) -> Mounted:
    """Mount `default` (a URL; empty for that of the file) and `routes` (prefix to URL) on a directory, which is made if
    it is missing, with the TOML file `config` if there is one."""
    require()
    mountpoint.mkdir(parents=True, exist_ok=True)
    command = ["mount", str(mountpoint), "--foreground"]
    if default:
        command += ["--default", default]
    if config is not None:
        command += ["--config", str(config)]
    for prefix, url in (routes or {}).items():
        command += ["--route", f"{prefix}={url}"]
    for option in options:
        command += ["-o", option]
    log = mountpoint.with_name(mountpoint.name + ".log")
    with log.open("ab") as output, Path(os.devnull).open("rb") as nothing:
        process = warm.start(command, module_environment(), (nothing.fileno(), output.fileno(), output.fileno()))
    mounted = Mounted(mountpoint, process, log, limit_s)
    deadline = time.monotonic() + START_LIMIT_S
    while not (os.path.ismount(mountpoint) and _answers(mountpoint)):
        if process.poll() is not None or time.monotonic() > deadline:
            mounted.kill()
            said = "\n".join(mounted.log_text().splitlines()[-10:])
            pytest.fail(f"no mount within {START_LIMIT_S:.0f} s; the server said:\n{said}", pytrace=False)
        time.sleep(0.005)
    return mounted


@contextlib.contextmanager
def mounted(
    mountpoint: Path,
    default: str,
    *,
    routes: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
    config: Path | None = None,
    limit_s: float = LIFE_LIMIT_S,
) -> Iterator[Mounted]:
    """`start` for the length of a block, then `stop`; after an exception in the block, `kill`."""
    server = start(mountpoint, default, routes=routes, options=options, config=config, limit_s=limit_s)
    try:
        yield server
    except BaseException:
        server.kill()
        raise
    server.stop()


@contextlib.contextmanager
def of_kind(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    url: str,
    routes: Mapping[str, str] | None = None,
    **options: Any,
) -> Iterator[Mounted]:
    """`mounted` for a fixture of several kinds of volumes. In a URL `{tmp}` is a new directory, in which there is an
    empty one, `files`, and `{dsn}` an empty database."""
    tmp = tmp_path_factory.mktemp("mount")
    (tmp / "files").mkdir()
    with contextlib.ExitStack() as stack:
        dsn = stack.enter_context(request.getfixturevalue("postgres").database()) if "{dsn}" in url else ""
        below = {prefix: each.format(tmp=tmp) for prefix, each in (routes or {}).items()}
        yield stack.enter_context(mounted(tmp / "mnt", url.format(tmp=tmp, dsn=dsn), routes=below, **options))


def _answers(mountpoint: Path) -> bool:
    """Return whether the server answers. `stat` of a dead mount may come from the kernel's cache; `statvfs` never."""
    try:
        os.statvfs(mountpoint)
    except OSError as error:
        if error.errno != errno.ENOTCONN:
            raise
        return False
    return True


def _module_path() -> list[str]:
    """Return the server's PYTHONPATH: the tree under test, then the tests, for `python:` URLs of test backends."""
    return [str(ROOT), str(ROOT / "tests/support"), str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])]


def module_environment() -> dict[str, str]:
    """Return the environment of servers and of commands."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(_module_path())}


def is_listed(mountpoint: Path) -> bool:
    """Return whether the kernel's mount table has the mount point. Unlike `ismount`, this works with a dead server."""
    wanted = os.path.realpath(mountpoint.parent) + "/" + mountpoint.name
    return any(entry.mountpoint == wanted for entry in table.mounts())


def empty(mountpoint: Path, *routes: str) -> None:
    """Remove everything from a mount but its routes' directories: the next test that shares it finds it as if new."""
    kept = {str(directory) for route in routes for directory in (mountpoint / route, *(mountpoint / route).parents)}

    def clear(directory: str) -> None:
        with os.scandir(directory) as found:
            entries = list(found)
        for entry in entries:
            if entry.path in kept:
                clear(entry.path)
            elif entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)

    clear(str(mountpoint))


def drop_caches(what: int) -> None:
    """Drop the kernel's caches: 1 pages, 2 dentries and inodes, 3 both. Needs root; others skip the test."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text(str(what))
    except PermissionError:
        pytest.skip("needs root, to drop the kernel's caches")


def sync(mountpoint: Path) -> None:
    """fsync the root directory of a mount, which makes all earlier changes durable."""
    fd = os.open(mountpoint, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
