"""`Target`: the mount of a path of the command line, and the agent's path in it.

Without `--mount` a path is one of the file system, and must lie in a mount of ours. With `--mount DIR` it is the
agent's own name for a file of the mount that DIR lies in. A path is never taken for the other kind: a misspelt
`/mnt/agnt/x` must not become a file of that name inside the only mount there is.

Answers speak of the agent's paths; `Target.shown` says them in the words of the command line.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import click
from click.shell_completion import CompletionItem

from fusebackend.base import errors, paths
from fusebackend.base.paths import ROOT, AgentPath, PathError
from fusebackend.base.shown import shown
from fusebackend.cli.show import Failed

if TYPE_CHECKING:
    from fusebackend.control.client.client import Client
    from fusebackend.protocol import BranchInfo, MountProtocol, StatResult, ViewInfo

F = TypeVar("F", bound=Callable[..., Any])

Named = TypeVar("Named", "BranchInfo", "ViewInfo")

Complete: TypeAlias = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

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
        given: as the command line has it; empty for the current directory without an argument.
        root: shown before paths outside of this one: the mount point, or nothing with `--mount`.
    """

    files: Client
    path: AgentPath
    given: str
    root: str

    def shown(self, path: str) -> str:
        """A path of an answer in the words of the command line: paths below this one begin as it was given."""
        inner = path.rstrip("/")
        if inner == self.path.rstrip("/"):
            return self.given or "."
        if not paths.is_below(inner, self.path):
            return self.root + path
        rest = path[len(self.path.rstrip("/")) :]
        return self.given.rstrip("/") + rest if self.given else rest[1:]

    def below(self, name: str) -> Target:
        """Return the target `name` in this directory."""
        path = paths.join(self.path, name)
        return Target(self.files, AgentPath(path), self.shown(path), self.root)

    @property
    def is_hidden(self) -> bool:
        return self.path.rpartition("/")[2].startswith(".")

    def stats(self) -> list[StatResult]:
        """Return the entries of this directory. Raises `Failed`."""
        answer = self.files.stats(self.path)
        self.require(answer.error)
        return answer.entries or []

    def require(self, error: str | None) -> None:
        """Raise `Failed` for the error of a record about this path, if there is one."""
        if error is not None:
            raise Failed(self.words(error))

    def words(self, error: str) -> str:
        """The error of a record about this path, in the words of the command line."""
        shown = self.shown(self.path)
        text = in_words(error).replace(f"'{self.path}'", f"'{shown}'")
        text = text if shown in text else f"'{shown}': {text}"
        if error == errors.FILE_NOT_FOUND and not self.root and self.files.is_mounted:
            top = self.files.mountpoint
            if paths.is_below(self.given, top):  # a path of the file system, where one of agents is asked for
                agents = self.given[len(top) :] or ROOT
                text += f"; with --mount or FUSEBACKEND_MOUNT it is '{agents}', as agents have it"
        return text

    def stat(self, *, follow: bool = True) -> StatResult:
        """Return its attributes. Raises `Failed` when there are none, as when it is not there."""
        return self.checked(self.files.stat(self.path, follow=follow))

    def kind(self, *, follow: bool = True) -> str | None:
        """`StatResult.type`, or None when it is not there."""
        found = self.files.stat(self.path, follow=follow)
        if found.code == errors.FILE_NOT_FOUND:
            return None
        return self.checked(found).type

    def checked(self, found: StatResult) -> StatResult:
        """Return what was found at this path. Raises `Failed` for an error."""
        self.require(errors.FILE_NOT_FOUND if found.code == errors.FILE_NOT_FOUND else found.error)
        return found


def locate(given: str, mount: str | None, *, follow: bool = True) -> Target:
    """The target that a path of the command line means.

    Args:
        given: the path.
        mount: of `--mount`.
        follow: follow the path's last segment if it is a symbolic link. Those before it always are.

    Raises:
        Failed: it lies in no mount, or can't be an agent's path.
    """
    if not given or mount == "":
        raise Failed("a path is empty")
    if mount is not None:
        mountpoint = _place(mount)
        try:
            return Target(_client(mountpoint), paths.normalise(given), given, "")
        except PathError as error:
            raise Failed(str(error)) from None
    mountpoint, path = _split(given, follow)
    return Target(_client(mountpoint), AgentPath(path), given, mountpoint.rstrip("/"))


def require_mount(place: Target, files: MountProtocol) -> None:
    """Raise `Failed` for a path of another mount than that of the paths before it."""
    if place.files is not files:
        raise Failed(f"'{place.given}' lies in another mount than the paths before it")


