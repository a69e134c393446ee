"""The benchmarks of the agent's face: verbs over the control socket, and the index that searches of `sqlite:` use."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import string
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from driver import Run, benchmark, in_rounds, markdown, option
from serving import our_mount
from work import NEEDLE, make_file, timed, vocabulary

import fusebackend

# -- verbs ---------------------------------------------------------------------------------------------------------

CALLS = 500
COMMANDS = 20

BARE_BWRAP = (
    "bwrap", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--unshare-all",
    "--die-with-parent", "--cap-drop", "ALL", "sh", "-c", "true",
)  # fmt: skip


@benchmark("verbs", "the agent's face over the control socket: a verb, an echo, a command", rounds=9)
def verbs(run: Run) -> list[str]:
    """Call a verb, and an echo of its size (`ping`); run a command in the mount's shell, and in a bare `bwrap`. They
    take turns, so that noise hits both of each pair."""
    text = "x" * 1023 + "\n"
    url, mountpoint = f"sqlite:{run.work / 'volume.db'}", run.work / "mount"
    with our_mount(url, mountpoint), fusebackend.connect(mountpoint) as client:
        client.write("/file", text)
        works: dict[str, tuple[Callable[[], object], int]] = {
            "echo": (lambda: client.ping(text), CALLS),
            "read": (lambda: client.read("/file"), CALLS),
            "bare": (lambda: subprocess.run(BARE_BWRAP, check=True), COMMANDS),
            "execute": (lambda: client.execute("true"), COMMANDS),
        }

        def one(number: int) -> Iterator[tuple[str, str, float]]:
            for name, (call, times) in works.items():
                yield name, "ms", timed(lambda call=call, times=times: [call() for _ in range(times)]) / times * 1000

        medians = in_rounds(run.rounds, one)
    echo, read, bare, execute = (medians[name]["ms"] for name in works)
    echoed = "a JSON-RPC echo of 1 KiB on the same socket"
    rows = [
        ["`read` of 1 KiB", echoed, f"{read:.2f}", f"{echo:.2f}", f"{read / echo:.1f} ×"],
        ['`execute("true")`', "a bare `bwrap … sh -c true`", f"{execute:.1f}", f"{bare:.1f}",
         f"+ {execute - bare:.1f} ms"],
    ]  # fmt: skip
    return markdown(["verb", "against", "ours (ms)", "that (ms)", ""], rows)


# -- the index -----------------------------------------------------------------------------------------------------

FILES = 100_000
SIZE_BYTES = 2048
SEARCHES = 9
SETTLED_LIMIT_S = 600


@benchmark(
    "index",
    "the index of `sqlite:`: the gain of a search, and the cost of writing",
    option("--text", choices=["words", "letters"], default="words", help="of 2,000 words, or at random"),
    rounds=3,
    quick="a tenth of the files",
)
def index(run: Run) -> list[str]:
    """Make the same files on a plain directory, and on mounts of `sqlite:` without its index and with it; then search
    for a string in one of them by the verb `grep`, in turns with `rg -F` on the plain directory."""
    files = FILES // 10 if run.quick else FILES
    contents = [text.encode() for text in texts(files, run.text)]
    medians = in_rounds(run.rounds, lambda number: one_index_round(run.work / f"round{number}", contents))
    s = {name: found["s"] for name, found in medians.items()}
    share, more_cpu = s["on"] / s["off"] - 1, s["on cpu"] - s["off cpu"]
    plain, without = "`rg -F`, plain directory", "without an index"
    rows = [
        [f"a rare string in {files:,} files", plain, f"{s['grep'] * 1000:.1f} ms", f"{s['rg'] * 1000:.1f} ms",
         f"{s['rg'] / s['grep']:.0f} × faster"],
        ["the same, before they are indexed", plain, f"{s['fresh'] * 1000:.0f} ms", f"{s['rg'] * 1000:.0f} ms",
         f"{s['rg'] / s['fresh']:.1f} × faster"],
        ["making the files on the mount", without, f"{s['on']:.1f} s", f"{s['off']:.1f} s", f"{share:+.0%}"],
        ["processor time of the server for that, all indexed", without, f"{s['on cpu']:.1f} s",
         f"{s['off cpu']:.1f} s", f"{more_cpu:+.1f} s, {more_cpu / s['off']:.0%} of making them"],
        ["from the last file to the last entry", "", f"{s['settled']:.1f} s", "", ""],
        ["making the files in a plain directory", "", "", f"{s['plain']:.1f} s", ""],
    ]  # fmt: skip
    return markdown(["what", "against", "ours", "that", ""], rows)


def texts(files: int, kind: str) -> Iterator[str]:
    """Yield texts, each with its own number; one holds the needle."""
    chance = random.Random(7)
    words = vocabulary(chance)
    for number in range(files):
        start = f"file {number}\n" + (f"{NEEDLE}\n" if number == files // 2 else "")
        if kind == "words":
            rest = " ".join(chance.choices(words, k=420)).replace(" e", "\ne")
        else:
            rest = "".join(chance.choices(string.ascii_lowercase + "  \n", k=SIZE_BYTES))
        yield (start + rest).ljust(SIZE_BYTES)[:SIZE_BYTES]


def one_index_round(work: Path, contents: list[bytes]) -> Iterator[tuple[str, str, float]]:
    plain = work / "plain"
    plain.mkdir(parents=True)
    yield "plain", "s", timed(lambda: create(plain, contents))
    unindexed = [f"UNINDEXED_FILE={work / 'off.db'}"]
    with our_mount("python:unindexed:backend", work / "off", environment=unindexed) as server:
        yield "off", "s", timed(lambda: create(work / "off", contents))
        yield "off cpu", "s", server.processor_s()
    url, mountpoint = f"sqlite:{work / 'on.db'}", work / "on"
    with our_mount(url, mountpoint) as server, fusebackend.connect(mountpoint) as client:
        yield "on", "s", timed(lambda: create(mountpoint, contents))

        def grep() -> None:
            found = client.grep(NEEDLE)
            assert not found.truncated and len(found.matches or ()) == 1, found

        yield "fresh", "s", timed(grep)
        yield "settled", "s", timed(lambda: settle(work / "on.db"))
        yield "on cpu", "s", server.processor_s()
        ripgrep = ["rg", "--no-config", "-F", NEEDLE, str(plain)]
        for _ in range(SEARCHES):
            yield "grep", "s", timed(grep)
            yield "rg", "s", timed(lambda: subprocess.run(ripgrep, check=True, stdout=subprocess.DEVNULL))
    shutil.rmtree(work)


def create(root: Path, contents: list[bytes]) -> None:
    for number, content in enumerate(contents):
        if number % 1000 == 0:
            os.mkdir(f"{root}/{number // 1000:03}")
        make_file(f"{root}/{number // 1000:03}/{number:06}.txt", content)


def settle(file: Path) -> None:
    """Wait until everything is indexed."""
    db = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
    deadline = time.monotonic() + SETTLED_LIMIT_S
    while db.execute("SELECT count(*) FROM unindexed").fetchone()[0]:
        if time.monotonic() > deadline:
            raise SystemExit(f"not everything was indexed within {SETTLED_LIMIT_S} s")
        time.sleep(0.1)
    db.close()
