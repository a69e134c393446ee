"""`fusebackend diff`: what a call did, and the differences between two states of a mount."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import click
from click.shell_completion import CompletionItem

from fusebackend.base.git_patch import quoted
from fusebackend.cli import snapshot, states
from fusebackend.cli.log import complete_call
from fusebackend.cli.show import Failed, Output, note
from fusebackend.cli.states import States
from fusebackend.cli.target import complete_path, locate, mount_option
from fusebackend.trees import diff_output
from fusebackend.trees.diff import FOREIGN, Differences, differences
from fusebackend.trees.refs import MAIN_REF, Ref, RefError

if TYPE_CHECKING:
    from fusebackend.control.client.client import Client
    from fusebackend.control.verbs import DiffForm

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


def complete_word(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a path, or the name of a call or a snapshot."""
    if "/" in incomplete:
        return complete_path(context, parameter, incomplete)
    names = snapshot.complete_name(context, parameter, incomplete)
    return [*complete_call(context, parameter, incomplete), *names, *complete_path(context, parameter, incomplete)]


@click.command(cls=_WithPaths)
@click.argument("words", nargs=-1, shell_complete=complete_word, metavar="[REF | A..B] [--] [PATH]...")
@click.option("--stat", "form", flag_value="stat", help="A line for each file: how many lines differ.")
@click.option("--name-status", "form", flag_value="names", help="A letter for each file (A D M R T), and its path.")
@click.option(
    "--json",
    "form",
    flag_value="json",
    help="For programs: a line {change, path, old_path, fields, before, after} for each difference.",
)
@mount_option
def diff(words: Sequence[str], form: str | None, mount: str | None) -> None:
    """Show what a call did, what differs between a state of the mount and now, or between two states: A..B.

    REF is a call of 'fusebackend log' (c42), the name of a snapshot or of a branch, a time (10m, 2h, 14:05, yesterday,
    2026-11-22T14:05: the newest snapshot at it or before), or main, which is now. Without REF it is the last call. A
    call alone is what it did, and nothing of what others did; in A..B it is the state before it. A PATH need not exist
    any more; without one it is the whole mount.

    Comment lines below a patch have what git can't say: owners, xattrs, empty directories, special files.

    The exit status is 0 whether there are differences or not, and 1 if some files could not be compared.
    """
    context = click.get_current_context()
    chosen = _chosen(words, context.meta.get(AFTER_DASHES), mount)
    if isinstance(chosen, _OfCall):
        _show_call(chosen, form or "patch")
        return
    known, before, after, paths = chosen
    scope = known.scope(paths, before, after)
    older_ns = None if before.is_main and after.is_main else known.older_ns(before, after)
    try:
        result = differences(
            known.tree(before),
            known.tree(after),
            scope.paths,
            left_out=scope.left_out,
            ways=scope.ways,
            older_ns=older_ns,
        )
    except FileNotFoundError as error:
        raise Failed(f"'/{error.filename}' is neither in '{before.name}' nor in '{after.name}'") from None
    _show(result, form or "patch")
    for prefix in scope.missing:
        note(f"route '{prefix}' was not compared: not both states hold it")
    if any(reason != FOREIGN for _, reason in result.skipped):
        context.exit(1)


class _OfCall(NamedTuple):
    """What a call did is asked for, or a comparison with the state before one; at some paths, or everywhere where there
    are none."""

    files: Client
    call: str
    paths: list[str]


def _show_call(chosen: _OfCall, form: str) -> None:
    output = Output()
    columns = shutil.get_terminal_size().columns if output.terminal else diff_output.STAT_COLUMNS
    coloured = output.terminal and form == "patch"
    kinds: dict[str, DiffForm] = {"patch": "patch", "stat": "stat", "names": "names", "json": "json"}

    def take(piece: bytes) -> None:
        if coloured:
            _print_coloured(output, piece)
        else:
            output.bytes(piece)

    with states.in_a_line():
        chosen.files.diff(chosen.call, paths=chosen.paths, form=kinds[form], columns=columns, on_text=take)


def _chosen(
    words: Sequence[str], after_dashes: Sequence[str] | None, mount: str | None
) -> tuple[States, Ref, Ref, list[bytes]] | _OfCall:
    """Tell REF from PATH: as in git, the first word is a REF if it names one, and else a path that is there."""
    if after_dashes is not None and len(words) > 1:
        raise click.UsageError(f"one REF or A..B before '--', not {len(words)} words")
    first, given = (words[0] if words else None), list(after_dashes or words[1:])
    if first is not None and "/" in first and after_dashes is None:  # no REF has one, and it may tell the mount
        first, given = None, list(words)
    known, paths = states.states_of(given, mount)
    if first is not None and after_dashes is None and not known.refs.is_ref(first) and _is_there(first, mount):
        known, paths = states.states_of([first, *given], mount)
        first = None
    call = _last_call(known) if first is None else first
    if call is not None and known.refs.has_call(call):
        return _OfCall(known.files, call, [f"/{os.fsdecode(path)}" for path in paths])
    try:
        before, after = (known.refs.newest(), MAIN_REF) if first is None else known.refs.pair(first)
    except RefError as error:
        hint = "; a PATH that is gone stands after '--'" if first is not None and after_dashes is None else ""
        raise Failed(f"{error}{hint}") from None
    return known, before, after, paths


def _last_call(known: States) -> str | None:
    """Return the newest call that changed something; None if the mount keeps no history, or it has none."""
    try:
        with states.in_a_line():
            before: str | None = None
            while found := known.files.log(before=before, limit=PAGE):
                for each in found:
                    if each.changes:  # requests for approvals have none
                        return each.call
                before = found[-1].call
            return None
    except OSError as error:
        if error.errno == errno.ENOTSUP:
            return None
        raise


def _is_there(word: str, mount: str | None) -> bool:
    """Return True for a word that is a path of the mount now."""
    return os.path.lexists(word) if mount is None else locate(word, mount).kind(follow=False) is not None


def _show(result: Differences, form: str) -> None:
    output = Output()
    if form == "patch":
        for piece in diff_output.patch(result):
            if output.terminal:
                _print_coloured(output, piece)
            else:
                output.bytes(piece)
        return
    if form == "json":
        for value in diff_output.as_objects(result):
            output.record(value)
        return
    if form == "names":
        lines = diff_output.name_status(result)
    else:
        columns = shutil.get_terminal_size().columns if output.terminal else diff_output.STAT_COLUMNS
        lines = diff_output.stat_lines(list(diff_output.stat_rows(result)), columns)
    for line in lines:
        output.line(line)
    for path, reason in result.skipped:
        note(f"{quoted(path or b'.')} was not compared: {reason}")


def _print_coloured(output: Output, piece: bytes) -> None:
    """Print lines of a patch on a terminal: their control characters must not steer it."""
    for line in piece.decode("utf-8", "surrogateescape").removesuffix("\n").split("\n"):
        colour = next((colour for beginnings, colour in _COLOURS if line.startswith(beginnings)), None)
        shown = output.text(line)
        output.line(output.paint(shown, colour) if colour else shown)
