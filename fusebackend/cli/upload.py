"""`fusebackend upload`: copy local files and trees into a mount.

The local files are listed first, then compared with the files of the mount, then sent: small files together, large ones
in pieces. Only bytes are copied, because the agent face stores nothing else: no modes, times or links.
"""

from __future__ import annotations

import os
import stat as stat_module
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import IO

import click

from fusebackend.base.batches import by_size
from fusebackend.cli import target
from fusebackend.cli.progress import Advance, progress
from fusebackend.cli.show import Complaints, Failed, json_option, report_copies
from fusebackend.cli.target import Target, base_name, complete_path, mount_option
from fusebackend.protocol import FileUploadResponse

BATCH_BYTES = 512 << 10
BATCH_FILES = 256
"""How much is sent at once; a file that is larger than `BATCH_BYTES` goes by itself, in pieces."""

PIECE_BYTES = 512 << 10


@dataclass
class Upload:
    """A local file, and where it is to go."""

    local: str
    goal: Target
    size: int


@dataclass
class Uploads:
    """The files to be copied.

    Attributes:
        skipped: files that the agent face can't store, with the reason.
    """

    items: list[Upload] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    goals: set[str] = field(default_factory=set)

    def add(self, local: str, goal: Target, size: int) -> None:
        """Raises `Failed` when something else is to go to the same place."""
        if goal.path in self.goals:
            raise Failed(f"'{local}' would go to '{goal.shown(goal.path)}', as another one does")
        self.goals.add(goal.path)
        self.items.append(Upload(local, goal, size))


@click.command()
@click.argument("sources", nargs=-1, required=True, type=click.Path(), metavar="LOCAL...")
@click.argument("destination", shell_complete=complete_path)
@click.option("--force", is_flag=True, help="Replace files that are there.")
@json_option("{files: [{local, path, size}], skipped: [{local, reason}]}.")
@mount_option
def upload(sources: Sequence[str], destination: str, force: bool, as_json: bool, mount: str | None) -> None:
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
    plan = Uploads()
    for local in sources:
        with complaints:
            name = base_name(local)
            _add(plan, local, goal.below(name) if into and name else goal, complaints)
    items = [item for item in plan.items if force or kind is None or _is_free(item, complaints)]
    copied = []
    with progress("uploading", sum(item.size for item in items), quiet=as_json) as advance:
        for item, error in _send(items, advance, complaints):
            if error is None:
                copied.append(item)
            else:
                complaints.add(item.goal.words(error))
    files = [{"local": item.local, "path": _shown(item), "size": item.size} for item in copied]
    report_copies(files, "local", plan.skipped, as_json)
    complaints.finish()


def _shown(item: Upload) -> str:
    return item.goal.shown(item.goal.path)


# --------------------------------------------------------------------------------------------------------------
# What there is
# --------------------------------------------------------------------------------------------------------------


def _add(plan: Uploads, local: str, goal: Target, complaints: Complaints) -> None:
    """Plan for something that was named: a symbolic link is followed. Raises `Failed`, `OSError`."""
    found = os.stat(local)
    if stat_module.S_ISDIR(found.st_mode):
        _add_tree(plan, local, goal, complaints)
    elif stat_module.S_ISREG(found.st_mode):
        plan.add(local, goal, found.st_size)
    else:
        raise Failed(f"'{local}' is neither a file nor a directory")


def _add_tree(plan: Uploads, directory: str, goal: Target, complaints: Complaints) -> None:
    left = [(directory, goal)]
    while left:
        local, place = left.pop()
        below: list[tuple[str, Target]] = []
        with complaints:
            entries = sorted(os.scandir(local), key=lambda entry: os.fsencode(entry.name))
            if not entries:
                plan.skipped.append((local, "an empty directory"))
            for entry in entries:
                with complaints:
                    if entry.is_symlink():
                        plan.skipped.append((entry.path, "a symbolic link"))
                    elif entry.is_dir():
                        below.append((entry.path, place.below(entry.name)))
                    elif entry.is_file():
                        plan.add(entry.path, place.below(entry.name), entry.stat().st_size)
                    else:
                        plan.skipped.append((entry.path, "a special file"))
        left += reversed(below)


def _is_free(item: Upload, complaints: Complaints) -> bool:
    """Return True if it replaces nothing. Otherwise that is a complaint."""
    with complaints:
        if item.goal.kind(follow=False) is None:
            return True
        raise Failed(f"'{_shown(item)}' exists; --force replaces it")
    return False


# --------------------------------------------------------------------------------------------------------------
# Sending
# --------------------------------------------------------------------------------------------------------------


def _send(items: Sequence[Upload], advance: Advance, complaints: Complaints) -> Iterator[tuple[Upload, str | None]]:
    """Send all, and give each item with its error, if there is one. Unreadable files are complaints."""
    for batch in by_size(items, attrgetter("size"), BATCH_FILES, BATCH_BYTES):
        if batch[0].size > BATCH_BYTES:
            for answer in _send_large(batch[0], advance, complaints):
                yield batch[0], answer.error
        else:
            contents = [(item, _content(item, complaints)) for item in batch]
            yield from _send_batch([(item, content) for item, content in contents if content is not None], advance)


def _content(item: Upload, complaints: Complaints) -> bytes | None:
    with complaints, open(item.local, "rb") as file:
        return file.read()
    return None


def _send_large(item: Upload, advance: Advance, complaints: Complaints) -> list[FileUploadResponse]:
    """The answer; none when the file can't be read, which is a complaint."""
    with complaints, open(item.local, "rb") as file:
        return [item.goal.files.send(item.goal.path, _pieces(file, advance))]
    return []


def _send_batch(batch: list[tuple[Upload, bytes]], advance: Advance) -> Iterator[tuple[Upload, str | None]]:
    if not batch:
        return
    files = batch[0][0].goal.files
    answers = files.upload_files([(item.goal.path, content) for item, content in batch])
    for (item, content), answer in zip(batch, answers, strict=True):
        advance(len(content))
        yield item, answer.error


def _pieces(file: IO[bytes], advance: Advance) -> Iterator[bytes]:
    while piece := file.read(PIECE_BYTES):
        yield piece
        advance(len(piece))
