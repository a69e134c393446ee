"""The benchmark of undo: 10,000 files deleted by `rm -rf` on a mount, and had back by `fusebackend undo`.

    scripts/bench --undo [--rounds N] [--only sqlite,dir,store,s3] [--quick] [--write]

The files lie in directories of 100, with modes, times, and extended attributes where the route keeps them, and all of
that is compared afterwards. The store is one of LangGraph in SQLite, S3 is SeaweedFS on this machine. What is left of
the mount's default options, `history=on` among them, is as it is. The time is that of the command; the processor time
is the server's in it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from measures import timed
from report import machine, markdown, write_between
from serving import REPOSITORY, mounted

import fusebackend

sys.path.insert(0, str(REPOSITORY / "tests"))
sys.path.insert(0, str(REPOSITORY / "tests/support"))
from services import seaweedfs as service

FILES = 10_000
TARGETS_S = {"sqlite": 2, "dir": 10, "store": 10, "s3": 10}
KEEPS_ATTRIBUTES = {"sqlite", "dir"}
XATTR = "user.number"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(TARGETS_S), help="routes, with commas")
    parser.add_argument("--quick", action="store_true", help="a tenth of the files")
    parser.add_argument("--write", action="store_true", help="write the table to BENCHMARKS.md")
    arguments = parser.parse_args()
    files = FILES // 10 if arguments.quick else FILES
    load = os.getloadavg()[0]
    rows = []
    for name in arguments.only.split(","):
        taken = [undone(name, files) for _ in range(arguments.rounds)]
        deleting_s, undoing_s, processor_s = (statistics.median(column) for column in zip(*taken, strict=True))
        rows.append([f"`{name}:`", f"{deleting_s:.1f}", f"{undoing_s:.1f}", f"{processor_s:.1f}", str(TARGETS_S[name])])
        print(rows[-1], file=sys.stderr)
    heads = ("route", "`rm -rf` (s)", "`undo` (s)", "processor of the server (s)", "target (s)")
    report = "\n".join(
        [
            f"{files:,} files, on {machine(Path(tempfile.gettempdir()))}; medians of {arguments.rounds} rounds;"
            f" load average {load:.1f} before.",
            "",
            *markdown(heads, rows),
        ]
    )
    print(report)
    if arguments.write:
        write_between("undo", report)


def undone(name: str, files: int) -> tuple[float, float, float]:
    """Seconds of deleting the files of a new mount, of undoing that, and of its server's processors meanwhile."""
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fusebackend-bench-")))
        point = home / "mnt"
        for variable in ("XDG_STATE_HOME", "XDG_DATA_HOME"):
            os.environ[variable] = str(home / variable)
        words = ["--default", stack.enter_context(route(name, home)), "--foreground", str(point)]
        command = [sys.executable, "-m", "fusebackend", "mount", *words]
        server = stack.enter_context(mounted(command, point, home / "log"))
        keeps = name in KEEPS_ATTRIBUTES
        fill(point / "tree", files, keeps)
        before = state(point / "tree", keeps)
        time.sleep(3)  # what has made them was another call
        with fusebackend.connect(point) as client:
            call = client.begin_call("rm -rf")
            deleting_s = timed(lambda: subprocess.run(["rm", "-rf", point / "tree"], check=True))
            deleted = client.end_call(call)
        assert deleted is not None and not (point / "tree").exists()
        server.wait_idle()
        began_s = server.processor_s()
        words = [sys.executable, "-m", "fusebackend", "undo", "--mount", str(point), deleted]
        undoing_s = timed(lambda: subprocess.run(words, check=True, cwd=REPOSITORY, stdout=subprocess.DEVNULL))
        processor_s = server.processor_s() - began_s
        if state(point / "tree", keeps) != before:
            raise SystemExit(f"{name}: what is back is not what was there")
        return deleting_s, undoing_s, processor_s


@contextlib.contextmanager
def route(name: str, home: Path) -> Iterator[str]:
    """The URL of an empty route."""
    if name == "dir":
        (home / "files").mkdir()
    if name == "s3":
        with service.running() as server, server.bucket() as bucket:
            yield bucket.url()
        return
    urls = {
        "sqlite": f"sqlite:{home}/files.db",
        "dir": f"dir:{home}/files",
        "store": f"store+sqlite:{home}/store.db?ns=memories",
    }
    yield urls[name]


def fill(tree: Path, files: int, keeps: bool) -> None:
    for number in range(files):
        above = tree / str(number // 100)
        if number % 100 == 0:
            above.mkdir(parents=True)
        path = above / str(number % 100)
        path.write_bytes(b"%d " % number * (number % 500))
        if keeps:
            path.chmod((0o644, 0o600, 0o755)[number % 3])
            os.setxattr(path, XATTR, b"%d" % number)
            os.utime(path, ns=(number, number * 10**9))


def state(tree: Path, keeps: bool) -> dict[str, object]:
    found: dict[str, object] = {}
    for path in tree.rglob("*"):
        if path.is_file():
            status = path.stat()
            attributes = (status.st_mode, status.st_mtime_ns, os.getxattr(path, XATTR)) if keeps else None
            found[str(path)] = (path.read_bytes(), attributes)
    return found


if __name__ == "__main__":
    main()
