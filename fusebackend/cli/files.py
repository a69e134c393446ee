"""`fusebackend ls`, `stat`, `read`, `write`, `edit`, `rm`, `mv`, `grep` and `glob`: files, as an agent works on them.

The verb of each, with paths in the words of the command line. Of several paths each is tried, and the exit status is 1
if anything was wrong with one; that of `grep` is 2 then.
"""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import click

from fusebackend.base import errors
from fusebackend.cli import target
from fusebackend.cli.progress import progress
from fusebackend.cli.show import (
    TO_THE_MINUTE,
    Complaints,
    Failed,
    Output,
    group_name,
    json_option,
    local_time,
    mode_string,
    padded,
    to_the_nanosecond,
    user_name,
)
from fusebackend.cli.target import Target, base_name, complete_path, if_version_option, mount_option
from fusebackend.protocol import READ_LIMIT_LINES, GrepMatch, StatResult

COLUMN_GAP = 2

ALL_LINES = (1 << 31) - 1

SNIFFED_BYTES = 8192
"""A NUL among the first bytes means a binary file, as git and grep decide."""

Entry = dict[str, Any]
"""Fields of a file in `--json`: `path`, `is_dir`, `size`, `modified_at`, `version`; with -l those of `stat --json`."""

_OPTIONS = (("Use replace_all=True to replace all", "Use --all to replace all"), ("old_string", "OLD"))
"""Words of the errors of `edit`, and the command's for them."""

# -- ls ---------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("paths", nargs=-1, shell_complete=complete_path, metavar="[PATH]...")
@click.option("-l", "long", is_flag=True, help="One line for each, with mode, links, owner, group, size and time.")
@click.option("-a", "-A", "hidden", is_flag=True, help="Also names that start with a dot.")
@click.option("-R", "recursive", is_flag=True, help="Also directories below.")
@click.option("-1", "single", is_flag=True, help="One name a line, also on a terminal.")
@json_option("an array of {path, is_dir, size, modified_at, version}; with -l of what 'stat --json' prints.")
@mount_option
def ls(
    paths: Sequence[str], long: bool, hidden: bool, recursive: bool, single: bool, output: Output, mount: str | None
) -> None:
    """List directories, and files by themselves. Names of directories end with '/'.

    Without a PATH, that is the current directory if it lies in a mount, or else the only mount there is. The exit
    status is 1 if anything could not be listed.
    """
    complaints = Complaints()
    found: list[tuple[Target, Entry | None]] = []
    for each in paths or (None,):
        with complaints:
            place = target.here(mount) if each is None else target.locate(each, mount)
            found.append((place, _file(place, long)))
    files = [entry for _, entry in found if entry is not None]
    directories = [place for place, entry in found if entry is None]
    listings = _listings(directories, long, hidden, recursive, complaints)
    if output.json:
        output.document(files + [entry for _, entries in listings for entry in entries])
    else:
        _show_listings(output, files, listings, long, output.terminal and not single, recursive or len(found) > 1)
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
    known = asdict(found)
    del known["error"], known["code"]
    return {**known, "path": place.shown(place.path)}


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
            entry = _long(child, child.checked(found))
            if hidden or not child.is_hidden:
                yield child, entry, recursive and found.type == "directory"
        return
    answer = place.files.ls(place.path)
    place.require(answer.error)
    for info in answer.entries or ():
        child = place.below(base_name(info["path"]))
        if hidden or not child.is_hidden:
            # A link to a directory is listed as one, and may lead back to where we are.
            down = recursive and info.get("is_dir") and child.kind(follow=False) == "directory"
            yield child, {**info, "path": place.shown(info["path"])}, bool(down)


def _show_listings(
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
        output.lines(long_lines(output, entries, names))
    elif columns:
        for row in in_columns([output.name(name) for name in names], shutil.get_terminal_size().columns):
            output.line("".join(_painted(output, cell) for cell in row))
    else:
        output.lines(_painted(output, output.name(name)) for name in names)


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
            "-" if entry["mtime_ns"] is None else local_time(entry["mtime_ns"] // 10**9, TO_THE_MINUTE),
        )
        for entry in entries
    ]
    for head, name, entry in zip(padded(rows, " ", numbers=(1, 4)), names, entries, strict=True):
        arrow = f" -> {output.name(entry['target'])}" if entry["target"] is not None else ""
        yield f"{head} {_painted(output, output.name(name))}{arrow}"


def _or_dash(value: int | None) -> str:
    return "-" if value is None else str(value)


