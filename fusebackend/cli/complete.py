"""Shell completion of paths: those of the file system by the shell itself, those of agents by asking the mount.

Whatever goes wrong completes to nothing: an error would be printed into the line that somebody is typing.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from click.shell_completion import CompletionItem

from fusebackend.cli import target
from fusebackend.cli.show import Failed

if TYPE_CHECKING:
    from fusebackend.control.client import Client


def path(mount: str | None, incomplete: str) -> list[CompletionItem]:
    """Completions of a path: an agent's where there is a `--mount`."""
    if mount is None:
        return [CompletionItem(incomplete, type="file")]
    with contextlib.suppress(Failed, OSError, ValueError), target.locate("/", mount).files as files:
        found = _names(files, incomplete)
        if len(found) == 1 and found[0].endswith("/"):  # or the shell would put a space after the directory
            found += _names(files, found[0])
        return [CompletionItem(name) for name in found]
    return []


def _names(files: Client, incomplete: str) -> list[str]:
    """What is in the directory that `incomplete` ends in, as far as it begins so; without a `/` if that has none."""
    absolute = incomplete if incomplete.startswith("/") else "/" + incomplete
    entries = files.ls(absolute.rpartition("/")[0] + "/").entries or []
    added = len(absolute) - len(incomplete)
    return [entry["path"][added:] for entry in entries if entry["path"].startswith(absolute)]


def mountpoint(incomplete: str) -> list[CompletionItem]:
    """Completions of `--mount`: where something of ours is mounted; otherwise directories, for the shell to name."""
    found = [place for place in target.mountpoints() if place.startswith(incomplete)]
    return [CompletionItem(place) for place in found] or [CompletionItem(incomplete, type="dir")]
