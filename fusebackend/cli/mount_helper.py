"""`mount.fusebackend` and `umount.fusebackend`: what mount(8) and umount(8) run for a line of /etc/fstab.

mount(8) runs `mount.TYPE SOURCE DIRECTORY [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]` ("External helpers"), and
umount(8) `umount.TYPE DIRECTORY [-flnrv] [-N NAMESPACE] [-t TYPE]`. Both look in /sbin, umount(8) by the type that the
table of mounts has: `umount.fuse.fusebackend`. Without it, umount(8) returns before the server has stored everything.

The exit status is one of theirs: 0 done, 1 wrong arguments, 8 interrupted, 32 it could not be done.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from typing import NoReturn

import click
from msgspec.structs import replace

from fusebackend import urls
from fusebackend.base.settings import ConfigError
from fusebackend.base.shown import one_line
from fusebackend.cli.mount import MountLine, announce_served, make_ready, plan_of, start_server
from fusebackend.cli.show import announce, standard_streams
from fusebackend.cli.umount import DEFAULT_TIMEOUT_S, end_mount, show_holders
from fusebackend.config import words_known
from fusebackend.linux import mount_table as table
from fusebackend.linux.mount_table import FSTYPE, SUBTYPE
from fusebackend.linux.unmount import BusyError
from fusebackend.urls import UrlError

USAGE, INTERRUPTED, FAILED = 1, 8, 32
"""Exit statuses of mount(8)."""

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""For the server and the programs that it runs: mount(8) takes PATH, HOME and SHELL out of a helper's environment."""

NOTHING = "none"
"""The source that stands for the embedded default of the mount point, as for file systems without a device."""

_FOR_OTHERS = frozenset(
    ("defaults", "auto", "noauto", "user", "nouser", "users", "nousers", "owner", "noowner", "group", "nogroup",
     "_netdev", "nofail", "atime", "relatime", "diratime", "nolazytime", "nostrictatime", "nomand", "loud", "silent")
)  # fmt: skip
"""Words for mount(8), systemd and the boot; and those for what the kernel does on a FUSE mount in any case."""

_PREFIXES_FOR_OTHERS = ("x-", "X-", "comment=", "user=", "uhelper=", "helper=")


def mount_main() -> NoReturn:
    """Run `mount.fusebackend`."""
    _run(mount_helper, "mount.fusebackend")


def umount_main() -> NoReturn:
    """Run `umount.fuse.fusebackend`."""
    _run(umount_helper, "umount.fusebackend")


@standard_streams()
def _run(command: click.Command, name: str) -> NoReturn:
    """Run a helper; an error that a user can cause is a line on standard error, and a status of mount(8)."""
    os.environ.setdefault("PATH", PATH)
    try:
        status: object = command.main(prog_name=name, standalone_mode=False)
    except (click.exceptions.Abort, KeyboardInterrupt):
        sys.exit(INTERRUPTED)
    except click.ClickException as error:
        _fail(name, error.format_message(), USAGE)
    except (ConfigError, UrlError) as error:
        _fail(name, one_line(error), USAGE)
    except OSError as error:
        _fail(name, one_line(error), FAILED)
    sys.exit(status if isinstance(status, int) else 0)


def _fail(name: str, why: str, status: int) -> NoReturn:
    click.echo(f"{name}: {why}", err=True)
    sys.exit(status)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("source")
