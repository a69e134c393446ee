"""`fusebackend`: the group of commands, and the one place where errors become a line and an exit status.

Exit status: 0 done, 1 it could not be done, 2 the command line is wrong. What a user can cause is one line on standard
error, without a traceback.
"""

from __future__ import annotations

import os
from typing import Any

import click

from fusebackend import __version__
from fusebackend.cli.backends import backends
from fusebackend.cli.mount import mount
from fusebackend.cli.status import status
from fusebackend.cli.umount import umount
from fusebackend.config import ConfigError
from fusebackend.urls import UrlError


def one_line(error: BaseException) -> str:
    """The text of an error for a user: an `OSError` without its number, and no line breaks."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        text = error.strerror if error.filename is None else f"{error.strerror}: '{os.fsdecode(error.filename)}'"
    return " ".join(text.split()) or type(error).__name__


class _Commands(click.Group):
    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except BrokenPipeError:
            raise  # click ends quietly, as whoever reads has
        except (UrlError, ConfigError, OSError) as error:
            raise click.ClickException(one_line(error)) from error


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="fusebackend", message="%(prog)s %(version)s")
def main() -> None:
    """Mount an agent's files, wherever they live, as a real filesystem."""


for _command in (mount, umount, status, backends):
    main.add_command(_command)

if __name__ == "__main__":
    main(prog_name="fusebackend")
