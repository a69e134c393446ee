"""`fusebackend umount`: end a mount, wait until everything is stored, and name the processes that keep it busy."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import signal
import sys
import time
from typing import IO, NoReturn

import click

from fusebackend.base.lines import split_lines
from fusebackend.base.shown import shown
from fusebackend.cli.progress import progress
from fusebackend.cli.show import announce, user_name
from fusebackend.cli.target import complete_mountpoint
from fusebackend.control.rendezvous import Served, find_served
from fusebackend.linux import mount_table as table
from fusebackend.linux.mount_table import MountEntry, MountError, MountState
from fusebackend.linux.unmount import BusyError, detach, end_of, is_stopped, server_of, serves, why_hung

DEFAULT_TIMEOUT_S = 60.0


@click.command()
@click.argument("mountpoint", shell_complete=complete_mountpoint)
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
    """Unmount MOUNTPOINT, and wait until its server has stored everything and ended.

    Of what 'serve' serves without a mount, give the socket or the configuration.
    """
    path = table.resolve(mountpoint)
    entry = table.mount_at(path)
    served = None if entry is not None else find_served(mountpoint)
    if served is not None:
        _end_served(served, timeout_s)
        return
    os.chdir("/")  # from inside, this process would be one that keeps it busy
    try:
        announce([end_mount(path, lazy=lazy, timeout_s=timeout_s)])
    except BusyError as error:
        show_holders(error)
        sys.exit(1)


def end_mount(path: str, *, lazy: bool, timeout_s: float) -> str:
    """Unmount, and wait until the server has stored everything and ended. Returns what was done, in a line.

    Args:
        path: as `mount_table.resolve` gives it.
        lazy: also while files are open, which can be used until they are closed.
        timeout_s: how long the server may take.

    Raises:
        BusyError: not `lazy`, and something is open below it.
        MountError: it is no mount of this user's, or something may be lost.
    """
    entry = table.mount_at(path)
    if entry is None:
        raise MountError(errno.EINVAL, f"'{path}' is not mounted")
    if not entry.is_ours:
        raise MountError(errno.EINVAL, f"'{path}' is mounted, but not by fusebackend ({entry.fstype})")
    owner = entry.owner
    if owner is not None and os.geteuid() not in (0, owner):
        raise MountError(
            errno.EPERM, f"'{path}' is a mount of user {user_name(owner)}, who can unmount it, as can root"
        )
    (state,) = table.probe(path)
    if state.state == "hung":
        _refuse_hung(entry, lazy)
    if state.state == "dead":
        detach(path, lazy=True)
        return f"unmounted {path}; its server had died before"
    with progress("storing everything"):
        return _end(state, state.pid or server_of(entry), lazy, timeout_s)


def _end_served(served: Served, timeout_s: float) -> None:
    """End the server of what is not mounted."""
    pid = served.pid
    with end_of(pid) as ended, progress("storing everything"):
        try:
            os.kill(pid, signal.SIGTERM)
        except PermissionError:
            raise MountError(errno.EPERM, f"process {pid}, which serves it, is another user's") from None
        except ProcessLookupError:
            pass
        if not ended(timeout_s):
            does = "is stopped" if is_stopped(pid) else "is still storing"
            lost = "what it has not stored is lost if it is killed"
            raise MountError(errno.ETIMEDOUT, f"'{served.place}': process {pid} {does}; {lost}")
    announce([f"ended {served.socket}"])


def _refuse_hung(entry: MountEntry, lazy: bool) -> NoReturn:
    """A server that does not answer can't be waited for: unsaved files are in its memory alone."""
    path = entry.mountpoint
    why, remedy = why_hung(entry)
    lost = "what was written there and is not stored yet is lost if it is killed"
    if lazy:
        detach(path, lazy=True)
        stores = "then it stores that and ends"
        raise MountError(errno.ETIMEDOUT, f"'{path}' is detached, but {why}: {lost}; {remedy}, {stores}")
    hint = f"{remedy}; then unmount again, or use --lazy to take it away all the same"
    raise MountError(errno.ETIMEDOUT, f"'{path}' is still mounted: {why}, and {lost}; {hint}")


def _end(state: MountState, pid: int | None, lazy: bool, timeout_s: float) -> str:
    path = state.mountpoint
    if pid is None or not serves(pid):
        detach(path, lazy=lazy)
        unknown = "its server did not identify itself: whether it has stored everything is unknown"
        raise MountError(errno.ETIMEDOUT, f"'{path}' is detached, but {unknown}")
    log_path = state.status.get("log")
    deadline = time.monotonic() + timeout_s
    with end_of(pid) as ended, _end_of_log(log_path) as log:
        detach(path, lazy=lazy)
        # With --lazy the server goes on until the last file is closed, which may be never: only a short wait then.
        if not ended(min(timeout_s, 1.0) if lazy else deadline - time.monotonic()):
            if lazy:
                return f"detached {path}; process {pid} serves it until the last open file is closed"
            where = f"; see {log_path}" if log_path else ""
            does = "is stopped, and has not stored everything" if is_stopped(pid) else "is still storing"
            lost = "; what it has not stored is lost if it is killed"
            raise MountError(errno.ETIMEDOUT, f"'{path}' is detached, but process {pid} {does}{lost}{where}")
        lines = split_lines(log.read().decode("utf-8", "replace"))
    errors = [line.partition(" ERROR ")[2] for line in lines if " ERROR " in line[:40]]  # about what it stored
    if errors:
        raise MountError(errno.EIO, f"'{path}' is unmounted, but its server reported: {errors[-1]} (see {log_path})")
    return f"unmounted {path}"


def show_holders(error: BusyError, name: str = "Error", lazy: str = "--lazy") -> None:
    """Name the processes that keep a mount busy.

    Args:
        name: what the first line begins with.
        lazy: the option that detaches a busy mount.
    """
    click.echo(f"{name}: {error}", err=True)
    for path in error.mounted_below:
        click.echo(f"  mounted below it: {shown(str(path))}", err=True)
    for holder in error.holders:
        words = shown(f"({holder.command}) has {holder.path} open as {holder.how}")
        click.echo(f"  process {holder.pid} {words}", err=True)
    if not error.holders and not error.mounted_below and os.geteuid() != 0:
        click.echo("  the processes with open files there are another user's; root can see them", err=True)
    click.echo(f"  close these, or use {lazy}", err=True)


def _end_of_log(path: str | None) -> IO[bytes]:
    """Open a server's log at its end; an empty one where there is none, or it can't be read."""
    if path is not None:
        with contextlib.suppress(OSError):
            log = open(path, "rb")  # noqa: SIM115 (closed by the caller)
            log.seek(0, os.SEEK_END)
            return log
    return io.BytesIO()
