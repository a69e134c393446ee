"""`fusebackend doctor`: what this machine lacks for a mount, and how to mend it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from fusebackend import config
from fusebackend.cli.mount import plan_of, plan_options, word_options
from fusebackend.cli.show import Output, json_option
from fusebackend.config import ConfigFile
from fusebackend.linux import mount_table as table

if TYPE_CHECKING:
    from fusebackend.config import MountPlan

COLOURS = {"ok": "green", "warning": "yellow", "error": "red"}


@click.command()
@click.argument("mountpoint", required=False)
@plan_options
@word_options
@json_option("{verdict, findings}, a finding {what, verdict, why, mend}.")
def doctor(
    mountpoint: str | None,
    default: str | None,
    routes: Sequence[str],
    config_path: str | None,
    read_only: bool,
    options: Sequence[str],
    as_json: bool,
) -> None:
    """Look at what a mount needs: FUSE, sandboxes for commands, directories, programs; with the arguments of 'mount',
    also at each backend.

    Each line is a verdict (ok, warning, error), what was looked at, and why; 'mend' is what to do. Nothing is changed.
    The exit status is 1 if anything is an error.
    """
    from fusebackend.doctor.finding import worst
    from fusebackend.doctor.routes import diagnose

    plan = None
    if mountpoint is not None or config_path is not None or default is not None or routes:
        plan = _plan(mountpoint, default, routes, config_path, read_only, options)
    output, found = Output(), []
    for finding in diagnose(plan):
        found.append(finding)
        if not as_json:
            head = f"{output.paint(f'{finding.verdict:<7}', COLOURS[finding.verdict])}  {output.text(finding.what)}"
            output.line(f"{head}: {output.text(finding.why)}")
            if finding.mend:
                output.line(f"         mend: {output.text(finding.mend)}")
    verdict = worst(found)
    if as_json:
        output.document({"verdict": verdict, "findings": [asdict(each) for each in found]})
    click.get_current_context().exit(1 if verdict == "error" else 0)


def _plan(
    mountpoint: str | None,
    default: str | None,
    routes: Sequence[str],
    config_path: str | None,
    read_only: bool,
    options: Sequence[str],
) -> MountPlan:
    file = config.read_file(config_path) if config_path else ConfigFile()
    if mountpoint is not None:
        place = table.resolve(mountpoint)
    else:
        place = config.place_of(config_path, file) if config_path else os.getcwd()
    return plan_of(place, file, config_path, default, routes, read_only, options)
