"""`fusebackend serve`: the backends of a mount by their control socket alone, where nothing can be mounted."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import click
from msgspec.structs import replace

from fusebackend import config
from fusebackend.cli.mount import MountLine, line_options, make_data_directory, plan_of, route_lines, start_server
from fusebackend.cli.show import Failed, announce
from fusebackend.config import MountPlan
from fusebackend.control import rendezvous
from fusebackend.linux import mount_table as table
from fusebackend.linux.mount_table import MountError
from fusebackend.urls import opening as urls


@click.command()
@click.option("--socket", "socket_path", metavar="PATH", help="Listen here, and not in the runtime directory.")
@click.option("--background", is_flag=True, help="Return when it answers; 'umount' with the socket ends it.")
@line_options
def serve(line: MountLine, socket_path: str | None, background: bool) -> None:
    """Serve backends without a mount, and print the socket: it needs no FUSE, and no privilege.

    Every command of files, snapshots, branches, views and the log works on it, with --mount SOCKET or --mount FILE, the
    configuration; 'fusebackend.connect' takes both as well. Paths are those that agents use. Commands run in the
    default backend, if it runs any.

    It serves until Ctrl-C or SIGTERM. Branches and history are those of the mount point that the configuration names,
    or else of the configuration, or of the URL of the default.
    """
    if line.config_path is None and line.default is None:
        raise click.UsageError("give --config FILE, or --default URL")
    file = line.file()
    if line.config_path is not None:
        place = config.place_of(line.config_path, file)
    else:
        assert line.default is not None
        url = urls.parse(line.default)
        place = os.path.realpath(url.path) if url.path is not None else "/" + urls.mask(url.text)
    _require_unmounted(place)
    address = None if socket_path is None else os.path.abspath(socket_path)
    plan = _unmounted(plan_of(place, line, file), socket=address)
    if background:
        _announce(plan, start_server(plan), plan.log)
    else:
        from fusebackend.cli.serve import serve as serve_here

        serve_here(replace(plan, log=None), lambda _: _announce(plan, os.getpid()))


@contextlib.contextmanager
def served_meanwhile(config_path: str) -> Iterator[None]:
    """Have a configuration served without a mount for the length of a block.

    If nothing serves it, a server is started in the background. It ends with the last such block of any process, also
    if that process was killed.

    Raises:
        ConfigError, UrlError, MountError: as `serve`.
    """
    line = MountLine(config_path=config_path)
    file = line.file()
    place = config.place_of(config_path, file)
    with rendezvous.session(place) as sessions:
        if rendezvous.server_of(place) is None:
            plan = _unmounted(plan_of(place, line, file), sessions=sessions)
            try:
                start_server(plan)
            except MountError:
                if rendezvous.server_of(place) is None:  # else another process has started one just now
                    raise
        yield


def _unmounted(plan: MountPlan, **others: str | None) -> MountPlan:
    for name, mountpoint in plan.settings.view_mounts.items():
        click.echo(f"Warning: view '{name}' is not on '{mountpoint}': nothing is mounted", err=True)
    make_data_directory(plan)
    return replace(plan, is_mounted=False, settings=replace(plan.settings, view_mounts={}), **others)


def _require_unmounted(place: str) -> None:
    entry = table.mount_at(place)
    if entry is not None and entry.is_ours:
        raise Failed(f"'{place}' is mounted: that mount has a socket of its own, and --mount {place} uses it")


def _announce(plan: MountPlan, pid: int, log: str | None = None) -> None:
    found = rendezvous.server_of(plan.mountpoint)
    where = plan.socket if found is None else found.socket
    head = f"serving {where} (process {pid}{', read-only' if plan.settings.read_only else ''})"
    announce([head, *route_lines(plan, log)])
