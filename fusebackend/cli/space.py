"""`fusebackend df`, `prune` and `forget`: what the past of a mount takes of the disk, and how to be rid of it.

`forget` takes contents out of everything that is kept of the past.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import click

from fusebackend.cli import target
from fusebackend.cli.show import Failed, Output, confirm_loss, json_option
from fusebackend.cli.target import Target, complete_mountpoint, complete_path, mount_option, on_mount
from fusebackend.protocol import ForgetResult, MountProtocol, PruneResult

_LINES = {
    "live": "files as they are",
    "snapshots": "bytes that only snapshots have",
    "images": "bytes that calls replaced",
    "branches": "files of branches",
    "log": "calls and their records",
    "reclaimable": "of all this, 'fusebackend prune' frees",
}

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


@click.command()
@click.argument("mountpoint", required=False, shell_complete=complete_mountpoint)
@json_option("{live, snapshots, images, branches, log, reclaimable}, in bytes; null where it is not known; and limits.")
@mount_option
def df(mountpoint: str | None, output: Output, mount: str | None) -> None:
    """Show what a mount takes of the disk: its files, snapshots, the bytes that undo needs, branches, and the log; and
    what routes with limits hold.

    MOUNTPOINT is as --mount.
    """
    space = asdict(target.here(mount if mountpoint is None else mountpoint).files.df())
    output.document(space)
    for name, words in _LINES.items():
        size = space[name]
        output.line(f"{name:<11}  {'?' if size is None else size_text(size):>10}  {words}")
    output.lines(limit_text(limit["route"], limit) for limit in space["limits"])


@click.command()
@click.option("-n", "--dry-run", is_flag=True, help="Delete nothing; print what would go.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option("{snapshots, calls, bytes}.")
@on_mount
def prune(files: MountProtocol, dry_run: bool, yes: bool, output: Output) -> None:
    """Delete the automatic snapshots, and the log with the bytes that undo needs. The files stay as they are.

    Snapshots that you have taken stay. What is deleted can't be had back, so on a terminal it asks first; elsewhere it
    needs --yes.
    """
    going = files.prune(dry_run=True)
    if not dry_run:
        confirm_loss("what is pruned", f"Delete {_words(going)}", yes)
        going = files.prune()
    output.document(asdict(going))
    output.line(f"{'would delete' if dry_run else 'deleted'} {_words(going)}")


def _words(going: PruneResult) -> str:
    snapshots, calls = len(going.snapshots), going.calls
    return (
        f"{snapshots} automatic {'snapshot' if snapshots == 1 else 'snapshots'}, "
        f"{calls} {'call' if calls == 1 else 'calls'} of the log, and {size_text(going.bytes)} that undo needs"
    )


def limit_text(route: str, usage: Mapping[str, Any]) -> str:
    """Return what a route with limits holds of what it may, and what is left."""
    parts = []
    for unit, words, text in (("bytes", "", size_text), ("files", " files and directories", "{:,}".format)):
        used, limit = usage[f"used_{unit}"], usage[f"limit_{unit}"]
        of, left = ("", "") if limit is None else (f" of {text(limit)}", f" ({text(max(0, limit - used))} left)")
        parts.append(f"{text(used)}{of}{words}{left}")
    return f"{route} holds {', '.join(parts)}"


def size_text(size_bytes: int) -> str:
    """Return a size for people: three digits and a unit."""
    size = float(size_bytes)
    for unit in _UNITS:
        if size < 999.5 or unit == _UNITS[-1]:
            break
        size /= 1024
    return f"{size_bytes} bytes" if unit == "bytes" else f"{size:.3g} {unit}"


# -- forget ------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("paths", nargs=-1, required=True, shell_complete=complete_path, metavar="PATH...")
@click.option("-n", "--dry-run", is_flag=True, help="Change nothing; print what would go.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option("{paths, live, snapshots, branches, images, unknown, left}.")
@mount_option
def forget(paths: Sequence[str], dry_run: bool, yes: bool, output: Output, mount: str | None) -> None:
    """Have all that is kept of the past lose the contents of files: a password that was in one for a while.

    They leave snapshots, branches, the bytes that undo needs, search indexes, and the free space of volumes' files. The
    files stay as they are now: delete them before, or take the secret out. The log still says who did what in which
    call. A directory means all files in it.

    What was forgotten can't be had back, so on a terminal it asks first; elsewhere it needs --yes. It is said what
    could not be reached. Meanwhile nobody can use the volume: its file is rewritten.
    """
    place, given = target.together(paths, mount)
    files = place.files
    found = files.forget(*given, dry_run=True)
    if not dry_run:
        confirm_loss("what is forgotten", f"Forget {_forgotten(output, place, found)}", yes)
        found = files.forget(*given)
    output.document(asdict(found))
    if output.json and found.unknown:
        click.get_current_context().exit(1)
    output.line(f"{'would forget' if dry_run else 'forgot'} {_forgotten(output, place, found)}")
    output.notes(f"'{output.name(place.shown(path))}' is there, and stays as it is" for path in found.live)
    output.notes(f"not reached: {line}" for line in found.left)
    if found.unknown:
        unknown = ", ".join(f"'{place.shown(path)}'" for path in found.unknown)
        raise Failed(f"no file, snapshot, branch or call has {unknown}: is that how it was written?")


def _forgotten(output: Output, place: Target, found: ForgetResult) -> str:
    paths = ", ".join(f"'{output.name(place.shown(path))}'" for path in found.paths)
    counted = [
        f"{count} {word if count == 1 else plural}"
        for count, word, plural in (
            (len(found.snapshots), "snapshot", "snapshots"),
            (len(found.branches), "branch", "branches"),
            (found.images, "version that undo needs", "versions that undo needs"),
        )
    ]
    return f"{paths} in {counted[0]}, {counted[1]} and {counted[2]}"
