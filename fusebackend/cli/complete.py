"""Shell completion: paths of agents, by asking the mount; mount points, URLs and `-o` words; other paths by the shell.

Whatever goes wrong completes to nothing: an error would be printed into the line that somebody is typing.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from click.shell_completion import CompletionItem

from fusebackend.cli import target
from fusebackend.cli.show import Failed

if TYPE_CHECKING:
    from fusebackend.control.client.client import Client


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
    """Completions of a mount point: where something of ours is mounted; else directories, which the shell names."""
    found = [place for place in target.mountpoints() if place.startswith(incomplete)]
    return [CompletionItem(place) for place in found] or [CompletionItem(incomplete, type="dir")]


def url(incomplete: str, before: str = "") -> list[CompletionItem]:
    """Completions of a URL that follows `before`: the schemes, or the files of a scheme that takes a path."""
    from fusebackend.urls.registry import SCHEMES

    name, colon, rest = incomplete.partition(":")
    if not colon:
        return [CompletionItem(f"{before}{known}:") for known in SCHEMES if known.startswith(name)]
    if name not in SCHEMES or SCHEMES[name].takes != "path":
        return []
    return [CompletionItem(f"{before}{name}:{path}") for path in _local(rest)]


def route(incomplete: str) -> list[CompletionItem]:
    """Completions of PREFIX=URL."""
    prefix, equals, given = incomplete.partition("=")
    return url(given, f"{prefix}=") if equals else []


def volume(incomplete: str) -> list[CompletionItem]:
    """Completions of what `check` takes: the file of a volume, or its URL."""
    if incomplete.startswith("sqlite:"):
        return url(incomplete)
    return [CompletionItem(incomplete, type="file")]


def words(incomplete: str) -> list[CompletionItem]:
    """Completions of `-o`: the last of several words with commas between."""
    from fusebackend.config import LIBFUSE_WORDS, OWN_WORDS

    before, comma, last = incomplete.rpartition(",")
    known = [word.replace("TIME", "") for word in (*OWN_WORDS, *LIBFUSE_WORDS)]
    return [CompletionItem(f"{before}{comma}{word}") for word in known if word.startswith(last)]


def _local(incomplete: str) -> list[str]:
    """Files and directories of this machine, the latter with a '/' at the end."""
    directory, name = os.path.split(incomplete)
    with contextlib.suppress(OSError), os.scandir(os.path.expanduser(directory) or ".") as entries:
        found = [(entry.name, entry.is_dir()) for entry in entries if entry.name.startswith(name)]
        return sorted(os.path.join(directory, name) + ("/" if is_dir else "") for name, is_dir in found)
    return []
