"""`fusebackend stat`: the attributes of files as stat(2) gives them, and their routes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from fusebackend.cli import target
from fusebackend.cli.show import Complaints, Output, group_name, json_option, mode_string, to_the_nanosecond, user_name
from fusebackend.cli.target import complete_path, mount_option


@click.command()
@click.argument("paths", nargs=-1, required=True, shell_complete=complete_path, metavar="PATH...")
@click.option("-L", "follow", is_flag=True, help="Follow symbolic links.")
@json_option(
    "an array of {path, type, size, mode, nlink, uid, gid, atime_ns, mtime_ns, ctime_ns, target, route, version}; "
    "null for what there is not."
)
@mount_option
def stat(paths: Sequence[str], follow: bool, as_json: bool, mount: str | None) -> None:
    """Tell all about files: type, size, mode, links, owner, times, and the route that holds them.

    The exit status is 1 if there is nothing to tell of one of them.
    """
    output = Output()
    complaints = Complaints()
    found = []
    for given in paths:
        with complaints:
            links_too = follow or given.endswith("/")
            place = target.locate(given, mount, follow=links_too)
            record = asdict(place.stat(follow=links_too))
            del record["error"], record["code"]
            found.append({**record, "path": place.shown(place.path)})
    if as_json:
        output.document(found)
    else:
        for number, record in enumerate(found):
            if number:
                output.line()
            _show(output, record)
    complaints.finish()


def _show(output: Output, record: dict[str, Any]) -> None:
    for label, value in _rows(record):
        if value is not None:
            output.line(f"{label:>8}: {output.name(value)}")


def _rows(record: dict[str, Any]) -> list[tuple[str, str | None]]:
    mode = None
    if record["mode"] is not None:
        mode = f"{record['mode']:04o} ({mode_string(record['type'], record['mode'])})"
    return [
        ("path", record["path"]),
        ("type", record["type"]),
        ("target", record["target"]),
        ("size", None if record["size"] is None else f"{record['size']} bytes"),
        ("mode", mode),
        ("links", None if record["nlink"] is None else str(record["nlink"])),
        ("owner", None if record["uid"] is None else f"{user_name(record['uid'])} ({record['uid']})"),
        ("group", None if record["gid"] is None else f"{group_name(record['gid'])} ({record['gid']})"),
        ("accessed", None if record["atime_ns"] is None else to_the_nanosecond(record["atime_ns"])),
        ("modified", None if record["mtime_ns"] is None else to_the_nanosecond(record["mtime_ns"])),
        ("changed", None if record["ctime_ns"] is None else to_the_nanosecond(record["ctime_ns"])),
        ("route", record["route"]),
        ("version", record["version"]),
    ]
