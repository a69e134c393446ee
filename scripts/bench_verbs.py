"""The benchmark of the agent face over the control socket: a verb, an echo, a command.

    scripts/bench --verbs [--rounds N] [--write]

- `read` of a file of 1 KiB, against a bare JSON-RPC echo of 1 KiB on the same socket (`ping`);
- `execute("true")` in the mount's shell, against a bare `bwrap … true`: the cost of our part of a command.

The two of each pair take turns in the same run, so that noise hits both; the numbers are medians.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from measures import timed
from report import write_between
from serving import mounted

import fusebackend

CALLS = 500
COMMANDS = 20
SIZE_BYTES = 1024

BARE_BWRAP = (
    "bwrap", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--unshare-all",
    "--die-with-parent", "--cap-drop", "ALL", "sh", "-c", "true",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--write", action="store_true", help="write the table to BENCHMARKS.md")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fusebackend-bench-") as directory:
        work = Path(directory)
        mountpoint = work / "mount"
        url = f"sqlite:{work / 'volume.db'}"
        serve = [sys.executable, "-m", "fusebackend", "mount", "--foreground", "--default", url, str(mountpoint)]
        with mounted(serve, mountpoint, work / "log"):
            report = measure(mountpoint, arguments.rounds)
    print(report)
    if arguments.write:
        write_between("verbs", report)


def measure(mountpoint: Path, rounds: int) -> str:
    """Measure, and make a table of medians."""
    text = "x" * (SIZE_BYTES - 1) + "\n"
    with fusebackend.connect(mountpoint) as client:
        client.write("/file", text)
        echo = repeated(lambda: client.ping(text), CALLS)
        read = repeated(lambda: client.read("/file"), CALLS)
        bare = repeated(lambda: subprocess.run(BARE_BWRAP, check=True), COMMANDS)
        execute = repeated(lambda: client.execute("true"), COMMANDS)
        seconds: dict[str, list[float]] = {"echo": [], "read": [], "bare": [], "execute": []}
        for _ in range(rounds):
            for name, work in (("echo", echo), ("read", read), ("bare", bare), ("execute", execute)):
                seconds[name].append(work())
    ms = {name: statistics.median(found) * 1000 for name, found in seconds.items()}
    return "\n".join(
        [
            "| verb | against | ours (ms) | that (ms) | |",
            "|---|---|---:|---:|---:|",
            f"| `read` of 1 KiB | a JSON-RPC echo of 1 KiB on the same socket | {ms['read']:.2f} | {ms['echo']:.2f} "
            f"| {ms['read'] / ms['echo']:.1f} × |",
            f'| `execute("true")` | a bare `bwrap … sh -c true` | {ms["execute"]:.1f} | {ms["bare"]:.1f} '
            f"| + {ms['execute'] - ms['bare']:.1f} ms |",
        ]
    )


def repeated(call: Callable[[], object], times: int) -> Callable[[], float]:
    """Return a function that gives the mean seconds of a call over `times` calls."""

    def all_of_them() -> None:
        for _ in range(times):
            call()

    return lambda: timed(all_of_them) / times


if __name__ == "__main__":
    main()
