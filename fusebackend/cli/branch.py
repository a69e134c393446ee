"""`fusebackend branch`: make a branch of a mount, merge it, and list and delete branches."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict

import click

from fusebackend.cli import target
from fusebackend.cli.show import Output, age, aligned, confirm_deletion, json_option
from fusebackend.cli.space import size_text
from fusebackend.cli.target import Target, complete_path, completing, mount_option, on_mount
from fusebackend.cli.undo import CHANGED, listed, require_done, show_changes
from fusebackend.cli.worktree import fetch_commits
from fusebackend.protocol import WORKTREE, BranchInfo, MergeResult, MountProtocol

complete_name = completing(lambda files: [(each.name, None) for each in files.branches()])
"""Complete the name of a branch."""


@click.group()
def branch() -> None:
    """Make a branch of a mount, and list and delete branches.

    A branch is a directory, /mnt/agent/.fusebackend/branches/NAME, with all files of the mount. What is changed there
    is changed nowhere else. 'exec --branch NAME' and 'shell --branch NAME' run commands for which it is the mount.

    They work on the mount of --mount DIR; else on that of the current directory; else on the only mount there is.
    """


@branch.command()
@click.argument("name")
@click.option("--from", "ref", metavar="REF", help="Begin with this snapshot, branch, or time; a call: before it.")
@click.option("--in", "directory", type=click.Path(), metavar="DIR", help="Put a copy into this plain directory.")
@json_option("{name, time_ns, routes, changes, size_bytes, conflicts, error, directory, path}.")
@on_mount
def create(files: MountProtocol, name: str, ref: str | None, directory: str | None, output: Output) -> None:
    """Make a branch, and print its directory, and the routes that are in it live. No file is copied.

    With --in it is put into a plain directory, which needs no mount to be worked in: 'diff', 'branch merge' and 'exec
    --branch' take in what was changed there. DIR is new or empty, or has held a branch: then only what differs is
    copied, as the second time for the same branch. 'branch delete' leaves DIR as it is.

    Routes that keep snapshots are frozen: in the branch they stay as they are now. Of the others, a file that was not
    changed in the branch is as it is in the mount.
    """
    made = files.create_branch(name, ref, directory)
    path = target.directory_of(files, made)
    output.document({**asdict(made), "path": path})
    output.line(output.name(path))
    live = [prefix for prefix, how in made.routes.items() if how == "live"]
    if live:
        output.note(f"live, for they keep no snapshots: {' '.join(live)}")


@branch.command("list")
@json_option("an array of {name, time_ns, routes, changes, size_bytes, conflicts, error, path}.")
@on_mount
def list_branches(files: MountProtocol, output: Output) -> None:
    """List the branches: name, age, changed names, space, and of each route whether it is frozen or live."""
    found = files.branches()
    objects = [{**asdict(each), "path": target.directory_of(files, each)} for each in found]
    output.listing(objects, aligned([_row(output, each) for each in found]), "no branches")


def _row(output: Output, each: BranchInfo) -> tuple[str, ...]:
    name = output.name(each.name)
    if each.error is not None:
        return name, "", "", size_text(each.size_bytes), f"can't be used: {each.error}"
    conflicts = f", {each.conflicts} in conflict" if each.conflicts else ""
    if each.changes and each.conflicts == 0 and each.unmerged == 0:
        conflicts = ", merged"
    if each.name.startswith(WORKTREE):
        conflicts += ", a worktree"
    changes = f"{each.changes} {'change' if each.changes == 1 else 'changes'}{conflicts}"
    routes = " ".join(f"{output.name(prefix)} {how}" for prefix, how in each.routes.items())
    if each.directory is not None:
        routes += f"  in {output.name(each.directory)}"
    return name, age(time.time_ns() - each.time_ns), changes, size_text(each.size_bytes), routes


@branch.command()
@click.argument("name", shell_complete=complete_name)
@on_mount
def path(files: MountProtocol, name: str) -> None:
    """Print the directory of a branch."""
    output = Output()
    output.line(output.name(target.outside(files, target.find_branch(files, name).path)))


@branch.command()
@click.argument("names", nargs=-1, required=True, shell_complete=complete_name, metavar="NAME...")
@click.option("--yes", is_flag=True, help="Do not ask.")
@on_mount
def delete(files: MountProtocol, names: Sequence[str], yes: bool) -> None:
    """Delete branches, with all that was changed in them. That can't be had back, so on a terminal it asks first;
    elsewhere it needs --yes."""
    confirm_deletion("branch", "branches", names, {each.name for each in files.branches()}, yes)
    files.delete_branches(*names)


# -- merge ------------------------------------------------------------------------------------------------------

_MERGED = {**CHANGED, "create": ("made", "would make"), "replace": ("replaced", "would replace")}


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
    output: Output,
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
    place, below = target.together(paths, mount)
    result = place.files.merge_branch(
        name,
        [*below] or None,
        "main" if keep_main else "branch" if keep_branch else None,
        merge_lines,
        dry_run,
    )
    failed = [] if dry_run or result.conflicts else fetch_commits(place.files, result)
    hint = "--keep-main leaves these as they are, --keep-branch takes them from the branch"
    if not merge_lines:
        hint += ", --merge-lines merges text files"
    conflicts = [f"'{place.shown(each.path)}': {each.reason}" for each in result.conflicts]
    require_done(output, result, conflicts, "nothing was merged", hint)
    _show_merge(output, place, result, dry_run=dry_run)
    output.notes(failed)


def _show_merge(output: Output, place: Target, result: MergeResult, *, dry_run: bool) -> None:
    show_changes(output, place, result.changes, _MERGED, result.call, dry_run=dry_run)
    decided = [f"decided: '{place.shown(each.path)}': {each.reason}" for each in result.decided]
    output.notes(listed(decided, " were decided"))
    output.notes(result.partly)
    name = output.name(result.branch)
    if not result.changes:
        output.note(f"the mount has everything of '{result.branch}' already")
    elif dry_run:
        output.note("nothing was changed; without -n it is merged")
    elif result.call is None:
        output.line(f"merged '{name}'")
    else:
        output.line(f"merged '{name}' as {result.call}; 'fusebackend undo {result.call}' takes it back")
