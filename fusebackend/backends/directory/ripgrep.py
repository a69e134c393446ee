"""ripgrep as a sieve: which files below a directory hold a string, in a tenth of the time that Python takes.

`rg` names the files (`-l`); their lines are then read by the caller, through descriptors and by the rules of
`text.grep_lines`. So the answer is that of the Python search to the byte, and as confined: `rg` goes by paths, so that
somebody who swaps a directory for a link while it runs can make it look outside, and the lines it prints (`--json`)
could be of any file of the machine. A file that it wrongly names is read again and found to be wrong.

What `rg` is told makes it search what the Python search does: every file, hidden or ignored, of any encoding, as bytes.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import NamedTuple

from fusebackend.backends.directory.local_tree import SWAPPED
from fusebackend.base import budget, paths
from fusebackend.base.budget import Budget
from fusebackend.volumes.walk import UNREADABLE

SHARE = 0.7
"""How much of the search's budget it may use before it is ended. What it had named by then counts, and is read in what
is left; the answer of `grep` says `truncated`."""

POLL_S = 0.05
"""How often it is looked whether the search was called off."""

PATTERN_BYTES = 64 << 10
"""Longer patterns are left to Python: the system takes arguments of up to 128 KiB."""

ARGUMENTS = (
    "--no-config", "--files-with-matches", "--null", "--fixed-strings", "--case-sensitive", "--text", "--hidden",
    "--no-ignore", "--no-follow", "--no-mmap", "--color=never", "--encoding=none", "--regex-size-limit=1G",
)  # fmt: skip

_ERROR_NUMBER = re.compile(rb"\(os error (\d+)\)")
_NO_MATCH, _FAILED = 1, 2


class Candidates(NamedTuple):
    """Files that may match, as paths relative to the directory."""

    files: frozenset[str]
    complete: bool = True
    """False when the budget ended it."""
    denied: bool = False
    """Some file or directory may not be read."""


def find_candidates(directory: int, pattern: str, max_bytes: int, *, program: str = "rg") -> Candidates | None:
    """The files below a directory, up to `max_bytes` in size, that hold `pattern`. None when `rg` can't tell: it is
    not installed, it does not take the pattern, or it met an error of the disk.

    Args:
        directory: an open descriptor.
    """
    try:
        needle = pattern.encode("utf-8")
    except UnicodeEncodeError:
        return Candidates(frozenset())
    if b"\n" in needle or b"\0" in needle:
        return Candidates(frozenset())  # in no line of a text file
    found = shutil.which(program)
    if found is None or len(needle) > PATTERN_BYTES:
        return None
    # The child enters the directory by the descriptor, before it is closed: no path that could lead elsewhere.
    process = subprocess.Popen(
        [found, *ARGUMENTS, f"--max-filesize={max_bytes}", "-e", needle, "--", "./"],
        cwd=f"/proc/self/fd/{directory}",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        try:
            output, messages, ended = _output(process, budget.current())
        except BaseException:
            process.kill()
            raise
    if ended:
        return Candidates(_names(output), complete=False)
    if process.returncode not in (0, _NO_MATCH, _FAILED):
        return None
    met = {int(number) for number in _ERROR_NUMBER.findall(messages)}
    if (process.returncode == _FAILED and not met) or met - SWAPPED - UNREADABLE:
        return None
    return Candidates(_names(output), denied=bool(met & UNREADABLE))


def _output(process: subprocess.Popen[bytes], left: Budget) -> tuple[bytes, bytes, bool]:
    """What it wrote to both ends, and whether that was cut short."""
    share = left.within(left.left_s * SHARE)
    while not share.spent:
        try:
            return *process.communicate(timeout=min(share.left_s, POLL_S)), False
        except subprocess.TimeoutExpired:  # nothing is lost: the next call goes on
            continue
    process.kill()
    return *process.communicate(), True


def _names(output: bytes) -> frozenset[str]:
    names = output.split(b"\0")[:-1]  # what is behind the last NUL is nothing, or was cut by a time-out
    return frozenset(paths.to_text(name.removeprefix(b"./")) for name in names)
