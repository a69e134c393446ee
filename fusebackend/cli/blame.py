"""`fusebackend blame`: which call left each line of a file as it is."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from fusebackend.cli import target
from fusebackend.cli.log import moment, who
from fusebackend.cli.show import Failed, Output, json_option
from fusebackend.cli.target import complete_path, mount_option

if TYPE_CHECKING:
    from fusebackend.protocol import BlamedLine, BlameResult

CANDIDATES = 3
"""Calls that a line names, at most."""

OTHERS = "-"
"""For a change that the log does not have."""


@click.command()
@click.argument("path", shell_complete=complete_path)
@click.option("--branch", metavar="NAME", help="PATH is one of this branch, as '/plan.md'.")
@json_option("{path, last, lines: [{text, calls, others}], calls: {NAME: a call as of 'log'}}.")
@mount_option
def blame(path: str, branch: str | None, as_json: bool, mount: str | None) -> None:
    """Show which call left each line of PATH as it is: call, actor, time, number of the line, line.

    '-' is a change that the log does not have: an older one, or one past the mount. Several calls, or 'c42|-', mean
    that one of them made the line: the bytes between are lost, or they changed the file in turn. Renames are followed.
    Of a binary file and one above 2 MiB, only the last call is shown.

    'fusebackend diff c42' shows what the call c42 did, 'fusebackend undo c42' takes it back.
    """
    output = Output()
    place = target.locate(path, mount) if branch is None else target.here(mount)
    shown = place.shown(place.path) if branch is None else path
    try:
        found = place.files.blame(place.path if branch is None else path, branch=branch)
    except OSError as error:
        raise Failed(f"'{shown}': {error.strerror}") from None
    if as_json:
        output.document({**asdict(found), "path": shown})
    elif found.lines is None:
        _show_last(output, shown, found)
    else:
        _show_lines(output, found, found.lines)


def _show_last(output: Output, shown: str, found: BlameResult) -> None:
    call = found.calls.get(found.last or "")
    name = output.name(shown)
    if call is None:
        output.line(f"{OTHERS}  {name}: the log has no change of it")
        return
    output.line(
        f"{call.call}  {moment(call.began_ns)}  {output.told(who(call.actor))}  {name}: {output.told(call.title)}"
    )


def _show_lines(output: Output, found: BlameResult, lines: list[BlamedLine]) -> None:
    heads = [_head(output, found, line) for line in lines]
    widths = [max(map(len, column)) for column in zip(*heads, strict=True)]
    digits = len(str(len(lines)))
    for number, (head, line) in enumerate(zip(heads, lines, strict=True), 1):
        before = "  ".join(text.ljust(width) for text, width in zip(head, widths, strict=True))
        output.line(f"{output.paint(before, 'yellow')}  {number:>{digits}}) {output.text(line.text)}")


def _head(output: Output, found: BlameResult, line: BlamedLine) -> tuple[str, str, str]:
    """Return call, actor and time of a line."""
    names = line.calls[:CANDIDATES] + (["…"] if len(line.calls) > CANDIDATES else []) + [OTHERS] * line.others
    known = [found.calls[name] for name in line.calls if name in found.calls]
    actors = dict.fromkeys(output.told(who(call.actor)) for call in known[:CANDIDATES])
    times = [moment(call.began_ns) for call in known] if len(line.calls) == 1 else []
    return "|".join(names) or OTHERS, "|".join(actors), "".join(times)
