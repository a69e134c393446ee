"""Renames that race against the start of commands, with files of the host that must stay as they are.

While bwrap makes a sandbox, an actor swaps the mount points in its root (`/etc`, `/proc`, …) for links and directories
of links that lead to this machine's files. `race` mounts, has one of `ACTORS` swap names for some seconds while
commands start one after the other, and returns the damage. It can run as a plain user (`as_plain_user`), for which this
module is a program: that user needs an interpreter it may execute, and a /dev/fuse it may open.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]

import mounts

import fusebackend

START_LIMIT_S = 60.0
"""No command that prints a line may take longer, with names swapped all the time."""

PLAIN_UID = 65534

NAMES = ("etc", "proc", "dev", "tmp", "usr", "bin")
"""The names that are swapped in the root."""

FILES = ("passwd", "group", "hosts", "nsswitch.conf", "localtime", "timezone", "ld.so.cache", "services", "protocols")
NODES = ("null", "zero", "full", "random", "urandom", "tty", "fd", "stdin", "stdout", "stderr", "core", "ptmx")

COMMAND = (
    "for f in kernel/core_pattern kernel/printk_ratelimit; do test ! -w /proc/sys/$f || echo WRITABLE; done; "
    "for d in /usr /bin /etc /proc /dev; do touch $d/x 2>/dev/null && echo WRITABLE; done; "
    "echo x > /dev/null && test -x /usr/bin/env && test -r /etc/passwd && echo fine"
)

SWAPPER = """
import ctypes, os, random, sys
libc = ctypes.CDLL(None)
root, names = sys.argv[1], sys.argv[2:]
os.chdir(root)
def exchange(a, b):
    return libc.renameat2(-100, a.encode(), -100, b.encode(), 2) == 0
def by_steps(a, b):
    try: os.rename(a, 'spare-' + a); os.rename(b, a); os.rename('spare-' + a, b)
    except OSError: pass
swap = exchange if any(exchange(name, 'evil-' + name) for name in names) else by_steps
while True:
    name = random.choice(names)
    for _ in range(random.randrange(1, 9)): swap(name, 'evil-' + name)
"""
"""Swaps `NAME` and `evil-NAME` in a directory until it is killed. A program, for another user and for a sandbox."""


@dataclass
class Outcome:
    """The result of a race: `hits` are escapes from the sandbox, `refusals` the output of failed commands."""

    commands: int = 0
    refused: int = 0
    slowest_s: float = 0.0
    hits: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)

    def took(self, seconds: float, code: int | None, output: str) -> None:
        self.commands += 1
        self.slowest_s = max(self.slowest_s, seconds)
        if "WRITABLE" in output:
            self.note(self.hits, f"a command could write where it must not: {output!r}")
        if code != 0 or not output.endswith("fine\n"):
            self.refused += 1
            self.note(self.refusals, output)

    @staticmethod
    def note(notes: list[str], text: str) -> None:
        if text not in notes and len(notes) < 10:
            notes.append(text)


class Canaries:
    """Files of this machine that only the server's user may change: the targets of the links in the mount."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(mode=0o700)
        self.directory = directory
        for name in FILES:
            (directory / name).write_text("canary")
            (directory / name).chmod(0o600)
        self._before = self._look()

    def changed(self) -> list[str]:
        now = self._look()
        return [f"{name}: {self._before.get(name)} -> {now.get(name)}" for name in sorted(now.keys() | self._before)
                if now.get(name) != self._before.get(name)]  # fmt: skip

    def _look(self) -> dict[str, tuple[object, ...]]:
        found: dict[str, tuple[object, ...]] = {}
        for path in sorted(self.directory.rglob("*")):
            status = path.lstat()
            content = path.read_bytes() if path.is_file() else b""
            found[str(path.relative_to(self.directory))] = (status.st_mode, status.st_mtime_ns, content)
        return found


def prepare(root: Path, canaries: Path, names: Sequence[str]) -> None:
    """Give a root real directories of the system's names, and an `evil-NAME` for each."""
    outside = f"/oldroot{canaries}"

    def links(directory: Path, names: Sequence[str]) -> None:
        for name in names:
            (directory / name).symlink_to(f"{outside}/{name}")

    for name in names:
        with contextlib.suppress(FileExistsError):
            (root / name).mkdir()
        (root / name / "x").touch()  # so that it is real
        evil = root / f"evil-{name}"
        try:
            if name in ("etc", "dev"):
                evil.mkdir()
                links(evil, FILES if name == "etc" else NODES)
            else:
                evil.symlink_to("usr" if name == "proc" else outside)
        except OSError:  # a route without links
            evil.mkdir(exist_ok=True)


# -- actors ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _program(command: list[str]) -> Iterator[None]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield
        assert process.poll() is None, "the swaps have ended early"
    finally:
        process.kill()
        process.wait()


def system_python() -> str | None:
    """Find an interpreter that every user may execute, for the packages of this one."""
    return shutil.which(f"python3.{sys.version_info.minor}", path="/usr/bin:/bin")


