"""`fusebackend snapshot`: keep the present state of a mount, and list and delete such states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from fusebackend.cli import target
from fusebackend.cli.show import Output, aligned, confirm_deletion, json_option, note, to_the_second
from fusebackend.cli.target import complete_names, mount_option

if TYPE_CHECKING:
    from fusebackend.control.client.client import Client
    from fusebackend.protocol import SnapshotInfo


@click.group()
def snapshot() -> None:
    """Keep the present state of a mount, and list and delete such states.

    A snapshot is a directory, /mnt/agent/.fusebackend/snapshots/NAME, in which nothing can be changed: ls, diff and
    'cp -a' work on it. It holds every route for which 'status' says 'instant'.

    They work on the mount of --mount DIR; else on that of the current directory; else on the only mount there is.
    """


def complete_name(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the name of a snapshot."""
    return complete_names(context, incomplete, lambda files: [(each.name, None) for each in files.snapshots()])


@snapshot.command()
@click.argument("name", required=False)
@json_option("{name, time_ns, routes, path}; `routes` are those it holds.")
@mount_option
def create(name: str | None, as_json: bool, mount: str | None) -> None:
    """Take a snapshot, and print its directory, and the routes that are not in it.

    Without a NAME, it is the time in UTC: 20261123T061530Z. The files are neither read nor copied.
    """
    output, files = Output(), target.here(mount).files
    taken = files.create_snapshot(name)
    directory = _directory(files)
    if as_json:
        output.document(_as_object(taken, directory))
        return
    output.line(output.name(f"{directory}/{taken.name}"))
    others = [each["prefix"] for each in files.status().get("routes", ()) if each["prefix"] not in taken.routes]
    if others:
        note(f"not in it, for they keep no snapshots: {' '.join(others)}")


@snapshot.command("list")
@click.option("--all", "with_automatic", is_flag=True, help="Also those that the mount has taken by itself.")
@json_option("an array of {name, time_ns, routes, path}.")
@mount_option
def list_snapshots(with_automatic: bool, as_json: bool, mount: str | None) -> None:
    """List the snapshots, the oldest first: name, time, and the routes that are in it."""
    from fusebackend.trees.snapshots import AUTOMATIC

    output, files = Output(), target.here(mount).files
    kept = files.snapshots()
    directory = _directory(files)
    found = [each for each in kept if with_automatic or not each.name.startswith(AUTOMATIC)]
    if as_json:
        output.document([_as_object(each, directory) for each in found])
        return
    if not found:
        note("no snapshots but automatic ones, which --all shows" if kept else "no snapshots")
    rows = [
        (output.name(each.name), to_the_second(each.time_ns // 10**9), " ".join(map(output.name, each.routes)))
        for each in found
    ]
    for line in aligned(rows):
        output.line(line)


@snapshot.command()
@click.argument("names", nargs=-1, required=True, shell_complete=complete_name, metavar="NAME...")
@click.option("--yes", is_flag=True, help="Do not ask.")
@mount_option
def delete(names: Sequence[str], yes: bool, mount: str | None) -> None:
    """Delete snapshots. Those can't be had back, so on a terminal it asks first; elsewhere it needs --yes."""
    files = target.here(mount).files
    confirm_deletion("snapshot", "snapshots", names, {each.name for each in files.snapshots()}, yes)
    files.delete_snapshots(*names)


def _directory(files: Client) -> str:
    """Return the directory of the snapshots of a mount."""
    return target.outside(files, f"{target.trees_path(files)}/snapshots")


def _as_object(taken: SnapshotInfo, directory: str) -> dict[str, Any]:
    return {**asdict(taken), "path": f"{directory}/{taken.name}"}
