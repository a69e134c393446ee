"""`fusebackend view`: the views of a mount, their rules, and what a rule does about a path.

`fusebackend approval`: changes in a view that wait until somebody approves them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import click

from fusebackend.cli import target
from fusebackend.cli.log import moment, who
from fusebackend.cli.show import Complaints, Failed, Output, aligned, json_option
from fusebackend.cli.target import completing, on_mount
from fusebackend.control.following import FollowedMount
from fusebackend.protocol import ApprovalInfo

complete_view = completing(lambda files: [(each.name, None) for each in files.views()])
"""Complete the name of a view."""


@click.group()
def view() -> None:
    """Show the views of a mount: what a reader may see and do there.

    A view is a directory, /mnt/agent/.fusebackend/views/NAME, with the files of the mount as its rules allow.
    'exec --view NAME' runs a command for which it is the mount. Views are made by the mount's configuration.
    """


@view.command("list")
@json_option("an array of {name, rules, path, is_default}.")
@on_mount
def list_views(files: FollowedMount, output: Output) -> None:
    """List the views: name, number of rules, directory."""
    found = files.views()
    rules = [f"{len(each.rules)} {'rule' if len(each.rules) == 1 else 'rules'}" for each in found]
    places = [target.outside(files, each.path) + ("  (default)" if each.is_default else "") for each in found]
    lines = aligned([*zip((each.name for each in found), map("{:<9}".format, rules), places, strict=True)])
    output.listing([asdict(each) for each in found], lines, "no views; [views.NAME] in the mount's TOML file makes one")


@view.command()
@click.argument("name", shell_complete=complete_view)
@json_option("{name, rules, path, is_default}.")
@on_mount
def show(files: FollowedMount, name: str, output: Output) -> None:
    """Print the rules of a view, with the numbers that 'explain' has. The first that matches decides."""
    found = target.find("view", name, files.views())
    output.document(asdict(found))
    output.lines(_line(output, number, rule) for number, rule in enumerate(found.rules, 1))


def _line(output: Output, number: int, rule: Mapping[str, Any]) -> str:
    globs = " ".join(map(output.name, rule["paths"]))
    return f"{number:>3}  {rule['mode']:<9}  {','.join(rule['operations']):<10}  {globs}"


@view.command("socket")
@click.argument("name", shell_complete=complete_view)
@on_mount
def socket_of(files: FollowedMount, name: str) -> None:
    """Print the path of a socket whose clients can only do what a view allows.

    They can't leave the view, so a process that has this socket alone, as in a container into which it was bound, is
    held by the view's rules: 'fusebackend --mount SOCKET' there, or connect(SOCKET) in Python. It is made when it is
    first asked for, for this user alone (0600), and ends with the server of the mount; the next one has another path.
    """
    Output().line(files.view_socket(name))


@view.command()
@click.argument("name", shell_complete=complete_view)
@click.argument("operation", type=click.Choice(["read", "write", "execute"]))
@click.argument("path")
@json_option("{mode, rule, path}.")
@on_mount
def explain(files: FollowedMount, name: str, operation: str, path: str, output: Output) -> None:
    """Tell what a view does about an operation on a PATH, as agents name it, and which rule says so."""
    answer = files.explain(name, operation, path)
    if output.json:  # people are shown the rule, too, which takes another request
        output.document(asdict(answer))
        return
    if answer.rule is None:
        output.line(f"{answer.mode}: no rule matches")
        return
    rule = next(each for each in files.views() if each.name == name).rules[answer.rule - 1]
    output.line(f"{answer.mode}: rule {answer.rule} matches {output.name(answer.path)}")
    output.line(_line(output, answer.rule, rule))


# -- approval ----------------------------------------------------------------------------------------------------


PENDING = "pending"
FIELDS = (
    "{number, state, verb, paths, view, actor, time_ns, expires_ns, title, size, decided_ns, decided_by, reason, "
    "change}"
)


complete_number = completing(
    lambda files: [(str(each.number), each.title) for each in files.approvals() if each.state == PENDING]
)
"""Complete the number of a request that waits; what it asks is the help."""


@click.group()
def approval() -> None:
    """Decide about changes that a view lets happen only once somebody has approved them.

    A rule of mode "interrupt" makes a request of a verb that writes, and of a command that starts: with a number, who
    asked, and the change itself. It happens once it is approved, as it was asked; or says why it no longer can.
    """


@approval.command("list")
@click.option("--all", "with_decided", is_flag=True, help="Also those that were decided in the last day.")
@click.option("-f", "--follow", is_flag=True, help="Go on with each new one, until Ctrl-C or the mount's end.")
@json_option(f"an array of {FIELDS}; with -f, an object a line.")
@on_mount
def list_requests(files: FollowedMount, with_decided: bool, follow: bool, output: Output) -> None:
    """List the requests that wait: number, time, actor, what is asked."""
    if follow:
        if with_decided:
            raise click.UsageError("--all and -f: give one of them")
        for each in files.follow_approvals():
            output.record(asdict(each))
            output.line(output.row(_request_line(output, each)))
            output.flush()
        return
    found = [each for each in files.approvals() if with_decided or each.state == PENDING]
    lines = [output.row(_request_line(output, each)) for each in found]
    output.listing([asdict(each) for each in found], lines, "nothing waits for an approval")


def _request_line(output: Output, info: ApprovalInfo) -> str:
    state = "" if info.state == PENDING else f"  ({info.state})"
    actor = output.told(who(info.actor))
    return f"{info.number:>4}  {moment(info.time_ns)}  {actor:<12}{state}  {output.told(info.title)}"


@approval.command("show")
@click.argument("number", type=click.IntRange(min=1), shell_complete=complete_number)
@json_option(f"{FIELDS}.")
@on_mount
def show_request(files: FollowedMount, number: int, output: Output) -> None:
    """Show a request, and what it would change: a patch against the files as they are now, or the command."""
    found = files.approval(number)
    output.document(asdict(found))
    agent = " ".join(word for word in (found.actor.agent, found.actor.thread, found.actor.call) if word)
    lines = {
        "request": f"{found.number}, {found.state}",
        "asked": f"{output.told(found.title)}  (view {output.name(found.view)})",
        "by": output.told(f"{who(found.actor)}{f' ({agent})' if agent else ''}, at {moment(found.time_ns)}"),
        "expires": moment(found.expires_ns) if found.state == PENDING else "",
        "decided": _decided(output, found),
        "reason": output.told(found.reason or ""),
    }
    for name, text in lines.items():
        if text:
            output.line(f"{name + ':':<9} {text}")
    if found.change:
        output.line()
        output.line(output.text(found.change, lines=True), end="")


def _decided(output: Output, info: ApprovalInfo) -> str:
    if info.state == PENDING or info.decided_ns is None:
        return ""
    by = "" if info.decided_by is None else f" by {output.told(who(info.decided_by))}"
    return f"{moment(info.decided_ns)}{by}"


@approval.command()
@click.argument("numbers", type=click.IntRange(min=1), nargs=-1, required=True, shell_complete=complete_number)
@json_option(f"an array of {FIELDS}.")
@on_mount
def approve(files: FollowedMount, numbers: Sequence[int], output: Output) -> None:
    """Approve requests, by their NUMBERS: each change happens now, as it was asked.

    The exit status is 1 if one could not happen any more, or was decided already.
    """
    _decide(numbers, output, files.approve)


@approval.command()
@click.argument("numbers", type=click.IntRange(min=1), nargs=-1, required=True, shell_complete=complete_number)
@click.option("--reason", metavar="TEXT", help="A line for the agent that asked.")
@json_option(f"an array of {FIELDS}.")
@on_mount
def deny(files: FollowedMount, numbers: Sequence[int], reason: str | None, output: Output) -> None:
    """Deny requests, by their NUMBERS: they will not happen."""
    _decide(numbers, output, lambda number: files.deny(number, reason))


def _decide(numbers: Sequence[int], output: Output, decide: Callable[[int], ApprovalInfo]) -> None:
    """Decide requests, each on its own, and say what has come of them."""
    complaints, decided = Complaints(), []
    for number in numbers:
        with complaints:
            found = decide(number)
            decided.append(asdict(found))
            if found.state == "made":
                output.line(f"request {number} has happened: {output.told(found.title)}")
            elif found.state != "denied":
                raise Failed(f"request {number} is approved, and could not happen: {found.reason}")
    output.document(decided)
    complaints.finish()
