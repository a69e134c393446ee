"""`fusebackend download`: copy files and trees out of a mount.

Each file is written under a name of its own in the directory where it belongs, and gets its right one when it is
complete. Names come from the writers of the files, so each is checked: none may lead out of the local directory.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import secrets
import stat as stat_module
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import IO

import click

from fusebackend.base.batches import by_size
from fusebackend.base.errors import LACKING
from fusebackend.cli import target
from fusebackend.cli.progress import Advance, progress
from fusebackend.cli.show import Complaints, Failed, json_option, report_copies
from fusebackend.cli.target import Target, base_name, complete_path, mount_option
from fusebackend.protocol import StatResult

BATCH_FILES = 100
BATCH_BYTES = 16 << 20
"""How many files are asked for at once, and of how many bytes if there are several."""

FILE_MODE = 0o644
"""For files of backends that keep no modes."""


@dataclass
class Download:
    """A file of the mount, and where it is to go."""

    source: Target
    local: str
    size: int
    mode: int


@dataclass
class Downloads:
    """The files to be copied.

    Attributes:
        directories: to be made, each before what is in it.
        skipped: files that are not copied, with the reason.
    """

    items: list[Download] = field(default_factory=list)
    directories: list[str] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    locals: set[str] = field(default_factory=set)

    def add(self, source: Target, local: str, found: StatResult) -> None:
        """Raises `Failed` when something else is to go to the same place."""
        if local in self.locals:
            raise Failed(f"'{source.shown(source.path)}' would go to '{local}', as another one does")
        self.locals.add(local)
        mode = FILE_MODE if found.mode is None else found.mode
        self.items.append(Download(source, local, found.size or 0, mode))


@click.command()
@click.argument("sources", nargs=-1, required=True, shell_complete=complete_path, metavar="SOURCE...")
@click.argument("destination", type=click.Path(), metavar="LOCAL")
@click.option("--force", is_flag=True, help="Replace files that are there.")
@json_option("{files: [{path, local, size}], skipped: [{path, reason}]}.")
@mount_option
def download(sources: Sequence[str], destination: str, force: bool, as_json: bool, mount: str | None) -> None:
    """Copy files and directories of a mount to LOCAL, or into it if it is a directory or ends with '/'.

    Symbolic links and special files in a directory are left out and reported; cp(1) copies them through the mount. A
    file that is there already is refused without --force. No file is ever half there: a download that is broken off
    leaves nothing of the file it was at. The exit status is 1 if a file could not be copied.
    """
    complaints = Complaints()
    into = os.path.isdir(destination) or destination.endswith("/") or len(sources) > 1
    if into and os.path.exists(destination.rstrip("/") or "/") and not os.path.isdir(destination):
        raise Failed(f"'{destination}' is not a directory")
    plan = Downloads()
    for given in sources:
        with complaints:
            name = base_name(given)
            source = target.locate(given, mount)
            _add(plan, source, os.path.join(destination, name) if into and name else destination, complaints)
    copied: list[tuple[Download, int]] = []
    if into:
        os.makedirs(destination, exist_ok=True)
    for directory in plan.directories:
        with complaints:
            os.makedirs(directory, exist_ok=True)
    with progress("downloading", sum(item.size for item in plan.items), quiet=as_json) as advance:
        for batch in _batches(plan.items):
            copied += _fetch(batch, force, advance, complaints)
    files = [{"path": _shown(item), "local": item.local, "size": size} for item, size in copied]
    report_copies(files, "path", plan.skipped, as_json)
    complaints.finish()


def _shown(item: Download) -> str:
    return item.source.shown(item.source.path)


# --------------------------------------------------------------------------------------------------------------
# What there is
# --------------------------------------------------------------------------------------------------------------


def _add(plan: Downloads, source: Target, local: str, complaints: Complaints) -> None:
    """Plan for something that was named: a symbolic link is followed. Raises `Failed`."""
    found = source.stat()
    if found.type == "directory":
        _add_tree(plan, source, local, complaints)
    elif found.type == "file":
        plan.add(source, local, found)
    else:
        raise Failed(f"'{source.given}' is a {found.type}, and neither a file nor a directory")


def _add_tree(plan: Downloads, directory: Target, destination: str, complaints: Complaints) -> None:
    left = [(directory, destination)]
    while left:
        source, local = left.pop()
        entries: list[StatResult] = []
        with complaints:
            entries = source.stats()
            plan.directories.append(local)
        below: list[tuple[Target, str]] = []
        for found in entries:
            with complaints:
                name = name_in(source.path, found.path or "")
                child = source.below(name)
                if found.error is not None:
                    raise child.failed(found)
                if found.type == "directory":
                    below.append((child, os.path.join(local, name)))
                elif found.type == "file":
                    plan.add(child, os.path.join(local, name), found)
                else:
                    kind = "a symbolic link" if found.type == "symlink" else "a special file"
                    plan.skipped.append((child.shown(child.path), kind))
        left += reversed(below)


def name_in(directory: str, path: str) -> str:
    """The name of an entry of a directory. Raises `Failed` for a name that might lead elsewhere."""
    beginning = directory.rstrip("/") + "/"
    name = path.removeprefix(beginning).removesuffix("/")
    if not path.startswith(beginning) or name in ("", ".", "..") or "/" in name or "\0" in name:
        raise Failed(f"'{path}' is no name in '{directory}', and is not copied")
    return name


# --------------------------------------------------------------------------------------------------------------
# Fetching
# --------------------------------------------------------------------------------------------------------------


def _batches(items: Sequence[Download]) -> Iterator[list[Download]]:
    """Files that are asked for at once: a request for each would take most of the time of small ones."""
    for _, of_mount in itertools.groupby(items, lambda item: id(item.source.files)):
        yield from by_size(of_mount, attrgetter("size"), BATCH_FILES, BATCH_BYTES)


def _fetch(batch: list[Download], force: bool, advance: Advance, complaints: Complaints) -> list[tuple[Download, int]]:
    """Copy files; returns those that could be copied, with their sizes."""
    copied: list[tuple[Download, int]] = []
    with contextlib.ExitStack() as stack:
        begun: list[tuple[Download, IO[bytes]]] = []
        failures: dict[int, OSError] = {}
        for item in batch:
            with complaints:
                _require_free(item.local, force)
                begun.append((item, stack.enter_context(_unfinished(item.local))))
        if not begun:
            return []

        def take(index: int, piece: bytes) -> None:
            advance(len(piece))
            if index not in failures:
                try:
                    begun[index][1].write(piece)
                except OSError as error:
                    failures[index] = error

        answers = batch[0].source.files.fetch([item.source.path for item, _ in begun], take)
        for index, ((item, file), answer) in enumerate(zip(begun, answers, strict=True)):
            with complaints:
                if answer.error is not None:
                    raise Failed(item.source.words(answer.error))
                if index in failures:
                    raise failures[index]
                file.flush()
                os.fchmod(file.fileno(), stat_module.S_IMODE(item.mode) & 0o777 & ~_umask())
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
def _unfinished(local: str) -> Iterator[IO[bytes]]:
    """A new file beside `local`, which is gone at the end unless it was renamed."""
    directory = os.path.dirname(local) or "."
    if not os.path.isdir(directory):
        raise Failed(f"'{directory}' is not a directory, so '{os.path.basename(local)}' can't be put there")
    path = os.path.join(directory, f".fusebackend-{secrets.token_hex(8)}")
    try:  # before there is such a file: Ctrl-C may come at any time
        with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
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
            if os.path.lexists(local):  # a file system without hard links
                raise Failed(f"'{local}' exists; --force replaces it") from None
    os.replace(temporary, local)


def _umask() -> int:
    """This process's; there is no way to ask for it without setting it."""
    umask = os.umask(0o077)
    os.umask(umask)
    return umask
