"""`fusebackend backends`: the URLs that can be mounted, and the features of each."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from fusebackend.backends.fsspec.opening import installed_protocols
from fusebackend.cli.show import Output, json_option
from fusebackend.cli.status import cannot
from fusebackend.urls import Scheme, meanings, scheme_table


@click.command()
@json_option("an array with an object for each scheme.")
def backends(output: Output) -> None:
    """List the URLs that can be mounted, and the features of each."""
    schemes = scheme_table()
    if output.json:
        output.document([_as_object(name, scheme) for name, scheme in schemes.items()])
    else:
        for name, scheme in schemes.items():
            _show(name, scheme)
        formatter = click.HelpFormatter(max_width=100)
        with formatter.section("\nParameters, in a URL as in 'sqlite:agent.db?on_exists=replace'"):
            formatter.write_dl([(name, meaning) for name, (meaning, _) in meanings().items()])
        click.echo(formatter.getvalue().rstrip())


def _as_object(name: str, scheme: Scheme | Exception) -> dict[str, Any]:
    if isinstance(scheme, Exception):
        return {"scheme": name, "error": str(scheme)}
    return {
        "scheme": name,
        "form": scheme.form,
        "summary": scheme.summary,
        "parameters": None if scheme.parameters is None else sorted(scheme.parameters),
        "execute": scheme.execute,
        "features": None if scheme.features is None else asdict(scheme.features),
        **(installed_protocols()._asdict() if name == "fsspec" else {}),
    }


def _show_protocols() -> None:
    found = installed_protocols()
    formatter = click.HelpFormatter(width=100)
    formatter.indent()
    formatter.indent()
    if found.installed:
        formatter.write_text(f"protocols: {', '.join(found.installed)}")
    words: dict[str, list[str]] = {}
    for protocol, need in found.missing.items():
        words.setdefault(need, []).append(protocol)
    for need, named in words.items():
        formatter.write_text(f"not installed: {', '.join(named)}: {need}")
    click.echo(formatter.getvalue().rstrip())


def _show(name: str, scheme: Scheme | Exception) -> None:
    if isinstance(scheme, Exception):
        click.echo(f"{name}:\n    can't be loaded: {scheme}")
        return
    click.echo(f"{scheme.form}\n    {scheme.summary}")
    if scheme.parameters is None:
        click.echo("    parameters: any, passed on as text")
    elif scheme.parameters:
        click.echo(f"    parameters: {', '.join(sorted(scheme.parameters))}")
    if scheme.features is not None and (unable := cannot(asdict(scheme.features))):
        click.echo(f"    cannot: {unable}")
    if name == "fsspec":
        _show_protocols()