@click.argument("mountpoint")
@click.option("-s", "is_sloppy", is_flag=True, help="Leave out options that are not known.")
@click.option("-f", "is_fake", is_flag=True, help="Read everything, and mount nothing.")
@click.option("-n", "without_mtab", is_flag=True, help="No effect: the kernel's table is the only one.")
@click.option("-v", "is_verbose", is_flag=True, help="Say what was mounted.")
@click.option("-N", "namespace", metavar="NAMESPACE", help="Refused: enter the mount namespace with nsenter(1).")
@click.option("-o", "options", multiple=True, metavar="OPTIONS", help="Words with commas between.")
@click.option("-t", "fstype", metavar="TYPE", help="fusebackend.")
def mount_helper(
    source: str,
    mountpoint: str,
    is_sloppy: bool,
    is_fake: bool,
    without_mtab: bool,
    is_verbose: bool,
    namespace: str | None,
    options: Sequence[str],
    fstype: str | None,
) -> None:
    """Mount SOURCE on the empty directory MOUNTPOINT for mount(8), and return when it answers.

    SOURCE is a TOML file by its absolute path, the URL of a backend, or 'none' for the embedded default.
    """
    _check(namespace, fstype)
    words = list(_words(options, is_sloppy))
    path = table.resolve(mountpoint)
    config_path = source if os.path.isabs(source) else None
    default = None if config_path or source == NOTHING else source
    if default is not None and urls.mask(default) != default:
        raise ConfigError(
            f"'{urls.mask(default)}' has a password, which every user could read in the table of mounts: "
            "write the URL into a TOML file that only root can read, and give that file"
        )
    line = MountLine(default=default, config_path=config_path, options=words)
    plan = plan_of(path, line)
    plan = replace(plan, source=source)  # by which `mount -a` knows that it is mounted
    if is_fake:
        return
    make_ready(plan)
    pid = start_server(plan, "mount.fusebackend: warning: ")
    if is_verbose:
        announce_served(plan, pid, plan.log)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("mountpoint")
@click.option("-l", "is_lazy", is_flag=True, help="Also while files are open: they can be used until they are closed.")
@click.option("-f", "is_forced", is_flag=True, help="Refused: 'umount -i -f' has the kernel end all requests.")
@click.option("-r", "read_only", is_flag=True, help="No effect.")
@click.option("-n", "without_mtab", is_flag=True, help="No effect: the kernel's table is the only one.")
@click.option("-v", "is_verbose", is_flag=True, help="Say what was unmounted.")
@click.option("-N", "namespace", metavar="NAMESPACE", help="Refused: enter the mount namespace with nsenter(1).")
@click.option("-t", "fstype", metavar="TYPE", help="fuse.fusebackend.")
def umount_helper(
    mountpoint: str,
    is_lazy: bool,
    is_forced: bool,
    read_only: bool,
    without_mtab: bool,
    is_verbose: bool,
    namespace: str | None,
    fstype: str | None,
) -> int:
    """Unmount MOUNTPOINT for umount(8), and wait until its server has stored everything and ended."""
    _check(namespace, fstype)
    if is_forced:
        raise click.UsageError(f"-f would lose what is not stored yet: if it must be, 'umount -i -f {mountpoint}'")
    try:
        said = end_mount(table.resolve(mountpoint), lazy=is_lazy, timeout_s=DEFAULT_TIMEOUT_S)
    except BusyError as error:
        show_holders(error, "umount.fusebackend", "umount -l")
        return FAILED
    if is_verbose:
        announce([said])
    return 0


def _check(namespace: str | None, fstype: str | None) -> None:
    """Raises `click.UsageError` for a mount namespace, or for a type that is not ours."""
    if namespace is not None:
        raise click.UsageError("-N is not known here: run mount in that namespace, with 'nsenter --mount'")
    if fstype not in (None, SUBTYPE, FSTYPE):
        raise click.UsageError(f"-t {fstype}: this mounts file systems of type {SUBTYPE}")


def _words(options: Sequence[str], is_sloppy: bool) -> Iterator[str]:
    """Yield the words that a mount here means, of those that mount(8) passes on.

    Raises:
        ConfigError: a remount or a bind mount is asked for.
    """
    known = {each.partition("=")[0] for each in words_known()}
    for word in (word.strip() for option in options for word in option.split(",")):
        if word in ("remount", "bind", "rbind", "move"):
            raise ConfigError(f"-o {word} is not possible: umount, and mount again with other options")
        if word in _FOR_OTHERS or word.startswith(_PREFIXES_FOR_OTHERS):
            continue
        if not is_sloppy or word.partition("=")[0] in known:
            yield word
