"""`fusebackend upload` and `download`: copy files and trees into a mount, and out of it.

Upload: the local files are listed first, then sent, each if the mount has nothing of its name: small files together,
large ones in pieces. Only bytes are copied, because the agent face stores nothing else: no modes, times or links.

Download: each file is written under a name of its own in the directory where it belongs, and gets its right one when it
is complete. Names come from the writers of the files, so each is checked: none may lead out of the local directory.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import secrets
import stat as stat_module
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import IO

import click

from fusebackend.base.batches import by_size
from fusebackend.base.errors import LACKING
from fusebackend.cli import target
from fusebackend.cli.progress import Advance, progress
from fusebackend.cli.show import Complaints, Failed, Output, json_option
from fusebackend.cli.target import Target, base_name, complete_path, mount_option
from fusebackend.protocol import StatResult
from fusebackend.protocol.records import FILE_TYPES

SENT_BYTES, SENT_FILES = 512 << 10, 256
"""How much is sent at once; a file that is larger than `SENT_BYTES` goes by itself, in pieces."""

PIECE_BYTES = 512 << 10

FETCHED_BYTES, FETCHED_FILES = 16 << 20, 100
"""How many files are asked for at once, and of how many bytes if there are several. A request for each would take most
of the time of small ones."""

FILE_MODE = 0o644
"""For files of backends that keep no modes."""

EMPTY = "empty"
"""The type of a directory with nothing in it, where directories are not copied."""

LEFT_OUT: dict[str | None, str] = {"symlink": "a symbolic link", EMPTY: "an empty directory"}
"""Why a file of a type is left out."""


@dataclass
class FileCopy:
    """A file to be copied, from this machine or to it.

    Attributes:
        local: its path on this machine.
        place: where it is in the mount.
        size: in bytes, when it was listed.
        mode: which it gets on this machine.
    """

    local: str
    place: Target
    size: int
    mode: int = FILE_MODE

    @property
    def path(self) -> str:
        """Where it is in the mount, in the words of the command line."""
        return self.place.shown(self.place.path)


@dataclass
class Copies:
    """The files to be copied.

    Attributes:
        sides: the side that they come from, and the one that they go to, by the attributes of `FileCopy`.
        entries: lists a directory of the one side, each entry with its type (`StatResult.type`).
        complaints: get what can't be looked at.
        directories: that were listed, each before those in it.
        skipped: files that are not copied, with the reason.
    """

    sides: tuple[str, str]
    entries: Callable[[FileCopy, Complaints], Iterator[tuple[FileCopy, str | None]]]
    complaints: Complaints
    items: list[FileCopy] = field(default_factory=list)
    directories: list[FileCopy] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    goals: set[str] = field(default_factory=set)

    def add_named(self, item: FileCopy, kind: str | None, refusal: str) -> None:
        """Plan for something that was named. Raises `Failed`, with the refusal if it can't be copied."""
        if kind == "directory":
            self.add_tree(item)
        elif kind == "file":
            self.add(item)
        else:
            raise Failed(refusal)

    def add(self, item: FileCopy) -> None:
        """Raises `Failed` when something else is to go to the same place."""
        source, goal = (getattr(item, side) for side in self.sides)
        if goal in self.goals:
            raise Failed(f"'{source}' would go to '{goal}', as another one does")
        self.goals.add(goal)
        self.items.append(item)

    def add_tree(self, top: FileCopy) -> None:
        """Plan for all that is in a directory."""
        left = [top]
        while left:
            directory = left.pop()
            below: list[FileCopy] = []
            with self.complaints:
                for item, kind in self.entries(directory, self.complaints):
                    with self.complaints:
                        if kind == "directory":
                            below.append(item)
                        elif kind == "file":
                            self.add(item)
                        else:
                            reason = LEFT_OUT.get(kind, "a special file")
                            self.skipped.append((getattr(item, self.sides[0]), reason))
                self.directories.append(directory)
            left += reversed(below)

    def report(self, copied: Sequence[tuple[FileCopy, int]], output: Output) -> None:
        """Report what was copied, with its size, as JSON; or what was left out, with the reason."""
        files = [{**{side: getattr(item, side) for side in self.sides}, "size": size} for item, size in copied]
        left = [{self.sides[0]: name, "reason": reason} for name, reason in self.skipped]
        output.document({"files": files, "skipped": left})
        for name, reason in self.skipped:
            output.note(f"left out '{name}': {reason}")


# -- upload -----------------------------------------------------------------------------------------------------


