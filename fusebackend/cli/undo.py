"""`fusebackend undo`: calls taken back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TypeAlias

import click

from fusebackend.cli import target
from fusebackend.cli.log import complete_call
from fusebackend.cli.show import Complaints, Failed, Output, json_option
from fusebackend.cli.target import Target, mount_option
from fusebackend.protocol import MergeResult, UndoConflict, UndoneChange, UndoResult

LISTED = 20
"""Paths that are listed; `--json` and the log have all."""

Words: TypeAlias = Mapping[str, tuple[str, str]]
"""`UndoneChange.change` → what was done to a path, and what a dry run says."""

CHANGED: Words = {
    "remove": ("removed", "would remove"),
    "rename": ("renamed", "would rename"),
    "attributes": ("attributes of", "would set attributes of"),
    "merge": ("merged", "would merge"),
}


_WORDS = {**CHANGED, "create": ("brought back", "would bring back"), "replace": ("put back", "would put back")}


@click.command()
@click.argument("calls", nargs=-1, shell_complete=complete_call, metavar="[CALL]...")
@click.option("--by", metavar="ACTOR", help="The newest call of this agent, thread, tool call, program or user id.")
@click.option("--thread", metavar="ID", help="All calls of this conversation.")
@click.option("--since", metavar="CALL|TIME", help="This call and all after it, or all since then: c42, 10m, 14:05.")
@click.option("--branch", metavar="NAME", help="The newest call that changed something in this branch.")
@click.option("--keep-newer", is_flag=True, help="Leave what was changed since as it is, and take back the rest.")
@click.option("--merge-lines", is_flag=True, help="Take the lines of a call out of text files that were changed since.")
@click.option("-n", "--dry-run", is_flag=True, help="Change nothing; print what would be done.")
@json_option("{calls, undo, changes, kept, conflicts, partly}, also when it is refused.")
@mount_option
def undo(
    calls: Sequence[str],
    by: str | None,
    thread: str | None,
    since: str | None,
    branch: str | None,
    keep_newer: bool,
    merge_lines: bool,
    dry_run: bool,
    output: Output,
    mount: str | None,
) -> None:
    """Take calls back: everything they changed, with all attributes, and nothing that others have done.

    CALL is a name that 'fusebackend log' shows, such as c42. Without one it is the newest call that changed something,
    by anybody, that is no undo and not undone: so a second undo goes further back.

    With --thread or --since it is all of these calls in one step; with both, or with --by, those that are both. What an
    undo among them has taken back already stays as it is.

    All is taken back, or nothing. What a later call has changed as well is named, and refused unless --keep-newer or
    --merge-lines is given. An undo is a call: the command that takes it back is printed.

    A call in a branch is taken back there. Without a CALL, it is one in the mount, or with --branch in that branch.
    """
    if keep_newer and merge_lines:
        raise click.UsageError("--keep-newer or --merge-lines, not both")
    for name, value in {"--by": by, "--thread": thread, "--since": since, "--branch": branch}.items():
        if calls and value is not None:
            raise click.UsageError(f"a CALL or {name}, not both: {name} chooses the call")
        if value == "":
            raise click.UsageError(f"{name} is empty; without it, the newest call by anybody is taken back")
    place = target.here(mount)
    result = place.files.undo(
        *calls,
        by=by,
        thread=thread,
        since=since,
        branch=branch,
        keep_newer=keep_newer,
        merge_lines=merge_lines,
        dry_run=dry_run,
    )
    hint = "--keep-newer leaves these as they are, and takes back the rest"
    if not merge_lines:
        hint += "; --merge-lines takes only the call's own lines out of text files"
    require_done(output, result, [_conflict(place, each) for each in result.conflicts], "nothing was taken back", hint)
    _print(output, place, result, dry_run=dry_run)


def _conflict(place: Target, conflict: UndoConflict) -> str:
    by = f" by {conflict.call}" if conflict.call is not None and conflict.call not in conflict.reason else ""
    return f"'{place.shown(conflict.path)}' {conflict.reason}{by}"


def _print(output: Output, place: Target, result: UndoResult, *, dry_run: bool) -> None:
    show_changes(output, place, result.changes, _WORDS, result.undo, dry_run=dry_run)
    kept = [f"left as it is: {_conflict(place, each)}" for each in result.kept]
    output.notes(listed(kept, " were left as they are"))
    output.notes(result.partly)
    more = len(result.calls) - LISTED
    which = " ".join(result.calls[:LISTED]) + (f" and {more} calls more" if more > 0 else "")
    if not result.calls:
        output.note("there is no call to take back")
    elif dry_run:
        output.note(f"nothing was changed; without -n {which} is taken back")
    elif result.undo is None:
        output.note(f"everything is as it was before {which} already")
    else:
        output.line(f"took back {which}; 'fusebackend undo {result.undo}' takes that back")


# -- what an undo or a merge has done ---------------------------------------------------------------------------
#
# The lines about paths that `undo` and `branch merge` have changed, left alone, or refused to change.


def require_done(
    output: Output, result: UndoResult | MergeResult, conflicts: Sequence[str], what: str, hint: str
) -> None:
    """Print all of an answer for programs. If it was refused, the exit status is 1, and for people there is a line for
    each path in the way. Raises `Failed` then, which says what was not done, and the way out."""
    output.document(asdict(result))
    if not result.conflicts:
        return
    if output.json:
        click.get_current_context().exit(1)
    Complaints().add(*listed(conflicts, " (--json has all)"))
    raise Failed(f"{what}; {hint}")


def show_changes(
    output: Output, place: Target, changes: Sequence[UndoneChange], words: Words, call: str | None, *, dry_run: bool
) -> None:
    """Show the changed paths. `call` is the one whose records have all of them."""
    lines = []
    for change in changes:
        path = output.name(place.shown(change.path))
        if change.old_path is not None:
            path = f"{output.name(place.shown(change.old_path))} -> {path}"
        lines.append(f"{words[change.change][dry_run]} {path}")
    output.lines(listed(lines, "" if call is None else f" (fusebackend log {call} --changes)"))


def listed(lines: Sequence[str], rest: str) -> list[str]:
    """Return the first lines about paths, and one for the others; `rest` is said of these."""
    left = len(lines) - LISTED
    return [*lines[:LISTED], *([f"and {left} paths more{rest}"] if left > 0 else [])]
