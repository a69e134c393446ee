"""`fusebackend snapshot`, `diff` and `restore`: states of a mount.

What differs between two of them, or what a call did, and files put back as they were in one.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial

import click

from fusebackend.base.errors import unless
from fusebackend.base.paths import ROOT, AgentPath, join
from fusebackend.cli import target
from fusebackend.cli.log import complete_call
from fusebackend.cli.show import Complaints, Failed, Output, aligned, confirm_deletion, json_option, local_time, note
from fusebackend.cli.target import complete_path, completing, mount_option, on_mount, or_path
from fusebackend.linux.unmount import holders
from fusebackend.protocol import MountProtocol, RestoreResult
from fusebackend.protocol.served import NOT_HELD, STAT_COLUMNS, DiffForm
from fusebackend.trees.refs import RefError, Refs


@click.group()
def snapshot() -> None:
    """Keep the present state of a mount, and list and delete such states.

    A snapshot is a directory, /mnt/agent/.fusebackend/snapshots/NAME, in which nothing can be changed: ls, diff and
    'cp -a' work on it. It holds every route for which 'status' says 'instant'.

    They work on the mount of --mount DIR; else on that of the current directory; else on the only mount there is.
    """


complete_snapshot = completing(lambda files: [(each.name, None) for each in files.snapshots()])
"""Complete the name of a snapshot."""


@snapshot.command()
@click.argument("name", required=False)
@json_option("{name, time_ns, routes, path}; `routes` are those it holds.")
@on_mount
def create(files: MountProtocol, name: str | None, output: Output) -> None:
    """Take a snapshot, and print its directory, and the routes that are not in it.

    Without a NAME, it is the time in UTC: 20261123T061530Z. The files are neither read nor copied.
    """
    taken = files.create_snapshot(name)
    directory = target.outside(files, taken.path)
    if output.json:  # people are told of other routes, too, which takes another request
        output.document({**asdict(taken), "path": directory})
        return
    output.line(output.name(directory))
    others = [each["prefix"] for each in files.status().get("routes", ()) if each["prefix"] not in taken.routes]
    if others:
        output.note(f"not in it, for they keep no snapshots: {' '.join(others)}")


@snapshot.command("list")
@click.option("--all", "with_automatic", is_flag=True, help="Also those that the mount has taken by itself.")
@json_option("an array of {name, time_ns, routes, path}.")
@on_mount
def list_snapshots(files: MountProtocol, with_automatic: bool, output: Output) -> None:
    """List the snapshots, the oldest first: name, time, and the routes that are in it."""
    from fusebackend.trees.snapshots import AUTOMATIC

    kept = files.snapshots()
    found = [each for each in kept if with_automatic or not each.name.startswith(AUTOMATIC)]
    rows = [
        (output.name(each.name), local_time(each.time_ns // 10**9), " ".join(map(output.name, each.routes)))
        for each in found
    ]
    empty = "no snapshots but automatic ones, which --all shows" if kept else "no snapshots"
    objects = [{**asdict(each), "path": target.outside(files, each.path)} for each in found]
    output.listing(objects, aligned(rows), empty)


@snapshot.command()
@click.argument("names", nargs=-1, required=True, shell_complete=complete_snapshot, metavar="NAME...")
@click.option("--yes", is_flag=True, help="Do not ask.")
@on_mount
def delete(files: MountProtocol, names: Sequence[str], yes: bool) -> None:
    """Delete snapshots. Those can't be had back, so on a terminal it asks first; elsewhere it needs --yes."""
    confirm_deletion("snapshot", "snapshots", names, {each.name for each in files.snapshots()}, yes)
    files.delete_snapshots(*names)


# -- diff --------------------------------------------------------------------------------------------------------


PAGE = 100
"""Calls that one question asks for."""

AFTER_DASHES = "fusebackend.after_dashes"
"""Where the click context keeps the words after `--`, which click itself drops."""

_COLOURS = (
    (("diff --git ", "index ", "--- ", "+++ ", "new file mode ", "deleted file mode ", "old mode ", "new mode ",
      "similarity index ", "rename from ", "rename to "), "bright_white"),
    (("@@ ",), "cyan"),
    (("+",), "green"),
    (("-",), "red"),
    (("# ",), "yellow"),
)  # fmt: skip
"""The first one whose beginning a line of a patch has."""


