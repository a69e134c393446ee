"""`fusebackend df` and `fusebackend prune`: what the past of a mount takes of the disk, and how to be rid of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import click

from fusebackend.cli import target
from fusebackend.cli.show import Output, confirm_loss, json_option
from fusebackend.cli.target import complete_mountpoint, mount_option
from fusebackend.protocol import PruneResult

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
def df(mountpoint: str | None, as_json: bool, mount: str | None) -> None:
    """Show what a mount takes of the disk: its files, snapshots, the bytes that undo needs, branches, and the log; and
    what routes with limits hold.

    MOUNTPOINT is as --mount.
    """
    output = Output()
    space = asdict(target.here(mount if mountpoint is None else mountpoint).files.df())
    if as_json:
        output.document(space)
        return
    for name, words in _LINES.items():
        size = space[name]
        output.line(f"{name:<11}  {'?' if size is None else size_text(size):>10}  {words}")
    for limit in space["limits"]:
        output.line(limit_text(limit["route"], limit))


@click.command()
@click.option("-n", "--dry-run", is_flag=True, help="Delete nothing; print what would go.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option("{snapshots, calls, bytes}.")
@mount_option
def prune(dry_run: bool, yes: bool, as_json: bool, mount: str | None) -> None:
    """Delete the automatic snapshots, and the log with the bytes that undo needs. The files stay as they are.

    Snapshots that you have taken stay. What is deleted can't be had back, so on a terminal it asks first; elsewhere it
    needs --yes.
    """
    files, output = target.here(mount).files, Output()
    going = files.prune(dry_run=True)
    if not dry_run:
        if not yes:
            confirm_loss("what is pruned", f"Delete {_words(going)}")
        going = files.prune()
    if as_json:
        output.document(asdict(going))
    else:
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