@click.command()
@click.argument("sources", nargs=-1, required=True, type=click.Path(), metavar="LOCAL...")
@click.argument("destination", shell_complete=complete_path)
@click.option("--force", is_flag=True, help="Replace files that are there.")
@json_option("{files: [{local, path, size}], skipped: [{local, reason}]}.")
@mount_option
def upload(sources: Sequence[str], destination: str, force: bool, output: Output, mount: str | None) -> None:
    """Copy local files and directories to DESTINATION in a mount, or into it if it is a directory or ends with '/'.

    Bytes are copied, but not modes and times. Symbolic links, special files and empty directories are left out and
    reported; cp(1) copies them through the mount. A file that is there already is refused without --force. The exit
    status is 1 if a file could not be copied.
    """
    complaints = Complaints()
    goal = target.locate(destination, mount)
    kind = goal.kind()
    into = kind == "directory" or destination.endswith("/") or len(sources) > 1
    if into and kind not in (None, "directory"):
        raise Failed(f"'{destination}' is not a directory")
    plan = Copies(("local", "path"), _local_entries, complaints)
    for local in sources:
        with complaints:
            name = base_name(local)
            item, found = _local(local, goal.below(name) if into and name else goal, follow=True)
            plan.add_named(item, found, f"'{local}' is neither a file nor a directory")
    copied: list[tuple[FileCopy, int]] = []
    with progress("uploading", sum(item.size for item in plan.items), quiet=output.json) as advance:
        for batch in by_size(plan.items, attrgetter("size"), SENT_FILES, SENT_BYTES):
            copied += _send(batch, force or kind is None, advance, complaints)
    plan.report(copied, output)
    complaints.finish()


def _local(local: str, place: Target, *, follow: bool) -> tuple[FileCopy, str | None]:
    """Look at a file of this machine. Raises `OSError`."""
    found = os.stat(local, follow_symlinks=follow)
    return FileCopy(local, place, found.st_size), FILE_TYPES.get(stat_module.S_IFMT(found.st_mode))


def _local_entries(directory: FileCopy, complaints: Complaints) -> Iterator[tuple[FileCopy, str | None]]:
    names = sorted(os.listdir(directory.local), key=os.fsencode)
    if not names:
        yield directory, EMPTY
    for name in names:
        with complaints:
            yield _local(os.path.join(directory.local, name), directory.place.below(name), follow=False)


def _send(batch: list[FileCopy], force: bool, advance: Advance, complaints: Complaints) -> list[tuple[FileCopy, int]]:
    """Send files, without `force` those that replace nothing; returns those that were sent, with their sizes."""
    files = batch[0].place.files
    sent: list[tuple[FileCopy, int]] = []
    contents: list[tuple[FileCopy, bytes]] = []
    for item in batch:
        with complaints, open(item.local, "rb") as file:
            if not force and item.place.kind(follow=False) is not None:
                advance(item.size)
                raise Failed(f"'{item.path}' exists; --force replaces it")
            if item.size > SENT_BYTES:
                item.place.require(files.send(item.place.path, _pieces(file, advance)).error)
                sent.append((item, item.size))
            else:
                contents.append((item, file.read()))
    answers = files.upload_files([(item.place.path, content) for item, content in contents])
    for (item, content), answer in zip(contents, answers, strict=True):
        with complaints:
            advance(len(content))
            item.place.require(answer.error)
            sent.append((item, item.size))
    return sent


def _pieces(file: IO[bytes], advance: Advance) -> Iterator[bytes]:
    while piece := file.read(PIECE_BYTES):
        yield piece
        advance(len(piece))


# -- download ---------------------------------------------------------------------------------------------------


@click.command()
@click.argument("sources", nargs=-1, required=True, shell_complete=complete_path, metavar="SOURCE...")
@click.argument("destination", type=click.Path(), metavar="LOCAL")
@click.option("--force", is_flag=True, help="Replace files that are there.")
@json_option("{files: [{path, local, size}], skipped: [{path, reason}]}.")
@mount_option
def download(sources: Sequence[str], destination: str, force: bool, output: Output, mount: str | None) -> None:
    """Copy files and directories of a mount to LOCAL, or into it if it is a directory or ends with '/'.

    Symbolic links and special files in a directory are left out and reported; cp(1) copies them through the mount. A
    file that is there already is refused without --force. No file is ever half there: a download that is broken off
    leaves nothing of the file it was at. The exit status is 1 if a file could not be copied.
    """
    complaints = Complaints()
    if not destination:
        raise Failed("LOCAL is empty")
    into = os.path.isdir(destination) or destination.endswith("/") or len(sources) > 1
    if into and os.path.exists(destination.rstrip("/") or "/") and not os.path.isdir(destination):
        raise Failed(f"'{destination}' is not a directory")
    plan = Copies(("path", "local"), _remote_entries, complaints)
    for given in sources:
        with complaints:
            name = base_name(given)
            source = target.locate(given, mount)
            found = source.stat()
            item = _remote(source, os.path.join(destination, name) if into and name else destination, found)
            plan.add_named(item, found.type, f"'{given}' is a {found.type}, and neither a file nor a directory")
    copied: list[tuple[FileCopy, int]] = []
    if into:
        os.makedirs(destination, exist_ok=True)
    for directory in plan.directories:
        with complaints:
            os.makedirs(directory.local, exist_ok=True)
    with progress("downloading", sum(item.size for item in plan.items), quiet=output.json) as advance:
        for _, of_mount in itertools.groupby(plan.items, lambda item: id(item.place.files)):
            for batch in by_size(of_mount, attrgetter("size"), FETCHED_FILES, FETCHED_BYTES):
                copied += _fetch(batch, force, advance, complaints)
    plan.report(copied, output)
    complaints.finish()


