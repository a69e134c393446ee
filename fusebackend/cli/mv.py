"""`fusebackend mv`: rename files and directories."""

from __future__ import annotations

from collections.abc import Sequence

import click

from fusebackend.cli import target
from fusebackend.cli.show import Complaints, Failed, Output, json_option
from fusebackend.cli.target import Target, complete_path, if_version_option, mount_option


@click.command()
@click.argument("sources", nargs=-1, required=True, shell_complete=complete_path, metavar="SOURCE...")
@click.argument("destination", shell_complete=complete_path)
@if_version_option
@json_option("an array of {source, path}, path being where it is now.")
@mount_option
def mv(sources: Sequence[str], destination: str, if_version: str | None, as_json: bool, mount: str | None) -> None:
    """Rename SOURCE to DESTINATION, or move sources into the directory DESTINATION.

    Directories that DESTINATION lacks are made. A file that is there is never replaced: delete it before. Inside of a
    route this is one step; from one route to another it is a copy and a delete. The exit status is 1 if anything could
    not be moved.
    """
    if if_version is not None and len(sources) > 1:
        raise click.UsageError("--if-version is of one file")
    complaints = Complaints()
    moved = []
    goal = target.locate(destination, mount)
    into = goal.kind() == "directory"
    if not into and (len(sources) > 1 or destination.endswith("/")):
        raise Failed(f"'{destination}' is not a directory")
    if not into:
        goal = target.locate(destination, mount, follow=False)
    for given in sources:
        with complaints:
            source = target.locate(given, mount, follow=False)
            moved.append({"source": given, "path": _move(source, _inside(goal, source) if into else goal, if_version)})
    if as_json:
        Output().document(moved)
    complaints.finish()


def _inside(directory: Target, source: Target) -> Target:
    name = source.path.rpartition("/")[2]
    return directory.below(name) if name else directory


def _move(source: Target, goal: Target, if_version: str | None) -> str:
    """Where it is now, in the words of the command line. Raises `Failed`."""
    shown = goal.shown(goal.path)
    if source.files is not goal.files:
        raise Failed(f"'{source.given}' and '{shown}' lie in different mounts; mv(1) moves from one to the other")
    answer = source.files.move(source.path, goal.path, if_version=if_version)
    if answer.error is not None:
        words = source.words(answer.error).replace(f"'{goal.path}'", f"'{shown}'")
        raise Failed(words.replace(f"Cannot move to {goal.path} because", f"can't move to '{shown}' because"))
    return shown