def together(given: Sequence[str], mount: str | None) -> tuple[Target, list[AgentPath]]:
    """The first of paths of the command line, which lie in one mount, and the agent's paths, which need not exist.

    Without paths it is the current directory, or the root of the only mount there is. Raises `Failed`.
    """
    places = [locate(each, mount, follow=False) for each in given]
    first = places[0] if places else here(mount)
    for place in places:
        require_mount(place, first.files)
    return first, [place.path for place in places]


def here(mount: str | None, how: str = "with --mount") -> Target:
    """The target when no path is given: the current directory, if it lies in a mount; else the root of the only one.

    Args:
        mount: of `--mount`.
        how: how the command takes a mount, for the error where there are several.

    Raises:
        Failed: there is no such mount, or more than one.
    """
    from fusebackend.control import rendezvous
    from fusebackend.linux.mount_table import MountError

    if mount is not None:
        return locate(ROOT, mount)
    try:
        mountpoint, path = rendezvous.split(os.getcwd())
        return Target(_client(mountpoint), AgentPath(path), "", mountpoint.rstrip("/"))
    except (MountError, FileNotFoundError):
        mounted = mountpoints()
    places = mounted or [each.socket for each in rendezvous.served()]
    if not places:
        raise Failed("nothing is mounted; 'fusebackend mount' does that")
    if len(places) > 1:
        several = "several mounts are there" if mounted else "several are served"
        raise Failed(f"{several}: {', '.join(places)}; say which one {how}")
    top = places[0] if mounted else ""
    return Target(_client(places[0]), ROOT, top, top.rstrip("/"))


def base_name(given: str) -> str:
    """The last name of a path of the command line; empty when it has none of its own (`/`, `.`, `a/..`)."""
    name = os.path.basename(given.rstrip("/"))
    return "" if name in (".", "..") else name


def find(what: str, name: str, known: Iterable[Named]) -> Named:
    """Return the branch or the view of a name. Raises `Failed` if there is none."""
    found = {each.name: each for each in known}
    if name not in found:
        raise Failed(f"there is no {what} '{name}'; there are: {', '.join(found) or 'none at all'}")
    return found[name]


def mountpoints() -> list[str]:
    from fusebackend.linux import mount_table as table

    return [entry.mountpoint for entry in table.our_mounts()]


def _split(given: str, follow: bool) -> tuple[str, str]:
    """A path of the file system as mount point and agent path. Raises `Failed`."""
    from fusebackend.control import rendezvous
    from fusebackend.linux.mount_table import MountError

    try:
        return rendezvous.split(given, follow=follow)
    except MountError as error:
        if error.errno == errno.ETIMEDOUT:
            raise Failed(str(error)) from None
        mounted = mountpoints()
    outside = f"'{given}' lies in no mount of fusebackend"
    if not mounted:
        raise Failed(f"{outside}; nothing is mounted")
    raise Failed(f"{outside} (mounted: {', '.join(mounted)}; with --mount DIR, paths are those that agents use)")


def _place(mount: str) -> str:
    """The mount that `--mount` names: by a path in it, or by its socket or configuration. Raises `Failed`."""
    from fusebackend.control import rendezvous
    from fusebackend.linux.mount_table import MountError

    try:
        return rendezvous.place_of(mount)[0]
    except MountError as error:
        if os.path.isfile(mount):
            raise Failed(f"'{mount}': {error.strerror}") from None
        if not os.path.lexists(mount):
            there = ", ".join(mountpoints())
            raise Failed(f"{error.strerror}; {f'mounted: {there}' if there else 'nothing is mounted'}") from None
        return _split(mount, follow=True)[0]


def outside(files: MountProtocol, path: str) -> str:
    """Return an agent's path as processes have it; as it is where nothing is mounted."""
    return files.mountpoint.rstrip("/") + path if files.is_mounted else path


def find_branch(files: MountProtocol, name: str) -> BranchInfo:
    """Return the branch of a name. Raises `Failed` if there is none, or it can't be used."""
    return usable(find("branch", name, files.branches()))


def usable(branch: BranchInfo) -> BranchInfo:
    """Return a branch. Raises `Failed` if it can't be used."""
    if branch.error is not None:
        raise Failed(f"branch '{branch.name}' can't be used: {branch.error}")
    return branch


def directory_of(files: MountProtocol, branch: BranchInfo) -> str:
    """Return the directory of a branch, as processes have it."""
    return branch.directory or outside(files, branch.path)


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
    from fusebackend.control import rendezvous
    from fusebackend.control.client.client import Client

    # The socket of a view says itself what its clients see; elsewhere it is everything.
    place, is_mounted = rendezvous.place_of(mountpoint)
    says = not is_mounted and rendezvous.is_socket(place) and rendezvous.find_served(place) is None
    return Client(place, view=None if says else "")


