"""`fusebackend read`: a file byte by byte, or lines of it as an agent reads them."""

from __future__ import annotations

from dataclasses import asdict

import click

from fusebackend.cli import target
from fusebackend.cli.show import Failed, Output, json_option
from fusebackend.cli.target import Target, complete_path, mount_option
from fusebackend.protocol import READ_LIMIT_LINES

ALL_LINES = (1 << 31) - 1

SNIFFED_BYTES = 8192
"""A NUL among the first bytes means a binary file, as git and grep decide."""


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
def read(path: str, offset: int | None, limit: int | None, numbered: bool, as_json: bool, mount: str | None) -> None:
    """Print a file as it is, or lines of it as an agent reads them.

    Lines, that is with --offset, --limit, -n or --json, are those of text: CRLF is shown as LF, and a binary file has
    none. On a terminal, control characters are escaped, and a binary file is refused.
    """
    output = Output()
    place = target.locate(path, mount)
    if as_json:
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
    if found.error is not None:
        raise Failed(place.words(found.error))


def _print_lines(output: Output, place: Target, offset: int, limit: int, numbered: bool) -> None:
    found = place.files.read(place.path, offset, limit)
    if found.error is not None:
        raise Failed(place.words(found.error))
    data = found.file_data
    if data is not None and data.get("encoding") == "base64":
        raise Failed(f"'{place.given}' is binary and has no lines; read it without --offset, --limit and -n")
    text = f"{found}\n" if numbered else (data["content"] if data is not None else "")
    output.line(output.text(text, lines=True), end="")


def _print_record(output: Output, place: Target, offset: int, limit: int) -> None:
    found = asdict(place.files.read(place.path, offset, limit))
    if found["error"] is not None:
        raise Failed(place.words(found["error"]))
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
