"""`fusebackend edit`: replace a string in a file."""

from __future__ import annotations

import click

from fusebackend.cli import target
from fusebackend.cli.show import Failed, Output, json_option
from fusebackend.cli.target import complete_path, if_version_option, mount_option

_OPTIONS = (("Use replace_all=True to replace all", "Use --all to replace all"), ("old_string", "OLD"))
"""Words of the verb's errors, and the command's for them."""


@click.command()
@click.argument("path", shell_complete=complete_path)
@click.argument("old")
@click.argument("new")
@click.option("--all", "replace_all", is_flag=True, help="Replace every occurrence; without it there must be one.")
@if_version_option
@json_option("{path, occurrences}.")
@mount_option
def edit(
    path: str, old: str, new: str, replace_all: bool, if_version: str | None, as_json: bool, mount: str | None
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
    if as_json:
        Output().document({"path": place.shown(place.path), "occurrences": answer.occurrences})
    else:
        Output().line("1 replacement" if answer.occurrences == 1 else f"{answer.occurrences} replacements")
