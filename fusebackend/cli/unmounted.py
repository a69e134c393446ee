"""`fusebackend serve`: the backends of a mount by their control socket alone, where nothing can be mounted."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace

import click

from fusebackend import config
from fusebackend.cli.mount import make_data_directory, plan_of, plan_options, route_lines, word_options
from fusebackend.cli.show import Failed, announce
from fusebackend.config import ConfigFile, MountPlan
from fusebackend.control import rendezvous
from fusebackend.linux import mount_table as table
from fusebackend.linux.mount_table import MountError
from fusebackend.urls import opening as urls


@click.command()
@plan_options
@click.option("--socket", "socket_path", metavar="PATH", help="Listen here, and not in the runtime directory.")
@click.option("--background", is_flag=True, help="Return when it answers; 'umount' with the socket ends it.")
@word_options
def serve(
    default: str | None,
    routes: Sequence[str],
    config_path: str | None,
    read_only: bool,
    socket_path: str | None,
    background: bool,
    options: Sequence[str],
) -> None:
    """Serve backends without a mount, and print the socket: it needs no FUSE, and no privilege.

    Every command of files, snapshots, branches, views and the log works on it, with --mount SOCKET or --mount FILE, the
    configuration; 'fusebackend.connect' takes both as well. Paths are those that agents use. Commands run in the
    default backend, if it runs any.

    It serves until Ctrl-C or SIGTERM. Branches and history are those of the mount point that the configuration names,
    or else of the configuration, or of the URL of the default.
    """
    if config_path is None and default is None:
        raise click.UsageError("give --config FILE, or --default URL")
    file = config.read_file(config_path) if config_path else ConfigFile()
    if config_path is not None:
        place = config.place_of(config_path, file)
    else:
        assert default is not None
        url = urls.parse(default)
        place = os.path.realpath(url.path) if url.path is not None else "/" + urls.mask(url.text)
    _require_unmounted(place)
    address = None if socket_path is None else os.path.abspath(socket_path)
    plan = replace(_unmounted(plan_of(place, file, config_path, default, routes, read_only, options)), socket=address)
    make_data_directory(default, file, place)
    if background:
        from fusebackend.cli.start import start

        pid, warnings = start(plan)
        _announce(plan, pid, plan.log)
        for line in warnings:
            click.echo(f"Warning: {line}", err=True)
    else:
        from fusebackend.cli.serve import serve as serve_here

        serve_here(plan, lambda _: _announce(plan, os.getpid()), log_file=None)


@contextlib.contextmanager
def served_meanwhile(config_path: str) -> Iterator[None]:
    """Have a configuration served without a mount for the length of a block.

    If nothing serves it, a server is started in the background. It ends with the last such block of any process, also
    if that process was killed.

    Raises:
        ConfigError, UrlError, MountError: as `serve`.
    """
    file = config.read_file(config_path)
    place = config.place_of(config_path, file)
    with rendezvous.session(place) as sessions:
        if rendezvous.server_of(place) is None:
            from fusebackend.cli.start import start

            plan = _unmounted(plan_of(place, file, config_path, None, (), False, ()))
            make_data_directory(None, file, place)
            try:
                _, warnings = start(replace(plan, sessions=sessions))
            except MountError:
                if rendezvous.server_of(place) is None:  # else another process has started one just now
                    raise
            else:
                for line in warnings:
                    click.echo(f"Warning: {line}", err=True)
        yield


def _unmounted(plan: MountPlan) -> MountPlan:
    for name, mountpoint in plan.view_mounts.items():
        click.echo(f"Warning: view '{name}' is not on '{mountpoint}': nothing is mounted", err=True)
    return replace(plan, is_mounted=False, view_mounts={})


def _require_unmounted(place: str) -> None:
    entry = table.mount_at(place)
    if entry is not None and entry.is_ours:
        raise Failed(f"'{place}' is mounted: that mount has a socket of its own, and --mount {place} uses it")


def _announce(plan: MountPlan, pid: int, log: str | None = None) -> None:
    found = rendezvous.server_of(plan.mountpoint)
    where = plan.socket if found is None else found.socket
    head = f"serving {where} (process {pid}{', read-only' if plan.read_only else ''})"
    announce([head, *route_lines(plan, log)])
