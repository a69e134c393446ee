"""`fusebackend status`: the state of every mount. `fusebackend metrics`: what is measured of one, for Prometheus."""

from __future__ import annotations

import errno
import sys
from typing import TYPE_CHECKING, Any

import click

from fusebackend.base.shown import shown
from fusebackend.cli import target
from fusebackend.cli.show import Output, aligned, json_option, local_time
from fusebackend.cli.space import limit_text
from fusebackend.cli.target import complete_mountpoint
from fusebackend.linux import mount_table as table
from fusebackend.linux.mount_table import MountError, MountState
from fusebackend.linux.unmount import why_hung

if TYPE_CHECKING:
    from fusebackend.control.rendezvous import Served


@click.command()
@click.argument("mountpoint", required=False, shell_complete=complete_mountpoint)
@json_option("an array with an object for each mount.")
def status(mountpoint: str | None, output: Output) -> None:
    """Show all mounts, or the one on MOUNTPOINT; of what 'serve' serves, its socket or configuration.

    `state` is alive, dead (the server is gone), hung (it does not answer) or denied (it is another user's). With a
    MOUNTPOINT, the exit status is 0 only if that mount is alive.
    """
    from fusebackend.control import rendezvous

    if mountpoint is None:
        states = [*table.probe(*target.mountpoints()), *map(_of_served, rendezvous.served())]
    else:
        path = table.resolve(mountpoint)
        entry = table.mount_at(path)
        found = rendezvous.find_served(mountpoint) if entry is None else None
        if found is None and (entry is None or not entry.is_ours):
            raise MountError(errno.EINVAL, f"'{path}' is not mounted by fusebackend")
        states = [_of_served(found)] if found is not None else table.probe(path)
    output.document([_as_object(state) for state in states])
    if states:
        _print(output, states)
    else:
        output.line("nothing is mounted")
    if mountpoint is not None and states[0].state != "alive":
        sys.exit(1)


def _of_served(served: Served) -> MountState:
    """Ask the server of what is not mounted."""
    from fusebackend.control.client.client import Client
    from fusebackend.control.client.client_connection import ServerLost

    try:
        with Client(served.socket, view="") as files:
            return MountState(served.place, "alive", files.status())
    except (MountError, ServerLost):
        return MountState(served.place, "hung")


def _as_object(state: MountState) -> dict[str, Any]:
    # The table's mount point, not the server's: it may have been moved, or seen through another namespace.
    mountpoint = None if "place" in state.status else state.mountpoint
    return {"routes": [], **state.status, "mountpoint": mountpoint, "state": state.state, "pid": state.pid}


def _print(output: Output, states: list[MountState]) -> None:
    for number, state in enumerate(states):
        if number:
            output.line()
        output.line(f"{output.paint(shown(state.mountpoint), 'blue', bold=True)}  {shown(_headline(state))}")
        if state.state != "alive":
            continue
        routes = state.status.get("routes", [])
        table = aligned([("route", "backend", "cached", "undo", "cannot"), *map(_row, routes)])
        usages = [limit_text(str(route.get("prefix")), route["usage"]) for route in routes if route.get("usage")]
        for line in (*_details(state), *table, *_commands(state.status.get("execute") or {}), *usages):
            output.line(f"  {shown(line)}")
        for trouble in filter(None, map(_trouble, routes)):
            output.line(output.paint(f"  {shown(trouble)}", "red", bold=True))


def _row(route: dict[str, Any]) -> tuple[str, ...]:
    backend = str(route.get("url") or route.get("volume"))
    cells = shown(str(route.get("prefix"))), shown(backend), _caching(route), str(route.get("undo") or "–")
    return *cells, cannot(route.get("features") or {}) or "–"


def _commands(execute: dict[str, Any]) -> list[str]:
    """How commands are confined, where they run, and which routes they don't see there."""
    if not execute:
        return []  # the server does not answer
    where = confined = str(execute["where"])
    if execute["sandbox"] == "none":
        confined = "unconfined, as the server's user"
    elif execute["sandbox"] == "bubblewrap":
        network = f"in a bubblewrap sandbox, {'with the' if execute['network'] else 'no'} network"
        confined = "none: bubblewrap is not installed" if execute["bubblewrap"] is None else network
    routes = f", routes {execute['routes']}" if execute.get("routes") else ""
    running = f"; {execute['running']} running" if execute["running"] else ""
    unseen = [f"commands don't see {prefix}: {why}" for prefix, why in execute["unseen_routes"].items()]
    return [f"commands: {confined}{running}", f"execute: {where}{routes}", *unseen]


