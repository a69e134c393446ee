"""`fusebackend rm`: delete files and directories."""

from __future__ import annotations

from collections.abc import Sequence

import click

from fusebackend.cli import target
from fusebackend.cli.show import Complaints, Failed, Output, json_option
from fusebackend.cli.target import Target, complete_path, if_version_option, mount_option


@click.command()
@click.argument("paths", nargs=-1, required=True, shell_complete=complete_path, metavar="PATH...")
@click.option("-r", "-R", "recursive", is_flag=True, help="Also directories, with all below them.")
@click.option("-f", "force", is_flag=True, help="What is not there is no error.")
@if_version_option
@json_option("an array of the paths that were deleted.")
@mount_option
def rm(
    paths: Sequence[str], recursive: bool, force: bool, if_version: str | None, as_json: bool, mount: str | None
) -> None:
    """Delete files, and with -r directories. A symbolic link is deleted, not what it leads to.

    The exit status is 1 if anything could not be deleted.
    """
    if if_version is not None and len(paths) > 1:
        raise click.UsageError("--if-version is of one file")
    complaints = Complaints()
    deleted = []
    for given in paths:
        with complaints:
            if _delete(given, recursive, force, if_version, mount):
                deleted.append(given)
    if as_json:
        Output().document(deleted)
    complaints.finish()


def _delete(given: str, recursive: bool, force: bool, if_version: str | None, mount: str | None) -> bool:
    """Return True if it was there and is deleted. Raises `Failed`."""
    place = target.locate(given, mount, follow=False)
    if force and place.kind(follow=False) is None:
        return False
    kind = place.stat(follow=False).type
    if kind == "directory" and not recursive:
        raise Failed(f"'{given}' is a directory; -r deletes it with all below it")
    answer = place.files.delete(place.path, if_version=if_version)
    if answer.error is not None:
        raise Failed(place.words(answer.error) + _routes_in(place))
    return True


def _routes_in(place: Target) -> str:
    """Return words on the routes at and below a path, which can't be deleted: EBUSY does not tell of them."""
    start = place.path.rstrip("/") + "/"
    prefixes = [each["prefix"] for each in place.files.status().get("routes", ())]
    found = [prefix for prefix in prefixes if prefix.startswith(start) and prefix != "/"]
    return f"; routes stay, so delete what is in them: {' '.join(found)}" if found else ""
