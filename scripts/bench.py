"""The benchmark: fifteen measures on a plain directory and on a mount of the same disk, as ratios.

    scripts/bench [--url URL] [--rounds N] [--only WORDS] [--quick] [--peer bindfs] [--write]

Each round runs every measure on both, one after the other and in turns, so that noise of the machine hits both alike;
the ratio is that of the medians. `--write` replaces the table in BENCHMARKS.md. Never part of a test: numbers are not
promises. What each measure does is in `measures.py` and BENCHMARKS.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from measures import PREPARES, Measures, Scale, drop_caches, make_source_tree, timed

REPOSITORY = Path(__file__).resolve().parent.parent

Medians = dict[str, dict[str, float]]
"""Measure to root (`plain`, `mount`, a peer) to seconds."""


@contextmanager
def mounted(command: list[str], mountpoint: Path, log: Path) -> Iterator[float]:
    """A mount that a process serves in the foreground; gives the seconds until it answered."""
    mountpoint.mkdir()
    start = time.perf_counter()
    with open(log, "wb") as output:
        server = subprocess.Popen(command, cwd=REPOSITORY, stdout=output, stderr=output)
    try:
        while not os.path.ismount(mountpoint):
            if server.poll() is not None or time.perf_counter() - start > 20:
                raise SystemExit(f"the mount did not start:\n{log.read_text()}")
            time.sleep(0.005)
        mountpoint.stat()
        yield time.perf_counter() - start
    finally:
        _end(server, mountpoint)


def _end(server: subprocess.Popen[bytes], mountpoint: Path) -> None:
    """Unmount and wait; a server that does not end is killed, for its files are about to be removed."""
    server.send_signal(signal.SIGTERM)
    try:
        server.wait(60)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
        print("the server did not end and was killed", file=sys.stderr)
    if os.path.ismount(mountpoint):
        subprocess.run(["fusermount3", "-u", "-z", "--", mountpoint], check=True)


def import_seconds() -> float:
    """`import fusebackend` beyond what starting Python costs, median of five."""

    def run(code: str) -> float:
        command = [sys.executable, "-c", code]
        return statistics.median(timed(lambda: subprocess.run(command, check=True)) for _ in range(5))

    return run("import fusebackend") - run("pass")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="sqlite", help="sqlite, memory, dir, or a URL (default: sqlite)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="only measures whose name contains one of these words, with commas")
    parser.add_argument("--quick", action="store_true", help="a tenth of the work")
    parser.add_argument("--peer", choices=["bindfs"], help="also on a mount of this program, if it is installed")
    parser.add_argument("--write", action="store_true", help="write the table to BENCHMARKS.md")
    parser.add_argument("--directory", help="where to work (default: the system's temporary directory)")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error("--rounds must be 1 or more")
    if arguments.write and (arguments.only or arguments.quick):
        parser.error("--write is for all the work: without --only and --quick")
    work = Path(tempfile.mkdtemp(prefix="fusebackend-bench-", dir=arguments.directory))
    try:
        report = run(arguments, work)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(report)
    if arguments.write:
        write_between("table", report)


def run(arguments: argparse.Namespace, work: Path) -> str:
    scale = Scale(arguments.quick)
    archive = work / "source.tar"
    make_source_tree(archive, scale.tree_files)
    measures = Measures(scale, archive).all()
    words = [word for word in arguments.only.split(",") if word]
    shown = [name for name in measures if not words or any(word in name for word in words)]
    if not shown:
        raise SystemExit(f"--only: no measure has {' or '.join(words)} in its name; there are {', '.join(measures)}")
    needed = {*shown, *(PREPARES[name] for name in shown if name in PREPARES)}
    measures = {name: measure for name, measure in measures.items() if name in needed}

    for name in ("plain", "dir", "peer-files"):
        (work / name).mkdir()
    urls = {"sqlite": f"sqlite:{work / 'volume.db'}", "memory": "memory:", "dir": f"dir:{work / 'dir'}"}
    url = urls.get(arguments.url, arguments.url)
    roots = {"plain": work / "plain", "mount": work / "mount"}
    with ExitStack() as mounts:
        serve = [sys.executable, "-m", "fusebackend", "mount", "--foreground", "--default", url, str(roots["mount"])]
        answer_s = mounts.enter_context(mounted(serve, roots["mount"], work / "log"))
        if arguments.peer and shutil.which(arguments.peer):
            roots[arguments.peer] = work / arguments.peer
            serve = [arguments.peer, "-f", str(work / "peer-files"), str(roots[arguments.peer])]
            mounts.enter_context(mounted(serve, roots[arguments.peer], work / "peer-log"))
        seconds: dict[str, dict[str, list[float]]] = {name: {root: [] for root in roots} for name in measures}
        for number in range(arguments.rounds):
            for name, measure in measures.items():
                for root in roots if number % 2 == 0 else reversed(roots):
                    seconds[name][root].append(measure(roots[root]))
            print(f"round {number + 1} of {arguments.rounds} done", file=sys.stderr)
    medians = {name: {root: statistics.median(seconds[name][root]) for root in roots} for name in shown}
    return "\n".join([conditions(url, arguments, work), "", *table(medians), "", footnote(answer_s)])


def conditions(url: str, arguments: argparse.Namespace, work: Path) -> str:
    """The machine, and what was done on it."""
    cpu = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    find = ["findmnt", "--noheadings", "--output", "FSTYPE", "--target", str(work)]
    disk = subprocess.run(find, capture_output=True, text=True, check=True).stdout.strip()
    return (
        f"`{url.partition(':')[0]}:` on {platform.system()} {platform.release()}, "
        f"{cpu[1] if cpu else platform.machine()}, {os.cpu_count()} cores, {memory_gib:.0f} GiB, {disk}, "
        f"Python {platform.python_version()}; medians of {arguments.rounds} rounds"
        f"{', a tenth of the work' if arguments.quick else ''}"
        f"{'' if drop_caches() else '; not root: the cold measures are warm'}."
    )


def table(medians: Medians) -> list[str]:
    roots = list(next(iter(medians.values())))
    others = roots[1:]
    lines = [
        "| measure | plain directory (ms) | " + " | ".join(f"{root} (ms) | ratio" for root in others) + " |",
        "|---|" + "---:|" * (1 + 2 * len(others)),
    ]
    for name, found in medians.items():
        cells = [f"{found[root] * 1000:.1f} | {found[root] / found['plain']:.1f}" for root in others]
        lines.append(f"| {name} | {found['plain'] * 1000:.1f} | " + " | ".join(cells) + " |")
    means = [statistics.geometric_mean(found[root] / found["plain"] for found in medians.values()) for root in others]
    lines.append("| **geometric mean** | | " + " | ".join(f"| **{mean:.2f}**" for mean in means) + " |")
    return lines


def footnote(answer_s: float) -> str:
    return f"`import fusebackend`: {import_seconds():.3f} s. Mount answers after {answer_s:.2f} s."


def write_between(table: str, report: str) -> None:
    """Replace what stands between a table's markers in BENCHMARKS.md."""
    path = REPOSITORY / "BENCHMARKS.md"
    opening, closing = f"<!-- {table} -->\n", f"<!-- end of {table} -->"
    before, start, rest = path.read_text().partition(opening)
    _, end, after = rest.partition(closing)
    if not start or not end:
        raise SystemExit(f"{path} has no markers of '{table}'")
    path.write_text(f"{before}{start}{report}\n{end}{after}")


if __name__ == "__main__":
    main()
