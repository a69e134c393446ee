"""`fusebackend shell`: the user's own shell, for which the mount point shows a branch or a view."""

from __future__ import annotations

import os
from collections.abc import Sequence

import click

from fusebackend.cli import target
from fusebackend.cli.branch import branch_path, complete_name
from fusebackend.cli.show import Failed, note
from fusebackend.cli.target import mount_option
from fusebackend.cli.view import complete_view, find_view


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, metavar="[--] [COMMAND [ARG]...]")
@click.option("--branch", shell_complete=complete_name, metavar="NAME", help="See this branch at the mount point.")
@click.option("--view", shell_complete=complete_view, metavar="NAME", help="See the mount through this view there.")
@mount_option
def shell(command: Sequence[str], branch: str | None, view: str | None, mount: str | None) -> None:
    """Start a shell, or a COMMAND, on this terminal, for which the mount point shows a branch or a view.

    It has this machine's files, programs and network, and the rights of the user, as any other. Only the mount point
    differs, for it and all that it starts. It starts in the current directory if that lies in the mount, or else at the
    mount point. The mount can't end before it. The exit status is its own.

    A view is shown, and binds nobody: the socket of the mount answers this user all the same. 'exec --view' binds.

    For a command that sees nothing but the mount, use 'exec'.
    """
    if branch is not None and view is not None:
        raise click.UsageError("give --branch or --view, not both")
    from fusebackend.linux.bind_mount import run_with_bind

    place = target.here(mount)
    mountpoint = place.files.mountpoint
    if not place.files.is_mounted:
        raise Failed(f"'{mountpoint}' is no mount point: give --mount the directory of the mount")
    source = None
    if branch is not None:
        source = mountpoint.rstrip("/") + branch_path(place.files, branch)
    elif view is not None:
        source = mountpoint.rstrip("/") + find_view(place.files, view).path
        note(f"{mountpoint} shows view '{view}', which binds nobody here; to bind a command: exec --view {view}")
    place.files.close()
    words = list(command) or [os.environ.get("SHELL") or "/bin/sh"]
    cwd = os.getcwd() if place.root else mountpoint
    status = run_with_bind(
        words,
        source=source,
        target=mountpoint,
        cwd=cwd if f"{cwd}/".startswith(mountpoint.rstrip("/") + "/") else mountpoint,
        no_namespace=f"run it as root, or work in {source}",
    )
    click.get_current_context().exit(status)
