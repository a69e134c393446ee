"""`fusebackend write`: a file of standard input or of a text on the command line."""

from __future__ import annotations

import sys

import click

from fusebackend.cli import target
from fusebackend.cli.show import Failed, Output, json_option
from fusebackend.cli.target import complete_path, if_version_option, mount_option


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
    as_json: bool,
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
        answer = place.files.upload_files([(place.path, content)])[0]
        error = answer.error
    else:
        error = place.files.write(place.path, _decoded(content), if_version=if_version).error
    if error is not None:
        raise Failed(place.words(error))
    if as_json:
        Output().document({"path": place.shown(place.path), "size": len(content)})


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
