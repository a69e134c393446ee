"""`fusebackend restore`: files put back as they were in another state of the mount."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from fusebackend.base.paths import ROOT, join
from fusebackend.cli import snapshot, target
from fusebackend.cli.show import Complaints, Failed, Output, note
from fusebackend.cli.target import complete_path, mount_option
from fusebackend.linux.open_files import FileId, writers
from fusebackend.protocol import RestoreResult

if TYPE_CHECKING:
    from fusebackend.control.client.client import Client


@click.command()
@click.argument("paths", nargs=-1, required=True, shell_complete=complete_path, metavar="PATH...")
@click.option("--from", "ref", required=True, shell_complete=snapshot.complete_name, metavar="REF", help="The state.")
@click.option("--to", "destination", shell_complete=complete_path, metavar="PATH", help="Restore to here instead.")
@click.option("-n", "--dry-run", "only_print", is_flag=True, help="Change nothing; print what would be done.")
@click.option("--force", is_flag=True, help="Also files that are open for writing.")
@mount_option
def restore(
    paths: Sequence[str], ref: str, destination: str | None, only_print: bool, force: bool, mount: str | None
) -> None:
    """Put files, directories and links back as they were, with all attributes; owners if the server runs as root.

    REF is the name of a snapshot, a time (10m, 2h, 14:05, yesterday, 2026-11-22T14:05: the newest snapshot at it or
    before), or a call of 'fusebackend log' (c42): the state before it, on routes without snapshots, too. A directory is
    as it was afterwards: names that were not in it are removed. With --to, that is the path of the copy, or a directory
    for it if it is one or ends with '/'.

    Each file whose bytes differ is put in place as a whole, as a new one. A file that a process has open for writing is
    named, and nothing is restored without --force: that process would go on writing to the old one. If a restore is
    interrupted, the same command completes it. A restore is a call: the command that takes it back is printed.

    The exit status is 1 if anything could not be restored.
    """
    files, given = target.together(paths, mount)
    sources: list[str] = sorted(set(given))
    targets = None if destination is None else _targets(files, sources, destination, mount)
    result = files.restore(sources, ref, to=targets, dry_run=only_print, force=force)
    for route in result.left_alone:
        note(f"route '{route}' is left as it is: '{result.ref}' holds nothing of it")
    output = Output()
    if result.conflicts and not only_print:
        _refuse_open_files(files, result)
    if only_print:
        for change in result.changes:
            output.line(f"{change.change:<10} {output.name(change.path)}")
    else:
        _sum_up(output, result)
    complaints = Complaints()
    for each in result.skipped:
        complaints.add(f"'{each.path}' was left as it is: {each.reason}")
    for line in result.partly:
        note(line)
    complaints.finish()


def _targets(files: Client, given: list[str], destination: str, mount: str | None) -> list[str]:
    """Return the path that each path is restored to."""
    place = target.locate(destination, mount, follow=False)
    target.require_mount(place, files)
    kind = place.kind(follow=False)
    is_directory = destination.endswith("/") or len(given) > 1 or kind == "directory"
    if is_directory and kind != "directory":
        raise Failed(f"'{destination}' is not a directory")
    if ROOT in given:
        raise Failed("the root can't be restored to another path; give the paths in it")
    return [join(place.path, os.path.basename(path)) if is_directory else place.path for path in given]


def _refuse_open_files(mounted: Client, result: RestoreResult) -> None:
    """Raises `Failed`, and names the processes that have the files open for writing, as far as they can be seen."""
    files: dict[FileId, str] = {}
    for each in result.conflicts:
        with contextlib.suppress(OSError):
            found = os.stat(mounted.mountpoint.rstrip("/") + each.path, follow_symlinks=False)
            files[found.st_dev, found.st_ino] = each.path
    complaints, named = Complaints(), set()
    for writer in writers(files):
        path = files[writer.file]
        named.add(path)
        complaints.add(f"'{path}' is open for writing by {writer.command} (process {writer.pid})")
    for each in result.conflicts:
        if each.path not in named:
            complaints.add(f"'{each.path}' {each.reason}")
    raise Failed("nothing was restored; --force does it all the same, and those processes keep the old files")


def _sum_up(output: Output, result: RestoreResult) -> None:
    words = [each.change for each in result.changes]
    removed = words.count("remove")
    restored = len(words) - removed
    if not words:
        note("everything was as it is to be already")
        return
    again = "" if result.call is None else f"; 'fusebackend undo {result.call}' takes that back"
    output.line(f"restored {restored} {'path' if restored == 1 else 'paths'}, removed {removed}{again}")
