"""`fusebackend grep` and `fusebackend glob`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from fusebackend.cli import target
from fusebackend.cli.progress import waiting
from fusebackend.cli.show import Complaints, Output, json_option, note
from fusebackend.cli.target import Target, complete_path, mount_option
from fusebackend.protocol import GrepMatch

NO_MATCH, TROUBLE = 1, 2
"""Exit statuses of grep(1)."""


@click.command()
@click.argument("pattern")
@click.argument("paths", nargs=-1, shell_complete=complete_path, metavar="[PATH]...")
@click.option("-l", "names", is_flag=True, help="Print the paths of files that have a match, and no lines.")
@click.option("-c", "counts", is_flag=True, help="Print how many lines match, for each file that has any.")
@click.option("-g", "--glob", "glob", metavar="GLOB", help="Look only into files of such names, as '*.md'.")
@click.option("-m", "max_count", type=click.IntRange(min=1), metavar="N", help="Stop after N matches in all.")
@click.option("-0", "zero", is_flag=True, help="With -l: end paths with NUL, for 'xargs -0'.")
@json_option("{matches: [{path, line, text}], truncated, missing}.")
@mount_option
def grep(
    pattern: str,
    paths: Sequence[str],
    names: bool,
    counts: bool,
    glob: str | None,
    max_count: int | None,
    zero: bool,
    as_json: bool,
    mount: str | None,
) -> None:
    """Find the lines that contain PATTERN, in files and below directories, as 'grep -rnF' does.

    PATTERN is a string, not a regular expression. Put -- before a pattern that starts with '-'. Lines are printed as
    PATH:NUMBER:LINE, sorted by path. Binary files have no lines. If not all could be searched, or there was more than
    N, standard error says so. Without a PATH, the current directory is searched if it lies in a mount, or else the only
    mount there is.

    The exit status is 0 if something was found, 1 if nothing was, 2 after an error.
    """
    if "\n" in pattern:
        raise click.UsageError("PATTERN is to be found in one line, and holds a line break")
    if zero and not names:
        raise click.UsageError("-0 goes with -l")
    output = Output()
    complaints = Complaints(exit_code=TROUBLE)
    matches: list[GrepMatch] = []
    truncated = False
    missing: list[str] = []
    for given in paths or (None,):
        left = None if max_count is None else max_count - len(matches)
        with complaints:
            place = _there(given, mount)
            with waiting("searching", quiet=as_json):
                found = place.files.grep(pattern, place.path, glob, max_count=left)
            place.require(found.error)
            matches += [{**match, "path": place.shown(match["path"])} for match in found.matches or ()]
            truncated = truncated or found.truncated
            missing += [found.missing] if found.missing is not None else []
    if as_json:
        output.document({"matches": matches, "truncated": truncated, "missing": "; ".join(missing) or None})
    elif names or counts:
        _show_files(output, matches, counts, "\0" if zero else "\n")
    else:
        _show_lines(output, matches, pattern)
    if truncated and not as_json:
        note("; ".join(missing) or _why_not_all(max_count is not None and len(matches) >= max_count))
    complaints.finish(0 if matches else NO_MATCH)


def _there(given: str | None, mount: str | None) -> Target:
    """Where to search. Raises `Failed` when there is nothing: the verb would find no match in it."""
    place = target.here(mount) if given is None else target.locate(given, mount)
    place.stat()
    return place


def _why_not_all(limited: bool) -> str:
    if limited:
        return "there are more matches than -m asked for"
    return "not everything was searched: it took too long, or files are too large or may not be read"


def _show_files(output: Output, matches: list[GrepMatch], counts: bool, end: str) -> None:
    lines: dict[str, int] = {}
    for match in matches:
        lines[match["path"]] = lines.get(match["path"], 0) + 1
    for path, count in lines.items():
        shown = output.paint(output.name(path), "magenta")
        output.line(f"{shown}{output.paint(':', 'cyan')}{count}" if counts else shown, end=end)


def _show_lines(output: Output, matches: list[GrepMatch], pattern: str) -> None:
    colon = output.paint(":", "cyan")
    marked = output.paint(output.text(pattern), "red", bold=True)
    for match in matches:
        text = output.text(match["text"])
        if output.colours and pattern:
            text = text.replace(output.text(pattern), marked)
        path = output.paint(output.name(match["path"]), "magenta")
        output.line(f"{path}{colon}{output.paint(str(match['line']), 'green')}{colon}{text}")


@click.command()
@click.argument("pattern")
@click.argument("path", required=False, shell_complete=complete_path)
@click.option("-0", "zero", is_flag=True, help="End paths with NUL, for 'xargs -0'.")
@json_option("{matches: [{path, is_dir, size, modified_at}], truncated, truncation_reason, missing}.")
@mount_option
def glob(pattern: str, path: str | None, zero: bool, as_json: bool, mount: str | None) -> None:
    """Find the regular files with names that match PATTERN, below PATH.

    '*' and '?' stay inside a name, '**' spans directories; '[a-z]' and '{a,b}' are as in a shell. A PATTERN without '/'
    is for names at any depth, one with '/' for paths from PATH on. Quote it, or the shell takes it for itself.

    The exit status is 0 also if nothing was found, as find(1)'s is.
    """
    output = Output()
    place = _there(path, mount)
    with waiting("searching", quiet=as_json):
        found = place.files.glob(pattern, place.path)
    place.require(found.error)
    matches: list[dict[str, Any]] = [{**info, "path": place.shown(info["path"])} for info in found.matches or ()]
    if as_json:
        output.document({
            "matches": matches, "truncated": found.truncated, "truncation_reason": found.truncation_reason,
            "missing": found.missing,
        })  # fmt: skip
        return
    for info in matches:
        output.line(output.name(info["path"]), end="\0" if zero else "\n")
    if found.truncated:
        note(f"not everything was searched ({found.missing or found.truncation_reason or 'unknown reason'})")