def _swap_by_verbs(client: Any, names: Sequence[str]) -> None:
    for name in names:
        for source, target in ((name, f"spare-{name}"), (f"evil-{name}", name), (name, f"evil-{name}"),
                               (f"spare-{name}", name)):  # fmt: skip
            client.move(f"/{source}", f"/{target}")


@contextlib.contextmanager
def _thread(mountpoint: Path, once: Callable[[Any], object]) -> Iterator[None]:
    stop = threading.Event()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            with fusebackend.connect(mountpoint) as client:
                once(client)  # however slow the machine is
                while not stop.is_set():
                    once(client)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert not failures, failures


DROP = ["setpriv", f"--reuid={PLAIN_UID}", f"--regid={PLAIN_UID}", "--clear-groups", "--"]

ACTORS: dict[str, Callable[[Path, Path, Sequence[str]], contextlib.AbstractContextManager[None]]] = {
    "verbs": lambda mountpoint, _, names: _thread(mountpoint, lambda client: _swap_by_verbs(client, names)),
    "mount": lambda mountpoint, _, names: _program([sys.executable, "-c", SWAPPER, str(mountpoint), *names]),
    "another user": lambda mountpoint, _, names: _program(
        [*DROP, system_python() or "python3", "-c", SWAPPER, str(mountpoint), *names]
    ),
    "directory": lambda _, files, names: _program([sys.executable, "-c", SWAPPER, str(files), *names]),
    "command": lambda mountpoint, _, names: _thread(
        mountpoint,
        lambda client: client.execute(f"exec timeout 5 python3 -c {shlex.quote(SWAPPER)} / {' '.join(names)}"),
    ),
}
"""Each swaps names for the length of a block, given the mount point, the directory of the files, and the names."""


# -- the race ----------------------------------------------------------------------------------------------------------


def race(
    place: Path, default: str, actor: str, seconds: float, names: Sequence[str] = NAMES, *, clients: int = 2
) -> Outcome:
    """Start commands for some seconds while an actor swaps names.

    Args:
        place: an empty directory. `{files}` in `default` is one below it, that the other user may write to.
        default: the URL of the default route.
        actor: one of `ACTORS`.
        seconds: the length of the race.
        names: the names that are swapped. Fewer names collide with a start more often.
    """
    files = place / "files"
    files.mkdir()
    canaries = Canaries(place / "canaries")
    others = actor == "another user"
    for path in (place, files):
        path.chmod(0o777 if others else 0o700)
    outcome = Outcome()
    options = ["allow_other"] if others else []
    with mounts.mounted(place / "mnt", default.format(files=files), options=options) as server:
        server.expected_log = "the sandbox is not as it should be"
        prepare(server.path, canaries.directory, names)
        if others:
            for path in (files, *files.rglob("*")):
                os.chown(path, PLAIN_UID, PLAIN_UID, follow_symlinks=False)
        lock = threading.Lock()

        def work(client: Any) -> None:
            begin = time.monotonic()
            answer = client.execute(COMMAND, timeout=int(START_LIMIT_S) * 2)
            with lock:
                outcome.took(time.monotonic() - begin, answer.exit_code, answer.output)

        with ACTORS[actor](server.path, files, names), contextlib.ExitStack() as workers:
            for _ in range(clients):
                workers.enter_context(_thread(server.path, work))
            until = time.monotonic() + seconds
            while time.monotonic() < until and not canaries.changed():
                time.sleep(0.2)
    outcome.hits += canaries.changed()
    if outcome.slowest_s > START_LIMIT_S:
        outcome.hits.append(f"a command took {outcome.slowest_s:.0f} s")
    return outcome


def as_plain_user(place: Path, default: str, actor: str, seconds: float, names: Sequence[str] = NAMES) -> Outcome:
    """Run `race` with a server of a plain user, in a mount namespace with a /dev/fuse for all. Needs root."""
    place.chmod(0o755)
    mine = place / "plain"
    mine.mkdir()
    os.chown(mine, PLAIN_UID, PLAIN_UID)
    node = place / "fuse"
    os.mknod(node, 0o020666, os.makedev(10, 229))
    node.chmod(0o666)
    packages = next(path for path in map(Path, sys.path) if path.name == "site-packages")
    tests = mounts.ROOT / "tests"
    module_path = os.pathsep.join(map(str, [mounts.ROOT, tests / "support", tests, packages]))
    inside = [
        *DROP, "env", "-i", f"PATH={os.environ['PATH']}", f"PYTHONPATH={module_path}", f"HOME={mine}",
        f"TMPDIR={mine}", str(system_python()), "-B", str(Path(__file__)),
        json.dumps([str(mine / "race"), default, actor, seconds, list(names)]),
    ]  # fmt: skip
    script = f"mount --bind {shlex.quote(str(node))} /dev/fuse && exec {shlex.join(inside)}"
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    return Outcome(**json.loads(done.stdout.splitlines()[-1]))


if __name__ == "__main__":
    place, *asked = json.loads(sys.argv[1])
    os.mkdir(place)
    print(json.dumps(asdict(race(Path(place), *asked))))
