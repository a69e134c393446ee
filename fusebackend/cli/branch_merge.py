"""`fusebackend branch merge`: the changes of a branch, made in the mount."""

from __future__ import annotations

from collections.abc import Sequence

import click

from fusebackend.cli import target
from fusebackend.cli.branch import branch, complete_name
from fusebackend.cli.show import Output, json_option, note
from fusebackend.cli.target import Target, complete_path, mount_option
from fusebackend.cli.undo import CHANGED, refuse, show_changes, show_json, show_left
from fusebackend.cli.worktree import fetch_commits
from fusebackend.protocol import MergeResult

__all__ = ["branch"]

_WORDS = {**CHANGED, "create": ("made", "would make"), "replace": ("replaced", "would replace")}


@branch.command()
@click.argument("name", shell_complete=complete_name)
@click.argument("paths", nargs=-1, shell_complete=complete_path, metavar="[--] [PATH]...")
@click.option("--merge-lines", is_flag=True, help="Merge the lines of text files that both have changed.")
@click.option("--keep-main", is_flag=True, help="Where both have changed something, leave the mount as it is.")
@click.option("--keep-branch", is_flag=True, help="Where both have changed something, take it from the branch.")
@click.option("-n", "--dry-run", is_flag=True, help="Change nothing; print what would be done.")
@json_option("{branch, call, changes, decided, conflicts, partly}, also when it is refused.")
@mount_option
def merge(
    name: str,
    paths: Sequence[str],
    merge_lines: bool,
    keep_main: bool,
    keep_branch: bool,
    dry_run: bool,
    as_json: bool,
    mount: str | None,
) -> None:
    """Make the changes of a branch in the mount; with PATHs, only those at and below them, as paths of the mount.

    What both have changed since the branch was made is named, and nothing is merged unless an option decides. So is a
    file that a process has open for writing. After an interruption the same command completes the merge.

    Of a worktree of a coding agent ('hook claude-code --worktrees') no '.git' is merged: the commit that its HEAD is at
    is fetched, as refs/fusebackend/NAME.

    A merge is a call: the command that takes it back is printed. The branch stays; 'branch delete' removes it.
    """
    if keep_main and keep_branch:
        raise click.UsageError("--keep-main or --keep-branch, not both")
    places = [target.locate(given, mount, follow=False) for given in paths]
    place = places[0] if places else target.here(mount)
    for each in places:
        target.require_mount(each, place.files)
    output = Output()
    result = place.files.merge_branch(
        name,
        [each.path for each in places] or None,
        "main" if keep_main else "branch" if keep_branch else None,
        merge_lines,
        dry_run,
    )
    failed = [] if dry_run or result.conflicts else fetch_commits(place.files, result)
    if as_json:
        show_json(output, result)
        return
    if result.conflicts:
        _refuse(place, result, merge_lines=merge_lines)
    _print(output, place, result, dry_run=dry_run)
    for line in failed:
        note(line)


def _refuse(place: Target, result: MergeResult, *, merge_lines: bool) -> None:
    hint = "--keep-main leaves these as they are, --keep-branch takes them from the branch"
    if not merge_lines:
        hint += ", --merge-lines merges text files"
    refuse([f"'{place.shown(each.path)}': {each.reason}" for each in result.conflicts], "nothing was merged", hint)


def _print(output: Output, place: Target, result: MergeResult, *, dry_run: bool) -> None:
    show_changes(output, place, result.changes, _WORDS, result.call, dry_run=dry_run)
    show_left([f"decided: '{place.shown(each.path)}': {each.reason}" for each in result.decided], "were decided")
    for line in result.partly:
        note(line)
    name = output.name(result.branch)
    if not result.changes:
        note(f"the mount has everything of '{result.branch}' already")
    elif dry_run:
        note("nothing was changed; without -n it is merged")
    elif result.call is None:
        output.line(f"merged '{name}'")
    else:
        output.line(f"merged '{name}' as {result.call}; 'fusebackend undo {result.call}' takes it back")