# -- stat -------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("paths", nargs=-1, required=True, shell_complete=complete_path, metavar="PATH...")
@click.option("-L", "follow", is_flag=True, help="Follow symbolic links.")
@json_option(
    "an array of {path, type, size, mode, nlink, uid, gid, atime_ns, mtime_ns, ctime_ns, target, route, version}; "
    "null for what there is not."
)
@mount_option
def stat(paths: Sequence[str], follow: bool, output: Output, mount: str | None) -> None:
    """Tell all about files: type, size, mode, links, owner, times, and the route that holds them.

    The exit status is 1 if there is nothing to tell of one of them.
    """
    complaints = Complaints()
    found = []
    for given in paths:
        with complaints:
            links_too = follow or given.endswith("/")
            place = target.locate(given, mount, follow=links_too)
            found.append(_long(place, place.stat(follow=links_too)))
    output.document(found)
    for number, record in enumerate(found):
        if number:
            output.line()
        for label, value in _rows(record):
            if value is not None:
                output.line(f"{label:>8}: {output.name(value)}")
    complaints.finish()


def _rows(record: Entry) -> list[tuple[str, str | None]]:
    mode = None
    if record["mode"] is not None:
        mode = f"{record['mode']:04o} ({mode_string(record['type'], record['mode'])})"
    return [
        ("path", record["path"]),
        ("type", record["type"]),
        ("target", record["target"]),
        ("size", None if record["size"] is None else f"{record['size']} bytes"),
        ("mode", mode),
        ("links", None if record["nlink"] is None else str(record["nlink"])),
        ("owner", None if record["uid"] is None else f"{user_name(record['uid'])} ({record['uid']})"),
        ("group", None if record["gid"] is None else f"{group_name(record['gid'])} ({record['gid']})"),
        ("accessed", None if record["atime_ns"] is None else to_the_nanosecond(record["atime_ns"])),
        ("modified", None if record["mtime_ns"] is None else to_the_nanosecond(record["mtime_ns"])),
        ("changed", None if record["ctime_ns"] is None else to_the_nanosecond(record["ctime_ns"])),
        ("route", record["route"]),
        ("version", record["version"]),
    ]


# -- read and write ---------------------------------------------------------------------------------------------


@click.command()
@click.argument("path", shell_complete=complete_path)
@click.option("--offset", type=click.IntRange(min=0), metavar="N", help="Leave out the first N lines.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Print at most N lines.")
@click.option("-n", "numbered", is_flag=True, help="Number the lines: the text that agents are shown.")
@json_option(
    f"{{path, content, encoding, start_line, end_line, total_lines, next_offset, modified_at, version}}, with at "
    f"most {READ_LIMIT_LINES} lines unless --limit is given; encoding is 'utf-8', or 'base64' for a whole binary file."
)
@mount_option
def read(path: str, offset: int | None, limit: int | None, numbered: bool, output: Output, mount: str | None) -> None:
    """Print a file as it is, or lines of it as an agent reads them.

    Lines, that is with --offset, --limit, -n or --json, are those of text: CRLF is shown as LF, and a binary file has
    none. On a terminal, control characters are escaped, and a binary file is refused.
    """
    place = target.locate(path, mount)
    if output.json:
        _print_record(output, place, offset or 0, READ_LIMIT_LINES if limit is None else limit)
    elif numbered or offset is not None or limit is not None:
        _print_lines(output, place, offset or 0, ALL_LINES if limit is None else limit, numbered)
    else:
        _print_bytes(output, place)


def _print_bytes(output: Output, place: Target) -> None:
    if output.terminal:
        found = place.files.download_files([place.path])[0]
        content = found.content or b""
        if b"\0" in content[:SNIFFED_BYTES]:
            raise Failed(f"'{place.given}' is a binary file of {len(content)} bytes: not printed on a terminal")
        output.line(output.text(content.decode("utf-8", "surrogateescape"), lines=True), end="")
    else:
        found = place.files.fetch([place.path], lambda _, piece: output.bytes(piece))[0]
    place.require(found.error)


def _print_lines(output: Output, place: Target, offset: int, limit: int, numbered: bool) -> None:
    found = place.files.read(place.path, offset, limit)
    place.require(found.error)
    data = found.file_data
    if data is not None and data.get("encoding") == "base64":
        raise Failed(f"'{place.given}' is binary and has no lines; read it without --offset, --limit and -n")
    text = f"{found}\n" if numbered else (data["content"] if data is not None else "")
    output.line(output.text(text, lines=True), end="")


def _print_record(output: Output, place: Target, offset: int, limit: int) -> None:
    found = asdict(place.files.read(place.path, offset, limit))
    place.require(found["error"])
    data = found["file_data"] or {"content": "", "encoding": "utf-8"}
    output.document(
        {
            "path": place.shown(place.path),
            "content": data["content"],
            "encoding": data.get("encoding", "utf-8"),
            **{key: found[key] for key in ("start_line", "end_line", "total_lines", "next_offset")},
            "modified_at": data.get("modified_at"),
            "version": found["version"],
        }
    )


