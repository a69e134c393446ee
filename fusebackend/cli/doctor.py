"""`fusebackend doctor`: what this machine lacks for a mount, and how to mend it."""

from __future__ import annotations

from dataclasses import asdict

import click

from fusebackend.cli.mount import MountLine, line_options, plan_of
from fusebackend.cli.show import Output, json_option

COLOURS = {"ok": "green", "warning": "yellow", "error": "red"}


@click.command()
@click.argument("mountpoint", required=False)
@json_option("{verdict, findings}, a finding {what, verdict, why, mend}.")
@line_options
def doctor(line: MountLine, mountpoint: str | None, output: Output) -> None:
    """Look at what a mount needs: FUSE, sandboxes for commands, directories, programs; with the arguments of 'mount',
    also at each backend.

    Each line is a verdict (ok, warning, error), what was looked at, and why; 'mend' is what to do. Nothing is changed.
    The exit status is 1 if anything is an error.
    """
    from fusebackend.doctor import diagnose, worst

    is_named = mountpoint is not None or line.config_path is not None or line.default is not None or line.routes
    plan = plan_of(line.place(mountpoint), line) if is_named else None
    found = []
    for finding in diagnose(plan):
        found.append(finding)
        head = f"{output.paint(f'{finding.verdict:<7}', COLOURS[finding.verdict])}  {output.text(finding.what)}"
        output.line(f"{head}: {output.text(finding.why)}")
        if finding.mend:
            output.line(f"         mend: {output.text(finding.mend)}")
    verdict = worst(found)
    output.document({"verdict": verdict, "findings": [asdict(each) for each in found]})
    click.get_current_context().exit(1 if verdict == "error" else 0)
