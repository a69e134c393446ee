"""`Target`: which mount a path of the command line lies in, and what an agent calls it there.

Without `--mount` a path is one of the file system, and must lie in a mount of ours. With `--mount DIR` it is the
agent's own name for a file of the mount that DIR lies in. A path is never taken for the other kind: a misspelt
`/mnt/agnt/x` must not become a file of that name inside the only mount there is.

Answers speak of the agent's paths; `Target.shown` says them in the words of the command line.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fusebackend.base import errors, paths
from fusebackend.base.paths import ROOT, AgentPath, PathError
from fusebackend.cli.show import Failed

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from fusebackend.control.client.client import Client
    from fusebackend.protocol import StatResult

F = TypeVar("F", bound=Callable[..., Any])

_CLIENTS = "fusebackend.clients"
"""Where a click context keeps the clients it has opened, by mount point."""

_WORDS = {
    errors.FILE_NOT_FOUND: "No such file or directory",
    errors.PERMISSION_DENIED: "Permission denied",
    errors.IS_DIRECTORY: "Is a directory",
    errors.INVALID_PATH: "No regular file, or no path that can be used",
    "path_not_found": "No such file or directory",
    "not_a_directory": "Not a directory",
}
"""Error codes, for people."""


def in_words(error: str) -> str:
    """The error of a record for a user: words for a code, which may follow a colon."""
    text = error.removeprefix("Error: ").removeprefix("Error ")
    head, colon, code = text.rpartition(": ")
    return f"{head}{colon}{_WORDS.get(code, code)}"


@dataclass(frozen=True)
class Target:
    """A path of a mount.

    Attributes:
        files: the mount's files.
        path: the agent's name for it.
        given: as the command line has it; empty for a current directory that nobody named.
        root: what a path outside of this one is shown below: the mount point, or nothing with `--mount`.
    """

    files: Client
    path: AgentPath
    given: str
    root: str

    def shown(self, path: str) -> str:
        """A path of an answer in the words of the command line: what lies below this one begins as it was given."""
        inner = path.rstrip("/")
        if inner == self.path.rstrip("/"):
            return self.given or "."
        if not paths.is_below(inner, self.path):
            return self.root + path
        rest = path[len(self.path.rstrip("/")) :]
        return self.given.rstrip("/") + rest if self.given else rest[1:]

    def below(self, name: str) -> Target:
        """What is called `name` in the directory that this is."""
        path = paths.join(self.path, name)
        return Target(self.files, AgentPath(path), self.shown(path), self.root)

    @property
    def is_hidden(self) -> bool:
        return self.path.rpartition("/")[2].startswith(".")

    def stats(self) -> list[StatResult]:
        """What is in this directory. Raises `Failed`."""
        answer = self.files.stats(self.path)
        if answer.error is not None:
            raise Failed(self.words(answer.error))
        return answer.entries or []

    def words(self, error: str) -> str:
        """The error of a record about this path, in the words of the command line."""
        shown = self.shown(self.path)
        text = in_words(error).replace(f"'{self.path}'", f"'{shown}'")
        return text if shown in text else f"'{shown}': {text}"

    def stat(self, *, follow: bool = True) -> StatResult:
        """What it is. Raises `Failed` when that can't be told, as when it is not there."""
        found = self.files.stat(self.path, follow=follow)
        if found.error is not None:
            raise self.failed(found)
        return found

    def kind(self, *, follow: bool = True) -> str | None:
        """`StatResult.type`, or None when it is not there."""
        found = self.files.stat(self.path, follow=follow)
        if found.code == errors.FILE_NOT_FOUND:
            return None
        if found.error is not None:
            raise self.failed(found)
        return found.type

    def failed(self, found: StatResult) -> Failed:
        """The error of a record about this path."""
        missing = found.code == errors.FILE_NOT_FOUND
        return Failed(self.words(errors.FILE_NOT_FOUND if missing else str(found.error)))


