"""`fusebackend metrics`: what is measured of a mount, as Prometheus reads it."""

from __future__ import annotations

import click

from fusebackend.cli import target
from fusebackend.cli.show import Output
from fusebackend.cli.target import complete_mountpoint


@click.command()
@click.argument("mountpoint", required=False, shell_complete=complete_mountpoint)
def metrics(mountpoint: str | None) -> None:
    """Print what is measured of the mount on MOUNTPOINT, or of the only one, in the text format of Prometheus.

    Times of requests and verbs are there if the mount's TOML file has the table [metrics]; counts are there anyway.
    With `listen = "127.0.0.1:9464"` in it, Prometheus can ask the server itself.
    """
    text = target.here(mountpoint, "as MOUNTPOINT").files.metrics()
    Output().line(text, end="")
