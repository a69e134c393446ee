"""`fusebackend`: the group of commands, and the one place where errors become a line and an exit status.

Exit status: 0 done, 1 it could not be done, 2 the command line is wrong (`check` has those of fsck). Errors that a user
can cause are one line on standard error, without a traceback. A command's module is imported when it is used, so this
table has their descriptions.
"""

from __future__ import annotations

import errno
import importlib
import signal
import sys
from typing import Any

import click

from fusebackend.base.errors import UserError
from fusebackend.base.shown import one_line
from fusebackend.base.version import __version__
from fusebackend.cli import show

_SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Mounts": {
        "mount": ("mount:mount", "Mount backends on a directory."),
        "serve": ("mount:serve", "Serve backends without a mount, where nothing can be mounted."),
        "umount": ("umount:umount", "Unmount, and wait until everything is stored."),
        "status": ("status:status", "Show mounts and their routes."),
        "metrics": ("status:metrics", "Print what is measured of a mount, for Prometheus."),
        "backends": ("backends:backends", "List the URLs that can be mounted."),
        "doctor": ("doctor:doctor", "Look at what a mount needs here, and say how to mend what it lacks."),
        "check": ("check:check", "Check the file of a volume, and mend it."),
        "snapshot": ("states:snapshot", "Keep the present state of a mount, and list and delete such states."),
        "df": ("space:df", "Show what a mount takes of the disk."),
        "prune": ("space:prune", "Delete what is kept of the past."),
        "threads": ("threads:threads", "Show what takes the space in conversations of LangGraph, and prune them."),
    },
    "Who did what, and how to have it back": {
        "log": ("log:log", "Show the calls that changed files."),
        "blame": ("log:blame", "Show which call left each line of a file as it is."),
        "diff": ("states:diff", "Show what a call did, or what differs between two states, as a git patch."),
        "undo": ("undo:undo", "Take calls back, and nothing that others have done."),
        "restore": ("states:restore", "Put files back as they were in a snapshot."),
        "forget": ("space:forget", "Have all that is kept of the past lose the contents of files."),
        "hook": ("hook:hook", "Have each tool call of a coding agent become a call of the log."),
    },
    "Branches": {
        "branch": ("branch:branch", "Make a branch of a mount, merge it, and list and delete branches."),
        "shell": ("execute:shell", "Start a shell for which the mount point shows a branch."),
    },
    "Views": {
        "view": ("view:view", "Show what a reader of a view may see and do."),
        "approval": ("view:approval", "Approve or deny changes that wait for that."),
    },
    "Files of a mount, as an agent works on them": {
        "ls": ("files:ls", "List directories."),
        "stat": ("files:stat", "Tell all about files."),
        "read": ("files:read", "Print a file, or some of its lines."),
        "write": ("files:write", "Make a file of standard input or a text."),
        "edit": ("files:edit", "Replace a string in a file."),
        "grep": ("files:grep", "Find lines that contain a string."),
        "glob": ("files:glob", "Find files by a pattern for their names."),
        "rm": ("files:rm", "Delete files and directories."),
        "mv": ("files:mv", "Rename files and directories."),
        "upload": ("copies:upload", "Copy local files and trees into a mount."),
        "download": ("copies:download", "Copy files and trees out of a mount."),
        "watch": ("watch:watch", "Print changes as they happen."),
        "exec": ("execute:execute", "Run a command that sees all files where agents do."),
        "mcp": ("mcp:mcp", "Serve a mount to MCP clients."),
    },
}
"""By section: the name of each command, its module, and its description."""

_COMMANDS = {name: entry for commands in _SECTIONS.values() for name, entry in commands.items()}


class _Commands(click.Group):
    def main(self, *args: Any, **kwargs: Any) -> Any:
        with show.standard_streams():
            return super().main(*args, **kwargs)

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        try:
            return super().make_context(*args, **kwargs)
        except OSError as error:  # of the output of `--help`
            if error.errno == errno.EPIPE:
                raise  # click ends quietly
            raise click.ClickException(one_line(error)) from error

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, _, attribute = _COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(f"fusebackend.cli.{module}"), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in _SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, summary) for name, (_, summary) in commands.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            try:
                return super().invoke(ctx)
            finally:
                sys.stdout.flush()  # so that a closed pipe is noticed while it can still be handled
        except BrokenPipeError:  # the reader of the output has ended; end quietly, as SIGPIPE ends other programs
            ctx.exit(128 + signal.SIGPIPE)
        except KeyboardInterrupt:
            ctx.exit(show.INTERRUPTED)
        except (UserError, OSError) as error:
            raise (_Mistake if _is_mistake(error) else click.ClickException)(one_line(error)) from error


class _Mistake(click.ClickException):
    """An error that the next attempt would have, too, with the status of a wrong command line: a unit of systemd makes
    none (`RestartPreventExitStatus=`)."""

    exit_code = 2


def _is_mistake(error: Exception) -> bool:
    from fusebackend.base.settings import ConfigError, UnreadableConfigError

    return isinstance(error, ConfigError) and not isinstance(error, UnreadableConfigError)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="fusebackend", message="%(prog)s %(version)s")
def main() -> None:
    """Mount an agent's files, wherever they live, as a real filesystem, and work on them as an agent does.

    Paths of files are those of the mount, such as /mnt/agent/notes.md, or relative ones from a current directory in a
    mount. With --mount DIR they are those that agents use in that mount, such as /notes.md.
    """


if __name__ == "__main__":
    main(prog_name="fusebackend")