def locate(given: str, mount: str | None, *, follow: bool = True) -> Target:
    """The target that a path of the command line means.

    Args:
        given: the path.
        mount: of `--mount`.
        follow: is the path's last segment followed, if it is a symbolic link? Those before it always are.

    Raises:
        Failed: it lies in no mount, or can't be an agent's path.
    """
    if not given or mount == "":
        raise Failed("a path is empty")
    if mount is not None:
        mountpoint, _ = _split(mount, follow=True)
        try:
            return Target(_client(mountpoint), paths.normalise(given), given, "")
        except PathError as error:
            raise Failed(str(error)) from None
    mountpoint, path = _split(given, follow)
    return Target(_client(mountpoint), AgentPath(path), given, mountpoint.rstrip("/"))


def here(mount: str | None) -> Target:
    """The target when no path is given: the current directory, if it lies in a mount; else the root of the only one.

    Raises:
        Failed: there is no such mount, or more than one.
    """
    from fusebackend.control import rendezvous
    from fusebackend.linux.mount_error import MountError

    if mount is not None:
        return locate(ROOT, mount)
    try:
        mountpoint, path = rendezvous.split(os.getcwd())
        return Target(_client(mountpoint), AgentPath(path), "", mountpoint.rstrip("/"))
    except (MountError, FileNotFoundError):
        mounted = mountpoints()
    if len(mounted) == 1:
        return Target(_client(mounted[0]), ROOT, mounted[0], mounted[0].rstrip("/"))
    if not mounted:
        raise Failed("nothing is mounted; 'fusebackend mount' does that")
    raise Failed(f"several mounts are there: {', '.join(mounted)}; say which one with --mount")


def base_name(given: str) -> str:
    """The last name of a path of the command line; empty when it has none of its own (`/`, `.`, `a/..`)."""
    name = os.path.basename(given.rstrip("/"))
    return "" if name in (".", "..") else name


def mountpoints() -> list[str]:
    from fusebackend.linux import mount_table as table

    return [entry.mountpoint for entry in table.our_mounts()]


def _split(given: str, follow: bool) -> tuple[str, str]:
    """A path of the file system as mount point and agent path. Raises `Failed`."""
    from fusebackend.control import rendezvous
    from fusebackend.linux.mount_error import MountError

    try:
        path = os.path.abspath(given)
    except FileNotFoundError:
        raise Failed(f"'{given}' is relative, and the current directory has been deleted") from None
    try:
        return rendezvous.split(path, follow=follow)
    except MountError as error:
        if error.errno == errno.ETIMEDOUT:
            raise Failed(str(error)) from None
        mounted = mountpoints()
    if not mounted:
        raise Failed(f"'{given}' lies in no mount of fusebackend; nothing is mounted")
    hint = f"mounted: {', '.join(mounted)}; with --mount DIR, paths are those that agents use"
    raise Failed(f"'{given}' lies in no mount of fusebackend ({hint})")


def _client(mountpoint: str) -> Client:
    """The client of a mount, one for each command; it is closed when the command ends."""
    context = click.get_current_context(silent=True)
    if context is None:  # a shell asks for completions
        return open_client(mountpoint)
    clients: dict[str, Client] = context.meta.setdefault(_CLIENTS, {})
    if mountpoint not in clients:
        clients[mountpoint] = open_client(mountpoint)
        context.call_on_close(clients[mountpoint].close)
    return clients[mountpoint]


def open_client(mountpoint: str) -> Client:
    from fusebackend.control.client.client import Client

    return Client(mountpoint)


def complete_path(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """For click: what a path of a mount may go on with."""
    from fusebackend.cli import complete

    return complete.path(context.params.get("mount"), incomplete)


def completion(kind: str) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """For click: complete a value by this function of `cli/complete.py`, which is imported when a shell asks."""

    def complete_value(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from fusebackend.cli import complete

        found: list[CompletionItem] = getattr(complete, kind)(incomplete)
        return found

    return complete_value


def mount_option(function: F) -> F:
    """`--mount DIR`."""
    return click.option(
        "--mount",
        "mount",
        envvar="FUSEBACKEND_MOUNT",
        shell_complete=completion("mountpoint"),
        metavar="DIR",
        help="Paths are those that agents use in the mount on DIR, such as /notes.md. FUSEBACKEND_MOUNT says the same.",
    )(function)