def _trouble(route: dict[str, Any]) -> str | None:
    """The failure of a route, its time and reason; None for a healthy one."""
    health = route.get("health") or {}
    if health.get("state", "healthy") == "healthy":
        return None
    since = local_time(health.get("since") or 0)
    fails = "; calls fail at once until it answers" if health["state"] == "down" else ""
    return f"{route.get('prefix')} is {health['state']} since {since}: {health.get('why')}{fails}"


def _headline(state: MountState) -> str:
    if state.state == "dead":
        return f"dead: its server is gone; 'fusebackend umount {state.mountpoint}' clears it away"
    if state.state == "hung":
        entry = table.mount_at(state.mountpoint)
        return "hung: " + ("its server does not answer" if entry is None else "; ".join(why_hung(entry)))
    if state.state == "denied":
        return "another user's"
    parts = [f"process {state.pid}"]
    started_at = state.status.get("started_at")
    if isinstance(started_at, int | float):
        parts.append(f"since {local_time(started_at)}")
    if "place" in state.status:
        parts.append("not mounted")
    if state.status.get("read_only"):
        parts.append("read-only")
    return ", ".join(parts)


def _details(state: MountState) -> list[str]:
    """Further lines on a mount that answers."""
    status = state.status
    counts = [
        _count(status[key], one, many)
        for key, one, many in (
            ("open_files", "open file", "open files"),
            ("known_inodes", "file known to the kernel", "files known to the kernel"),
        )
        if isinstance(status.get(key), int)
    ]
    if "place" in status:
        lines = [f"socket: {(status.get('control') or {}).get('socket')}"]
    else:
        requests = sum((status.get("counters") or {}).values())
        lines = [", ".join([*counts, _count(requests, "request", "requests")])]
    if status.get("log"):
        lines.append(f"log: {status['log']}")
    if status.get("idle") == "poll":
        lines.append("idle: poll, processors of the machine are kept awake during bursts")
    elif status.get("idle_refused"):
        lines.append(f"idle: sleep, although idle=poll was asked for: {status['idle_refused']}")
    history = status.get("history") or {}
    if "path" in history:
        why = history.get("incomplete")
        lines.append(f"history: {history['path']}" + (f"; incomplete: {why}" if why else ""))
    return lines


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


def _caching(route: dict[str, Any]) -> str:
    text = "coherent" if route.get("ttl_s") is None else f"for {route['ttl_s']:g} s"
    counts = [f"{route[key]} {words}" for key, words in _COUNTS.items() if route.get(key)]
    return ", ".join([text, *counts])


_COUNTS = {"timeouts": "timed out", "unstored": "to be stored"}


_ABILITIES = {
    "random_writes": "write in place",
    "rename": "rename atomically",
    "links": "hard links",
    "symlinks": "symlinks",
    "special_files": "special files",
    "xattrs": "xattrs",
    "persistent_modes": "keep modes",
    "durable": "outlive its server",
}


def cannot(features: dict[str, Any]) -> str:
    """The features that a volume lacks, in words; empty when it can do everything."""
    missing = [words for name, words in _ABILITIES.items() if features.get(name) is False]
    return ", ".join((["write"] if features.get("read_only") else []) + missing)


@click.command()
@click.argument("mountpoint", required=False, shell_complete=complete_mountpoint)
def metrics(mountpoint: str | None) -> None:
    """Print what is measured of the mount on MOUNTPOINT, or of the only one, in the text format of Prometheus.

    Times of requests and verbs are there if the mount's TOML file has the table [metrics]; counts are there anyway.
    With `listen = "127.0.0.1:9464"` in it, Prometheus can ask the server itself.
    """
    text = target.here(mountpoint, "as MOUNTPOINT").files.metrics()
    Output().line(text, end="")
