"""`fusebackend forget`: contents leave everything that is kept of the past."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import click

from fusebackend.cli import target
from fusebackend.cli.show import Failed, Output, confirm_loss, json_option, note
from fusebackend.cli.target import Target, complete_path, mount_option
from fusebackend.protocol import ForgetResult


@click.command()
@click.argument("paths", nargs=-1, required=True, shell_complete=complete_path, metavar="PATH...")
@click.option("-n", "--dry-run", is_flag=True, help="Change nothing; print what would go.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option("{paths, live, snapshots, branches, images, unknown, left}.")
@mount_option
def forget(paths: Sequence[str], dry_run: bool, yes: bool, as_json: bool, mount: str | None) -> None:
    """Have all that is kept of the past lose the contents of files: a password that was in one for a while.

    They leave snapshots, branches, the bytes that undo needs, search indexes, and the free space of volumes' files. The
    files stay as they are now: delete them before, or take the secret out. The log still says who did what in which
    call. A directory means all files in it.

    What was forgotten can't be had back, so on a terminal it asks first; elsewhere it needs --yes. It is said what
    could not be reached. Meanwhile nobody can use the volume: its file is rewritten.
    """
    places = [target.locate(path, mount, follow=False) for path in paths]
    if len({place.files.mountpoint for place in places}) > 1:
        raise Failed("the paths are in several mounts; give those of one")
    files, given, output = places[0].files, [place.path for place in places], Output()
    found = files.forget(*given, dry_run=True)
    if not dry_run:
        if not yes:
            confirm_loss("what is forgotten", f"Forget {_words(output, places[0], found)}")
        found = files.forget(*given)
    if as_json:
        output.document(asdict(found))
        if found.unknown:
            click.get_current_context().exit(1)
        return
    output.line(f"{'would forget' if dry_run else 'forgot'} {_words(output, places[0], found)}")
    for path in found.live:
        note(f"'{output.name(places[0].shown(path))}' is there, and stays as it is")
    for line in found.left:
        note(f"not reached: {line}")
    if found.unknown:
        unknown = ", ".join(f"'{places[0].shown(path)}'" for path in found.unknown)
        raise Failed(f"no file, snapshot, branch or call has {unknown}: is that how it was written?")


def _words(output: Output, place: Target, found: ForgetResult) -> str:
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
