"""`fusebackend shell`: the user's own shell, for which the mount point shows a branch."""

from __future__ import annotations

import os
from collections.abc import Sequence

import click

from fusebackend.cli import target
from fusebackend.cli.branch import branch_path, complete_name
from fusebackend.cli.show import Failed
from fusebackend.cli.target import mount_option


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, metavar="[--] [COMMAND [ARG]...]")
@click.option("--branch", shell_complete=complete_name, metavar="NAME", help="See this branch at the mount point.")
@mount_option
def shell(command: Sequence[str], branch: str | None, mount: str | None) -> None:
    """Start a shell, or a COMMAND, on this terminal, for which the mount point shows a branch.

    It has this machine's files, programs and network, and the rights of the user, as any other. Only the mount point
    differs, for it and all that it starts. It starts in the current directory if that lies in the mount, or else at the
    mount point. The mount can't end before it. The exit status is its own.

    For a command that sees nothing but the mount, use 'exec'.
    """
    from fusebackend.linux.private_bind import run_with_bind

    place = target.here(mount)
    if not place.files.is_mounted:
        raise Failed(f"'{place.files.mountpoint}' is served without a mount, which a shell needs; mount it")
    mountpoint = place.files.mountpoint
    source = None if branch is None else mountpoint.rstrip("/") + branch_path(place.files, branch)
    place.files.close()
    env = dict(os.environ)
    if branch is not None:
        env["FUSEBACKEND_BRANCH"] = branch
    words = list(command) or [env.get("SHELL") or "/bin/sh"]
    cwd = os.getcwd() if place.root else mountpoint
    status = run_with_bind(
        words,
        source=source,
        target=mountpoint,
        cwd=cwd if f"{cwd}/".startswith(mountpoint.rstrip("/") + "/") else mountpoint,
        env=env,
        no_namespace=f"run it as root, or work in the directory of the branch, {source}",
    )
    click.get_current_context().exit(status)
