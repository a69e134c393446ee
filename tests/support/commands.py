"""The `fusebackend` command in this process, over files that are not mounted: a control server stands in for a mount.

Behaviour of the kernel, signals and terminals is tested on real mounts (`tests/mounted/test_cli_verbs.py`).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
from collections.abc import Iterator
from typing import Any

import click.testing
import pytest
from controlled import ClientOf, serving

from fusebackend.cli import target
from fusebackend.cli.main import main
from fusebackend.control import rendezvous
from fusebackend.linux.mount_table import MountError
from fusebackend.testing.each import each

MOUNT = "/mnt/unmounted"
"""The mount point that commands see."""


class Command:
    """Runs commands. `files` is the backend they work on."""

    def __init__(self, files: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files = files
        self._monkeypatch = monkeypatch

    def __call__(self, *words: object, stdin: str | bytes | None = None) -> click.testing.Result:
        runner = click.testing.CliRunner(catch_exceptions=False)
        return runner.invoke(main, [str(word) for word in words], input=stdin, prog_name="fusebackend")

    def ok(self, *words: object, stdin: str | bytes | None = None) -> str:
        done = self(*words, stdin=stdin)
        assert (done.exit_code, done.stderr) == (0, "")
        return done.stdout

    def json(self, *words: object) -> Any:
        return json.loads(self.ok(*words, "--json"))

    def refused(self, *words: object, status: int = 1, stdin: str | bytes | None = None) -> str:
        """Run a command that must fail; return its error, the only line it prints."""
        done = self(*words, stdin=stdin)
        assert (done.exit_code, done.stdout) == (status, ""), done.output
        (line,) = done.stderr.splitlines()
        assert line.startswith("Error: ")
        return line.removeprefix("Error: ")

    def wrong(self, *words: object, stdin: str | bytes | None = None) -> str:
        """Run a wrong command line; return the last line of its usage error."""
        done = self(*words, stdin=stdin)
        assert (done.exit_code, done.stdout) == (2, ""), done.output
        assert done.stderr.startswith("Usage: fusebackend ")
        return done.stderr.splitlines()[-1].removeprefix("Error: ")

    def answers(self, *rows: tuple[Any, ...]) -> None:
        """Run every row's command line, in order: `ok`, `refused`, `wrong` or `json`, what it gives, and its words.

        `…` at an end of what it gives stands for any text.
        """
        for case in each({f"row {number}: {row}": row for number, row in enumerate(rows)}):
            with case as (how, wanted, *words):
                found = getattr(self, how)(*words)
                if isinstance(wanted, str) and "…" in wanted:
                    assert re.fullmatch(".*".join(map(re.escape, wanted.split("…"))), found, re.DOTALL), found
                else:
                    assert found == wanted

    def on_a_terminal(self) -> None:
        """Make standard output look like a terminal from now on."""
        self._monkeypatch.setattr(click.testing._NamedTextIOWrapper, "isatty", lambda stream: True)
        self._monkeypatch.setenv("COLUMNS", "40")
        self._monkeypatch.setenv("TERM", "xterm")
        self._monkeypatch.setenv("NO_COLOR", "1")


@contextlib.contextmanager
def commands(files: Any, monkeypatch: pytest.MonkeyPatch, *, read_only: bool = False) -> Iterator[Command]:
    """Serve a backend for commands, as if it were mounted on `MOUNT`."""
    with serving(files, read_only=read_only) as server:
        monkeypatch.setattr(rendezvous, "split", split)
        monkeypatch.setattr(target, "open_client", lambda mountpoint: ClientOf(server))
        monkeypatch.setattr(target, "mountpoints", lambda: [MOUNT])
        yield Command(files, monkeypatch)


def split(path: str | os.PathLike[str], *, follow: bool = False) -> tuple[str, str]:
    """Do `rendezvous.split` by name alone, without a mount."""
    text, real = os.path.abspath(path), os.path.realpath(path)
    if follow and (real == MOUNT or real.startswith(MOUNT + "/")):
        text = real
    if text != MOUNT and not text.startswith(MOUNT + "/"):
        raise MountError(errno.EINVAL, f"'{path}' lies in no mount of fusebackend")
    return MOUNT, text[len(MOUNT) :] or "/"
