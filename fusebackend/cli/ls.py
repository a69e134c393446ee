"""`fusebackend ls`: directories as `ls` and `ls -l` show them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from fusebackend.base import errors
from fusebackend.cli import target
from fusebackend.cli.show import (
    Complaints,
    Failed,
    Output,
    group_name,
    json_option,
    mode_string,
    to_the_minute,
    user_name,
)
from fusebackend.cli.target import Target, base_name, complete_path, mount_option

if TYPE_CHECKING:
    from fusebackend.protocol import StatResult

COLUMN_GAP = 2

Entry = dict[str, Any]
"""Fields of a file in `--json`: `path`, `is_dir`, `size`, `modified_at`, `version`; with -l those of `stat --json`."""


@click.command()
@click.argument("paths", nargs=-1, shell_complete=complete_path, metavar="[PATH]...")
@click.option("-l", "long", is_flag=True, help="One line for each, with mode, links, owner, group, size and time.")
@click.option("-a", "-A", "hidden", is_flag=True, help="Also names that start with a dot.")
@click.option("-R", "recursive", is_flag=True, help="Also directories below.")
@click.option("-1", "single", is_flag=True, help="One name a line, also on a terminal.")
@json_option("an array of {path, is_dir, size, modified_at, version}; with -l of what 'stat --json' prints.")
@mount_option
def ls(
    paths: Sequence[str], long: bool, hidden: bool, recursive: bool, single: bool, as_json: bool, mount: str | None
) -> None:
    """List directories, and files by themselves. Names of directories end with '/'.

    Without a PATH, that is the current directory if it lies in a mount, or else the only mount there is. The exit
    status is 1 if anything could not be listed.
    """
    output = Output()
    complaints = Complaints()
    found: list[tuple[Target, Entry | None]] = []
    for each in paths or (None,):
        with complaints:
            place = target.here(mount) if each is None else target.locate(each, mount)
            found.append((place, _file(place, long)))
    files = [entry for _, entry in found if entry is not None]
    directories = [place for place, entry in found if entry is None]
    listings = _listings(directories, long, hidden, recursive, complaints)
    if as_json:
        output.document(files + [entry for _, entries in listings for entry in entries])
    else:
        _show(output, files, listings, long, output.terminal and not single, recursive or len(found) > 1)
    complaints.finish()


def _file(place: Target, long: bool) -> Entry | None:
    """The named file, or None for a directory. Raises `Failed` when it is not there."""
    from fusebackend.text import iso_time

    found = place.stat()
    if found.type == "directory":
        return None
    if long:
        return _long(place, place.stat(follow=False))
    shown = place.shown(place.path)
    known = {"path": shown, "is_dir": False, "size": found.size, "modified_at": iso_time(found.mtime_ns or 0)}
    return {**known, "version": found.version} if found.version else known


def _long(place: Target, found: StatResult) -> Entry:
    """`stat` of a name, for -l and for --json."""
    told = asdict(found)
    del told["error"], told["code"]
    return {**told, "path": place.shown(place.path)}


def _listings(
    directories: Sequence[Target], long: bool, hidden: bool, recursive: bool, complaints: Complaints
) -> Iterator[tuple[Target, list[Entry]]]:
    """Yield the entries of directories, and with `recursive` of those below, each directory before its entries."""
    left = list(reversed(directories))
    while left:
        place = left.pop()
        entries: list[Entry] = []
        below: list[Target] = []
        with complaints:
            for child, entry, is_directory in _children(place, long, recursive, hidden):
                entries.append(entry)
                if is_directory:
                    below.append(child)
        yield place, entries
        left += reversed(below)


def _children(place: Target, long: bool, recursive: bool, hidden: bool) -> Iterator[tuple[Target, Entry, bool]]:
    """List the entries of a directory, each with its printed form, and whether to list below it. Raises `Failed`."""
    if long:
        for found in place.stats():
            child = place.below(base_name(found.path or ""))
            if found.code == errors.FILE_NOT_FOUND:
                continue  # it has gone since it was listed
            if found.error is not None:
                raise child.failed(found)
            if hidden or not child.is_hidden:
                yield child, _long(child, found), recursive and found.type == "directory"
        return
    answer = place.files.ls(place.path)
    if answer.error is not None:
        raise Failed(place.words(answer.error))
    for info in answer.entries or ():
        child = place.below(base_name(info["path"]))
        if hidden or not child.is_hidden:
            # A link to a directory is listed as one, and may lead back to where we are.
            down = recursive and info.get("is_dir") and child.kind(follow=False) == "directory"
            yield child, {**info, "path": place.shown(info["path"])}, bool(down)


# --------------------------------------------------------------------------------------------------------------
# For people
# --------------------------------------------------------------------------------------------------------------


def _show(
    output: Output,
    files: list[Entry],
    listings: Iterator[tuple[Target, list[Entry]]],
    long: bool,
    columns: bool,
    headed: bool,
) -> None:
    _show_entries(output, files, [entry["path"] for entry in files], long, columns)
    begun = bool(files)
    for place, entries in listings:
        if headed:
            output.line(("\n" if begun else "") + output.name(place.shown(place.path)) + ":")
        begun = True
        _show_entries(output, entries, [_name(entry) for entry in entries], long, columns)


def _name(entry: Entry) -> str:
    path: str = entry["path"]
    name = path.rstrip("/").rpartition("/")[2]
    return name + "/" if entry.get("is_dir") or entry.get("type") == "directory" else name


def _show_entries(output: Output, entries: list[Entry], names: list[str], long: bool, columns: bool) -> None:
    if long:
        for line in long_lines(output, entries, names):
            output.line(line)
    elif columns:
        for row in in_columns([output.name(name) for name in names], shutil.get_terminal_size().columns):
            output.line("".join(_painted(output, cell) for cell in row))
    else:
        for name in names:
            output.line(_painted(output, output.name(name)))


def _painted(output: Output, cell: str) -> str:
    return output.paint(cell, "blue", bold=True) if cell.rstrip().endswith("/") else cell


def in_columns(names: Sequence[str], width: int) -> Iterator[list[str]]:
    """Names in as many columns as fit into `width`, sorted downwards; the rows, with padded cells."""
    from rich.cells import cell_len

    widths = [cell_len(name) for name in names]
    for count in range(min(len(names), max(width // (1 + COLUMN_GAP), 1)), 0, -1):
        rows = -(-len(names) // count)
        column_widths = [max(widths[start : start + rows]) + COLUMN_GAP for start in range(0, len(names), rows)]
        if sum(column_widths) - COLUMN_GAP <= width or count == 1:
            for row in range(rows):
                cells = range(row, len(names), rows)
                yield [
                    names[cell] + " " * (column_widths[column] - widths[cell] if cell + rows < len(names) else 0)
                    for column, cell in enumerate(cells)
                ]
            return


def long_lines(output: Output, entries: Sequence[Entry], names: Sequence[str]) -> Iterator[str]:
    """The lines of `ls -l`, aligned. Unknown attributes are `-`."""
    rows = [
        (
            mode_string(entry["type"], entry["mode"]),
            _or_dash(entry["nlink"]),
            "-" if entry["uid"] is None else user_name(entry["uid"]),
            "-" if entry["gid"] is None else group_name(entry["gid"]),
            _or_dash(entry["size"]),
            "-" if entry["mtime_ns"] is None else to_the_minute(entry["mtime_ns"]),
        )
        for entry in entries
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for (mode, links, user, group, size, time), name, entry in zip(rows, names, entries, strict=True):
        _, links_width, user_width, group_width, size_width, time_width = widths
        arrow = f" -> {output.name(entry['target'])}" if entry["target"] is not None else ""
        yield (
            f"{mode} {links:>{links_width}} {user:<{user_width}} {group:<{group_width}} {size:>{size_width}} "
            f"{time:<{time_width}} {_painted(output, output.name(name))}{arrow}"
        )


def _or_dash(value: int | None) -> str:
    return "-" if value is None else str(value)