class _WithPaths(click.Command):
    """A command that tells the words before `--` from those after it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.meta[AFTER_DASHES] = args[at + 1 :]
            args = args[:at]
        return super().parse_args(ctx, args)


@click.command(cls=_WithPaths)
@click.argument("words", nargs=-1, shell_complete=or_path(complete_call, complete_snapshot),
                metavar="[REF | A..B] [--] [PATH]...")  # fmt: skip
@click.option("--stat", "form", flag_value="stat", help="A line for each file: how many lines differ.")
@click.option("--name-status", "form", flag_value="names", help="A letter for each file (A D M R T), and its path.")
@click.option(
    "--json",
    "form",
    flag_value="json",
    help="For programs: a line {change, path, old_path, fields, before, after} for each difference.",
)
@mount_option
def diff(words: Sequence[str], form: DiffForm | None, mount: str | None) -> None:
    """Show what a call did, what differs between a state of the mount and now, or between two states: A..B.

    REF is a call of 'fusebackend log' (c42), the name of a snapshot or of a branch, a time (10m, 2h, 14:05, yesterday,
    2026-11-22T14:05: the newest snapshot at it or before), or main, which is now. Without REF it is the last call. A
    call alone is what it did, and nothing of what others did; in A..B it is the state before it. A PATH need not exist
    any more; without one it is the whole mount.

    Comment lines below a patch have what git can't say: owners, xattrs, empty directories, special files.

    The exit status is 0 whether there are differences or not, and 1 if some files could not be compared.
    """
    context = click.get_current_context()
    files, ref, paths = _chosen(words, context.meta.get(AFTER_DASHES), mount)
    form = form or "patch"
    output = Output()
    columns = shutil.get_terminal_size().columns if output.terminal else STAT_COLUMNS
    take: Callable[[bytes], None] = output.bytes
    if output.terminal and form == "patch":
        take = partial(_print_coloured, output)
    incomplete = False

    def skipped(path: str, reason: str) -> None:
        nonlocal incomplete
        if reason == NOT_HELD:
            note(f"route '{path}' was not compared: {reason}")
            return
        incomplete = True
        if form in ("stat", "names"):  # the others have it in their text
            note(f"'{path}' was not compared: {reason}")

    files.diff(ref, paths=paths, form=form, columns=columns, on_text=take, on_skipped=skipped)
    if incomplete:
        context.exit(1)


def _chosen(
    words: Sequence[str], after_dashes: Sequence[str] | None, mount: str | None
) -> tuple[MountProtocol, str, list[AgentPath]]:
    """Tell REF from PATH: as in git, the first word is a REF if it names one, and else a path that is there."""
    if after_dashes is not None and len(words) > 1:
        raise click.UsageError(f"one REF or A..B before '--', not {len(words)} words")
    first, given = (words[0] if words else None), list(after_dashes or words[1:])
    if first is not None and "/" in first and after_dashes is None:  # no REF has one, and it may tell the mount
        first, given = None, list(words)
    place, paths = target.together(given, mount)
    refs = Refs({each.name: each.time_ns for each in place.files.snapshots()},
                {each.name: each.time_ns for each in place.files.branches() if each.error is None})  # fmt: skip
    if first is not None and after_dashes is None and not refs.is_ref(first) and _is_there(first, mount):
        place, paths = target.together([first, *given], mount)
        first = None
    ref = unless({errno.ENOTSUP}, _last_call, place.files) if first is None else first
    try:
        if ref is None:
            ref = refs.newest().name
        elif not refs.has_call(ref):
            refs.pair(ref)
    except RefError as error:
        hint = "; a PATH that is gone stands after '--'" if first is not None and after_dashes is None else ""
        raise Failed(f"{error}{hint}") from None
    return place.files, ref, paths


def _last_call(files: MountProtocol) -> str | None:
    """Return the newest call that changed something; None if there is none. ENOTSUP: the mount keeps no history."""
    before: str | None = None
    while found := files.log(before=before, limit=PAGE):
        for each in found:
            if each.changes:  # requests for approvals have none
                return each.call
        before = found[-1].call
    return None


def _is_there(word: str, mount: str | None) -> bool:
    """Return True for a word that is a path of the mount now."""
    return os.path.lexists(word) if mount is None else target.locate(word, mount).kind(follow=False) is not None


def _print_coloured(output: Output, piece: bytes) -> None:
    """Print lines of a patch on a terminal: their control characters must not steer it."""
    for line in piece.decode("utf-8", "surrogateescape").removesuffix("\n").split("\n"):
        colour = next((colour for beginnings, colour in _COLOURS if line.startswith(beginnings)), None)
        shown = output.text(line)
        output.line(output.paint(shown, colour) if colour else shown)


# -- restore -----------------------------------------------------------------------------------------------------


@click.command()
@click.argument("paths", nargs=-1, required=True, shell_complete=complete_path, metavar="PATH...")
@click.option("--from", "ref", required=True, shell_complete=complete_snapshot, metavar="REF", help="The state.")
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
    place, given = target.together(paths, mount)
    files = place.files
    sources: list[str] = sorted(set(given))
    targets = None if destination is None else _targets(files, sources, destination, mount)
    result = files.restore(sources, ref, to=targets, dry_run=only_print, force=force)
    output = Output()
    output.notes(f"route '{route}' is left as it is: '{result.ref}' holds nothing of it" for route in result.left_alone)
    if result.conflicts and not only_print:
        _refuse_open_files(files, result)
    if only_print:
        output.lines(f"{change.change:<10} {output.name(change.path)}" for change in result.changes)
    else:
        _sum_up(output, result)
    complaints = Complaints()
    complaints.add(*(f"'{each.path}' was left as it is: {each.reason}" for each in result.skipped))
    output.notes(result.partly)
    complaints.finish()


def _targets(files: MountProtocol, given: list[str], destination: str, mount: str | None) -> list[str]:
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


def _refuse_open_files(mounted: MountProtocol, result: RestoreResult) -> None:
    """Raises `Failed`, and names the processes that have the files open, as far as they can be seen."""
    Complaints().add(*(f"'{each.path}' {each.reason}" for each in result.conflicts))
    files = {target.outside(mounted, each.path): each.path for each in result.conflicts}
    for holder in holders(mounted.mountpoint):
        if holder.path in files:
            note(f"process {holder.pid} ({holder.command}) has '{files[holder.path]}' open as {holder.how}")
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