@click.command()
@click.argument("path", shell_complete=complete_path)
@click.argument("source", required=False, type=click.Choice(["-"]), metavar="[-]")
@click.option("--text", metavar="TEXT", help="What to write, exactly, instead of standard input.")
@click.option("--replace", is_flag=True, help="Replace a file that is there.")
@if_version_option
@json_option("{path, size}, in bytes.")
@mount_option
def write(
    path: str,
    source: str | None,
    text: str | None,
    replace: bool,
    if_version: str | None,
    output: Output,
    mount: str | None,
) -> None:
    """Make a file from standard input, or from --text, with the directories that are missing.

    A file that is there already is refused without --replace or --if-version. Without these, what is written must be
    UTF-8 text; 'upload' stores anything.
    """
    if text is not None and source is not None:
        raise click.UsageError("give --text or '-', not both")
    place = target.locate(path, mount)
    kind = place.kind()
    if kind == "directory":
        raise Failed(f"'{path}' is a directory")
    if kind is not None and not replace and if_version is None:
        raise Failed(f"'{path}' exists; --replace writes over it")
    content = _content(text, source)
    if replace and if_version is None:
        place.require(place.files.upload_files([(place.path, content)])[0].error)
    else:
        place.require(place.files.write(place.path, _decoded(content), if_version=if_version).error)
    output.document({"path": place.shown(place.path), "size": len(content)})


def _content(text: str | None, source: str | None) -> bytes:
    if text is not None:
        return text.encode("utf-8", "surrogateescape")
    if source is None and sys.stdin.isatty():
        raise click.UsageError("nothing to write: give --text, pipe something in, or '-' to type it")
    return sys.stdin.buffer.read()


