"""`fusebackend view`: the views of a mount, their rules, and what a rule does about a path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from fusebackend.cli import target
from fusebackend.cli.show import Failed, Output, aligned, json_option, note
from fusebackend.cli.target import complete_names, mount_option

if TYPE_CHECKING:
    from fusebackend.control.client.client import Client
    from fusebackend.protocol import ViewInfo


def find_view(files: Client, name: str) -> ViewInfo:
    """Return a view of a mount. Raises `Failed` if there is none of that name."""
    found = {each.name: each for each in files.views()}
    if name not in found:
        raise Failed(f"there is no view '{name}'; there are: {', '.join(found) or 'none at all'}")
    return found[name]


def complete_view(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the name of a view."""
    return complete_names(context, incomplete, lambda files: [(each.name, None) for each in files.views()])


@click.group()
def view() -> None:
    """Show the views of a mount: what a reader may see and do there.

    A view is a directory, /mnt/agent/.fusebackend/views/NAME, with the files of the mount as its rules allow.
    'exec --view NAME' runs a command for which it is the mount. Views are made by the mount's configuration.
    """


@view.command("list")
@json_option("an array of {name, rules, path, is_default}.")
@mount_option
def list_views(as_json: bool, mount: str | None) -> None:
    """List the views: name, number of rules, directory."""
    output, files = Output(), target.here(mount).files
    found = files.views()
    if as_json:
        output.document([asdict(each) for each in found])
        return
    if not found:
        note("no views; [views.NAME] in the mount's TOML file makes one")
    rules = [f"{len(each.rules)} {'rule' if len(each.rules) == 1 else 'rules'}" for each in found]
    places = [target.outside(files, each.path) + ("  (default)" if each.is_default else "") for each in found]
    for line in aligned([*zip((each.name for each in found), map("{:<9}".format, rules), places, strict=True)]):
        output.line(line)


@view.command()
@click.argument("name", shell_complete=complete_view)
@json_option("{name, rules, path, is_default}.")
@mount_option
def show(name: str, as_json: bool, mount: str | None) -> None:
    """Print the rules of a view, with the numbers that 'explain' has. The first that matches decides."""
    output, files = Output(), target.here(mount).files
    found = find_view(files, name)
    if as_json:
        output.document(asdict(found))
        return
    for number, rule in enumerate(found.rules, 1):
        output.line(_line(output, number, rule["mode"], rule["operations"], rule["paths"]))


def _line(output: Output, number: int, mode: str, operations: Sequence[str], globs: Sequence[str]) -> str:
    return f"{number:>3}  {mode:<9}  {','.join(operations):<10}  {' '.join(map(output.name, globs))}"


@view.command("socket")
@click.argument("name", shell_complete=complete_view)
@mount_option
def socket_of(name: str, mount: str | None) -> None:
    """Print the path of a socket whose clients can only do what a view allows.

    They can't leave the view, so a process that has this socket alone, as in a container into which it was bound, is
    held by the view's rules: 'fusebackend --mount SOCKET' there, or connect(SOCKET) in Python. It is made when it is
    first asked for, for this user alone (0600), and ends with the server of the mount; the next one has another path.
    """
    output, files = Output(), target.here(mount).files
    path = files.view_socket(name)
    output.line(path)


@view.command()
@click.argument("name", shell_complete=complete_view)
@click.argument("operation", type=click.Choice(["read", "write", "execute"]))
@click.argument("path")
@json_option("{mode, rule, path}.")
@mount_option
def explain(name: str, operation: str, path: str, as_json: bool, mount: str | None) -> None:
    """Tell what a view does about an operation on a PATH, as agents name it, and which rule says so."""
    output, files = Output(), target.here(mount).files
    answer = files.explain(name, operation, path)
    if as_json:
        output.document(asdict(answer))
        return
    if answer.rule is None:
        output.line(f"{answer.mode}: no rule matches")
        return
    rule = next(each for each in files.views() if each.name == name).rules[answer.rule - 1]
    output.line(f"{answer.mode}: rule {answer.rule} matches {output.name(answer.path)}")
    output.line(_line(output, answer.rule, rule["mode"], rule["operations"], rule["paths"]))
