"""`fusebackend diff`: what a call did, and the differences between two states of a mount."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from fusebackend.cli import snapshot
from fusebackend.cli.log import complete_call
from fusebackend.cli.show import Failed, Output, note
from fusebackend.cli.target import complete_path, locate, mount_option, together
from fusebackend.protocol.served import NOT_HELD, STAT_COLUMNS
from fusebackend.trees.refs import RefError, Refs, Taken

if TYPE_CHECKING:
    from fusebackend.base.paths import AgentPath
    from fusebackend.control.client.client import Client
    from fusebackend.protocol.served import DiffForm

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
    coloured = output.terminal and form == "patch"
    incomplete = False

    def take(piece: bytes) -> None:
        if coloured:
            _print_coloured(output, piece)
        else:
            output.bytes(piece)

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
) -> tuple[Client, str, list[AgentPath]]:
    """Tell REF from PATH: as in git, the first word is a REF if it names one, and else a path that is there."""
    if after_dashes is not None and len(words) > 1:
        raise click.UsageError(f"one REF or A..B before '--', not {len(words)} words")
    first, given = (words[0] if words else None), list(after_dashes or words[1:])
    if first is not None and "/" in first and after_dashes is None:  # no REF has one, and it may tell the mount
        first, given = None, list(words)
    files, paths = together(given, mount)
    refs = Refs([Taken(each.name, each.time_ns) for each in files.snapshots()],
                [Taken(each.name, each.time_ns) for each in files.branches() if each.error is None])  # fmt: skip
    if first is not None and after_dashes is None and not refs.is_ref(first) and _is_there(first, mount):
        files, paths = together([first, *given], mount)
        first = None
    ref = _last_call(files) if first is None else first
    try:
        if ref is None:
            ref = refs.newest().name
        elif not refs.has_call(ref):
            refs.pair(ref)
    except RefError as error:
        hint = "; a PATH that is gone stands after '--'" if first is not None and after_dashes is None else ""
        raise Failed(f"{error}{hint}") from None
    return files, ref, paths


def _last_call(files: Client) -> str | None:
    """Return the newest call that changed something; None if the mount keeps no history, or it has none."""
    try:
        before: str | None = None
        while found := files.log(before=before, limit=PAGE):
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


def _print_coloured(output: Output, piece: bytes) -> None:
    """Print lines of a patch on a terminal: their control characters must not steer it."""
    for line in piece.decode("utf-8", "surrogateescape").removesuffix("\n").split("\n"):
        colour = next((colour for beginnings, colour in _COLOURS if line.startswith(beginnings)), None)
        shown = output.text(line)
        output.line(output.paint(shown, colour) if colour else shown)
