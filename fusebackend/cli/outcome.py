"""The lines about paths that `undo` and `branch merge` have changed, left alone, or refused to change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TypeAlias

import click

from fusebackend.cli.show import Complaints, Failed, Output, note
from fusebackend.cli.target import Target
from fusebackend.protocol import MergeResult, UndoneChange, UndoResult

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


def show_json(output: Output, result: UndoResult | MergeResult) -> None:
    """Print all of an answer. The exit status is 1 if it was refused."""
    output.document(asdict(result))
    if result.conflicts:
        click.get_current_context().exit(1)


def refuse(lines: Sequence[str], what: str, hint: str) -> None:
    """Show a line for each path in the way. Raises `Failed`, which says what was not done, and the way out."""
    complaints = Complaints()
    for line in lines[:LISTED]:
        complaints.add(line)
    if len(lines) > LISTED:
        complaints.add(f"and {len(lines) - LISTED} paths more (--json has all)")
    raise Failed(f"{what}; {hint}")


def show_changes(
    output: Output, place: Target, changes: Sequence[UndoneChange], words: Words, call: str | None, *, dry_run: bool
) -> None:
    """Show the changed paths. `call` is the one whose records have all of them."""
    for change in changes[:LISTED]:
        path = output.name(place.shown(change.path))
        if change.old_path is not None:
            path = f"{output.name(place.shown(change.old_path))} -> {path}"
        output.line(f"{words[change.change][dry_run]} {path}")
    if len(changes) > LISTED:
        which = "" if call is None else f" (fusebackend log {call} --changes)"
        output.line(f"and {len(changes) - LISTED} paths more{which}")


def show_left(lines: Sequence[str], rest: str) -> None:
    """Show paths that were not changed as asked; `rest` is said of those that are not listed."""
    for line in lines[:LISTED]:
        note(line)
    if len(lines) > LISTED:
        note(f"and {len(lines) - LISTED} paths more {rest}")
