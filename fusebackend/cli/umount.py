"""`fusebackend umount`: end a mount, wait until everything is stored, and say who keeps it busy."""

from __future__ import annotations

import errno
import os
import sys
import time

import click

from fusebackend.cli.progress import waiting
from fusebackend.cli.target import completion
from fusebackend.mount import table
from fusebackend.mount.error import MountError
from fusebackend.mount.table import MountState
from fusebackend.mount.unmount import BusyError, Server, detach, serves

DEFAULT_TIMEOUT_S = 60.0


@click.command()
@click.argument("mountpoint", shell_complete=completion("mountpoint"))
@click.option("--lazy", is_flag=True, help="Also while files are open: they can be used until they are closed.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0, min_open=True),
    default=DEFAULT_TIMEOUT_S,
    metavar="S",
    show_default=True,
    help="Seconds to wait for the server to store everything and end.",
)
def umount(mountpoint: str, lazy: bool, timeout_s: float) -> None:
    """Unmount MOUNTPOINT, and wait until its server has stored everything and ended."""
    path = table.resolve(mountpoint)
    entry = table.mount_at(path)
    if entry is None:
        raise MountError(errno.EINVAL, f"'{path}' is not mounted")
    if not entry.is_ours:
        raise MountError(errno.EINVAL, f"'{path}' is mounted, but not by fusebackend ({entry.fstype})")
    state = table.probe(path)
    if state.state == "dead":
        detach(path, lazy=True)
        click.echo(f"unmounted {path}; its server had died before")
        return
    try:
        with waiting("storing everything"):
            _end(state, lazy, timeout_s)
    except BusyError as error:
        _show_holders(error)
        sys.exit(1)


def _end(state: MountState, lazy: bool, timeout_s: float) -> None:
    path = state.mountpoint
    if state.pid is None or not serves(state.pid):
        detach(path, lazy=lazy)
        click.echo(f"detached {path}; nobody waited for its server, which did not say who it is")
        return
    log_path = state.status.get("log")
    log_start = _size(log_path)
    deadline = time.monotonic() + timeout_s
    with Server(state.pid) as server:
        detach(path, lazy=lazy)
        # With --lazy the server goes on until the last file is closed, which may be never: only a short wait then.
        if not server.ended(min(timeout_s, 1.0) if lazy else deadline - time.monotonic()):
            if lazy:
                click.echo(f"detached {path}; process {server.pid} serves it until the last open file is closed")
                return
            where = f"; see {log_path}" if log_path else ""
            raise MountError(errno.ETIMEDOUT, f"'{path}' is detached, but process {server.pid} is still storing{where}")
    errors = _errors_since(log_path, log_start)
    if errors:
        raise MountError(errno.EIO, f"'{path}' is unmounted, but its server reported: {errors[-1]} (see {log_path})")
    click.echo(f"unmounted {path}")


def _show_holders(error: BusyError) -> None:
    click.echo(f"Error: {error}", err=True)
    for path in error.mounted_below:
        click.echo(f"  mounted below it: {path}", err=True)
    for holder in error.holders:
        click.echo(f"  process {holder.pid} ({holder.command}) has {holder.path} open as {holder.how}", err=True)
    if not error.holders and not error.mounted_below and os.geteuid() != 0:
        click.echo("  whoever has something open there is another user's process; root can see it", err=True)
    click.echo("  close these, or use --lazy", err=True)


def _size(path: object) -> int:
    try:
        return os.stat(path).st_size if isinstance(path, str) else 0
    except OSError:
        return 0


def _errors_since(path: object, start: int) -> list[str]:
    """Messages of the errors that a server logged from byte `start` on: its last words about what it stored."""
    if not isinstance(path, str):
        return []
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            file.seek(start)
            lines = file.read().splitlines()
    except OSError:
        return []
    return [line.partition(" ERROR ")[2] for line in lines if " ERROR " in line[:40]]