def _decoded(content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Failed(f"this is no UTF-8 text (at byte {error.start}); 'upload' stores files of any bytes") from None


@click.command()
@click.argument("path", shell_complete=complete_path)
@click.argument("old")
@click.argument("new")
@click.option("--all", "replace_all", is_flag=True, help="Replace every occurrence; without it there must be one.")
@if_version_option
@json_option("{path, occurrences}.")
@mount_option
def edit(
    path: str, old: str, new: str, replace_all: bool, if_version: str | None, output: Output, mount: str | None
) -> None:
    """Replace the string OLD by NEW in a text file, and tell how often.

    OLD is taken letter by letter and may span lines. Put -- before a string that starts with '-'. The file is changed
    as a whole: readers see the old or the new text.
    """
    place = target.locate(path, mount)
    answer = place.files.edit(place.path, old, new, replace_all, if_version=if_version)
    if answer.error is not None:
        error = place.words(answer.error)
        for verb, command in _OPTIONS:
            error = error.replace(verb, command)
        raise Failed(error)
    output.document({"path": place.shown(place.path), "occurrences": answer.occurrences})
    output.line("1 replacement" if answer.occurrences == 1 else f"{answer.occurrences} replacements")


# -- rm and mv ----------------------------------------------------------------------------------------------------


@click.command()
@click.argument("paths", nargs=-1, required=True, shell_complete=complete_path, metavar="PATH...")
@click.option("-r", "-R", "recursive", is_flag=True, help="Also directories, with all below them.")
@click.option("-f", "force", is_flag=True, help="What is not there is no error.")
@if_version_option
@json_option("an array of the paths that were deleted.")
@mount_option
def rm(
    paths: Sequence[str], recursive: bool, force: bool, if_version: str | None, output: Output, mount: str | None
) -> None:
    """Delete files, and with -r directories. A symbolic link is deleted, not what it leads to.

    The exit status is 1 if anything could not be deleted.
    """
    if if_version is not None and len(paths) > 1:
        raise click.UsageError("--if-version is of one file")
    complaints = Complaints()
    deleted = []
    for given in paths:
        with complaints:
            if _delete(given, recursive, force, if_version, mount):
                deleted.append(given)
    output.document(deleted)
    complaints.finish()


def _delete(given: str, recursive: bool, force: bool, if_version: str | None, mount: str | None) -> bool:
    """Return True if it was there and is deleted. Raises `Failed`."""
    place = target.locate(given, mount, follow=False)
    if force and place.kind(follow=False) is None:
        return False
    kind = place.stat(follow=False).type
    if kind == "directory" and not recursive:
        raise Failed(f"'{given}' is a directory; -r deletes it with all below it")
    answer = place.files.delete(place.path, if_version=if_version)
    if answer.error is not None:
        raise Failed(place.words(answer.error) + _routes_in(place))
    return True


def _routes_in(place: Target) -> str:
    """Return words on the routes at and below a path, which can't be deleted: EBUSY does not tell of them."""
    start = place.path.rstrip("/") + "/"
    prefixes = [each["prefix"] for each in place.files.status().get("routes", ())]
    found = [prefix for prefix in prefixes if prefix.startswith(start) and prefix != "/"]
    return f"; routes stay, so delete what is in them: {' '.join(found)}" if found else ""


@click.command()
@click.argument("sources", nargs=-1, required=True, shell_complete=complete_path, metavar="SOURCE...")
@click.argument("destination", shell_complete=complete_path)
@if_version_option
@json_option("an array of {source, path}, path being where it is now.")
@mount_option
def mv(sources: Sequence[str], destination: str, if_version: str | None, output: Output, mount: str | None) -> None:
    """Rename SOURCE to DESTINATION, or move sources into the directory DESTINATION.

    Directories that DESTINATION lacks are made. A file that is there is never replaced: delete it before. Inside of a
    route this is one step; from one route to another it is a copy and a delete. The exit status is 1 if anything could
    not be moved.
    """
    if if_version is not None and len(sources) > 1:
        raise click.UsageError("--if-version is of one file")
    complaints = Complaints()
    moved = []
    goal = target.locate(destination, mount)
    into = goal.kind() == "directory"
    if not into and (len(sources) > 1 or destination.endswith("/")):
        raise Failed(f"'{destination}' is not a directory")
    if not into:
        goal = target.locate(destination, mount, follow=False)
    for given in sources:
        with complaints:
            source = target.locate(given, mount, follow=False)
            name = base_name(source.path)
            place = goal.below(name) if into and name else goal
            moved.append({"source": given, "path": _move(source, place, if_version)})
    output.document(moved)
    complaints.finish()


def _move(source: Target, goal: Target, if_version: str | None) -> str:
    """Where it is now, in the words of the command line. Raises `Failed`."""
    shown = goal.shown(goal.path)
    if source.files is not goal.files:
        raise Failed(f"'{source.given}' and '{shown}' lie in different mounts; mv(1) moves from one to the other")
    answer = source.files.move(source.path, goal.path, if_version=if_version)
    if answer.error is not None:
        words = source.words(answer.error).replace(f"'{goal.path}'", f"'{shown}'")
        raise Failed(words.replace(f"Cannot move to {goal.path} because", f"can't move to '{shown}' because"))
    return shown


# -- grep and glob -----------------------------------------------------------------------------------------------


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
    output: Output,
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
    complaints = Complaints(exit_code=TROUBLE)
    matches: list[GrepMatch] = []
    truncated = False
    missing: list[str] = []
    for given in paths or (None,):
        left = None if max_count is None else max_count - len(matches)
        with complaints:
            place = _there(given, mount)
            with progress("searching", quiet=output.json):
                found = place.files.grep(pattern, place.path, glob, max_count=left)
            place.require(found.error)
            matches += [{**match, "path": place.shown(match["path"])} for match in found.matches or ()]
            truncated = truncated or found.truncated
            missing += [found.missing] if found.missing is not None else []
    output.document({"matches": matches, "truncated": truncated, "missing": "; ".join(missing) or None})
    if names or counts:
        _show_files(output, matches, counts, "\0" if zero else "\n")
    else:
        _show_lines(output, matches, pattern)
    if truncated:
        unread = "not everything was searched: it took too long, or files are too large or may not be read"
        limited = not missing and max_count is not None and len(matches) >= max_count
        output.note("there are more matches than -m asked for" if limited else "; ".join(missing) or unread)
    complaints.finish(0 if matches else NO_MATCH)


def _there(given: str | None, mount: str | None) -> Target:
    """Where to search. Raises `Failed` when there is nothing: the verb would find no match in it."""
    place = target.here(mount) if given is None else target.locate(given, mount)
    place.stat()
    return place


def _show_files(output: Output, matches: list[GrepMatch], counts: bool, end: str) -> None:
    for path, count in Counter(match["path"] for match in matches).items():
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
def glob(pattern: str, path: str | None, zero: bool, output: Output, mount: str | None) -> None:
    """Find the regular files with names that match PATTERN, below PATH.

    '*' and '?' stay inside a name, '**' spans directories; '[a-z]' and '{a,b}' are as in a shell. A PATTERN without '/'
    is for names at any depth, one with '/' for paths from PATH on. Quote it, or the shell takes it for itself.

    The exit status is 0 also if nothing was found, as find(1)'s is.
    """
    place = _there(path, mount)
    with progress("searching", quiet=output.json):
        found = place.files.glob(pattern, place.path)
    place.require(found.error)
    matches: list[dict[str, Any]] = [{**info, "path": place.shown(info["path"])} for info in found.matches or ()]
    output.document({
        "matches": matches, "truncated": found.truncated, "truncation_reason": found.truncation_reason,
        "missing": found.missing,
    })  # fmt: skip
    for info in matches:
        output.line(output.name(info["path"]), end="\0" if zero else "\n")
    if found.truncated:
        output.note(f"not everything was searched ({found.missing or found.truncation_reason or 'unknown reason'})")
