"""`fusebackend hook worktree`: worktrees of a coding agent are branches of the mount.

Claude Code asks a `WorktreeCreate` hook for a directory in place of `git worktree add`, tells a `WorktreeRemove` hook
when it has no more use for it, which is often not sent, and gives a session what a `SessionStart` hook prints. A branch
takes milliseconds, has all files in it that git does not know, and can't destroy the repository that it was made of.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import click

from fusebackend.cli import target
from fusebackend.cli.show import Failed, age
from fusebackend.linux import mount_table
from fusebackend.protocol import WORKTREE, BranchInfo, MergeResult, MountProtocol

MAX_INPUT_BYTES: Final = 1 << 20

GIT_TIMEOUT_S: Final = 60.0

NO_HOOKS: Final = ("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "gc.auto=0")
"""An agent may have written the repository's settings: they start no program."""

_FETCH: Final = ("fetch", "--quiet", "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head")

_ODD = re.compile(r"[^A-Za-z0-9._-]+")


@click.group(hidden=True)
def worktree() -> None:
    """Answer the hooks of a coding agent about worktrees. Its settings call these, with JSON on standard input."""


@worktree.command()
@click.option("--in", "directory", type=click.Path(), help="Put the branch into a directory in this one.")
def create(directory: str | None) -> None:
    """Make a branch, and print its directory. One that is there already is used again."""
    told = _told()
    name = WORKTREE + _ODD.sub("-", str(told.get("name") or told.get("worktree_name") or "")).strip("-.")
    if name == WORKTREE:
        raise Failed("the hook's input has no 'name' of a worktree")
    cwd = os.path.realpath(str(told.get("cwd") or "."))
    mountpoint = mount_table.our_mount_of(cwd)
    if mountpoint is None:
        raise Failed(f"'{cwd}' is in no mount of fusebackend: install the hooks for a project in one ('--project')")
    files = target.open_client(mountpoint)
    found = next((each for each in files.branches() if each.name == name), None)
    if found is None or (directory is not None and found.directory is None):
        place = None if directory is None else os.path.join(directory, name.removeprefix(WORKTREE))
        found = files.create_branch(name, None, place)
    print(target.directory_of(files, target.usable(found)) + _project(files, found, cwd).rstrip("/"))


@worktree.command()
@click.option("--on-remove", "what", type=click.Choice(["keep", "merge", "delete"]), default="keep")
def remove(what: str) -> None:
    """A worktree has no more use. After a merge that is not refused it is deleted."""
    path = os.path.realpath(str(_told().get("worktree_path") or ""))
    for files, each, root in _worktrees(target.mountpoints()):
        if what == "keep" or not (path + "/").startswith(root + "/"):
            continue
        failed = _merge(files, each.name) if what == "merge" else []
        if failed:
            raise Failed(f"worktree '{each.name}' is kept: {'; '.join(failed)}")
        files.delete_branches(each.name)


@worktree.command()
def start() -> None:
    """Name the worktrees that earlier sessions have left in the mount of the current directory."""
    mountpoint = mount_table.our_mount_of(os.path.realpath(str(_told().get("cwd") or ".")))
    for _, each, _ in _worktrees([mountpoint] if mountpoint is not None else []):
        changes = f"{each.changes} {'change' if each.changes == 1 else 'changes'}"
        print(
            f"The worktree '{each.name}' was left {age(time.time_ns() - each.time_ns)} ago, with {changes}: "
            f"'fusebackend branch merge {each.name}' or 'fusebackend branch delete --yes {each.name}' ends it."
        )


def fetch_commits(files: MountProtocol, merged: MergeResult) -> list[str]:
    """Fetch the commits that the repositories of a merged worktree are at, into `refs/fusebackend/NAME` of the mount's.

    Returns:
        What could not be fetched, a line each.
    """
    failed: list[str] = []
    if not merged.repositories:
        return failed
    (root,) = (target.directory_of(files, each) for each in files.branches() if each.name == merged.branch)
    for repository in merged.repositories:
        here, there = target.outside(files, repository), root + repository.rstrip("/")
        if (head := _git(there, "rev-parse", "--verify", "--quiet", "HEAD")).returncode == 0:
            if head.stdout == _git(here, "rev-parse", "--verify", "--quiet", "HEAD").stdout:
                continue
            ref = f"+HEAD:refs/fusebackend/{merged.branch}"
            done = _git(here, *_FETCH, there, ref)
            if done.returncode:
                why = done.stderr.strip().rpartition("\n")[2] or "git failed"
                failed.append(f"'{here}': the commits of '{merged.branch}' were not fetched: {why}")
    return failed


def _git(repository: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = ["git", "-C", repository, *NO_HOOKS, *words]
    try:
        return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=GIT_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))


def _merge(files: MountProtocol, name: str) -> list[str]:
    """Merge a worktree; return why it must be kept, if it must."""
    merged = files.merge_branch(name)
    if merged.conflicts:
        return [f"'{each.path}' {each.reason}" for each in merged.conflicts[:3]]
    return fetch_commits(files, merged)


def _told() -> Mapping[str, Any]:
    """Return what the agent says."""
    try:
        told = json.loads(sys.stdin.buffer.read(MAX_INPUT_BYTES))
    except (ValueError, RecursionError) as error:
        raise Failed(f"the hook's input is no JSON: {error}") from None
    if not isinstance(told, dict):
        raise Failed("the hook's input is no JSON object")
    return told


def _worktrees(mountpoints: Iterable[str]) -> Iterator[tuple[MountProtocol, BranchInfo, str]]:
    """Yield the worktrees, each with its mount and its directory, without links on the way."""
    for mountpoint in mountpoints:
        found: list[tuple[MountProtocol, BranchInfo, str]] = []
        with contextlib.suppress(OSError, Failed):  # one that has no branches, or can't be asked
            files = target.open_client(mountpoint)
            branches = [each for each in files.branches() if each.name.startswith(WORKTREE) and not each.error]
            found = [(files, each, os.path.realpath(target.directory_of(files, each))) for each in branches]
        yield from found


def _project(files: MountProtocol, branch: BranchInfo, cwd: str) -> str:
    """Return the path in the mount of the repository that a directory is in, else of the directory itself; in a branch,
    as `branch` is one, that which it is of."""
    parts = cwd[len(files.mountpoint) :].split("/")
    branches = branch.path.split("/")[:-1]
    if parts[: len(branches)] == branches:
        parts = ["", *parts[len(branches) + 1 :]]
    for count in range(len(parts), 0, -1):
        above = "/".join(parts[:count])
        if os.path.exists(os.path.join(files.mountpoint + above, ".git")):
            return above
    return "/".join(parts)