def _remote(place: Target, local: str, found: StatResult) -> FileCopy:
    return FileCopy(local, place, found.size or 0, FILE_MODE if found.mode is None else found.mode)


def _remote_entries(directory: FileCopy, complaints: Complaints) -> Iterator[tuple[FileCopy, str | None]]:
    for found in directory.place.stats():
        with complaints:
            name = name_in(directory.place.path, found.path or "")
            child = directory.place.below(name)
            yield _remote(child, os.path.join(directory.local, name), child.checked(found)), found.type


def name_in(directory: str, path: str) -> str:
    """The name of an entry of a directory. Raises `Failed` for a name that might lead elsewhere."""
    beginning = directory.rstrip("/") + "/"
    name = path.removeprefix(beginning).removesuffix("/")
    if not path.startswith(beginning) or name in ("", ".", "..") or "/" in name or "\0" in name:
        raise Failed(f"'{path}' is no name in '{directory}', and is not copied")
    return name


def _fetch(batch: list[FileCopy], force: bool, advance: Advance, complaints: Complaints) -> list[tuple[FileCopy, int]]:
    """Copy files; returns those that could be copied, with their sizes."""
    copied: list[tuple[FileCopy, int]] = []
    with contextlib.ExitStack() as stack:
        begun: list[tuple[FileCopy, IO[bytes]]] = []
        failures: dict[int, OSError] = {}
        for item in batch:
            with complaints:
                _require_free(item.local, force)
                begun.append((item, stack.enter_context(_unfinished(item))))

        def take(index: int, piece: bytes) -> None:
            advance(len(piece))
            if index not in failures:
                try:
                    begun[index][1].write(piece)
                except OSError as error:
                    failures[index] = error

        answers = batch[0].place.files.fetch([item.place.path for item, _ in begun], take)
        for index, ((item, file), answer) in enumerate(zip(begun, answers, strict=True)):
            with complaints:
                item.place.require(answer.error)
                if index in failures:
                    raise failures[index]
                file.flush()
                size = file.tell()
                _put_in_place(file.name, item.local, force)
                copied.append((item, size))
    return copied


def _require_free(local: str, force: bool) -> None:
    """Raises `Failed` when a file can't get this name."""
    if os.path.isdir(local):
        raise Failed(f"'{local}' is a directory")
    if not force and os.path.lexists(local):
        raise Failed(f"'{local}' exists; --force replaces it")


@contextlib.contextmanager
def _unfinished(item: FileCopy) -> Iterator[IO[bytes]]:
    """A new file beside the local one of a copy, with its mode. It is gone at the end unless it was renamed."""
    directory = os.path.dirname(item.local) or "."
    if not os.path.isdir(directory):
        raise Failed(f"'{directory}' is not a directory, so '{os.path.basename(item.local)}' can't be put there")
    path = os.path.join(directory, f".fusebackend-{secrets.token_hex(8)}")
    try:  # before there is such a file: Ctrl-C may come at any time
        with open(path, "xb", opener=lambda name, flags: os.open(name, flags, item.mode & 0o777)) as file:
            yield file
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def _put_in_place(temporary: str, local: str, force: bool) -> None:
    """Give a file its name; without `force` only if nothing has that name. Raises `Failed`, `OSError`."""
    if not force:
        try:
            os.link(temporary, local)  # unlike rename(2), it replaces nothing
            return
        except FileExistsError:
            raise Failed(f"'{local}' exists; --force replaces it") from None
        except OSError as error:
            if error.errno not in LACKING | {errno.EPERM, errno.EMLINK}:
                raise
            _require_free(local, force)  # a file system without hard links
    os.replace(temporary, local)