# -- completion ------------------------------------------------------------------------------------------------
#
# For click. An error completes to nothing: it would be printed into the line that the user is typing.


def complete_path(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a path: an agent's where there is a `--mount`, else one of the file system."""
    mount = context.params.get("mount")
    if mount is None:
        return [CompletionItem(incomplete, type="file")]
    with contextlib.suppress(Failed, OSError, ValueError), locate("/", mount).files as files:
        found = _names(files, incomplete)
        if len(found) == 1 and found[0].endswith("/"):  # or the shell would put a space after the directory
            found += _names(files, found[0])
        return [CompletionItem(name) for name in found]
    return []


def _names(files: Client, incomplete: str) -> list[str]:
    """List the names in the directory of `incomplete` that begin like it; without a `/` if it has none."""
    absolute = incomplete if incomplete.startswith("/") else "/" + incomplete
    entries = files.ls(absolute.rpartition("/")[0] + "/").entries or []
    added = len(absolute) - len(incomplete)
    return [entry["path"][added:] for entry in entries if entry["path"].startswith(absolute)]


def completing(names: Callable[[Client], Iterable[tuple[str, str | None]]]) -> Complete:
    """Complete one of the names that a mount has, each with a help text or None."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        with contextlib.suppress(Failed, OSError, ValueError, RuntimeError):
            return [
                CompletionItem(name, help=None if text is None else shown(text))
                for name, text in names(here(context.params.get("mount")).files)
                if name.startswith(incomplete)
            ]
        return []

    return complete


def or_path(*names: Complete) -> Complete:
    """Complete one of several kinds of names, which have no '/', or a path."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        kinds = [complete_path] if "/" in incomplete else [*names, complete_path]
        return [item for each in kinds for item in each(context, parameter, incomplete)]

    return complete


def complete_mountpoint(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a mount point of this program; directories if there is none."""
    found = [place for place in mountpoints() if place.startswith(incomplete)]
    return [CompletionItem(place) for place in found] or [CompletionItem(incomplete, type="dir")]


def complete_url(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the scheme of a URL, or the file of a scheme that takes a path."""
    from fusebackend.urls import SCHEMES

    name, colon, rest = incomplete.partition(":")
    if not colon:
        return [CompletionItem(f"{known}:") for known in SCHEMES if known.startswith(name)]
    if name not in SCHEMES or SCHEMES[name].takes != "path":
        return []
    return [CompletionItem(f"{name}:{path}") for path in _local(rest)]


def complete_route(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete PREFIX=URL."""
    prefix, equals, given = incomplete.partition("=")
    urls = complete_url(context, parameter, given) if equals else []
    return [CompletionItem(f"{prefix}={each.value}") for each in urls]


def complete_volume(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the file of a volume, or its URL."""
    if incomplete.startswith("sqlite:"):
        return complete_url(context, parameter, incomplete)
    return [CompletionItem(incomplete, type="file")]


def complete_words(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete `-o`: the last of several words with commas between."""
    from fusebackend.config import words_known

    before, comma, last = incomplete.rpartition(",")
    known = [word.replace("TIME", "").replace("NAME", "") for word in words_known()]
    return [CompletionItem(f"{before}{comma}{word}") for word in known if word.startswith(last)]


def _local(incomplete: str) -> list[str]:
    """List files and directories of this machine, directories with a '/' at the end."""
    directory, name = os.path.split(incomplete)
    with contextlib.suppress(OSError), os.scandir(os.path.expanduser(directory) or ".") as entries:
        found = [(entry.name, entry.is_dir()) for entry in entries if entry.name.startswith(name)]
        return sorted(os.path.join(directory, name) + ("/" if is_dir else "") for name, is_dir in found)
    return []


# -- options ---------------------------------------------------------------------------------------------------

mount_option = click.option(
    "--mount",
    "mount",
    envvar="FUSEBACKEND_MOUNT",
    shell_complete=complete_mountpoint,
    metavar="DIR",
    help="Paths are those that agents use in the mount on DIR, such as /notes.md. DIR may be a view's socket, or "
    "the socket or configuration of what 'serve' serves. FUSEBACKEND_MOUNT says the same.",
)


def on_mount(command: F) -> F:
    """Give a command about a whole mount `--mount`, and the files of that mount (`here`) as its first argument."""

    @mount_option
    @functools.wraps(command)
    def found(mount: str | None, **given: Any) -> Any:
        return command(here(mount).files, **given)

    return cast("F", found)


if_version_option = click.option(
    "--if-version",
    metavar="VERSION",
    help="Only if the file still has this version, as 'fusebackend stat' says it; otherwise nothing is changed.",
)
